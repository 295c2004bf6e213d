//! What a test says that cannot run here.

use std::fmt::Display;
use std::io::Write;

/// Says why a test does nothing: by the process's own stderr, because what a test that passes prints is not shown.
#[allow(unreachable_pub, reason = "a test has it as a module, others as a part of one")]
pub fn skipped(why: impl Display) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
