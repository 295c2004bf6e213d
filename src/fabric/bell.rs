//! Descriptors that end the sleep of a thread which polls them (eventfd(2)). Other processes ring those that they were
//! handed.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};

/// Makes a bell of a rank.
pub(super) fn make(rank: u32) -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|cause| Error::os(rank, "make a bell", cause))
}

/// Wakes the threads that poll a bell. The write can only fail if the bell rings already.
pub(super) fn ring(bell: impl AsFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Silences a bell.
pub(super) fn silence(bell: impl AsFd) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}
