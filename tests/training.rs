//! `earlybird train`: what it learns, and what it prints.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::path::Path;
use std::process::Stdio;

use common::command::{earlybird, text};
use common::folder::Folder;
use common::tier::{by_tier, is_deep};

#[test]
fn training_compares_rules() {
    let args = ["train", "digits", "-n", "3", "--compute-ms", "0", "--skew", "none", "--epochs", "20", "--json"];
    let output = earlybird(&args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let rows: Vec<serde_json::Value> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["fire"].as_str().unwrap()).collect::<Vec<_>>(), ["all", "solo", "quorum=2"]);
    for row in rows {
        for key in [
            "task",
            "method",
            "ranks",
            "skew",
            "steps",
            "samples_per_s",
            "speedup",
            "final_loss",
            "fresh_mean",
            "age_mean",
            "age_max",
            "wait_s",
            "to_loss_s",
        ] {
            assert!(row.get(key).is_some(), "{key} is missing in {row}");
        }
        assert!(row["accuracy"].as_f64().unwrap() > 0.9, "{row}");
    }
}

/// Ranks that average models in groups end near each other, and those that sum gradients with equal models.
#[test]
fn training_compares_presets() {
    let mut args =
        vec!["train", "digits", "-n", "5", "--compute-ms", "0", "--skew", "one:4:2ms", "--epochs", "16", "--json"];
    let presets = ["synchronous", "quorum", "wagma", "wagma-published", "p-reduce", "p-reduce-published", "mg-wfbp"];
    presets.iter().for_each(|preset| args.extend(["--preset", preset]));
    let output = earlybird(&args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let rows: Vec<serde_json::Value> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().map(|row| row["preset"].as_str().unwrap()).eq(presets), "{rows:?}");
    for row in rows {
        let (apart, groups) = (row["apart"].as_f64().unwrap(), row["groups_moved"].as_u64().unwrap());
        let (preset, steps) = (row["preset"].as_str().unwrap(), row["steps"].as_u64().unwrap());
        let by_arrival = preset.starts_with("p-reduce");
        assert_eq!(apart > 0.0, preset.starts_with("wagma") || by_arrival, "{row}");
        // In a round several groups move.
        assert_eq!((groups > steps, groups == steps), (preset.starts_with("wagma"), by_arrival), "{row}");
        assert_eq!(row["windows"].as_u64().is_some_and(|windows| windows > 0), by_arrival, "{row}");
        let connected = row["windows_apart"].as_u64().unwrap_or(0) * 50 <= row["windows"].as_u64().unwrap_or(0);
        assert!(connected || preset == "p-reduce-published", "{row}");
        assert!(apart < 0.1 && row["accuracy"].as_f64().unwrap() > 0.85, "{row}");
    }
}

/// With other delays ranks arrive in another order, and all the same a replay ends with the models of the recorded run.
#[test]
fn a_training_is_replayed_to_the_bit() {
    let folder = Folder::new();
    let train = |task: &[&str], skew: &str, tape: Option<&str>| {
        let mut command = earlybird(&[&["train"], task, &["-n", "3", "--json", "--skew", skew]].concat());
        tape.map(|name| command.env(name, folder.path(task[0])));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let lines = String::from_utf8(output.stdout).unwrap();
        let rows = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        rows.map(|row| (row["models"].as_str().unwrap().to_owned(), row["steps"].to_string())).collect::<Vec<_>>()
    };
    let words = ["words", "--preset", "quorum", "--epochs", "1", "--compute-ms", "0"];
    if is_deep() {
        let recorded = train(&words, "none", Some("EARLYBIRD_RECORD"));
        assert_eq!(train(&words, "one:0:3ms", Some("EARLYBIRD_REPLAY")), recorded);
    }
    let digits = ["digits", "--preset", "wagma", "--preset", "wagma-published", "--epochs", "4", "--compute-ms", "0"];
    let recorded = train(&digits, "one:2:2ms", Some("EARLYBIRD_RECORD"));
    assert_eq!(train(&digits, "one:0:1ms", Some("EARLYBIRD_REPLAY")), recorded);
    // A run of its own has other cuts.
    assert_ne!(train(&digits, "one:0:1ms", None), recorded);
}

/// Lines of any length, and gradients in several tensors. An epoch computes for half a minute.
#[test]
fn training_with_words_learns_under_a_partial_rule() {
    if !is_deep() {
        return;
    }
    let args = ["train", "words", "-n", "2", "--fire", "solo", "--compute-ms", "0", "--epochs", "1", "--json"];
    let output = earlybird(&args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&row["task"], &row["skew"]), (&"words".into(), &"none".into()));
    assert!(row["first_loss"].as_f64().unwrap() > 4.0 && row["final_loss"].as_f64().unwrap() < 2.5, "{row}");
    assert!(row["accuracy"].as_f64().unwrap() > 0.33, "{row}");
}

const RANKS: u32 = 3;

/// The row of a training with these choices.
fn row_of(args: &[&str], more: &[&str]) -> serde_json::Value {
    let output =
        earlybird(&[&["train"], args, &["-n", "3", "--skew", "none", "--json"], more].concat()).output().unwrap();
    assert!(output.status.success(), "{args:?} {more:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Begins a training, and kills a rank of it when all have saved twice.
fn killed(args: &[&str], file: &str, every: &str) {
    let saves = ["-n", "3", "--skew", "none", "--compute-ms", "2", "--checkpoint", file, "--checkpoint-every", every];
    let mut command = earlybird(&[&["train"], args, &saves[..]].concat());
    let mut launcher = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    common::until("all ranks have saved twice", || {
        assert!(launcher.try_wait().unwrap().is_none(), "{args:?} ended before it was killed");
        (0..RANKS).all(|rank| Path::new(&format!("{file}.{rank}.previous")).exists())
    });
    let id = launcher.id();
    let ranks = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let victim = ranks.split_whitespace().nth(1).unwrap().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(victim).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    assert!(!launcher.wait().unwrap().success());
}

/// Every rank makes the same steps again, from the same weights.
#[test]
fn a_restored_synchronous_training_ends_with_the_models_of_an_uninterrupted_one() {
    let folder = Folder::new();
    let trainings =
        [&["digits", "--fire", "all", "--epochs", "12"][..], &["words", "--preset", "synchronous", "--epochs", "1"]];
    for args in trainings.into_iter().take(by_tier(1, 2)) {
        let (file, other) = (folder.file(args[0]), folder.file(&format!("{}-whole", args[0])));
        let whole = row_of(args, &["--compute-ms", "0", "--checkpoint", &other, "--checkpoint-every", "20"]);
        killed(args, &file, "20");
        let restored = row_of(args, &["--compute-ms", "0", "--restore", &file]);
        assert_eq!(
            (&whole["models"], &whole["steps"]),
            (&restored["models"], &restored["steps"]),
            "{whole} {restored}"
        );
        // It began with what the killed one had learned.
        assert!(restored["first_loss"].as_f64() < whole["first_loss"].as_f64(), "{whole} {restored}");
        // A rank lacks the last one: all go on from the one before.
        std::fs::remove_file(format!("{other}.1")).unwrap();
        let restored = row_of(args, &["--compute-ms", "0", "--restore", &other]);
        assert_eq!(
            (&whole["models"], &whole["steps"]),
            (&restored["models"], &restored["steps"]),
            "{whole} {restored}"
        );
    }
}

#[test]
fn a_restored_partial_training_learns_as_well() {
    let folder = Folder::new();
    let trainings = [
        &["digits", "--preset", "wagma", "--epochs", "20"][..],
        &["digits", "--fire", "solo", "--epochs", "20"],
        &["digits", "--preset", "wagma-published", "--epochs", "20"],
    ];
    for args in trainings.into_iter().take(by_tier(1, 3)) {
        let file = folder.file(args[2]);
        killed(args, &file, "20");
        let saves = ["--compute-ms", "0", "--restore", &file, "--checkpoint", &file, "--checkpoint-every", "20"];
        let restored = row_of(args, &saves);
        assert!(restored["accuracy"].as_f64().unwrap() > 0.85, "{restored}");
        // What it has saved itself is of a later round.
        let again = row_of(args, &["--compute-ms", "0", "--restore", &file]);
        assert!(again["first_loss"].as_f64() < restored["first_loss"].as_f64(), "{restored} {again}");
    }
}

#[test]
fn what_cannot_be_saved_or_restored_is_refused_with_advice() {
    let folder = Folder::new();
    let file = folder.file("digits");
    let digits = ["digits", "-n", "3", "--compute-ms", "0", "--epochs", "1"];
    let saves = ["--checkpoint", &file, "--checkpoint-every", "10"];
    let refused = |args: &[&str], words: &str| {
        let output = earlybird(&[&["train"], args].concat()).output().unwrap();
        assert!(!output.status.success() && text(&output).contains(words), "{args:?}: {}", text(&output));
    };
    refused(&[&digits[..], &saves].concat(), "choose one --fire or --preset");
    refused(&[&digits[..], &saves, &["--preset", "p-reduce"]].concat(), "use --preset wagma");
    refused(&[&digits[..], &saves, &["--preset", "mg-wfbp"]].concat(), "use --preset synchronous");
    refused(&[&digits[..], &saves[..2], &["--fire", "all"]].concat(), "--checkpoint-every");
    refused(&[&digits[..], &["--restore", "/no/such/file", "--fire", "all"]].concat(), "no such folder");
    refused(&[&digits[..], &["--restore", &file, "--fire", "all"]].concat(), "No such file");
    row_of(&["digits", "--fire", "all", "--epochs", "2"], &[&["--compute-ms", "0"], &saves[..]].concat());
    let restored = |task: &str, args: &[&str], words: &str| {
        refused(&[&[task, "--compute-ms", "0", "--restore", &file], args].concat(), words);
    };
    restored("digits", &["-n", "3", "--fire", "all", "--epochs", "1"], "use more --epochs");
    restored("digits", &["-n", "3", "--fire", "all", "--epochs", "3", "--seed", "7"], "--seed 7");
    restored("digits", &["-n", "3", "--preset", "wagma", "--epochs", "3"], "sum gradients");
    refused(&[&digits[..], &saves[..2], &["--checkpoint-every", "1", "--fire", "solo"]].concat(), "use 2 or more");
    refused(&[&digits[..], &saves[..2], &["--checkpoint-every", "0", "--fire", "solo"]].concat(), "use 1 or more");
    restored("words", &["-n", "3", "--fire", "all"], "it is of digits");
    restored("digits", &["-n", "2", "--fire", "all", "--epochs", "3"], "world of 3 ranks");
}
