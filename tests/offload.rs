//! Programs that a provider runs by itself, for real on libfabric's `sockets`: random delays, several
//! ranks that fire at once, contributions that enter exactly one round, and ranks that sleep.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use earlybird::fabric::ofi::Library;
use earlybird::fabric::ofi::offload::{Card, Introduction};
use earlybird::trigger::{Request, Schedule, Start};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const SLOTS: u64 = 8;
const BYTES: usize = 256;
const PATIENCE: Duration = Duration::from_secs(60);

/// Cards of a world of which every rank is in this process.
fn cards(library: &Library, ranks: u32, start: Start) -> Vec<Card> {
    let request = Request { ranks, start, schedule: Schedule::Gather, bytes: BYTES as u64, chunk: 0, slots: SLOTS };
    let opened: Vec<_> = (0..ranks).map(|rank| Card::open(library, "sockets", rank, &request, 0).unwrap()).collect();
    let (mut cards, introductions): (Vec<Card>, Vec<Introduction>) = opened.into_iter().unzip();
    cards.iter_mut().for_each(|card| card.connect(&introductions).unwrap());
    cards
}

/// A contribution: which one of its rank it is, and data that follows from that.
fn contribution(rank: u32, number: u64) -> Vec<u8> {
    let cell = |index: usize| match index {
        0 => number,
        index => (u64::from(rank) << 40 | number << 8 | index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15),
    };
    (0..BYTES / 8).flat_map(|index| cell(index).to_le_bytes()).collect()
}

/// What a rank found of a round: who contributed what, by rank.
type Outcome = Vec<u64>;

/// The number of a contribution; none if it is not the whole of one.
fn number(rank: u32, data: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(data[..8].try_into().unwrap());
    let expected = if number == 0 { vec![0; BYTES] } else { contribution(rank, number) };
    (data == expected).then_some(number)
}

struct Rank {
    card: Card,
    rank: u32,
    ranks: u32,
    outcomes: Vec<Option<Outcome>>,
    /// Rounds in which it arrived.
    arrived: u64,
    /// Contributions that it handed in, by round.
    handed_in: Vec<u64>,
    made: u64,
    torn: u64,
}

fn slot(round: u64) -> usize {
    (round % SLOTS) as usize
}

impl Rank {
    fn new(card: Card, rank: u32, ranks: u32) -> Self {
        let (outcomes, handed_in) = (Vec::new(), Vec::new());
        Rank { card, rank, ranks, outcomes, arrived: 0, handed_in, made: 0, torn: 0 }
    }

    fn arm(&mut self, round: u64) {
        self.card.write(slot(round), &[0; BYTES]);
        self.card.arm(slot(round)).unwrap();
        self.handed_in.push(0);
    }

    /// Hands in a contribution to a round, if it is not too late. With the gate, nobody reads it meanwhile.
    fn hand_in(&mut self, round: u64, gate: bool, pause: Duration) -> bool {
        if self.handed_in[round as usize] != 0 || (gate && !self.card.take_back(slot(round)).unwrap()) {
            return false;
        }
        self.made += 1;
        let data = contribution(self.rank, self.made);
        self.card.write(slot(round), &data[..BYTES / 2]);
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        self.card.write(slot(round), &data);
        if gate {
            self.card.let_in(slot(round)).unwrap();
        }
        self.handed_in[round as usize] = self.made;
        true
    }

    /// Takes the outcome of a round when it is there.
    fn take(&mut self, round: u64) -> bool {
        if !self.card.has_outcome(slot(round)).unwrap() {
            return false;
        }
        let mut data = vec![0; BYTES];
        let outcome = (0..self.ranks).map(|rank| {
            self.card.contribution_of(slot(round), rank, &mut data);
            number(rank, &data)
        });
        let outcome: Option<Outcome> = outcome.collect();
        self.torn += u64::from(outcome.is_none());
        self.outcomes.push(outcome);
        if self.arrived <= round {
            // It did not take part in firing it; its input is due all the same.
            self.card.arrive(slot(round)).unwrap();
            self.arrived = round + 1;
        }
        true
    }

    /// Waits until a slot can be armed again.
    fn settle(&mut self, round: u64) {
        let since = Instant::now();
        while !self.card.is_over(slot(round)).unwrap() {
            assert!(since.elapsed() < PATIENCE, "rank {}: round {round} is never over", self.rank);
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Takes part in rounds, each after a random delay; several ranks may fire at once.
    fn play(&mut self, rounds: u64, gate: bool, seed: u64) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ u64::from(self.rank) << 32);
        (0..SLOTS).for_each(|round| self.arm(round));
        (0..SLOTS).for_each(|round| self.card.ready(slot(round)).unwrap());
        for round in 0..rounds {
            if rng.random_range(0..3) > 0 {
                thread::sleep(Duration::from_micros(rng.random_range(0..300)));
            }
            // Every now and then this rank has nothing to say, or is too late to say it.
            let pause = if rng.random_range(0..4) == 0 { rng.random_range(0..500) } else { 0 };
            if rng.random_range(0..8) > 0 {
                self.hand_in(round, gate, Duration::from_micros(pause));
            }
            if rng.random_range(0..2) == 0 && self.arrived <= round {
                self.card.arrive(slot(round)).unwrap();
                self.arrived = round + 1;
            }
            let since = Instant::now();
            while !self.take(round) {
                // Somebody has to fire it.
                if since.elapsed() > Duration::from_millis(5) && self.arrived <= round {
                    self.card.arrive(slot(round)).unwrap();
                    self.arrived = round + 1;
                }
                assert!(since.elapsed() < PATIENCE, "rank {}: round {round} has no outcome", self.rank);
                thread::sleep(Duration::from_micros(50));
            }
            if round + SLOTS < rounds {
                self.settle(round);
                self.arm(round + SLOTS);
                self.card.ready(slot(round)).unwrap();
            }
        }
        (rounds.saturating_sub(SLOTS)..rounds).for_each(|round| self.settle(round));
    }
}

fn libfabric() -> Option<Library> {
    let library = common::libfabric()?;
    let offers = earlybird::fabric::ofi::devices(&library).unwrap();
    if !offers.iter().any(|device| device.provider == "sockets" && device.triggers) {
        eprintln!("SKIPPED: this libfabric has no sockets provider");
        return None;
    }
    Some(library)
}

fn run(library: &Library, ranks: u32, rounds: u64, gate: bool, seed: u64) -> Vec<Rank> {
    let world = cards(library, ranks, Start::First).into_iter().zip(0..);
    let playing: Vec<_> = world
        .map(|(card, rank)| {
            thread::spawn(move || {
                let mut rank = Rank::new(card, rank, ranks);
                rank.play(rounds, gate, seed);
                rank
            })
        })
        .collect();
    playing.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Every contribution is in the round that it was handed in to, everywhere and whole.
#[test]
fn contributions_are_conserved() {
    let Some(library) = libfabric() else { return };
    for ranks in 2..=8 {
        let started = Instant::now();
        let rounds = 1000;
        let world = run(&library, ranks, rounds, true, u64::from(ranks));
        let mut entered = 0;
        for rank in &world {
            assert_eq!(rank.torn, 0, "{ranks} ranks: rank {} found contributions in pieces", rank.rank);
            for (round, outcome) in rank.outcomes.iter().enumerate() {
                let outcome = outcome.as_ref().unwrap();
                assert_eq!(Some(outcome), world[0].outcomes[round].as_ref(), "{ranks} ranks: round {round} differs");
                let handed_in: Vec<u64> = world.iter().map(|rank| rank.handed_in[round]).collect();
                assert_eq!(*outcome, handed_in, "{ranks} ranks, round {round}: lost, or from another round");
            }
            assert_eq!(rank.outcomes.len() as u64, rounds);
            entered += rank.made;
        }
        println!("{ranks} ranks: {rounds} rounds, {entered} contributions, {:.1?}", started.elapsed());
        assert!(entered > rounds, "a test that hands nothing in");
    }
}

/// The negative control: without the gate a round takes what a rank is in the middle of writing.
#[test]
fn without_the_gate_contributions_are_torn() {
    let Some(library) = libfabric() else { return };
    let world = run(&library, 4, 400, false, 1);
    let wrong: u64 = world.iter().map(|rank| rank.torn).sum();
    let lost = world.iter().flat_map(|rank| {
        let outcome = |round: usize| rank.outcomes[round].as_ref().map_or(0, |outcome| outcome[rank.rank as usize]);
        (0..rank.outcomes.len()).filter(move |&round| outcome(round) != rank.handed_in[round])
    });
    let lost = lost.count();
    println!("{wrong} torn, {lost} not in their round");
    assert!(wrong as usize + lost > 0, "the control found nothing");
}

/// One rank arms eight rounds, hands a contribution in to each, and then calls nothing: it sleeps, or
/// computes. The others make all eight; it is told of them, its part is in them, and all can go on.
#[test]
fn a_rank_that_calls_nothing_takes_part_in_every_armed_round() {
    let Some(library) = libfabric() else { return };
    for (ranks, computes) in [(2, false), (3, true), (5, false), (8, true)] {
        let mut world: Vec<Rank> = cards(&library, ranks, Start::First)
            .into_iter()
            .zip(0..)
            .map(|(card, rank)| Rank::new(card, rank, ranks))
            .collect();
        for turn in 0..3 {
            let rounds = turn * SLOTS..(turn + 1) * SLOTS;
            for rank in &mut world {
                rounds.clone().for_each(|round| rank.arm(round));
            }
            for rank in &mut world {
                rounds.clone().for_each(|round| rank.card.ready(slot(round)).unwrap());
            }
            let mut passive = world.pop().unwrap();
            for round in rounds.clone() {
                assert!(passive.hand_in(round, true, Duration::ZERO));
            }
            let calls = passive.card.calls();
            let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let busy = computes.then(|| {
                let stop = stop.clone();
                thread::spawn(move || {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::black_box((0..10_000u64).sum::<u64>());
                    }
                })
            });
            for round in rounds.clone() {
                for rank in &mut world {
                    rank.hand_in(round, true, Duration::ZERO);
                    rank.card.arrive(slot(round)).unwrap();
                    rank.arrived = round + 1;
                }
                for rank in &mut world {
                    let since = Instant::now();
                    while !rank.take(round) {
                        assert!(
                            since.elapsed() < PATIENCE,
                            "{ranks} ranks: round {round} waits for the one that sleeps"
                        );
                        thread::sleep(Duration::from_micros(50));
                    }
                }
            }
            // What the others sent last may still be on its way.
            thread::sleep(Duration::from_millis(500));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            busy.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(passive.card.calls(), calls, "it was to call nothing");
            for round in rounds.clone() {
                assert!(passive.take(round), "{ranks} ranks: round {round} is not there when the sleeper wakes");
            }
            world.push(passive);
            for round in rounds.clone() {
                world.iter_mut().for_each(|rank| rank.settle(round));
                let handed_in: Vec<u64> = world.iter().map(|rank| rank.handed_in[round as usize]).collect();
                assert!(*handed_in.last().unwrap() > 0);
                for rank in &world {
                    assert_eq!(
                        rank.outcomes[round as usize].as_ref(),
                        Some(&handed_in),
                        "{ranks} ranks, round {round}"
                    );
                }
            }
        }
    }
}
