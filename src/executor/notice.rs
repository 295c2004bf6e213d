//! A descriptor that becomes readable when an owner has something to take: for programs that wait for many things at once.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// An eventfd, see eventfd(2): readable from the first [`raise`](Notice::raise) on until it is lowered.
#[derive(Debug)]
pub(crate) struct Notice(OwnedFd);

impl Notice {
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Notice(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn raise(&self) {
        // It fails only where the count is at its largest: then it is readable.
        _ = write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn lower(&self) {
        // It fails only if it was not raised.
        _ = read(&self.0, &mut [0u8; size_of::<u64>()]);
    }
}

impl AsFd for Notice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
