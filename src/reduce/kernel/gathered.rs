//! Reductions of memory that lies in several windows: a board of each rank.
#![allow(unsafe_code)]

use super::{Ending, Operand, Target, combine};
use crate::fabric::Window;
use crate::reduce::{Dtype, Reduce};

/// The sources of one reduction by address; kept so that the hot path allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    operands: Vec<Operand>,
}

// SAFETY: the addresses in `operands` are only used within `combine`, which sets them first.
unsafe impl Send for Gathered {}

impl Gathered {
    /// Reduces sources, each an offset in a window, into `target`, in the order given. All are aligned to elements.
    ///
    /// # Panics
    /// If a source lies outside its window, or an address is not aligned.
    pub(crate) fn combine<'a>(
        &mut self,
        (dtype, reduce): (Dtype, Reduce),
        sources: impl Iterator<Item = (&'a Window, usize)>,
        target: &mut [u8],
    ) {
        let is_aligned = |address: *const u8| (address as usize).is_multiple_of(dtype.size());
        if target.is_empty() {
            return;
        }
        self.operands.clear();
        self.operands.extend(sources.map(|(window, offset)| {
            let data = window.source(offset, target.len()).as_ptr();
            assert!(is_aligned(data), "a source at {offset}");
            Operand { data, wide: false, factor: 1.0 }
        }));
        assert!(is_aligned(target.as_ptr()), "the target");
        let (data, len) = (target.as_mut_ptr(), target.len() / dtype.size());
        // SAFETY: windows are mapped and `source` checks bounds; addresses are aligned. The exclusive borrow of the target
        // rules out other accesses to it. Ranks write what they have published again only when all readers said that
        // they have taken it (`board/pace.rs`; a test drives that in random orders).
        unsafe {
            combine((dtype, reduce), Target { data, wide: false }, &self.operands, len, Ending::Plain);
        }
    }
}
