//! Queued operations, and counts of those in flight.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use super::cut::Cut;
use super::entry::Entry;
use super::op::{Addend, Awaited, Counted, Op, Operands, ProgramOp, PutData, RunnerOp, Token};
use super::plan::Plan;
use crate::fabric::{Atomic, Change};
use crate::fault::Fault;
use crate::rank_set::RankSet;

const KINDS: usize = Counted::ALL.len();

/// The operations that the driver must carry out, in order, and the number of counted operations that have not
/// completed. Until one completes, its source may still be read and its target may be written once more.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    ops: VecDeque<Op>,
    /// The inputs of the queued reductions, concatenated.
    inputs: Vec<Addend>,
    /// The words of the queued records, concatenated.
    words: Vec<u64>,
    /// The entries of the queued parts, concatenated.
    entries: Vec<Entry>,
    /// The number in flight, by kind.
    totals: [u32; KINDS],
    /// The number in flight, by kind and by target host.
    towards: Vec<u32>,
    hosts: usize,
    /// Counts changes of the machine, to detect when nothing is left to do.
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
            inputs: Vec::new(),
            words: Vec::new(),
            entries: Vec::new(),
            totals: [0; KINDS],
            towards: vec![0; KINDS * hosts],
            hosts,
            transitions: 0,
        }
    }

    /// Reserves the memory of the lists now.
    pub(super) fn reserve(&mut self, plan: &Plan) {
        self.inputs.reserve(plan.most_sources());
        self.words.reserve(Cut::cells(plan.ranks));
        self.entries.reserve(plan.most_sealed());
    }

    #[inline]
    pub(super) fn push(&mut self, op: Op) {
        self.ops.push_back(op);
        self.transitions += 1;
    }

    #[inline]
    pub(super) fn wake(&mut self, most: u32, interest: Awaited) {
        self.push(Op::Wake { most, interest });
    }

    #[inline]
    pub(super) fn atomic(&mut self, host: u32, cell: usize, atomic: Atomic, token: Token) {
        self.push(Op::Atomic { host, cell, atomic, token });
    }

    #[inline]
    pub(super) fn program(&mut self, op: ProgramOp) {
        self.push(Op::Program(op));
    }

    /// Seals a host's part in a round, whose entries `take` adds; `op` is the operation for their number.
    pub(super) fn seal(&mut self, take: impl FnOnce(&mut Vec<Entry>), op: impl FnOnce(u32) -> ProgramOp) {
        let before = self.entries.len();
        take(&mut self.entries);
        let count = (self.entries.len() - before) as u32;
        self.program(op(count));
    }

    /// Queues a request to the runner.
    pub(super) fn runner(&mut self, op: RunnerOp) {
        self.program(ProgramOp::Runner(op));
    }

    /// Changes a cell of another host, after writing data (from, to, length) if there is any.
    pub(super) fn signal(
        &mut self,
        what: Counted,
        host: u32,
        data: Option<(usize, usize, usize)>,
        signal: (usize, Change),
    ) {
        self.put(what, host, data.map(|(from, to, len)| PutData::Bytes { from, to, len }), Some(signal));
    }

    /// Puts data on another host, and then changes a cell there.
    pub(super) fn put(&mut self, what: Counted, host: u32, data: Option<PutData>, signal: Option<(usize, Change)>) {
        let token = self.count(what, host);
        self.push(Op::Put { host, data, signal, token });
    }

    /// Reduces contributions. With a round, ranks of this host may read the result as its outcome; without one, only
    /// this rank reads the result.
    #[inline]
    pub(super) fn combine(
        &mut self,
        round: Option<u64>,
        inputs: impl Iterator<Item = Addend>,
        (to, len): (usize, usize),
    ) {
        let inputs = self.add(inputs);
        self.push(Op::Combine { round, inputs, to, len });
    }

    /// Averages the first `models` inputs, which are models, and adds the updates that follow them.
    pub(super) fn average(
        &mut self,
        (models, inputs): (usize, impl Iterator<Item = Addend>),
        divisor: u32,
        (to, len): (usize, usize),
    ) {
        let inputs = self.add(inputs);
        self.push(Op::Average { inputs, models: models as u32, divisor, to, len });
    }

    #[inline]
    fn add(&mut self, inputs: impl Iterator<Item = Addend>) -> u32 {
        let before = self.inputs.len();
        self.inputs.extend(inputs);
        (self.inputs.len() - before) as u32
    }

    /// Writes the record of a cut on this host, with its round last. A rank that sees the round also sees the cut, the
    /// cleared words of the next round, and for small data the outcome.
    pub(super) fn record(&mut self, cut: &Cut, plan: &Plan) {
        let (cell, before) = (plan.record(cut.round), self.words.len());
        self.words.extend(cut.encode());
        let (last, words) = (plan.recorded(cell), (self.words.len() - before) as u32);
        self.push(Op::Record { last, words, cell, round: cut.round });
    }

    /// Writes the record of a cut from this host to another one, with the outcome if that lies inside the record.
    pub(super) fn publish(&mut self, what: Counted, host: u32, cut: &Cut, plan: &Plan) {
        let record = plan.record(cut.round);
        // The range includes the bytes between the cut and its round.
        let first = plan.recorded(record) - cut.entries().len() + usize::from(plan.fault(Fault::ShortRecord));
        let mut signal = Some((record, Change::Set(cut.round)));
        if let Some(early) = signal.take_if(|_| plan.fault(Fault::PublishBeforeEntries)) {
            self.put(what, host, None, Some(early));
        }
        self.put(what, host, Some(PutData::Cells { first, count: record - first }), signal);
    }

    /// Zeroes the words, ticket and claims of a round.
    pub(super) fn clear(&mut self, host: u32, round: u64, token: Token, plan: &Plan) {
        let count = if plan.fault(Fault::ForgetClaims) { plan.words() as usize } else { plan.home_cells() };
        self.push(Op::Clear { host, first: plan.word(round, 0), count, token });
    }

    /// Writes a segment of this host's outcome to every other host with a receiver, and counts it there.
    pub(super) fn land_elsewhere(&mut self, plan: &Plan, round: u64, segment: u64, receivers: &RankSet) {
        let (from, len) = plan.segment_span(segment);
        let (at, done) = (plan.outcome(round) + from, (plan.done(round), Change::Add(1)));
        for host in plan.hosts_elsewhere(receivers) {
            self.signal(Counted::Push, host, Some((at, at, len)), done);
        }
    }

    /// Reads `len` bytes, from an offset on, of each of the `sources` that lie on other hosts; returns whether there
    /// are any. A source is a rank and an offset on its host.
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
                self.push(Op::Read { host, from: at + from, len, to: row * plan.staging_row(), token });
            }
        }
        self.has(Counted::Read)
    }

    /// Counts an operation towards a host until the returned token completes.
    #[inline]
    pub(super) fn count(&mut self, what: Counted, host: u32) -> Token {
        self.totals[what.index()] += 1;
        self.towards[what.index() * self.hosts + host as usize] += 1;
        Token::Counted { what, host }
    }

    /// Notes that a counted operation has completed.
    #[inline]
    pub(super) fn completed(&mut self, what: Counted, host: u32) {
        self.totals[what.index()] -= 1;
        self.towards[what.index() * self.hosts + host as usize] -= 1;
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<&Op> {
        self.ops.front()
    }

    /// Returns the operation that was queued last, if the driver has not taken it.
    pub(super) fn newest(&self) -> Option<&Op> {
        self.ops.back()
    }

    /// Returns the next operation and fills `operands` with its lists.
    #[inline]
    pub(super) fn pop(&mut self, operands: &mut Operands) -> Option<Op> {
        let op = self.ops.pop_front()?;
        let has_lists = matches!(
            op,
            Op::Combine { .. } | Op::Average { .. } | Op::Record { .. } | Op::Program(ProgramOp::Seal { .. })
        );
        if has_lists {
            self.hand_lists(&op, operands);
        }
        if self.ops.is_empty() {
            // The queue restarts at the beginning of its memory, which is in a cache.
            self.ops.clear();
        }
        Some(op)
    }

    /// Moves the lists of an operation. Never inlined: most operations have no lists, and each rank takes several
    /// operations in a round.
    #[inline(never)]
    fn hand_lists(&mut self, op: &Op, operands: &mut Operands) {
        match *op {
            Op::Combine { inputs, .. } | Op::Average { inputs, .. } => {
                hand_over(&mut self.inputs, inputs as usize, &mut operands.inputs);
            }
            Op::Record { words, .. } => hand_over(&mut self.words, words as usize, &mut operands.words),
            Op::Program(ProgramOp::Seal { entries, .. }) => {
                hand_over(&mut self.entries, entries as usize, &mut operands.entries);
            }
            _ => {}
        }
    }

    /// Returns whether the driver has taken all operations.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Returns whether no operation is queued and no counted operation is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.totals == [0; KINDS] && self.ops.is_empty()
    }

    /// Notes a change that queues no operation.
    #[inline]
    pub(super) fn note(&mut self) {
        self.transitions += 1;
    }

    #[inline]
    pub(super) fn transitions(&self) -> u64 {
        self.transitions
    }

    /// Returns whether any operation of a kind is in flight.
    #[inline]
    pub(super) fn has(&self, what: Counted) -> bool {
        self.totals[what.index()] > 0
    }

    /// Returns whether a tag of a buffer may still have to land on some host.
    #[inline]
    pub(super) fn has_tag(&self, buffer: u32) -> bool {
        self.has(Counted::Tag { buffer })
    }

    /// Returns whether the tag of any buffer is in flight.
    pub(super) fn has_tags(&self) -> bool {
        Counted::TAGS.into_iter().any(|tag| self.has(tag))
    }

    /// Returns whether any operation of a kind is in flight towards a host.
    pub(super) fn has_towards(&self, what: Counted, host: u32) -> bool {
        self.towards[what.index() * self.hosts + host as usize] > 0
    }

    /// Returns the hosts towards which an operation of a kind is in flight.
    pub(super) fn hosts(&self, what: Counted) -> impl Iterator<Item = u32> {
        (0..self.hosts as u32).filter(move |&host| self.has_towards(what, host))
    }

    /// Returns the number in flight by kind, for a line about a machine.
    pub(super) fn in_flight(&self) -> [u32; KINDS] {
        self.totals
    }
}

/// Moves the first `count` elements of a list. Usually these are all elements, and nothing is copied.
#[inline]
fn hand_over<T>(from: &mut Vec<T>, count: usize, to: &mut Vec<T>) {
    to.clear();
    if count == from.len() {
        std::mem::swap(from, to);
    } else {
        to.extend(from.drain(..count));
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
