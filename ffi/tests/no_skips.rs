//! What must not be missing, and is: no test passes for want of it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod skipped;

use std::process::Command;

use skipped::{Need, skipped};

#[test]
fn lists_demand_what_they_name() {
    for (list, demanded) in [
        ("", [false; 3]),
        ("libfabric", [true, false, false]),
        ("root, libfabric,", [true, true, false]),
        ("all", [true; 3]),
    ] {
        let found = [Need::Libfabric, Need::Root, Need::Verbs].map(|need| need.is_demanded(list));
        assert_eq!(found, demanded, "{list:?}");
    }
    assert!(std::panic::catch_unwind(|| Need::Root.is_demanded("root,libfabirc")).is_err());
}

#[test]
#[ignore = "played by the process that the other test starts"]
fn test_that_lacks_something() {
    skipped(Need::Verbs, "nothing is looked for");
}

#[test]
fn a_skip_is_told_and_fails_where_it_must_not_be() {
    for (list, passes) in [("", true), ("libfabric", true), ("verbs", false), ("all", false)] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "test_that_lacks_something", "--ignored"]).env("TEST_NO_SKIPS", list);
        let output = again.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("SKIPPED: verbs: nothing is looked for"), "{list:?}: {told}");
        assert_eq!(output.status.success(), passes, "{list:?}");
    }
}
