//! The atomics of protocols between processes. Under `--cfg loom` they are loom's, which tries every order of their
//! effects (`docs/testing.md`).

#[cfg(all(test, loom))]
pub(crate) mod modelled;

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The ordering of an operation on a cell.
#[cfg(not(all(test, loom)))]
macro_rules! ordering {
    ($operation:ident, $cell:expr, $ordering:ident) => {
        Ordering::$ordering
    };
}

/// The ordering of an operation on a cell, unless a test removed it to check whether loom finds that.
#[cfg(all(test, loom))]
macro_rules! ordering {
    ($operation:ident, $cell:expr, $ordering:ident) => {
        modelled::ordering(modelled::Operation::$operation, $cell, Ordering::$ordering)
    };
}

/// Loads a cell: what it announces is visible too.
#[inline]
pub(crate) fn look(cell: &AtomicU64) -> u64 {
    cell.load(ordering!(Look, cell, Acquire))
}

/// Stores a cell, after everything that it announces.
#[inline]
pub(crate) fn announce(cell: &AtomicU64, value: u64) {
    cell.store(value, ordering!(Announce, cell, Release));
}

/// Raises a cell to a value, if the cell holds less. A thread that sees the value sees what this thread did before, and
/// what was done before any earlier raise.
#[inline]
pub(crate) fn raise(cell: &AtomicU64, value: u64) {
    cell.fetch_max(value, ordering!(Raise, cell, AcqRel));
}

/// Replaces `expect` by `new`; returns the value before. Acquire and release: an atomic carries what its origin saw to
/// the thread that it answers next.
#[inline]
pub(crate) fn swap(cell: &AtomicU64, expect: u64, new: u64) -> u64 {
    let swapped = cell.compare_exchange(expect, new, ordering!(Swap, cell, AcqRel), ordering!(Swap, cell, Acquire));
    swapped.unwrap_or_else(|found| found)
}

/// Adds, and returns the value before: an initiator's knowledge includes that of every arrival before it.
#[inline]
pub(crate) fn add(cell: &AtomicU64, value: u64) -> u64 {
    cell.fetch_add(value, ordering!(Add, cell, AcqRel))
}

/// Makes earlier stores of this thread visible to a thread that fences later, before this thread's next loads.
#[inline]
pub(crate) fn full_fence() {
    #[cfg(all(test, loom))]
    if modelled::is_planted(modelled::Operation::Fence, None) {
        return;
    }
    fence(Ordering::SeqCst);
}
