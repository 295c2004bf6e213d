//! Calls in random orders, over a simulated network, against what they must give.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Blocks, Board, Call, Data, Kind, Pairs, Sizes, Transfer, What};
use crate::error::Error;
use crate::executor::work::Polled;
use crate::fabric::sim::{SimFabric, Weather};
use crate::fabric::{Fabric, RawAccess};
#[cfg(earlybird_faults)]
use crate::fault::{Fault, Suite};
use crate::reduce::{Dtype, Reduce};

const SCHEDULES: u64 = 1_500;

/// A call of all ranks.
#[derive(Clone, Debug)]
struct Case {
    kind: Kind,
    root: u32,
    reduce: Reduce,
    /// 32-bit elements of a block, or of each block from a rank to another one.
    block: usize,
    lengths: Option<Vec<Vec<usize>>>,
}

/// A world of boards, and the calls that its ranks make.
struct World {
    fabrics: Vec<SimFabric>,
    boards: Vec<Board>,
    /// All ranks are on one host.
    shared: bool,
}

impl World {
    fn new(rng: &mut Xoshiro256PlusPlus) -> Self {
        let ranks = rng.random_range(1..=9u32);
        let mut hosts: Vec<u32> = vec![0];
        for _ in 1..ranks {
            let next = hosts.iter().max().map_or(0, |most| most + 1);
            hosts.push(rng.random_range(0..=next));
        }
        if rng.random_bool(0.3) {
            hosts.fill(0);
        }
        let shared = hosts.iter().all(|&host| host == 0);
        let fabrics = SimFabric::world(&hosts, rng.random());
        let weather = Weather { slow: rng.random_range(0..=32), ..Weather::default() };
        let net = fabrics[0].net();
        net.lock().take_over();
        net.lock().set_weather(weather);
        let mut sizes = Sizes::with_slots(ranks, shared, 1 << rng.random_range(6..=12));
        if shared {
            // So few that calls of a few bytes come round, too.
            sizes.slots = rng.random_range(2..=sizes.slots);
            sizes.lines = rng.random_range(sizes.slots..=2 * sizes.slots);
        }
        let board = |fabric: &SimFabric| {
            let endpoint = fabric.open(RawAccess::CRATE).unwrap();
            Board::new(endpoint, fabric.rank(), sizes).unwrap()
        };
        let (mut boards, told): (Vec<Board>, Vec<Vec<u8>>) = fabrics.iter().map(board).unzip();
        boards.iter_mut().for_each(|board| board.meet(&told).unwrap());
        World { fabrics, boards, shared }
    }

    /// Polls ranks and moves the network in a random order, until all calls are made or nothing can happen any more.
    fn run(
        &mut self,
        mut calls: Vec<Vec<(What, Data<'_>)>>,
        rng: &mut Xoshiro256PlusPlus,
    ) -> Result<(), (u32, Option<Error>)> {
        calls.iter_mut().for_each(|calls| calls.reverse());
        let net = self.fabrics[0].net();
        let mut going: Vec<Option<Call<'_>>> = calls.iter().map(|_| None).collect();
        // A rank may be polled more often than others, so that it runs ahead.
        let haste: Vec<f64> = calls.iter().map(|_| rng.random_range(0.05..1.0)).collect();
        loop {
            let (mut done, mut idle) = (true, true);
            for rank in 0..self.boards.len() {
                let (board, call) = (&mut self.boards[rank], &mut going[rank]);
                done &= call.is_none() && calls[rank].is_empty();
                if rng.random_bool(1.0 - haste[rank]) {
                    idle = false;
                    continue;
                }
                let failed = |error| (rank as u32, Some(error));
                if call.is_none()
                    && let Some((what, data)) = calls[rank].pop()
                {
                    *call = Some(Call::new(board, what, data));
                }
                let Some(goes_on) = call else { continue };
                let listens = rng.random();
                if listens {
                    goes_on.listen();
                }
                match goes_on.poll(board).map_err(failed)? {
                    Polled::Idle => idle &= listens,
                    Polled::Progress => idle = false,
                    Polled::Ready => (*call, idle) = (None, false),
                }
            }
            if done {
                return Ok(());
            }
            let mut net = net.lock();
            match net.next_time() {
                Some(_) if rng.random_bool(0.7) => net.advance(),
                None if idle => {
                    let waits = going.iter().position(Option::is_some).unwrap_or(0);
                    return Err((waits as u32, None));
                }
                _ => {}
            }
        }
    }
}

/// What a rank contributes to a call.
fn value(call: usize, rank: usize, index: usize) -> u32 {
    (call as u32 + 1).wrapping_mul(0x9e37_79b9).rotate_left(rank as u32).wrapping_add(index as u32 * 7 + rank as u32)
}

fn bytes(values: impl Iterator<Item = u32>) -> Vec<u8> {
    values.flat_map(u32::to_le_bytes).collect()
}

fn bounds(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut end = 0;
    std::iter::once(0).chain(lengths.map(|length| (end += 4 * length, end).1)).collect()
}

impl Case {
    fn draw(ranks: usize, rng: &mut Xoshiro256PlusPlus) -> Self {
        let kind = Kind::EVERY[rng.random_range(0..Kind::EVERY.len())].0;
        let most = if rng.random_bool(0.2) { 3_000 } else { 60 };
        let block = rng.random_range(0..=most);
        let uneven = kind == Kind::AllToAll && rng.random_bool(0.5);
        let lengths = uneven.then(|| {
            let row = |_| (0..ranks).map(|_| rng.random_range(0..=block)).collect();
            (0..ranks).map(row).collect()
        });
        let reduce = Reduce::EVERY[rng.random_range(0..4)];
        Case { kind, root: rng.random_range(0..ranks as u32), reduce, block, lengths }
    }

    /// Elements that a rank sends to another one.
    fn length(&self, from: usize, to: usize) -> usize {
        self.lengths.as_ref().map_or(self.block, |lengths| lengths[from][to])
    }

    fn sends(&self, rank: usize, ranks: usize) -> usize {
        match self.kind {
            Kind::Scatter if rank != self.root as usize => 0,
            Kind::Scatter | Kind::ReduceScatter => ranks * self.block,
            Kind::AllToAll => (0..ranks).map(|to| self.length(rank, to)).sum(),
            _ => self.block,
        }
    }

    /// What a rank has in the end.
    fn expected(&self, call: usize, rank: usize, ranks: usize) -> Vec<u32> {
        let all = |from: usize| (0..self.sends(from, ranks)).map(move |index| value(call, from, index));
        let reduced = |index: usize| {
            let values = (0..ranks).map(|from| value(call, from, index));
            let fold = |left: u32, right: u32| match self.reduce {
                Reduce::Sum => left.wrapping_add(right),
                Reduce::Min => left.min(right),
                Reduce::Max => left.max(right),
                Reduce::Prod => left.wrapping_mul(right),
                Reduce::Mean => unreachable!("no call here has it"),
            };
            values.reduce(fold).unwrap()
        };
        let block = |from: usize, number: usize| all(from).skip(number * self.block).take(self.block);
        let is_root = rank == self.root as usize;
        match self.kind {
            Kind::Broadcast => all(self.root as usize).collect(),
            Kind::Gather | Kind::Reduce if !is_root => Vec::new(),
            Kind::Gather | Kind::AllGather | Kind::Symmetric => (0..ranks).flat_map(all).collect(),
            Kind::Scatter => block(self.root as usize, rank).collect(),
            Kind::AllToAll => {
                let before = |from: usize| (0..rank).map(|to| self.length(from, to)).sum::<usize>();
                let from = |from: usize| all(from).skip(before(from)).take(self.length(from, rank));
                (0..ranks).flat_map(from).collect()
            }
            Kind::Reduce | Kind::AllReduce => (0..self.block).map(reduced).collect(),
            Kind::ReduceScatter => (rank * self.block..(rank + 1) * self.block).map(reduced).collect(),
        }
    }
}

/// The memory of a rank for a call.
struct Buffers {
    input: Vec<u8>,
    output: Vec<u8>,
    from: Vec<usize>,
    to: Vec<usize>,
}

/// Random calls in a random order.
fn play(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut world = World::new(&mut rng);
    let ranks = world.boards.len();
    let cases: Vec<Case> = (0..rng.random_range(1..=16)).map(|_| Case::draw(ranks, &mut rng)).collect();
    let in_place = |kind| matches!(kind, Kind::Broadcast | Kind::AllReduce);
    let buffers = |(call, case): (usize, &Case), rank: usize| {
        let sent = (0..case.sends(rank, ranks)).map(|index| value(call, rank, index));
        let input = bytes(sent);
        let output = match in_place(case.kind) {
            true => input.clone(),
            false => vec![0xee; 4 * case.expected(call, rank, ranks).len()],
        };
        let from = bounds((0..ranks).map(|to| case.length(rank, to)));
        Buffers { input, output, from, to: bounds((0..ranks).map(|from| case.length(from, rank))) }
    };
    let mut all: Vec<Vec<Buffers>> =
        (0..ranks).map(|rank| cases.iter().enumerate().map(|case| buffers(case, rank)).collect()).collect();
    let calls = all
        .iter_mut()
        .map(|of_rank| {
            cases
                .iter()
                .zip(of_rank.iter_mut())
                .map(|(case, Buffers { input, output, from, to })| {
                    let largest = case.lengths.as_ref().and_then(|lengths| lengths.iter().flatten().copied().max());
                    let block = 4 * largest.unwrap_or(case.block);
                    let (kind, root, reduction) = (case.kind, case.root, (Dtype::U32, case.reduce));
                    let what = What::new("test", (kind, root, reduction), block, 0);
                    let input = (!in_place(kind)).then_some(&input[..]);
                    let (from, to) = match case.lengths {
                        Some(_) => (Blocks::Bounds(from), Blocks::Bounds(to)),
                        None => (Blocks::Even, Blocks::Even),
                    };
                    (what, Data { input, output, from, to })
                })
                .collect()
        })
        .collect();
    if let Err((rank, error)) = world.run(calls, &mut rng) {
        panic!("seed {seed}: rank {rank}: {error:?} (none: it waits for ever)");
    }
    for (rank, of_rank) in all.iter().enumerate() {
        for (call, (case, buffers)) in cases.iter().zip(of_rank).enumerate() {
            let expected = bytes(case.expected(call, rank, ranks).into_iter());
            assert!(buffers.output == expected, "seed {seed}: rank {rank} of {ranks}, call {call}: {case:?}");
        }
    }
}

fn calls_give_what_they_must() {
    (0..SCHEDULES).for_each(play);
}

/// One rank makes another call than the others: a rank says so.
fn different_calls_are_seen() {
    const SEEDS: u64 = 40;
    let right = (Kind::AllGather, 0, (Dtype::U32, Reduce::Sum), 8);
    let (sum, all) = ((Dtype::U32, Reduce::Sum), Kind::AllReduce);
    let pairs = [
        (right, (Kind::AllGather, 0, sum, 12), Some("the length in bytes")),
        (right, (Kind::AllToAll, 0, sum, 8), Some("the call")),
        ((all, 0, sum, 8), (all, 0, (Dtype::U32, Reduce::Min), 8), Some("the call")),
        ((all, 0, sum, 8), (all, 0, (Dtype::F32, Reduce::Sum), 8), Some("the call")),
        // Which difference a rank sees first depends on where it waits.
        ((Kind::Broadcast, 0, sum, 8), (Kind::Broadcast, 1, sum, 8), None),
    ];
    let cases = (0..SEEDS).flat_map(|_| pairs);
    for (seed, (first, second, expected)) in (0..).zip(cases) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut world = World::new(&mut rng);
        let ranks = world.boards.len();
        if ranks == 1 {
            continue;
        }
        let odd = rng.random_range(0..ranks);
        if second.1 == 1 && odd == 0 {
            // Both roots wait for the other one, and no rank publishes anything: only time tells.
            continue;
        }
        let mut memory: Vec<[Vec<u8>; 4]> = (0..ranks).map(|_| [(); 4].map(|()| vec![0u8; 12 * ranks])).collect();
        let calls = memory.iter_mut().enumerate().map(|(rank, [input, output, more, last])| {
            let (kind, root, reduction, block) = if rank == odd { second } else { first };
            let what = What::new("test", (kind, root, reduction), block, 0);
            let sync = What::new("test", (Kind::AllGather, 0, sum), 4, what.place);
            vec![(what, Data::even(&input[..], output)), (sync, Data::even(&more[..], last))]
        });
        let calls = calls.collect();
        let (_, error) = world.run(calls, &mut rng).expect_err("the calls differ");
        let Some(Error::Mismatch { what, .. }) = error else { panic!("seed {seed}: {error:?}") };
        assert!(expected.is_none_or(|expected| what == expected), "seed {seed}: {what}");
    }
}

/// A rank that never comes is the one that a rank which waits for room on its board names, whatever marks have said of
/// others meanwhile.
#[test]
fn the_missing_rank_is_named() {
    let fabrics = SimFabric::world(&[0; 3], 7);
    let make = |fabric: &SimFabric| {
        let endpoint = fabric.open(RawAccess::CRATE).unwrap();
        Board::new(endpoint, fabric.rank(), Sizes::with_slots(3, true, 64)).unwrap()
    };
    let (mut boards, told): (Vec<Board>, Vec<Vec<u8>>) = fabrics.iter().map(make).unzip();
    boards.iter_mut().for_each(|board| board.meet(&told).unwrap());
    let reduction = (Dtype::U32, Reduce::Sum);
    for call in 0..600 {
        let root = u32::from(call % 8 != 0);
        let mut memory = [[0u8; 8]; 2];
        let what = What::new("test", (Kind::Broadcast, root, reduction), 8, 0);
        let data = memory.iter_mut().map(|data| Data::even(None, &mut data[..]));
        let mut calls: Vec<_> = (0..2).zip(data).map(|(rank, data)| Call::new(&mut boards[rank], what, data)).collect();
        let is_done = |polled| matches!(polled, Polled::Ready);
        let mut done = [false; 2];
        for _ in 0..8 {
            for rank in 0..2 {
                done[rank] = done[rank] || is_done(calls[rank].poll(&mut boards[rank]).unwrap());
            }
        }
        if !done[0] || !done[1] {
            let waiting = done.iter().position(|done| !done).unwrap();
            assert_eq!(calls[waiting].missing(&boards[waiting]).0, [2], "call {call}, rank {waiting}");
            return;
        }
    }
    panic!("no rank waited");
}

/// Messages between all pairs of ranks, received in another order of their tags than they were sent in.
fn play_messages(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let world = World::new(&mut rng);
    let (ranks, net) = (world.fabrics.len(), world.fabrics[0].net());
    let shared = world.shared;
    let slot = 1 << rng.random_range(6..=9);
    let pairs = |fabric: &SimFabric| {
        let endpoint = fabric.open(RawAccess::CRATE).unwrap();
        Pairs::with_slots(endpoint, fabric.rank(), ranks as u32, shared, slot).unwrap()
    };
    let (mut pairs, told): (Vec<Pairs>, Vec<Vec<u8>>) = world.fabrics.iter().map(pairs).unzip();
    pairs.iter_mut().for_each(|pairs| pairs.meet(&told).unwrap());
    struct Message {
        from: usize,
        to: usize,
        tag: u64,
        sent: Vec<u8>,
        received: Vec<u8>,
        ends: [Option<Transfer>; 2],
        done: [bool; 2],
    }
    let message = |number: usize, rng: &mut Xoshiro256PlusPlus| {
        let from = rng.random_range(0..ranks);
        let to = (from + rng.random_range(1..ranks)) % ranks;
        let length = rng.random_range(0..=900) * usize::from(rng.random_bool(0.8));
        let sent: Vec<u8> = (0..length).map(|index| (index * 3 + number * 11) as u8).collect();
        let received = vec![0; length];
        Message { from, to, tag: rng.random_range(0..3), sent, received, ends: [None, None], done: [false; 2] }
    };
    let count = if ranks > 1 { rng.random_range(1..=40) } else { 0 };
    let mut messages: Vec<Message> = (0..count).map(|number| message(number, &mut rng)).collect();
    let mut idle_turns = 0;
    loop {
        let mut idle = true;
        for number in 0..messages.len() {
            let (before, rest) = messages.split_at_mut(number);
            let Some(message) = rest.first_mut() else { continue };
            let (from, to, tag) = (message.from, message.to, message.tag);
            let same = |other: &&Message| (other.from, other.to) == (from, to);
            // Sends of a pair begin in order; of receives with one tag there is one at a time.
            let may_send = before.iter().filter(same).all(|other| other.done[0] || other.ends[0].is_some());
            let may_receive = before.iter().filter(same).all(|other| other.tag != tag || other.done[1]);
            if rng.random_bool(0.4) {
                idle = false;
                continue;
            }
            if !message.done[0] && may_send {
                let pairs = &mut pairs[from];
                let send = message.ends[0].get_or_insert_with(|| pairs.send("send", to as u32, tag).unwrap());
                message.done[0] = pairs.poll_send(send, &message.sent).unwrap();
                idle &= !message.done[0];
            }
            // Receives of several tags go on by turns, and not always when a part is there.
            if !message.done[1] && may_receive && (rng.random_bool(0.3) || message.done[0]) {
                let pairs = &mut pairs[to];
                let receive =
                    message.ends[1].get_or_insert_with(|| pairs.receive("receive", from as u32, tag).unwrap());
                message.done[1] = pairs.poll_receive(receive, &mut message.received).unwrap();
                idle &= !message.done[1];
            }
        }
        if messages.iter().all(|message| message.done == [true; 2]) {
            break;
        }
        let mut net = net.lock();
        match net.next_time() {
            Some(_) => net.advance(),
            None if idle => idle_turns += 1,
            None => idle_turns = 0,
        }
        assert!(idle_turns < 50, "seed {seed}: messages wait for ever");
    }
    for message in messages {
        assert!(message.received == message.sent, "seed {seed}: from {} to {}", message.from, message.to);
    }
}

/// A rank says that it has written more parts than it can have: they are not looked for, which would take for ever.
#[test]
fn a_count_that_cannot_be_is_an_error() {
    for hosts in [[0, 0], [0, 1]] {
        let fabrics = SimFabric::world(&hosts, 1);
        let pairs = |fabric: &SimFabric| {
            let endpoint = fabric.open(RawAccess::CRATE).unwrap();
            Pairs::new(endpoint, fabric.rank(), 2, hosts[1] == 0).unwrap()
        };
        let (mut pairs, told): (Vec<Pairs>, Vec<Vec<u8>>) = fabrics.iter().map(pairs).unzip();
        pairs.iter_mut().for_each(|pairs| pairs.meet(&told).unwrap());
        let mut receive = pairs[1].receive("receive", 0, 9).unwrap();
        assert!(!pairs[1].poll_receive(&mut receive, &mut [0]).unwrap());
        pairs[0].tell_falsely(1, 0xDEAD_BEEF_0000_1234);
        let told = (0..100_000).find_map(|_| pairs[1].poll_receive(&mut receive, &mut [0]).err());
        assert!(told.as_ref().is_some_and(|told| told.to_string().contains("there cannot be")), "{told:?}");
    }
}

fn messages_arrive() {
    (0..SCHEDULES).for_each(play_messages);
}

fn all() {
    messages_arrive();
    calls_give_what_they_must();
    different_calls_are_seen();
}

#[test]
fn calls_give_the_same_over_any_network() {
    all();
}

#[cfg(earlybird_faults)]
#[test]
fn every_fault_is_found() {
    let unseen = Fault::unseen(Suite::Boards.faults(), RawAccess::CRATE, all);
    assert!(unseen.is_empty(), "unseen: {unseen:?}");
}
