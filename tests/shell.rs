//! The command in a shell that limits files.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::process::{Command, Output};

use common::command::text;

/// The command in a shell that has set the limit of a file's size, in KiB.
fn with_files_of(kib: u64, args: &[&str]) -> Output {
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("ulimit -f {kib} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_earlybird")]).args(args);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("EARLYBIRD_")) {
        shell.env_remove(name);
    }
    shell.output().unwrap()
}

/// The memory file of a world is as large as files may be. A limit that leaves too little is named.
#[test]
fn worlds_keep_within_the_limit_of_files() {
    let bench = ["bench", "-n", "2", "--fabric", "shm", "--iters", "5", "-b", "1M", "--json"];
    // A terabyte, and 64 MiB.
    for kib in [1 << 30, 64 << 10] {
        let output = with_files_of(kib, &bench);
        assert!(output.status.success(), "{kib} KiB: {}", text(&output));
        let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&row["iterations"], &row["wrong"]), (&5.into(), &0.into()), "{row}");
    }
    for (kib, expected) in [
        (64, "files may have 64 KiB here (ulimit -f), and the memory file of 2 ranks begins with"),
        (4 << 10, "the world's memory file, whose size ulimit -f limits where rank 0 starts"),
    ] {
        let output = with_files_of(kib, &bench);
        let told = text(&output);
        assert!(!output.status.success() && told.contains(expected) && !told.contains("XFSZ"), "{kib} KiB: {told}");
    }
}
