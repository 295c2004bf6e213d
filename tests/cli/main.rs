//! The command: what it refuses, and what it prints.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod info;
mod input;
mod report;
mod selftest;
mod trace;

use common::command::{earlybird, text};

#[test]
fn help_lists_every_command() {
    let output = earlybird(&["--help"]).output().unwrap();
    for command in
        ["run", "bench", "train", "program", "fuzz", "simulate", "report", "trace", "model", "selftest", "info"]
    {
        let listed = text(&output).lines().any(|line| line.split_whitespace().next() == Some(command));
        assert!(listed, "{command}: {}", text(&output));
    }
}

#[test]
fn simulate_says_what_a_schedule_costs() {
    let world = ["simulate", "--ranks", "12", "--per-host", "4", "--fire", "quorum=9", "--seeds", "2"];
    let output = earlybird(&[&world[..], &["--json"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let rows: Vec<serde_json::Value> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    for (seed, row) in rows.iter().enumerate() {
        assert_eq!((&row["seed"], &row["fire"]), (&seed.into(), &"quorum=9".into()));
        assert!(row["rounds"].as_u64() >= Some(2) && row["events"].as_u64() > row["rounds"].as_u64(), "{row}");
    }
    let output = earlybird(&world).output().unwrap();
    assert!(output.status.success() && text(&output).contains("peak MiB"), "{}", text(&output));
}
