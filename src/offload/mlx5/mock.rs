//! A mock of several hosts with a NIC each. The NICs run send queues from their bytes.
//!
//! A seed chooses the order of the NICs' steps. Elements of a queue start in order, their writes land in order, and
//! their completions come in order. Between queues there is no order: a NIC may serve one of them late. A message or
//! its acknowledgement may be lost, so that the NIC sends the message again and reads its source once more. A wait
//! reads its value at any time, so it may miss a value that does not stay.
//!
//! The mock assumes what the sources of the module do not say. A wait compares words as big-endian numbers, with the
//! value on the left (as DPDK's wait for a time has it). The cyclic conditions compare by the sign of the difference. A
//! completion queue that software does not poll may overrun. Hosts are little-endian, and so are the words that atomics
//! change. Elements that had not started when an earlier one failed report nothing.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::host::{
    CompletionEntry, Completions, Host, Number, Progress, QueuePair, Region, Started, Syndrome, What, index,
};
use super::ring::{Full, SendRing};
use super::wqe::{BLOCK, Element, Fence, Location, Operation, Report};

/// One message or acknowledgement in this number is lost.
const LOSS: u32 = 8;

/// A possible next step of a NIC.
#[derive(Clone, Copy)]
enum Event {
    /// Starts the next element of a queue.
    Start(usize, usize),
    /// The first message in flight of a queue reaches its target.
    Land(usize, usize),
    /// The oldest element of a queue ends.
    End(usize, usize),
}

/// Hosts with a NIC each.
pub struct Mock {
    hosts: Vec<Host>,
    /// All queue pairs: the host of each, and its index there.
    pairs: Vec<(usize, usize)>,
    rng: Xoshiro256PlusPlus,
    /// The number of messages that were sent again.
    resent: u64,
}

impl std::fmt::Debug for Mock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mock").field("hosts", &self.hosts.len()).finish_non_exhaustive()
    }
}

impl Mock {
    /// Returns hosts without memory or queues.
    #[must_use]
    pub fn new(hosts: usize, seed: u64) -> Self {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        Mock { hosts: (0..hosts).map(|_| Host::default()).collect(), pairs: Vec::new(), rng, resent: 0 }
    }

    /// Registers zeroed memory at an address of a host, for writes of other hosts if `shared`.
    pub fn register(&mut self, host: usize, base: u64, bytes: usize, shared: bool) -> Location {
        let regions = &mut self.hosts[host].regions;
        regions.push(Region { base, bytes: vec![0; bytes], shared });
        Location { key: Number::new(host, regions.len() - 1).number, address: base }
    }

    /// Returns memory of a host as its processor reads it.
    #[must_use]
    pub fn load(&mut self, host: usize, from: Location, length: usize) -> Vec<u8> {
        self.hosts[host].bytes(from, length, false).expect("registered memory").to_vec()
    }

    /// Returns a word of a host as its processor reads it.
    #[must_use]
    pub fn word(&mut self, host: usize, from: Location) -> u64 {
        u64::from_le_bytes(*self.hosts[host].word(from, false).expect("registered memory"))
    }

    /// Writes memory of a host as its processor does.
    pub fn store(&mut self, host: usize, to: Location, bytes: &[u8]) {
        self.hosts[host].bytes(to, bytes.len(), false).expect("registered memory").copy_from_slice(bytes);
    }

    /// Makes a completion queue; it counts from `before`.
    pub fn completion_queue(&mut self, host: usize, before: u32) -> Number {
        let queues = &mut self.hosts[host].completions;
        queues.push(Completions { before, entries: Vec::new() });
        Number::new(host, queues.len() - 1)
    }

    /// Makes a queue pair whose first block has the number `first`. `send` and `receive` are the numbers of the
    /// completion queues of its sends and its receives.
    pub fn queue_pair(&mut self, host: usize, send: u32, receive: u32, blocks: usize, first: u16) -> Number {
        let pairs = &mut self.hosts[host].pairs;
        pairs.push(QueuePair {
            ring: SendRing::starting_at(blocks, first),
            rung: first,
            next: first,
            released: first,
            started: VecDeque::new(),
            is_stopped: false,
            send: index(send),
            receive: index(receive),
            peer: None,
            receives: 0,
            taken: 0,
            answered: 0,
            last_atomic: 0,
        });
        let pair = pairs.len() - 1;
        self.pairs.push((host, pair));
        Number::new(host, pair)
    }

    fn pair(&mut self, pair: Number) -> &mut QueuePair {
        &mut self.hosts[pair.host].pairs[index(pair.number)]
    }

    /// Connects two queue pairs, which may be of one host.
    pub fn connect(&mut self, one: Number, other: Number) {
        self.pair(one).peer = Some(other);
        self.pair(other).peer = Some(one);
    }

    /// Posts receives: the queue pair can then take that number of further writes with immediate data.
    pub fn post_receives(&mut self, pair: Number, count: u32) {
        self.pair(pair).receives += count;
    }

    /// Writes an element into a send queue. The NIC sees it after [`Mock::ring`].
    ///
    /// # Errors
    /// The queue is full, or the value is not an element.
    pub fn post(&mut self, pair: Number, element: &Element) -> Result<u16, Full> {
        let pair = self.pair(pair);
        let released = pair.released;
        pair.ring.post(element, released)
    }

    /// Rings the doorbell: announces to the NIC what was posted.
    pub fn ring(&mut self, pair: Number) {
        let pair = self.pair(pair);
        pair.rung = pair.ring.posted();
    }

    /// Returns whether all announced elements have ended.
    #[must_use]
    pub fn is_drained(&mut self, pair: Number) -> bool {
        let pair = self.pair(pair);
        pair.released == pair.rung
    }

    /// Returns the entries of a completion queue since it was made.
    #[must_use]
    pub fn entries(&self, queue: Number) -> &[CompletionEntry] {
        &self.hosts[queue.host].completions[index(queue.number)].entries
    }

    /// Returns the number of messages that were sent more than once.
    #[must_use]
    pub fn resent(&self) -> u64 {
        self.resent
    }

    /// Runs until the NICs have nothing more to do.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Runs one step of a NIC: the first possible one, from a queue on that is chosen at random. Returns whether there
    /// was one.
    pub fn step(&mut self) -> bool {
        let pairs = self.pairs.len();
        let first = if pairs == 0 { 0 } else { self.rng.random_range(0..pairs) };
        let mut events = (first..pairs).chain(0..first).map(|index| {
            let (host, pair) = self.pairs[index];
            self.events(host, pair)
        });
        let Some(events) = events.find(|events| !events.is_empty()) else { return false };
        match events[self.rng.random_range(0..events.len())] {
            Event::Start(host, pair) => self.start(host, pair),
            Event::Land(host, pair) => self.land(host, pair),
            Event::End(host, pair) => self.end(host, pair),
        }
        true
    }

    /// Returns the possible steps of a queue.
    fn events(&mut self, host: usize, pair: usize) -> Vec<Event> {
        let mut events = Vec::new();
        if self.may_start(host, pair) {
            events.push(Event::Start(host, pair));
        }
        if self.may_land(host, pair) {
            events.push(Event::Land(host, pair));
        }
        let oldest = self.hosts[host].pairs[pair].started.front();
        if oldest.is_some_and(|oldest| oldest.progress != Progress::InFlight) {
            events.push(Event::End(host, pair));
        }
        events
    }

    fn next_element(&self, host: usize, pair: usize) -> Result<Element, Syndrome> {
        let queue = &self.hosts[host].pairs[pair];
        let (index, element) =
            Element::decode(&queue.ring.element(queue.next)).map_err(|_| Syndrome::LocalOperation)?;
        let whose = (index, element.queue) == (queue.next, Number::new(host, pair).number);
        if whose { Ok(element) } else { Err(Syndrome::LocalOperation) }
    }

    fn may_start(&mut self, host: usize, pair: usize) -> bool {
        let queue = &self.hosts[host].pairs[pair];
        if queue.is_stopped || queue.next == queue.rung {
            return false;
        }
        // An element without a meaning starts at once, and fails.
        let Ok(element) = self.next_element(host, pair) else { return true };
        let fenced = match element.fence {
            // No operation of the mock changes keys.
            Fence::None | Fence::Keys => false,
            Fence::Reads => queue.started.iter().any(Started::is_atomic),
        };
        !fenced
            && match &element.operation {
                Operation::WaitCompletions { queue, count } => {
                    self.hosts[host].has_entries(*queue, *count).unwrap_or(true)
                }
                Operation::WaitWord(wait) => self.hosts[host].is_over(wait).unwrap_or(true),
                _ => true,
            }
    }

    fn start(&mut self, host: usize, pair: usize) {
        let element = self.next_element(host, pair);
        let at = &mut self.hosts[host];
        let begun = element.and_then(|element| {
            let begun = match &element.operation {
                Operation::Write { data, .. } | Operation::WriteImmediate { data, .. } => {
                    (at.gather(data).ok_or(Syndrome::LocalProtection)?, Progress::InFlight)
                }
                Operation::FetchAdd { before, .. } => {
                    at.bytes(*before, 8, false).ok_or(Syndrome::LocalProtection)?;
                    (Vec::new(), Progress::InFlight)
                }
                Operation::WaitCompletions { queue, count } => {
                    at.has_entries(*queue, *count)?;
                    (Vec::new(), Progress::Landed(0))
                }
                Operation::WaitWord(wait) => {
                    at.is_over(wait)?;
                    (Vec::new(), Progress::Landed(0))
                }
            };
            Ok((element, begun))
        });
        let queue = &mut at.pairs[pair];
        let index = queue.next;
        queue.started.push_back(match begun {
            Ok((element, (payload, progress))) => {
                let blocks = element.encode(index).map_or(1, |bytes| bytes.len() / BLOCK);
                queue.next = index.wrapping_add(blocks as u16);
                Started { index, element, payload, progress }
            }
            Err(syndrome) => {
                queue.is_stopped = true;
                // Only its failure counts.
                let nothing = Operation::WaitCompletions { queue: 0, count: 0 };
                let element = Element::quiet(0, nothing);
                Started { index, element, payload: Vec::new(), progress: Progress::Failed(syndrome) }
            }
        });
    }

    /// Returns the first message in flight of a queue.
    fn in_flight(&mut self, host: usize, pair: usize) -> Option<&mut Started> {
        self.hosts[host].pairs[pair].started.iter_mut().find(|started| started.progress == Progress::InFlight)
    }

    /// Returns whether a message is in flight, with no failed one before it, and the target takes it: a message with a
    /// number waits for a receive there.
    fn may_land(&self, host: usize, pair: usize) -> bool {
        let queue = &self.hosts[host].pairs[pair];
        let Some(peer) = queue.peer else { return false };
        let first = queue.started.iter().find(|started| !matches!(started.progress, Progress::Landed(_)));
        let Some(first) = first.filter(|first| first.progress == Progress::InFlight) else { return false };
        let needs_receive = matches!(first.element.operation, Operation::WriteImmediate { .. });
        !needs_receive || self.hosts[peer.host].pairs[index(peer.number)].receives > 0
    }

    fn is_lost(&mut self) -> bool {
        let lost = self.rng.random_range(0..LOSS) == 0;
        self.resent += u64::from(lost);
        lost
    }

    fn land(&mut self, host: usize, pair: usize) {
        if self.is_lost() {
            // The message is sent again, with its data read again.
            let Some(operation) = self.in_flight(host, pair).map(|started| started.element.operation.clone()) else {
                return;
            };
            if let Operation::Write { data, .. } | Operation::WriteImmediate { data, .. } = operation {
                let again = self.hosts[host].gather(&data);
                if let (Some(started), Some(again)) = (self.in_flight(host, pair), again) {
                    started.payload = again;
                }
            }
            return;
        }
        let Some(peer) = self.hosts[host].pairs[pair].peer else { return };
        let number = self.hosts[host].pairs[pair].answered;
        let Some(started) = self.in_flight(host, pair) else { return };
        let (operation, payload) = (started.element.operation.clone(), started.payload.clone());
        let answer = self.respond(peer, number, &operation, &payload);
        if answer.is_ok() && self.is_lost() {
            // The acknowledgement is lost: the target sees the message again, and answers as before.
            let again = self.respond(peer, number, &operation, &payload);
            debug_assert_eq!(again, answer);
        }
        self.hosts[host].pairs[pair].answered += 1;
        let failed = answer.is_err();
        if let Some(started) = self.in_flight(host, pair) {
            started.progress = answer.map_or_else(Progress::Failed, Progress::Landed);
        }
        self.hosts[host].pairs[pair].is_stopped |= failed;
    }

    /// Carries out the target's part in message `number` of a connection.
    fn respond(&mut self, pair: Number, number: u64, operation: &Operation, data: &[u8]) -> Result<u64, Syndrome> {
        let at = &mut self.hosts[pair.host];
        let queue = index(pair.number);
        if number < at.pairs[queue].taken {
            return Ok(if matches!(operation, Operation::FetchAdd { .. }) { at.pairs[queue].last_atomic } else { 0 });
        }
        let mut answer = 0;
        match operation {
            Operation::Write { to, .. } | Operation::WriteImmediate { to, .. } => {
                // The address of a write without data is not checked.
                if !data.is_empty() {
                    at.bytes(*to, data.len(), true).ok_or(Syndrome::RemoteAccess)?.copy_from_slice(data);
                }
                if let Operation::WriteImmediate { immediate, .. } = operation {
                    at.pairs[queue].receives -= 1;
                    at.report(at.pairs[queue].receive, queue, What::Received(*immediate));
                }
            }
            Operation::FetchAdd { to, add, .. } => {
                if !to.address.is_multiple_of(8) {
                    return Err(Syndrome::RemoteInvalid);
                }
                let word = at.word(*to, true).ok_or(Syndrome::RemoteAccess)?;
                answer = u64::from_le_bytes(*word);
                *word = answer.wrapping_add(*add).to_le_bytes();
                at.pairs[queue].last_atomic = answer;
            }
            Operation::WaitCompletions { .. } | Operation::WaitWord(_) => {}
        }
        at.pairs[queue].taken += 1;
        Ok(answer)
    }

    fn end(&mut self, host: usize, pair: usize) {
        let at = &mut self.hosts[host];
        let Some(started) = at.pairs[pair].started.pop_front() else { return };
        let send = at.pairs[pair].send;
        match started.progress {
            Progress::Failed(syndrome) => {
                at.report(send, pair, What::Failed(started.index, syndrome));
                self.flush(host, pair, &started);
            }
            Progress::Landed(value) => {
                if let Operation::FetchAdd { before, .. } = started.element.operation
                    && let Some(before) = at.word(before, false)
                {
                    *before = value.to_le_bytes();
                }
                if matches!(started.element.report, Report::Always | Report::Event) {
                    at.report(send, pair, What::Sent(started.index));
                }
                let next = at.pairs[pair].started.front().map(|started| started.index);
                at.pairs[pair].released = next.unwrap_or(at.pairs[pair].next);
            }
            Progress::InFlight => debug_assert!(false, "an element ended in flight"),
        }
    }

    /// Ends the elements after one that failed.
    fn flush(&mut self, host: usize, pair: usize, failed: &Started) {
        let at = &mut self.hosts[host];
        at.pairs[pair].is_stopped = true;
        let started: Vec<u16> = at.pairs[pair].started.drain(..).map(|started| started.index).collect();
        let send = at.pairs[pair].send;
        for index in started.into_iter().filter(|index| *index != failed.index) {
            at.report(send, pair, What::Failed(index, Syndrome::Flushed));
        }
        at.pairs[pair].released = at.pairs[pair].rung;
    }
}
