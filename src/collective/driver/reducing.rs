//! Reductions: from the machine's words to places in memory.

use super::{Driver, WRITTEN_ONCE};
use crate::collective::core::{Cells, Entry, Part};
use crate::fault::{Crash, Fuse};
use crate::reduce::{Goal, Place, Source};
use crate::trigger::{Gate, Input, Target, Task, Work};

impl Driver {
    /// Reduces `len` bytes of a round's contributions, from an offset on; without a round, of what a fallback read
    /// has brought.
    pub(super) fn combine(&mut self, round: Option<u64>, (from, len): (usize, usize)) {
        let Driver { machine, arena, reduction, .. } = self;
        let (plan, inputs) = (machine.plan(), machine.inputs(round));
        let sources = inputs.cut.contributions().enumerate().filter_map(|(row, entry)| {
            let staged = || Place::Staged(row * plan.staging_row());
            reduction.source(entry, inputs.at_hand(entry, from).map_or_else(staged, Place::Here))
        });
        let divisor = reduction.divisor(plan.ranks, inputs.cut);
        let goal = Goal { at: inputs.outcome + from, wide: false };
        arena.combine(reduction.kind(), sources, goal, len / reduction.dtype.size(), divisor);
    }

    /// Averages `len` bytes of a group's registers, from an offset on, and adds the updates of its members.
    pub(super) fn average(&mut self, round: u64, group: usize, (from, len): (usize, usize)) {
        let Driver { machine, arena, reduction, .. } = self;
        let Some((registers, cut)) = machine.averages(round) else { return };
        let plan = machine.plan();
        let (models, sources) = registers.sources(group, cut, plan);
        let sources = sources.enumerate().filter_map(|(row, (rank, at, entry))| {
            let here = plan.host_of(rank) == plan.host();
            let at = if here { Place::Here(at + from) } else { Place::Staged(row * plan.staging_row()) };
            let model = Source { at, wide: false, factor: 1.0 };
            entry.map_or(Some(model), |update| reduction.source(update, at))
        });
        let mut goals = registers.goals(group, plan.host(), plan);
        let at = goals.next().map_or(plan.transit(), |goal| goal + from);
        let elements = len / reduction.dtype.size();
        arena.average(reduction.dtype, (models, sources), at, elements, registers.divisor(group, plan));
        let source = Source { at: Place::Here(at), wide: false, factor: 1.0 };
        for goal in goals {
            let goal = Goal { at: goal + from, wide: false };
            arena.combine(reduction.kind(), [source].into_iter(), goal, elements, None);
        }
    }

    /// A reduction of a program: the set of parts and the data.
    pub(super) fn run(&mut self, task: Task) {
        Fuse::pass(&mut self.fuse, Crash::AfterClaim);
        let dies = Fuse::is_due(self.fuse, Crash::InsideOperation);
        let Driver { machine, control, arena, reduction, parts, sources, fuse, .. } = self;
        let scratch = &mut parts.cut;
        let plan = machine.plan();
        let Some(layout) = plan.program.as_deref() else { return };
        let Work::Reduce { from, to, chunk } = &layout.rows[task.row as usize].work else { return };
        let round = task.round;
        let load = |cell| control.load(plan.program_cell(round, cell));
        scratch.begin(round, None);
        sources.clear();
        let (skip, len) = plan.chunk_span(*chunk);
        let len = if dies { len / 2 / size_of::<u64>() * size_of::<u64>() } else { len };
        let elements = len / reduction.dtype.size();
        // Partial sums are kept in the width in which they are made.
        let wide_skip = skip / reduction.dtype.size() * reduction.dtype.wide_size();
        for input in from {
            let first = scratch.entries.len();
            match *input {
                Input::Gate(rank) => {
                    let deposit = Gate(load(layout.gate(rank))).at(round).deposit();
                    scratch.add_gate(rank, deposit, |buffer| plan.weight(rank, buffer, &*control));
                }
                Input::Partial(number) => scratch.add(|index| load(layout.header(number) + index)),
            }
            let added = scratch.entries.from(first).filter(|entry| entry.part != Part::Leaving);
            let contribution = |entry: Entry| {
                let at = Place::Here(plan.contribution(entry.rank, entry.buffer) + skip);
                reduction.source(entry, at)
            };
            match input {
                // One contribution is not copied: its sum is itself.
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
                let divisor = reduction.divisor(plan.ranks, scratch);
                let goal = Goal { at: plan.outcome(round) + skip, wide: false };
                arena.combine(reduction.kind(), sources.iter().copied(), goal, elements, divisor);
            }
        }
        Fuse::pass(fuse, Crash::InsideOperation);
    }
}
