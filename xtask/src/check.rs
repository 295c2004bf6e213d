//! What the repository says: whether that is there which it names, and whether it says it in plain English.

use std::fs;
use std::path::{Path, PathBuf};

/// What a reader stumbles over. Say a name or a number, *result*, *takes part*, *any process that*, *no rank*.
const STUMBLING: [&str; 6] = ["so many", "comes of", "has a hand in", "whoever", "nobody", "somebody"];

/// Checks that each file exists that `docs/testing.md` names, and that no source and no page of the book has a word that
/// readers stumble over.
///
/// # Errors
/// What is wrong, a line each, with its place.
pub fn run(root: &Path) -> Result<(), String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let exists = |path: &str| root.join(path).exists() || root.join("src").join(path).exists();
    let mut wrong = missing(&read(&root.join("docs/testing.md"))?, exists);
    wrong.iter_mut().for_each(|name| *name = format!("docs/testing.md names what is missing: {name}"));
    let mut pages = vec![root.join("README.md")];
    for folder in ["src", "docs"] {
        add_texts(&root.join(folder), &mut pages)?;
    }
    for page in &pages {
        let name = page.strip_prefix(root).unwrap_or(page).display();
        wrong.extend(stumbling(&read(page)?).into_iter().map(|(number, words)| format!("{name}:{number}: {words}")));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Adds the sources and pages below a folder.
fn add_texts(folder: &Path, texts: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            add_texts(&path, texts)?;
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "md") {
            texts.push(path);
        }
    }
    Ok(())
}

/// The lines of a text that have such words.
fn stumbling(text: &str) -> Vec<(usize, &'static str)> {
    let words = |line: &str| {
        let line = format!(" {} ", line.to_lowercase().replace(|c: char| !c.is_alphanumeric(), " "));
        STUMBLING.into_iter().find(|words| line.contains(&format!(" {words} ")))
    };
    (1..).zip(text.lines()).filter_map(|(number, line)| Some((number, words(line)?))).collect()
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
        let text =
            "| a promise | `tests/one.rs`, `world/two.rs` |\nRun `tests/three/run --short`, with `NAME=1`; `cards/`.";
        assert_eq!(missing(text, |_| true), Vec::<String>::new());
        assert_eq!(missing(text, |path| path == "tests/one.rs"), ["world/two.rs (line 1)", "tests/three/run (line 2)"]);
    }

    #[test]
    fn words_that_readers_stumble_over_are_found() {
        let text = "Of So many, one.\nso manyfold\n// What comes of it.\nNobody's rank";
        assert_eq!(stumbling(text), [(1, "so many"), (3, "comes of"), (4, "nobody")]);
    }

    #[test]
    fn the_repository_says_what_there_is() {
        run(&crate::root()).unwrap();
    }
}
