//! The data memory of a collective on one host: contributions and outcomes.
//!
//! Here, and only here, bytes that peers reach by one-sided operations become slices. That is
//! sound as long as the protocol holds: the buffer that a rank writes next is read by nobody, a
//! cut's contributions are written by nobody until its round has landed, a claimed segment has one
//! writer, and an outcome is written by nobody between landing and release (G1 to G4; the
//! simulator checks them in every schedule).
#![allow(unsafe_code)]

use super::Window;
use crate::reduce::{Dtype, combine};
use bytemuck::Pod;

/// Where a source of a reduction lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// In the data region of this host.
    Here(usize),
    /// Read from another host.
    Staged(usize),
}

#[derive(Debug)]
pub(crate) struct Arena {
    data: Window,
    staging: Option<Window>,
    /// Addresses of the sources of one reduction; kept to allocate nothing on the hot path.
    sources: Vec<*const u8>,
}

// SAFETY: the addresses in `sources` are only used within `combine`, which sets them first.
unsafe impl Send for Arena {}

impl Arena {
    pub(crate) fn new(data: Window, staging: Option<Window>, ranks: u32) -> Self {
        Arena { data, staging, sources: Vec::with_capacity(2 * ranks as usize) }
    }

    /// Reduces `sources` into the outcome memory at `to`.
    pub(crate) fn combine(
        &mut self,
        dtype: Dtype,
        sources: impl Iterator<Item = Source>,
        to: usize,
        len: usize,
        divisor: Option<u32>,
    ) {
        self.sources.clear();
        for source in sources {
            let address = match (source, &self.staging) {
                (Source::Staged(offset), Some(staging)) => staging.bytes(offset, len),
                (Source::Here(offset) | Source::Staged(offset), _) => self.data.bytes(offset, len),
            };
            self.sources.push(address.as_ptr());
        }
        let target = self.data.bytes(to, len);
        // SAFETY: all lie in mapped memory (`bytes` checks) at multiples of the element size (the
        // plan's offsets are). The sources are members of a closed cut, the target is a claimed
        // segment of a slot that every receiver has released: nobody writes or reads otherwise.
        unsafe { combine(dtype, target.as_ptr(), &self.sources, len, divisor) };
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
        let address = self.data.bytes(at, bytes);
        // SAFETY: mapped, aligned (the plan's strides are), any bits are a valid element. Until it
        // is handed in by `arrive`, which needs the same `&mut`, the buffer belongs to this rank:
        // its last content entered a round that has landed.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr().cast(), bytes / size_of::<T>()) }
    }

    /// An outcome that has landed and was not released.
    pub(crate) fn outcome<T: Pod>(&self, at: usize, bytes: usize) -> &[T] {
        let address = self.data.bytes(at, bytes);
        // SAFETY: mapped, aligned, any bits are a valid element. The round has landed, so its
        // writers are done, and the slot is not written again before this rank releases the
        // round, which it does when nothing borrows the outcome any more.
        unsafe { std::slice::from_raw_parts(address.as_ptr().cast(), bytes / size_of::<T>()) }
    }
}
