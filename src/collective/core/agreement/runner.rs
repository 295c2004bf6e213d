//! Agreement by a program that a runner runs in place of the ranks: it forwards the activation, closes gates and hands
//! contributions to all ranks, and ranks reduce the received contributions when they have time.
//!
//! This part arms slots ahead of time, puts deposits into gates whose token it holds, and signals this rank's arrivals.
//! A round's slot is *armed* (its gate takes deposits), then *ready* (all ranks may be activated), then holds the
//! outcome, is *over* (everything queued for it has run), and is armed again. One slot more is armed than may be in
//! progress, so a late contribution always finds an open gate.
//!
//! The tables include all ranks, so a rank that leaves continues to arm slots until all have left, and arrives for
//! rounds that could not fire without it. Operations that are still queued then are triggered when all ranks know that
//! all have left (`Raw::part`), because they write to memory that a slower rank reads.

use super::super::context::Context;
use super::super::entry::Part;
use super::super::input::{Cells, Effort, FOREVER};
use super::super::movement::Movement;
use super::super::op::{RunnerOp, Token};
use super::super::plan::Plan;
use super::arrival::Arrival;
use super::{Form, has_shown, insert_absent, starts_alone};
use crate::rank_set::RankSet;
use crate::trigger::{Deposit, Gate, Start};

/// The progress of the slots. Rounds pass through all states in order.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Slots {
    /// Newest round that was armed.
    armed: u64,
    /// Newest round that this rank announced as ready to the others.
    ready: u64,
    /// Newest round for which this rank signalled its arrival.
    signalled: u64,
    /// Newest round of which every operation has run.
    over: u64,
    /// The contents of this rank's gates, by slot.
    gates: Vec<u64>,
}

/// Rows of a contribution: the contribution made for the round, and the one carried into it.
const FRESH: u32 = 0;
const CARRIED: u32 = 1;

/// Returns the table's rule of firing.
fn start_rule(plan: &Plan) -> Start {
    Start::of(plan.fire, plan.grace, plan.ranks)
}

fn has_everyone_left(Context { ledger, .. }: &Context) -> bool {
    ledger.has_left() && ledger.active().is_empty()
}

/// How far an arrival has come.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum RunnerStage {
    /// The token of this rank's gate of a round was asked for.
    Depositing { round: u64 },
    /// The contribution is in the gate.
    Published,
    /// The target fired without it; it is not placed in any round up to `tried`.
    Late { tried: u64 },
}

impl Form for Slots {
    type Stage = RunnerStage;

    fn has_room(&self, target: u64, _: &Movement, _: &mut Context, _: &impl Cells) -> bool {
        self.is_armed(target)
    }

    fn enter(&mut self, arrival: &mut Arrival<RunnerStage>, _: &mut Movement, cx: &mut Context, _: &impl Cells) {
        self.revoke_token(arrival.target, arrival, cx);
    }

    /// Fires the next round once its record is on this host.
    #[inline(never)]
    fn learn(
        &mut self,
        arrival: &mut Arrival<RunnerStage>,
        _: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) -> bool {
        let Some((round, wanted)) = self.expected(cx) else { return false };
        if !cx.read_record(round, cells) {
            return false;
        }
        arrival.fire(round, cx);
        // A rank that did not signal its arrival while the round fired signals it now, because each input must come
        // once.
        self.signal_arrival(round, cx);
        if !wanted {
            cx.ledger.pass_over(round);
        }
        true
    }

    fn step(
        &mut self,
        stage: RunnerStage,
        arrival: &mut Arrival<RunnerStage>,
        _: Effort,
        _: &mut Movement,
        cx: &mut Context,
        _: &impl Cells,
    ) {
        let fired = cx.ledger.fired();
        match stage {
            RunnerStage::Published if fired >= arrival.target => arrival.entered(cx),
            RunnerStage::Late { tried } if arrival.fits_gate(tried + 1, &cx.plan) => {
                self.revoke_token(tried + 1, arrival, cx);
            }
            RunnerStage::Late { tried } if fired >= tried && arrival.is_to_enter(cx) => arrival.enter_full_round(cx),
            RunnerStage::Depositing { .. } | RunnerStage::Published | RunnerStage::Late { .. } => {}
        }
    }

    /// Arms all slots that can be armed.
    #[inline(never)]
    fn work(&mut self, _: Effort, _: &mut Arrival<RunnerStage>, cx: &mut Context, cells: &impl Cells) {
        let plan = &cx.plan;
        let is_over = |round: &u64| cells.load(plan.over(*round)) == *round;
        while let Some(round) = self.nearly_over(cx).filter(is_over) {
            self.over = round;
            cx.outbox.note();
        }
        if has_everyone_left(cx) || cx.ledger.released() == FOREVER {
            return;
        }
        let released = if cx.ledger.reads_no_more() { cx.ledger.fired() } else { cx.ledger.released() };
        let last = released + plan.depth;
        loop {
            let round = self.armed + 1;
            let before = round.saturating_sub(plan.slots());
            if round > last + 1 || before > self.over {
                break;
            }
            self.armed = round;
            self.gates[plan.slot(round)] = Gate::new(round, Deposit::default()).0;
            cx.outbox.runner(RunnerOp::Arm { round });
        }
        while self.ready < last.min(self.armed) {
            self.ready += 1;
            cx.outbox.runner(RunnerOp::Ready { round: self.ready });
        }
        let next = cx.ledger.open();
        if cx.ledger.has_left() && next <= self.ready && is_needed(cx) {
            self.signal_arrival(next, cx);
        }
    }

    /// Takes the answer to the request for the token: it was taken, or the gate was sealed before.
    fn answer(&mut self, _: Token, taken: u64, arrival: &mut Arrival<RunnerStage>, cx: &mut Context) {
        let Some(RunnerStage::Depositing { round }) = arrival.stage() else { return };
        let Arrival { target, made_for, part, buffer, particulars, .. } = *arrival;
        if taken == 0 {
            return arrival.refused(round, RunnerStage::Late { tried: round }, cx);
        }
        let start = start_rule(&cx.plan);
        let starts = round == target && starts_alone(start, cx);
        let slot = cx.plan.slot(round);
        let mut row = None;
        let gate = Gate(self.gates[slot]).with(|deposit| {
            match part {
                Part::Leaving => deposit.leaving = true,
                Part::Fresh if round == target => (deposit.fresh, row) = (Some(FRESH), Some(FRESH)),
                Part::Fresh | Part::Carried => {
                    (deposit.carried, row) = (Some((CARRIED, round - made_for)), Some(CARRIED));
                }
            }
            deposit.initiator |= starts;
        });
        self.gates[slot] = gate.0;
        cx.outbox.runner(RunnerOp::Deposit { round, gate: gate.0, buffer, row, weight: particulars.weight() });
        if part == Part::Fresh && round != target {
            return arrival.placed(round, cx);
        }
        cx.stats.initiated += u64::from(starts);
        if starts || matches!(start, Start::Everybody | Start::Count(_)) {
            self.signal_arrival(round, cx);
        }
        arrival.enter(RunnerStage::Published, &mut cx.outbox);
    }

    fn missing(
        &self,
        arrival: &Arrival<RunnerStage>,
        _: &Movement,
        cx: &Context,
        cells: &impl Cells,
        missing: &mut RankSet,
    ) {
        if arrival.target > cx.ledger.fired() {
            insert_absent(|rank| has_shown(rank, arrival.target, &cx.plan, cells), cx, missing);
        }
    }

    /// Returns whether no other rank needs this rank's provider any more.
    fn has_served(&self, cx: &Context) -> bool {
        has_everyone_left(cx) && self.over >= cx.ledger.fired()
    }
}

impl Slots {
    pub(super) fn new(plan: &Plan) -> Self {
        Slots { armed: 0, ready: 0, signalled: 0, over: 0, gates: vec![0; plan.slots() as usize] }
    }

    fn is_armed(&self, round: u64) -> bool {
        round <= self.armed
    }

    /// Returns the next round whose outcome may be there, and whether the caller wants its data.
    pub(crate) fn expected(&self, cx: &Context) -> Option<(u64, bool)> {
        let (round, left) = (cx.ledger.open(), cx.ledger.has_left());
        let wanted = round <= self.ready && !has_everyone_left(cx);
        let fits = if left { cx.ledger.reads_no_more() } else { cx.ledger.is_within_depth(round, &cx.plan) };
        (wanted && fits).then_some((round, !left))
    }

    /// Returns the next round of which every operation may have run.
    pub(crate) fn nearly_over(&self, Context { ledger, .. }: &Context) -> Option<u64> {
        Some(self.over + 1).filter(|&round| round <= ledger.fired())
    }

    fn signal_arrival(&mut self, round: u64, cx: &mut Context) {
        if self.signalled < round {
            debug_assert_eq!(self.signalled + 1, round);
            self.signalled = round;
            cx.outbox.runner(RunnerOp::SignalArrival { round });
        }
    }

    /// Asks for the token of this rank's gate of `round`, once that gate is armed.
    fn revoke_token(&self, round: u64, arrival: &mut Arrival<RunnerStage>, cx: &mut Context) {
        if self.is_armed(round) {
            cx.outbox.runner(RunnerOp::RevokeGateToken { round, token: Token::Deposit });
            arrival.enter(RunnerStage::Depositing { round }, &mut cx.outbox);
        }
    }
}

/// Returns whether the next round cannot fire without this rank, which has left.
fn is_needed(Context { plan, ledger, .. }: &Context) -> bool {
    let needed = match start_rule(plan) {
        Start::Everybody => plan.ranks,
        Start::Count(count) => count,
        Start::First | Start::Designated => return false,
    };
    // The needed number of ranks that have left arrive for the others, the lowest ranks first.
    let left_before = (0..plan.me).filter(|&rank| !ledger.active().contains(rank)).count() as u32;
    ledger.active().len() + left_before < needed
}
