//! A descriptor that becomes readable when an owner has something to take, for programs that wait for many things at
//! once.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// An eventfd, see eventfd(2): readable from the first [`raise`](Notice::raise) on until it is lowered.
#[derive(Debug)]
pub(crate) struct Notice {
    event: OwnedFd,
    /// Whether it was raised, so that it is not raised repeatedly while work continues.
    is_raised: AtomicBool,
}

impl Notice {
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Notice { event, is_raised: AtomicBool::new(false) })
    }

    pub(crate) fn raise(&self) {
        if !self.is_raised.swap(true, Ordering::Relaxed) {
            // It fails only if the count is at its maximum: then it is readable.
            _ = write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Lowers the notice. The owner checks what there is after this.
    pub(crate) fn lower(&self) {
        self.is_raised.store(false, Ordering::Relaxed);
        // It fails only if it was not raised. A thread that raises it now may have written, or writes later: then the
        // owner finds nothing to take once.
        _ = read(&self.event, &mut [0u8; size_of::<u64>()]);
    }
}

impl AsFd for Notice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
