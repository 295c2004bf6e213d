//! The rights of this process.

/// Whether this process has more rights than the user who started it: it is a setuid or setgid program, or its file has
/// capabilities (`AT_SECURE`, see getauxval(3)).
#[must_use]
pub fn are_raised() -> bool {
    // SAFETY: it reads a value that the kernel gave this process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
