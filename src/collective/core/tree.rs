//! Agreement by a program: a rank's part in a round is what its gate holds when the activation
//! closes it, and the set of parts is reduced together with the data.
//!
//! The machine deposits, decides when to start (that depends on time and on who has left), and
//! learns outcomes; the [`Worker`](crate::trigger::Worker) in it runs operations, anybody's.

use serde::{Deserialize, Serialize};

use super::Time;
use super::arrival::{FIRST_PROBE, Stage};
use super::entry::Part;
use super::late::Pending;
use super::machine::{Cells, Machine};
use super::op::{Interest, Op, Token};
use super::plan::Plan;
use crate::fabric::Atomic;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::Condition;
use crate::trigger::{Gate, SlotCells, Start, State, Task, Want};

/// How much a call does for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effort {
    /// Nothing: it returns at once.
    Nothing,
    /// What its own changes set off, and shares of large data.
    Work,
    /// Also looks for what others left undone.
    Search,
}

/// The cells of a round's slot.
struct Slot<'a, C> {
    plan: &'a Plan,
    cells: &'a C,
}

impl<C: Cells> SlotCells for Slot<'_, C> {
    #[inline]
    fn load(&self, round: u64, cell: usize) -> u64 {
        self.cells.load(self.plan.program_cell(round, cell))
    }
}

/// The operation that a worker's wish comes to.
fn op(plan: &Plan, want: Want) -> Op {
    match want {
        Want::Swap { round, cell, expect, new } => Op::Atomic {
            host: plan.host(),
            cell: plan.program_cell(round, cell),
            atomic: Atomic::CompareSwap { expect, new },
            token: Token::Swap,
        },
        Want::Run(task) => Op::Run(task),
        Want::Store { round, cell, value } => Op::Store { cell: plan.program_cell(round, cell), value },
        Want::Raise { round, cell } => Op::Raise { cell: plan.program_cell(round, cell), value: round },
        Want::Fence => Op::Fence,
        Want::Call { most } => Op::Wake { most: most.unwrap_or(plan.helpers), interest: Interest::Outcome },
    }
}

impl Machine {
    /// The next outcome, if it is complete.
    pub(super) fn learn_outcome(&mut self, cells: &impl Cells) -> bool {
        let round = self.fired + 1;
        let Some(layout) = &self.plan.program else { return false };
        if self.left || round - self.taken > self.plan.depth {
            return false;
        }
        if !layout.is_complete(round, &Slot { plan: &self.plan, cells }) {
            return false;
        }
        let record = self.plan.program_cell(round, layout.record());
        let slot = self.plan.slot(round);
        self.cuts[slot].decode(round, |index| cells.load(record + index));
        self.fire(round);
        true
    }

    /// Runs what is there to be run.
    pub(super) fn step_worker(&mut self, effort: Effort, cells: &impl Cells) {
        let served = self.is_served();
        let Machine { plan, worker: Some(worker), ops, dead, passed_on, .. } = self else { return };
        let Some(layout) = plan.program.as_deref() else { return };
        if served && worker.owes_nothing() {
            // On its way out: whoever is still here goes on with what was set off.
            // Also if it was woken for what others set off, and has no use for it.
            let round = self.fired + 1;
            let left_over = worker.hand_over();
            let searches = effort == Effort::Search && *passed_on < round;
            if left_over || (searches && layout.is_pending(round, &Slot { plan, cells })) {
                *passed_on = round;
                self.wake(1, Interest::Outcome);
            }
            return;
        }
        let slot = Slot { plan, cells };
        let is_dead = |rank| dead.contains(rank) && !plan.fault(Fault::AbandonTheDead);
        let mut want = |want| ops.push_back(op(plan, want));
        let mut progress = worker.step(layout, is_dead, &slot, &mut want);
        let round = self.fired + 1;
        let may_be_under_way = self.arrival.is_some() && !self.left && round - self.taken <= plan.depth;
        if !progress && may_be_under_way {
            worker.help(layout, round, plan.ranks, &slot);
            if effort == Effort::Search {
                worker.search(layout, round, is_dead, &slot);
            }
            progress = worker.step(layout, is_dead, &slot, &mut want);
        }
        self.transitions += u64::from(progress);
    }

    /// The answer to what the worker wanted swapped.
    pub(super) fn swapped(&mut self, value: u64) {
        let Machine { plan, worker: Some(worker), ops, .. } = self else { return };
        let Some(layout) = plan.program.as_deref() else { return };
        worker.answer(layout, value, &mut |want| ops.push_back(op(plan, want)));
    }

    fn gate(&self, rank: u32, round: u64) -> usize {
        let gate = self.plan.program.as_ref().map_or(0, |layout| layout.gate(rank));
        self.plan.program_cell(round, gate)
    }

    fn own_gate(&self, round: u64) -> usize {
        self.gate(self.plan.me, round)
    }

    /// Whether a rank's arrival for a round is in its gate.
    pub(super) fn has_deposited(&self, rank: u32, round: u64, cells: &impl Cells) -> bool {
        let deposit = Gate(cells.load(self.gate(rank, round))).at(round).deposit();
        let full = self.plan.fire.is_full(round);
        deposit.fresh.is_some() || deposit.leaving || (full && deposit.carried.is_some())
    }

    /// Puts the contribution into the own gate of `round`: fresh if it was made for it.
    pub(super) fn deposit_into(&mut self, round: u64, cells: &impl Cells) {
        let found = cells.load(self.own_gate(round));
        self.deposit(round, found);
    }

    fn deposit(&mut self, round: u64, found: u64) {
        let (Some(arrival), Some(layout)) = (&self.arrival, &self.plan.program) else { return };
        let (target, made_for, part, buffer) = (arrival.target, arrival.made_for, arrival.part, arrival.buffer);
        let gate = Gate(found).at(round);
        debug_assert!(Gate(found).round() <= round, "a gate of {} at {round}", Gate(found).round());
        if gate.is_closed() {
            return self.refused(round);
        }
        let starts = round == target && self.starts_alone(layout.start);
        let pending = self.pending.filter(|_| round == target);
        let new = gate.with(|deposit| {
            match part {
                Part::Leaving => deposit.leaving = true,
                Part::Fresh if round == target => deposit.fresh = Some(buffer),
                Part::Fresh | Part::Carried => deposit.carried = Some((buffer, round - made_for)),
            }
            if let Some(Pending { made_for, buffer }) = pending {
                deposit.carried = Some((buffer, round - made_for));
            }
            deposit.initiator |= starts;
        });
        self.swap_gate(round, found, new);
        self.enter(Stage::Depositing { round, found });
    }

    /// Whether the next round starts with this rank's arrival, whoever else has arrived.
    pub(super) fn starts_alone(&self, start: Start) -> bool {
        match start {
            Start::First => true,
            Start::Designated => self.condition() == Condition::Rank(self.plan.me),
            Start::Everybody | Start::Count(_) => false,
        }
    }

    fn swap_gate(&mut self, round: u64, found: u64, new: Gate) {
        let (host, cell) = (self.plan.host(), self.own_gate(round));
        self.atomic(host, cell, Atomic::CompareSwap { expect: found, new: new.0 }, Token::Deposit);
    }

    pub(super) fn refused(&mut self, round: u64) {
        let Some(arrival) = &self.arrival else { return };
        if round == arrival.target {
            self.is_late();
        } else {
            self.enter(Stage::Late { tried: round });
        }
    }

    /// The gate's answer to a deposit, or to the initiator's mark.
    pub(super) fn gate_answered(&mut self, value: u64) {
        let (Some(arrival), Some(layout)) = (&self.arrival, self.plan.program.as_deref()) else { return };
        let (target, part) = (arrival.target, arrival.part);
        match arrival.stage {
            Stage::Depositing { round, found } if value == found => {
                if part == Part::Fresh && round != target {
                    self.stats.jumps += u64::from(round - target >= 2);
                    return self.enter(Stage::Over { needs: round - 1 });
                }
                self.pending = None;
                let start = layout.start;
                match start {
                    Start::Count(_) => {
                        if let Some((_, cell)) = layout.arrival(self.plan.me) {
                            self.raise(round, cell);
                        }
                        self.look_after(Stage::Counting);
                    }
                    Start::First | Start::Designated if self.starts_alone(start) => self.start_round(round),
                    // Somebody else starts it.
                    Start::First | Start::Designated => self.enter(Stage::Published),
                    Start::Everybody => self.let_in(round),
                }
            }
            Stage::Depositing { round, .. } => {
                let closed = Gate(value).at(round).is_closed();
                let fresh = round == target && part != Part::Leaving;
                self.stats.late_while_closing += u64::from(closed && fresh);
                self.deposit(round, value);
            }
            Stage::Initiating { found } if value == found => self.start_round(target),
            Stage::Initiating { .. } => self.initiate(value),
            ref stage => debug_assert!(false, "the gate answered in {stage:?}"),
        }
    }

    fn raise(&mut self, round: u64, cell: usize) {
        self.push(op(&self.plan, Want::Raise { round, cell }));
    }

    /// What was raised is looked at in the next stage, when it is visible to all.
    fn look_after(&mut self, stage: Stage) {
        self.push(Op::Fence);
        self.enter(stage);
    }

    /// This rank is an initiator and its mark is in its gate: sets the flood off.
    fn start_round(&mut self, round: u64) {
        self.stats.initiated += 1;
        self.unmeasured = Some(round);
        if let Some(layout) = &self.plan.program {
            self.raise(round, layout.activation(self.plan.me).1);
        }
        self.look_after(Stage::Starting);
    }

    /// Synchronous: the own arrival closes the own gate, and the gates of those who left.
    fn let_in(&mut self, round: u64) {
        let Machine { plan, active, ops, .. } = self;
        let Some(layout) = plan.program.as_deref() else { return };
        let closes = |rank: &u32| *rank == plan.me || !active.contains(*rank);
        let raise = |rank| op(plan, Want::Raise { round, cell: layout.activation(rank).1 });
        ops.extend((0..plan.ranks).filter(closes).map(raise));
        self.look_after(Stage::Starting);
    }

    /// What was raised is visible: notes what it set off, to be run when there is time for it.
    pub(super) fn started(&mut self, effort: Effort, cells: &impl Cells) {
        let Machine { plan, worker: Some(worker), arrival: Some(arrival), active, .. } = self else { return };
        let Some(layout) = plan.program.as_deref() else { return };
        let slot = Slot { plan, cells };
        worker.moved(layout, layout.activation(plan.me).0, arrival.target, &slot);
        if layout.start == Start::Everybody {
            for rank in (0..plan.ranks).filter(|&rank| rank != plan.me && !active.contains(rank)) {
                worker.moved(layout, layout.activation(rank).0, arrival.target, &slot);
            }
        }
        if effort == Effort::Nothing {
            // Somebody who has the time must learn of it.
            self.wake(1, Interest::Outcome);
        }
        self.enter(Stage::Published);
    }

    /// Whether enough have arrived, and if so, whether to wait for more.
    pub(super) fn count_arrivals(&mut self, now: Time, again: Option<Time>, cells: &impl Cells) {
        let (Some(arrival), Some(layout)) = (&self.arrival, &self.plan.program) else { return };
        let target = arrival.target;
        debug_assert_eq!(target, self.fired + 1);
        let slot = Slot { plan: &self.plan, cells };
        let arrived = layout.arrival(self.plan.me).map_or(0, |(counter, _)| layout.value(counter, target, &slot));
        let active = self.active.len();
        let fires = match self.condition() {
            Condition::Count(least) => arrived >= least,
            Condition::Rank(rank) => layout.arrival(rank).is_some_and(|(_, cell)| slot.load(target, cell) >= target),
            Condition::Full => arrived >= active,
        };
        let grace = self.pace.grace();
        if arrived >= active || (fires && grace.is_none()) {
            self.stats.closed_for_others += u64::from(again.is_some());
            self.initiate(cells.load(self.own_gate(target)));
        } else {
            self.stats.closed_for_others += u64::from(fires && again.is_some());
            self.stay_open(fires, true, now, again.unwrap_or(FIRST_PROBE));
        }
    }

    /// Marks the own gate, and starts the round unless it has been started.
    pub(super) fn initiate(&mut self, found: u64) {
        let Some(arrival) = &self.arrival else { return };
        let target = arrival.target;
        let gate = Gate(found).at(target);
        if gate.is_closed() {
            return self.enter(Stage::Published);
        }
        self.swap_gate(target, found, gate.with(|deposit| deposit.initiator = true));
        self.enter(Stage::Initiating { found });
    }

    /// When the grace is over.
    pub(super) fn grace_is_over(&mut self, cells: &impl Cells) {
        let Some(arrival) = &self.arrival else { return };
        self.initiate(cells.load(self.own_gate(arrival.target)));
    }

    /// Whether somebody's operation of the next round is under way, or an own one of any round.
    pub(crate) fn is_pending(&self, cells: &impl Cells) -> bool {
        let slot = Slot { plan: &self.plan, cells };
        let (Some(worker), Some(layout)) = (&self.worker, &self.plan.program) else { return false };
        !worker.owes_nothing() || layout.is_pending(self.fired + 1, &slot)
    }

    /// Whether a task has given any of its signals.
    pub(crate) fn is_announced(&self, task: Task, cells: &impl Cells) -> bool {
        let slot = Slot { plan: &self.plan, cells };
        let Some(layout) = self.plan.program.as_deref() else { return false };
        let given = |&(_, cell): &(u32, usize)| slot.load(task.round, cell) >= task.round;
        layout.rows[task.row as usize].then.iter().any(given)
    }

    /// Whether a cell says who claimed an operation.
    pub(crate) fn is_claim(&self, cell: usize) -> bool {
        let Some(layout) = self.plan.program.as_deref() else { return false };
        let Some(in_slots) = cell.checked_sub(self.plan.program_cell(1, 0)) else { return false };
        (0..layout.rows.len() as u32).any(|row| layout.state(row) == in_slots % layout.cells())
    }

    /// Cells that say who claimed operations, all of whose effects have happened.
    pub(crate) fn spent_claims(&self, load: impl Fn(usize) -> u64) -> Vec<usize> {
        struct Direct<F>(F);
        impl<F: Fn(usize) -> u64> Cells for Direct<F> {
            fn load(&self, cell: usize) -> u64 {
                self.0(cell)
            }
        }
        let Some(layout) = self.plan.program.as_deref() else { return Vec::new() };
        let cells = Direct(load);
        let slot = Slot { plan: &self.plan, cells: &cells };
        let mut spent = Vec::new();
        for first in 1..=self.plan.slots() {
            for (index, row) in layout.rows.iter().enumerate() {
                let cell = self.plan.program_cell(first, layout.state(index as u32));
                let round = State::from_cell(cells.load(cell)).round;
                if round > 0 && row.has_signalled(round, &slot) {
                    spent.push(cell);
                }
            }
        }
        spent.sort_unstable();
        spent
    }

    /// Who holds an operation of the next round that has fired.
    pub(super) fn holders(&self, cells: &impl Cells) -> RankSet {
        let mut holders = RankSet::empty(self.plan.ranks);
        let slot = Slot { plan: &self.plan, cells };
        if let Some(layout) = &self.plan.program {
            let held = layout.held(self.fired + 1, &slot);
            held.filter(|&rank| rank != self.plan.me).for_each(|rank| holders.insert(rank));
        }
        holders
    }

    /// Whether the next round has fired: whoever is alive can complete it.
    pub(crate) fn has_fired(&self, cells: &impl Cells) -> bool {
        let slot = Slot { plan: &self.plan, cells };
        self.plan.program.as_ref().is_some_and(|layout| layout.has_fired(self.fired + 1, &slot))
    }

    /// A rank died: what it had claimed is free again.
    pub(crate) fn inherit(&mut self, rank: u32) {
        self.dead.insert(rank);
    }
}
