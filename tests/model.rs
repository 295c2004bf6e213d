//! `earlybird model`: what it predicts, and what it refuses.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::path::{Path, PathBuf};

use common::command::{earlybird, text};
use serde_json::Value;

/// What a model prints as JSON Lines.
fn rows(args: &[&str]) -> Vec<Value> {
    let output = earlybird(&[&["model"], args, &["--json"]].concat()).output().unwrap();
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
        let rows = rows(&["merge", "--allreduce", algorithm]);
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
    let rows = rows(&[&["merge", "--trace", trace, "--forward-ms", "7"], &measured[..]].concat());
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
fn bad_input_of_merge_is_named() {
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
        (&["--allreduce", "measured", "--gpus", "8"], "by --alpha-us and --beta-ns"),
        (&measured, "one number of GPUs"),
        (&[&measured[..], &["--gpus", "8", "--gamma-ns", "1"]].concat(), "no --gamma-ns"),
    ] {
        let output = earlybird(&[&["model", "merge"], args].concat()).output().unwrap();
        let said = text(&output);
        assert!(!output.status.success() && said.contains(named), "{args:?}: {said}");
    }
    [bad, nan, bare, empty].iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// Ranks and size; rounds of a cycle; the least and the greatest group; the disagreement, its lower bound,
/// and that of random groups.
type Disagreement = (u32, u32, u64, usize, usize, f64, f64, f64);

/// Computed apart from this crate, with the covariances of all ranks. Rounded to a thousandth.
const DISAGREEMENTS: [Disagreement; 30] = [
    (3, 2, 2, 1, 2, 0.444, 0.167, 0.667),
    (5, 2, 3, 1, 2, 0.612, 0.350, 0.800),
    (6, 2, 3, 2, 2, 0.498, 0.417, 0.556),
    (7, 2, 3, 1, 2, 0.707, 0.464, 0.857),
    (8, 2, 3, 2, 2, 0.500, 0.500, 0.656),
    (13, 2, 4, 1, 2, 0.860, 0.644, 0.923),
    (24, 2, 5, 2, 2, 0.837, 0.771, 0.878),
    (33, 2, 6, 1, 2, 1.056, 0.817, 0.970),
    (64, 2, 6, 2, 2, 0.891, 0.891, 0.954),
    (7, 3, 2, 2, 3, 0.337, 0.190, 0.429),
    (10, 3, 3, 2, 3, 0.409, 0.244, 0.450),
    (27, 3, 3, 3, 3, 0.370, 0.370, 0.428),
    (7, 4, 2, 3, 4, 0.147, 0.107, 0.171),
    (12, 4, 2, 4, 4, 0.178, 0.167, 0.204),
    (13, 4, 2, 3, 4, 0.251, 0.173, 0.308),
    (17, 4, 3, 3, 4, 0.313, 0.195, 0.314),
    (24, 4, 3, 4, 4, 0.252, 0.229, 0.266),
    (48, 4, 3, 4, 4, 0.285, 0.271, 0.299),
    (61, 4, 3, 3, 4, 0.302, 0.280, 0.328),
    (64, 4, 3, 4, 4, 0.281, 0.281, 0.308),
    (100, 4, 4, 4, 4, 0.334, 0.298, 0.317),
    (9, 8, 2, 4, 5, 0.112, 0.014, 0.127),
    (12, 8, 2, 6, 6, 0.083, 0.042, 0.092),
    (17, 8, 2, 5, 6, 0.119, 0.066, 0.134),
    (31, 8, 2, 7, 8, 0.097, 0.093, 0.108),
    (60, 8, 2, 7, 8, 0.118, 0.108, 0.132),
    (64, 8, 2, 8, 8, 0.109, 0.109, 0.123),
    (65, 8, 3, 7, 8, 0.158, 0.110, 0.141),
    (100, 8, 3, 7, 8, 0.144, 0.121, 0.137),
    (130, 8, 3, 7, 8, 0.146, 0.125, 0.141),
];

#[test]
fn the_table_of_disagreements() {
    for (ranks, size, cycle, least, most, disagreement, bound, random) in DISAGREEMENTS {
        let rows = rows(&["groups", "--ranks", &ranks.to_string(), "--size", &size.to_string()]);
        let mut sizes = Vec::new();
        for (row, round) in rows.iter().zip(1..) {
            assert_eq!((&row["ranks"], &row["size"], &row["round"]), (&ranks.into(), &size.into(), &round.into()));
            assert_eq!(row["cycle"], cycle, "{row}");
            assert!((1..=cycle).contains(&row["connected_after"].as_u64().unwrap()), "{row}");
            for (figure, expected) in
                [("disagreement", disagreement), ("lower_bound", bound), ("random_groups", random)]
            {
                let found = row[figure].as_f64().unwrap();
                // Half a unit of the last digit, and a little for a recurrence that the other program ended earlier.
                let tolerance = 0.000_51 + if figure == "disagreement" { 0.01 * expected } else { 0.0 };
                assert!((found - expected).abs() < tolerance, "{figure} {expected}: {row}");
            }
            let groups: Vec<Vec<u64>> = serde_json::from_value(row["groups"].clone()).unwrap();
            sizes.extend(groups.iter().map(Vec::len));
            assert!(groups.iter().all(|group| group.is_sorted()), "{row}");
            let mut members = groups.concat();
            members.sort_unstable();
            assert!(members.into_iter().eq(0..ranks.into()), "{row}");
        }
        assert_eq!(rows.len() as u64, cycle);
        assert_eq!((sizes.iter().min(), sizes.iter().max()), (Some(&least), Some(&most)), "{ranks} ranks by {size}");
    }
}

/// Seven ranks in groups of four by hand: round 1 lists 4 1 5 2 6 3 0, and round 2 lists 0 to 6.
#[test]
fn groups_are_printed_round_by_round() {
    let output = earlybird(&["model", "groups", "-n", "7", "--size", "4", "--rounds", "3"]).output().unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "ranks 7, groups 2 of at most 4, cycle 2 rounds");
    assert_eq!(lines[1], "any 2 rounds in a row connect all ranks");
    assert_eq!(lines[2], "disagreement with unit noise in every round: 0.147, lower bound 0.107, random groups 0.171");
    let table = ["round  groups", "    1  {1 4 5} {0 2 3 6}", "    2  {0-2} {3-6}", "    3  {1 4 5} {0 2 3 6}"];
    assert_eq!(lines[3..], table);

    let output = earlybird(&["model", "groups", "-n", "1", "--size", "2"]).output().unwrap();
    let said = text(&output);
    assert!(said.contains("ranks 1, groups 1 of at most 2, cycle 1 round\n") && said.ends_with("1  {0}\n"), "{said}");
}

#[test]
fn bad_input_of_groups_is_named() {
    for (args, named) in [
        (&["--ranks", "0", "--size", "4"][..], "0 ranks: use 1 to 4096"),
        (&["--ranks", "4097", "--size", "4"], "4097 ranks: use 1 to 4096; the time to compute the disagreement"),
        (&["--ranks", "8", "--size", "0"], "groups of 0 average nothing; use 2 ranks or more"),
        (&["--ranks", "8", "--size", "1"], "groups of 1 average nothing"),
        (&["--ranks", "8", "--size", "4", "--rounds", "0"], "--rounds 0: use 1 to 65536"),
        (&["--ranks", "8", "--size", "4", "--rounds", "65537"], "--rounds 65537: use 1 to 65536"),
        (&["--ranks", "many", "--size", "4"], "invalid value 'many'"),
        (&["--ranks", "8"], "--size <S>"),
        (&["--size", "4"], "--ranks <P>"),
    ] {
        let output = earlybird(&[&["model", "groups"], args].concat()).output().unwrap();
        let said = text(&output);
        assert!(!output.status.success() && said.contains(named), "{args:?}: {said}");
    }
}
