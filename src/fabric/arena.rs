//! The data memory of a collective on one host: contributions and outcomes.
//!
//! Here, and only here, bytes that peers reach by one-sided operations become slices. That is
//! sound as long as the protocol holds: the buffer that a rank writes next is read by nobody, a
//! cut's contributions are written by nobody until its round has landed, a claimed segment has one
//! writer, and an outcome is written by nobody between landing and release (G1 to G4; the
//! simulator checks them in every schedule).
#![allow(unsafe_code)]

use super::Window;
use crate::reduce::{Dtype, Operand, Reduce, Target, combine};
use bytemuck::Pod;

/// Where a source of a reduction lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// In the data region of this host.
    Here(usize),
    /// Read from another host.
    Staged(usize),
}

/// A source of a reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) at: Place,
    /// Whether it is a partial result, in the width of [`Dtype::wide_size`].
    pub(crate) wide: bool,
    /// What it is multiplied by.
    pub(crate) factor: f32,
}

/// Where a reduction goes in the data region, and in what width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) at: usize,
    pub(crate) wide: bool,
}

#[derive(Debug)]
pub(crate) struct Arena {
    data: Window,
    staging: Option<Window>,
    /// The sources of one reduction by address; kept to allocate nothing on the hot path.
    operands: Vec<Operand>,
}

// SAFETY: the addresses in `operands` are only used within `combine`, which sets them first.
unsafe impl Send for Arena {}

impl Arena {
    pub(crate) fn new(data: Window, staging: Option<Window>, ranks: u32) -> Self {
        Arena { data, staging, operands: Vec::with_capacity(2 * ranks as usize) }
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
        for Source { at, wide, factor } in sources {
            let address = match (at, &self.staging) {
                (Place::Staged(offset), Some(staging)) => staging.source(offset, bytes(wide)),
                (Place::Here(offset) | Place::Staged(offset), _) => self.data.source(offset, bytes(wide)),
            };
            self.operands.push(Operand { data: address.as_ptr(), wide, factor });
        }
        let data = self.data.target(goal.at, bytes(goal.wide)).as_ptr();
        // SAFETY: all lie in mapped memory (`bytes` checks) at multiples of the element size (the
        // plan's offsets are). The sources are members of a closed cut, the target is a claimed
        // segment of a slot that every receiver has released: nobody writes or reads otherwise.
        unsafe { combine((dtype, reduce), Target { data, wide: goal.wide }, &self.operands, len, divisor) };
    }

    pub(crate) fn lender(&self) -> Lender {
        Lender { data: self.data.clone() }
    }
}

/// Lends contributions and outcomes.
#[derive(Clone, Debug)]
pub(crate) struct Lender {
    data: Window,
}

impl Lender {
    /// The contribution that is being written.
    pub(crate) fn contribution<T: Pod>(&mut self, at: usize, bytes: usize) -> &mut [T] {
        let address = self.data.target(at, bytes);
        // SAFETY: mapped, aligned (the plan's strides are), any bits are a valid element. Until it
        // is handed in by `arrive`, which needs the same `&mut`, the buffer belongs to this rank:
        // its last content entered a round that has landed. Where it is handed in before it is
        // filled, this is a segment of it, and nobody reads that before it is said to be there.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr().cast(), bytes / size_of::<T>()) }
    }

    /// An outcome that has landed and was not released.
    pub(crate) fn outcome<T: Pod>(&self, at: usize, bytes: usize) -> &[T] {
        let address = self.data.source(at, bytes);
        // SAFETY: mapped, aligned, any bits are a valid element. The round has landed, so its
        // writers are done, and the slot is not written again before this rank releases the
        // round, which it does when nothing borrows the outcome any more.
        unsafe { std::slice::from_raw_parts(address.as_ptr().cast(), bytes / size_of::<T>()) }
    }
}
