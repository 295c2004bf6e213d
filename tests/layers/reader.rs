//! Reads imports from sources: not a parser of Rust, but of its words, brackets and paths.

use std::collections::{BTreeMap, BTreeSet};

/// A file below `src`.
pub(crate) struct Source {
    /// Its path from there.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A layer names something of a layer, or a module something of a sibling: of a module in the same folder.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    pub(crate) from: String,
    /// The layer, where there is none of that name, the path as it is written; or the sibling.
    pub(crate) to: String,
    /// File and line.
    pub(crate) place: String,
}

/// A module from the crate's root on.
type Module = Vec<String>;

/// A word, `::`, or any other character, and its line. Comments and texts are none.
type Token = (String, usize);

/// The findings in a file.
#[derive(Default)]
struct Found {
    /// Paths from the crate's root on, with their lines.
    paths: Vec<(Vec<String>, usize)>,
    /// Names that a `use` gives to a path, each behind its module.
    names: Vec<(Vec<String>, Vec<String>)>,
    /// Modules in files of their own that are for tests.
    tests: Vec<Module>,
}

/// A source that has been read.
struct File {
    path: String,
    /// The module that it holds; nothing for the root of a crate.
    module: Module,
    found: Found,
}

/// The sources of a crate, without those for tests.
pub(crate) struct Sources {
    files: Vec<File>,
    /// Names that a module takes from elsewhere, each behind its module, and where from.
    names: BTreeMap<Vec<String>, Vec<String>>,
}

impl Sources {
    pub(crate) fn read(sources: &[Source]) -> Self {
        let sources = sources.iter().filter(|source| !source.path.ends_with("_tests.rs") && source.path != "main.rs");
        let file = |source: &Source| {
            let module = module_of(&source.path);
            File { path: source.path.clone(), found: read(&source.text, &module), module }
        };
        let mut files: Vec<File> = sources.map(file).collect();
        let tests: Vec<Module> = files.iter().flat_map(|file| file.found.tests.clone()).collect();
        files.retain(|file| !tests.iter().any(|test| file.module.starts_with(test)));
        let names =
            files.iter().flat_map(|file| file.found.names.clone()).filter(|(name, from)| name != from).collect();
        files.retain(|file| !file.module.is_empty());
        Sources { files, names }
    }

    /// The layers that there are.
    pub(crate) fn layers(&self) -> BTreeSet<String> {
        self.files.iter().map(|file| file.module[0].clone()).collect()
    }

    /// What the layers import.
    pub(crate) fn imports(&self) -> Vec<Import> {
        let layers = self.layers();
        let mut imports = Vec::new();
        for File { path: file, module, found } in &self.files {
            for (path, line) in &found.paths {
                let layer = path.first().filter(|first| layers.contains(*first)).or_else(|| {
                    let taken = self.names.get(path.get(..1)?)?;
                    taken.first().filter(|first| layers.contains(*first))
                });
                let to = layer.map_or_else(|| format!("crate::{}", path.join("::")), Clone::clone);
                if to != module[0] {
                    imports.push(Import { from: module[0].clone(), to, place: format!("{file}:{line}") });
                }
            }
        }
        imports
    }

    /// What siblings import of each other, by the folder that they are in. What is in the folder of a module belongs to
    /// that module. Their parent's own items are of none of them; a name that the parent has taken from one of them is
    /// that one's.
    pub(crate) fn between_siblings(&self) -> BTreeMap<String, BTreeSet<Import>> {
        let modules: BTreeSet<&[String]> = self.files.iter().map(|file| file.module.as_slice()).collect();
        let mut between: BTreeMap<String, BTreeSet<Import>> = BTreeMap::new();
        for File { path: file, module, found } in &self.files {
            for (path, line) in &found.paths {
                for path in self.meanings(path) {
                    let common = module.iter().zip(&path).take_while(|(from, to)| from == to).count();
                    let (Some(from), Some(to)) = (module.get(common), path.get(common)) else { continue };
                    if modules.contains(&path[..=common]) {
                        let import = Import { from: from.clone(), to: to.clone(), place: format!("{file}:{line}") };
                        between.entry(path[..common].join("/")).or_default().insert(import);
                    }
                }
            }
        }
        between
    }

    /// A path, and what it stands for where modules have taken its names from elsewhere.
    fn meanings(&self, path: &[String]) -> Vec<Vec<String>> {
        let mut meanings = vec![path.to_vec()];
        // A circle of names would have no end.
        while let (Some(path), ..8) = (meanings.last(), meanings.len()) {
            let taken = (1..=path.len()).find_map(|end| Some((end, self.names.get(&path[..end])?)));
            let Some((end, from)) = taken else { break };
            let meaning = from.iter().chain(&path[end..]).cloned().collect();
            meanings.push(meaning);
        }
        meanings
    }

    /// The modules of a folder that have a folder of their own.
    pub(crate) fn folders(&self, folder: &str) -> BTreeSet<String> {
        let folder: Module = folder.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let below = self.files.iter().filter_map(|file| file.module.strip_prefix(folder.as_slice()));
        below.filter(|module| module.len() > 1).map(|module| module[0].clone()).collect()
    }
}

/// The module that a file holds; nothing for the root of a crate.
fn module_of(path: &str) -> Module {
    let mut module: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|name| name == "mod") || path == "lib.rs" {
        module.pop();
    }
    module
}

fn read(text: &str, module: &[String]) -> Found {
    let tokens = tokens(text);
    let word = |index: usize| word(&tokens, index);
    let mut found = Found::default();
    // The module that each open brace begins, if any.
    let mut open: Vec<Option<String>> = Vec::new();
    let mut index = 0;
    while index < tokens.len() {
        let here = || module.iter().chain(open.iter().flatten()).cloned().collect::<Vec<_>>();
        match word(index) {
            "#" if word(index + 1) == "[" => {
                let end = closing(&tokens, index + 1);
                if is_for_tests(&tokens[index + 2..end]) {
                    let (item, after) = item(&tokens, end + 1);
                    if word(item) == "mod" && word(item + 2) == ";" {
                        let name = word(item + 1).to_owned();
                        found.tests.push(here().into_iter().chain([name]).collect());
                    }
                    index = after;
                    continue;
                }
            }
            "mod" if word(index + 2) == "{" => {
                open.push(Some(word(index + 1).to_owned()));
                index += 3;
                continue;
            }
            "{" => open.push(None),
            "}" => _ = open.pop(),
            "use" => {
                let (mut paths, here) = (Vec::new(), here());
                tree(&tokens, index + 1, &[], &mut paths);
                found.names.extend(paths.into_iter().map(|(mut path, _)| {
                    path.pop_if(|last| last == "self");
                    let name = here.iter().chain(path.last()).cloned().collect();
                    (name, from_the_root(&path, &here))
                }));
            }
            "crate" | "super" | "self" if word(index + 1) == "::" => {
                let (mut paths, here) = (Vec::new(), here());
                index = tree(&tokens, index, &[], &mut paths);
                found.paths.extend(paths.into_iter().map(|(path, line)| (from_the_root(&path, &here), line)));
                continue;
            }
            _ => {}
        }
        index += 1;
    }
    found
}

/// The path from the root of a path that is written in a module.
fn from_the_root(path: &[String], module: &[String]) -> Vec<String> {
    if path.first().is_some_and(|first| first == "crate") {
        // Modules that are public in this repository have a module of their own at the root.
        let names = if path.get(1).is_some_and(|name| name == "internals") { 2 } else { 1 };
        return path[names..].to_vec();
    }
    let relative = path.iter().take_while(|name| ["super", "self"].contains(&name.as_str())).count();
    let up = path[..relative].iter().filter(|name| *name == "super").count();
    let base = &module[..module.len().saturating_sub(up)];
    base.iter().chain(&path[relative..]).cloned().collect()
}

/// Finds the path, or all paths of a tree of imports, that begins at a token, after `before`; returns its end.
fn tree(tokens: &[Token], from: usize, before: &[String], found: &mut Vec<(Vec<String>, usize)>) -> usize {
    let (mut path, mut index) = (before.to_vec(), from);
    while let Some((text, _)) = tokens.get(index) {
        if text == "{" {
            index += 1;
            while index < tokens.len() && word(tokens, index) != "}" {
                index = tree(tokens, index, &path, found);
                // Another name may follow.
                while index < tokens.len() && ![",", "}"].contains(&word(tokens, index)) {
                    index += 1;
                }
                index += usize::from(word(tokens, index) == ",");
            }
            return index + 1;
        }
        path.push(text.clone());
        index += 1;
        let next = word(tokens, index + 1);
        let goes_on = next.starts_with(is_of_a_word) || ["{", "*"].contains(&next);
        if word(tokens, index) != "::" || !goes_on {
            break;
        }
        index += 1;
    }
    let line = tokens.get(from).map_or(0, |(_, line)| *line);
    found.push((path, line));
    index
}

/// Whether an attribute restricts its item to tests.
fn is_for_tests(attribute: &[Token]) -> bool {
    word(attribute, 0) == "cfg" && attribute.len() > 3 && needs_test(&attribute[2..attribute.len() - 1])
}

/// Whether a condition holds in tests only.
fn needs_test(condition: &[Token]) -> bool {
    let kind = word(condition, 0);
    if condition.len() < 3 || !["all", "any"].contains(&kind) {
        return condition.len() == 1 && kind == "test";
    }
    let (mut depth, mut parts) = (0, vec![Vec::new()]);
    for token in &condition[2..condition.len() - 1] {
        match token.0.as_str() {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        match parts.last_mut() {
            Some(part) if depth > 0 || token.0 != "," => part.push(token.clone()),
            _ => parts.push(Vec::new()),
        }
    }
    let mut parts = parts.iter().filter(|part| !part.is_empty());
    if kind == "all" { parts.any(|part| needs_test(part)) } else { parts.all(|part| needs_test(part)) }
}

/// The item, statement, or entry of a list that begins at a token: its first word, and its end.
fn item(tokens: &[Token], from: usize) -> (usize, usize) {
    const WORDS: [&str; 20] = [
        "async",
        "const",
        "enum",
        "extern",
        "fn",
        "for",
        "if",
        "impl",
        "let",
        "loop",
        "macro_rules",
        "match",
        "mod",
        "static",
        "struct",
        "trait",
        "type",
        "unsafe",
        "use",
        "while",
    ];
    let mut index = from;
    while word(tokens, index) == "#" {
        index = closing(tokens, index + 1) + 1;
    }
    if word(tokens, index) == "pub" {
        index += 1;
        if word(tokens, index) == "(" {
            index = closing(tokens, index) + 1;
        }
    }
    let (first, mut depth) = (index, 0);
    let kind = word(tokens, first);
    while index < tokens.len() {
        match word(tokens, index) {
            "(" | "[" | "{" => depth += 1,
            // The end of what contains it.
            ")" | "]" | "}" if depth == 0 => return (first, index),
            "}" if depth == 1 && kind != "use" => return (first, index + 1),
            ")" | "]" | "}" => depth -= 1,
            ";" if depth == 0 => return (first, index + 1),
            "," if depth == 0 && !WORDS.contains(&kind) => return (first, index + 1),
            _ => {}
        }
        index += 1;
    }
    (first, index)
}

/// The index of the bracket that closes the one at a token.
fn closing(tokens: &[Token], from: usize) -> usize {
    let mut depth = 0;
    for index in from..tokens.len() {
        match word(tokens, index) {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index;
        }
    }
    tokens.len()
}

/// The text of a token; empty after the last.
fn word(tokens: &[Token], index: usize) -> &str {
    tokens.get(index).map_or("", |(text, _)| text.as_str())
}

fn is_of_a_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn tokens(text: &str) -> Vec<Token> {
    let letters: Vec<char> = text.chars().collect();
    let (mut tokens, mut from, mut line) = (Vec::new(), 0, 1);
    while from < letters.len() {
        let end = end_of(&letters, from).clamp(from + 1, letters.len());
        let lexeme: String = letters[from..end].iter().collect();
        let is_comment = lexeme.starts_with("//") || lexeme.starts_with("/*");
        // Characters and lifetimes begin with a single quotation mark, and strings have two double ones.
        let is_text = lexeme.starts_with('\'') || lexeme.contains('"');
        let lines = lexeme.matches('\n').count();
        if !is_comment && !is_text && !lexeme.starts_with(char::is_whitespace) {
            tokens.push((lexeme, line));
        }
        (from, line) = (end, line + lines);
    }
    tokens
}

/// The end of the comment, string, word or other character that begins here.
fn end_of(letters: &[char], from: usize) -> usize {
    let at = |index: usize| letters.get(index).copied().unwrap_or('\n');
    let find = |from: usize, stops: &dyn Fn(char) -> bool| {
        (from..letters.len()).find(|&index| stops(letters[index])).unwrap_or(letters.len())
    };
    match (at(from), at(from + 1)) {
        ('/', '/') => find(from, &|letter| letter == '\n'),
        ('/', '*') => end_of_comment(letters, from),
        ('"', _) => end_of_text(letters, from),
        ('\'', '\\') => find(from + 3, &|letter| letter == '\'') + 1,
        ('\'', _) if at(from + 2) == '\'' => from + 3,
        ('\'', _) => find(from + 1, &|letter| !is_of_a_word(letter)),
        (':', ':') => from + 2,
        (first, _) if is_of_a_word(first) => {
            let end = find(from, &|letter| !is_of_a_word(letter));
            let prefix: String = letters[from..end].iter().collect();
            let hashes = find(end, &|letter| letter != '#') - end;
            match ["r", "br", "cr"].contains(&prefix.as_str()) && at(end + hashes) == '"' {
                true => end_of_raw_text(letters, end + hashes, hashes),
                false => end,
            }
        }
        _ => from + 1,
    }
}

fn end_of_comment(letters: &[char], from: usize) -> usize {
    let (mut depth, mut index) = (0, from);
    while index + 1 < letters.len() {
        match (letters[index], letters[index + 1]) {
            ('/', '*') => (depth, index) = (depth + 1, index + 2),
            ('*', '/') => (depth, index) = (depth - 1, index + 2),
            _ => index += 1,
        }
        if depth == 0 {
            return index;
        }
    }
    letters.len()
}

fn end_of_text(letters: &[char], from: usize) -> usize {
    let mut index = from + 1;
    while index < letters.len() {
        match letters[index] {
            '\\' => index += 2,
            '"' => return index + 1,
            _ => index += 1,
        }
    }
    letters.len()
}

/// The end of a raw string whose quotation mark, after so many hashes, is here.
fn end_of_raw_text(letters: &[char], from: usize, hashes: usize) -> usize {
    let ends = |index: &usize| {
        let behind = letters[index + 1..].iter().take(hashes).filter(|letter| **letter == '#').count();
        letters[*index] == '"' && behind == hashes
    };
    (from + 1..letters.len()).find(ends).map_or(letters.len(), |index| index + 1 + hashes)
}
