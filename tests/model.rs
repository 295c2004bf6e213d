//! `earlybird model`: what it predicts, and what it refuses.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::path::{Path, PathBuf};

use common::command::{earlybird, text};
use serde_json::Value;

fn rows(args: &[&str]) -> Vec<Value> {
    let output = earlybird(&[&["model", "merge", "--json"], args].concat()).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A file of this test.
fn file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    std::fs::write(&path, content).unwrap();
    path
}

/// GPUs; the speed-ups of each gradient alone, of one message and of the optimal plan; the messages of that plan.
type Figures = (u64, f64, f64, f64, usize);

/// Computed apart from this crate, in floating point, with the constants of the published simulator. Rounded to a tenth.
const RING: [Figures; 10] = [
    (4, 4.0, 2.5, 4.0, 10),
    (8, 6.9, 4.7, 7.7, 6),
    (16, 11.7, 9.1, 14.5, 6),
    (32, 18.8, 18.0, 27.8, 5),
    (64, 27.5, 35.5, 52.8, 5),
    (128, 36.0, 70.1, 98.9, 4),
    (256, 42.6, 137.1, 184.3, 3),
    (512, 46.9, 263.1, 322.7, 3),
    (1024, 49.4, 487.7, 545.7, 2),
    (2048, 50.8, 850.9, 869.9, 2),
];

/// The same of a double binary tree.
const TREE: [Figures; 10] = [
    (4, 4.0, 2.5, 4.0, 10),
    (8, 7.4, 4.7, 7.7, 6),
    (16, 13.8, 9.2, 14.7, 6),
    (32, 26.7, 18.1, 28.7, 6),
    (64, 52.0, 35.9, 56.8, 6),
    (128, 101.8, 71.5, 112.7, 6),
    (256, 200.1, 142.7, 224.5, 6),
    (512, 393.8, 285.2, 447.6, 6),
    (1024, 775.8, 570.0, 893.3, 6),
    (2048, 1528.9, 1139.5, 1783.2, 6),
];

/// Half a unit of the last digit, and what times in whole nanoseconds may add.
const TOLERANCE: f64 = 0.051;

#[test]
fn the_googlenet_table() {
    for (algorithm, figures) in [("ring", RING), ("tree", TREE)] {
        let rows = rows(&["--allreduce", algorithm]);
        assert_eq!(rows.len(), 4 * figures.len());
        for ((gpus, each, one, optimal, messages), of_gpus) in figures.into_iter().zip(rows.chunks(4)) {
            for (row, (merging, speedup, count)) in of_gpus.iter().zip([
                ("each", Some(each), Some(64)),
                ("one", Some(one), Some(1)),
                ("bytes", None, None),
                ("optimal", Some(optimal), Some(messages)),
            ]) {
                assert_eq!((&row["gpus"], &row["merging"]), (&gpus.into(), &merging.into()), "{row}");
                let found = row["speedup"].as_f64().unwrap();
                assert!(speedup.is_none_or(|speedup| (found - speedup).abs() < TOLERANCE), "{speedup:?}: {row}");
                let list = row["messages"].as_array().unwrap();
                assert!(count.is_none_or(|count| list.len() == count), "{row}");
                assert_eq!((&list[0]["first"], &list[list.len() - 1]["last"]), (&1.into(), &64.into()), "{row}");
                assert_eq!(list.iter().map(|message| message["bytes"].as_u64().unwrap()).sum::<u64>(), 53_516_544);
                // No fixed merging is faster.
                assert!(found <= of_gpus[3]["speedup"].as_f64().unwrap(), "{row}");
            }
        }
    }
}

/// One trace and one cost by hand, in whole units: 1 + 10 + 10 ms, then 10 + 0.3.
#[test]
fn a_trace_and_a_measured_cost() {
    let csv = "# by hand\nelements,backward_seconds\n26214400,0.001\n262144,0.005\n\n262144,0.005\n262144,0.010\n";
    let path = file("by-hand.csv", csv);
    let trace = path.to_str().unwrap();
    let measured = ["--allreduce", "measured", "--alpha-us", "10000", "--beta-ns", "0.095367431640625", "--gpus", "16"];
    let rows = rows(&[&["--trace", trace, "--forward-ms", "7"], &measured[..]].concat());
    let optimal = &rows[3];
    assert_eq!((&optimal["merging"], &optimal["trace"]), (&"optimal".into(), &trace.into()), "{optimal}");
    assert_eq!((&optimal["forward_us"], &optimal["backward_us"]), (&7_000.0.into(), &21_000.0.into()));
    assert_eq!((&optimal["message_us"], &optimal["mib_us"]), (&10_000.0.into(), &100.0.into()));
    assert_eq!(optimal["iteration_us"], 38_300.0);
    assert!((optimal["speedup"].as_f64().unwrap() - 16.0 * 28.0 / 38.3).abs() < 1e-9, "{optimal}");
    let messages = serde_json::json!([
        {"first": 1, "last": 1, "bytes": 104_857_600, "begin_us": 1_000.0, "end_us": 21_000.0},
        {"first": 2, "last": 4, "bytes": 3_145_728, "begin_us": 21_000.0, "end_us": 31_300.0},
    ]);
    assert_eq!(optimal["messages"], messages);

    let output = earlybird(&[&["model", "merge", "--trace", trace], &measured[..]].concat()).output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains("4 gradients") && said.contains(trace), "{said}");
    let last: Vec<&str> = said.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(last, ["2-4", "3145728", "21.0", "21.0", "31.3"], "{said}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_bundled_trace_names_its_source() {
    let output = earlybird(&["model", "merge"]).output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains("GoogLeNet on a K80 (shyhuai/B-Caffe"), "{said}");
    for gpus in ["4 ", "2048 "] {
        assert!(said.lines().any(|line| line.trim_start().starts_with(gpus)), "{said}");
    }
}

#[test]
fn bad_input_is_named() {
    let bad = file("bad.csv", "elements,backward_seconds\n100,0.1\n0,0.1\n");
    let nan = file("nan.csv", "elements,backward_seconds\n100,NaN\n");
    let bare = file("bare.csv", "100,0.1\n");
    let empty = file("empty.csv", "");
    let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/digits.bin");
    let measured = ["--allreduce", "measured", "--alpha-us", "1", "--beta-ns", "1"];
    for (args, named) in [
        (&["--trace", bad.to_str().unwrap()][..], "bad.csv: line 3: expected a whole number of elements"),
        (
            &["--trace", nan.to_str().unwrap()],
            "nan.csv: line 2: expected backward seconds from 0 to 86400, found \"NaN\"",
        ),
        (&["--trace", bare.to_str().unwrap()], "bare.csv: line 1: expected the header elements,backward_seconds"),
        (&["--trace", empty.to_str().unwrap()], "empty.csv: no gradients; expected the header"),
        (&["--trace", binary.to_str().unwrap()], "digits.bin: "),
        (&["--trace", "/no/such/file.csv"], "/no/such/file.csv: No such file"),
        (&["--gpus", "0"], "\"0\" is no number of GPUs; use 1 to 1048576"),
        (&["--gpus", "8..4"], "goes down"),
        (&["--alpha-us=-1"], "--alpha-us -1: use 0 to"),
        (&["--beta-ns", "nan"], "--beta-ns NaN: use 0 to"),
        (&["--gamma-ns", "inf"], "--gamma-ns inf: use 0 to"),
        (&["--forward-ms=-5"], "--forward-ms -5: use 0 to"),
        (&["--bucket", "1X"], "not a size"),
        (&["--dtype", "f8"], "unknown element type"),
        (&["--allreduce", "measured", "--gpus", "8"], "takes --alpha-us and --beta-ns"),
        (&measured, "one number of GPUs"),
        (&[&measured[..], &["--gpus", "8", "--gamma-ns", "1"]].concat(), "no --gamma-ns"),
    ] {
        let output = earlybird(&[&["model", "merge"], args].concat()).output().unwrap();
        let said = text(&output);
        assert!(!output.status.success() && said.contains(named), "{args:?}: {said}");
    }
    [bad, nan, bare, empty].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}
