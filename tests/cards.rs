//! The tables on a model of network cards: counters that are never reset, messages that overtake
//! each other, ranks that arrive at random, and several rounds at a time.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/tier.rs"]
mod tier;

use earlybird::offload::Cards;
use earlybird::trigger::{Profile, Program, Request, Role, Schedule, Signal, Start, compile};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tier::by_tier;

/// An application: one rank, as it would use a card.
struct Rank {
    rank: u32,
    /// Rounds whose outcome it has read.
    read: u64,
    /// Rounds for which it has arrived in time.
    arrived: u64,
    deposits: u64,
    /// The round of the deposit that is being written.
    writing: Option<u64>,
}

struct World {
    cards: Cards,
    programs: Vec<Program>,
    slots: u64,
    ranks: Vec<Rank>,
    outcomes: Vec<Option<earlybird::offload::Sum>>,
    rng: Xoshiro256PlusPlus,
    gate: bool,
    /// Outcomes that differ from what another rank, or another chunk, had.
    differing: u64,
}

impl World {
    fn new(request: &Request, gate: bool, seed: u64) -> Self {
        let programs = compile(request, &Profile::NETWORK);
        let cards = Cards::new(programs.clone(), request.slots as usize, seed);
        let rank = |rank| Rank { rank, read: 0, arrived: 0, deposits: 0, writing: None };
        let mut world = World {
            cards,
            programs,
            slots: request.slots,
            ranks: (0..request.ranks).map(rank).collect(),
            outcomes: Vec::new(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0xabcd),
            gate,
            differing: 0,
        };
        for round in 0..world.slots {
            (0..request.ranks).for_each(|rank| world.ready(rank, round));
        }
        world
    }

    fn slot(&self, round: u64) -> usize {
        (round % self.slots) as usize
    }

    /// Arms a rank's slot for a round, opens its gate, and gives ready tokens to all ranks.
    fn ready(&mut self, rank: u32, round: u64) {
        let slot = self.slot(round);
        self.cards.arm(rank, slot);
        self.cards.give(rank, slot, Signal { rank, counter: Role::Gate, input: 0 });
        for peer in 0..self.ranks.len() as u32 {
            self.cards.give(rank, slot, Signal { rank: peer, counter: Role::Start, input: 1 + rank });
        }
    }

    /// Reads an outcome, and frees the slot when all inputs of the round have come.
    fn collect(&mut self, index: usize) -> bool {
        let (rank, round) = (self.ranks[index].rank, self.ranks[index].read);
        let slot = self.slot(round);
        if self.ranks[index].writing.is_some() || !self.cards.is_full(slot, rank, Role::Done) {
            return false;
        }
        let parts = self.cards.outcome(slot, rank);
        self.differing += u64::from(parts.windows(2).any(|pair| pair[0] != pair[1]));
        let sum = parts[0].clone();
        if self.outcomes.len() as u64 <= round {
            self.outcomes.push(None);
        }
        let known = self.outcomes[round as usize].get_or_insert_with(|| sum.clone());
        self.differing += u64::from(*known != sum);
        if self.ranks[index].arrived <= round {
            // It took no part; its input is due all the same.
            self.ranks[index].arrived = round + 1;
            self.cards.give(rank, slot, Signal { rank, counter: Role::Start, input: 0 });
            return true;
        }
        let roles: Vec<Role> = self.programs[index].counters.iter().map(|counter| counter.role).collect();
        if !roles.into_iter().all(|role| self.cards.is_full(slot, rank, role)) {
            return false;
        }
        self.ranks[index].read += 1;
        self.ready(rank, round + self.slots);
        true
    }

    /// One step of an application.
    fn act(&mut self, index: usize, rounds: u64) {
        let rank = self.ranks[index].rank;
        if let Some(round) = self.ranks[index].writing.take() {
            let slot = self.slot(round);
            let number = self.ranks[index].deposits;
            self.ranks[index].deposits += 1;
            self.cards.written(slot, rank, number);
            if self.gate {
                self.cards.give(rank, slot, Signal { rank, counter: Role::Gate, input: 0 });
            }
            if self.ranks[index].arrived <= round {
                self.ranks[index].arrived = round + 1;
                self.cards.give(rank, slot, Signal { rank, counter: Role::Start, input: 0 });
            }
            return;
        }
        if self.collect(index) || self.rng.random_range(0..4) > 0 {
            return;
        }
        // The first round whose gate is still open: usually the next one.
        let next = self.ranks[index].read.max(self.ranks[index].arrived);
        let round = next.min(self.ranks[index].read + self.slots - 1);
        if round >= rounds {
            return;
        }
        let slot = self.slot(round);
        if !self.gate || self.cards.revoke_token(slot, rank) {
            self.cards.write(slot, rank);
            self.ranks[index].writing = Some(round);
        }
    }
}

/// Runs a world; returns how often a contribution was read while its rank wrote it, or ranks disagreed.
fn run(request: &Request, rounds: u64, gate: bool, seed: u64) -> u64 {
    let mut world = World::new(request, gate, seed);
    let mut idle = 0;
    while world.ranks.iter().any(|rank| rank.read < rounds) {
        if world.rng.random_range(0..3) > 0 {
            world.cards.step();
        } else {
            let index = world.rng.random_range(0..world.ranks.len());
            world.act(index, rounds);
        }
        idle += 1;
        assert!(idle < 3_000_000, "{request:?}, seed {seed}: no end");
    }
    if gate {
        let mut seen = std::collections::BTreeSet::new();
        for contribution in world.outcomes.iter().flatten().flatten() {
            assert!(seen.insert(*contribution), "{contribution:?} is in two rounds");
        }
        for rank in &world.ranks {
            let entered = seen.iter().filter(|(by, _)| *by == rank.rank).count() as u64;
            assert_eq!(entered, rank.deposits, "rank {} deposited {} times", rank.rank, rank.deposits);
        }
        if let Start::Count(q) = request.start {
            let least =
                world.outcomes.iter().take(rounds as usize).flatten().map(std::collections::BTreeSet::len).min();
            assert!(least.unwrap() >= q as usize, "a round fired with {least:?} of {q}");
        }
    }
    world.cards.torn() + world.differing
}

fn requests(ranks: u32) -> Vec<Request> {
    let mut requests = Vec::new();
    for start in [Start::Everybody, Start::First, Start::Count(ranks.div_ceil(2))] {
        for schedule in Schedule::EVERY {
            requests.push(Request { ranks, start, schedule, radix: 2, bytes: 4096, chunk: 0, slots: 3 });
        }
    }
    requests
}

#[test]
fn contributions_are_conserved() {
    for ranks in 1..=8 {
        for request in requests(ranks) {
            for seed in 0..by_tier(2, 6) {
                assert_eq!(run(&request, 12, true, seed), 0, "{request:?}, seed {seed}: torn, or ranks disagree");
            }
        }
    }
}

/// The negative control: without the gate a round takes a contribution that its rank is writing.
#[test]
fn without_the_gate_contributions_are_torn() {
    for schedule in Schedule::EVERY {
        let request = Request { ranks: 4, start: Start::First, schedule, radix: 2, bytes: 4096, chunk: 0, slots: 3 };
        let torn: u64 = (0..10).map(|seed| run(&request, 12, false, seed)).sum();
        println!("{}: {torn} torn or differing", schedule.name());
        assert!(torn > 0, "{}: the control found nothing", schedule.name());
    }
}
