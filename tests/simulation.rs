//! The protocol against an oracle that knows every contribution, over random schedules.
//!
//! A failure prints the seed that replays it: `TEST_SEED=17 cargo test --all-features --test
//! simulation small_worlds` runs only that schedule.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/tier.rs"]
mod tier;

use std::sync::Arc;

use earlybird::simulation::{Case, Coverage, Failure, Options, Recording, fuzz, replay, run, shrink};
use earlybird::{Fire, Mover};
use tier::{by_tier, is_deep};

/// The schedules of the deep tier over P = 1..17, and over P = 33..70, where a cut takes two and three words.
const SMALL: u64 = 36_000;
const LARGE: u64 = 4_800;

/// The quick tier runs one in so many of the schedules.
const SHARE: u64 = 12;

/// Cases that so few schedules may miss.
const RARE: [&str; 2] = ["closed_for_others", "successors_died"];

fn run_all(seeds: std::ops::Range<u64>, options: &Options) -> (Coverage, Option<Failure>) {
    let seeds = match std::env::var("TEST_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => seeds.start..seeds.start + (seeds.end - seeds.start) / by_tier(SHARE, 1),
    };
    let found = fuzz(seeds, Case::from, options, 1, |_| {});
    let smallest = found.failures.into_iter().next().map(|failure| shrink(failure, options, 5_000));
    (found.coverage, smallest)
}

/// Runs all schedules; `foreign` are the cases that cannot occur in this kind of world.
fn holds(seeds: std::ops::Range<u64>, options: &Options, foreign: &[&str]) {
    let (coverage, failure) = run_all(seeds.clone(), options);
    if let Some(failure) = failure {
        panic!("{failure}");
    }
    for (case, count) in coverage.counters() {
        println!("{case:>20} {count}");
        let alone = std::env::var_os("TEST_SEED").is_some();
        assert!(
            count > 0 || alone || foreign.contains(&case) || (RARE.contains(&case) && !is_deep()),
            "{case} was never met: the test shows little",
        );
    }
}

#[test]
fn small_worlds() {
    holds(0..SMALL, &Options::default(), &[&CALM[..], &IMMORTAL, &PROGRAMS].concat());
}

/// Programs instead of cuts by word.
const TREE: u64 = 40_000;

/// A rank dies at any moment, or two.
const DEADLY: u64 = 16_000;

/// Cases that need a death.
const IMMORTAL: [&str; 5] = ["deaths", "deaths_together", "deaths_while_leaving", "successors_died", "inherited"];

/// Cases that need the tree mover.
const PROGRAMS: [&str; 2] = ["operations", "messages_relayed"];

/// Cases that need the cut mover.
const CUTS: [&str; 6] = ["segments", "awaited", "groups", "idle", "pulled", "moved_shares"];

/// Cases that need a network with troubles.
const CALM: [&str; 5] = ["repeats", "not_ready", "stalled", "broken", "freezes"];

#[test]
fn trees() {
    let options = Options { movers: vec![Mover::Tree], ..Options::default() };
    holds(2_000_000..2_000_000 + TREE, &options, &[&CALM[..], &IMMORTAL, &CUTS].concat());
}

#[test]
fn deaths() {
    let options = Options { deaths: 1.0, movers: vec![Mover::Tree], ..Options::default() };
    holds(3_000_000..3_000_000 + DEADLY, &options, &[&CALM[..], &CUTS].concat());
    let options = Options { deaths: 1.0, ..Options::default() };
    holds(
        4_000_000..4_000_000 + DEADLY / 2,
        &options,
        &[&CALM[..], &["operations", "messages_relayed", "inherited", "successors_died"]].concat(),
    );
}

/// What `earlybird fuzz` runs.
const EVERYTHING: u64 = 20_000;

#[test]
fn everything() {
    // So few schedules with a death hardly ever kill a rank that has taken over an operation.
    holds(0..EVERYTHING, &Options::everything(), &["successors_died"]);
}

/// Schedules under quorums that the collective chooses itself.
const CHOSEN: u64 = 24_000;

/// The oracle chooses, too, from the cuts that it sees, and knows by it which rounds may fire.
#[test]
fn all_ranks_choose_the_same_quorum() {
    let fires = vec![Fire::AUTO, Fire::auto(1), Fire::auto(50)];
    let options = Options { fires, steps: 12, ..Options::everything() };
    let (coverage, failure) = run_all(6_000_000..6_000_000 + CHOSEN, &options);
    if let Some(failure) = failure {
        panic!("{failure}");
    }
    println!("{} rounds, {} of them before one with a smaller quorum", coverage.rounds, coverage.lowered);
    assert!(coverage.lowered * 4 > coverage.rounds && coverage.finish_races > 0);
}

/// A unique initiator announces a round by P - 1 messages, the flood by P ⌈log2 P⌉.
#[test]
fn activations_are_counted() {
    for ranks in 1..=17u32 {
        let run = |mover: Mover, fire: Fire, seed: u64| {
            let (ranks, fires, movers) = (vec![ranks..=ranks], vec![fire], vec![mover]);
            let options = Options { ranks, fires, movers, alike: true, variations: false, ..Options::default() };
            run(&Case::from(seed), &options).unwrap()
        };
        for seed in 0..20 {
            // All leave in the same round, so all learn of every round.
            let cut = run(Mover::Cut, Fire::quorum(ranks), seed);
            assert_eq!(cut.activations, cut.rounds * u64::from(ranks - 1), "{ranks} ranks");
            let fire = [Fire::SOLO, Fire::quorum(0), Fire::quorum(ranks)][seed as usize % 3];
            let tree = run(Mover::Tree, fire, seed);
            let hops = u64::from(ranks.next_power_of_two().ilog2());
            assert!(tree.rounds > 0);
            let all = tree.rounds * u64::from(ranks) * hops;
            // Without shared memory ranks that leave one after the other take no part in the last rounds.
            let fewer = tree.messages_relayed > 0 && tree.activations < all;
            assert!(tree.activations == all || fewer, "{ranks} ranks: {} of {all}", tree.activations);
        }
    }
}

/// Orders of events in which the deep tier runs each recorded world. About one of a hundred failed.
const ORDERS: u64 = 8_000;

/// Worlds that failed once; recordings do not change with the generator.
#[test]
fn recorded_worlds() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpora/worlds");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty());
    for file in files {
        let recording: Recording = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        let recording = Arc::new(recording.named(file.file_name().unwrap().to_string_lossy()));
        assert_eq!(recording.to_string().parse::<Recording>().unwrap().to_string(), recording.to_string());
        let orders = by_tier(ORDERS / SHARE, ORDERS);
        let found = fuzz(0..orders, |order| recording.in_order(order), &Options::default(), 1, |_| {});
        assert!(found.failures.is_empty(), "{}", found.failures[0]);
        assert!(found.coverage.rounds >= orders, "{file:?}: nothing happened");
    }
}

/// Plays a world that people can read, in 50 orders. In each, the three fast ranks make their rounds by relays, and the
/// contributions of the slow rank are carried.
#[test]
fn relays_carry_a_slow_rank() {
    let text = include_str!("corpora/scenarios/relays-carry-a-slow-rank.toml");
    let recording = Arc::new(text.parse::<Recording>().unwrap().named("relays-carry-a-slow-rank"));
    let mut all = Coverage::default();
    for order in 0..50 {
        let met = run(&recording.in_order(order), &Options::default()).unwrap();
        assert_eq!(met.contributions, 3 * 6 + 2);
        assert!(met.rounds >= 6 && met.messages_relayed > 0, "order {order}: {met:?}");
        all.add(&met);
    }
    // In some orders over several rounds.
    assert!(all.jumps > 0, "{all:?}");
}

#[test]
fn worlds_of_several_words() {
    let options = Options { ranks: vec![33..=70], ..Options::default() };
    holds(1_000_000..1_000_000 + LARGE, &options, &[&CALM[..], &IMMORTAL, &PROGRAMS].concat());
}

#[cfg(earlybird_faults)]
mod faults {
    use std::collections::BTreeSet;
    use std::ops::Range;

    use super::*;
    use earlybird::fault::{Fault, Guarantee, Suite};
    use earlybird::simulation::Failure;

    /// Schedules within which a fault must show.
    const WITHIN: u64 = 20_000;

    /// The first of them. A share that comes late to new reducers shows in one of 30,000, and a write of a rank that has left,
    /// which lands again in a later round, in one of 15,000.
    const FROM: u64 = 20_000;

    /// The first schedule in which each mistake of a suite breaks the promise that its table names. The core asserts its
    /// invariants, so a mistake may show as a panic in another schedule: that is no promise.
    fn find(suite: Suite, seeds: Range<u64>, play: impl Fn(u64, Fault) -> Option<Failure>) {
        // Thousands of panics need not be printed.
        std::panic::set_hook(Box::new(|_| {}));
        let find = |fault: Fault| {
            let mut others = BTreeSet::new();
            let found = seeds.clone().filter_map(|seed| play(seed, fault)).find(|failure| {
                let broken = Guarantee::broken_by(&failure.what);
                others.insert(broken.map_or_else(|| "panic".to_owned(), |broken| format!("{broken:?}")));
                broken == fault.guarantee()
            });
            (fault, found, others)
        };
        let found: Vec<_> = suite.faults().map(find).collect();
        let _ = std::panic::take_hook();
        for (fault, failure, others) in found {
            let promise = fault.guarantee();
            let Some(failure) = failure else { panic!("{fault:?} never breaks {promise:?}; it breaks {others:?}") };
            println!("{fault:?}: seed {}: {}", failure.case, failure.what.lines().next().unwrap_or_default());
        }
    }

    #[test]
    fn every_fault_of_a_replay_is_caught() {
        let play = |seed, fault| replay(&Case::from(seed), &Options { fault: Some(fault), ..replayable() }).err();
        find(Suite::Replays, 0..WITHIN, play);
    }

    #[test]
    fn every_fault_is_caught() {
        let play = |seed, fault| run(&Case::from(seed), &Options::everything().with_fault(fault)).err();
        find(Suite::Simulator, FROM..FROM + WITHIN, play);
    }
}

/// Schedules that are recorded and replayed.
const REPLAYED: u64 = 12_000;

/// Partial rules in small worlds, by the mover whose cuts can be replayed.
fn replayable() -> Options {
    let everything = Options::everything();
    let fires = everything.fires.iter().copied().filter(|fire| !fire.is_synchronous()).collect();
    Options { movers: vec![Mover::Cut], fires, deaths: 0.0, ..everything }
}

#[test]
fn recorded_rounds_are_replayed_to_the_bit() {
    let mut coverage = Coverage::default();
    for seed in 0..REPLAYED / by_tier(SHARE, 1) {
        coverage.add(&replay(&Case::from(seed), &replayable()).unwrap_or_else(|failure| panic!("{failure}")));
    }
    // Reducers move synchronous rounds only.
    let foreign = [&IMMORTAL[..], &PROGRAMS, &["pulled", "moved_shares", "broken"]].concat();
    for (case, count) in coverage.counters() {
        println!("{case:>20} {count}");
        assert!(count > 0 || foreign.contains(&case) || RARE.contains(&case), "{case} was never met");
    }
}
