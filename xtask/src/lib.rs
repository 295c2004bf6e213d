//! Tasks of this repository that Cargo has no command for: what `cargo xtask` calls, and tests of what it makes.
#![forbid(unsafe_code)]

pub mod check;
pub mod header;
pub mod install;
pub mod lines;

use std::path::{Path, PathBuf};

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}
