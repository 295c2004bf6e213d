//! `info`: what it finds, and what it warns of.

use std::process::Command;

use crate::common;
use crate::common::command::{PROVIDER_VARIABLES, earlybird, text, without_provider_variables};

#[test]
fn info_lists_every_variable() {
    let output = earlybird(&["info", "--env", "--json"]).output().unwrap();
    for variable in earlybird::config::VARIABLES {
        assert!(text(&output).contains(variable.name));
    }
    assert!(text(&earlybird(&["info"]).output().unwrap()).contains("shm"));
    let output = earlybird(&["info", "--env"]).env("EARLYBIRD_SECRET", "speak friend and enter").output().unwrap();
    assert!(text(&output).contains("(set)") && !text(&output).contains("speak friend and enter"), "{}", text(&output));
}

#[test]
fn info_says_whether_jobs_have_a_secret() {
    for arguments in [&["info"][..], &["info", "--json"]] {
        let output = earlybird(arguments).env_remove("EARLYBIRD_SECRET").output().unwrap();
        let advice = "export EARLYBIRD_SECRET=$(openssl rand -hex 16)";
        assert!(text(&output).contains(advice), "{}", text(&output));
        let output = earlybird(arguments).env("EARLYBIRD_SECRET", "speak friend and enter").output().unwrap();
        assert!(!text(&output).contains(advice) && !text(&output).contains("speak"), "{}", text(&output));
        let output = earlybird(arguments).env("EARLYBIRD_SECRET", "short").output().unwrap();
        assert!(text(&output).contains("which no rank takes"), "{}", text(&output));
    }
}

/// What lies where in the memory of a collective, whichever way its data moves: nothing overlaps.
#[test]
fn info_prints_what_lies_where() {
    let output = earlybird(&["info", "--layout", "-n", "2", "--depth", "1"]).output().unwrap();
    let said = text(&output);
    assert!(
        said.contains("Path: eager") && said.contains("word 0 in slot 1") && said.contains("buffer 2 of rank 1"),
        "{said}"
    );
    for options in [
        &["--fire", "all"][..],
        &["--per-host", "1", "--fire", "all", "-b", "1M"],
        &["--per-host", "2", "-b", "16M"],
        &["--mover", "tree"],
        &["--mover", "tree", "--per-host", "1"],
        &["--mover", "tree", "--per-host", "2"],
        &["--models", "butterfly=2", "--per-host", "2"],
    ] {
        let output = earlybird(&[&["info", "--layout", "--json"], options].concat()).output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let rows: Vec<serde_json::Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(output.status.success() && rows.len() > 20, "{options:?}: {}", text(&output));
        for pair in rows.windows(2).filter(|pair| pair[0]["region"] == pair[1]["region"]) {
            assert!(pair[0]["to"].as_u64() <= pair[1]["from"].as_u64(), "{options:?}: {pair:?}");
        }
    }
    for refused in [&["--models", "arrivals=2"][..], &["--fire", "quorum=9"]] {
        let output = earlybird(&[&["info", "--layout"], refused].concat()).output().unwrap();
        assert!(!output.status.success(), "{refused:?}: {}", text(&output));
    }
}

/// What programs refuse, information warns of.
#[test]
fn info_warns_of_a_variable_that_it_does_not_know() {
    let output = earlybird(&["info", "--env"]).env("EARLYBIRD_DEADLIN", "5s").output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains("did you mean EARLYBIRD_DEADLINE?"), "{said}");
}

#[test]
fn info_says_who_set_the_variables_of_libfabric() {
    if common::libfabric().is_none() {
        return;
    }
    let told = |own: &[(&str, &str)]| -> Vec<(String, String, String)> {
        let output = without_provider_variables(&["info", "--json"]).envs(own.iter().copied()).output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let rows = stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let word = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap().to_owned();
        let variables = rows.filter(|row| row.get("variable").is_some());
        variables.map(|row| (word(&row, "variable"), word(&row, "value"), word(&row, "set_by"))).collect()
    };
    let as_told = |(name, value): (&str, &str), set_by: &str| (name.to_owned(), value.to_owned(), set_by.to_owned());
    assert_eq!(told(&[]), PROVIDER_VARIABLES.map(|variable| as_told(variable, "earlybird")));
    let own = ("FI_SOCKETS_MAX_BUF_SZ", "1048576");
    assert_eq!(told(&[own])[0], as_told(own, "you"), "the user's own stays");
    assert_eq!(told(&PROVIDER_VARIABLES), PROVIDER_VARIABLES.map(|variable| as_told(variable, "you")));
    let output = without_provider_variables(&["info"]).output().unwrap();
    for (name, _) in PROVIDER_VARIABLES {
        assert!(text(&output).contains(name), "{}", text(&output));
    }
}

#[test]
fn info_says_why_there_is_no_libfabric() {
    for (file, problem) in [
        ("/no/such/libfabric.so", "apt install libfabric1"),
        ("libc.so.6", "libc.so.6 has no fi_getinfo of version FABRIC_1.3"),
    ] {
        for arguments in [&["info"][..], &["info", "--json"]] {
            let output = earlybird(arguments).env("EARLYBIRD_LIBFABRIC", file).output().unwrap();
            assert!(output.status.success());
            assert!(text(&output).contains(problem), "{}", text(&output));
            assert!(text(&output).contains(file), "{}", text(&output));
        }
    }
}

/// The fabric is listed whatever this machine has; what is missing is named.
#[test]
fn info_says_what_rdma_verbs_have() {
    let output = earlybird(&["info"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let listed = text(&output);
    assert!(listed.lines().any(|line| line.starts_with("verbs ")), "{listed}");
    let output = earlybird(&["info", "--json"]).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<serde_json::Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let fabric = rows.iter().find(|row| row["fabric"] == "verbs").unwrap();
    let ports: Vec<_> = rows.iter().filter(|row| row.get("rdma_device").is_some()).collect();
    for key in ["available", "library", "found", "problem", "chosen", "locked_memory_limit", "atomics"] {
        assert!(fabric.get(key).is_some(), "{key} is missing in {fabric}");
    }
    let problem = fabric["problem"].as_str().unwrap_or_default();
    if fabric["found"] == false {
        assert!(problem.contains("install libibverbs") && listed.contains(problem), "{fabric}: {listed}");
        return;
    }
    assert!(listed.contains("Locked memory (ulimit -l)"), "{listed}");
    if ports.is_empty() {
        assert!(problem.contains("no RDMA device") && listed.contains("no RDMA device"), "{fabric}: {listed}");
        return common::skipped(common::Need::Verbs, "no RDMA device to list");
    }
    for port in ports.iter().filter(|port| port["active"] == true) {
        assert!(port["mtu"].as_u64() >= Some(256), "{port}");
        assert!(listed.contains(port["gid"].as_str().unwrap_or("LID")), "{port}: {listed}");
    }
    let usable = ports.iter().any(|port| port["active"] == true && port["problem"].is_null());
    assert_eq!(fabric["available"], usable, "{fabric}");
    assert_eq!(fabric["chosen"].is_string(), usable, "{fabric}");
}

/// A limit of locked memory is told; a process without privileges is warned of a small one.
#[test]
fn info_tells_the_limit_of_locked_memory() {
    if earlybird::fabric::verbs::library().is_err() {
        return common::skipped(common::Need::Verbs, "no libibverbs");
    }
    let told = |limit: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -l {limit} && exec \"$0\" info"), env!("CARGO_BIN_EXE_earlybird")]);
        text(&shell.output().unwrap())
    };
    let small = told("32");
    assert!(small.contains("Locked memory (ulimit -l): 32 KiB"), "{small}");
    let is_exempt = small.contains("does not bind this process (CAP_IPC_LOCK)");
    assert_eq!(is_exempt, earlybird::fabric::verbs::LockedMemory::now().is_exempt, "{small}");
    assert_eq!(small.contains("WARNING: ranks over verbs need"), !is_exempt, "{small}");
}
