//! Agreement by a program that a provider runs: network cards forward the activation, close gates
//! and hand contributions to everybody, and ranks reduce what has come when they have the time.
//!
//! The machine arms slots ahead, puts deposits into gates whose token it holds, and gives its own
//! arrivals. A round's slot goes through *armed* (its gate takes deposits), *ready* (all ranks may be
//! activated), outcome, *over* (everything queued for it has run), and is armed again. One slot more
//! is armed than may be under way, so what is late always finds an open gate.
//!
//! The tables go over all ranks, so one that leaves goes on arming slots until all have left, and
//! arrives for rounds that could not fire without it. What is still queued then is set off when
//! all know that all have left (`Allreduce::part`), because it writes to memory that a slower one looks at.

use super::arrival::Stage;
use super::entry::Part;
use super::machine::{Cells, FOREVER, Machine};
use super::op::{Op, Token};
use super::plan::{Path, Plan};
use crate::rank_set::RankSet;
use crate::trigger::{Deposit, Gate, Start};

/// How far the slots have come. Rounds go through everything in order.
#[derive(Clone, Debug, Hash)]
pub(super) struct Offloaded {
    /// Newest round that was armed.
    armed: u64,
    /// Newest round that the others were told of.
    ready: u64,
    /// Newest round that the own arrival was given for.
    given: u64,
    /// Newest round of which everything has run.
    over: u64,
    /// What is in the own gates, by slot.
    gates: Vec<u64>,
}

/// Rows of a contribution: what was made for the round, and what is carried into it.
const FRESH: u32 = 0;
const CARRIED: u32 = 1;

impl Offloaded {
    pub(super) fn new(plan: &Plan) -> Self {
        let slots = if plan.path == Path::Offloaded { plan.slots() } else { 0 };
        Offloaded { armed: 0, ready: 0, given: 0, over: 0, gates: vec![0; slots as usize] }
    }

    pub(super) fn is_armed(&self, round: u64) -> bool {
        round <= self.armed
    }
}

impl Machine {
    /// The table's rule of firing.
    fn start_rule(&self) -> Start {
        Start::of(self.plan.fire, self.plan.grace, self.plan.ranks)
    }

    /// The next round whose outcome may be there, and whether its data is wanted.
    pub(crate) fn expected(&self) -> Option<(u64, bool)> {
        let round = self.fired + 1;
        let wanted = self.plan.path == Path::Offloaded && round <= self.offloaded.ready && !self.has_everybody_left();
        let fits = self.left || round - self.taken <= self.plan.depth;
        (wanted && fits).then_some((round, !self.left))
    }

    /// The next round of which everything may have run.
    pub(crate) fn nearly_over(&self) -> Option<u64> {
        let round = self.offloaded.over + 1;
        (self.plan.path == Path::Offloaded && round <= self.fired).then_some(round)
    }

    /// The outcome of the next round, as its record says.
    pub(super) fn learn_offloaded(&mut self, cells: &impl Cells) -> bool {
        let Some((round, wanted)) = self.expected() else { return false };
        if !self.read_record(round, cells) {
            return false;
        }
        self.fire(round);
        // Whoever took no part in firing it gives its arrival now: every input comes once.
        self.give(round);
        if !wanted {
            (self.taken, self.landed) = (round, round);
        }
        true
    }

    fn give(&mut self, round: u64) {
        if self.offloaded.given < round {
            debug_assert_eq!(self.offloaded.given + 1, round);
            self.offloaded.given = round;
            self.push(Op::Give { round });
        }
    }

    /// Arms what can be armed.
    pub(super) fn step_offloaded(&mut self, cells: &impl Cells) {
        while let Some(round) = self.nearly_over().filter(|&round| cells.load(self.plan.over(round)) == round) {
            self.offloaded.over = round;
            self.transitions += 1;
        }
        if self.has_everybody_left() || self.released == FOREVER {
            return;
        }
        // A rank that has left reads nothing any more.
        let released = if self.left { self.fired } else { self.released };
        let last = released + self.plan.depth;
        loop {
            let round = self.offloaded.armed + 1;
            let before = round.saturating_sub(self.plan.slots());
            if round > last + 1 || before > self.offloaded.over {
                break;
            }
            self.offloaded.armed = round;
            let slot = self.plan.slot(round);
            self.offloaded.gates[slot] = Gate::new(round, Deposit::default()).0;
            self.push(Op::Arm { round });
        }
        while self.offloaded.ready < last.min(self.offloaded.armed) {
            self.offloaded.ready += 1;
            self.push(Op::Ready { round: self.offloaded.ready });
        }
        let next = self.fired + 1;
        if self.left && next <= self.offloaded.ready && self.is_needed() {
            self.give(next);
        }
    }

    /// Whether the next round cannot fire without this rank, which has left.
    fn is_needed(&self) -> bool {
        let needed = match self.start_rule() {
            Start::Everybody => self.plan.ranks,
            Start::Count(count) => count,
            Start::First | Start::Designated => return false,
        };
        // So many of those who left arrive for the others, the lowest first.
        let left_before = (0..self.plan.me).filter(|&rank| !self.active.contains(rank)).count() as u32;
        self.active.len() + left_before < needed
    }

    fn has_everybody_left(&self) -> bool {
        self.left && self.active.is_empty()
    }

    /// Who has not left yet, where this rank has, and goes on for them.
    pub(super) fn served(&self) -> Option<&RankSet> {
        (self.plan.path == Path::Offloaded && self.left && !self.has_served()).then_some(&self.active)
    }

    /// Whether nobody needs this rank's provider any more.
    pub(super) fn has_served(&self) -> bool {
        self.plan.path != Path::Offloaded || (self.has_everybody_left() && self.offloaded.over >= self.fired)
    }

    /// Asks for the token of the own gate of `round`, once that is armed.
    pub(super) fn take_token(&mut self, round: u64) {
        if self.offloaded.is_armed(round) {
            self.push(Op::TakeBack { round, token: Token::Deposit });
            self.enter(Stage::Depositing { round, found: 0 });
        }
    }

    /// The token is out, or the gate was sealed.
    pub(super) fn token_answered(&mut self, taken: u64) {
        let Some(arrival) = &self.arrival else { return };
        let Stage::Depositing { round, .. } = arrival.stage else { return };
        let (target, part, buffer, weight) = (arrival.target, arrival.part, arrival.buffer, arrival.weight);
        if taken == 0 {
            return self.refused(round);
        }
        let start = self.start_rule();
        let starts = round == target && self.starts_alone(start);
        let made_for = arrival.made_for;
        let slot = self.plan.slot(round);
        let mut row = None;
        let gate = Gate(self.offloaded.gates[slot]).with(|deposit| {
            match part {
                Part::Leaving => deposit.leaving = true,
                Part::Fresh if round == target => (deposit.fresh, row) = (Some(FRESH), Some(FRESH)),
                Part::Fresh | Part::Carried => {
                    (deposit.carried, row) = (Some((CARRIED, round - made_for)), Some(CARRIED));
                }
            }
            deposit.initiator |= starts;
        });
        self.offloaded.gates[slot] = gate.0;
        self.push(Op::LetIn { round, gate: gate.0, buffer, row, weight });
        if part == Part::Fresh && round != target {
            self.stats.jumps += u64::from(round - target >= 2);
            return self.enter(Stage::Over { needs: round - 1 });
        }
        if starts {
            self.stats.initiated += 1;
        }
        if starts || matches!(start, Start::Everybody | Start::Count(_)) {
            self.give(round);
        }
        self.enter(Stage::Published);
    }
}
