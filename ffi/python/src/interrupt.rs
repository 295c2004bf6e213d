//! Ctrl-C, and other signals that Python has handlers for, while a call waits without the interpreter's lock.
//!
//! The interpreter runs handlers on the main thread only, so that thread looks after them now and then. Others never wait
//! for the interpreter's lock in the middle of a call.

use std::cell::{Cell, RefCell};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;

/// A wait looks after signals this often: another thread may hold the interpreter's lock for milliseconds.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

thread_local! {
    static IS_MAIN: bool = rustix::thread::gettid() == rustix::process::getpid();
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
    /// What a handler raised.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Lets waits end when a handler raises an exception.
pub(crate) fn set_up() {
    earlybird::interrupt_when(asked);
}

fn asked() -> bool {
    let looked = LOOKED.get().is_some_and(|looked| looked.elapsed() < SLICE);
    if looked || !IS_MAIN.with(|&is_main| is_main) {
        return false;
    }
    LOOKED.set(Some(Instant::now()));
    match Python::attach(|py| py.check_signals()) {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    }
}

/// The exception that ended a wait of this thread.
pub(crate) fn raised(text: String) -> PyErr {
    RAISED.take().unwrap_or_else(|| PyKeyboardInterrupt::new_err(text))
}

/// Makes a call on another thread while this one looks after signals. If a handler raises an exception, the call goes on
/// there until its deadline, and what it makes is dropped.
pub(crate) fn beside<R: Send + 'static>(py: Python<'_>, call: impl FnOnce() -> R + Send + 'static) -> PyResult<R> {
    let (sender, made) = mpsc::channel();
    let made = Mutex::new(made);
    thread::spawn(move || sender.send(call()));
    loop {
        match py.detach(|| made.lock().recv_timeout(SLICE)) {
            Ok(made) => return Ok(made),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a mistake of the library: it panicked"));
            }
        }
    }
}
