//! Ends waits when the program has something else to do: a signal came that its language handles.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::error::{Error, Misuse, Result};

/// How often a wait for another thread asks whether to end.
const SLICE: Duration = Duration::from_millis(20);

static ASKED: OnceLock<fn() -> bool> = OnceLock::new();

/// Makes every waiting call ask this function whether to end, about 50 times a second, on the thread that waits. If the
/// function returns true, the call fails with [`Error::Interrupted`]. A call that waits for a short time may not ask at
/// all.
///
/// It is for a language whose signal handlers run between the steps of a program, and therefore not while the program
/// waits here. Python's extension sets it. A process can set only one function, once. Returns whether this call has set
/// it.
pub fn interrupt_when(asked: fn() -> bool) -> bool {
    ASKED.set(asked).is_ok()
}

/// Asks the program whether to end the wait.
///
/// # Errors
/// [`Error::Interrupted`] if this wait must end.
pub(crate) fn check(rank: u32, operation: &'static str) -> Result<()> {
    match ASKED.get().is_some_and(|asked| asked()) {
        true => Err(Error::Interrupted { rank, operation }),
        false => Ok(()),
    }
}

/// Returns the error of an interrupted wait for another process, if `cause` has the kind
/// [`std::io::ErrorKind::Interrupted`]; `None` for other kinds.
pub(crate) fn of(rank: u32, operation: &'static str, cause: &std::io::Error) -> Option<Error> {
    (cause.kind() == std::io::ErrorKind::Interrupted).then_some(Error::Interrupted { rank, operation })
}

/// Locks a mutex that another thread may hold while it waits for other ranks.
///
/// # Errors
/// [`Error::Usage`] if the other thread has not released the lock by `until`, or a moment later; threads that wait for
/// messages hold it by turns. A signal handler gets this error if it makes a call while its own thread is in one.
/// [`Error::Interrupted`] if this wait must end.
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
            let problem = Misuse::Order("another call of this rank, in which ranks meet, has gone on all the time");
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

    /// Makes a call that `asked` interrupts by returning true, and checks that it ends for that reason.
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
