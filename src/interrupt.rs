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

/// The error of a wait for another process that should end, which the system's error of the kind
/// [`std::io::ErrorKind::Interrupted`] stands for; `None` of others.
pub(crate) fn of(rank: u32, operation: &'static str, cause: &std::io::Error) -> Option<Error> {
    (cause.kind() == std::io::ErrorKind::Interrupted).then_some(Error::Interrupted { rank, operation })
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

#[cfg(test)]
pub(crate) mod asking {
    use std::cell::RefCell;

    use super::{Error, Result, interrupt_when};

    thread_local! {
        static WHEN: RefCell<Option<Box<dyn Fn() -> bool>>> = const { RefCell::new(None) };
    }

    /// Makes a call that is to end when `asked` gives true, and does so for that reason.
    pub(crate) fn interrupted<R: std::fmt::Debug>(
        asked: impl Fn() -> bool + 'static,
        call: impl FnOnce() -> Result<R>,
    ) {
        interrupt_when(|| WHEN.with_borrow(|when| when.as_ref().is_some_and(|when| when())));
        WHEN.set(Some(Box::new(asked)));
        let told = call();
        WHEN.set(None);
        assert!(matches!(told, Err(Error::Interrupted { .. })), "{told:?}");
    }
}
