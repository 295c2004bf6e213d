//! Programs of triggered operations: their reductions, and the operations that a runner carries out.

use super::{Driver, WRITTEN_ONCE};
use crate::collective::core::{Cells, Effort, Entry, Part, Particulars, ProgramOp, Time};
use crate::error::Result;
use crate::executor::runner::Runner;
use crate::fault::{Crash, Fuse};
use crate::reduce::{Goal, Place, Source};
use crate::trigger::{Chunk, Gate, Input, Target, Task, TaskWork};

impl Driver {
    /// Carries out an operation of a program.
    #[inline(never)]
    pub(super) fn execute_program(&mut self, op: ProgramOp, now: Time) -> Result<()> {
        match op {
            ProgramOp::Run(task) => self.run(task),
            ProgramOp::Seal { round, deposit, initiator, without_slot, pieces, order } => {
                let whole = Chunk { from: 0, to: pieces, of: pieces };
                self.seal(round, (deposit, initiator), without_slot, (whole, order));
            }
            ProgramOp::Sum { round, from, to, chunk, order } => self.sum(round, from, to, (chunk, order)),
            ProgramOp::Arm { round } => self.offloaded(|runner| runner.arm(round))?,
            ProgramOp::Ready { round } => self.offloaded(|runner| runner.ready(round))?,
            ProgramOp::SignalArrival { round } => self.offloaded(|runner| runner.signal_arrival(round))?,
            ProgramOp::RevokeGateToken { round, token } => {
                let taken = self.offloaded(|runner| runner.revoke_token(round))?;
                self.machine.complete(token, u64::from(taken), now);
            }
            ProgramOp::Deposit { round, gate, buffer, row, weight } => {
                let plan = self.machine.plan();
                let from = plan.contribution(plan.me, buffer);
                self.offloaded(|runner| runner.deposit(round, gate, from, row, weight))?;
            }
        }
        Ok(())
    }

    fn offloaded<R: Default>(&mut self, run: impl FnOnce(&mut dyn Runner) -> Result<R>) -> Result<R> {
        self.runner().map_or(Ok(R::default()), run)
    }

    /// Records what a runner has done since the last call, and with some effort reduces the received contributions.
    pub(super) fn poll_runner(&mut self, effort: Effort) -> Result<()> {
        let Driver { runner: Some(runner), machine, control, arena, reduction, parts, .. } = self else {
            return Ok(());
        };
        let plan = machine.plan();
        if let Some(round) = machine.nearly_over()
            && runner.is_over(round)?
        {
            control.announce(plan.over(round), round);
        }
        let Some((round, wanted)) = machine.expected().filter(|_| effort > Effort::Nothing) else { return Ok(()) };
        let record = plan.record(round);
        if control.load(record) != round && runner.has_outcome(round)? {
            let scratch = &mut parts.cut;
            scratch.begin(round, None);
            for rank in 0..plan.ranks {
                let (deposit, weights) = runner.deposit_of(round, rank)?;
                scratch.add_gate(rank, deposit, |row| Particulars::weighing(weights[row as usize]));
            }
            control.store_down(plan.recorded(record), scratch.encode());
            if wanted {
                let source = |entry: Entry| {
                    let at = runner.offset_of(round, entry.rank, entry.buffer);
                    reduction.source(entry, Place::Here(at))
                };
                debug_assert!(round > machine.landed(), "{WRITTEN_ONCE}");
                let goal = Goal { at: plan.outcome(round), wide: false };
                let (elements, divisor) =
                    (plan.bytes / reduction.dtype.size(), reduction.divisor(plan.ranks, scratch.contributions()));
                arena.combine(reduction.kind(), scratch.contributions().filter_map(source), goal, elements, divisor);
            }
            control.announce(record, round);
        }
        Ok(())
    }

    /// Carries out a reduction of a program: the set of parts and the data.
    fn run(&mut self, task: Task) {
        Fuse::pass(&mut self.fuse, Crash::AfterClaim);
        let dies = Fuse::is_due(self.fuse, Crash::InsideOperation);
        let Driver { machine, control, arena, reduction, parts, sources, fuse, .. } = self;
        let scratch = &mut parts.cut;
        let plan = machine.plan();
        let Some(layout) = plan.program.as_deref() else { return };
        let TaskWork::Reduce { from, to, chunk } = &layout.rows[task.row as usize].work else { return };
        let round = task.round;
        let load = |cell| control.load(plan.program_cell(round, cell));
        scratch.begin(round, None);
        sources.clear();
        let (skip, len) = plan.chunk_span(*chunk);
        let len = if dies { len / 2 / size_of::<u64>() * size_of::<u64>() } else { len };
        let elements = len / reduction.dtype.size();
        // Partial sums are stored in the width of sums.
        let wide_skip = skip / reduction.dtype.size() * reduction.dtype.wide_size();
        for input in from {
            let first = scratch.entries.len();
            match *input {
                Input::Gate(rank) => {
                    let deposit = Gate(load(layout.gate(rank))).at(round).deposit();
                    scratch.add_gate(rank, deposit, |buffer| plan.particulars(rank, buffer, &*control));
                }
                Input::Partial(number) => scratch.add(|index| load(layout.header(number) + index)),
            }
            let added = scratch.entries.from(first).filter(|entry| entry.part != Part::Leaving);
            let contribution = |entry: Entry| {
                let at = Place::Here(plan.contribution(entry.rank, entry.buffer) + skip);
                reduction.source(entry, at)
            };
            match input {
                // A single contribution is not copied: it is its own sum.
                Input::Partial(number) if added.clone().count() > 1 => {
                    let at = Place::Here(plan.partial(round, *number) + wide_skip);
                    sources.push(Source { at, wide: true, factor: 1.0 });
                }
                _ => sources.extend(added.filter_map(contribution)),
            }
        }
        match *to {
            Target::Partial(number) => {
                let header = plan.program_cell(round, layout.header(number));
                control.store_all(header, scratch.encode());
                if scratch.contributions().count() > 1 {
                    let goal = Goal { at: plan.partial(round, number) + wide_skip, wide: true };
                    arena.combine(reduction.kind(), sources.iter().copied(), goal, elements, None);
                }
            }
            Target::Outcome => {
                if chunk.from == 0 {
                    control.store_all(plan.program_cell(round, layout.record()), scratch.encode());
                }
                debug_assert!(round > machine.landed(), "{WRITTEN_ONCE}");
                let divisor = reduction.divisor(plan.ranks, scratch.contributions());
                let goal = Goal { at: plan.outcome(round) + skip, wide: false };
                arena.combine(reduction.kind(), sources.iter().copied(), goal, elements, divisor);
            }
        }
        Fuse::pass(fuse, Crash::InsideOperation);
    }
}
