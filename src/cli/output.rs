//! What the command prints: lines of its standard output and its errors.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::sync::OnceLock;

/// Why a line could not be written.
static FAILED: OnceLock<String> = OnceLock::new();

/// Prints a line. A closed reader (`| head`) is not a failure, because other ranks wait.
pub(super) fn line(line: Arguments<'_>) {
    match writeln!(stdout(), "{line}") {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => _ = FAILED.get_or_init(|| cause.to_string()),
        _ => {}
    }
}

/// Returns why a line could not be written; `None` if all were.
pub(super) fn failure() -> Option<&'static str> {
    FAILED.get().map(String::as_str)
}

/// Prints a line of the command's own about a failure, in one piece, so that lines of several ranks do not mix.
pub(super) fn complain(what: Arguments<'_>) {
    // There is no other place to report it.
    let _ = stderr().write_all(format!("earlybird: {what}\n").as_bytes());
}
