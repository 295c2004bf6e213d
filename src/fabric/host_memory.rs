//! Registered memory as slices.
//!
//! Bytes that peers reach by one-sided operations become slices here, and where they are reduced
//! (`reduce/kernel/arena.rs`). That is sound while the protocol of the collective holds: no rank
//! reads the buffer that its owner writes next, and no rank writes an outcome between landing and
//! release (G1 to G4; the simulator checks them in every schedule, and debug builds assert at each loan and each reduction
//! what this rank knows of it). No rank writes symmetric memory
//! of another one, and the others read it only during a call, which needs it by `&mut`.
#![allow(unsafe_code)]

use bytemuck::Pod;

use super::Window;

/// Lends contributions and outcomes as slices.
#[derive(Clone, Debug)]
pub(crate) struct HostMemory {
    data: Window,
}

impl HostMemory {
    pub(crate) fn new(data: Window) -> Self {
        HostMemory { data }
    }

    /// The contribution that the caller writes.
    pub(crate) fn contribution<T: Pod>(&mut self, at: usize, bytes: usize) -> &mut [T] {
        let address = self.data.target(at, bytes);
        // SAFETY: mapped, aligned (the plan's strides are), any bits are a valid element. Until
        // `arrive` hands the buffer in, which needs the same `&mut`, it belongs to this rank: its
        // last content entered a round that has landed. Where it is handed in before it is filled,
        // this is one segment of it, and no rank reads that before it is announced as filled.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr().cast(), bytes / size_of::<T>()) }
    }

    /// An outcome that has landed and was not released.
    pub(crate) fn outcome<T: Pod>(&self, at: usize, bytes: usize) -> &[T] {
        let address = self.data.source(at, bytes);
        // SAFETY: mapped, aligned, any bits are a valid element. The round has landed, so its
        // writers are done, and the slot is not written again before this rank releases the round,
        // which it does when no borrow of the outcome is left.
        unsafe { std::slice::from_raw_parts(address.as_ptr().cast(), bytes / size_of::<T>()) }
    }
}
