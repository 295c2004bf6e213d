//! Operations out, and what is in flight.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use super::op::{Counted, Interest, Op, Token};
use super::plan::Plan;
use crate::fabric::{Atomic, Change};
use crate::rank_set::RankSet;

const KINDS: usize = Counted::ALL.len();

/// Operations that the driver is to carry out, in order, and how many of those that are only counted have not completed.
/// Until one completes, its data may still be read where it comes from and be written once more where it goes to.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    ops: VecDeque<Op>,
    /// What is in flight, by kind.
    totals: [u32; KINDS],
    /// By kind, and by the host that they go to.
    towards: Vec<u32>,
    hosts: usize,
    /// Counts changes of the machine, to know when there is nothing left to do.
    transitions: u64,
}

impl Hash for Outbox {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.totals, &self.towards, &self.ops).hash(state);
    }
}

impl Outbox {
    pub(super) fn new(plan: &Plan) -> Self {
        let hosts = plan.topology.hosts() as usize;
        Outbox {
            ops: VecDeque::with_capacity(plan.usual_ops()),
            totals: [0; KINDS],
            towards: vec![0; KINDS * hosts],
            hosts,
            transitions: 0,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, op: Op) {
        self.ops.push_back(op);
        self.transitions += 1;
    }

    #[inline]
    pub(super) fn wake(&mut self, most: u32, interest: Interest) {
        self.push(Op::Wake { most, interest });
    }

    #[inline]
    pub(super) fn atomic(&mut self, host: u32, cell: usize, atomic: Atomic, token: Token) {
        self.push(Op::Atomic { host, cell, atomic, token });
    }

    /// Changes a cell of another host, after data (from, to, length) if there is any.
    pub(super) fn signal(
        &mut self,
        what: Counted,
        host: u32,
        data: Option<(usize, usize, usize)>,
        (cell, change): (usize, Change),
    ) {
        let token = self.count(what, host);
        self.push(Op::Signal { host, data, cell, change, token });
    }

    /// Writes the record of a round's cut on a host.
    pub(super) fn publish(&mut self, what: Counted, host: u32, round: u64) {
        let token = self.count(what, host);
        self.push(Op::Publish { host, round, token });
    }

    /// Writes a segment of the own host's outcome to every other host with a receiver, and counts it there.
    pub(super) fn land_elsewhere(&mut self, plan: &Plan, round: u64, segment: u64, receivers: &RankSet) {
        let (from, len) = plan.segment_span(segment);
        let (at, done) = (plan.outcome(round) + from, (plan.done(round), Change::Add(1)));
        for host in plan.hosts_elsewhere(receivers) {
            self.signal(Counted::Push, host, Some((at, at, len)), done);
        }
    }

    /// Reads `len` bytes, from an offset on, of those of `sources` that lie on other hosts; whether there are any. Each
    /// is a rank and a place on that one's host.
    pub(super) fn read_from_elsewhere(
        &mut self,
        plan: &Plan,
        sources: impl Iterator<Item = (u32, usize)>,
        (from, len): (usize, usize),
    ) -> bool {
        for (row, (rank, at)) in sources.enumerate() {
            let host = plan.host_of(rank);
            if host != plan.host() {
                let token = self.count(Counted::Read, host);
                self.push(Op::Read { host, from: at + from, len, row, token });
            }
        }
        self.has(Counted::Read)
    }

    /// Counts an operation towards a host until it completes, which the token says.
    #[inline]
    pub(super) fn count(&mut self, what: Counted, host: u32) -> Token {
        self.totals[what.index()] += 1;
        self.towards[what.index() * self.hosts + host as usize] += 1;
        Token::Counted { what, host }
    }

    /// One that was counted is complete.
    #[inline]
    pub(super) fn completed(&mut self, what: Counted, host: u32) {
        self.totals[what.index()] -= 1;
        self.towards[what.index() * self.hosts + host as usize] -= 1;
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<&Op> {
        self.ops.front()
    }

    /// The operation that was asked for last, if the driver does not have it.
    pub(super) fn newest(&self) -> Option<&Op> {
        self.ops.back()
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Op> {
        let op = self.ops.pop_front()?;
        if self.ops.is_empty() {
            // It begins anew, in memory that is in a cache.
            self.ops.clear();
        }
        Some(op)
    }

    /// Whether all operations have been handed to the driver.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Whether none is left that is counted, either.
    pub(super) fn is_quiet(&self) -> bool {
        self.totals == [0; KINDS] && self.ops.is_empty()
    }

    /// Notes a change that asks for no operation.
    #[inline]
    pub(super) fn note(&mut self) {
        self.transitions += 1;
    }

    #[inline]
    pub(super) fn transitions(&self) -> u64 {
        self.transitions
    }

    /// Whether anything of a kind is in flight.
    #[inline]
    pub(super) fn has(&self, what: Counted) -> bool {
        self.totals[what.index()] > 0
    }

    /// Whether a tag of a buffer is not known to have landed on every host.
    #[inline]
    pub(super) fn has_tag(&self, buffer: u32) -> bool {
        self.has(Counted::Tag { buffer })
    }

    /// Whether the tag of any buffer is in flight.
    pub(super) fn has_tags(&self) -> bool {
        Counted::TAGS.into_iter().any(|tag| self.has(tag))
    }

    /// Whether anything of a kind is in flight towards a host.
    pub(super) fn has_towards(&self, what: Counted, host: u32) -> bool {
        self.towards[what.index() * self.hosts + host as usize] > 0
    }

    /// The hosts towards which anything of a kind is in flight.
    pub(super) fn hosts(&self, what: Counted) -> impl Iterator<Item = u32> {
        (0..self.hosts as u32).filter(move |&host| self.has_towards(what, host))
    }

    /// How much is in flight, for a line about a machine.
    pub(super) fn in_flight(&self) -> [u32; KINDS] {
        self.totals
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::collective::core::Terms;
    use crate::rule::{Fire, MovementBy};

    #[test]
    fn what_is_in_flight_is_counted_by_host() {
        let mut outbox = Outbox::new(&Plan::new(Terms::sample(0, vec![0, 1, 2], Fire::ALL, MovementBy::Everyone)));
        let tag = Counted::Tag { buffer: 2 };
        for (what, host) in [(tag, 0), (tag, 2), (Counted::Push, 1), (Counted::Push, 1)] {
            outbox.count(what, host);
        }
        assert!(outbox.has_tags() && outbox.has(tag) && !outbox.has_tag(0));
        outbox.completed(tag, 0);
        outbox.completed(Counted::Push, 1);
        assert_eq!(outbox.hosts(tag).collect::<Vec<_>>(), [2]);
        assert_eq!(outbox.hosts(Counted::Push).collect::<Vec<_>>(), [1]);
        outbox.completed(tag, 2);
        outbox.completed(Counted::Push, 1);
        assert!(outbox.is_quiet() && !outbox.has_tags());
    }
}
