//! Layers point down: what the library imports is in the table of `docs/how-a-round-runs.md`, and that table has no
//! circle. Inside the layers, too, imports go in one direction.
//!
//! A layer is a folder or a file right below `src`. An import is a path that begins at the crate's root: with `crate`,
//! or with as many `super` as it takes. Imports of tests do not count: items and
//! modules under `cfg(test)`, and files named `*_tests.rs`.
//!
//! Modules in one folder are siblings, and what is in the folder of a module belongs to that module. An import counts
//! between the siblings that it leads from and to. A parent names its modules and these name it, so neither direction
//! counts; a name that the parent has taken from a sibling counts as that sibling's. There must be no circle among
//! siblings in the core and below it, and anywhere else none with two siblings that have folders.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

#[path = "layers/reader.rs"]
mod reader;

use reader::{Import, Source, Sources};

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

/// The circles of a graph: nodes that reach each other.
fn circles<'a>(edges: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeSet<BTreeSet<&'a str>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges {
        reached.entry(from).or_default().insert(to);
    }
    loop {
        let beyond = |tos: &BTreeSet<&'a str>| tos.iter().filter_map(|to| reached.get(to)).flatten().copied().collect();
        let further: BTreeMap<&str, BTreeSet<&str>> =
            reached.iter().map(|(from, tos)| (*from, tos | &beyond(tos))).collect();
        if further == reached {
            break;
        }
        reached = further;
    }
    let circle = |node: &'a str| {
        let there = reached[node].iter().copied();
        there.filter(|other| reached.get(other).is_some_and(|back| back.contains(node))).collect::<BTreeSet<_>>()
    };
    reached.keys().map(|node| circle(node)).filter(|circle| !circle.is_empty()).collect()
}

/// Where no siblings may form a circle, with folders or without.
const CORE: &str = "collective/core";

/// The circles among siblings that must not be.
fn circles_of_siblings(sources: &Sources) -> Vec<String> {
    let mut complaints = Vec::new();
    for (folder, imports) in sources.between_siblings() {
        let folders = sources.folders(&folder);
        for circle in circles(imports.iter().map(|import| (import.from.as_str(), import.to.as_str()))) {
            let is_in_the_core = folder == CORE || folder.starts_with(&format!("{CORE}/"));
            if !is_in_the_core && circle.iter().filter(|name| folders.contains(**name)).count() < 2 {
                continue;
            }
            let names: Vec<&str> = circle.iter().copied().collect();
            complaints.push(format!("there is a circle in src/{folder}, among {}", names.join(", ")));
            let part = |name: &str| circle.contains(name);
            for Import { from, to, place } in imports.iter().filter(|import| part(&import.from) && part(&import.to)) {
                complaints.push(format!("{place}: {from} imports {to}"));
            }
        }
    }
    complaints
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
    let edges = table.iter().flat_map(|(layer, lower)| lower.iter().map(|lower| (layer.as_str(), lower.as_str())));
    for circle in circles(edges) {
        let names: Vec<&str> = circle.into_iter().collect();
        complaints.push(format!("there is a circle in the table, among {}", names.join(", ")));
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
    let sources = Sources::read(&sources(&root.join("src"), ""));
    let imports = sources.imports();
    let book = fs::read_to_string(root.join("docs/how-a-round-runs.md")).unwrap();
    let complaints = complaints(&sources.layers(), &imports, &table(&book));
    assert!(complaints.is_empty(), "see docs/how-a-round-runs.md, Layers:\n{}", complaints.join("\n"));
    // An empty list of imports would have no complaints.
    let reads = |from: &str, to: &str| imports.iter().any(|import| import.from == from && import.to == to);
    assert!(reads("collective", "fabric") && reads("world", "bootstrap") && reads("cli", "simulation"));
}

#[test]
fn siblings_form_no_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = Sources::read(&sources(&root.join("src"), ""));
    let complaints = circles_of_siblings(&sources);
    assert!(complaints.is_empty(), "see docs/how-a-round-runs.md, Layers:\n{}", complaints.join("\n"));
    let between = sources.between_siblings();
    let reads = |folder: &str, from: &str, to: &str| {
        between.get(folder).is_some_and(|imports| imports.iter().any(|import| import.from == from && import.to == to))
    };
    assert!(reads(CORE, "agreement", "movement") && reads(&format!("{CORE}/agreement"), "tags", "arrival"));
    assert!(reads("fabric", "shm", "window"), "a name that the parent has taken");
}

/// What networks share is apart from each provider.
#[test]
fn the_shared_part_of_network_fabrics_names_no_provider() {
    let shared = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fabric/net"), "");
    assert!(!shared.is_empty());
    for Source { path, text } in shared {
        for provider in ["earlybird_ffi", "fabric::ofi", "ofi::", "fabric::verbs", "verbs::"] {
            assert!(!text.contains(provider), "fabric/net/{path} names {provider}");
        }
    }
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
    let sources = Sources::read(sources);
    complaints(&sources.layers(), &sources.imports(), &table(book))
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

/// What is found in the core and a layer with two folders and a file, with these texts more.
fn with_siblings(more: &[(&str, &str)]) -> Vec<String> {
    let mut sources = vec![
        source("lib.rs", "mod collective;\nmod wide;"),
        source("collective/core/mod.rs", "mod op;\nmod plan;\npub(crate) use op::{self, Op};\npub struct Own;"),
        source("collective/core/op.rs", "use super::{Own, plan::Plan};"),
        source("collective/core/plan/mod.rs", "mod layout;\nmod spans;\nuse layout::Line;\npub struct Plan;"),
        source("collective/core/plan/layout.rs", "use super::{super::Own, Plan};"),
        source("collective/core/plan/spans.rs", "use super::{Plan, Line};"),
        source("wide/mod.rs", "mod file;\nmod left;\nmod right;\npub use left::Left;\npub use right::deep::Deep;"),
        source("wide/file.rs", ""),
        source("wide/left/mod.rs", "use super::right::Right;"),
        source("wide/left/deep.rs", "use super::Left;"),
        source("wide/right/mod.rs", ""),
        source("wide/right/deep.rs", "use crate::wide::Deep;"),
    ];
    for &(path, text) in more {
        match sources.iter_mut().find(|source| source.path == path) {
            Some(source) => source.text.push_str(text),
            None => sources.push(source(path, text)),
        }
    }
    circles_of_siblings(&Sources::read(&sources))
}

#[test]
fn siblings_may_import_each_other_in_one_direction() {
    let layout = "collective/core/plan/layout.rs";
    for more in [
        &[("collective/core/op.rs", "use crate::collective::core::plan::layout::Line;")][..],
        &[(layout, "#[cfg(test)]\nuse super::spans::Span;")],
        &[("collective/core/plan/layout_tests.rs", "use super::spans::Span;")],
        &[("collective/core/plan/mod.rs", "#[cfg(test)]\nmod tests { use super::super::op::Op; }")],
        &[("wide/right/deep.rs", "use crate::collective::core::Op;")],
        // A circle of a folder and a file, which only the core must not have.
        &[("wide/file.rs", "use super::left::Left;"), ("wide/left/deep.rs", "use super::super::file::X;")],
    ] {
        assert_eq!(with_siblings(more), [""; 0], "{more:?}");
    }
}

#[test]
fn a_circle_among_siblings_is_found() {
    let of_the_core = [
        "use super::super::op::Op;",
        "use crate::collective::core::op::Op;",
        "use crate::{collective::core::{Own, op::{self, Op}}, wide};",
        "fn run(op: &super::super::op::Op) {}",
        // By names that their parent has taken.
        "use super::super::{Op, Own};",
        "use super::super::op;",
    ];
    for text in of_the_core {
        let found = with_siblings(&[("collective/core/plan/layout.rs", text)]);
        assert_eq!(found[0], "there is a circle in src/collective/core, among op, plan", "{text}");
        assert!(found.contains(&"collective/core/op.rs:1: op imports plan".to_owned()), "{text}: {found:?}");
    }
    let found = with_siblings(&[("collective/core/plan/layout.rs", "\nuse super::spans::Span;")]);
    let circle = "there is a circle in src/collective/core/plan, among layout, spans";
    let (there, back) = (
        "collective/core/plan/layout.rs:2: layout imports spans",
        "collective/core/plan/spans.rs:1: spans imports layout",
    );
    assert_eq!(found, [circle, there, back]);

    let found = with_siblings(&[("wide/right/deep.rs", "use super::super::Left;")]);
    let circle = "there is a circle in src/wide, among left, right";
    let (there, back) = ("wide/left/mod.rs:1: left imports right", "wide/right/deep.rs:1: right imports left");
    assert_eq!(found, [circle, there, back]);
    // By way of a file.
    let found =
        with_siblings(&[("wide/right/deep.rs", "use super::super::file::X;"), ("wide/file.rs", "use super::Left;")]);
    assert_eq!(found[0], "there is a circle in src/wide, among file, left, right");
}

#[test]
fn each_circle_is_found_once() {
    let edges = [("left", "right"), ("right", "file"), ("file", "left"), ("file", "leaf"), ("top", "left")];
    assert_eq!(circles(edges), BTreeSet::from([BTreeSet::from(["file", "left", "right"])]));
    assert_eq!(circles([("b", "a"), ("c", "b"), ("c", "a")]), BTreeSet::new());
    let two = [BTreeSet::from(["a", "b"]), BTreeSet::from(["c", "d"])];
    assert_eq!(circles([("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")]), BTreeSet::from(two));
}
