//! Tasks of this repository that Cargo has no command for. `.cargo/config.toml` makes `cargo xtask` of it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{check, header, install, lines, root};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Write ffi/c/include/earlybird.h, which is made of the sources of ffi/c
    Header {
        /// Write nothing; fail if the file would change
        #[arg(long)]
        check: bool,
    },
    /// Look for names in the book that do not exist, and for words that readers stumble over
    Check,
    /// Count the lines of production code by folder: no tests, no blank lines, no comments
    Lines,
    /// Build the C library and install it: static and shared, header, pkg-config and CMake files
    Install(install::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Header { check } => header::run(&root(), check),
        Task::Check => check::run(&root()),
        Task::Lines => lines::run(&root()),
        Task::Install(args) => install::run(&root(), &args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}
