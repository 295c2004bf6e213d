//! Counts the lines of production code: no tests, no blank lines, no comments.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, ItemMod, LitStr, Meta};

/// Prints the lines of each folder below `src`, and of files that are beside folders, two levels deep.
///
/// # Errors
/// A source cannot be read or parsed, or a module has no file.
pub fn run(root: &Path) -> Result<(), String> {
    let folder = root.join("src");
    let mut tree = Tree::default();
    for crate_root in ["lib.rs", "main.rs"] {
        tree.file(&folder.join(crate_root), &folder)?;
    }
    let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
    for (file, lines) in &tree.lines {
        *rooms.entry(room_of(file.strip_prefix(&folder).unwrap_or(file))).or_default() += lines;
    }
    let widest = rooms.keys().map(String::len).max().unwrap_or(0);
    for (room, lines) in &rooms {
        println!("{room:widest$} {lines:>7}");
    }
    println!("{:widest$} {:>7}", "all", rooms.values().sum::<usize>());
    Ok(())
}

/// The first two parts of a path; a module is one room with its folder.
fn room_of(file: &Path) -> String {
    let stem = file.with_extension("");
    let parts: Vec<_> = stem.iter().filter(|&part| part != "mod").map(|part| part.to_string_lossy()).take(2).collect();
    parts.join("/")
}

/// The files of the crate, by its `mod` items.
#[derive(Default)]
struct Tree {
    lines: BTreeMap<PathBuf, usize>,
}

impl Tree {
    /// Counts a file whose modules lie in `folder`.
    fn file(&mut self, path: &Path, folder: &Path) -> Result<(), String> {
        if self.lines.contains_key(path) {
            return Ok(());
        }
        let failed = |problem: String| format!("{}: {problem}", path.display());
        let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let file = syn::parse_file(&text).map_err(|error| failed(error.to_string()))?;
        let mut lines = BTreeSet::new();
        self.lines.insert(path.to_owned(), 0);
        self.items(&file.items, folder, &mut lines)?;
        self.lines.insert(path.to_owned(), lines.len());
        Ok(())
    }

    fn items(&mut self, items: &[Item], folder: &Path, lines: &mut BTreeSet<usize>) -> Result<(), String> {
        for item in items {
            match item {
                Item::Mod(module) if is_test(&module.attrs) => {}
                Item::Mod(module) => self.module(module, folder, lines)?,
                other if attributes(other).is_some_and(is_test) => {}
                other => add_lines(other.to_token_stream(), lines),
            }
        }
        Ok(())
    }

    fn module(&mut self, module: &ItemMod, folder: &Path, lines: &mut BTreeSet<usize>) -> Result<(), String> {
        let name = module.ident.to_string();
        if let Some((_, items)) = &module.content {
            lines.insert(module.ident.span().start().line);
            let below = path_of(&module.attrs).unwrap_or(name);
            return self.items(items, &folder.join(below), lines);
        }
        add_lines(module.to_token_stream(), lines);
        if let Some(path) = path_of(&module.attrs) {
            return self.file(&folder.join(path), folder);
        }
        let (file, below) = (folder.join(format!("{name}.rs")), folder.join(&name));
        if file.exists() { self.file(&file, &below) } else { self.file(&below.join("mod.rs"), &below) }
    }
}

/// Whether what has these attributes is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    let names_test = |tokens: TokenStream| {
        let mut words = tokens.into_iter().flat_map(|token| match token {
            TokenTree::Group(group) => group.stream().into_iter().collect::<Vec<_>>(),
            other => vec![other],
        });
        words.any(|token| matches!(&token, TokenTree::Ident(word) if word == "test" || word == "loom"))
    };
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            // What is left out of tests is none of them.
            !list.tokens.to_string().starts_with("not") && names_test(list.tokens.clone())
        }
        _ => false,
    })
}

fn path_of(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => {
            syn::parse2::<LitStr>(pair.value.to_token_stream()).ok().map(|text| text.value())
        }
        _ => None,
    })
}

fn attributes(item: &Item) -> Option<&[Attribute]> {
    Some(match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return None,
    })
}

/// The lines on which there are tokens. A comment of documentation is an attribute, and none of them.
fn add_lines(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if let (TokenTree::Punct(mark), Some(TokenTree::Group(group))) = (&token, tokens.peek()) {
            let is_doc = |first| matches!(first, Some(TokenTree::Ident(name)) if name == "doc");
            if mark.as_char() == '#' && is_doc(group.stream().into_iter().next()) {
                tokens.next();
                continue;
            }
        }
        match &token {
            TokenTree::Group(group) => {
                lines.extend([group.span_open().start().line, group.span_close().end().line]);
                add_lines(group.stream(), lines);
            }
            other => lines.extend(other.span().start().line..=other.span().end().line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        let mut lines = BTreeSet::new();
        Tree::default().items(&syn::parse_file(text).unwrap().items, Path::new(""), &mut lines).unwrap();
        lines.len()
    }

    #[test]
    fn tests_blank_lines_and_comments_do_not_count() {
        assert_eq!(count("/// What it does.\nfn one() {\n\n    // Why.\n    two();\n}\n"), 3);
        assert_eq!(count("fn one() -> &'static str {\n    \"a text\n     of two lines\"\n}"), 4);
        assert_eq!(
            count("#[cfg(test)]\nmod tests {\n    fn one() {}\n}\n#[cfg(all(test, not(loom)))]\nfn two() {}\n"),
            0
        );
        assert_eq!(count("#[cfg(feature = \"cli\")]\nmod inner {\n    fn one() {}\n}\n"), 2);
        assert_eq!(count("#[cfg(not(test))]\nfn one() {}\n"), 2);
    }

    #[test]
    fn a_module_is_one_room_with_its_folder() {
        let rooms = ["lib.rs", "world.rs", "world/split.rs", "collective/driver.rs", "collective/driver/cells.rs"];
        let rooms = rooms.map(|file| room_of(Path::new(file)));
        assert_eq!(rooms, ["lib", "world", "world/split", "collective/driver", "collective/driver"]);
        assert_eq!(room_of(Path::new("fabric/net/engine/mod.rs")), "fabric/net");
    }
}
