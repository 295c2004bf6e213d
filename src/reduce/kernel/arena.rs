//! Reductions in the data memory of a collective on one host.
//!
//! Peers reach this memory by one-sided operations. Reducing it is sound as long as the protocol
//! holds: no rank writes the contributions of a cut before its round has landed, and a claimed
//! segment has one writer (G1 to G4; the simulator checks them in every schedule).
#![allow(unsafe_code)]

use super::{DefaultFloats, Ending, Model, Operand, Target, combine};
use crate::fabric::{HostMemory, Window};
use crate::reduce::{Dtype, Reduce};

/// The location of a source of a reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// At an offset in the data region of this host.
    Here(usize),
    /// At an offset in the staging region; it was read from another host.
    Staged(usize),
}

/// A source of a reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) at: Place,
    /// Whether it is a partial result, in the width of [`Dtype::wide_size`].
    pub(crate) wide: bool,
    /// The factor of its elements.
    pub(crate) factor: f32,
}

/// The destination of a reduction in the data region, and its width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) at: usize,
    pub(crate) wide: bool,
}

/// The contributions and outcomes of one host, and data read from other hosts.
#[derive(Debug)]
pub(crate) struct Arena {
    data: Window,
    staging: Option<Window>,
    /// The sources of one reduction by address, kept so that the hot path allocates nothing.
    operands: Vec<Operand>,
    /// The maximum number of sources.
    most: usize,
}

// SAFETY: the addresses in `operands` are only used within `combine`, which sets them first.
unsafe impl Send for Arena {}

impl Arena {
    /// Creates the arena. `most` is the maximum number of sources of a reduction.
    pub(crate) fn new(data: Window, staging: Option<Window>, most: usize) -> Self {
        Arena { data, staging, operands: Vec::new(), most }
    }

    /// Allocates memory for the maximum number of sources, unless it exists. Without this call the first reduction does
    /// it.
    pub(crate) fn reserve(&mut self) {
        self.operands.reserve_exact(self.most.saturating_sub(self.operands.len()));
    }

    /// Reduces `len` elements of each of `sources` into the data region.
    pub(crate) fn combine(
        &mut self,
        (dtype, reduce): (Dtype, Reduce),
        sources: impl Iterator<Item = Source>,
        goal: Goal,
        len: usize,
        divisor: Option<f64>,
    ) {
        let floats = DefaultFloats::enter();
        self.find(dtype, sources, len);
        let target = self.target(dtype, goal, len);
        let ending = divisor.map_or(Ending::Plain, Ending::Over);
        // SAFETY: all lie in mapped memory (`find` and `target` check) at multiples of the element size (the plan's
        // offsets are). The sources are members of a closed cut, the target is a claimed segment of a slot that every
        // receiver has released: no rank writes the sources or accesses the target.
        unsafe { combine((dtype, reduce), target, &self.operands, len, ending, &floats) };
    }

    /// Averages models, `len` elements of each, and adds updates to the mean. `sources` are the models, at least one,
    /// and then the updates. The group has `members` ranks. Elements are floats.
    pub(crate) fn average(
        &mut self,
        dtype: Dtype,
        (models, sources): (usize, impl Iterator<Item = Source>),
        at: usize,
        len: usize,
        members: u32,
    ) {
        let floats = DefaultFloats::enter();
        self.find(dtype, sources, len);
        let target = self.target(dtype, Goal { at, wide: false }, len);
        let (models, updates) = self.operands.split_at(models.min(self.operands.len()));
        let Some((&first, others)) = models.split_first() else { return };
        let ending = Ending::Model(Model { first, others, members: f64::from(members) });
        // SAFETY: as in `combine`. Models are read where members of the group have them from rounds that have landed,
        // and each new one is written to another location.
        unsafe { combine((dtype, Reduce::Sum), target, updates, len, ending, &floats) };
    }

    /// Finds the addresses of the sources.
    fn find(&mut self, dtype: Dtype, sources: impl Iterator<Item = Source>, len: usize) {
        self.operands.clear();
        self.reserve();
        for Source { at, wide, factor } in sources {
            let bytes = bytes_of(dtype, wide, len);
            let address = match (at, &self.staging) {
                (Place::Staged(offset), Some(staging)) => staging.source(offset, bytes),
                (Place::Here(offset) | Place::Staged(offset), _) => self.data.source(offset, bytes),
            };
            self.operands.push(Operand { data: address.as_ptr(), wide, factor });
        }
    }

    fn target(&self, dtype: Dtype, Goal { at, wide }: Goal, len: usize) -> Target {
        Target { data: self.data.target(at, bytes_of(dtype, wide, len)).as_ptr(), wide }
    }

    pub(crate) fn memory(&self) -> HostMemory {
        HostMemory::new(self.data.clone())
    }
}

fn bytes_of(dtype: Dtype, wide: bool, len: usize) -> usize {
    len * if wide { dtype.wide_size() } else { dtype.size() }
}
