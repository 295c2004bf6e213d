//! The command in a shell that limits files, and at a terminal.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs::File;
use std::io::Read;
use std::process::{Command, Output, Stdio};

use common::command::{earlybird, text};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

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
        // Rank 1 learns of it at once.
        assert!(kib != 64 || told.contains("rank 1: joining the world: rank 0: "), "{told}");
    }
}

/// A site's choice of providers may hide all that fit. It is named, wherever that matters.
#[test]
fn a_variable_that_hides_all_providers_is_named() {
    if common::libfabric().is_none() {
        return;
    }
    let named = "FI_PROVIDER=none-such is set";
    let ranks = ["bench", "-n", "2", "--iters", "1", "--fabric", "ofi"];
    let tcp = [&ranks[..], &["--provider", "tcp;ofi_rxm"]].concat();
    let device = |name: &str| earlybird(&ranks).env("EARLYBIRD_DEVICE", name).env("FI_PROVIDER", "sockets").output();
    for command in [&ranks[..], &tcp] {
        let output = earlybird(command).env("FI_PROVIDER", "none-such").output().unwrap();
        assert!(!output.status.success() && text(&output).contains(named), "{command:?}: {}", text(&output));
    }
    let told = text(&device("none-such").unwrap());
    assert!(
        told.contains("no provider has a device none-such") && told.contains("FI_PROVIDER=sockets is set"),
        "{told}"
    );
    let info = earlybird(&["info"]).env("FI_PROVIDER", "none-such").output().unwrap();
    assert!(text(&info).contains(named), "{}", text(&info));
    let unset =
        earlybird(&[&ranks[..], &["--provider", "none-such"]].concat()).env("FI_PROVIDER", "").output().unwrap();
    assert!(!unset.status.success() && !text(&unset).contains("FI_PROVIDER"), "{}", text(&unset));
}

/// It says which provider and device a rank here takes, and how far these lead.
#[test]
fn info_says_what_a_rank_takes() {
    if common::libfabric().is_none() {
        return;
    }
    let info = |variables: &[(&str, &str)]| {
        let output = earlybird(&["info", "--json"]).envs(variables.iter().copied()).output().unwrap();
        let first =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).ok().filter(|row| row["fabric"] == "ofi");
        String::from_utf8_lossy(&output.stdout).lines().find_map(first).unwrap()
    };
    let row = info(&[("EARLYBIRD_PROVIDER", "sockets"), ("EARLYBIRD_DEVICE", "lo")]);
    assert_eq!((&row["chosen"], &row["chosen_device"]), (&"sockets".into(), &"lo".into()), "{row}");
    assert_eq!((&row["passed_over"], &row["problem"]), (&serde_json::Value::Null, &serde_json::Value::Null), "{row}");
    let row = info(&[("EARLYBIRD_DEVICE", "none-such")]);
    assert!(row["chosen"].is_null() && row["problem"].as_str().unwrap().contains("device none-such"), "{row}");
    let told = text(&earlybird(&["info"]).env("EARLYBIRD_PROVIDER", "sockets").output().unwrap());
    assert!(told.contains("A rank here uses sockets on "), "{told}");
}

/// What the command writes to its standard error, where that is a terminal.
fn at_a_terminal(args: &[&str]) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let end = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut command = earlybird(args);
    command.env("TERM", "xterm").stdout(Stdio::null()).stderr(end);
    let mut child = command.spawn().unwrap();
    // With the last copy of that end the reading ends, too.
    drop(command);
    let (mut said, mut terminal) = (Vec::new(), File::from(terminal));
    let mut more = [0; 4096];
    while let Ok(read @ 1..) = terminal.read(&mut more) {
        said.extend_from_slice(&more[..read]);
    }
    assert!(child.wait().unwrap().success(), "{}", String::from_utf8_lossy(&said));
    String::from_utf8_lossy(&said).into_owned()
}

/// Ranks that the command has started itself draw at its terminal.
#[test]
fn training_shows_its_progress_at_a_terminal_alone() {
    let train = ["train", "digits", "-n", "2", "--epochs", "1", "--compute-ms", "2", "--skew", "none", "--fire", "all"];
    let said = at_a_terminal(&train);
    let of = "/90 contributions, ";
    assert!(said.contains("all [") && said.matches(of).count() > 1, "{said:?}");
    let elsewhere = earlybird(&train).output().unwrap();
    assert!(elsewhere.status.success() && elsewhere.stderr.is_empty(), "{}", text(&elsewhere));
}
