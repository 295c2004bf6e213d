//! Errors of libibverbs.
#![forbid(unsafe_code)]

use std::fmt;
use std::io;

use super::super::locked_memory::LockedMemory;
use crate::units::Bytes;

/// An error of libibverbs, or of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::internals::fabric) enum Code {
    /// The system's error number.
    System(i32),
    /// An earlier operation to the peer has failed, and with it the connection.
    ConnectionFailed,
}

impl Code {
    pub(super) fn of(cause: &io::Error) -> Self {
        Code::System(cause.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::System(number) => {
                write!(f, "{}", io::Error::from_raw_os_error(*number))?;
                match rustix::io::Errno::from_raw_os_error(*number) {
                    // Queues are locked memory, too.
                    rustix::io::Errno::NOMEM => write_limit(f, &LockedMemory::now()),
                    _ => Ok(()),
                }
            }
            Code::ConnectionFailed => write!(f, "an earlier operation to it failed"),
        }
    }
}

fn write_limit(f: &mut fmt::Formatter<'_>, memory: &LockedMemory) -> fmt::Result {
    let Some(limit) = memory.limit else { return Ok(()) };
    let (locked, limit) = (Bytes(memory.locked), Bytes(limit));
    write!(f, "; is the limit of locked memory too low (ulimit -l: {limit}, {locked} in use)?")
}
