//! What calls return.

use std::ffi::{CStr, c_char};

use earlybird::{Error, ErrorKind};

/// What a call returns. The numbers never change; new ones may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum eb_status {
    /// The call succeeded.
    EB_OK = 0,
    /// The deadline passed. After eb_allreduce_wait and eb_allreduce_finish nothing is lost: call again to continue
    /// waiting.
    EB_TIMEOUT = 1,
    /// A process ended without leaving its collectives. Every later call fails the same way.
    EB_PEER_DIED = 2,
    /// A rank that had left in good order was still needed.
    EB_PEER_LEFT = 3,
    /// A rank called eb_world_abort. Every later call fails the same way.
    EB_ABORTED = 4,
    /// Ranks disagree on something that must be the same everywhere.
    EB_MISMATCH = 5,
    /// The world could not be set up.
    EB_JOIN = 6,
    /// A transport failed after the world had been joined.
    EB_TRANSPORT = 7,
    /// The call needs more memory than is available.
    EB_MEMORY = 8,
    /// The kernel lets this process lock less memory than a device needs.
    EB_LOCKED_MEMORY = 9,
    /// An invalid choice, variable or file.
    EB_CONFIG = 10,
    /// A call that is not allowed now.
    EB_USAGE = 11,
    /// The operating system returned an error.
    EB_OS = 12,
    /// The wait was interrupted. Only a binding of another language in the same process does that.
    EB_INTERRUPTED = 13,
    /// The handle was closed, or was never a handle.
    EB_HANDLE = 100,
    /// A null pointer, or an impossible size or text.
    EB_ARGUMENT = 101,
    /// Another thread is in a call with the same handle.
    EB_BUSY = 102,
    /// This process was forked from the one that made the handle.
    EB_FORKED = 103,
    /// An error of the library. Please report it.
    EB_INTERNAL = 104,
}

use eb_status::*;

const ALL: [eb_status; 19] = [
    EB_OK,
    EB_TIMEOUT,
    EB_PEER_DIED,
    EB_PEER_LEFT,
    EB_ABORTED,
    EB_MISMATCH,
    EB_JOIN,
    EB_TRANSPORT,
    EB_MEMORY,
    EB_LOCKED_MEMORY,
    EB_CONFIG,
    EB_USAGE,
    EB_OS,
    EB_INTERRUPTED,
    EB_HANDLE,
    EB_ARGUMENT,
    EB_BUSY,
    EB_FORKED,
    EB_INTERNAL,
];

impl eb_status {
    fn text(self) -> &'static CStr {
        match self {
            EB_OK => c"done",
            EB_TIMEOUT => c"the deadline passed",
            EB_PEER_DIED => c"a rank died",
            EB_PEER_LEFT => c"a rank that is needed has left",
            EB_ABORTED => c"a rank aborted the job",
            EB_MISMATCH => c"ranks disagree",
            EB_JOIN => c"the world could not be set up",
            EB_TRANSPORT => c"the transport failed",
            EB_MEMORY => c"too little memory",
            EB_LOCKED_MEMORY => c"too little memory may be locked",
            EB_CONFIG => c"an invalid choice, variable or file",
            EB_USAGE => c"the call is not allowed, or not now",
            EB_OS => c"the operating system refused",
            EB_INTERRUPTED => c"the wait was interrupted",
            EB_HANDLE => c"the handle is closed, or is none",
            EB_ARGUMENT => c"an invalid argument",
            EB_BUSY => c"another thread is in a call with this handle",
            EB_FORKED => c"the handle is that of a parent process",
            EB_INTERNAL => c"a mistake of the library",
        }
    }

    fn of(kind: ErrorKind) -> Self {
        // The numbers of kinds are those of statuses; a kind of a later version has no status here.
        ALL.into_iter().find(|&status| status as i32 == kind as i32).unwrap_or(EB_INTERNAL)
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: eb_status,
    pub(crate) rank: Option<u32>,
    pub(crate) peer: Option<u32>,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: eb_status, text: impl Into<String>) -> Self {
        Failure { status, rank: None, peer: None, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(EB_ARGUMENT, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (status, rank, peer) = (eb_status::of(error.kind()), error.rank(), error.peer());
        Failure { status, rank, peer, text: error.to_string() }
    }
}

/// Returns a short description of a status; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn eb_strerror(status: i32) -> *const c_char {
    let known = ALL.into_iter().find(|&known| known as i32 == status);
    known.map_or(c"an unknown status", eb_status::text).as_ptr()
}
