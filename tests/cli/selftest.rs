//! `selftest`: what holds, and what did not.

use crate::common::command::{earlybird, text};

/// Every check that a world of this size has holds over shared memory; each guarantee has a check.
#[test]
fn selftest_prints_what_holds() {
    let output = earlybird(&["selftest", "--quick", "--fabric", "shm", "-n", "3", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let mut rows: Vec<serde_json::Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let all = rows.pop().unwrap();
    assert_eq!((&all["held"], &all["broken"]), (&rows.len().into(), &0.into()), "{}", text(&output));
    for row in &rows {
        assert_eq!((&row["held"], &row["ranks"], &row["fabric"]), (&true.into(), &3.into(), &"shm".into()), "{row}");
        assert!(!row["check"].as_str().unwrap().is_empty() && row["figure"].is_string(), "{row}");
    }
    for number in 1..=9 {
        let code = format!("G{number}");
        let has = |row: &serde_json::Value| row["guarantees"].as_array().unwrap().iter().any(|one| *one == code);
        assert!(rows.iter().any(has), "no check is for {code}");
    }

    // Under a launcher, for people.
    let command = ["run", "-n", "2", "--", env!("CARGO_BIN_EXE_earlybird"), "selftest", "--quick"];
    let output = earlybird(&command).output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains("0 did not") && !said.contains("NO "), "{said}");
}

/// What needs more ranks is not run, and is not called held.
#[test]
fn selftest_of_one_rank_says_what_was_not_run() {
    let output = earlybird(&["selftest", "--quick", "--fabric", "shm", "-n", "1"]).output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains("needs 2 ranks") && said.contains("were not run"), "{said}");
}

/// A check that cannot go on is a row of its own, and the command fails.
#[test]
fn selftest_fails_with_what_did_not_hold() {
    let selftest = ["selftest", "--quick", "--fabric", "shm", "-n", "2"];
    let output = earlybird(&selftest).env("EARLYBIRD_MEMORY_LIMIT", "2M").output().unwrap();
    let said = text(&output);
    let row = said.lines().find(|line| line.contains("  NO  ")).unwrap_or_else(|| panic!("{said}"));
    assert!(row.contains("rounds of rule") && row.contains("EARLYBIRD_MEMORY_LIMIT"), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}
