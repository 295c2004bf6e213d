//! The C header, by cbindgen.

use std::fs;
use std::path::Path;

const HEADER: &str = "ffi/c/include/earlybird.h";

/// Writes it, or with `check` compares it.
///
/// # Errors
/// What cannot be read or written; with `check`, that it differs.
pub fn run(root: &Path, check: bool) -> Result<(), String> {
    let folder = root.join("ffi/c");
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"))?;
    let made = cbindgen::Builder::new().with_crate(&folder).with_config(config).generate();
    let mut text = Vec::new();
    made.map_err(|problem| problem.to_string())?.write(&mut text);
    let file = root.join(HEADER);
    let there = fs::read(&file).unwrap_or_default();
    match there == text {
        true => Ok(()),
        false if check => Err(format!("{HEADER} is not what the sources say; run `cargo xtask header` and commit it")),
        false => fs::write(&file, text).map_err(|cause| format!("{HEADER}: {cause}")),
    }
}
