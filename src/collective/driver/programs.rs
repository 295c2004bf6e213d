//! Programs of triggered operations: the reductions that ranks carry out.

use super::{Driver, WRITTEN_ONCE};
use crate::collective::core::{Cells, Entry, Part, ProgramOp, Time};
use crate::error::Result;
use crate::fault::{Crash, Fuse};
use crate::reduce::{Goal, Place, Source};
use crate::trigger::{Chunk, Gate, Input, Target, Task, TaskWork};

impl Driver {
    /// Carries out an operation of a program.
    #[inline(never)]
    pub(super) fn execute_program(&mut self, op: ProgramOp, now: Time) -> Result<()> {
        match op {
            ProgramOp::Run(task) => self.run(task),
            ProgramOp::Seal { round, initiator, without_slot, pieces, parts, .. } => {
                let whole = Chunk { from: 0, to: pieces, of: pieces };
                self.seal(round, initiator, without_slot, (whole, parts));
            }
            ProgramOp::Sum { round, from, to, parts } => self.sum(round, from, to, parts),
            ProgramOp::Runner(op) => self.ask_runner(op, now)?,
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
