//! What the repository says: whether that is there which it names, and whether it says it in plain English.

use std::fs;
use std::path::{Path, PathBuf};

/// What a reader stumbles over. Say a name or a number, *result*, *takes part*, *any process that*, *no rank*.
const STUMBLING: [&str; 6] = ["so many", "comes of", "has a hand in", "whoever", "nobody", "somebody"];

/// Names of the library's central types. Each has one meaning.
const ONE_MEANING: [&str; 18] = [
    "Cut", "Driver", "Engine", "Entry", "Input", "Interest", "Machine", "Op", "Part", "Place", "Plan", "Row", "Seat",
    "Shared", "Slot", "Stage", "Window", "Work",
];

/// Checks that each file exists that `docs/testing.md` names, and that no source and no page of the book has a word that
/// readers stumble over, and that no two types have one of the names that have one meaning.
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
    let mut types = Vec::new();
    for page in &pages {
        let (name, text) = (page.strip_prefix(root).unwrap_or(page).display().to_string(), read(page)?);
        wrong.extend(stumbling(&text).into_iter().map(|(number, words)| format!("{name}:{number}: {words}")));
        types.extend(declared(&text).map(|declared| (declared.to_owned(), name.clone())));
    }
    wrong.extend(declared_twice(&types));
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

/// The types that the modules of a source declare.
fn declared(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let shown = line.strip_prefix("pub").map_or(line, |rest| rest.trim_start_matches(|c| c != ' ').trim_start());
        // Without its path: pub(in crate::a).
        let item =
            shown.split_once(") ").map_or(shown, |(path, item)| if path.starts_with("crate") { item } else { shown });
        let (kind, rest) = item.split_once(' ')?;
        let name = rest.split(|c: char| !c.is_alphanumeric()).next();
        name.filter(|_| ["struct", "enum", "trait", "type"].contains(&kind))
    })
}

/// Types with one name of [`ONE_MEANING`], each with its file.
fn declared_twice(types: &[(String, String)]) -> Vec<String> {
    let files =
        |name: &str| types.iter().filter(|(its, _)| its == name).map(|(_, file)| file.as_str()).collect::<Vec<_>>();
    let several = ONE_MEANING.into_iter().map(|name| (name, files(name))).filter(|(_, files)| files.len() > 1);
    several.map(|(name, files)| format!("{name} has several meanings: {}", files.join(", "))).collect()
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
    fn a_type_that_is_declared_twice_is_found() {
        let source =
            "pub(in crate::a) struct Op;\n    enum Plan {}\ntrait Work: Sized {}\n// type Cut\ntype Other = Op;";
        let names: Vec<&str> = declared(source).collect();
        assert_eq!(names, ["Op", "Work", "Other"]);
        let types = |files: [&str; 3]| files.map(|name| (name.to_owned(), "a file".to_owned()));
        assert_eq!(declared_twice(&types(["Op", "Other", "Other"])), [""; 0]);
        assert_eq!(declared_twice(&types(["Op", "Work", "Op"])), ["Op has several meanings: a file, a file"]);
    }

    #[test]
    fn the_repository_says_what_there_is() {
        run(&crate::root()).unwrap();
    }
}
