//! Real processes over the providers of libfabric that run on any machine: every collective, under
//! stress and with ranks that are killed.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "opens an endpoint")]

mod common;

use std::time::{Duration, Instant};

use common::marks::Marks;
use common::stress::Run;
use common::tier::{by_tier, is_deep};
use common::{Job, PROVIDERS, VERBS, Way, cpu_time, libfabric, providers};
use earlybird::fabric::{Access, At, Key, Posted, RawAccess};
use earlybird::offload::deferred_work::largest_depth;
use earlybird::{Config, Error, Executor, Fire, Grace, Mover, World};
use rustix::process::Signal;

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    match common::role().as_deref() {
        Some("leaver") => leave_early(),
        Some("fallback") => fall_back(),
        Some("busy") => compute_while_others_wait(),
        Some("patient") => wait_for_long(),
        Some("reader") => read_from_who_leaves(),
        Some(role) if role.starts_with("held-up ") => be_held_up(),
        Some(role) if role.starts_with("stopped ") => common::faults::leave_or_be_stopped(),
        Some(role) if role.split(' ').count() == 4 => common::faults::rank(),
        _ => common::stress::play(),
    }
}

/// The last rank leaves after a few steps; its process ends while the others continue.
fn leave_early() {
    let patience = Duration::from_secs(5);
    let world = World::from_env().unwrap();
    let rule = |fire: Fire| world.allreduce::<u64>(&[3000]).fire(fire).build().unwrap();
    let mut sums = [rule(Fire::ALL), rule(Fire::SOLO)];
    let steps = if world.rank() + 1 == world.size() { 5 } else { 260 };
    for _ in 0..steps {
        std::thread::sleep(Duration::from_millis(50));
        for sum in &mut sums {
            sum.contribution().unwrap().fill(1);
            sum.arrive().unwrap();
            for outcome in sum.wait(patience).unwrap() {
                assert_eq!(outcome.data()[2999], outcome.cut().contributions().count() as u64);
            }
        }
    }
    sums.iter_mut().for_each(|sum| sum.finish(patience).unwrap());
}

/// Rank 0 waits long for rank 1, again and again.
fn wait_for_long() {
    let patience = Duration::from_secs(20);
    let world = World::from_env().unwrap();
    let mut sum = world.allreduce::<u64>(&[1]).build().unwrap();
    world.barrier(patience).unwrap();
    let (started, before) = (Instant::now(), cpu_time());
    for _ in 0..12 {
        std::thread::sleep(Duration::from_millis(50 * u64::from(world.rank())));
        sum.contribution().unwrap().fill(1);
        sum.arrive().unwrap();
        assert_eq!(*sum.wait(patience).unwrap().newest(), [2]);
    }
    let (used, took) = (cpu_time() - before, started.elapsed());
    println!("rank {}: {used:?} of {took:?}", world.rank());
    // It spins for a millisecond at first, and checks for dead ranks every 20.
    assert!(used < took / 5, "a rank that waited used {used:?} of {took:?}");
    sum.finish(patience).unwrap();
}

/// Rank 0 reads from the memory of rank 1, again and again, while rank 1 leaves and ends: most of
/// the time a read is in flight. The read that fails names rank 1.
fn read_from_who_leaves() {
    const BYTES: usize = 16 << 20;
    let patience = Duration::from_secs(20);
    let mut config = Config::from_env().unwrap();
    config.ofi.patience.linger = Duration::from_millis(300);
    let world = World::with(&config).unwrap();
    // SAFETY: both ranks open one endpoint and make nothing else; neither looks at the bytes.
    let access = unsafe { RawAccess::promise() };
    let mut end = world.raw_fabric().open(access).unwrap();
    let own = end.register(BYTES, Access::Read).unwrap();
    let until = Instant::now() + patience;
    let keys = world.raw_fabric().exchange("test", &end.key(own).encode(), until).unwrap();
    if world.rank() == 1 {
        return;
    }
    let theirs = end.import(1, Key::decode(&keys[1]).unwrap()).unwrap();
    let at = |region| At { region, offset: 0 };
    let mut reads = 0;
    let error = 'reading: loop {
        let mut posted = match end.read(at(theirs), at(own), BYTES, reads) {
            Ok(posted) => posted,
            Err(error) => break error,
        };
        while posted == Posted::Pending {
            match end.poll() {
                Ok(None) => assert!(Instant::now() < until, "read {reads} never ended"),
                Ok(Some(completion)) => posted = Posted::Done(completion.value),
                Err(error) => break 'reading error,
            }
        }
        reads += 1;
    };
    println!("after {reads} reads: {error}");
    assert!(matches!(error, Error::PeerLeft { rank: 0, operation: "read", peer: 1, .. }), "{error}");
    let again = end.read(at(theirs), at(own), 8, 0).unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
}

/// Rank 0, a reducer, arrives and computes until the others have the round by fallback reads.
fn compute_while_others_wait() {
    let patience = Duration::from_secs(20);
    let world = World::from_env().unwrap();
    let value = |rank: u32, round: usize, index: usize| (rank as usize * 7 + round * 3 + index % 1009) as f32 / 7.0;
    for (length, path) in [(3001, "gathered"), (300_003, "scattered")] {
        let mut sum = world.allreduce::<f32>(&[length]).build().unwrap();
        assert_eq!(sum.path(), path);
        for round in 1..=4 {
            let (computes, pulled) = (round % 2 == 0, sum.stats().pulled);
            let all_here = || world.barrier(patience).unwrap();
            if computes && world.rank() > 0 {
                // Rank 0 has arrived: a reducer that arrives last reduces at once.
                all_here();
            }
            for (index, mine) in sum.contribution().unwrap().iter_mut().enumerate() {
                *mine = value(world.rank(), round, index);
            }
            sum.arrive().unwrap();
            if computes && world.rank() == 0 {
                all_here();
                all_here();
            }
            let until = Instant::now() + patience;
            while !computes && world.rank() == 2 && !sum.is_complete().unwrap() {
                assert!(Instant::now() < until, "{path}, round {round}: looking is not enough");
            }
            for outcome in sum.wait(patience).unwrap() {
                for (index, &found) in outcome.data().iter().enumerate() {
                    let expected = (0..world.size()).map(|rank| value(rank, round, index)).reduce(|sum, one| sum + one);
                    assert_eq!(Some(found), expected, "{path}, round {round}, element {index}");
                }
            }
            if computes && world.rank() > 0 {
                assert!(sum.stats().pulled > pulled, "{path}: round {round} came from its reducer");
                all_here();
            }
        }
        sum.finish(patience).unwrap();
    }
}

/// The rank that acknowledges nothing. It is the home of no round before the fourth.
const STOPPED: usize = 2;

/// Rank 0 makes rounds by itself until it has to wait for the stopped rank. Rank 1 contributes
/// nothing, and answers.
fn be_held_up() {
    let (marks, patience) = (Marks::of_role(), Duration::from_secs(30));
    let world = World::from_env().unwrap();
    let mut sum = world.allreduce::<u64>(&[1]).fire(Fire::SOLO).mover(Mover::Cut).build().unwrap();
    marks.set(&format!("ready-{}", world.rank()));
    if world.rank() == 0 {
        marks.wait("stopped");
        sum.contribution().unwrap().fill(1);
        sum.arrive().unwrap();
        assert_eq!(sum.wait(patience).unwrap().newest().round(), 1);
        // The next round is made, too. But after this wait the buffer of the first one is to be
        // written again, and the data that was sent from it is not acknowledged.
        sum.contribution().unwrap().fill(1);
        sum.arrive().unwrap();
        let error = sum.wait(Duration::from_secs(5)).map(drop).unwrap_err();
        let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing.0, [STOPPED as u32], "{error}");
        marks.set("named");
        sum.wait(patience).unwrap();
    } else {
        marks.wait("named");
    }
    sum.finish(patience).unwrap();
}

/// Collectives whose rounds the provider of the world cannot run.
fn fall_back() {
    let world = World::from_env().unwrap();
    let sum = || world.allreduce::<u64>(&[4]).fire(Fire::SOLO).executor(Executor::Provider);
    let able = world.provider() == Some("sockets");
    // The largest depth that fits, and one more.
    let largest = largest_depth("sockets", world.size()) as u32;
    for (depth, expected) in [(2, able), (largest, able), (largest + 1, false)] {
        let mut sum = sum().depth(depth).build().unwrap();
        assert_eq!(sum.executor() == Executor::Provider, expected, "depth {depth}: {}", sum.executor());
        sum.contribution().unwrap().fill(3);
        sum.arrive().unwrap();
        sum.wait(Duration::from_secs(20)).unwrap();
        sum.finish(Duration::from_secs(20)).unwrap();
    }
    let refused = [
        sum().grace(Grace::Fixed(Duration::from_millis(1))),
        sum().mover(Mover::Cut),
        sum().fire("solo,deadline=5ms".parse().unwrap()),
        sum().fire("quorum=2,full=3".parse().unwrap()),
    ];
    for builder in refused {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, earlybird::Error::Usage { .. }), "{error}");
        assert!(error.to_string().contains("a provider"), "{error}");
    }
}

#[test]
fn no_rank_waits_for_a_reducer_that_computes() {
    for &provider in providers() {
        let ends = Job::start(Way::Ofi(provider), 3, "rank", "busy").finish(Duration::from_secs(60));
        assert!(ends.iter().all(|(status, _)| status.success()), "{provider}: {ends:?}");
    }
}

/// If a provider cannot run a round, or cannot queue so much, the ranks run it, and all agree on that.
#[test]
fn ranks_run_the_rounds_that_no_provider_can() {
    if libfabric().is_none() {
        return;
    }
    for provider in [PROVIDERS[0], PROVIDERS[1]] {
        let ends = Job::start(Way::Ofi(provider), 3, "rank", "fallback").finish(Duration::from_secs(60));
        assert!(ends.iter().all(|(status, _)| status.success()), "{ends:?}");
    }
}

/// The wait object of a provider is not always readable.
#[test]
fn a_rank_that_waits_for_long_sleeps() {
    if libfabric().is_none() {
        return;
    }
    // The threads of `sockets` spin; `shm` and `ofi_rxd` have no wait object.
    for provider in [PROVIDERS[0], "tcp"] {
        let ends = Job::start(Way::Ofi(provider), 2, "rank", "patient").finish(Duration::from_secs(60));
        assert!(ends.iter().all(|(status, _)| status.success()), "{provider}: {ends:?}");
    }
}

/// It serves ranks that are behind for ten seconds; a later write to it must not wait for that.
#[test]
fn a_rank_that_left_is_not_missed() {
    if libfabric().is_none() {
        return;
    }
    let ends = Job::start(Way::Ofi(PROVIDERS[0]), 3, "rank", "leaver").finish(Duration::from_secs(60));
    assert!(ends.iter().all(|(status, _)| status.success()), "{ends:?}");
}

/// The error names the rank that left.
#[test]
fn a_read_from_a_rank_that_leaves_ends() {
    if libfabric().is_none() {
        return;
    }
    let ends = Job::start(Way::Ofi(PROVIDERS[0]), 2, "rank", "reader").finish(Duration::from_secs(60));
    assert!(ends.iter().all(|(status, _)| status.success()), "{ends:?}");
}

/// The stopped rank sees that other processes have ended before it has read their messages, and the
/// last round of another rank.
#[test]
fn a_stopped_rank_receives_all_from_ranks_that_left() {
    if libfabric().is_none() {
        return;
    }
    common::faults::stop_while_others_leave(|role| Job::start(Way::Ofi(PROVIDERS[0]), 3, "rank", role));
}

#[test]
fn only_the_rank_that_acknowledges_nothing_is_named() {
    if libfabric().is_none() {
        return;
    }
    let marks = Marks::make();
    let mut job = Job::start(Way::Ofi(PROVIDERS[0]), 3, "rank", &format!("held-up {}", marks.folder()));
    (0..3).for_each(|rank| job.wait_for_mark(rank, (&marks, &format!("ready-{rank}"))));
    job.stop(STOPPED);
    marks.set("stopped");
    job.wait_for_mark(0, (&marks, "named"));
    job.signal(STOPPED, Signal::CONT);
    let ends = job.finish(Duration::from_secs(60));
    assert!(ends.iter().all(|(status, _)| status.success()), "{ends:?}");
}

/// Sums are exact and floats have the same bits on all ranks, in rounds that fire for each reason.
/// `part` divides the usual number of rounds, for slow providers.
fn stress(provider: &'static str, part: u64) {
    if libfabric().is_none() {
        return;
    }
    let part = by_tier(8, 1) * part;
    let few = !is_deep() && provider != PROVIDERS[0];
    let rules = ["all", "solo", "quorum=2", "majority"].into_iter().filter(|&fire| !few || fire == "quorum=2");
    let cases = [
        (5, Executor::Caller, &[(24, 60)][..]),
        (2, Executor::Caller, &[(150_000, 10), (24, 200)]),
        (3, Executor::Caller, &[(3000, 40), (40_000, 10), (100_000, 10)]),
        (3, Executor::Thread, &[(3000, 40), (100_000, 6)]),
    ];
    for (ranks, executor, sizes) in cases {
        let runs = rules.clone().flat_map(|fire| {
            let run = move |&(length, steps): &(usize, u64)| Run {
                fire,
                how: (Mover::Cut, executor),
                length,
                steps: (steps / part).max(6),
            };
            sizes.iter().map(run)
        });
        common::stress::stress_in_turn(Way::Ofi(provider), ranks, &runs.collect::<Vec<_>>());
    }
}

#[test]
fn tcp() {
    stress(PROVIDERS[0], 1);
}

#[test]
fn sockets() {
    stress(PROVIDERS[1], 4);
}

#[test]
fn shm() {
    stress(PROVIDERS[2], 1);
}

#[test]
fn verbs() {
    if common::verbs() {
        stress(VERBS, 4);
    }
}

#[test]
fn udp() {
    stress(PROVIDERS[3], 1);
}

/// The provider runs the rounds; ranks that leave early still serve the others.
#[test]
fn provider_executor() {
    if libfabric().is_none() {
        return;
    }
    let stress = |fire, how, (ranks, length, steps)| {
        common::stress::stress(Way::Ofi("sockets"), ranks, Run { fire, how, length, steps })
    };
    for &fire in by_tier(&["quorum=2"][..], &["all", "solo", "quorum=2", "majority"]) {
        for case in [(2, 24, 100), (3, 3000, 30), (5, 24, 16)] {
            stress(fire, (Mover::Tree, Executor::Provider), case);
        }
    }
    // Synchronous: which contributions a round has does not depend on time.
    let case = (3, 3000, 14);
    let digests = stress("all", (Mover::Tree, Executor::Provider), case);
    assert_eq!(digests, stress("all", (Mover::Cut, Executor::Caller), case), "a provider's ranks sum in another order");
}

#[test]
fn all_ranks_name_a_killed_rank() {
    if libfabric().is_none() {
        return;
    }
    // libfabric takes some tenths of a second to list its providers. A rank that is killed before
    // it was introduced is missed only when the deadline has passed.
    let turns = by_tier(2, 9);
    let window = Duration::from_millis(300)..Duration::from_millis(1500);
    let outliving = providers().iter().filter(|&&provider| Way::Ofi(provider).outlives_kills());
    let cuts = outliving.map(|&provider| (provider, "cut"));
    // Ranks wait for most of the time, so that worlds run beside each other.
    std::thread::scope(|scope| {
        for (provider, executor) in cuts.chain([("sockets", "provider")]) {
            let window = window.clone();
            scope.spawn(move || common::faults::kill(Way::Ofi(provider), turns, &[executor], window));
        }
    });
}
