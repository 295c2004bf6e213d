//! Every order of effects that the memory model allows, for each protocol in the head of the memory
//! file. Run as `docs/testing.md` says.
#![allow(unsafe_code)]

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::doorbell::Doorbell;
use super::failure::FailureCell;
use super::mailbox::Mailbox;
use crate::fabric::failure::Failure;
use crate::sync::{AtomicU64, add, announce, full_fence, look};

const LONG: Duration = Duration::from_secs(1);

/// What the sleeper waits for, whatever comes between.
fn sleep_until(bell: &Doorbell, interest: u32, is_there: impl Fn() -> bool) {
    while !is_there() {
        bell.announce(interest);
        if is_there() {
            bell.withdraw();
            break;
        }
        bell.sleep(LONG);
    }
}

/// Whoever changes what is waited for and rings ends the wait.
fn wakes(ring: fn(&Doorbell)) {
    loom::model(move || {
        let shared = Arc::new((Doorbell::default(), AtomicU64::new(0)));
        let sleeper = {
            let shared = shared.clone();
            thread::spawn(move || sleep_until(&shared.0, 1, || look(&shared.1) == 1))
        };
        announce(&shared.1, 1);
        full_fence();
        ring(&shared.0);
        sleeper.join().unwrap();
    });
}

#[test]
fn no_ring_is_lost() {
    wakes(|bell| _ = bell.ring(1));
}

#[test]
fn no_general_ring_is_lost() {
    wakes(Doorbell::ring_always);
}

/// A ring for something else neither wakes the sleeper nor takes its announcement.
#[test]
fn a_ring_for_something_else_takes_nothing() {
    loom::model(|| {
        let shared = Arc::new((Doorbell::default(), AtomicU64::new(0)));
        let sleeper = {
            let shared = shared.clone();
            thread::spawn(move || sleep_until(&shared.0, 2, || look(&shared.1) == 1))
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || assert!(!shared.0.ring(1)))
        };
        announce(&shared.1, 1);
        full_fence();
        shared.0.ring(2);
        other.join().unwrap();
        sleeper.join().unwrap();
    });
}

/// Three turns between two ranks: nobody overwrites what the other has not read, and of the last to
/// post at least one sees both (and would wake the other).
#[test]
fn an_exchange_is_read_as_it_was_posted() {
    loom::model(|| {
        let boxes = Arc::new([[Mailbox::default(), Mailbox::default()], [Mailbox::default(), Mailbox::default()]]);
        let play = |me: usize, boxes: Arc<[[Mailbox; 2]; 2]>| {
            let mut saw_both = [false; 3];
            for turn in 1..=3u64 {
                let of = |rank: usize| &boxes[rank][(turn % 2) as usize];
                of(me).post(turn, &[me as u8, turn as u8]);
                saw_both[turn as usize - 1] = of(1 - me).turn() >= turn;
                while of(1 - me).turn() < turn {
                    thread::yield_now();
                }
                assert_eq!(of(1 - me).read(), [1 - me as u8, turn as u8]);
            }
            saw_both
        };
        let other = {
            let boxes = boxes.clone();
            thread::spawn(move || play(1, boxes))
        };
        let mine = play(0, boxes);
        let theirs = other.join().unwrap();
        assert!((0..3).all(|turn| mine[turn] || theirs[turn]), "nobody would wake the other");
    });
}

#[test]
fn the_first_failure_stays_and_is_whole() {
    loom::model(|| {
        let cell = Arc::new(FailureCell::default());
        let failures = [Failure::Aborted { by: 1, reason: "one".into() }, Failure::Died { peer: 2, how: "two".into() }];
        let writers: Vec<_> = failures
            .iter()
            .cloned()
            .map(|failure| {
                let cell = cell.clone();
                thread::spawn(move || cell.set(&failure))
            })
            .collect();
        let seen = cell.get();
        assert!(seen.is_none() || seen.as_ref().is_some_and(|seen| failures.contains(seen)));
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let last = cell.get();
        assert!(last.as_ref().is_some_and(|last| failures.contains(last)));
        assert!(seen.is_none() || seen == last);
    });
}

/// Three ranks show their tags, as in a synchronous round: one of them at least sees all, and it
/// sees the data that came before them.
#[test]
fn of_the_last_tags_somebody_sees_all() {
    loom::model(|| {
        let shared = Arc::new([(); 3].map(|()| (AtomicU64::new(0), UnsafeCell::new(0))));
        let play = |me: usize, shared: Arc<[(AtomicU64, UnsafeCell<u64>); 3]>| {
            // SAFETY: written before the tag is shown, and by nobody else.
            shared[me].1.with_mut(|data| unsafe { *data = me as u64 + 1 });
            announce(&shared[me].0, 1);
            full_fence();
            let all = shared.iter().all(|(tag, _)| look(tag) == 1);
            if all {
                // SAFETY: all tags are there, so nobody writes any more.
                let sum: u64 = shared.iter().map(|(_, data)| data.with(|data| unsafe { *data })).sum();
                assert_eq!(sum, 6);
            }
            all
        };
        let others: Vec<_> = [1, 2]
            .into_iter()
            .map(|rank| {
                let shared = shared.clone();
                thread::spawn(move || play(rank, shared))
            })
            .collect();
        let mut seen = play(0, shared);
        for other in others {
            seen |= other.join().unwrap();
        }
        assert!(seen);
    });
}

/// A bit that is added to the word carries the tag that was stored before it.
#[test]
fn who_finds_a_bit_finds_the_tag() {
    loom::model(|| {
        let shared = Arc::new((AtomicU64::new(0), [AtomicU64::new(0), AtomicU64::new(0)]));
        let play = |me: usize, shared: Arc<(AtomicU64, [AtomicU64; 2])>| {
            announce(&shared.1[me], 7);
            let before = add(&shared.0, 1 << me);
            if before != 0 {
                assert_eq!(look(&shared.1[1 - me]), 7);
            }
            before == 0
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || play(1, shared))
        };
        let first = play(0, shared);
        assert!(first != other.join().unwrap(), "exactly one comes first");
    });
}

/// Segments are claimed once each, and whoever counts the last one sees all of them.
#[test]
fn segments_are_moved_once() {
    loom::model(|| {
        let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0), [UnsafeCell::new(0), UnsafeCell::new(0)]));
        let play = |shared: Arc<(AtomicU64, AtomicU64, [UnsafeCell<u64>; 2])>| {
            let mut batch = 0;
            loop {
                let segment = add(&shared.0, 1);
                if segment >= 2 {
                    break;
                }
                // SAFETY: the claim is this thread's alone.
                shared.2[segment as usize].with_mut(|data| unsafe { *data += segment + 1 });
                batch += 1;
            }
            if batch > 0 && add(&shared.1, batch) + batch == 2 {
                // SAFETY: both are counted.
                let sum: u64 = shared.2.iter().map(|data| data.with(|data| unsafe { *data })).sum();
                assert_eq!(sum, 3);
                return 1;
            }
            0
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || play(shared))
        };
        assert_eq!(play(shared) + other.join().unwrap(), 1, "one counts the last");
    });
}
