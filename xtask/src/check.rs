//! What the repository says of itself, held against what there is.

use std::fs;
use std::path::Path;

/// Checks that each file exists that `docs/testing.md` names.
///
/// # Errors
/// The names of those that are missing, each with its line.
pub fn run(root: &Path) -> Result<(), String> {
    let book = root.join("docs/testing.md");
    let text = fs::read_to_string(&book).map_err(|error| format!("{}: {error}", book.display()))?;
    let exists = |path: &str| root.join(path).exists() || root.join("src").join(path).exists();
    let missing: Vec<String> = missing(&text, exists);
    if missing.is_empty() { Ok(()) } else { Err(format!("docs/testing.md names what is missing: {}", missing.join(", "))) }
}

/// The paths in a text that do not exist.
fn missing(text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut missing = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        // Every second part is between backticks.
        for quoted in line.split('`').skip(1).step_by(2) {
            let path = quoted.split(' ').next().unwrap_or_default().trim_end_matches('/');
            let is_source = ["tests/", "ffi/", ".ci/", "bench/"].iter().any(|folder| path.starts_with(folder));
            if (is_source || path.ends_with(".rs")) && !exists(path) {
                missing.push(format!("{path} (line {number})"));
            }
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_between_backticks_must_exist() {
        let text = "| a promise | `tests/one.rs`, `world/two.rs` |\nRun `tests/three/run --short`, with `NAME=1`; `cards/`.";
        assert_eq!(missing(text, |_| true), Vec::<String>::new());
        assert_eq!(
            missing(text, |path| path == "tests/one.rs"),
            ["world/two.rs (line 1)", "tests/three/run (line 2)"]
        );
    }

    #[test]
    fn the_book_names_what_there_is() {
        run(&crate::root()).unwrap();
    }
}
