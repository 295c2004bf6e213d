//! Compiled queues on the mock NICs against the software worker and the model of cards.
#![forbid(unsafe_code)]

mod software;

use std::collections::{BTreeMap, BTreeSet};

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::super::Cards;
use super::compile::{Lanes, Unsupported, Wiring};
use super::host::{Number, What};
use super::mock::Mock;
use super::wqe::{Element, Location};
use crate::tier::by_tier;
use crate::trigger::{Action, Buffer, Profile, Program, RankBuffer, Request, Role, Schedule, Signal, Start, compile};
use software::Software;

/// Bytes of a contribution: three cache lines.
const BYTES: u64 = 192;

/// The first use of a slot, so that all counts of entries wrap two uses later.
const FIRST_USE: u64 = (1 << 24) - 2;

/// The queues and memory of one rank.
#[derive(Clone)]
struct Wires {
    queues: Vec<Number>,
    /// The peers of the queues, by lane, which take receives.
    ends: Vec<Number>,
    counters: BTreeMap<Role, Number>,
    gate: Location,
    before: Location,
    buffers: BTreeMap<Buffer, Location>,
}

struct Names<'a> {
    own: &'a Wires,
    all: &'a [Wires],
}

impl Wiring for Names<'_> {
    fn queue(&self, lane: usize) -> u32 {
        self.own.queues[lane].number
    }

    fn completions(&self, counter: Role) -> u32 {
        self.own.counters[&counter].number
    }

    fn gate(&self) -> Location {
        self.own.gate
    }

    fn before(&self) -> Location {
        self.own.before
    }

    fn own(&self, buffer: Buffer) -> Location {
        self.own.buffers[&buffer]
    }

    fn there(&self, place: RankBuffer) -> Location {
        self.all[place.rank as usize].buffers[&place.buffer]
    }
}

/// A world whose ranks have a NIC each, with one slot.
struct Nics {
    mock: Mock,
    programs: Vec<Program>,
    lanes: Vec<Lanes>,
    wires: Vec<Wires>,
    bytes: u64,
    /// The number of uses that were armed.
    uses: u64,
    /// Operations that the ranks have run in this use.
    ran: BTreeSet<(u32, usize)>,
}

/// Returns every buffer that a program names.
fn buffers(programs: &[Program]) -> Vec<BTreeSet<Buffer>> {
    let mut buffers = vec![BTreeSet::from([Buffer::Contribution, Buffer::Outcome]); programs.len()];
    for program in programs {
        for operation in &program.operations {
            match &operation.action {
                Action::Put { to, .. } => drop(buffers[to.rank as usize].insert(to.buffer)),
                Action::Reduce { to, .. } => drop(buffers[program.rank as usize].insert(*to)),
                Action::Signal | Action::Seal => {}
            }
        }
    }
    buffers
}

impl Nics {
    fn new(request: &Request, seed: u64) -> Self {
        let ranks = request.ranks as usize;
        let programs = compile(request, &Profile::NETWORK);
        let lanes: Vec<Lanes> =
            programs.iter().map(|program| Lanes::compile(program, request.ranks, request.bytes).unwrap()).collect();
        let mut mock = Mock::new(ranks, seed);
        let wires = programs.iter().zip(buffers(&programs)).map(|(program, buffers)| {
            let host = program.rank as usize;
            let mut base = 0x1000_0000 * (1 + host as u64);
            let mut register = |bytes: u64, shared: bool| {
                let location = mock.register(host, base, bytes as usize, shared);
                base += bytes.next_multiple_of(64);
                location
            };
            let (gate, before) = (register(8, true), register(8, false));
            let buffers =
                buffers.into_iter().map(|buffer| (buffer, register(request.bytes, buffer != Buffer::Contribution)));
            let buffers = buffers.collect();
            let counters = program.counters.iter().map(|counter| {
                let before = FIRST_USE * u64::from(counter.inputs);
                (counter.role, mock.completion_queue(host, before as u32))
            });
            Wires { queues: Vec::new(), ends: Vec::new(), counters: counters.collect(), gate, before, buffers }
        });
        let mut wires: Vec<Wires> = wires.collect();
        for rank in 0..ranks {
            for lane in lanes[rank].lanes() {
                let ignored = mock.completion_queue(rank, 0).number;
                let send = if lane.is_counted_when_sent() { wires[rank].counters[&Role::Sent].number } else { ignored };
                let queue = mock.queue_pair(rank, send, ignored, 8, u16::MAX - 5);
                let to = lane.rank as usize;
                let counter = wires[to].counters[&lane.counter].number;
                let end = mock.queue_pair(to, counter, counter, 1, 0);
                mock.connect(queue, end);
                wires[rank].queues.push(queue);
                wires[rank].ends.push(end);
            }
        }
        let mut nics =
            Nics { mock, programs, lanes, wires, bytes: request.bytes, uses: FIRST_USE, ran: BTreeSet::new() };
        for rank in 0..ranks {
            let inputs = u64::from(nics.programs[rank].inputs(Role::Gate));
            nics.mock.store(rank, nics.wires[rank].gate, &(FIRST_USE * inputs).to_le_bytes());
        }
        nics
    }

    fn ranks(&self) -> u32 {
        self.programs.len() as u32
    }

    fn names(&self, rank: u32) -> Names<'_> {
        Names { own: &self.wires[rank as usize], all: &self.wires }
    }

    fn post(&mut self, rank: u32, lane: usize, element: &Element) {
        let queue = self.wires[rank as usize].queues[lane];
        self.mock.post(queue, element).unwrap();
        self.mock.ring(queue);
    }

    /// Arms every rank for the next use, and gives the token of its gate and its ready tokens.
    fn arm(&mut self) {
        for rank in 0..self.ranks() {
            for lane in 0..self.lanes[rank as usize].lanes().len() {
                let elements = self.lanes[rank as usize].elements(lane, self.uses, &self.names(rank));
                for element in &elements {
                    self.post(rank, lane, element);
                }
                let entries = self.lanes[rank as usize].lanes()[lane].entries;
                self.mock.post_receives(self.wires[rank as usize].ends[lane], entries);
            }
        }
        self.uses += 1;
        self.ran.clear();
        for rank in 0..self.ranks() {
            self.give(rank, self.lanes[rank as usize].token());
            for to in 0..self.ranks() {
                self.give(rank, self.lanes[rank as usize].ready(to));
            }
        }
    }

    fn give(&mut self, rank: u32, signal: Signal) {
        let (lane, element) = self.lanes[rank as usize].signal(signal, &self.names(rank)).unwrap();
        self.post(rank, lane, &element);
    }

    fn arrive(&mut self, rank: u32) {
        self.give(rank, self.lanes[rank as usize].arrival());
    }

    /// Returns the inputs of a counter that have come in this use.
    fn inputs(&self, rank: u32, counter: Role) -> Vec<What> {
        let inputs = u64::from(self.programs[rank as usize].inputs(counter));
        let entries = self.mock.entries(self.wires[rank as usize].counters[&counter]);
        entries.iter().skip(((self.uses - 1 - FIRST_USE) * inputs) as usize).map(|entry| entry.what).collect()
    }

    fn given(&self, rank: u32, counter: Role) -> BTreeSet<u32> {
        let number = |what: &What| if let What::Received(number) = what { Some(*number) } else { None };
        let inputs = self.inputs(rank, counter);
        let given: BTreeSet<u32> = inputs.iter().filter_map(number).collect();
        assert_eq!(given.len(), inputs.len(), "{counter} of rank {rank}: {inputs:?}");
        given
    }

    fn is_full(&mut self, rank: u32, counter: Role) -> bool {
        let inputs = self.programs[rank as usize].inputs(counter);
        if counter == Role::Gate {
            let gate = self.wires[rank as usize].gate;
            return self.mock.word(rank as usize, gate) == self.uses * u64::from(inputs);
        }
        self.inputs(rank, counter).len() == inputs as usize
    }

    /// Runs the NICs, and the reductions of ranks that are inside, until nothing more happens.
    fn settle(&mut self) {
        loop {
            self.mock.run();
            if !(0..self.ranks()).any(|rank| self.reduce(rank)) {
                return;
            }
        }
    }

    /// Runs one reduction that is triggered; returns whether there was one.
    fn reduce(&mut self, rank: u32) -> bool {
        let program = &self.programs[rank as usize];
        let due = |index: &&usize| {
            let operation = &program.operations[**index];
            !self.ran.contains(&(rank, **index))
                && self.inputs(rank, operation.when).len() >= operation.threshold as usize
        };
        let Some(&index) = self.lanes[rank as usize].by_rank().iter().find(due) else { return false };
        let operation = program.operations[index].clone();
        let Action::Reduce { from, to, chunk } = &operation.action else { panic!("{operation:?}") };
        let (offset, length) = chunk.span(self.bytes);
        let host = rank as usize;
        let at = |wires: &Wires, buffer: Buffer| Location {
            address: wires.buffers[&buffer].address + offset,
            ..wires.buffers[&buffer]
        };
        let mut sum = vec![0u8; length as usize];
        for place in from {
            assert_eq!(place.rank, rank, "a rank sums its own buffers");
            let data = self.mock.load(host, at(&self.wires[host], place.buffer), length as usize);
            sum.iter_mut().zip(data).for_each(|(sum, byte)| *sum = sum.wrapping_add(byte));
        }
        let to = at(&self.wires[host], *to);
        self.mock.store(host, to, &sum);
        self.ran.insert((rank, index));
        for signal in operation.then {
            self.give(rank, signal);
        }
        true
    }

    /// Checks that the use is over: all inputs have come, and no element is left.
    fn assert_over(&mut self) {
        for rank in 0..self.ranks() {
            for counter in self.programs[rank as usize].counters.clone() {
                assert!(self.is_full(rank, counter.role), "rank {rank}: {} in use {}", counter.role, self.uses);
            }
            for queue in self.wires[rank as usize].queues.clone() {
                assert!(self.mock.is_drained(queue), "rank {rank}: an element of {queue:?} is left");
            }
        }
    }

    fn contribute(&mut self, rank: u32, value: u8) {
        let to = self.wires[rank as usize].buffers[&Buffer::Contribution];
        self.mock.store(rank as usize, to, &pattern(value, 1));
    }

    fn outcome(&mut self, rank: u32) -> Vec<u8> {
        let from = self.wires[rank as usize].buffers[&Buffer::Outcome];
        self.mock.load(rank as usize, from, self.bytes as usize)
    }
}

fn permutations(ranks: u32) -> Vec<Vec<u32>> {
    if ranks == 0 {
        return vec![Vec::new()];
    }
    let insert = |order: Vec<u32>| {
        (0..=order.len()).map(move |at| {
            let mut order = order.clone();
            order.insert(at, ranks - 1);
            order
        })
    };
    permutations(ranks - 1).into_iter().flat_map(insert).collect()
}

/// Returns the sum of contributions of `ranks` ranks, whose first lines have bytes with this sum. Each cache line, and
/// so each chunk, has different bytes.
fn pattern(first: u8, ranks: u8) -> Vec<u8> {
    (0..BYTES).map(|at| first.wrapping_add(ranks * (at / 64) as u8)).collect()
}

fn request(ranks: u32, start: Start, schedule: Schedule) -> Request {
    Request { ranks, start, schedule, radix: 2, bytes: BYTES, chunk: 0, slots: 1 }
}

fn starts(ranks: u32) -> Vec<Start> {
    let quorums = (1..=ranks).map(Start::Count);
    [Start::Everybody, Start::First, Start::Designated].into_iter().chain(quorums).collect()
}

fn give(cards: &mut Cards, rank: u32, signal: Signal) {
    cards.give(rank, 0, signal);
    while cards.step() {}
}

/// Three rounds that use the same queues. After each arrival the NICs have given the inputs of activations that the
/// software worker has given, and made the same contributions ready. All counters of the tables are as full as on the
/// model of cards.
fn assert_equal_to_software(request: &Request, order: &[u32], seed: u64) {
    let ranks = request.ranks;
    let mut nics = Nics::new(request, seed);
    let mut software = Software::new(request);
    let mut cards = Cards::new(compile(request, &Profile::NETWORK), 1, seed);
    for _ in 0..3 {
        nics.arm();
        software.round += 1;
        (0..ranks).for_each(|rank| cards.arm(rank, 0));
        for rank in 0..ranks {
            let lanes = &nics.lanes[rank as usize];
            give(&mut cards, rank, lanes.token());
            (0..ranks).for_each(|to| give(&mut cards, rank, lanes.ready(to)));
        }
        nics.settle();
        for &arriving in order {
            nics.arrive(arriving);
            nics.settle();
            software.arrive(arriving);
            give(&mut cards, arriving, nics.lanes[arriving as usize].arrival());
            let context = format!("{request:?}, seed {seed}, {order:?}, after {arriving}");
            assert_eq!(nics.given(0, Role::Sealed), software.sealed(), "{context}");
            for rank in 0..ranks {
                assert_eq!(nics.given(rank, Role::Active), software.activations(rank), "{context}: {rank}");
                for counter in nics.programs[rank as usize].counters.clone() {
                    let modelled = cards.is_full(0, rank, counter.role);
                    let role = counter.role;
                    assert_eq!(nics.is_full(rank, role), modelled, "{context}: {role} of {rank}");
                }
            }
        }
        nics.assert_over();
    }
}

#[test]
fn nics_do_as_the_software_does_in_every_order_of_up_to_four_arrivals() {
    for ranks in 1..=4 {
        for start in starts(ranks) {
            for (seed, order) in permutations(ranks).into_iter().enumerate() {
                assert_equal_to_software(&request(ranks, start, Schedule::Gather), &order, seed as u64);
            }
        }
    }
}

#[test]
fn nics_do_as_the_software_does_in_random_orders_of_many_arrivals() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(64);
    for ranks in [5, 8, 13, by_tier(24, 64)] {
        for start in [Start::Everybody, Start::First, Start::Designated, Start::Count(rng.random_range(2..ranks))] {
            let mut order: Vec<u32> = (0..ranks).collect();
            order.shuffle(&mut rng);
            assert_equal_to_software(&request(ranks, start, Schedule::Gather), &order, rng.random());
        }
    }
}

/// Arrivals while the NICs run: every schedule gives every rank the sum of all contributions, over many rounds.
#[test]
fn every_rank_gets_the_sum_in_every_schedule() {
    for schedule in Schedule::EVERY {
        for ranks in 1..=6 {
            for (seed, start) in starts(ranks).into_iter().enumerate() {
                let mut nics = Nics::new(&request(ranks, start, schedule), seed as u64);
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed as u64);
                for round in 0..8u8 {
                    let values: Vec<u8> = (0..ranks as u8).map(|rank| 16 * rank + round).collect();
                    (0..ranks).for_each(|rank| nics.contribute(rank, values[rank as usize]));
                    nics.arm();
                    for rank in 0..ranks {
                        for _ in 0..rng.random_range(0..100) {
                            nics.mock.step();
                        }
                        nics.arrive(rank);
                    }
                    nics.settle();
                    nics.assert_over();
                    let sum = values.iter().fold(0u8, |sum, value| sum.wrapping_add(*value));
                    for rank in 0..ranks {
                        assert_eq!(
                            nics.outcome(rank),
                            pattern(sum, ranks as u8),
                            "{schedule:?}, {ranks} ranks, rank {rank}"
                        );
                    }
                }
            }
        }
    }
}

/// One rank arrives; the others' NICs forward the activation and send the contributions without their ranks.
#[test]
fn passive_ranks_post_nothing() {
    for seed in 0..20 {
        let mut nics = Nics::new(&request(5, Start::First, Schedule::Gather), seed);
        (0..5).for_each(|rank| nics.contribute(rank, 1 << rank));
        nics.arm();
        nics.mock.run();
        nics.arrive(3);
        nics.mock.run();
        assert!(nics.reduce(3), "all contributions are at rank 3");
        assert_eq!(nics.outcome(3), pattern(0b11111, 5));
    }
}

/// A rank revokes its gate's token while it writes its contribution, at any time. The round has either none of the
/// contribution or all of it, and the rank learns which.
#[test]
fn a_contribution_is_whole_or_absent() {
    let mut seen = [0; 2];
    for seed in 0..400 {
        let mut nics = Nics::new(&request(3, Start::First, Schedule::Gather), seed);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        nics.arm();
        nics.mock.run();
        nics.arrive(0);
        let some_steps = |nics: &mut Nics, rng: &mut Xoshiro256PlusPlus, most: u32| {
            for _ in 0..rng.random_range(0..most) {
                nics.mock.step();
            }
        };
        some_steps(&mut nics, &mut rng, 60);
        let (lane, revoke) = nics.lanes[2].revocation(&nics.names(2)).unwrap();
        nics.post(2, lane, &revoke);
        let queue = nics.wires[2].queues[lane];
        while !nics.mock.is_drained(queue) {
            assert!(nics.mock.step());
        }
        let before = nics.wires[2].before;
        let is_open = nics.mock.word(2, before) < 2 * nics.uses;
        if is_open {
            let to = nics.wires[2].buffers[&Buffer::Contribution];
            for offset in 0..BYTES {
                nics.mock.store(2, Location { address: to.address + offset, ..to }, &[9]);
                some_steps(&mut nics, &mut rng, 3);
            }
        }
        nics.give(2, nics.lanes[2].token());
        nics.settle();
        let part = if is_open { 9 } else { 0 };
        for rank in 0..3 {
            assert_eq!(nics.outcome(rank), [part; BYTES as usize], "seed {seed}");
        }
        seen[usize::from(is_open)] += 1;
    }
    assert!(seen.iter().all(|times| *times > 20), "{seen:?}");
}

#[test]
fn what_a_nic_cannot_run_is_refused() {
    let mut program = compile(&request(2, Start::First, Schedule::Gather), &Profile::NETWORK).swap_remove(0);
    let put = program.operations.iter().position(|one| matches!(one.action, Action::Put { .. })).unwrap();
    let then = program.operations[put].then.clone();
    program.operations[put].then.push(Signal { rank: 1, counter: Role::Done, input: 0 });
    let refused = Err(Unsupported::Put { rank: 0, operation: put });
    assert_eq!(Lanes::compile(&program, 2, 8).map(drop), refused);
    program.operations[put].then = then;
    assert_eq!(Lanes::compile(&program, 2, 8).map(drop), Ok(()));
    let gate = program.operations.iter_mut().find(|operation| operation.when == Role::Gate).unwrap();
    gate.threshold = 1;
    let refused = Err(Unsupported::Gate { rank: 0, threshold: 1, inputs: 2 });
    assert_eq!(Lanes::compile(&program, 2, 8).map(drop), refused);
}
