//! Reductions of memory in several windows: the board of each rank.
#![allow(unsafe_code)]

use super::{DefaultFloats, Ending, Operand, Target, combine};
use crate::fabric::Window;
use crate::reduce::{Dtype, Reduce};

/// A source of a reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BoardSource<'a> {
    /// At an offset in a window.
    Board(&'a Window, usize),
    /// Memory of the caller.
    Own(&'a [u8]),
}

/// The sources of one reduction by address, kept so that the hot path allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    operands: Vec<Operand>,
}

// SAFETY: the addresses in `operands` are only used within `combine`, which sets them first.
unsafe impl Send for Gathered {}

impl Gathered {
    /// Reduces sources into `target`, in the order given. All addresses are aligned to elements.
    ///
    /// # Panics
    /// If a source has fewer bytes, or an address is not aligned.
    pub(crate) fn combine<'a>(
        &mut self,
        (dtype, reduce): (Dtype, Reduce),
        sources: impl Iterator<Item = BoardSource<'a>>,
        target: &mut [u8],
    ) {
        let is_aligned = |address: *const u8| (address as usize).is_multiple_of(dtype.size());
        if target.is_empty() {
            return;
        }
        self.operands.clear();
        self.operands.extend(sources.map(|source| {
            let data: *const u8 = match source {
                BoardSource::Board(window, offset) => window.source(offset, target.len()).as_ptr(),
                BoardSource::Own(bytes) => bytes[..target.len()].as_ptr(),
            };
            assert!(is_aligned(data), "{source:?}");
            Operand { data, wide: false, factor: 1.0 }
        }));
        assert!(is_aligned(target.as_ptr()), "the target");
        let (data, len) = (target.as_mut_ptr(), target.len() / dtype.size());
        // SAFETY: windows are mapped and `source` checks bounds; addresses are aligned. The exclusive borrow of the
        // target rules out other accesses to it. Ranks rewrite what they have published only when all readers have
        // reported that they have taken it (`board/pace.rs`; a test drives that in random orders).
        unsafe {
            combine(
                (dtype, reduce),
                Target { data, wide: false },
                &self.operands,
                len,
                Ending::Plain,
                &DefaultFloats::enter(),
            );
        }
    }
}
