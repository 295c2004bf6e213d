//! Ends waits when the program has something else to do: a signal came, for which its language has a handler.
#![forbid(unsafe_code)]

use std::sync::OnceLock;

use crate::error::{Error, Result};

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
