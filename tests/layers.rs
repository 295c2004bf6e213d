//! Layers point down: the library's imports are in the table of `docs/how-a-round-runs.md`, and
//! that table has no circle.
//!
//! A layer is a folder or a file right below `src`. An import is a path that begins at the crate's root: with `crate`,
//! with as many `super` as it takes, or in the command with `earlybird`. Imports of tests do not count: items and
//! modules under `cfg(test)`, and files named `*_tests.rs`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[path = "layers/reader.rs"]
mod reader;

use reader::{Import, Source, imports};

/// Layers that each layer may import.
type Table = BTreeMap<String, BTreeSet<String>>;

/// The table after its heading in a text. Names are in backticks: in the first cell of a row its
/// layer, in the second one the imports.
fn table(text: &str) -> Table {
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = text.lines().skip_while(|line| !line.starts_with("| layer | may import |")).skip(2);
    let mut table = Table::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let mut cells = row.trim_matches('|').split('|');
        let (layers, may_import) = (names(cells.next().unwrap_or_default()), names(cells.next().unwrap_or_default()));
        assert_eq!(layers.len(), 1, "a row is about one layer: {row}");
        for layer in layers {
            let known = table.insert(layer, may_import.iter().cloned().collect());
            assert_eq!(known, None, "a second row about the same layer: {row}");
        }
    }
    table
}

/// Layers of a table that import each other, directly or not, and layers that import these.
fn circle(table: &Table) -> Vec<&str> {
    let mut left: Vec<&str> = table.keys().map(String::as_str).collect();
    loop {
        let before = left.clone();
        left.retain(|layer| table[*layer].iter().any(|lower| before.contains(&lower.as_str())));
        if left.len() == before.len() {
            return left;
        }
    }
}

/// What is wrong with the imports of these layers, and with the table.
fn complaints(layers: &BTreeSet<String>, imports: &[Import], table: &Table) -> Vec<String> {
    let mut complaints = Vec::new();
    for layer in layers.iter().filter(|layer| !table.contains_key(*layer)) {
        complaints.push(format!("{layer} is not in the table"));
    }
    let listed: BTreeSet<&String> = table.iter().flat_map(|(layer, lower)| lower.iter().chain([layer])).collect();
    for name in listed.into_iter().filter(|name| !layers.contains(*name)) {
        complaints.push(format!("{name} is in the table and not below src"));
    }
    for Import { from, to, place } in imports {
        if !table.get(from).is_some_and(|lower| lower.contains(to)) {
            complaints.push(format!("{place}: {from} may not import {to}"));
        }
    }
    let circle = circle(table);
    if !circle.is_empty() {
        complaints.push(format!("there is a circle in the table, among {}", circle.join(", ")));
    }
    complaints
}

/// The sources below a folder, each with its path from there.
fn sources(folder: &Path, below: &str) -> Vec<Source> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder.join(below)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if entry.file_type().unwrap().is_dir() {
            found.extend(sources(folder, &path));
        } else if path.ends_with(".rs") {
            found.push(Source { text: fs::read_to_string(entry.path()).unwrap(), path });
        }
    }
    found
}

#[test]
fn layers_point_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (layers, imports) = imports(&sources(&root.join("src"), ""));
    let book = fs::read_to_string(root.join("docs/how-a-round-runs.md")).unwrap();
    let complaints = complaints(&layers, &imports, &table(&book));
    assert!(complaints.is_empty(), "see docs/how-a-round-runs.md, Layers:\n{}", complaints.join("\n"));
    // An empty list of imports would have no complaints.
    let reads = |from: &str, to: &str| imports.iter().any(|import| import.from == from && import.to == to);
    assert!(reads("collective", "fabric") && reads("world", "bootstrap") && reads("cli", "simulation"));
}

const BOOK: &str = "
| layer | may import | what it is |
|---|---|---|
| `leaf` | nothing | values |
| `low` | `leaf` | |
| `high` | `leaf`, `low` | |
";

fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}

/// Three layers, with one more file.
fn small(path: &str, text: &str) -> Vec<Source> {
    vec![
        source("lib.rs", "mod high;\nmod leaf;\nmod low;\npub use leaf::{Leaf, deeper::Pebble};\n"),
        source("leaf.rs", "pub struct Leaf;"),
        source("low/mod.rs", "mod inner;\nuse crate::leaf::Leaf;"),
        source("low/inner.rs", "use super::Leaf;\nuse crate::leaf::Leaf as Other;"),
        source("high/mod.rs", "use crate::{leaf::{self, Leaf}, low};\nuse crate::Pebble;"),
        source(path, text),
    ]
}

fn complaints_about(sources: &[Source], book: &str) -> Vec<String> {
    let (layers, imports) = imports(sources);
    complaints(&layers, &imports, &table(book))
}

#[test]
fn imports_in_the_table_are_allowed() {
    assert_eq!(complaints_about(&small("low/more.rs", ""), BOOK), [""; 0]);
    // No imports: comments, strings, items for tests, and paths within a layer.
    let harmless = r##"
        //! See crate::high.
        /* crate::high /* and */ crate::high */
        const TEXT: &str = "crate::high \" crate::high";
        const RAW: &str = r#"crate::high " crate::high"#;
        const LETTERS: [char; 3] = ['"', '\'', 'µ'];
        fn lived<'a>(text: &'a str) -> &'a str { text }
        mod nested { use super::super::inner; }
        struct Fields { #[cfg(test)] watched: crate::high::Watched, own: crate::leaf::Leaf }
        #[cfg(all(test, not(loom)))]
        use crate::{high::X, high::Y};
        #[cfg(test)]
        #[derive(Debug)]
        pub(crate) struct Fake(crate::high::X);
        #[cfg(test)]
        mod tests { use crate::high::X; fn test() { let braces = ["{", "}"]; crate::high::run(); } }
        fn after() { #[cfg(test)] crate::high::run(&[1, 2], |x| { x }); crate::leaf::run() }
    "##;
    assert_eq!(complaints_about(&small("low/more.rs", harmless), BOOK), [""; 0]);
    assert_eq!(complaints_about(&small("low/more_tests.rs", "use crate::high::X;"), BOOK), [""; 0]);
    let mut declared = small("low/more.rs", "#[cfg(test)]\nmod checks;");
    declared.push(source("low/more/checks.rs", "use crate::high::X;"));
    assert_eq!(complaints_about(&declared, BOOK), [""; 0]);
}

#[test]
fn a_forbidden_import_is_found() {
    let forbidden = [
        "use crate::high::X;",
        "pub(crate) use crate::high;",
        "use crate::{leaf::Leaf, high::{X, y::Z}};",
        "use {crate::leaf::Leaf, crate::high::X};",
        "fn run() { crate::high::run::<crate::leaf::Leaf>() }",
        "fn run(at: &crate::high::X) {}",
        "use super::super::high::X;",
        "mod nested { use super::super::super::high::X; }",
        "macro_rules! run { () => { $crate::high::run() } }",
        "#[cfg(not(test))] use crate::high::X;",
        "#[cfg(any(test, feature = \"faults\"))] use crate::high::X;",
        "#[cfg(test)] mod tests { fn test() {} }\nuse crate::high::X;",
        "#[cfg(test)] fn test() -> [u8; 2] { [b'{', b'\\''] } use crate::high::X;",
        "struct Fields { #[cfg(test)] watched: u8, own: crate::high::X }",
        "const BRACE: char = '{'; const TEXT: &str = r\"\\\"; use crate::high::X;",
    ];
    for text in forbidden {
        let found = complaints_about(&small("low/more.rs", text), BOOK);
        assert!(!found.is_empty(), "not found: {text}");
        assert!(found.iter().all(|found| found.contains("low may not import high")), "{text}: {found:?}");
    }
    let found = complaints_about(&small("low/more.rs", "\n\nuse crate::high::X;"), BOOK);
    assert_eq!(found, ["low/more.rs:3: low may not import high"]);
    // By a name that the root re-exports.
    let found = complaints_about(&small("leaf/more.rs", "use crate::Pebble;"), BOOK);
    assert_eq!(found, [""; 0], "it is leaf's own");
    let mut upward = small("high/more.rs", "pub struct Peak;");
    upward[0].text.push_str("pub use high::more::Peak;");
    upward.push(source("low/more.rs", "use crate::Peak;"));
    assert_eq!(complaints_about(&upward, BOOK), ["low/more.rs:1: low may not import high"]);
}

#[test]
fn a_path_to_no_layer_is_found() {
    for text in ["use crate::nowhere::X;", "use crate::*;", "use super::super::X;"] {
        let found = complaints_about(&small("low/more.rs", text), BOOK);
        assert!(found.len() == 1 && found[0].contains("low may not import"), "{text}: {found:?}");
    }
}

#[test]
fn the_table_has_every_layer_and_no_other() {
    let found = complaints_about(&small("new.rs", "use crate::leaf::Leaf;"), BOOK);
    assert_eq!(found, ["new is not in the table", "new.rs:1: new may not import leaf"]);
    let more = format!("{BOOK}| `old` | `leaf` | |\n");
    assert_eq!(complaints_about(&small("low/more.rs", ""), &more), ["old is in the table and not below src"]);
}

#[test]
fn a_circle_in_the_table_is_found() {
    let circular = BOOK.replace("| `leaf` | nothing |", "| `leaf` | `high` |");
    let found = complaints_about(&small("low/more.rs", ""), &circular);
    assert_eq!(found, ["there is a circle in the table, among high, leaf, low"]);
}
