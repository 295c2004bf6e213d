//! Failures as exceptions: the classes are those of `earlybird._errors`.

use earlybird::{Error, ErrorKind, Misuse};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::interrupt;

/// The class for a kind of failure.
fn class_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Timeout => "Timeout",
        ErrorKind::PeerDied => "PeerDied",
        ErrorKind::PeerLeft => "PeerLeft",
        ErrorKind::Aborted => "Aborted",
        ErrorKind::Mismatch => "Mismatch",
        ErrorKind::Join => "JoinError",
        ErrorKind::Memory | ErrorKind::LockedMemory => "OutOfMemory",
        ErrorKind::Os => "SystemFailure",
        ErrorKind::Config => "ConfigError",
        ErrorKind::Usage => "UsageError",
        ErrorKind::Transport => "TransportError",
        _ => "Error",
    }
}

/// An exception of a class by name, with the ranks that a failure concerns.
fn exception(py: Python<'_>, name: &str, text: String, ranks: [Option<u32>; 2]) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let class = py.import("earlybird._errors")?.getattr(name)?;
        let value = class.call1((text.clone(),))?;
        value.setattr("rank", ranks[0])?;
        value.setattr("peer", ranks[1])?;
        Ok(PyErr::from_value(value))
    };
    made().unwrap_or_else(|_| PyRuntimeError::new_err(text.clone()))
}

/// What a call of the library failed with.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    if error.kind() == ErrorKind::Interrupted {
        return interrupt::raised(error.to_string());
    }
    let raised = exception(py, class_name(error.kind()), error.to_string(), [error.rank(), error.peer()]);
    if let Some(misuse) = error.misuse() {
        name(py, &raised, misuse);
    }
    raised
}

/// A choice that is none.
pub(crate) fn bad_choice(py: Python<'_>, text: String) -> PyErr {
    exception(py, "ConfigError", text, [None, None])
}

/// A call in a child of the process that has joined.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    misused(py, Misuse::Forked("a forked child must not use the world of its parent; start children by spawn"))
}

/// A call that is not allowed, or not now.
pub(crate) fn misused(py: Python<'_>, misuse: Misuse) -> PyErr {
    let raised = exception(py, "UsageError", misuse.to_string(), [None, None]);
    name(py, &raised, misuse);
    raised
}

/// An argument that is not allowed.
pub(crate) fn bad_argument(py: Python<'_>, text: String) -> PyErr {
    let raised = exception(py, "UsageError", text, [None, None]);
    name(py, &raised, Misuse::Argument(""));
    raised
}

/// Adds the kind of a misuse to its exception. Without it the exception still has its text.
fn name(py: Python<'_>, raised: &PyErr, misuse: Misuse) {
    let _ = raised.value(py).setattr("misuse", misuse.name());
}
