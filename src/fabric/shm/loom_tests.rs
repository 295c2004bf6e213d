//! Checks each protocol of this folder in every order of effects that the memory model allows. Run
//! as `docs/testing.md` says.

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use super::channels::Channels;
use super::doorbell::{Doorbell, Rings};
use super::failure::FailureCell;
use super::mailbox::Mailbox;
use crate::fabric::failure::Failure;
use crate::sync::modelled::{Operation, check, find};
use crate::sync::{AtomicU64, announce, full_fence, look};

const LONG: Duration = Duration::from_secs(1);

/// Sleeps, as often as it takes, until `is_there`.
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

/// A rank that changes the awaited cell and rings ends the wait.
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
    wakes(|bell| _ = bell.ring(1, &Rings::default()));
}

#[test]
fn no_general_ring_is_lost() {
    wakes(|bell| bell.ring_always(&Rings::default()));
}

/// Sleeps for all channels at once, as often as it takes, until `is_there` for each of them.
fn sleep_until_all(bells: &[Doorbell], sleeper: &Rings, is_there: impl Fn(usize) -> bool) {
    let mut missing: Vec<usize> = (0..bells.len()).collect();
    while !missing.is_empty() {
        let seen = sleeper.count();
        let mut sleeps = true;
        missing.retain(|&channel| {
            let bell = &bells[channel];
            if bell.is_delegated() {
                return true;
            }
            sleeps = false;
            bell.announce(1);
            let is_missing = !is_there(channel);
            if is_missing {
                bell.delegate();
            } else {
                bell.withdraw();
            }
            is_missing
        });
        if sleeps {
            sleeper.sleep(seen, LONG);
        }
    }
}

/// Ranks that change the awaited cells, each in a channel of its own, and ring, end the sleep for all of them.
fn ends_sleeps(channels: usize, preemptions: Option<usize>, ring: fn(&Doorbell, &Rings)) {
    check(preemptions, move || {
        let bells: Vec<_> = (0..channels).map(|_| Doorbell::default()).collect();
        let cells: Vec<_> = (0..channels).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new((bells, cells, Rings::default()));
        let sleeper = {
            let shared = shared.clone();
            thread::spawn(move || sleep_until_all(&shared.0, &shared.2, |channel| look(&shared.1[channel]) == 1))
        };
        let change = move |shared: &(Vec<Doorbell>, Vec<AtomicU64>, Rings), channel: usize| {
            announce(&shared.1[channel], 1);
            full_fence();
            ring(&shared.0[channel], &shared.2);
        };
        let spawn = |channel| {
            let shared = shared.clone();
            thread::spawn(move || change(&shared, channel))
        };
        let others: Vec<_> = (1..channels).map(spawn).collect();
        change(&shared, 0);
        others.into_iter().for_each(|other| other.join().unwrap());
        sleeper.join().unwrap();
    });
}

#[test]
fn no_delegated_ring_is_lost() {
    ends_sleeps(1, None, |bell, sleeper| _ = bell.ring(1, sleeper));
}

#[test]
fn no_general_delegated_ring_is_lost() {
    ends_sleeps(1, None, |bell, sleeper| bell.ring_always(sleeper));
}

#[test]
fn a_sleep_for_two_channels_ends_with_each_of_them() {
    ends_sleeps(2, Some(2), |bell, sleeper| _ = bell.ring(1, sleeper));
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
            thread::spawn(move || assert!(!shared.0.ring(1, &Rings::default())))
        };
        announce(&shared.1, 1);
        full_fence();
        shared.0.ring(2, &Rings::default());
        other.join().unwrap();
        sleeper.join().unwrap();
    });
}

/// Three turns between two ranks: no rank overwrites what the other has not read, and of the last
/// two to post at least one sees both posts (and would wake the other).
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
        assert!((0..3).all(|turn| mine[turn] || theirs[turn]), "no rank would wake the other");
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

#[test]
fn a_sleep_without_a_fence_is_found() {
    find(Operation::Fence, no_ring_is_lost);
    find(Operation::Fence, no_general_ring_is_lost);
    find(Operation::Fence, no_delegated_ring_is_lost);
    find(Operation::Fence, no_general_delegated_ring_is_lost);
}

#[test]
fn a_post_without_its_orderings_is_found() {
    for operation in [Operation::Announce, Operation::Look, Operation::Fence] {
        find(operation, an_exchange_is_read_as_it_was_posted);
    }
}

/// Two ranks that open endpoints in the same order agree on their channels, whichever is faster, and a channel is used again
/// after both have closed it.
#[test]
fn ranks_agree_on_channels() {
    loom::model(|| {
        let channels = Arc::new(Channels::<4>::default());
        let freed = Arc::new(AtomicU64::new(0));
        let play = |channels: &Channels<4>, freed: &AtomicU64| {
            [1, 2].map(|number| {
                let channel = channels.open(number).unwrap();
                channels.close(channel, 2, |is_last| {
                    if is_last {
                        assert_eq!(freed.fetch_add(1, crate::sync::Ordering::Relaxed) + 1, number);
                    }
                });
                channel
            })
        };
        let other = {
            let (channels, freed) = (channels.clone(), freed.clone());
            thread::spawn(move || play(&channels, &freed))
        };
        let mine = play(&channels, &freed);
        assert_eq!(other.join().unwrap(), mine);
    });
}
