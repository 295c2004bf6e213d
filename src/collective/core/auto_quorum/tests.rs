//! Plays steps of ranks under the rule, and under every fixed quorum, in virtual time.
//!
//! The cost of a run is seconds of all ranks for each contribution, times 1 + a tenth of the contributions' mean age:
//! what enters late is worth less.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::super::durations::{Durations, Particulars};
use super::super::entry::Entry;
use super::*;

const STEP: f64 = 10e6;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lateness {
    Balanced,
    /// One rank takes twice as long.
    OneTwice,
    /// One rank of all takes a step longer, another one in each step.
    OneRandom,
    HalfTwice,
    /// Lognormal with a deviation of 0.3.
    Lognormal,
    /// One rank takes half as long again in rounds 300 to 600.
    FailSlow,
    /// A step in 500 takes ten times as long.
    Rare,
    /// Eight ranks, or half of them, take 1.3 times as long.
    SlowHost,
}

use Lateness::*;

const KINDS: [Lateness; 8] = [Balanced, OneTwice, OneRandom, HalfTwice, Lognormal, FailSlow, Rare, SlowHost];

impl Lateness {
    /// Returns how long a rank computes, for the round after `round`.
    fn computes(self, rank: u32, ranks: u32, round: u64, rng: &mut Xoshiro256PlusPlus) -> Time {
        // Box and Muller.
        let (one, other): (f64, f64) = (rng.random_range(1e-12..1.0), rng.random_range(0.0..1.0));
        let normal = (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos();
        let chance: f64 = rng.random_range(0.0..1.0);
        let jitter = 1.0 + 0.01 * normal;
        let factor = match self {
            Balanced => jitter,
            OneTwice => jitter * if rank == 0 { 2.0 } else { 1.0 },
            OneRandom => jitter + if chance < 1.0 / f64::from(ranks) { 1.0 } else { 0.0 },
            HalfTwice => jitter * if rank < ranks / 2 { 2.0 } else { 1.0 },
            Lognormal => (0.3 * normal - 0.045).exp(),
            FailSlow => jitter * if rank == 0 && (300..600).contains(&round) { 1.5 } else { 1.0 },
            Rare => jitter * if chance < 0.002 { 10.0 } else { 1.0 },
            SlowHost => jitter * if rank < 8.min(ranks / 2) { 1.3 } else { 1.0 },
        };
        (factor * STEP) as Time
    }
}

struct Run {
    cost: f64,
    /// The quorum of each round, from round 1 on.
    quorums: Vec<u32>,
}

/// What a rank does.
#[derive(Clone, Copy, Default)]
struct Rank {
    /// The round that its contribution is for, how long it computes it, and how long it waited in the round before.
    target: u64,
    computes: Time,
    waited: Option<Time>,
}

/// Plays rounds under a fixed quorum, or under the rule. Moving data takes `moving`.
fn play(kind: Lateness, ranks: u32, fixed: Option<u32>, rounds: u64, seed: u64, moving: Time) -> Run {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (mut auto, all) = (AutoQuorum::new(ranks, 10), RankSet::full(ranks));
    let mut events = BinaryHeap::new();
    let mut state = vec![Rank::default(); ranks as usize];
    let mut begin = |state: &mut Rank, rank: u32, now: Time, fired: u64, events: &mut BinaryHeap<_>| {
        (state.target, state.computes) = (fired + 1, kind.computes(rank, ranks, fired, &mut rng));
        events.push(Reverse((now + state.computes, rank)));
    };
    (0..ranks).for_each(|rank| begin(&mut state[rank as usize], rank, 0, 0, &mut events));
    let (mut fired, mut quorums, mut fresh, mut entries) = (0, Vec::new(), Vec::new(), Vec::new());
    let (mut contributions, mut ages, mut end) = (0, 0, 0);
    while fired < rounds {
        let Some(Reverse((now, rank))) = events.pop() else { unreachable!("every rank computes or waits") };
        let of = state[rank as usize];
        let told = Particulars::lasting(Durations::new(Some(of.computes), of.waited));
        let is_late = of.target <= fired;
        let (part, age) = if is_late { (Part::Carried, fired + 1 - of.target) } else { (Part::Fresh, 0) };
        entries.push(Entry::new(rank, part, (age, told), 0));
        ages += age;
        contributions += 1;
        if is_late {
            state[rank as usize].waited = Some(0);
            begin(&mut state[rank as usize], rank, now, fired, &mut events);
            continue;
        }
        fresh.push((rank, now));
        let quorum = fixed.unwrap_or_else(|| auto.quorum(ranks));
        if (fresh.len() as u32) < quorum {
            continue;
        }
        fired += 1;
        quorums.push(quorum);
        entries.sort_by_key(|entry| (entry.rank, entry.part != Part::Carried));
        auto.learn(&Cut::of_entries(fired, None, std::mem::take(&mut entries)), &all);
        end = now + moving;
        for (rank, arrived) in fresh.drain(..) {
            state[rank as usize].waited = Some(end - arrived);
            begin(&mut state[rank as usize], rank, end, fired, &mut events);
        }
    }
    let (contributions, age) = (f64::from(contributions), ages as f64 / f64::from(contributions));
    Run { cost: end as f64 * f64::from(ranks) / contributions * (1.0 + 0.1 * age), quorums }
}

fn best_fixed(kind: Lateness, ranks: u32, seed: u64) -> (f64, u32) {
    let cost = |quorum| (play(kind, ranks, Some(quorum), 1500, seed, 0).cost, quorum);
    (1..=ranks).map(cost).min_by(|one, other| one.0.total_cmp(&other.0)).expect("a world has a rank")
}

#[test]
fn it_costs_little_more_than_the_best_fixed_rule() {
    for (ranks, kind) in [4, 8, 32].into_iter().flat_map(|ranks| KINDS.map(|kind| (ranks, kind))) {
        for seed in [1, 2, 3] {
            let (best, quorum) = best_fixed(kind, ranks, seed);
            let auto = play(kind, ranks, None, 1500, seed, 0);
            let ratio = auto.cost / best;
            println!("{ranks:3} {kind:?} seed {seed}: {ratio:.3} of quorum={quorum}");
            assert!(ratio < 1.10, "{kind:?} with {ranks} ranks, seed {seed}: {ratio} of quorum={quorum}");
        }
    }
}

#[test]
fn balanced_ranks_wait_for_all() {
    for (ranks, moving) in [4, 8, 32].into_iter().flat_map(|ranks| [(ranks, 0), (ranks, 20_000_000)]) {
        for seed in 1..=3 {
            let quorums = play(Balanced, ranks, None, 1000, seed, moving).quorums;
            assert!(quorums[32..].iter().all(|&quorum| quorum == ranks), "{ranks} ranks, data moves for {moving} ns");
        }
    }
}

#[test]
fn changes_are_followed() {
    for (ranks, seed) in [4, 8, 32].into_iter().flat_map(|ranks| [(ranks, 1), (ranks, 2), (ranks, 3)]) {
        let quorums = play(FailSlow, ranks, None, 1500, seed, 0).quorums;
        let down = quorums[300..].iter().position(|&quorum| quorum < ranks).unwrap();
        let up = quorums[600..].iter().rposition(|&quorum| quorum < ranks).map_or(0, |last| last + 1);
        println!("{ranks} ranks, seed {seed}: down after {down} rounds, up for good after {up}");
        assert!(down <= 32 && up <= 64, "{ranks} ranks, seed {seed}: down after {down}, up after {up}");
        assert!(quorums[340..600].iter().all(|&quorum| quorum == ranks - 1));
    }
}

/// A rank that is away tells nothing: its absence is what the others know.
#[test]
fn a_rank_that_stays_away_is_not_waited_for() {
    let mut auto = AutoQuorum::new(4, 10);
    let told = |waited| Particulars::lasting(Durations::new(Some(10_000_000), Some(waited)));
    for round in 1..200 {
        let present = if round < 20 { 4 } else { 3 };
        let entries = (0..present).map(|rank| Entry::new(rank, Part::Fresh, (0, told(0)), 0)).collect();
        auto.learn(&Cut::of_entries(round, None, entries), &RankSet::full(4));
        assert!(round < 30 || auto.quorum(4) == 3, "round {round}");
    }
}

#[test]
fn nothing_measured_changes_nothing() {
    let mut auto = AutoQuorum::new(3, 10);
    for round in 1..100 {
        let entries = (0..2).map(|rank| Entry::new(rank, Part::Fresh, (0, Particulars::PLAIN), 0)).collect();
        auto.learn(&Cut::of_entries(round, None, entries), &RankSet::full(3));
    }
    assert_eq!((auto.quorum(3), auto.quorum(2), auto.quorum(0)), (3, 2, 1));
}
