//! Programs that call handles, whose ranks take turns in an order that a seed draws: no order lets them wait for ever.
//!
//! `TEST_SEED=17` runs one seed, `TEST_SCHEDULES=200000` the seeds below that.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/program.rs"]
mod program;
#[path = "common/tier.rs"]
mod tier;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earlybird::fabric::scheduled::{Schedule, Scheduled};
use earlybird::fabric::shm::ShmFabric;
use earlybird::{Config, World};
use program::{Player, Program, Random};
use rand::{RngExt, SeedableRng};
use tier::by_tier;

/// No call takes that long: that no rank can go on is noticed earlier.
const PATIENCE: Duration = Duration::from_secs(300);

/// Plays the program of a seed.
///
/// # Errors
/// What went wrong, and what each rank was doing.
fn play(seed: u64, fault: Chosen) -> std::result::Result<(), String> {
    let mut random = Random::seed_from_u64(seed);
    let ranks = [2, 3, 3, 3, 4, 5][random.random_range(0..6)];
    let program = Program::drawn(&mut random, ranks);
    let schedule = Schedule::new(ranks, seed);
    let fabrics = ShmFabric::in_this_process(ranks).unwrap();
    let does: Vec<Mutex<String>> = fabrics.iter().map(|_| Mutex::default()).collect();
    let play = |rank: u32, fabric: ShmFabric| {
        let fabric = Scheduled::new(Arc::new(fabric), schedule.clone());
        let play = || {
            schedule.play(rank, || {
                let world = World::scheduled(fabric, &Config { deadline: PATIENCE, ..Config::default() }).unwrap();
                let random = Random::seed_from_u64(seed ^ (u64::from(rank) + 1) << 40);
                let (hurries, does) = (program.hurries, &does[rank as usize]);
                let returned = &|| schedule.goes_on();
                Player { random, hurries, patience: PATIENCE, returned, does }.play(&program, &world);
            });
        };
        let said = catch_unwind(AssertUnwindSafe(|| during(fault, play)));
        said.map_err(|told| told.downcast::<String>().map_or_else(|_| "a panic".to_owned(), |told| *told))
    };
    let ends: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..).zip(fabrics).map(|(rank, fabric)| scope.spawn(move || play(rank, fabric))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let told: Vec<String> = ends.into_iter().filter_map(std::result::Result::err).collect();
    if told.is_empty() {
        return Ok(());
    }
    let stuck = if schedule.is_stuck() { "no rank can go on" } else { "a rank failed" };
    let does: Vec<String> = does.into_iter().map(|does| does.into_inner().unwrap()).collect();
    Err(format!("seed {seed}: {stuck}\n  in {program:?}\n  calls: {does:?}\n  {}", told.join("\n  ")))
}

/// Plays programs of seeds from 0 on, two at a time, until one does not end as it must.
fn first_failure(schedules: u64, fault: Chosen) -> Option<String> {
    let (next, failure) = (AtomicU64::new(0), Mutex::new(None));
    let work = || {
        while failure.lock().unwrap().is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= schedules {
                break;
            }
            if seed > 0 && seed.is_multiple_of(10_000) {
                eprintln!("{seed} of {schedules} schedules");
            }
            if let Err(told) = play(seed, fault) {
                failure.lock().unwrap().get_or_insert(told);
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| _ = scope.spawn(work)));
    failure.into_inner().unwrap()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn no_order_of_calls_lets_ranks_wait_for_ever() {
    std::panic::set_hook(Box::new(|_| {}));
    let failure = match number("TEST_SEED") {
        Some(seed) => play(seed, None).err(),
        None => first_failure(number("TEST_SCHEDULES").unwrap_or_else(|| by_tier(300, 6_000)), None),
    };
    let _ = std::panic::take_hook();
    if let Some(failure) = failure {
        panic!("{failure}");
    }
}

#[cfg(not(earlybird_faults))]
type Chosen = Option<std::convert::Infallible>;

#[cfg(not(earlybird_faults))]
fn during<R>(_: Chosen, work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(earlybird_faults)]
type Chosen = Option<earlybird::fault::Fault>;

#[cfg(earlybird_faults)]
#[allow(unsafe_code)]
fn during<R>(fault: Chosen, work: impl FnOnce() -> R) -> R {
    // SAFETY: the mistakes of this suite let ranks wait. They change no memory that others use.
    let access = unsafe { earlybird::fabric::RawAccess::promise() };
    match fault {
        Some(fault) => fault.during(access, work),
        None => work(),
    }
}

#[cfg(earlybird_faults)]
#[test]
fn every_fault_is_found() {
    /// Programs within which a mistake must show.
    const WITHIN: u64 = 20_000;
    std::panic::set_hook(Box::new(|_| {}));
    let found: Vec<_> =
        earlybird::fault::Suite::Handles.faults().map(|fault| (fault, first_failure(WITHIN, Some(fault)))).collect();
    let _ = std::panic::take_hook();
    for (fault, failure) in found {
        let failure = failure.unwrap_or_else(|| panic!("{fault:?} went unnoticed in {WITHIN} programs"));
        assert!(failure.contains("no rank can go on"), "{fault:?}: {failure}");
        println!("{fault:?}: {failure}");
    }
}
