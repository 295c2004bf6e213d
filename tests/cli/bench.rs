//! `bench`: what it measures, and its rows.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common;
use crate::common::command::{earlybird, text};

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
            "p90_us",
            "p99_us",
            "p999_us",
            "algbw_gb_s",
            "busbw_gb_s",
            "host",
            "kernel",
            "cores",
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
            "fabric": "auto", "levels": 2, "provider": null, "device": null, "bind": "none", "ordered_writes": null,
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

/// Ranks that share memory send nothing. Over a network all ranks write to the first one in a synchronous round of small
/// data, and it writes to all of them; now and then a rank also tells how far it is.
#[test]
fn bench_counts_what_is_sent() {
    let row = |more: &[&str]| -> serde_json::Value {
        let rounds = ["bench", "-n", "3", "--fire", "all", "-b", "8", "--iters", "60", "--json"];
        let output = earlybird(&[&rounds[..], more].concat()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let nothing = row(&[]);
    assert_eq!((&nothing["round_messages"], &nothing["peers"]), (&0.0.into(), &0.into()), "{nothing}");
    if common::libfabric().is_none() {
        return;
    }
    let network = row(&["--provider", "tcp;ofi_rxm"]);
    let of = |what: &str| network[what].as_f64().unwrap();
    assert!(of("round_messages") >= 2.0 && of("round_messages") < 20.0, "{network}");
    assert!(of("round_messages_by_all") >= 4.0 && of("round_messages_by_all") < 40.0, "{network}");
    assert!(of("round_sent_bytes") >= 2.0 * 8.0 && of("setup_messages") >= 2.0, "{network}");
    assert!(of("end_messages") + of("end_control") >= 2.0, "{network}");
    assert_eq!((of("round_atomics"), of("peers")), (0.0, 2.0), "{network}");
}

/// The same measurement for spreadsheets: conditions as comments, a line of names, and a line for each row.
#[test]
fn bench_prints_comma_separated_values() {
    let args = ["bench", "-n", "2", "--fire", "all", "--fire", "quorum=1,full=4", "--iters", "20", "--csv"];
    let output = earlybird(&args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let (comments, lines): (Vec<&str>, Vec<&str>) = stdout.lines().partition(|line| line.starts_with('#'));
    for about in ["# op: allreduce", "# ranks: 2", "# asked.mover: auto", "# kernel: Linux"] {
        assert!(comments.iter().any(|line| line.starts_with(about)), "{about}: {comments:?}");
    }
    assert!(lines[0].starts_with("fire,skew,bytes,iterations,") && lines.len() == 3, "{lines:?}");
    let names = lines[0].split(',').count();
    assert!(lines[1].starts_with("all,none,8,20,") && lines[1].split(',').count() == names, "{lines:?}");
    // A comma in a value is quoted.
    assert!(lines[2].starts_with("\"quorum=1,full=4\",none,8,20,"), "{lines:?}");
    assert_eq!(lines[2].split(',').count(), names + 1, "{lines:?}");
    let both = earlybird(&["bench", "--csv", "--json"]).output().unwrap();
    assert!(!both.status.success());
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
        assert!(!output.status.success() && text(&output).contains("--op solo_lat"), "{}", text(&output));
    }
    if fabrics.len() > 1 {
        let output = earlybird(&[&args[..], &fabrics[1][..]].concat()).output().unwrap();
        assert!(!output.status.success() && text(&output).contains("--stopped"), "{}", text(&output));
    }
}

/// A line for each rule, and for the rows of another program.
#[test]
fn bench_draws_latency_over_size() {
    let folder = common::folder::Folder::new();
    let (peer, image, page) = (folder.path("peer.json"), folder.path("x.svg"), folder.path("x.html"));
    let rows =
        [(8, 1.5), (64, 2.5)].map(|(bytes, us)| format!(r#"{{"name":"another","bytes":{bytes},"p50_us":{us}}}"#));
    std::fs::write(&peer, rows.join("\n")).unwrap();
    for file in [&image, &page] {
        let [file, peer] = [file, &peer].map(|path| path.to_str().unwrap());
        let sizes = ["-b", "8", "-e", "64", "-f", "8", "--iters", "10", "--fire", "all", "--fire", "solo"];
        let args = [&["bench", "-n", "2", "--plot", file, "--overlay", peer], &sizes[..]].concat();
        let output = earlybird(&args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let drawn = std::fs::read_to_string(file).unwrap();
        assert_eq!(drawn.matches("<polyline").count(), 3, "{drawn}");
        assert!(["all", "solo", "peer: another"].iter().all(|name| drawn.contains(&format!(">{name}<"))), "{drawn}");
        assert!(drawn.contains("xmlns") && !drawn.contains("<script"), "{drawn}");
    }
    for bad in [r#"{"bytes":8,"p50_us":1e300}"#, r#"{"bytes":-1,"p50_us":3}"#] {
        std::fs::write(&peer, bad).unwrap();
        let args = ["bench", "-n", "2", "--plot", image.to_str().unwrap(), "--overlay", peer.to_str().unwrap()];
        let output = earlybird(&args).output().unwrap();
        assert!(!output.status.success() && text(&output).contains("cannot be drawn"), "{}", text(&output));
    }
}
