//! Processes that die or freeze: all others get an error that names them, no result is wrong, and
//! no file is left.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::tier::by_tier;
use common::{Job, Way, said};
use rustix::process::Signal;

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    common::faults::rank();
}

#[test]
fn all_ranks_name_a_killed_rank() {
    common::faults::kill(Way::Shm, by_tier(30, 100), &["cut", "tree"], Duration::ZERO..Duration::from_millis(60));
}

/// Frozen for less than the others' patience: late success. For more: an error that names it.
#[test]
fn a_frozen_rank_is_late_or_named() {
    let cases = [
        ("all cut", 8000, 500, true),
        ("all cut", 300, 2000, false),
        ("solo cut", 8000, 500, true),
        ("quorum=3 cut", 300, 2000, false),
        ("all tree", 300, 2000, false),
        ("quorum=3 tree", 300, 2000, false),
    ];
    // Two at a time: more of them would keep each other from the cores for too long.
    for two in cases.chunks(2) {
        std::thread::scope(|scope| two.iter().for_each(|&case| _ = scope.spawn(move || freeze(case))));
    }
}

fn freeze((fire, patience, frozen, succeeds): (&str, u32, u64, bool)) {
    let mut job = Job::start(Way::Shm, 3, "rank", &format!("{fire} {patience}"));
    std::thread::sleep(Duration::from_millis(300));
    job.signal(1, Signal::STOP);
    std::thread::sleep(Duration::from_millis(frozen));
    job.signal(1, Signal::CONT);
    std::thread::sleep(Duration::from_millis(200));
    let alive: Vec<bool> = job.ranks.iter_mut().map(|rank| rank.try_wait().unwrap().is_none()).collect();
    if succeeds {
        assert_eq!(alive, [true; 3], "{fire}: all go on");
    }
    job.ranks.iter_mut().for_each(|rank| rank.kill().unwrap());
    let ends = job.finish(Duration::from_secs(20));
    for (rank, (_, text)) in ends.iter().enumerate() {
        assert!(said(text, "WRONG").is_empty() && !text.contains("panicked"), "{fire}, rank {rank}: {text}");
        if !succeeds && rank != 1 {
            // The first rank to lose patience names the rank that it waited for, and the others repeat that. It
            // may not know which of two ranks froze while closing a round or moving a segment.
            let named = said(text, "TEXT").concat();
            let named = named.split("waiting for rank").nth(1).and_then(|rest| rest.split(['.', ';']).next());
            assert!(named.is_some_and(|names| names.contains('1')), "{fire}, rank {rank}: {text}");
        }
    }
}
