//! Checks in which ranks act concurrently, each in a thread of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use super::{BEHIND, CELL, Fabrics, LENGTHS, MakeWorld, SIZE, World, at, open, patience, sized, word, world};
use crate::fabric::{Change, Endpoint, MOST_EXCHANGED, Posted, Region, Signal};

/// Each rank gives other bytes in each turn, and a fast rank goes on with the next.
pub(super) fn exchanges_bring_what_each_gave(make: MakeWorld<'_>, ranks: u32) {
    const TURNS: u32 = 100;
    let (fabrics, patience) = (Fabrics(make(ranks).0), patience());
    if fabrics[0].name() == "sim" {
        return; // all of its ranks are made by one hand
    }
    let gift = |rank: u32, turn: u32| -> Vec<u8> {
        let len = (turn * 389 + rank * 101) as usize % (MOST_EXCHANGED + 1);
        (0..len).map(|index| word(u64::from(turn), index + MOST_EXCHANGED * rank as usize) as u8).collect()
    };
    let long = |rank: u32| vec![rank as u8; 2 * MOST_EXCHANGED + 7 * rank as usize];
    std::thread::scope(|scope| {
        for fabric in fabrics.iter() {
            scope.spawn(move || {
                let me = fabric.rank();
                for turn in 1..=TURNS {
                    let until = Instant::now() + patience;
                    let given = fabric.exchange("conformance", &gift(me, turn), until).expect("exchange");
                    let expected: Vec<_> = (0..ranks).map(|rank| gift(rank, turn)).collect();
                    assert!(given == expected, "rank {me} of {ranks} got something else in turn {turn}");
                }
                let given = fabric.exchange_long("conformance", &long(me), Instant::now() + patience);
                let expected: Vec<_> = (0..ranks).map(long).collect();
                assert!(given.expect("exchange") == expected, "rank {me} of {ranks} got something else in the end");
            });
        }
    });
}

/// Rank 1 waits for a signal, awake and asleep, and then reads all of its data at once, the last
/// bytes first.
pub(super) fn a_signal_comes_after_all_of_its_data(make: MakeWorld<'_>) {
    let (mut world, patience) = (sized(make, 2, BEHIND + CELL), patience());
    let (source, target) = (world.own(0), world.own(1));
    let (near, far) = (world.regions[0][0], world.regions[0][1]);
    let World { ends, .. } = &mut world;
    let [one, two] = &mut ends[..] else { panic!("two ends") };
    let times = |len: usize| if len > 1 << 20 { 2 } else { 25 };
    let lengths = LENGTHS.iter().flat_map(|&len| std::iter::repeat_n(len, times(len)));
    let rounds: Vec<(u64, usize)> = (1..).zip(lengths).collect();
    let checked = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (rounds, checked) = (&rounds, &checked);
        let reading = scope.spawn(move || {
            for &(round, len) in rounds {
                let start = Instant::now();
                let has_come = || target.cell(BEHIND / CELL).load(Ordering::Acquire) == round;
                while !has_come() {
                    if round.is_multiple_of(2) {
                        two.prepare_wait(1);
                        if has_come() {
                            two.cancel_wait();
                        } else {
                            two.wait(patience);
                        }
                    }
                    assert_eq!(two.poll().expect("poll"), None, "a completion for nothing");
                    assert!(start.elapsed() < patience / 2, "the signal of {len} bytes never came, or ended no wait");
                }
                let is_stale = |cell: &usize| target.cell(*cell).load(Ordering::Relaxed) != word(round, *cell);
                let stale = (0..len / CELL).rev().find(is_stale);
                assert_eq!(stale, None, "the signal of {len} bytes came before one of their cells");
                checked.store(round, Ordering::Release);
            }
        });
        for &(round, len) in rounds {
            (0..len / CELL).for_each(|cell| source.cell(cell).store(word(round, cell), Ordering::Relaxed));
            let (change, awaited) = (Change::Set(round), round.is_multiple_of(3));
            let signal = Signal { at: at(far, BEHIND), change, awaited };
            let posted = one.put(at(near, 0), at(far, 0), len, Some(signal), round).expect("put");
            let (start, mut completed) = (Instant::now(), posted != Posted::Pending);
            while !completed || checked.load(Ordering::Acquire) != round {
                completed |= one.poll().expect("poll").is_some();
                if reading.is_finished() && checked.load(Ordering::Acquire) != round {
                    return; // it has found something
                }
                assert!(start.elapsed() < patience, "a put of {len} bytes does not complete");
            }
        }
    });
}

/// A rank that sleeps is woken by a rank of its host, and by a signal.
pub(super) fn sleepers_are_woken(make: MakeWorld<'_>) {
    const ROUNDS: u64 = 9;
    let (mut world, patience) = (world(make, 2), patience());
    let hosts = world.hosts.clone();
    let (far, target) = (world.regions[0][1], world.own(1));
    let World { ends, .. } = &mut world;
    let [one, two] = &mut ends[..] else { panic!("two ends") };
    let (news, asleep, awake) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (news, asleep, awake) = (&news, &asleep, &awake);
        let sleeping = scope.spawn(move || {
            for round in 1..=ROUNDS {
                let start = Instant::now();
                loop {
                    two.prepare_wait(1);
                    let cells = [news.load(Ordering::Acquire), target.cell(0).load(Ordering::Acquire)];
                    if cells.contains(&round) {
                        break;
                    }
                    asleep.store(round, Ordering::Release);
                    two.wait(patience);
                    assert!(start.elapsed() < patience / 2, "it slept through round {round}");
                }
                two.cancel_wait();
                awake.store(round, Ordering::Release);
            }
        });
        end_sleeps(ROUNDS, &mut [one], (asleep, awake, &sleeping), patience, |round, _, one| match round % 2 {
            1 if hosts[0] == hosts[1] => {
                news.store(round, Ordering::Release);
                one.wake(u32::MAX, 1);
                true
            }
            _ => signal(one, far, round),
        });
    });
}

/// Ends each sleep of a thread, by one of the `ends` in turn. The thread stores the round in which it sleeps, and then
/// that in which it is awake again. `act` gets the round, and the number of the end and the end; it returns whether what
/// it did has completed.
fn end_sleeps(
    rounds: u64,
    ends: &mut [&mut Box<dyn Endpoint>],
    (asleep, awake, sleeping): (&AtomicU64, &AtomicU64, &ScopedJoinHandle<'_, ()>),
    patience: Duration,
    act: impl Fn(u64, usize, &mut dyn Endpoint) -> bool,
) {
    for round in 1..=rounds {
        let start = Instant::now();
        while asleep.load(Ordering::Acquire) != round && !sleeping.is_finished() {
            std::thread::yield_now();
        }
        // Usually it sleeps by then. If not, it has to notice that it must not sleep.
        std::thread::sleep(Duration::from_millis(1));
        let which = round as usize % ends.len();
        let end = &mut **ends[which];
        let mut completed = act(round, which, end);
        while !completed || awake.load(Ordering::Acquire) != round {
            completed |= end.poll().expect("poll").is_some();
            if sleeping.is_finished() && awake.load(Ordering::Acquire) != round {
                return; // it says why
            }
            assert!(start.elapsed() < patience, "round {round} does not end");
        }
    }
}

/// Sets the first cell of a region to the round, with a signal; whether that has completed.
fn signal(end: &mut dyn Endpoint, region: Region, round: u64) -> bool {
    let signal = Signal { at: at(region, 0), change: Change::Set(round), awaited: true };
    end.signal(signal, round).expect("signal") != Posted::Pending
}

/// A thread that sleeps for two endpoints of a rank is woken by a signal at either, by a rank of its host, and by its
/// waker.
pub(super) fn a_sleeper_is_woken(make: MakeWorld<'_>) {
    const ROUNDS: u64 = 12;
    let (mut world, patience) = (world(make, 2), patience());
    let Some(mut sleeper) = world.fabrics[1].sleeper() else { return };
    let hosts = world.hosts.clone();
    let (mut more, regions) = open(&world.fabrics, SIZE);
    let far = [world.regions[0][1], regions[0][1]];
    let targets = [world.own(1), more[1].window(regions[1][1]).expect("the own region is mapped")];
    let ([one, two], [more_one, more_two]) = (&mut world.ends[..], &mut more[..]) else { panic!("two ends each") };
    let (mut ones, mut twos) = ([one, more_one], [two, more_two]);
    for two in &mut twos {
        two.prepare_wait(1);
        assert!(two.delegate_wait() && two.is_delegated(), "nothing has ended the wait");
        two.cancel_wait();
        assert!(!two.is_delegated() && !two.delegate_wait(), "no wait is announced");
    }
    let waker = sleeper.waker();
    let (news, asleep, awake) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (news, asleep, awake) = (&news, &asleep, &awake);
        let sleeping = scope.spawn(move || {
            for round in 1..=ROUNDS {
                let start = Instant::now();
                loop {
                    sleeper.prepare();
                    twos.iter_mut().for_each(|two| two.prepare_wait(1));
                    let cells = targets.iter().map(|target| target.cell(0).load(Ordering::Acquire));
                    if cells.chain([news.load(Ordering::Acquire)]).any(|cell| cell == round) {
                        break;
                    }
                    if twos.iter_mut().all(|two| two.delegate_wait()) {
                        asleep.store(round, Ordering::Release);
                        sleeper.sleep(patience);
                    }
                    assert!(start.elapsed() < patience / 2, "it slept through round {round}");
                }
                twos.iter_mut().for_each(|two| two.cancel_wait());
                awake.store(round, Ordering::Release);
            }
        });
        end_sleeps(ROUNDS, &mut ones, (asleep, awake, &sleeping), patience, |round, which, one| match round % 4 {
            0 => {
                news.store(round, Ordering::Release);
                waker.wake();
                true
            }
            1 if hosts[0] == hosts[1] => {
                news.store(round, Ordering::Release);
                one.wake(u32::MAX, 1);
                true
            }
            _ => signal(one, far[which], round),
        });
    });
}
