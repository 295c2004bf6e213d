//! The launcher: what its ranks are given, what it prints of them, and that nothing outlives it.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::command::{PROVIDER_VARIABLES, earlybird, text, without_provider_variables};
use common::shared_memory_files;

#[test]
fn run_prefixes_output_and_reports_who_failed() {
    let script = "echo hello from $EARLYBIRD_RANK of $EARLYBIRD_WORLD_SIZE; [ $EARLYBIRD_RANK = 1 ] && exit 7; exit 0";
    let output = earlybird(&["run", "-n", "3", "--", "sh", "-c", script]).output().unwrap();
    let text = text(&output);
    assert_eq!(output.status.code(), Some(7), "{text}");
    for rank in 0..3 {
        assert!(text.contains(&format!("[{rank}] hello from {rank} of 3")), "{text}");
    }
    assert!(text.contains("rank 1 ended with exit status 7"), "{text}");
    let output =
        earlybird(&["run", "-n", "2", "--", "sh", "-c", "[ $EARLYBIRD_RANK = 0 ] || kill -9 $$"]).output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 9));
}

/// The secrets of three ranks, as they find them in their environment.
fn secrets(own: Option<&str>) -> Vec<String> {
    let mut command = earlybird(&["run", "-n", "3", "--", "sh", "-c", "echo secret=$EARLYBIRD_SECRET"]);
    let output = command.envs(own.map(|secret| ("EARLYBIRD_SECRET", secret))).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    text(&output).lines().filter_map(|line| Some(line.split_once("secret=")?.1.to_owned())).collect()
}

#[test]
fn run_hands_its_ranks_a_secret_that_nobody_else_knows() {
    let (one, another) = (secrets(None), secrets(None));
    assert!(one.len() == 3 && one.iter().all(|secret| secret.len() == 32 && *secret == one[0]), "{one:?}");
    assert_ne!(one[0], another[0], "two runs have one secret");
    assert_eq!(secrets(Some("speak friend")), ["speak friend"; 3], "the user's own stays");
}

#[test]
fn run_says_that_it_replaces_a_store() {
    let run = ["run", "-n", "1", "--", "sh", "-c", "echo store=$EARLYBIRD_STORE"];
    let output = earlybird(&run).env("EARLYBIRD_STORE", "tcp:here:29400").output().unwrap();
    let text = text(&output);
    let store = text.lines().find_map(|line| Some(line.split_once("] store=")?.1)).unwrap();
    assert!(store.starts_with("unix:"), "{text}");
    assert!(text.contains(&format!("warning: EARLYBIRD_STORE=tcp:here:29400 is replaced by {store}")), "{text}");
}

/// What `bench -n 3` says in an environment of Slurm's.
fn bench_of_three(slurm: &[(&str, &str)]) -> (bool, String) {
    let mut command = earlybird(&["bench", "-n", "3", "--iters", "5"]);
    command.envs([("SLURM_JOB_ID", "9"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]).env_remove("SLURM_STEP_ID");
    // A command that takes itself for a rank waits for the others.
    let output = command.envs(slurm.iter().copied()).env("EARLYBIRD_DEADLINE", "2s").output().unwrap();
    (output.status.success(), text(&output))
}

#[test]
fn the_number_of_ranks_that_is_asked_for_counts_where_no_job_was_launched() {
    for slurm in [
        &[][..],
        &[("SLURM_STEP_ID", "4294967291")],
        // A shell that srun has started: --pty.
        &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")],
    ] {
        let (success, told) = bench_of_three(slurm);
        assert!(success && told.contains("3 ranks, shm"), "{slurm:?}: {told}");
    }
    let (success, told) = bench_of_three(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")]);
    assert!(!success && told.contains("-n 3 was given, and srun started 2 ranks"), "{told}");
}

#[test]
fn ranks_stay_on_their_cores() {
    let output = earlybird(&["run", "-n", "2", "--bind", "core", "--", "sh", "-c", "nproc"]).output().unwrap();
    assert!(text(&output).contains("[0] 1") && text(&output).contains("[1] 1"), "{}", text(&output));
}

/// Lines `PID` of ranks that sleep, once all have said theirs.
fn sleepers(launcher: &mut std::process::Child) -> Vec<i32> {
    let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
    (0..3).map(|_| lines.next().unwrap().unwrap().rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn all_die(pids: &[i32]) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if pids.iter().all(|&pid| !is_alive(pid)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

#[test]
fn ranks_die_with_their_launcher_and_signals_reach_them() {
    let start = || {
        let args = ["run", "-n", "3", "--", "sh", "-c", "echo $$; exec sleep 60"];
        earlybird(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut launcher = start();
    let pids = sleepers(&mut launcher);
    assert!(pids.iter().all(|&pid| is_alive(pid)));
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    assert!(all_die(&pids), "ranks outlived their launcher");

    let mut launcher = start();
    let pids = sleepers(&mut launcher);
    let pid = rustix::process::Pid::from_raw(launcher.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + 15));
    assert!(all_die(&pids));
}

/// A shell, `uv run` or `multiprocessing` stands between the launcher and the program.
#[test]
fn wrapped_ranks_die_with_their_launcher() {
    let args = ["run", "-n", "3", "--", "sh", "-c", "sh -c 'echo $$; sleep 60; :'; :"];
    let mut launcher = earlybird(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let pids = sleepers(&mut launcher);
    assert!(pids.iter().all(|&pid| is_alive(pid)));
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    assert!(all_die(&pids), "wrapped ranks outlived their launcher");
}

/// Reads from a process until a text has come, a minute at most.
fn read_until(from: &mut impl Read, text: &str) -> String {
    let (until, mut said) = (Instant::now() + Duration::from_secs(60), Vec::new());
    while !String::from_utf8_lossy(&said).contains(text) {
        assert!(Instant::now() < until, "no {text:?} in {:?}", String::from_utf8_lossy(&said));
        let mut more = [0; 4096];
        match from.read(&mut more).unwrap() {
            0 => panic!("the end came before {text:?}: {:?}", String::from_utf8_lossy(&said)),
            read => said.extend_from_slice(&more[..read]),
        }
    }
    String::from_utf8(said).unwrap()
}

#[test]
fn prompts_are_passed_on_and_rank_0_is_answered() {
    let script = "[ $EARLYBIRD_RANK = 0 ] || exit 0; printf 'name? '; read name; echo hello $name";
    let mut command = earlybird(&["run", "-n", "2", "--", "sh", "-c", script]);
    let mut launcher = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = launcher.stdout.take().unwrap();
    read_until(&mut out, "[0] name? ");
    launcher.stdin.take().unwrap().write_all(b"bird\n").unwrap();
    read_until(&mut out, "hello bird\n");
    assert!(launcher.wait().unwrap().success());
}

#[test]
fn a_closed_output_ends_the_job() {
    let args = ["run", "-n", "2", "--", "sh", "-c", "while :; do echo on and on; sleep 0.01; done"];
    let mut launcher = earlybird(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = launcher.stdout.take().unwrap();
    read_until(&mut out, "on and on");
    drop(out);
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + 13));
}

/// A line that does not end is passed on in parts.
#[test]
fn a_long_line_takes_little_memory() {
    const LENGTH: usize = 64 << 20;
    let script = format!("head -c {LENGTH} /dev/zero; read until");
    let mut command = earlybird(&["run", "-n", "1", "--", "sh", "-c", &script]);
    let mut launcher = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut long = launcher.stdout.take().unwrap().take(LENGTH as u64);
    assert_eq!(std::io::copy(&mut long, &mut std::io::sink()).unwrap(), LENGTH as u64);
    let status = std::fs::read_to_string(format!("/proc/{}/status", launcher.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 32 << 10, "{kilobytes} kB at most");
    drop(launcher.stdin.take());
    // What of it was not read closes the output.
    launcher.wait().unwrap();
}

/// A rank may hang in a handler of its own.
#[test]
fn a_second_signal_ends_ranks_that_ignore_the_first() {
    let args = ["run", "-n", "3", "--", "sh", "-c", "trap '' TERM INT; echo $$; while :; do sleep 1; done"];
    let mut launcher = earlybird(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let pids = sleepers(&mut launcher);
    let pid = rustix::process::Pid::from_raw(launcher.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(pids.iter().all(|&pid| is_alive(pid)), "ranks did not ignore the first signal");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + 9));
    assert!(all_die(&pids));
}

#[test]
fn ranks_set_the_variables_of_libfabric_whatever_started_them() {
    let output = without_provider_variables(&["run", "-n", "1", "--", "env"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    for (name, value) in PROVIDER_VARIABLES {
        assert!(text(&output).contains(&format!("{name}={value}")), "the launcher has not set {name}");
    }
    let (name, _) = PROVIDER_VARIABLES[0];
    let output = earlybird(&["run", "-n", "1", "--", "env"]).env(name, "1048576").output().unwrap();
    assert!(text(&output).contains(&format!("{name}=1048576")), "the user's own stays: {}", text(&output));
    if common::libfabric().is_none() {
        return;
    }
    // As torchrun would start it; libfabric says what it reads.
    let mut rank = without_provider_variables(&["bench", "--provider", "sockets", "--fire", "all", "--iters", "1"]);
    let output =
        rank.envs([common::LEVELS_1, ("RANK", "0"), ("WORLD_SIZE", "1"), ("FI_LOG_LEVEL", "info")]).output().unwrap();
    assert!(text(&output).contains("read int var max_buf_sz=4194304"), "{}", text(&output));
}

/// Killed all at once, in the middle: no file, no memory, no process is left.
#[test]
fn nothing_is_left_behind_when_everything_is_killed() {
    let before = shared_memory_files();
    for pause in [5, 20, 60, 200] {
        let mut bench = earlybird(&["bench", "-n", "4", "-b", "1M", "--iters", "100000", "--fire", "solo"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        bench.kill().unwrap();
        bench.wait().unwrap();
    }
    assert_eq!(shared_memory_files(), before);
}

/// Whatever command started them, rank 0 included.
#[test]
fn errors_of_ranks_have_the_rank_in_front() {
    let bench = ["bench", "-b", "1M", "--iters", "1"];
    let run = ["run", "-n", "2", "--", env!("CARGO_BIN_EXE_earlybird")];
    for args in [[&bench[..], &["-n", "2"]].concat(), [&run[..], &bench[..]].concat()] {
        let output = earlybird(&args).env("EARLYBIRD_MEMORY_LIMIT", "1M").output().unwrap();
        let text = text(&output);
        assert!(text.contains("[0] earlybird: ") && text.contains("[1] earlybird: "), "{args:?}: {text}");
    }
}
