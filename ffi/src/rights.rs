//! The rights of this process.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// How variables begin that libfabric, libibverbs and what these load follow. Some name files to load or to write.
const FOLLOWED: [&str; 9] = ["FI_", "HFI_", "IBV_", "IPATH_", "MLX", "PSM", "RDMAV_", "UCX_", "VERBS_"];

/// A variable that those libraries would follow and that is set, if this process has more rights than the user who set it.
#[must_use]
pub fn followed_variable() -> Option<OsString> {
    let is_followed =
        |name: &OsString| FOLLOWED.iter().any(|beginning| name.as_bytes().starts_with(beginning.as_bytes()));
    std::env::vars_os().map(|(name, _)| name).find(is_followed).filter(|_| are_raised())
}

/// Whether this process has more rights than the user who started it: it is a setuid or setgid program, or its file has
/// capabilities (`AT_SECURE`, see getauxval(3)).
#[must_use]
pub fn are_raised() -> bool {
    // SAFETY: it reads a value that the kernel gave this process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
