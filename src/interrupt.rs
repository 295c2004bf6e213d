//! Ends waits when the program has something else to do: a signal came, for which its language has a handler.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::error::{Error, Result};

/// A wait for another thread looks this often whether it is to end.
const SLICE: Duration = Duration::from_millis(20);

static ASKED: OnceLock<fn() -> bool> = OnceLock::new();

/// Lets every call that waits ask this function whether to end, about 50 times a second, on the thread that waits. If the
/// function gives true, the call fails with [`Error::Interrupted`]. A call that waits for a short time may ask nothing.
///
/// It is for a language whose signal handlers run between the steps of a program, and not while it waits here: Python's
/// extension sets it. One function is set in the life of a process. Returns whether this is the one.
pub fn interrupt_when(asked: fn() -> bool) -> bool {
    ASKED.set(asked).is_ok()
}

/// # Errors
/// This wait of a caller is to end.
pub(crate) fn check(rank: u32, operation: &'static str) -> Result<()> {
    match ASKED.get().is_some_and(|asked| asked()) {
        true => Err(Error::Interrupted { rank, operation }),
        false => Ok(()),
    }
}

/// A lock that another thread may hold while it waits for other ranks.
///
/// # Errors
/// That thread has not let go by `until`, or a moment later: threads that wait for messages hold the lock by turns. This wait is
/// to end. A signal handler that makes a call in the middle of one of the same thread gets the first.
pub(crate) fn lock<'m, T>(
    mutex: &'m Mutex<T>,
    rank: u32,
    operation: &'static str,
    until: Instant,
) -> Result<MutexGuard<'m, T>> {
    if let Some(guard) = mutex.try_lock() {
        return Ok(guard);
    }
    loop {
        if let Some(guard) = mutex.try_lock_for(SLICE) {
            return Ok(guard);
        }
        check(rank, operation)?;
        if Instant::now() >= until {
            let problem = "another call of this rank, in which ranks meet, has gone on all the time";
            return Err(Error::Usage { rank, operation, problem });
        }
    }
}
