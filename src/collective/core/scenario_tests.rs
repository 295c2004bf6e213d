//! Small rounds to read: what ranks of one host do by words and by tags, arrival by arrival. The simulator plays the same
//! machines in random worlds.

use super::tests::Memory;
use super::{Cut, Effort, FOREVER, Machine, Op, Operands, Part, Particulars, Plan, Terms};
use crate::fabric::{Atomic, Change};
use crate::rule::{Fire, MovementBy};

/// Ranks of one host, and its cells. Operations take effect at once; no data is reduced.
struct Host {
    memory: Memory,
    ranks: Vec<Machine>,
}

impl Host {
    fn of(ranks: u32, fire: Fire, movement: MovementBy) -> Self {
        let hosts = vec![0; ranks as usize];
        let depth = if fire.is_synchronous() { 1 } else { 4 };
        let plan = |me| Plan::new(Terms { depth, ..Terms::sample(me, hosts.clone(), fire, movement) });
        Host { memory: Memory::of(&plan(0)), ranks: (0..ranks).map(|me| Machine::new(plan(me))).collect() }
    }

    /// A rank hands in a contribution, and goes as far as it can.
    fn arrives(&mut self, rank: usize) {
        self.ranks[rank].arrive(0, Particulars::PLAIN);
        self.goes_on(rank);
    }

    /// A rank hands in its last, empty arrival.
    fn leaves(&mut self, rank: usize) {
        self.ranks[rank].leave();
        self.goes_on(rank);
    }

    /// A rank whose last arrival is in a round reads no more of any round.
    fn is_gone(&mut self, rank: usize) {
        self.goes_on(rank);
        let machine = &mut self.ranks[rank];
        machine.take(false);
        assert!(machine.has_left() && machine.is_finished());
        machine.release(FOREVER);
        self.goes_on(rank);
        assert!(self.ranks[rank].has_gone());
    }

    fn goes_on(&mut self, rank: usize) {
        let (machine, cells) = (&mut self.ranks[rank], &mut self.memory);
        let mut operands = Operands::default();
        while machine.poll(0, Effort::Work, cells) {
            while let Some(op) = machine.next_op(&mut operands) {
                match op {
                    Op::Store { cell, value } => cells.0[cell] = value,
                    Op::Clear { first, count, token, .. } => {
                        cells.0[first..first + count].fill(0);
                        machine.complete(token, 0, 0);
                    }
                    Op::Atomic { cell, atomic, token, .. } => {
                        let before = cells.0[cell];
                        cells.0[cell] = match atomic {
                            Atomic::FetchAdd(value) => before.wrapping_add(value),
                            Atomic::CompareSwap { expect, new } if expect == before => new,
                            Atomic::CompareSwap { .. } => before,
                        };
                        machine.complete(token, before, 0);
                    }
                    Op::Put { data, signal, token, .. } => {
                        assert!(data.is_none(), "the ranks of a host share their memory");
                        if let Some((cell, change)) = signal {
                            cells.0[cell] = match change {
                                Change::Set(value) | Change::Advance { to: value, .. } => value,
                                Change::Add(value) => cells.0[cell] + value,
                            };
                        }
                        machine.complete(token, 0, 0);
                    }
                    Op::Record { last, cell, round, .. } => {
                        operands.words.iter().enumerate().for_each(|(below, &word)| cells.0[last - below] = word);
                        cells.0[cell] = round;
                    }
                    Op::Fence | Op::Wake { .. } | Op::Combine { .. } => {}
                    other => panic!("not in a round by words or tags of one host: {other:?}"),
                }
            }
        }
    }

    /// What a rank takes: a line for each round.
    fn takes(&mut self, rank: usize) -> Vec<String> {
        self.goes_on(rank);
        let machine = &mut self.ranks[rank];
        let taken: Vec<String> = machine.take(false).map(|round| told(machine.cut(round))).collect();
        machine.release(machine.taken());
        self.goes_on(rank);
        taken
    }
}

/// A cut, in words.
fn told(cut: &Cut) -> String {
    let entry = |entry: super::Entry| match entry.part {
        Part::Fresh => format!("{}", entry.rank),
        Part::Carried => format!("{} carried for {}", entry.rank, entry.age),
        Part::Leaving => format!("{} leaves", entry.rank),
    };
    format!("round {}: {}", cut.round(), cut.entries().map(entry).collect::<Vec<_>>().join(", "))
}

/// By word: the second arrival of three fires a quorum of two. The third rank is late; it gets the round that it missed, and
/// its contribution enters the next round.
#[test]
fn a_quorum_fires_without_the_last_rank_and_carries_it() {
    let mut host = Host::of(3, Fire::quorum(2), MovementBy::Initiator);
    host.arrives(0);
    assert_eq!(host.takes(0), [""; 0], "one of two");
    host.arrives(1);
    assert_eq!(host.takes(1), ["round 1: 0, 1"]);
    assert_eq!(host.takes(0), ["round 1: 0, 1"]);
    host.arrives(2);
    assert_eq!(host.takes(2), ["round 1: 0, 1"], "late for it, and passive in it");
    host.arrives(0);
    host.arrives(1);
    assert_eq!(host.takes(0), ["round 2: 0, 1, 2 carried for 1"]);
    assert_eq!(host.takes(1), ["round 2: 0, 1, 2 carried for 1"]);
    host.arrives(2);
    assert_eq!(host.takes(2), ["round 2: 0, 1, 2 carried for 1"]);
}

/// By word: under *solo* each arrival fires a round. A rank that was away gets all that it missed with its next arrival, as
/// far as the ring reaches.
#[test]
fn a_rank_that_was_away_gets_every_round_that_it_missed() {
    let mut host = Host::of(2, Fire::SOLO, MovementBy::Initiator);
    for round in 1..=3 {
        host.arrives(0);
        assert_eq!(host.takes(0), [format!("round {round}: 0")]);
    }
    host.arrives(1);
    assert_eq!(host.takes(1), ["round 1: 0", "round 2: 0", "round 3: 0"]);
    host.arrives(0);
    assert_eq!(host.takes(0), ["round 4: 0, 1 carried for 3"]);
}

/// By tags: a synchronous round needs no word. It fires at each rank that sees the tags of all.
#[test]
fn a_synchronous_round_waits_for_the_last_tag() {
    let mut host = Host::of(3, Fire::ALL, MovementBy::Everyone);
    host.arrives(2);
    host.arrives(0);
    assert_eq!(host.takes(0), [""; 0]);
    assert_eq!(host.takes(2), [""; 0]);
    host.arrives(1);
    for rank in [1, 0, 2] {
        assert_eq!(host.takes(rank), ["round 1: 0, 1, 2"]);
    }
}

/// A rank that leaves is no reason to wait: its last arrival counts in one round, and the next one needs the others only.
#[test]
fn a_round_does_not_wait_for_a_rank_that_left() {
    for (fire, movement) in [(Fire::ALL, MovementBy::Everyone), (Fire::quorum(3), MovementBy::Initiator)] {
        let mut host = Host::of(3, fire, movement);
        host.leaves(1);
        host.arrives(0);
        host.arrives(2);
        assert_eq!(host.takes(0), ["round 1: 0, 1 leaves, 2"], "{fire}");
        assert_eq!(host.takes(2), ["round 1: 0, 1 leaves, 2"]);
        host.is_gone(1);
        host.arrives(2);
        assert_eq!(host.takes(2), [""; 0]);
        host.arrives(0);
        assert_eq!(host.takes(0), ["round 2: 0, 2"]);
        assert_eq!(host.takes(2), ["round 2: 0, 2"]);
    }
}
