//! Programs that a provider runs by itself, on libfabric's `sockets`: random delays, several ranks
//! that fire at once, contributions that enter exactly one round, and ranks that sleep.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "opens cards")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::tier::by_tier;
use earlybird::Error;
use earlybird::fabric::RawAccess;
use earlybird::fabric::ofi::Library;
use earlybird::offload::deferred_work::{DeferredProgram, Introduction};
use earlybird::trigger::{Request, Schedule, Start};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const SLOTS: u64 = 8;
const BYTES: usize = 256;
const PATIENCE: Duration = Duration::from_secs(60);

/// The cards of a world whose ranks are all in this process, not connected yet.
fn opened(library: &Library, ranks: u32, start: Start) -> (Vec<DeferredProgram>, Vec<Introduction>) {
    let request =
        Request { ranks, start, schedule: Schedule::Gather, radix: 2, bytes: BYTES as u64, chunk: 0, slots: SLOTS };
    // SAFETY: every card gets the introductions of all. A contribution is written before its slot
    // is armed or while the token is revoked, and read when the outcome is there. The negative
    // control breaks that on purpose, with bytes that are only copied and have no references.
    let access = unsafe { RawAccess::promise() };
    (0..ranks).map(|rank| DeferredProgram::open(library, "sockets", rank, &request, 0, access).unwrap()).unzip()
}

fn cards(library: &Library, ranks: u32, start: Start) -> Vec<DeferredProgram> {
    let (mut cards, introductions) = opened(library, ranks, start);
    cards.iter_mut().for_each(|card| card.connect(&introductions).unwrap());
    cards
}

/// A contribution: data that follows from its rank and its number.
fn contribution(rank: u32, number: u64) -> Vec<u8> {
    let cell = |index: usize| match index {
        0 => number,
        index => (u64::from(rank) << 40 | number << 8 | index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15),
    };
    (0..BYTES / 8).flat_map(|index| cell(index).to_le_bytes()).collect()
}

/// A rank's view of a round: the number of each rank's contribution.
type Outcome = Vec<u64>;

/// The number of a contribution; `None` if its data is torn.
fn number(rank: u32, data: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(data[..8].try_into().unwrap());
    let expected = if number == 0 { vec![0; BYTES] } else { contribution(rank, number) };
    (data == expected).then_some(number)
}

struct Rank {
    card: DeferredProgram,
    rank: u32,
    ranks: u32,
    outcomes: Vec<Option<Outcome>>,
    /// Rounds in which it arrived.
    arrived: u64,
    /// Contributions that it handed in, by round.
    handed_in: Vec<u64>,
    made: u64,
    torn: u64,
    /// Outcomes that were there when the rank woke.
    found: u64,
}

fn slot(round: u64) -> usize {
    (round % SLOTS) as usize
}

impl Rank {
    fn new(card: DeferredProgram, rank: u32, ranks: u32) -> Self {
        let (outcomes, handed_in) = (Vec::new(), Vec::new());
        Rank { card, rank, ranks, outcomes, arrived: 0, handed_in, made: 0, torn: 0, found: 0 }
    }

    fn arm(&mut self, round: u64) {
        self.card.write(slot(round), &[0; BYTES]);
        self.card.arm(slot(round)).unwrap();
        self.handed_in.push(0);
    }

    /// Hands in a contribution to a round, if it is not too late. With the gate, no rank reads it meanwhile.
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
            // It took no part in firing the round; its input is due all the same.
            self.arrive(round);
        }
        true
    }

    fn arrive(&mut self, round: u64) {
        self.card.arrive(slot(round)).unwrap();
        self.arrived = round + 1;
    }

    /// Takes the outcome of a round that others may still have to complete.
    fn receive(&mut self, round: u64) {
        let since = Instant::now();
        while !self.take(round) {
            assert!(since.elapsed() < PATIENCE, "rank {}: round {round} does not come", self.rank);
            thread::sleep(Duration::from_micros(50));
        }
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
            // Sometimes this rank contributes nothing, or too late.
            let pause = if rng.random_range(0..4) == 0 { rng.random_range(0..500) } else { 0 };
            if rng.random_range(0..8) > 0 {
                self.hand_in(round, gate, Duration::from_micros(pause));
            }
            if rng.random_range(0..2) == 0 && self.arrived <= round {
                self.arrive(round);
            }
            let since = Instant::now();
            while !self.take(round) {
                // Some rank has to fire it.
                if since.elapsed() > Duration::from_millis(5) && self.arrived <= round {
                    self.arrive(round);
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
        common::skipped(common::Need::Libfabric, "this libfabric has no sockets provider");
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

/// Checks that every contribution is in the round that it was handed in to, whole and on all ranks;
/// returns their number.
fn conserved(world: &[Rank], rounds: u64) -> u64 {
    let mut entered = 0;
    for rank in world {
        let ranks = rank.ranks;
        assert_eq!(rank.torn, 0, "{ranks} ranks: rank {} found contributions in pieces", rank.rank);
        assert_eq!(rank.outcomes.len() as u64, rounds);
        for (round, outcome) in rank.outcomes.iter().enumerate() {
            let outcome = outcome.as_ref().unwrap();
            assert_eq!(Some(outcome), world[0].outcomes[round].as_ref(), "{ranks} ranks: round {round} differs");
            let handed_in: Vec<u64> = world.iter().map(|rank| rank.handed_in[round]).collect();
            assert_eq!(*outcome, handed_in, "{ranks} ranks, round {round}: lost, or from another round");
        }
        entered += rank.made;
    }
    entered
}

#[test]
fn contributions_are_conserved() {
    let Some(library) = libfabric() else { return };
    for ranks in 2..=8 {
        let started = Instant::now();
        let rounds = by_tier(150, 1000);
        let world = run(&library, ranks, rounds, true, u64::from(ranks));
        let entered = conserved(&world, rounds);
        println!("{ranks} ranks: {rounds} rounds, {entered} contributions, {:.1?}", started.elapsed());
        assert!(entered > rounds, "a test that hands nothing in");
    }
}

/// The negative control: without the gate a round takes a contribution that its rank is writing.
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

/// How ranks that share a process synchronize without the library.
struct Meeting {
    /// Ranks that have armed, by turn.
    ready: Vec<AtomicU32>,
    /// Ranks that fire rounds and have all outcomes, by turn.
    done: Vec<AtomicU32>,
}

impl Rank {
    /// Eight rounds at a time. A few ranks, drawn at random, make calls, several at once. The others make none: they
    /// sleep or compute until the rounds are over, and are woken to take them and to arm again.
    fn play_passively(&mut self, turns: u64, seed: u64, meeting: &Meeting) -> u64 {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ u64::from(self.rank) << 32);
        let mut everybodys = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut slept = 0;
        for turn in 0..turns {
            let rounds = turn * SLOTS..(turn + 1) * SLOTS;
            let callers = everybodys.random_range(1..self.ranks);
            let first = everybodys.random_range(0..self.ranks);
            let calls = (self.rank + self.ranks - first) % self.ranks < callers;
            for round in rounds.clone() {
                if round >= SLOTS {
                    self.settle(round - SLOTS);
                }
                self.arm(round);
                self.card.ready(slot(round)).unwrap();
            }
            if !calls {
                rounds.clone().for_each(|round| assert!(self.hand_in(round, true, Duration::ZERO)));
            }
            let (since, ready) = (Instant::now(), &meeting.ready[turn as usize]);
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < self.ranks {
                assert!(since.elapsed() < 2 * PATIENCE, "rank {}: others never armed turn {turn}", self.rank);
                thread::yield_now();
            }
            let done = &meeting.done[turn as usize];
            if calls {
                rounds.clone().for_each(|round| self.fire(round, &mut rng));
                done.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            let (before, sleeps) = (self.card.calls(), rng.random_bool(0.5));
            let since = Instant::now();
            while done.load(Ordering::SeqCst) < callers {
                assert!(since.elapsed() < 2 * PATIENCE, "rank {} is never woken", self.rank);
                match sleeps {
                    true => thread::sleep(Duration::from_micros(500)),
                    false => drop(std::hint::black_box((0..10_000u64).sum::<u64>())),
                }
            }
            assert_eq!(self.card.calls(), before, "it must make no calls");
            slept += SLOTS;
            // The last inputs come without a call, too.
            thread::sleep(Duration::from_millis(5));
            for round in rounds {
                self.found += u64::from(self.card.has_outcome(slot(round)).unwrap());
                self.receive(round);
            }
        }
        slept
    }

    /// Fires a round, sometimes after a while and with a contribution.
    fn fire(&mut self, round: u64, rng: &mut Xoshiro256PlusPlus) {
        thread::sleep(Duration::from_micros(rng.random_range(0..200)));
        if rng.random_range(0..8) > 0 {
            self.hand_in(round, true, Duration::ZERO);
        }
        self.arrive(round);
        self.receive(round);
    }
}

/// A few ranks fire rounds, whose outcomes have the contributions of all others, which make no calls meanwhile. With
/// more than three ranks the activation reaches some of them through ranks that sleep or compute.
#[test]
fn ranks_that_call_nothing_take_part_in_every_armed_round() {
    let Some(library) = libfabric() else { return };
    let turns = by_tier(20, 125);
    for ranks in 2..=8 {
        let started = Instant::now();
        let none = || (0..turns).map(|_| AtomicU32::new(0)).collect();
        let meeting = Arc::new(Meeting { ready: none(), done: none() });
        let playing: Vec<_> = cards(&library, ranks, Start::First)
            .into_iter()
            .zip(0..)
            .map(|(card, rank)| {
                let meeting = meeting.clone();
                thread::spawn(move || {
                    let mut rank = Rank::new(card, rank, ranks);
                    let slept = rank.play_passively(turns, u64::from(ranks), &meeting);
                    ((turns - 1) * SLOTS..turns * SLOTS).for_each(|round| rank.settle(round));
                    (rank, slept)
                })
            })
            .collect();
        let (world, slept): (Vec<Rank>, Vec<u64>) = playing.into_iter().map(|rank| rank.join().unwrap()).unzip();
        conserved(&world, turns * SLOTS);
        assert!(slept.iter().all(|&rounds| rounds > 0), "{ranks} ranks: {slept:?} rounds without a call");
        // On busy cores the last outcome of a turn may be in flight.
        let found: Vec<u64> = world.iter().map(|rank| rank.found).collect();
        assert!(found.iter().zip(&slept).all(|(found, slept)| 2 * found > *slept), "{found:?} of {slept:?} outcomes");
        println!(
            "{ranks} ranks: {} rounds, without a call {slept:?}, there on waking {found:?}, {:.1?}",
            turns * SLOTS,
            started.elapsed()
        );
    }
}

/// Near the last use of its slots a world completes all rounds that are left, and then makes none:
/// a counter of `sockets` beyond 2^31 seems to have passed every threshold.
#[test]
fn rounds_end_before_counters_do() {
    let Some(library) = libfabric() else { return };
    const LEFT: u64 = 5;
    for ranks in [2, 3, 5] {
        let mut world = cards(&library, ranks, Start::First);
        let last = world[0].most_uses();
        for card in &mut world {
            assert_eq!(card.most_uses(), last);
            card.wind(last - LEFT).unwrap();
        }
        let playing: Vec<_> = world
            .into_iter()
            .zip(0..)
            .map(|(card, rank)| {
                thread::spawn(move || {
                    let mut rank = Rank::new(card, rank, ranks);
                    rank.play(LEFT * SLOTS, true, u64::from(ranks));
                    rank
                })
            })
            .collect();
        let mut world: Vec<Rank> = playing.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(conserved(&world, LEFT * SLOTS) > 0);
        for rank in &mut world {
            for slot in 0..SLOTS as usize {
                let error = rank.card.arm(slot).unwrap_err().to_string();
                assert!(error.contains("counters can count no further"), "{ranks} ranks, slot {slot}: {error}");
            }
        }
    }
}

/// A slot that was armed in part is never over: the provider may hold some of its operations.
#[test]
fn a_slot_armed_in_part_is_not_over() {
    let Some(library) = libfabric() else { return };
    let mut world = cards(&library, 3, Start::First);
    drop(world.pop());
    for mut card in world {
        let slot = (0..SLOTS as usize).find(|&slot| card.arm(slot).is_err()).expect("a peer is gone");
        assert!(!card.is_over(slot).unwrap());
        assert!(card.arm(slot).is_err(), "its last use is not over");
    }
}

/// A card that ends early writes nothing into what a peer has not read.
#[test]
fn a_card_that_ends_early_spoils_no_round() {
    let Some(library) = libfabric() else { return };
    let world = cards(&library, 2, Start::First).into_iter().zip(0..);
    let mut world: Vec<Rank> = world.map(|(card, rank)| Rank::new(card, rank, 2)).collect();
    world.iter_mut().for_each(|rank| rank.arm(0));
    world.iter_mut().for_each(|rank| rank.card.ready(0).unwrap());
    for rank in &mut world {
        assert!(rank.hand_in(0, true, Duration::ZERO));
    }
    world.iter_mut().for_each(|rank| rank.arrive(0));
    let since = Instant::now();
    while !world.iter_mut().all(|rank| rank.card.has_outcome(0).unwrap()) {
        assert!(since.elapsed() < PATIENCE);
    }
    // One is a round of the slot ahead.
    let mut ahead = world.pop().unwrap();
    assert!(ahead.take(0));
    ahead.settle(0);
    ahead.card.write(0, &[0; BYTES]);
    ahead.card.arm(0).unwrap();
    drop(ahead);
    thread::sleep(Duration::from_millis(300));
    assert!(world[0].take(0));
    assert_eq!(world[0].outcomes[0], Some(vec![1, 1]));
}

fn refused<R: std::fmt::Debug>(call: &str, result: earlybird::Result<R>) {
    let Err(Error::Usage { operation, .. }) = &result else { panic!("{call}: {result:?}") };
    assert_eq!(*operation, call);
}

/// Each of these gave a counter an input too many, or named a rank twice to libfabric. Some crashed
/// there, at once or in a later use. They are refused, and the rounds continue.
#[test]
fn calls_out_of_turn_are_refused() {
    let Some(library) = libfabric() else { return };
    let (mut cards, introductions) = opened(&library, 2, Start::First);
    for card in &mut cards {
        refused("arm", card.arm(0));
        refused("arrive", card.arrive(0));
        card.connect(&introductions).unwrap();
        refused("connect", card.connect(&introductions));
    }
    let mut world: Vec<Rank> = cards.into_iter().zip(0..).map(|(card, rank)| Rank::new(card, rank, 2)).collect();
    for round in 0..2 * SLOTS {
        for rank in &mut world {
            refused("arrive", rank.card.arrive(slot(round)));
            refused("ready", rank.card.ready(slot(round)));
            refused("let_in", rank.card.let_in(slot(round)));
            rank.arm(round);
            refused("arm", rank.card.arm(slot(round)));
        }
        for rank in &mut world {
            assert!(rank.hand_in(round, true, Duration::ZERO));
            refused("let_in", rank.card.let_in(slot(round)));
            rank.card.ready(slot(round)).unwrap();
            refused("ready", rank.card.ready(slot(round)));
        }
        world[0].arrive(round);
        refused("arrive", world[0].card.arrive(slot(round)));
        world.iter_mut().for_each(|rank| rank.receive(round));
        for rank in &mut world {
            refused("arrive", rank.card.arrive(slot(round)));
            rank.settle(round);
        }
    }
    conserved(&world, 2 * SLOTS);
}
