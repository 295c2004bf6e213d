//! The command: what it refuses, and what it prints.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::command::{PROVIDER_VARIABLES, earlybird, text, without_provider_variables};
use common::shared_memory_files;

#[test]
fn bad_input_is_named_before_anything_starts() {
    let before = shared_memory_files();
    for (args, named) in [
        (&["bench", "--fire", "quorum=0"][..], "quorum of 0"),
        (&["bench", "--fire", "quorum=5", "-n", "4"], "quorum=5 can never be reached by 4"),
        (&["bench", "--fire", "most"], "unknown firing rule"),
        (&["bench", "--op", "p_reduce", "--fire", "solo"], "omit --fire"),
        (&["bench", "--op", "p_reduce", "--group", "butterfly=2"], "arrivals=SIZE"),
        (&["bench", "--op", "p_reduce", "--absent", "drop"], "carry or hold"),
        (&["bench", "--op", "p_reduce", "--mover", "tree"], "auto or cut"),
        (&["bench", "--op", "p_reduce", "--dtype", "i32"], "--dtype i32 is none"),
        (&["bench", "--op", "group_allreduce", "--group", "arrivals=2"], "--op p_reduce has arrivals=SIZE"),
        (&["bench", "--buckets", "each"], "are for --op buckets"),
        (&["bench", "--op", "buckets", "--buckets", "0"], "such as 25M"),
        (&["bench", "--op", "buckets", "--dtype", "f64"], "omit --dtype"),
        (&["bench", "--op", "buckets", "--skew", "one:1:1ms"], "omit --skew"),
        (&["bench", "--op", "buckets", "--trace", "/no/such"], "--trace /no/such"),
        (&["bench", "-n", "0"], "0 ranks"),
        (&["bench", "-n", "99999"], "the most is 1024"),
        (&["bench", "-b", "1X"], "not a size"),
        (&["bench", "-b", "99999999999T"], "too large"),
        (&["bench", "-b", "1T"], "more than"),
        (&["bench", "-b", "64", "-e", "8"], "less than the smallest"),
        (&["bench", "-b", "64", "-f", "1"], "factor"),
        (&["bench", "--iters", "0"], "0 rounds"),
        (&["bench", "-b", "3"], "-b 3: an element of f32 has 4 bytes"),
        (&["fuzz", "--seeds", "0"], "0 is not in 1.."),
        (&["simulate", "--seeds", "0"], "0 is not in 1.."),
        (&["bench", "--skew", "sideways:1ms"], "unknown skew"),
        (&["bench", "--skew", "one:7:1ms", "-n", "4"], "no rank 7 of 4"),
        (&["bench", "--grace=-5ms"], "not a time, which is never negative"),
        (&["bench", "--grace", "-1"], "not a time, which is never negative"),
        (&["simulate", "--grace", "-1ms"], "not a time, which is never negative"),
        (&["bench", "--grace", "5 parsecs"], "not a time"),
        (&["bench", "--dtype", "f8"], "unknown element type"),
        (&["bench", "--fire", "deadline=0"], "deadline of 0"),
        (&["bench", "--fire", "deadline=2h"], "not a time"),
        (&["bench", "--fire", "majority=x"], "not a seed"),
        (&["bench", "--fire", "solo,full=1"], "full=1"),
        (&["bench", "--fire", "all,full=8"], "omit full=K"),
        (&["bench", "--fire", "solo,solo"], "unknown firing rule"),
        (&["bench", "--absent", "decay=2"], "decay of 2"),
        (&["bench", "--absent", "ignore"], "carry, drop, decay=FACTOR or hold"),
        (&["fuzz", "--replay", "x"], "names no schedule"),
        (&["fuzz", "--replay", "1,ranks=x"], "names no schedule"),
        (&["fuzz", "--seeds", "10", "--from", "18446744073709551615"], "more seeds than there are"),
        (&["simulate", "--ranks", "0"], "0 ranks"),
        (&["simulate", "--ranks", "8", "--fire", "quorum=9"], "quorum=9 can never be reached by 8"),
        (&["simulate", "--per-host", "0"], "--per-host"),
        (&["bench", "--fabric", "carrier-pigeon"], "unknown fabric"),
        (&["bench", "--depth", "0"], "--depth"),
        (&["train", "cats"], "digits"),
        (&["train", "digits", "--fire", "quorum=9"], "quorum=9 can never be reached by 4"),
        (&["bench", "--group", "world"], "--op group_allreduce"),
        (&["bench", "--op", "group_allreduce", "--group", "butterfly=1"], "size of 2 or more"),
        (&["train", "digits", "--epochs", "0"], "--epochs"),
        (&["train", "digits", "--absent", "hold"], "--preset wagma-published"),
        (&["train", "digits", "--preset", "wagma", "--absent", "hold"], "--preset wagma-published"),
        (&["train", "digits", "--preset", "wagma-published", "--absent", "drop"], "omit one"),
        (&["train", "digits", "--preset", "wagma", "--mover", "tree"], "omit --mover"),
        (&["train", "digits", "--report", "/tmp"], "this is a folder"),
        (&["train", "digits", "--preset", "eager"], "quorum, wagma, wagma-published"),
        (&["train", "digits", "--preset", "solo", "--fire", "all"], "cannot be used with"),
        (&["train", "digits", "--compute-ms", "nan"], "--compute-ms"),
        (&["train", "digits", "--rate=-1"], "--rate"),
        (&["train", "digits", "--loss", "nan"], "--loss"),
        (&["train", "digits", "--report", "/no/such/folder/x.html"], "--report"),
        (&["train", "hyperplane", "--batch", "7"], "--batch"),
        (&["train", "words", "--batch", "1025"], "up to 1024 lines"),
        (&["selftest", "-n", "0"], "0 ranks"),
        (&["selftest", "--fabric", "shm", "--provider", "tcp"], "--provider is for --fabric ofi"),
        (&["run", "-n", "0", "--", "true"], "0 ranks"),
        (&["run", "-n", "2"], "PROGRAM"),
        (&["run", "-n", "1", "--", "/no/such/program"], "cannot run /no/such/program"),
        (&["nest"], "unrecognized subcommand"),
    ] {
        let output = earlybird(args).output().unwrap();
        assert!(!output.status.success(), "{args:?} succeeded: {}", text(&output));
        assert!(text(&output).contains(named), "{args:?}: {}", text(&output));
    }
    for (name, value, named) in [
        ("EARLYBIRD_DEADLINE", "soon", "EARLYBIRD_DEADLINE=soon"),
        ("EARLYBIRD_RANK", "3", "EARLYBIRD_WORLD_SIZE"),
        ("EARLYBIRD_RNAK", "3", "did you mean EARLYBIRD_RANK?"),
        ("EARLYBIRD_FABRIC", "telegraph", "EARLYBIRD_FABRIC=telegraph"),
        ("EARLYBIRD_HW_CONFIG", "/no/such/file", "/no/such/file"),
        ("EARLYBIRD_MEMORY_LIMIT", "1M", "EARLYBIRD_MEMORY_LIMIT"),
    ] {
        let output = earlybird(&["bench", "-n", "2", "-b", "1M", "--iters", "1"]).env(name, value).output().unwrap();
        assert!(!output.status.success() && text(&output).contains(named), "{name}={value}: {}", text(&output));
        // Each rank needs the memory; a file is read before they start.
        if name == "EARLYBIRD_HW_CONFIG" {
            assert_eq!(text(&output).matches(named).count(), 1, "{}", text(&output));
        }
    }
    assert_eq!(shared_memory_files(), before);
}

/// A number is repeated with an exponent, and not with 309 digits.
#[test]
fn numbers_far_out_stay_short() {
    let training = ["-n", "1", "--epochs", "1", "--fire", "all"];
    for (args, expected) in [
        (&["bench", "--seconds", "1e308"][..], "--seconds 1e308: a row takes"),
        (&["bench", "--absent", "decay=1e38"], "a decay of 1e38 a round"),
        (&["train", "digits", "--compute-ms", "1e308"], "--compute-ms 1e308: use 0 to 600000"),
        (&["train", "digits", "--rate=-1e38"], "--rate -1e38: use a number"),
        (&["model", "merge", "--alpha-us", "1e308"], "--alpha-us 1e308: use 0 to 60000000"),
        (&[&["train", "digits", "--compute-ms", "1e-308"], &training[..]].concat(), "1 ranks, 1e-308 ms a step"),
        (
            &[&["train", "digits", "--compute-ms", "0", "--loss", "1e308"], &training[..]].concat(),
            "loss was 1.0000e308",
        ),
    ] {
        let text = text(&earlybird(args).output().unwrap());
        assert!(text.contains(expected) && !text.contains(&"0".repeat(20)), "{args:?}: {text}");
    }
}

#[test]
fn help_lists_every_command() {
    let output = earlybird(&["--help"]).output().unwrap();
    for command in ["run", "bench", "train", "program", "fuzz", "simulate", "model", "selftest", "info"] {
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

#[test]
fn too_little_memory_is_reported_with_the_need() {
    let bench = ["bench", "-n", "2", "-b", "16M", "--iters", "1", "--fire", "solo"];
    let output = earlybird(&bench).env("EARLYBIRD_MEMORY_LIMIT", "64M").output().unwrap();
    let text = text(&output);
    // Six buffers and eight outcomes of 16 MiB.
    assert!(text.contains("needs 224 MiB") && text.contains("64 MiB are available"), "{text}");
}

/// Message buffers of libfabric, which grow with the world.
#[test]
fn too_little_memory_for_message_buffers_is_reported_with_the_need() {
    if common::libfabric().is_none() {
        return;
    }
    let bench = ["bench", "-n", "2", "-b", "8", "--iters", "1", "--provider", common::PROVIDERS[0]];
    let output = earlybird(&bench).env("EARLYBIRD_MEMORY_LIMIT", "1M").output().unwrap();
    let text = text(&output);
    let said = "make message buffers: needs 1.5 MiB of memory, 1 MiB are available (EARLYBIRD_MEMORY_LIMIT)";
    assert!(!output.status.success() && text.contains(said), "{text}");
}

#[test]
fn bench_prints_rows_and_json() {
    let args = [
        "bench", "-n", "3", "--fire", "all", "--fire", "quorum=2", "-b", "8", "-e", "64K", "-f", "256", "--iters", "40",
    ];
    let output = earlybird(&args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(text(&output).lines().filter(|line| line.starts_with("quorum=2")).count(), 2, "{}", text(&output));

    let output =
        earlybird(&[&args[..], &["--json", "--buffers", "private", "--dtype", "i64", "--skew", "one:2:2ms"]].concat())
            .output()
            .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let rows: Vec<serde_json::Value> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 4);
    for row in rows {
        for key in [
            "version",
            "git",
            "dirty",
            "op",
            "fire",
            "fabric",
            "provider",
            "hw_config",
            "executor",
            "mover",
            "path",
            "depth",
            "grace",
            "buffers",
            "ranks",
            "bytes",
            "skew",
            "warmup",
            "iterations",
            "mean_us",
            "p50_us",
            "p99_us",
            "min_us",
            "max_us",
            "ideal_us",
            "fresh_mean",
            "fresh_min",
            "carried_mean",
            "age_mean",
            "age_max",
            "wrong",
        ] {
            assert!(row.get(key).is_some(), "{key} is missing in {row}");
        }
        assert_eq!(row["wrong"], 0);
        for (key, value) in [("dtype", "i64"), ("reduction", "sum"), ("absent", "carry"), ("mover", "cut")] {
            assert_eq!(row[key], value, "{row}");
        }
        for (key, value) in [("ranks", 3), ("seed", 1), ("warmup", 10), ("iterations", 40)] {
            assert_eq!(row[key], value, "{row}");
        }
        let asked = serde_json::json!({
            "fabric": "auto", "provider": null, "device": null, "bind": "none", "ordered_writes": null,
            "memory_polling": false, "mover": "auto",
            "executor": "auto", "depth": 8, "grace": "auto",
        });
        assert_eq!(row["asked"], asked);
        assert_eq!(row["depth"], if row["fire"] == "all" { 1 } else { 8 }, "{row}");
        let least = if row["fire"] == "all" { 3 } else { 2 };
        assert!(row["fresh_min"].as_u64().unwrap() >= least, "{row}");
        assert!(row["mean_us"].as_f64().unwrap() > 0.0 && row["ideal_us"].as_f64().unwrap() >= 0.0);
    }
}

/// Each row, of any operation, names its binary.
/// A row is printed when it is measured: the second one here takes hours.
#[test]
fn bench_prints_rows_as_they_come() {
    let args = ["bench", "-n", "2", "-b", "8", "-e", "8M", "-f", "1048576", "--iters", "100000"];
    let mut bench = earlybird(&args).stdout(Stdio::piped()).spawn().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let lines = BufReader::new(bench.stdout.take().unwrap()).lines();
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| _ = tell.send(line)));
    let row =
        std::iter::from_fn(|| told.recv_timeout(Duration::from_secs(60)).ok()).find(|line| line.starts_with("all "));
    bench.kill().unwrap();
    bench.wait().unwrap();
    assert!(row.is_some_and(|row| row.contains(" 8 ") && row.contains("100000")));
}

/// About a second a row, and half of one where that is asked for.
#[test]
fn bench_makes_as_many_iterations_as_fit_into_a_time() {
    let iters = |seconds: &str| {
        let row = only_row(earlybird(&["bench", "-n", "2", "--json", "--seconds", seconds, "--skew", "one:1:5ms"]));
        row["iterations"].as_u64().unwrap()
    };
    let (few, many) = (iters("0.05"), iters("1"));
    assert!(few >= 10 && many > 3 * few && many <= 200, "{few} and {many}");
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    for args in [&["info"][..], &["bench", "-n", "2", "--iters", "5"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = earlybird(args).stdout(full).output().unwrap();
        let said = text(&output);
        assert!(output.status.code() == Some(1) && said.contains("standard output: "), "{args:?}: {said}");
    }
}

#[test]
fn bench_says_which_binary_measured() {
    let here = env!("CARGO_MANIFEST_DIR");
    for op in ["allreduce", "write_lat", "write_bw", "fetch_add_lat", "solo_lat"] {
        let output = earlybird(&["bench", "--op", op, "--fabric", "shm", "--iters", "200", "--json"]).output().unwrap();
        let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&row["op"], &row["version"]), (&op.into(), &env!("CARGO_PKG_VERSION").into()), "{row}");
        assert_eq!((&row["ranks"], &row["fabric"], &row["asked"]["fabric"]), (&2.into(), &"shm".into(), &"shm".into()));
        assert!(row["dirty"].is_boolean() || row["dirty"].is_null(), "{row}");
        if !std::path::Path::new(here).join(".git").exists() {
            assert!(row["git"].is_null(), "{row}");
            continue;
        }
        let commit = row["git"].as_str().unwrap();
        assert!(commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{row}");
        // It need not be the commit that is checked out now.
        match Command::new("git").args(["-C", here, "cat-file", "-t", commit]).output() {
            Ok(told) if told.status.success() => assert_eq!(told.stdout, b"commit\n"),
            _ => println!("SKIPPED: git cannot be asked for {commit}"),
        }
    }
}

/// A provider is asked for and not there: the row says that, and which executor ran the rounds.
#[test]
fn bench_says_what_was_asked_for_and_what_was_chosen() {
    let args = ["bench", "--fire", "solo", "--executor", "provider", "--mover", "tree", "--depth", "3", "--grace", "0"];
    let output = earlybird(&[&args[..], &["--fabric", "shm", "--iters", "20", "--json"]].concat())
        .env("EARLYBIRD_LIBFABRIC", "/no/such/libfabric.so")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let asked = &row["asked"];
    assert_eq!((&asked["executor"], &row["executor"]), (&"provider".into(), &"caller".into()), "{row}");
    assert_eq!((&asked["mover"], &row["mover"], &row["path"]), (&"tree".into(), &"tree".into(), &"tree".into()));
    assert_eq!((&asked["depth"], &row["depth"]), (&3.into(), &3.into()), "{row}");
    assert_eq!((&asked["grace"], &row["grace"]), (&"0".into(), &"0".into()), "{row}");
}

/// The data has late contributions as the cut says, decayed or not; and a rank that waits for a
/// full round keeps no other one waiting at a barrier.
#[test]
fn bench_follows_every_rule_under_skew() {
    for rule in [
        &["--absent", "decay=0.3", "--fire", "solo"][..],
        &["--absent", "decay=0.9", "--fire", "solo", "--dtype", "f64"],
        &["--absent", "decay=0.5", "--fire", "solo", "--dtype", "bf16"],
        &["--absent", "drop", "--fire", "majority"],
        &["--fire", "quorum=3,full=4"],
        &["--fire", "solo,full=2"],
        &["--fire", "quorum=2,full=3", "--depth", "1"],
    ] {
        let args = ["bench", "-n", "4", "-b", "64", "--skew", "linear:1ms", "--iters", "24", "--warmup", "3", "--json"];
        let output = earlybird(&[&args[..], rule].concat()).output().unwrap();
        assert!(output.status.success(), "{rule:?}: {}", text(&output));
        let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(row["wrong"], 0, "{row}");
        assert!(row["fresh_mean"].as_f64().unwrap() > 0.0, "{row}");
    }
}

/// Groups average models: exactly, where all ranks take part.
#[test]
fn bench_measures_averages_of_models() {
    for (fire, group) in [("all", "butterfly=2"), ("solo", "butterfly=3"), ("quorum=2", "world")] {
        let args = ["bench", "--op", "group_allreduce", "-n", "5", "--fire", fire, "--group", group, "-b", "100K"];
        let output = earlybird(&[&args[..], &["--iters", "50", "--json"]].concat()).output().unwrap();
        assert!(output.status.success(), "{fire}, {group}: {}", text(&output));
        let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&row["op"], &row["group"], &row["wrong"]), (&"group_allreduce".into(), &group.into(), &0.into()));
    }
}

/// Ranks that arrive one after the other average, and choices of buckets are compared by turns.
#[test]
fn bench_measures_groups_by_arrival_and_buckets() {
    let output =
        earlybird(&["bench", "-n", "3", "--op", "p_reduce", "--group", "arrivals=2", "--iters", "200", "--json"]);
    let row = only_row(output);
    assert_eq!((&row["group"], &row["wrong"], &row["path"]), (&"arrivals=2".into(), &0.into(), &"arrivals".into()));
    assert!(row["fresh_min"] == 2 && row["ideal_us"].is_null(), "{row}");
    let folder = std::env::temp_dir().join(common::unique());
    std::fs::create_dir(&folder).unwrap();
    let trace = folder.join("trace.csv");
    std::fs::write(&trace, "elements,backward_seconds\n1000,0.001\n5,0\n20000,0.002\n").unwrap();
    let trace = trace.to_str().unwrap();
    let output = earlybird(&["bench", "--op", "buckets", "--trace", trace, "--iters", "4", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let lines = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let named: Vec<&str> = rows.iter().map(|row| row["buckets"].as_str().unwrap()).collect();
    assert_eq!(named, ["measured", "each", "one", "25M"]);
    assert!(rows.iter().all(|row| row["wrong"] == 0.0 && row["steps"] == 4), "{rows:?}");
    assert!(rows[0]["predicted_ms"].as_f64().is_some_and(|ms| ms >= 3.0) && rows[1]["predicted_ms"].is_null());
    assert_eq!((&rows[1]["messages"], &rows[2]["messages"]), (&3.into(), &1.into()));
    std::fs::remove_dir_all(folder).unwrap();
}

fn only_row(mut command: Command) -> serde_json::Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A secret that is not text is an error, and not a missing secret.
#[test]
fn values_that_are_not_text_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe not text at all");
    for name in ["EARLYBIRD_SECRET", "EARLYBIRD_FABRIC"] {
        let output = earlybird(&["bench", "-n", "2", "-b", "8", "--iters", "5"]).env(name, odd).output().unwrap();
        let text = text(&output);
        assert!(!output.status.success() && text.contains(&format!("{name} is not text (UTF-8)")), "{text}");
    }
}

#[test]
fn info_lists_every_variable() {
    let output = earlybird(&["info", "--env", "--json"]).output().unwrap();
    for variable in earlybird::config::VARIABLES {
        assert!(text(&output).contains(variable.name));
    }
    assert!(text(&earlybird(&["info"]).output().unwrap()).contains("shm"));
    let output = earlybird(&["info", "--env"]).env("EARLYBIRD_SECRET", "speak friend").output().unwrap();
    assert!(text(&output).contains("(set)") && !text(&output).contains("speak friend"), "{}", text(&output));
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

/// One operation between two ranks, or a round of one, over every fabric that is there.
#[test]
fn bench_measures_single_operations() {
    let mut fabrics = vec![vec!["--fabric", "shm"]];
    if common::libfabric().is_some() {
        fabrics.push(vec!["--provider", common::PROVIDERS[0]]);
    }
    for (op, keys) in [
        ("write_lat", ["min_us", "p50_us", "p99_us", "stdev_us"]),
        ("write_bw", ["peak_mib_s", "mean_mib_s", "messages_m_s", "iterations"]),
        ("fetch_add_lat", ["min_us", "p50_us", "p99_us", "max_us"]),
        ("solo_lat", ["min_us", "p50_us", "p99_us", "iterations"]),
    ] {
        for fabric in &fabrics {
            let args =
                [&["bench", "--op", op, "-b", "8", "-e", "64K", "-f", "8192", "--iters", "200"], &fabric[..]].concat();
            let output = earlybird(&args).output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            let output = earlybird(&[&args[..], &["--json"]].concat()).output().unwrap();
            let rows: Vec<serde_json::Value> = String::from_utf8_lossy(&output.stdout)
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            assert_eq!(rows.len(), if op == "fetch_add_lat" { 1 } else { 2 }, "{}", text(&output));
            for row in rows {
                assert!(keys.iter().all(|key| row[key].as_f64().is_some_and(|value| value >= 0.0)), "{row}");
                assert_eq!(row["provider"].is_null(), fabric[0] == "--fabric", "{row}");
            }
        }
    }

    // Ranks that are stopped hold up none that needs only their memory. Over a network that asks their processors that is
    // refused before any is stopped.
    let args = ["bench", "--op", "solo_lat", "-n", "3", "--stopped", "--depth", "3", "--iters", "10"];
    let output = earlybird(&[&args[..], &["--fabric", "shm"]].concat()).output().unwrap();
    assert!(output.status.success() && text(&output).contains("the others are stopped"), "{}", text(&output));
    for wrong in ["--executor=provider", "--grace=1s", "-n=1", "--fire=solo"] {
        let output = earlybird(&["bench", "--op", "solo_lat", wrong]).output().unwrap();
        assert!(!output.status.success() && text(&output).contains("--op solo_lat: "), "{}", text(&output));
    }
    if fabrics.len() > 1 {
        let output = earlybird(&[&args[..], &fabrics[1][..]].concat()).output().unwrap();
        assert!(!output.status.success() && text(&output).contains("--stopped"), "{}", text(&output));
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
