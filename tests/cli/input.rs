//! What the command refuses, and how it says so.

use crate::common;
use crate::common::command::{earlybird, text};
use crate::common::shared_memory_files;

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
        (&["bench", "--buckets", "each"], "--op allreduce has no use for --trace or --buckets"),
        (&["bench", "--plot", "picture.png"], "the name ends in .svg or .html"),
        (&["bench", "--op", "gather", "--plot", "picture.svg"], "has no use for --plot"),
        (&["bench", "--plot", "x.svg", "--overlay", "/no/such"], "--overlay /no/such"),
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
        (&["bench", "--group", "world"], "has no use for --group"),
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
fn output_that_cannot_be_written_is_an_error() {
    for args in [&["info"][..], &["bench", "-n", "2", "--iters", "5"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = earlybird(args).stdout(full).output().unwrap();
        let said = text(&output);
        assert!(output.status.code() == Some(1) && said.contains("standard output: "), "{args:?}: {said}");
    }
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
