//! Direct access to registered memory.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(all(test, loom))]
use loom::cell::UnsafeCell;

use crate::sync::{AtomicU64, Ordering};

/// A mapped region, with cells as atomics and bytes as raw memory.
///
/// Peers may write it at any time, so a window never gives out a reference to plain data. A cell is
/// sound while its bytes are only a cell: not where a collective lends them as a slice, and not
/// while data is copied over them. The caller that opened the endpoint has promised that
/// ([`RawAccess::promise`](super::RawAccess::promise)).
#[derive(Clone)]
pub struct Window {
    base: NonNull<u8>,
    len: usize,
    /// Keeps the mapping alive.
    _owner: Arc<dyn Any + Send + Sync>,
    /// One for each 8 bytes that loom checks.
    #[cfg(all(test, loom))]
    watched: Arc<Vec<UnsafeCell<()>>>,
}

// SAFETY: a window is an address and the ownership of a mapping that is valid in every thread;
// all access through it is atomic, or unsafe with the caller ruling out races.
unsafe impl Send for Window {}
// SAFETY: as above; no method changes the window itself.
unsafe impl Sync for Window {}

impl Window {
    /// # Safety
    /// `base .. base + len` must be valid for reads and writes, aligned to 8 bytes, zeroed or
    /// otherwise initialised, for as long as `owner` lives.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        debug_assert_eq!(base.as_ptr() as usize % align_of::<AtomicU64>(), 0);
        Window {
            base,
            len,
            _owner: owner,
            #[cfg(all(test, loom))]
            watched: Arc::default(),
        }
    }

    /// The same memory, checked by loom: a thread that writes bytes must have synchronised with all
    /// that read or wrote them, and a thread that reads bytes with all that wrote them.
    #[cfg(all(test, loom))]
    pub(crate) fn watched(self) -> Self {
        let cells = (0..self.len / size_of::<u64>()).map(|_| UnsafeCell::new(())).collect();
        Window { watched: Arc::new(cells), ..self }
    }

    #[cfg(all(test, loom))]
    fn watched_at(&self, offset: usize, len: usize) -> impl Iterator<Item = &UnsafeCell<()>> {
        let cells = offset / size_of::<u64>()..(offset + len).div_ceil(size_of::<u64>());
        self.watched.iter().skip(cells.start).take(cells.len())
    }

    /// The length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first `bytes` of it.
    pub(crate) fn truncated(self, bytes: usize) -> Self {
        assert!(bytes <= self.len, "{bytes} bytes of a window of {}", self.len);
        Window { len: bytes, ..self }
    }

    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The cell `index` (in units of 8 bytes).
    ///
    /// # Panics
    /// If it lies outside the window.
    #[must_use]
    #[inline]
    pub fn cell(&self, index: usize) -> &AtomicU64 {
        let Some(cell) = self.get_cell(index) else { self.has_no_cell(index) };
        cell
    }

    #[cold]
    #[inline(never)]
    fn has_no_cell(&self, index: usize) -> ! {
        panic!("cell {index} of a window of {} bytes", self.len)
    }

    /// The cell `index`, if it lies inside the window.
    #[inline]
    pub(crate) fn get_cell(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: inside the mapping, aligned and initialised; accessed atomically, or as the
        // endpoint's `RawAccess` has promised.
        (index < self.len / size_of::<u64>()).then(|| unsafe { self.base.cast::<AtomicU64>().add(index).as_ref() })
    }

    /// Begins to fetch the cache line of a cell that is read soon. It does nothing on processors for which that is not
    /// written, or outside the window.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize) {
        #[cfg(any(not(target_arch = "x86_64"), loom))]
        let _ = index;
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        if let Some(cell) = self.get_cell(index) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint that changes nothing, whatever the address is; x86-64 has the instruction.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(cell).cast()) }
        }
    }

    /// As [`Window::prefetch`], for a cell that is written soon.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, index: usize) {
        #[cfg(any(not(target_arch = "x86_64"), loom))]
        let _ = index;
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        if let Some(cell) = self.get_cell(index) {
            // SAFETY: a hint that changes nothing; processors that do not know the instruction ignore it.
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) std::ptr::from_ref(cell), options(nostack, preserves_flags, readonly));
            }
        }
    }

    /// The address of `len` bytes at `offset`, for as long as a clone of the window lives.
    ///
    /// # Panics
    /// If they lie outside the window.
    #[must_use]
    pub fn bytes(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= self.len && len <= self.len - offset, "bytes {offset}+{len} of a window of {}", self.len);
        // SAFETY: inside the mapping, or one past its end when `len` is 0.
        unsafe { self.base.add(offset) }
    }

    /// As [`Window::bytes`], for bytes that this thread reads while no other writes them.
    #[inline]
    pub(crate) fn source(&self, offset: usize, len: usize) -> NonNull<u8> {
        #[cfg(all(test, loom))]
        self.watched_at(offset, len).for_each(|cell| cell.with(|_| ()));
        self.bytes(offset, len)
    }

    /// As [`Window::bytes`], for bytes that this thread writes while no other reads or writes them.
    #[inline]
    pub(crate) fn target(&self, offset: usize, len: usize) -> NonNull<u8> {
        #[cfg(all(test, loom))]
        self.watched_at(offset, len).for_each(|cell| cell.with_mut(|_| ()));
        self.bytes(offset, len)
    }

    /// Zeroes cells that no other thread uses meanwhile. A later release has to publish that.
    pub(crate) fn clear(&self, cells: Range<usize>) {
        for cell in cells.map(|index| self.cell(index)) {
            cell.store(0, Ordering::Relaxed);
            #[cfg(all(test, loom))]
            {
                // SAFETY: the value is not used. Loom checks that this thread knows all earlier
                // changes, and that the next thread that changes the cell knows of the zero.
                let _ = unsafe { cell.unsync_load() };
            }
        }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they do not fit.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        let target = self.target(offset, data.len());
        // SAFETY: inside the mapping, which does not overlap `data`. Peers either do not have the
        // key yet or do not access these bytes, by the contract of `put`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), target.as_ptr(), data.len()) };
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) {
        let source = self.source(offset, data.len());
        // SAFETY: as for `write`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), data.as_mut_ptr(), data.len()) };
    }

    /// Copies between windows, which may be the same and may overlap.
    ///
    /// # Panics
    /// If either side lies outside.
    pub(crate) fn copy(from: (&Window, usize), to: (&Window, usize), len: usize) {
        let source = from.0.source(from.1, len);
        let target = to.0.target(to.1, len);
        // SAFETY: both ranges lie in live mappings. No peer writes the source or touches the target
        // meanwhile, by the contract of `put` and `read`, whose bodies this is; only a contract can
        // protect memory from another process.
        unsafe { std::ptr::copy(source.as_ptr(), target.as_ptr(), len) };
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({} bytes)", self.len)
    }
}
