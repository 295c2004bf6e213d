//! Carries out the machine's reductions in memory.

use super::Driver;
use crate::reduce::{Goal, Place, Source};

impl Driver {
    /// Reduces the contributions among the operands to an offset.
    pub(super) fn combine(&mut self, (to, len): (usize, usize)) {
        let Driver { machine, arena, reduction, operands, .. } = self;
        let sources = operands.inputs.iter().filter_map(|&input| reduction.source_of(input));
        let contributions = operands.inputs.iter().filter_map(|input| input.entry);
        let divisor = reduction.divisor(machine.plan().ranks, contributions);
        let goal = Goal { at: to, wide: false };
        arena.combine(reduction.kind(), sources, goal, len / reduction.dtype.size(), divisor);
    }

    /// Averages the first `models` operands, and adds the others.
    pub(super) fn average(&mut self, models: usize, divisor: u32, (to, len): (usize, usize)) {
        let Driver { arena, reduction, operands, .. } = self;
        let sources = operands.inputs.iter().filter_map(|&input| reduction.source_of(input));
        arena.average(reduction.dtype, (models, sources), to, len / reduction.dtype.size(), divisor);
    }

    pub(super) fn copy(&mut self, from: usize, (to, len): (usize, usize)) {
        let Driver { arena, reduction, .. } = self;
        let source = Source { at: Place::Here(from), wide: false, factor: 1.0 };
        let goal = Goal { at: to, wide: false };
        arena.combine(reduction.kind(), [source].into_iter(), goal, len / reduction.dtype.size(), None);
    }
}
