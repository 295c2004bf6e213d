//! Decides what the library shows, and tells the `earlybird` command from which commit it is built.
//!
//! | cfg | set | what it adds |
//! |---|---|---|
//! | `earlybird_internals` | in this project's repository | its modules are public |
//! | `earlybird_tools` | there, and with the feature `cli` | what only the command, the tests and the measurements use |
//! | `earlybird_faults` | there, in the profiles of development and tests | deliberate mistakes (`src/fault.rs`) |
//!
//! `BUILT_IN_REPOSITORY` says where that is: `.cargo/config.toml` sets it, which cargo reads for builds in this folder
//! alone. So no other package can turn these on for its users. A model of loom has none of them. `BUILT_IN_REPOSITORY=
//! cargo clippy` judges what others get.
//!
//! Measurements say from which commit the command is. This reads git's files, so it needs no git, and tells nothing where
//! there are none. The library alone is not told.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the command is made of.
const SOURCES: [&str; 8] =
    ["Cargo.lock", "Cargo.toml", "build.rs", "data", "ffi/Cargo.toml", "ffi/src", "hw-configs", "src"];

fn main() {
    watch(Path::new("build.rs"));
    show();
    if env::var_os("CARGO_FEATURE_CLI").is_none() {
        return;
    }
    let Some(commit) = commit() else { return };
    // Cargo sets these when it runs the command, too, which refuses names of its own that it does not know: no EARLYBIRD_.
    println!("cargo::rustc-env=BUILT_FROM_COMMIT={commit}");
    SOURCES.iter().for_each(|source| watch(Path::new(source)));
    if let Some(changed) = is_changed() {
        println!("cargo::rustc-env=BUILT_FROM_CHANGED={changed}");
    }
}

/// Sets what is built besides the library that users get.
fn show() {
    println!("cargo::rerun-if-env-changed=BUILT_IN_REPOSITORY");
    let in_repository = env::var_os("BUILT_IN_REPOSITORY").is_some_and(|value| !value.is_empty())
        && env::var_os("CARGO_CFG_LOOM").is_none();
    let with_command = env::var_os("CARGO_FEATURE_CLI").is_some();
    let optimised = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    for (name, is_set) in [
        ("earlybird_internals", in_repository),
        ("earlybird_tools", in_repository || with_command),
        ("earlybird_faults", in_repository && !optimised),
    ] {
        println!("cargo::rustc-check-cfg=cfg({name})");
        if is_set {
            println!("cargo::rustc-cfg={name}");
        }
    }
}

/// Runs this again when that has changed. (What does not exist would always count as changed.)
fn watch(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// What is checked out, as git's files say it.
fn commit() -> Option<String> {
    let git = git_folder()?;
    // Each commit, checkout and reset adds a line to the log.
    watch(&git.join("HEAD"));
    watch(&git.join("logs/HEAD"));
    let head = read(&git.join("HEAD"))?;
    let commit = match head.strip_prefix("ref: ") {
        None => head,
        Some(branch) => {
            // A worktree has a HEAD of its own, and the branches of its repository.
            let common = read(&git.join("commondir")).map_or_else(|| git.clone(), |common| git.join(common));
            watch(&common.join(branch));
            read(&common.join(branch)).or_else(|| packed(&common, branch))?
        }
    };
    let is_hash = commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then_some(commit)
}

/// A folder, or in a worktree a file that names it. None above this one counts: the repository there may be another one,
/// into which this package was copied.
fn git_folder() -> Option<PathBuf> {
    let git = PathBuf::from(".git");
    if git.is_dir() {
        return Some(git);
    }
    read(&git)?.strip_prefix("gitdir: ").map(PathBuf::from)
}

/// The commit of a branch that has no file of its own.
fn packed(common: &Path, branch: &str) -> Option<String> {
    let text = read(&common.join("packed-refs"))?;
    let mut branches = text.lines().filter_map(|line| line.split_once(' '));
    branches.find(|(_, name)| *name == branch).map(|(commit, _)| commit.to_owned())
}

/// Whether the sources are not those of the commit; nothing where git cannot be asked.
fn is_changed() -> Option<bool> {
    let mut git = Command::new("git");
    git.args(["--no-optional-locks", "status", "--porcelain", "--"]).args(SOURCES);
    // A hook of git has these, of the repository that it is run for.
    let output = git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE").env_remove("GIT_INDEX_FILE").output().ok()?;
    output.status.success().then_some(!output.stdout.is_empty())
}
