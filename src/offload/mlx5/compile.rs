//! Compiles the program of one rank into send queues of its NIC.
//!
//! - A *counter* is a completion queue: an input is a write that adds an entry, with the input's number. Entries are
//!   counted since the queue was made, as the thresholds of a program are, so nothing is reset. The queue's entries
//!   need not be polled.
//! - The *gate* is a word instead: a rank revokes its token while it writes its contribution, and no entry can be
//!   revoked. Only this rank's NIC adds to it, so additions are atomic with respect to each other. The word keeps the
//!   awaited value until the rank gives the token of the next use.
//! - A *lane* is a queue pair from a rank to a counter. It has the elements that one counter of the rank releases: a
//!   wait, then writes. A signal to a counter of the rank itself uses a lane in loopback. The rank itself posts on
//!   lanes that no counter releases: its arrival, its tokens, and the signals of the operations that it runs itself.
//! - A *put* is one write with the data and the signal. Its completion is the input of the counter
//!   [`Role::Sent`]. (A failure adds an entry, too; the connection is lost then.)
//! - A *reduction* stays with the rank: a NIC adds integers only.
//!
//! Lanes wait for entries of completion queues. That takes queue pairs that are made to wait for
//! others (`cd_master`, through DEVX); verbs makes none.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::wqe::{Condition, Element, Location, Miss, Operation, Payload, Report, WaitWord};
use crate::trigger::{Action, Buffer, Chunk, Program, RankBuffer, Role, Signal};

/// Why a NIC cannot run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// A put must have one signal to its target, and may have one of its own that reports that it was sent.
    #[error("rank {rank}: operation {operation} is a put with other signals than one to its target")]
    Put {
        /// The rank.
        rank: u32,
        /// The operation's index in the table.
        operation: usize,
    },
    /// The gate has another threshold than all its inputs, or an input from another rank.
    #[error("rank {rank}: the gate waits for {threshold} of {inputs} inputs, or another rank gives one")]
    Gate {
        /// The rank.
        rank: u32,
        /// The threshold.
        threshold: u32,
        /// The number of inputs.
        inputs: u32,
    },
}

/// The queues and memory that a rank's elements refer to.
pub trait Wiring {
    /// Returns the number of a lane's queue pair.
    fn queue(&self, lane: usize) -> u32;
    /// Returns the number of the completion queue of one of the rank's counters.
    fn completions(&self, counter: Role) -> u32;
    /// Returns the word of the rank's gate. Its first value is 0.
    fn gate(&self) -> Location;
    /// Returns eight bytes for the earlier value of the gate.
    fn before(&self) -> Location;
    /// Returns one of the rank's buffers.
    fn own(&self, buffer: Buffer) -> Location;
    /// Returns a buffer of another rank.
    fn there(&self, place: RankBuffer) -> Location;
}

/// An element of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Signal { input: u32 },
    Put { from: Buffer, to: RankBuffer, chunk: Chunk, input: u32 },
}

/// A queue pair from a rank to a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The counter of this rank that releases it; `None` where the rank posts by itself.
    pub when: Option<Role>,
    /// The rank with the counter.
    pub rank: u32,
    /// The counter.
    pub counter: Role,
    /// Entries that it adds to the completion queue of the counter in one use of the slot. The rank with the counter
    /// posts that number of receives.
    pub entries: u32,
    steps: Vec<Step>,
}

impl Lane {
    /// Returns whether the queue pair's own completions are inputs of [`Role::Sent`].
    #[must_use]
    pub fn is_counted_when_sent(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Put { .. }))
    }
}

/// The lanes of a rank.
#[derive(Clone, Debug)]
pub struct Lanes {
    rank: u32,
    ranks: u32,
    bytes: u64,
    lanes: Vec<Lane>,
    /// Threshold and inputs of each counter.
    counters: BTreeMap<Role, (u32, u32)>,
    by_rank: Vec<usize>,
}

impl Lanes {
    /// Compiles the program of a rank in a world of `ranks` ranks, with contributions of `bytes`.
    ///
    /// # Errors
    /// A program that a NIC cannot run.
    pub fn compile(program: &Program, ranks: u32, bytes: u64) -> Result<Self, Unsupported> {
        let rank = program.rank;
        let counters = program.counters.iter().map(|counter| (counter.role, (counter.inputs, counter.inputs)));
        let mut lanes =
            Lanes { rank, ranks, bytes, lanes: Vec::new(), counters: counters.collect(), by_rank: Vec::new() };
        for (index, operation) in program.operations.iter().enumerate() {
            if let Some((threshold, _)) = lanes.counters.get_mut(&operation.when) {
                *threshold = operation.threshold;
            }
            let when = Some(operation.when);
            match &operation.action {
                Action::Signal | Action::Seal => {
                    for signal in &operation.then {
                        lanes.lane(when, signal.rank, signal.counter).add(Step::Signal { input: signal.input });
                    }
                }
                Action::Put { from, to, chunk } => {
                    let signal = lanes.signal_of_put(index, to, &operation.then)?;
                    let step = Step::Put { from: *from, to: *to, chunk: *chunk, input: signal.input };
                    lanes.lane(when, to.rank, signal.counter).add(step);
                }
                Action::Reduce { .. } => {
                    lanes.by_rank.push(index);
                    for signal in &operation.then {
                        lanes.lane(None, signal.rank, signal.counter).entries += 1;
                    }
                }
            }
        }
        // Ready tokens, and the rank's own arrival.
        for to in 0..ranks {
            lanes.lane(None, to, Role::Start).entries += if to == rank { 2 } else { 1 };
        }
        if let Some(&(threshold, inputs)) = lanes.counters.get(&Role::Gate) {
            let foreign = lanes.lanes.iter().any(|lane| lane.counter == Role::Gate && lane.rank != rank);
            if threshold != inputs || foreign {
                return Err(Unsupported::Gate { rank, threshold, inputs });
            }
            lanes.lane(None, rank, Role::Gate);
        }
        Ok(lanes)
    }

    fn signal_of_put(&self, operation: usize, to: &RankBuffer, then: &[Signal]) -> Result<Signal, Unsupported> {
        let (sent, others): (Vec<&Signal>, Vec<&Signal>) =
            then.iter().partition(|signal| (signal.rank, signal.counter) == (self.rank, Role::Sent));
        match others[..] {
            [signal] if signal.rank == to.rank && signal.counter != Role::Gate && sent.len() == 1 => Ok(*signal),
            _ => Err(Unsupported::Put { rank: self.rank, operation }),
        }
    }

    fn lane(&mut self, when: Option<Role>, rank: u32, counter: Role) -> &mut Lane {
        let found = self.find(when, rank, counter).unwrap_or_else(|| {
            self.lanes.push(Lane { when, rank, counter, entries: 0, steps: Vec::new() });
            self.lanes.len() - 1
        });
        &mut self.lanes[found]
    }

    fn find(&self, when: Option<Role>, rank: u32, counter: Role) -> Option<usize> {
        self.lanes.iter().position(|lane| (lane.when, lane.rank, lane.counter) == (when, rank, counter))
    }

    /// Returns the lanes, by number.
    #[must_use]
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Returns the operations of the table that the rank runs by itself, and signals with [`Lanes::signal`].
    #[must_use]
    pub fn by_rank(&self) -> &[usize] {
        &self.by_rank
    }

    /// Returns the elements of a lane for a use of the slot, counted from 0. They are posted when all of the use before
    /// is complete.
    #[must_use]
    pub fn elements(&self, lane: usize, uses: u64, wiring: &impl Wiring) -> Vec<Element> {
        let Some(when) = self.lanes[lane].when else { return Vec::new() };
        let (threshold, inputs) = self.counters.get(&when).copied().unwrap_or_default();
        let wait = if when == Role::Gate {
            // A word that atomics change is in the order of the host, here little-endian.
            let value = ((uses + 1) * u64::from(inputs)).to_le_bytes();
            let (condition, word) = (Condition::Equal, wiring.gate());
            Operation::WaitWord(WaitWord { condition, invert: false, miss: Miss::Retry, word, value, mask: [0xff; 8] })
        } else {
            let count = uses * u64::from(inputs) + u64::from(threshold);
            Operation::WaitCompletions { queue: wiring.completions(when), count: count as u32 & 0x00ff_ffff }
        };
        let queue = wiring.queue(lane);
        let steps = self.lanes[lane].steps.iter().map(|step| self.element(lane, step, wiring));
        [Element::quiet(queue, wait)].into_iter().chain(steps).collect()
    }

    fn element(&self, lane: usize, step: &Step, wiring: &impl Wiring) -> Element {
        let queue = wiring.queue(lane);
        match *step {
            Step::Signal { .. } if self.lanes[lane].counter == Role::Gate => {
                Element::quiet(queue, Operation::FetchAdd { to: wiring.gate(), add: 1, before: wiring.before() })
            }
            Step::Signal { input } => {
                let (to, data) = (Location { key: 0, address: 0 }, Payload::Gather(Vec::new()));
                Element::quiet(queue, Operation::WriteImmediate { to, data, immediate: input })
            }
            Step::Put { from, to, chunk, input } => {
                // A chunk has the same offset in all buffers.
                let (offset, length) = chunk.span(self.bytes);
                let at = |base: Location| Location { address: base.address + offset, ..base };
                let piece = (at(wiring.own(from)), length as u32);
                let data = Payload::Gather(if length == 0 { Vec::new() } else { vec![piece] });
                let operation = Operation::WriteImmediate { to: at(wiring.there(to)), data, immediate: input };
                Element { report: Report::Always, ..Element::quiet(queue, operation) }
            }
        }
    }

    /// Returns a signal that the rank gives by itself: the lane, and the element to post on it.
    #[must_use]
    pub fn signal(&self, signal: Signal, wiring: &impl Wiring) -> Option<(usize, Element)> {
        let lane = self.find(None, signal.rank, signal.counter)?;
        Some((lane, self.element(lane, &Step::Signal { input: signal.input }, wiring)))
    }

    /// Returns the signal of the rank's own arrival.
    #[must_use]
    pub fn arrival(&self) -> Signal {
        Signal { rank: self.rank, counter: Role::Start, input: self.ranks }
    }

    /// Returns the token for another rank, or for itself, that the slot is free here.
    #[must_use]
    pub fn ready(&self, to: u32) -> Signal {
        Signal { rank: to, counter: Role::Start, input: self.rank }
    }

    /// Returns the token of the gate.
    #[must_use]
    pub fn token(&self) -> Signal {
        Signal { rank: self.rank, counter: Role::Gate, input: 0 }
    }

    /// Returns the element that revokes the token of the gate. The rank may write its contribution if the gate then had
    /// less than all inputs of this use; in any case it gives the token again.
    #[must_use]
    pub fn revocation(&self, wiring: &impl Wiring) -> Option<(usize, Element)> {
        let (lane, mut element) = self.signal(self.token(), wiring)?;
        if let Operation::FetchAdd { add, .. } = &mut element.operation {
            *add = u64::MAX;
        }
        Some((lane, element))
    }
}

impl Lane {
    fn add(&mut self, step: Step) {
        self.entries += u32::from(self.counter != Role::Gate);
        self.steps.push(step);
    }
}
