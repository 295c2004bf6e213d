//! A leaf under every order of effects that the memory model allows: tags, the closed round, and an outcome that has
//! landed. `docs/testing.md` says how to run them.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::super::super::plan::{Plan, Terms};
use super::super::super::tag::Tag;
use super::leaf::Leaf;
use crate::collective::core::{Entry, Part, Particulars};
use crate::rank_set::RankSet;
use crate::rule::{AgreementBy, Fire, MovementBy};
use crate::sync::modelled::{Operation, check, find};
use crate::sync::{AtomicU64, announce, full_fence, look};

/// The memory of a host with two ranks. Loom watches the contributions and the outcome.
struct Memory {
    plan: Plan,
    cells: Vec<AtomicU64>,
    contributions: [UnsafeCell<()>; 2],
    outcome: UnsafeCell<()>,
}

const ROUNDS: u64 = 2;

impl Memory {
    fn new() -> Arc<Self> {
        let sample = Terms::sample(0, vec![0, 0], Fire::SOLO, MovementBy::Program);
        let plan = Plan::new(Terms { agreement: AgreementBy::Relays, depth: 2, ..sample });
        let cells = (0..=plan.unfilled(1, 0)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Memory {
            plan,
            cells,
            contributions: [UnsafeCell::new(()), UnsafeCell::new(())],
            outcome: UnsafeCell::new(()),
        })
    }

    /// A rank contributes to the first round. Returns the round that it finds closed.
    fn arrive(&self, rank: u32) -> u64 {
        self.contributions[rank as usize].with_mut(|_| {});
        let tag = Tag { target: 1, buffer: 0, particulars: Particulars::PLAIN, leaving: false };
        announce(&self.cells[self.plan.tag(rank, 0)], tag.cell());
        full_fence();
        look(&self.cells[self.plan.closed()])
    }

    /// The agent closes a round, and reads the contributions that it takes.
    fn close(&self, leaf: &mut Leaf, round: u64) -> Vec<Entry> {
        announce(&self.cells[self.plan.closed()], round);
        full_fence();
        let mut taken = Vec::new();
        leaf.take(round, &RankSet::full(2), &self.plan, &|cell: usize| look(&self.cells[cell]), |entry| {
            taken.push(entry)
        });
        taken.iter().for_each(|entry| self.contributions[entry.rank as usize].with(|_| {}));
        taken
    }
}

fn is_of(rank: u32) -> impl Fn(&&Entry) -> bool {
    move |entry| entry.rank == rank
}

/// A rank that finds its target open is in it. Every other one is in one round, at the latest in the one after those
/// that it found closed.
fn takes_each_tag_once() {
    let memory = Memory::new();
    let ranks = [0, 1].map(|rank| {
        let memory = memory.clone();
        thread::spawn(move || memory.arrive(rank))
    });
    let mut leaf = Leaf::new(&memory.plan);
    let mut taken: Vec<_> = (1..=ROUNDS).map(|round| memory.close(&mut leaf, round)).collect();
    let found = ranks.map(|rank| rank.join().unwrap());
    taken.push(memory.close(&mut leaf, ROUNDS + 1));
    for (rank, closed) in (0..).zip(found) {
        let holds = |round: usize| taken[round - 1].iter().filter(is_of(rank)).count();
        assert_eq!(
            (1..=taken.len()).map(holds).sum::<usize>(),
            1,
            "rank {rank} found round {closed} closed: {taken:?}"
        );
        let in_time = taken[0].iter().filter(is_of(rank)).any(|entry| entry.part == Part::Fresh);
        assert!(closed > 0 || in_time, "rank {rank} found its target open and is not in it: {taken:?}");
        assert!((1..=closed as usize + 1).any(|round| holds(round) == 1), "rank {rank} after {closed}: {taken:?}");
    }
}

#[test]
fn every_tag_is_taken_once_and_in_time() {
    check(Some(3), takes_each_tag_once);
}

#[test]
fn an_outcome_that_has_landed_is_there() {
    check(None, lands);
}

/// A rank that sees that a round has landed reads its outcome.
fn lands() {
    let memory = Memory::new();
    let agent = memory.clone();
    thread::spawn(move || {
        agent.outcome.with_mut(|_| {});
        announce(&agent.cells[agent.plan.landed()], 1);
    });
    if look(&memory.cells[memory.plan.landed()]) >= 1 {
        memory.outcome.with(|_| {});
    }
}

#[test]
fn a_leaf_without_its_fences_is_found() {
    find(Operation::Fence, || check(Some(3), takes_each_tag_once));
}

#[test]
fn a_tag_without_release_is_found() {
    find(Operation::Announce, || check(Some(3), takes_each_tag_once));
}

#[test]
fn a_look_at_tags_without_acquire_is_found() {
    find(Operation::Look, || check(Some(3), takes_each_tag_once));
}

#[test]
fn landing_without_release_is_found() {
    find(Operation::Announce, || check(None, lands));
}
