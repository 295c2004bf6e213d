//! Ctrl-C, and other signals that Python has handlers for, while a call waits without the interpreter's lock.
//!
//! The interpreter runs handlers on the main thread only, so that thread looks after them now and then, for which it needs
//! the interpreter's lock: another thread that does not let go of that holds up the wait, too. Other threads do not look.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;

/// A wait looks after signals this often.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// How long a call may take to end that was given up.
const ENDING: Duration = Duration::from_secs(2);

thread_local! {
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
    /// What a handler raised.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// This thread waits until the program ends, at the longest.
    static UNTIL_END: Cell<bool> = const { Cell::new(false) };
    /// The caller of what this thread does has given it up.
    static GIVEN_UP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// The program ends.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Lets the waits of this thread end with the program: [`end_waits`]. An interpreter that ends while a thread is on its way back
/// to it aborts the process, if there is C++ on the way.
#[pyfunction]
pub(crate) fn wait_until_end() {
    UNTIL_END.set(true);
}

/// Ends the waits of all threads that have called [`wait_until_end`].
#[pyfunction]
pub(crate) fn end_waits() {
    ENDS.store(true, Ordering::Relaxed);
}

/// Lets waits end when a handler raises an exception.
pub(crate) fn set_up(py: Python<'_>) {
    // What PyO3 asks the interpreter once, it must ask before that ends.
    py.detach(|| Python::attach(|_| ()));
    earlybird::interrupt_when(asked);
}

/// Whether this is the thread that runs handlers. A child that was forked from another one has another main thread.
fn is_main() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

fn asked() -> bool {
    if GIVEN_UP.with_borrow(|given_up| given_up.as_ref().is_some_and(|given_up| given_up.load(Ordering::Relaxed))) {
        return true;
    }
    if UNTIL_END.get() && ENDS.load(Ordering::Relaxed) {
        return true;
    }
    if LOOKED.get().is_some_and(|checked| checked.elapsed() < SLICE) || !is_main() {
        return false;
    }
    LOOKED.set(Some(Instant::now()));
    // Objects that are collected when the interpreter ends may call, too. There is none to ask then.
    match Python::try_attach(|py| py.check_signals()) {
        None | Some(Ok(())) => false,
        Some(Err(raised)) => {
            RAISED.set(Some(raised));
            true
        }
    }
}

/// The exception that ended a wait of this thread.
pub(crate) fn raised(text: String) -> PyErr {
    RAISED.take().unwrap_or_else(|| PyKeyboardInterrupt::new_err(text))
}

/// Makes a call on another thread while the main thread looks after signals. If a handler raises an exception, the call is given
/// up, and what it has made by then is dropped.
pub(crate) fn beside<R: Send + 'static>(py: Python<'_>, call: impl FnOnce() -> R + Send + 'static) -> PyResult<R> {
    if !is_main() {
        return Ok(py.detach(call));
    }
    let given_up = Arc::new(AtomicBool::new(false));
    let (sender, made) = mpsc::channel();
    let made = Mutex::new(made);
    let theirs = given_up.clone();
    thread::Builder::new().name("earlybird join".to_owned()).spawn(move || {
        GIVEN_UP.set(Some(theirs));
        let _ = sender.send(call());
    })?;
    loop {
        match py.detach(|| made.lock().recv_timeout(SLICE)) {
            Ok(made) => return Ok(made),
            Err(RecvTimeoutError::Disconnected) => {
                let panicked = "a mistake of the library, described on standard error; please report it";
                return Err(PyRuntimeError::new_err(panicked));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    given_up.store(true, Ordering::Relaxed);
                    // Its place in the meeting is free then: the program may join again. A library may not return to it.
                    py.detach(|| _ = made.lock().recv_timeout(ENDING));
                    return Err(raised);
                }
            }
        }
    }
}
