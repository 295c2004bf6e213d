//! Reductions in the data memory of a collective on one host.
//!
//! Peers reach this memory by one-sided operations. Reducing it is sound as long as the protocol
//! holds: no rank writes the contributions of a cut before its round has landed, and a claimed
//! segment has one writer (G1 to G4; the simulator checks them in every schedule).
#![allow(unsafe_code)]

use super::{Operand, Target, combine};
use crate::fabric::{Lender, Window};
use crate::reduce::{Dtype, Reduce};

/// Where a source of a reduction lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// In the data region of this host.
    Here(usize),
    /// Read from another host, in the staging region.
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
    /// The sources of one reduction by address; kept so that the hot path allocates nothing.
    operands: Vec<Operand>,
    /// How many sources there can be.
    most: usize,
}

// SAFETY: the addresses in `operands` are only used within `combine`, which sets them first.
unsafe impl Send for Arena {}

impl Arena {
    pub(crate) fn new(data: Window, staging: Option<Window>, ranks: u32) -> Self {
        Arena { data, staging, operands: Vec::new(), most: 2 * ranks as usize }
    }

    /// Makes memory for as many sources as there can be, if there is none: at the latest the first reduction does.
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
        let bytes = |wide: bool| len * if wide { dtype.wide_size() } else { dtype.size() };
        self.operands.clear();
        self.reserve();
        for Source { at, wide, factor } in sources {
            let address = match (at, &self.staging) {
                (Place::Staged(offset), Some(staging)) => staging.source(offset, bytes(wide)),
                (Place::Here(offset) | Place::Staged(offset), _) => self.data.source(offset, bytes(wide)),
            };
            self.operands.push(Operand { data: address.as_ptr(), wide, factor });
        }
        let data = self.data.target(goal.at, bytes(goal.wide)).as_ptr();
        // SAFETY: all lie in mapped memory (`bytes` checks) at multiples of the element size (the plan's offsets are).
        // The sources are members of a closed cut, the target is a claimed segment of a slot that every receiver has
        // released: no rank writes the sources or accesses the target.
        unsafe { combine((dtype, reduce), Target { data, wide: goal.wide }, &self.operands, len, divisor) };
    }

    pub(crate) fn lender(&self) -> Lender {
        Lender::new(self.data.clone())
    }
}
