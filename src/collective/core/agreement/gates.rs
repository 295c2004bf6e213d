//! Agreement by a program: a rank's part in a round is what its gate holds when the activation closes it, and the set
//! of parts is reduced together with the data.
//!
//! A rank has a *gate* for each round: a cell that only the rank itself and the rank that closes the gate change. This
//! part deposits into this rank's gate, decides when to start (that depends on time and on which ranks have left), and
//! learns outcomes. The [`Worker`](crate::trigger::Worker) in it runs operations of any rank.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::super::context::Context;
use super::super::entry::Part;
use super::super::input::{Cells, Effort, Time};
use super::super::movement::Movement;
use super::super::op::{Awaited, Op, ProgramOp, Token};
use super::super::plan::Plan;
use super::super::stats::Stats;
use super::arrival::Arrival;
use super::{FIRST_PROBE, Form, LAST_PROBE, condition, insert_absent, starts_alone};
use crate::fabric::Atomic;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::Condition;
use crate::trigger::{Gate, Layout, SlotCells, Start, State, Task, Want, Worker};

/// This rank's part in running a program.
#[derive(Clone, Debug)]
pub(crate) struct Gates {
    layout: Arc<Layout>,
    worker: Worker,
    /// This rank, as it left the library, has woken another one for the work of the next round.
    passed_on: bool,
}

impl Hash for Gates {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.worker.fingerprint(state);
        self.passed_on.hash(state);
    }
}

/// The cells of a round's slot.
struct RoundCells<'a, C> {
    plan: &'a Plan,
    cells: &'a C,
}

impl<C: Cells> SlotCells for RoundCells<'_, C> {
    #[inline]
    fn load(&self, round: u64, cell: usize) -> u64 {
        self.cells.load(self.plan.program_cell(round, cell))
    }
}

/// Returns the operation that carries out a worker's request.
fn op(plan: &Plan, want: Want) -> Op {
    match want {
        Want::Swap { round, cell, expect, new } => Op::Atomic {
            host: plan.host(),
            cell: plan.program_cell(round, cell),
            atomic: Atomic::CompareSwap { expect, new },
            token: Token::Swap,
        },
        Want::Run(task) => Op::Program(ProgramOp::Run(task)),
        Want::Store { round, cell, value } => Op::Store { cell: plan.program_cell(round, cell), value },
        Want::Raise { round, cell } => Op::Raise { cell: plan.program_cell(round, cell), value: round },
        Want::Fence => Op::Fence,
        Want::Call { most } => Op::Wake { most: most.unwrap_or(plan.helpers), interest: Awaited::Outcome },
    }
}

/// How far an arrival has come.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum GateStage {
    /// The contribution is being put into this rank's gate of a round.
    Depositing { round: u64, found: u64 },
    /// The contribution is in the gate, and the arrivals are about to be counted.
    Counting,
    /// The contribution is in the gate of a round that has not fired as far as this rank knows. The rank counts again
    /// at `probe_at`, and then after twice the pause.
    Open { close_at: Time, probe_at: Time, pause: Time },
    /// Initiator: it marks its gate.
    Initiating { found: u64 },
    /// Initiator: it has raised the activation, which the other ranks may not see yet.
    Starting,
    /// The contribution is in a round that others start.
    Published,
    /// The target fired without it; it is not placed in any round up to `tried`.
    Late { tried: u64 },
}

impl Form for Gates {
    type Stage = GateStage;

    /// Deposits the contribution into this rank's gate.
    fn enter(&mut self, arrival: &mut Arrival<GateStage>, _: &mut Movement, cx: &mut Context, cells: &impl Cells) {
        arrival.show_particulars(cx);
        self.deposit_into(arrival.target, arrival, cx, cells);
    }

    /// Fires the next round if its outcome is complete.
    #[inline(never)]
    fn learn(
        &mut self,
        arrival: &mut Arrival<GateStage>,
        _: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) -> bool {
        let (plan, round) = (&cx.plan, cx.ledger.open());
        if !cx.ledger.wants_next(plan) || !self.layout.is_complete(round, &RoundCells { plan, cells }) {
            return false;
        }
        let record = plan.program_cell(round, self.layout.record());
        cx.ledger.cut_mut(round).decode(round, |index| cells.load(record + index));
        arrival.fire(round, cx);
        self.worker.complete(round);
        self.passed_on = false;
        true
    }

    fn step(
        &mut self,
        stage: GateStage,
        arrival: &mut Arrival<GateStage>,
        effort: Effort,
        _: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) {
        let fired = cx.ledger.fired();
        match stage {
            GateStage::Counting | GateStage::Open { .. } | GateStage::Published if fired >= arrival.target => {
                arrival.entered(cx)
            }
            GateStage::Open { close_at, .. } if cx.now >= close_at => {
                arrival.expired(cx);
                self.initiate_now(arrival, cx, cells);
            }
            GateStage::Open { probe_at, pause, .. } if cx.now >= probe_at => {
                self.count_arrivals(Some((2 * pause).min(LAST_PROBE)), arrival, cx, cells);
            }
            GateStage::Counting => self.count_arrivals(None, arrival, cx, cells),
            GateStage::Starting => self.started(effort, arrival, cx, cells),
            GateStage::Late { tried } if arrival.fits_gate(tried + 1, &cx.plan) => {
                self.deposit_into(tried + 1, arrival, cx, cells);
            }
            GateStage::Late { tried } if fired >= tried && arrival.is_to_enter(cx) => arrival.enter_full_round(cx),
            _ => {}
        }
    }

    #[inline]
    fn work(&mut self, effort: Effort, arrival: &mut Arrival<GateStage>, cx: &mut Context, cells: &impl Cells) {
        if effort > Effort::Nothing && cx.outbox.is_empty() {
            self.run(effort, arrival, cx, cells);
        }
    }

    fn answer(&mut self, token: Token, value: u64, arrival: &mut Arrival<GateStage>, cx: &mut Context) {
        match token {
            Token::Swap => self.worker.answer(&self.layout, value, &mut |want| cx.outbox.push(op(&cx.plan, want))),
            _ => self.answered(value, arrival, cx),
        }
    }

    fn missing(
        &self,
        arrival: &Arrival<GateStage>,
        _: &Movement,
        cx: &Context,
        cells: &impl Cells,
        missing: &mut RankSet,
    ) {
        let target = arrival.target;
        if target <= cx.ledger.fired() {
            return;
        }
        if self.has_fired(cx, cells) {
            // These ranks hold an operation of the round.
            let slot = RoundCells { plan: &cx.plan, cells };
            self.layout.held(cx.ledger.open(), &slot).for_each(|rank| missing.insert(rank));
        } else {
            insert_absent(|rank| self.has_deposited(rank, target, &cx.plan, cells), cx, missing);
        }
    }

    fn next_timer(&self, arrival: &Arrival<GateStage>) -> Time {
        let Some(GateStage::Open { close_at, probe_at, .. }) = arrival.stage() else { return Time::MAX };
        close_at.min(probe_at)
    }

    fn has_nothing_pending(&self) -> bool {
        self.worker.has_nothing_pending()
    }

    /// Adds the worker's counts.
    fn stats(&self, stats: Stats) -> Stats {
        let Worker { tasks: operations, inherited, activations, .. } = self.worker;
        Stats { operations, inherited, activations, ..stats }
    }
}

impl Gates {
    pub(super) fn new(plan: &Plan) -> Self {
        let layout = plan.program.clone().expect("ranks that agree by gates have a program");
        Gates { worker: Worker::new(plan.me, &layout, plan.fault), layout, passed_on: false }
    }

    /// Runs operations that are due.
    #[inline(never)]
    fn run(&mut self, effort: Effort, arrival: &Arrival<GateStage>, cx: &mut Context, cells: &impl Cells) {
        let is_served = arrival.is_served(cx);
        let Gates { layout, worker, passed_on } = self;
        let (plan, ledger, round) = (&cx.plan, &cx.ledger, cx.ledger.open());
        let slot = RoundCells { plan, cells };
        if is_served && worker.has_nothing_pending() {
            // This rank is leaving the library: a rank that is still inside continues the triggered work. This holds
            // even if this rank was woken for work that others triggered and does not need the round.
            let left_over = worker.hand_over();
            let searches = effort == Effort::Search && !*passed_on;
            if left_over || (searches && layout.is_pending(round, &slot)) {
                *passed_on = true;
                cx.outbox.wake(1, Awaited::Outcome);
            }
            return;
        }
        let is_dead = |rank| ledger.is_dead(rank) && !plan.fault(Fault::AbandonTheDead);
        let mut want = |want| cx.outbox.push(op(plan, want));
        let mut progress = worker.step(layout, is_dead, &slot, &mut want);
        let may_be_under_way = arrival.is_outstanding() && ledger.wants_next(plan);
        if !progress && may_be_under_way {
            worker.help(layout, round, plan.ranks, &slot);
            if effort == Effort::Search {
                worker.search(layout, round, is_dead, &slot);
            }
            progress = worker.step(layout, is_dead, &slot, &mut want);
        }
        if progress {
            cx.outbox.note();
        }
    }

    fn gate(&self, rank: u32, round: u64, plan: &Plan) -> usize {
        plan.program_cell(round, self.layout.gate(rank))
    }

    /// Returns whether a rank's arrival for a round is in its gate.
    fn has_deposited(&self, rank: u32, round: u64, plan: &Plan, cells: &impl Cells) -> bool {
        let deposit = Gate(cells.load(self.gate(rank, round, plan))).at(round).deposit();
        let full = plan.is_full(round);
        deposit.fresh.is_some() || deposit.leaving || (full && deposit.carried.is_some())
    }

    /// Puts the contribution into this rank's gate of `round`: fresh if it was made for that round.
    fn deposit_into(&mut self, round: u64, arrival: &mut Arrival<GateStage>, cx: &mut Context, cells: &impl Cells) {
        let found = cells.load(self.gate(cx.plan.me, round, &cx.plan));
        self.deposit(round, found, arrival, cx);
    }

    fn deposit(&mut self, round: u64, found: u64, arrival: &mut Arrival<GateStage>, cx: &mut Context) {
        let gate = Gate(found).at(round);
        debug_assert!(Gate(found).round() <= round, "a gate of {} at {round}", Gate(found).round());
        if gate.is_closed() {
            return arrival.refused(round, GateStage::Late { tried: round }, cx);
        }
        let starts = round == arrival.target && starts_alone(self.layout.start, cx);
        let new = gate.with(|deposit| {
            arrival.put_into(deposit, round);
            deposit.initiator |= starts;
        });
        self.swap_gate(round, found, new, cx);
        arrival.enter(GateStage::Depositing { round, found }, &mut cx.outbox);
    }

    fn swap_gate(&self, round: u64, found: u64, new: Gate, cx: &mut Context) {
        let cell = self.gate(cx.plan.me, round, &cx.plan);
        cx.outbox.atomic(cx.plan.host(), cell, Atomic::CompareSwap { expect: found, new: new.0 }, Token::Deposit);
    }

    /// Takes the gate's answer to a deposit, or to the initiator's mark.
    fn answered(&mut self, value: u64, arrival: &mut Arrival<GateStage>, cx: &mut Context) {
        let (target, part) = (arrival.target, arrival.part);
        match arrival.stage() {
            Some(GateStage::Depositing { round, found }) if value == found => {
                if part == Part::Fresh && round != target {
                    return arrival.placed(round, cx);
                }
                arrival.took_deferred();
                match self.layout.start {
                    Start::Count(_) => {
                        if let Some((_, cell)) = self.layout.arrival(cx.plan.me) {
                            raise(round, cell, cx);
                        }
                        watch_open(GateStage::Counting, arrival, cx);
                    }
                    start @ (Start::First | Start::Designated) if starts_alone(start, cx) => {
                        self.start_round(round, arrival, cx);
                    }
                    // Another rank starts it.
                    Start::First | Start::Designated => arrival.enter(GateStage::Published, &mut cx.outbox),
                    Start::Everybody => self.let_in(round, arrival, cx),
                }
            }
            Some(GateStage::Depositing { round, .. }) => {
                let closed = Gate(value).at(round).is_closed();
                let fresh = round == target && part != Part::Leaving;
                cx.stats.late_while_closing += u64::from(closed && fresh);
                self.deposit(round, value, arrival, cx);
            }
            Some(GateStage::Initiating { found }) if value == found => self.start_round(target, arrival, cx),
            Some(GateStage::Initiating { .. }) => self.initiate(value, arrival, cx),
            _ => debug_assert!(false, "the gate answered in {arrival:?}"),
        }
    }

    /// Starts the activation. This rank is an initiator, and its mark is in its gate.
    fn start_round(&mut self, round: u64, arrival: &mut Arrival<GateStage>, cx: &mut Context) {
        cx.stats.initiated += 1;
        arrival.unmeasured = Some(round);
        raise(round, self.layout.activation(cx.plan.me).1, cx);
        watch_open(GateStage::Starting, arrival, cx);
    }

    /// Synchronous: this rank's arrival closes its own gate, and the gates of ranks that have left.
    fn let_in(&mut self, round: u64, arrival: &mut Arrival<GateStage>, cx: &mut Context) {
        for rank in 0..cx.plan.ranks {
            if rank == cx.plan.me || !cx.ledger.active().contains(rank) {
                raise(round, self.layout.activation(rank).1, cx);
            }
        }
        watch_open(GateStage::Starting, arrival, cx);
    }

    /// Notes the operations that the raised cells trigger, to be run when there is time. The cells are visible.
    fn started(&mut self, effort: Effort, arrival: &mut Arrival<GateStage>, cx: &mut Context, cells: &impl Cells) {
        let Gates { layout, worker, .. } = self;
        let plan = &cx.plan;
        let slot = RoundCells { plan, cells };
        worker.moved(layout, layout.activation(plan.me).0, arrival.target, &slot);
        if layout.start == Start::Everybody {
            let left = |rank: &u32| *rank != plan.me && !cx.ledger.active().contains(*rank);
            for rank in (0..plan.ranks).filter(left) {
                worker.moved(layout, layout.activation(rank).0, arrival.target, &slot);
            }
        }
        if effort == Effort::Nothing {
            // A rank that has time must learn of it.
            cx.outbox.wake(1, Awaited::Outcome);
        }
        arrival.enter(GateStage::Published, &mut cx.outbox);
    }

    /// Starts the round if enough ranks have arrived and no grace remains; otherwise decides how long to wait.
    fn count_arrivals(
        &mut self,
        again: Option<u64>,
        arrival: &mut Arrival<GateStage>,
        cx: &mut Context,
        cells: &impl Cells,
    ) {
        let (plan, layout, target) = (&cx.plan, &self.layout, arrival.target);
        debug_assert_eq!(target, cx.ledger.open());
        let slot = RoundCells { plan, cells };
        let arrived = layout.arrival(plan.me).map_or(0, |(counter, _)| layout.value(counter, target, &slot));
        let active = cx.ledger.active().len();
        let fires = match condition(cx) {
            Condition::Count(least) => arrived >= least,
            Condition::Rank(rank) => layout.arrival(rank).is_some_and(|(_, cell)| slot.load(target, cell) >= target),
            Condition::Full => arrived >= active,
        };
        let grace = arrival.pace.grace();
        if arrived >= active || (fires && grace.is_none()) {
            cx.stats.closed_for_others += u64::from(again.is_some());
            self.initiate_now(arrival, cx, cells);
        } else {
            cx.stats.closed_for_others += u64::from(fires && again.is_some());
            let pause = again.unwrap_or(FIRST_PROBE);
            let probe_at = if fires { Time::MAX } else { cx.now + pause };
            let close_at = arrival.closes_at(fires, cx);
            arrival.enter(GateStage::Open { close_at, probe_at, pause }, &mut cx.outbox);
        }
    }

    /// Starts the round, even if the grace is over.
    fn initiate_now(&mut self, arrival: &mut Arrival<GateStage>, cx: &mut Context, cells: &impl Cells) {
        let found = cells.load(self.gate(cx.plan.me, arrival.target, &cx.plan));
        self.initiate(found, arrival, cx);
    }

    /// Marks this rank's gate, and starts the round unless it has been started.
    fn initiate(&mut self, found: u64, arrival: &mut Arrival<GateStage>, cx: &mut Context) {
        let target = arrival.target;
        let gate = Gate(found).at(target);
        if gate.is_closed() {
            return arrival.enter(GateStage::Published, &mut cx.outbox);
        }
        self.swap_gate(target, found, gate.with(|deposit| deposit.initiator = true), cx);
        arrival.enter(GateStage::Initiating { found }, &mut cx.outbox);
    }

    /// Returns whether an operation of the next round is in progress, or one of this rank's own of any round.
    pub(crate) fn is_pending(&self, Context { plan, ledger, .. }: &Context, cells: &impl Cells) -> bool {
        !self.has_nothing_pending() || self.layout.is_pending(ledger.open(), &RoundCells { plan, cells })
    }

    /// Returns whether a task has given any of its signals.
    pub(crate) fn is_announced(&self, task: Task, Context { plan, .. }: &Context, cells: &impl Cells) -> bool {
        let slot = RoundCells { plan, cells };
        let given = |&(_, cell): &(u32, usize)| slot.load(task.round, cell) >= task.round;
        self.layout.rows[task.row as usize].then.iter().any(given)
    }

    /// Returns whether a cell names the rank that claimed an operation.
    pub(crate) fn is_claim(&self, cell: usize, plan: &Plan) -> bool {
        let Some(in_slots) = cell.checked_sub(plan.program_cell(1, 0)) else { return false };
        let layout = &self.layout;
        (0..layout.rows.len() as u32).any(|row| layout.state(row) == in_slots % layout.cells())
    }

    /// Returns the cells that name the claiming ranks of operations whose effects have all happened.
    pub(crate) fn spent_claims(&self, plan: &Plan, cells: &impl Cells) -> Vec<usize> {
        let slot = RoundCells { plan, cells };
        let mut spent = Vec::new();
        for first in 1..=plan.slots() {
            for (index, row) in self.layout.rows.iter().enumerate() {
                let cell = plan.program_cell(first, self.layout.state(index as u32));
                let round = State::from_cell(cells.load(cell)).round;
                if round > 0 && row.has_signalled(round, &slot) {
                    spent.push(cell);
                }
            }
        }
        spent.sort_unstable();
        spent
    }

    /// Returns whether the next round has fired; any living rank can complete it.
    pub(crate) fn has_fired(&self, Context { plan, ledger, .. }: &Context, cells: &impl Cells) -> bool {
        self.layout.has_fired(ledger.open(), &RoundCells { plan, cells })
    }
}

fn raise(round: u64, cell: usize, cx: &mut Context) {
    cx.outbox.push(op(&cx.plan, Want::Raise { round, cell }));
}

/// Fences and enters the next stage, which reads the raised cells when they are visible to all ranks.
fn watch_open(stage: GateStage, arrival: &mut Arrival<GateStage>, cx: &mut Context) {
    cx.outbox.push(Op::Fence);
    arrival.enter(stage, &mut cx.outbox);
}
