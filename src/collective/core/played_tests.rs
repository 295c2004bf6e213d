//! Ranks that compute and arrive in virtual time, under a fixed quorum or under one that the cuts choose. For tests.
//!
//! The cost of a run is seconds of all ranks for each contribution, times 1 + a tenth of the contributions' mean age:
//! what enters late is worth less.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::auto_quorum::AutoQuorum;
use super::cut::Cut;
use super::durations::{Durations, Particulars};
use super::entry::{Entry, Part};
use super::input::Time;
use crate::rank_set::RankSet;

const STEP: f64 = 10e6;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Lateness {
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
    /// One rank takes three times as long, another one every 50 rounds.
    Moving,
    /// A step of all ranks takes a thousand times as long; ten rounds later one rank takes 1.5 times as long.
    AfterAPause,
}

use Lateness::*;

pub(crate) const KINDS: [Lateness; 8] = [Balanced, OneTwice, OneRandom, HalfTwice, Lognormal, FailSlow, Rare, SlowHost];

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
            Moving => jitter * if u64::from(rank) == round / 50 % u64::from(ranks) { 3.0 } else { 1.0 },
            AfterAPause if round == 500 => 1000.0,
            AfterAPause => jitter * if rank == 0 && round >= 510 { 1.5 } else { 1.0 },
            SlowHost => jitter * if rank < 8.min(ranks / 2) { 1.3 } else { 1.0 },
        };
        (factor * STEP) as Time
    }
}

pub(crate) struct Run {
    pub(crate) cost: f64,
    /// The quorum of each round, from round 1 on, and its cut.
    pub(crate) quorums: Vec<u32>,
    pub(crate) cuts: Vec<Cut>,
}

/// What a rank does.
#[derive(Clone, Copy, Default)]
struct Rank {
    /// The round that its contribution is for, how long it computes it, and how long it waited in the round before.
    target: u64,
    computes: Time,
    waited: Option<Time>,
}

/// What ranks do in a run.
pub(crate) trait Played {
    /// A rank begins to compute a contribution, after this round; returns how long that takes.
    fn begins(&mut self, rank: u32, round: u64) -> Time;

    /// Its contribution enters the round that fires next.
    fn enters(&mut self, _rank: u32) {}

    /// A round has fired at this time; returns whether ranks go on.
    fn fires(&mut self, round: u64, now: Time) -> bool;
}

/// Ranks that are late in some way, and compute nothing.
struct Late {
    kind: Lateness,
    ranks: u32,
    rounds: u64,
    rng: Xoshiro256PlusPlus,
}

impl Played for Late {
    fn begins(&mut self, rank: u32, round: u64) -> Time {
        self.kind.computes(rank, self.ranks, round, &mut self.rng)
    }

    fn fires(&mut self, round: u64, _: Time) -> bool {
        round < self.rounds
    }
}

/// Plays rounds under a fixed quorum, or under the rule. Moving data takes `moving`.
pub(crate) fn play(kind: Lateness, ranks: u32, fixed: Option<u32>, rounds: u64, (seed, moving): (u64, Time)) -> Run {
    let mut work = Late { kind, ranks, rounds, rng: Xoshiro256PlusPlus::seed_from_u64(seed) };
    play_work(&mut work, ranks, fixed, moving)
}

/// As [`play`], with any work.
pub(crate) fn play_work(work: &mut impl Played, ranks: u32, fixed: Option<u32>, moving: Time) -> Run {
    let (mut auto, all) = (AutoQuorum::new(ranks, 10, 0), RankSet::full(ranks));
    let mut events = BinaryHeap::new();
    let mut state = vec![Rank::default(); ranks as usize];
    let begin = |work: &mut _, state: &mut Rank, (rank, now, fired): (u32, Time, u64), events: &mut BinaryHeap<_>| {
        (state.target, state.computes) = (fired + 1, Played::begins(work, rank, fired));
        events.push(Reverse((now + state.computes, rank)));
    };
    (0..ranks).for_each(|rank| begin(work, &mut state[rank as usize], (rank, 0, 0), &mut events));
    let (mut fired, mut quorums, mut cuts, mut fresh, mut entries) =
        (0, Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut contributions, mut ages, mut end) = (0, 0, 0);
    let mut goes_on = true;
    while goes_on {
        let Some(Reverse((now, rank))) = events.pop() else { unreachable!("every rank computes or waits") };
        let of = state[rank as usize];
        let told = Particulars::new(1, Durations::new(Some(of.computes), of.waited));
        let is_late = of.target <= fired;
        let (part, age) = if is_late { (Part::Carried, fired + 1 - of.target) } else { (Part::Fresh, 0) };
        entries.push(Entry::new(rank, part, (age, told), 0));
        work.enters(rank);
        ages += age;
        contributions += 1;
        if is_late {
            state[rank as usize].waited = Some(0);
            begin(work, &mut state[rank as usize], (rank, now, fired), &mut events);
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
        let cut = Cut::of_entries(fired, None, std::mem::take(&mut entries));
        auto.learn(fired, &cut, &all);
        cuts.push(cut);
        end = now + moving;
        goes_on = work.fires(fired, end);
        for (rank, arrived) in fresh.drain(..) {
            state[rank as usize].waited = Some(end - arrived);
            begin(work, &mut state[rank as usize], (rank, end, fired), &mut events);
        }
    }
    let (contributions, age) = (f64::from(contributions), ages as f64 / f64::from(contributions));
    Run { cost: end as f64 * f64::from(ranks) / contributions * (1.0 + 0.1 * age), quorums, cuts }
}
