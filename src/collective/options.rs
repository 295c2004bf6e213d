//! The choices that make a collective, as the caller made them.
#![forbid(unsafe_code)]

use crate::group::Group;
use crate::reduce::{Dtype, Reduce};
use crate::rule::{Absent, Executor, Fire, Grace, Mover, Scale};

/// What a caller chose for a collective. All ranks choose the same, except for the executor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) dtype: Dtype,
    pub(crate) fire: Fire,
    pub(crate) grace: Grace,
    pub(crate) absent: Absent,
    pub(crate) reduce: Reduce,
    pub(crate) scale: Scale,
    /// The number of rounds that may be unreleased anywhere.
    pub(crate) depth: u32,
    pub(crate) mover: Mover,
    pub(crate) executor: Executor,
    pub(crate) group: Group,
    /// The round before the first one: that of the checkpoint from which the collective resumes, or 0.
    pub(crate) base: u64,
}

impl Options {
    /// Returns what a caller gets that chooses nothing.
    pub(crate) const fn usual(dtype: Dtype) -> Self {
        Options {
            dtype,
            fire: Fire::ALL,
            grace: Grace::Auto,
            absent: Absent::Carry,
            reduce: Reduce::Sum,
            scale: Scale::Sum,
            depth: 8,
            mover: Mover::Auto,
            executor: Executor::Auto,
            group: Group::World,
            base: 0,
        }
    }

    /// Returns whether contributions have weights.
    pub(crate) fn is_weighted(&self) -> bool {
        self.scale == Scale::Weights
    }

    /// Returns whether contributions are sums of floating-point numbers, which can be divided.
    pub(crate) fn adds_floats(&self) -> bool {
        self.dtype.is_float() && self.reduce == Reduce::Sum
    }
}
