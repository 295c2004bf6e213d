//! The details of a failure.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::input::{self, Structure};
use crate::status::{Failure, eb_status, eb_status::*};

/// The details of a failure.
#[derive(Debug)]
#[repr(C)]
pub struct eb_error {
    /// sizeof(eb_error), set by the caller.
    pub size: usize,
    /// What the call returned; EB_OK if no call of this thread has failed yet.
    pub status: eb_status,
    /// The rank that reports, or -1.
    pub rank: i32,
    /// The other rank that the failure concerns, or -1: the dead rank, the first missing rank, or the rank that
    /// aborted.
    pub peer: i32,
    /// One line: what failed, where, why, and what to do. Valid until the next call of this thread fails.
    pub message: *const c_char,
}

// SAFETY: `repr(C)`, the size first; the other fields are numbers, a status of which 0 is one, and a pointer.
unsafe impl Structure for eb_error {}

struct Last {
    status: eb_status,
    rank: i32,
    peer: i32,
    message: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { status: EB_OK, rank: -1, peer: -1, message: None }) };
}

/// Makes a call, and records its failure as the last error of this thread.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> eb_status {
    let ended = catch_unwind(AssertUnwindSafe(body));
    let failure = match ended {
        Ok(Ok(())) => return EB_OK,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(EB_INTERNAL, "a mistake of the library, described on standard error; please report it"),
    };
    let Failure { status, rank, peer, text } = failure;
    let number = |rank: Option<u32>| rank.map_or(-1, |rank| i32::try_from(rank).unwrap_or(-1));
    let message = CString::new(text.replace('\0', " ")).ok();
    LAST.with(|last| *last.borrow_mut() = Last { status, rank: number(rank), peer: number(peer), message });
    status
}

/// Fills `error` with the last failure of a call of this thread. Calls that succeed do not change it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eb_last_error(error: *mut eb_error) -> eb_status {
    // Does not use `call`, which would replace the error that is asked for.
    LAST.with(|last| {
        let last = last.borrow();
        let Last { status, rank, peer, ref message } = *last;
        let message = message.as_deref().unwrap_or_default().as_ptr();
        let filled = eb_error { size: 0, status, rank, peer, message };
        // SAFETY: the caller passes NULL or a structure of the size that it states.
        if unsafe { input::give_structure(error, filled, "error") }.is_err() { EB_ARGUMENT } else { EB_OK }
    })
}

/// Returns the version of the library, such as 0.1.0.
#[unsafe(no_mangle)]
pub extern "C" fn eb_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
