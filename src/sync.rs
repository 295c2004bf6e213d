//! The atomics that protocols between processes are made of. Under `--cfg loom` they are loom's, which
//! tries every order of their effects (`docs/testing.md`).

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Looks at a cell: what it announces is visible too.
#[inline]
pub(crate) fn look(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Acquire)
}

/// Stores a cell, after everything that it announces.
#[inline]
pub(crate) fn announce(cell: &AtomicU64, value: u64) {
    cell.store(value, Ordering::Release);
}

/// Raises a cell to a value, if it is less. Whoever sees it sees what this thread did before, and
/// what was done before any earlier raise.
#[inline]
pub(crate) fn raise(cell: &AtomicU64, value: u64) {
    cell.fetch_max(value, Ordering::AcqRel);
}

/// Replaces `expect` by `new`; returns what was there. Acquire and release: an atomic carries what
/// its origin saw to whoever it answers next.
#[inline]
pub(crate) fn swap(cell: &AtomicU64, expect: u64, new: u64) -> u64 {
    cell.compare_exchange(expect, new, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|found| found)
}

/// Adds, and returns what was there: an initiator's knowledge includes that of every arrival
/// before it.
#[inline]
pub(crate) fn add(cell: &AtomicU64, value: u64) -> u64 {
    cell.fetch_add(value, Ordering::AcqRel)
}

/// What was stored before is visible to whoever fences after this, before what this thread looks at
/// next.
#[inline]
pub(crate) fn full_fence() {
    fence(Ordering::SeqCst);
}
