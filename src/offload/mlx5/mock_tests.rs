//! The mock NICs: order, waits, wraps, additions, and refused elements.
#![forbid(unsafe_code)]

use super::host::{CompletionEntry, Number, Syndrome, What};
use super::mock::Mock;
use super::ring::Full;
use super::wqe::{Condition, Element, Fence, Location, Miss, Operation, Payload, Report, WaitWord};

const BASE: u64 = 0x7f00_0000_0000;

/// Two hosts, each with memory, a queue pair to the other one, and completion queues of its sends and receives.
struct Pair {
    mock: Mock,
    memory: [Location; 2],
    queues: [Number; 2],
    sent: [Number; 2],
    received: [Number; 2],
}

impl Pair {
    fn new(seed: u64) -> Self {
        Self::starting_at(seed, 8, 0, 0)
    }

    fn starting_at(seed: u64, blocks: usize, first: u16, entries: u32) -> Self {
        let mut mock = Mock::new(2, seed);
        let memory = [0, 1].map(|host| mock.register(host, BASE + 0x1000 * host as u64, 256, true));
        let sent = [0, 1].map(|host| mock.completion_queue(host, entries));
        let received = [0, 1].map(|host| mock.completion_queue(host, entries));
        let queues = [0, 1].map(|host| mock.queue_pair(host, sent[host].number, received[host].number, blocks, first));
        mock.connect(queues[0], queues[1]);
        Pair { mock, memory, queues, sent, received }
    }

    fn at(&self, host: usize, offset: u64) -> Location {
        Location { address: self.memory[host].address.wrapping_add(offset), ..self.memory[host] }
    }

    fn element(&self, host: usize, operation: Operation) -> Element {
        Element { report: Report::Always, ..Element::quiet(self.queues[host].number, operation) }
    }

    fn post(&mut self, host: usize, operation: Operation) -> u16 {
        let element = self.element(host, operation);
        let index = self.mock.post(self.queues[host], &element).unwrap();
        self.mock.ring(self.queues[host]);
        index
    }

    fn write(&self, to: usize, offset: u64, bytes: &[u8]) -> Operation {
        Operation::Write { to: self.at(to, offset), data: Payload::Inline(bytes.to_vec()) }
    }

    fn what(&self, queue: Number) -> Vec<What> {
        self.mock.entries(queue).iter().map(|entry| entry.what).collect()
    }
}

fn equal(word: Location, value: u64) -> Operation {
    let (value, mask) = (value.to_le_bytes(), [0xff; 8]);
    Operation::WaitWord(WaitWord { condition: Condition::Equal, invert: false, miss: Miss::Retry, word, value, mask })
}

fn signal(to: Location, immediate: u32) -> Operation {
    Operation::WriteImmediate { to, data: Payload::Gather(Vec::new()), immediate }
}

#[test]
fn the_nic_sees_elements_when_the_doorbell_rings() {
    let mut pair = Pair::new(0);
    let element = pair.element(0, pair.write(1, 0, &[7]));
    pair.mock.post(pair.queues[0], &element).unwrap();
    assert!(!pair.mock.step());
    pair.mock.ring(pair.queues[0]);
    pair.mock.run();
    assert_eq!(pair.mock.load(1, pair.memory[1], 1), [7]);
    assert_eq!(
        pair.mock.entries(pair.sent[0]),
        [CompletionEntry { queue: pair.queues[0].number, what: What::Sent(0) }]
    );
    assert!(pair.mock.is_drained(pair.queues[0]));
}

/// Writes of a queue land in order, and so do their completions, whichever messages are lost.
#[test]
fn a_queue_is_in_order() {
    let mut resent = 0;
    for seed in 0..200 {
        let mut pair = Pair::new(seed);
        let indices: Vec<u16> = (1..=8u8).map(|byte| pair.post(0, pair.write(1, 0, &[byte; 8]))).collect();
        let mut last = 0;
        while pair.mock.step() {
            let now = pair.mock.load(1, pair.memory[1], 8);
            assert!(now[0] == last || now[0] == last + 1, "{now:?} after {last}");
            last = now[0];
        }
        assert_eq!(last, 8);
        assert_eq!(pair.what(pair.sent[0]), indices.into_iter().map(What::Sent).collect::<Vec<_>>());
        resent += pair.mock.resent();
    }
    assert!(resent > 100, "only {resent} messages were lost");
}

/// Two queues to one host have no order: both outcomes are seen.
#[test]
fn queues_have_no_order_among_them() {
    let mut seen = [0; 2];
    for seed in 0..50 {
        let mut pair = Pair::new(seed);
        let [one, other] = [0, 1].map(|host| pair.mock.queue_pair(host, pair.sent[host].number, 0x100, 8, 0));
        pair.mock.connect(one, other);
        pair.post(0, pair.write(1, 0, &[1]));
        let element = Element { queue: one.number, ..pair.element(0, pair.write(1, 0, &[2])) };
        pair.mock.post(one, &element).unwrap();
        pair.mock.ring(one);
        pair.mock.run();
        seen[usize::from(pair.mock.load(1, pair.memory[1], 1)[0]) - 1] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

/// A wait stops its queue until the other host's write has added an entry; the data is there by then.
#[test]
fn a_wait_for_completions_stops_its_queue() {
    for seed in 0..100 {
        let mut pair = Pair::new(seed);
        let queue = pair.received[1].number;
        pair.post(1, Operation::WaitCompletions { queue, count: 2 });
        pair.post(1, Operation::Write { to: pair.at(0, 8), data: Payload::Gather(vec![(pair.at(1, 0), 2)]) });
        pair.mock.post_receives(pair.queues[1], 2);
        for (offset, byte) in [(0, 5), (1, 6)] {
            pair.mock.run();
            assert_eq!(pair.mock.load(0, pair.at(0, 8), 2), [0, 0]);
            let data = Payload::Inline(vec![byte]);
            pair.post(0, Operation::WriteImmediate { to: pair.at(1, offset), data, immediate: u32::from(byte) });
        }
        pair.mock.run();
        assert_eq!(pair.mock.load(0, pair.at(0, 8), 2), [5, 6]);
        assert_eq!(pair.what(pair.received[1]), [What::Received(5), What::Received(6)]);
    }
}

/// A write with a number stays in flight until the target has a receive for it.
#[test]
fn a_target_without_receives_is_waited_for() {
    let mut pair = Pair::new(1);
    pair.post(0, signal(pair.memory[1], 3));
    pair.mock.run();
    assert_eq!(pair.what(pair.sent[0]), []);
    pair.mock.post_receives(pair.queues[1], 1);
    pair.mock.run();
    assert_eq!(pair.what(pair.sent[0]), [What::Sent(0)]);
    assert_eq!(pair.what(pair.received[1]), [What::Received(3)]);
}

/// A wait for a word ends when an atomic of the other host has set the word. The addition is done once, even if its
/// acknowledgement is lost, and its earlier value is returned.
#[test]
fn an_addition_releases_a_wait_for_its_word() {
    for seed in 0..200 {
        let mut pair = Pair::new(seed);
        pair.mock.store(1, pair.at(1, 8), &40u64.to_le_bytes());
        pair.post(1, equal(pair.at(1, 8), 42));
        pair.post(1, pair.write(0, 0, b"fired"));
        let add = |pair: &Pair| Operation::FetchAdd { to: pair.at(1, 8), add: 1, before: pair.at(0, 16) };
        pair.post(0, add(&pair));
        pair.mock.run();
        assert_eq!(pair.mock.load(0, pair.memory[0], 5), [0; 5]);
        assert_eq!(pair.mock.word(0, pair.at(0, 16)), 40);
        pair.post(0, add(&pair));
        pair.mock.run();
        assert_eq!(pair.mock.load(0, pair.memory[0], 5), *b"fired");
        assert_eq!((pair.mock.word(0, pair.at(0, 16)), pair.mock.word(1, pair.at(1, 8))), (41, 42));
    }
}

#[test]
fn conditions_compare_the_value_with_memory() {
    use Condition::*;
    let cases: [(Condition, u64, u64, bool); 12] = [
        (Always, 1, 2, true),
        (Equal, 2, 2, true),
        (Equal, 2, 3, false),
        (Bigger, 3, 2, true),
        (Bigger, 2, 2, false),
        (Bigger, u64::MAX, 1, true),
        (Smaller, 1, 2, true),
        (Smaller, u64::MAX, 1, false),
        (CyclicBigger, 1, u64::MAX, true),
        (CyclicBigger, u64::MAX, 1, false),
        (CyclicSmaller, u64::MAX, 1, true),
        (CyclicSmaller, 1, 1, false),
    ];
    for (condition, value, memory, holds) in cases {
        for invert in [false, true] {
            let mut pair = Pair::new(2);
            let word = pair.at(0, 0);
            pair.mock.store(0, word, &memory.to_be_bytes());
            let (value, mask) = (value.to_be_bytes(), [0xff; 8]);
            let wait = WaitWord { condition, invert, miss: Miss::Retry, word, value, mask };
            pair.post(0, Operation::WaitWord(wait));
            pair.mock.run();
            let goes_on = !pair.what(pair.sent[0]).is_empty();
            assert_eq!(goes_on, holds != invert, "{condition:?} {value:?} {memory} {invert}");
        }
    }
}

#[test]
fn a_wait_looks_at_the_bits_of_its_mask() {
    let mut pair = Pair::new(3);
    let word = pair.at(0, 0);
    pair.mock.store(0, word, &[9, 1, 2, 3, 4, 5, 6, 7]);
    let (value, mask) = ([9, 0, 0, 0, 0, 0, 0, 0], [0xff, 0, 0, 0, 0, 0, 0, 0]);
    let wait = WaitWord { condition: Condition::Equal, invert: false, miss: Miss::Retry, word, value, mask };
    pair.post(0, Operation::WaitWord(wait));
    pair.mock.run();
    assert_eq!(pair.what(pair.sent[0]), [What::Sent(0)]);
}

/// A fence keeps a write from starting before an earlier atomic has ended. The time at which the NIC reads its source
/// shows when it started.
#[test]
fn a_fence_waits_for_atomics() {
    for (fence, waits) in [(Fence::Reads, true), (Fence::Keys, false), (Fence::None, false)] {
        let mut seen = [0; 2];
        for seed in 0..100 {
            let mut pair = Pair::new(seed);
            // The write waits for a receive, and so does the atomic after it.
            pair.post(0, signal(pair.memory[1], 1));
            pair.post(0, Operation::FetchAdd { to: pair.at(1, 8), add: 1, before: pair.at(0, 8) });
            let data = Payload::Gather(vec![(pair.at(0, 0), 1)]);
            let write = pair.element(0, Operation::Write { to: pair.at(1, 0), data });
            pair.mock.post(pair.queues[0], &Element { fence, ..write }).unwrap();
            pair.mock.ring(pair.queues[0]);
            pair.mock.store(0, pair.at(0, 0), &[0]);
            pair.mock.run();
            pair.mock.store(0, pair.at(0, 0), &[1]);
            pair.mock.post_receives(pair.queues[1], 1);
            pair.mock.run();
            // A message that was lost has its source read again.
            seen[usize::from(pair.mock.load(1, pair.at(1, 0), 1)[0])] += 1;
        }
        assert_eq!(seen[0] == 0, waits, "{fence:?}: {seen:?}");
        assert!(waits || seen[1] > 0, "{fence:?}: no message was lost");
    }
}

/// Rounds of a chain between two hosts, in rings of few blocks: block numbers and counts of entries wrap, and each
/// wait is for entries of its own round.
#[test]
fn indices_and_counts_wrap_over_many_rounds() {
    const ROUNDS: u32 = 20_000;
    let before = 0x00ff_ffff - ROUNDS / 2;
    let mut pair = Pair::starting_at(5, 8, u16::MAX - 10, before);
    for round in 1..=ROUNDS {
        let count = before.wrapping_add(round) & 0x00ff_ffff;
        let queue = pair.received[1].number;
        pair.post(1, Operation::WaitCompletions { queue, count });
        // An element of three blocks.
        let data: Vec<u8> = (0..120).map(|byte| (byte ^ round) as u8).collect();
        pair.post(1, pair.write(0, 0, &data));
        pair.mock.run();
        assert!(!pair.mock.is_drained(pair.queues[1]), "round {round} is too early");
        pair.mock.post_receives(pair.queues[1], 1);
        pair.post(0, signal(pair.memory[1], round));
        pair.mock.run();
        assert!(pair.mock.is_drained(pair.queues[1]) && pair.mock.is_drained(pair.queues[0]));
        assert_eq!(pair.mock.load(0, pair.memory[0], 120), data);
    }
    assert_eq!(pair.mock.entries(pair.received[1]).len(), ROUNDS as usize);
}

#[test]
fn blocks_are_free_when_their_elements_have_ended() {
    let mut pair = Pair::starting_at(6, 2, 0, 0);
    let queue = pair.received[0].number;
    pair.post(0, Operation::WaitCompletions { queue, count: 1 });
    pair.post(0, pair.write(1, 0, &[1]));
    pair.mock.run();
    let more = pair.element(0, pair.write(1, 0, &[2]));
    assert_eq!(pair.mock.post(pair.queues[0], &more), Err(Full::Blocks { need: 1, free: 0 }));
    pair.mock.post_receives(pair.queues[0], 1);
    pair.post(1, signal(pair.memory[0], 0));
    pair.mock.run();
    assert_eq!(pair.mock.post(pair.queues[0], &more), Ok(2));
}

/// An operation without a meaning reports the reason, and the elements after it in the queue do nothing.
#[track_caller]
fn assert_fails(operation: impl Fn(&Pair) -> Operation, syndrome: Syndrome) {
    for seed in 0..20 {
        let mut pair = Pair::new(seed);
        pair.post(0, pair.write(1, 0, &[1]));
        let failing = pair.post(0, operation(&pair));
        pair.post(0, pair.write(1, 0, &[2]));
        pair.mock.run();
        assert_eq!(pair.mock.load(1, pair.memory[1], 1), [1]);
        let seen = pair.what(pair.sent[0]);
        assert_eq!(seen[..2], [What::Sent(0), What::Failed(failing, syndrome)]);
        assert!(seen[2..].iter().all(|what| matches!(what, What::Failed(_, Syndrome::Flushed))), "{seen:?}");
        // Later elements are refused without a report.
        pair.post(0, pair.write(1, 0, &[3]));
        pair.mock.run();
        assert_eq!(pair.mock.load(1, pair.memory[1], 1), [1]);
    }
}

#[test]
fn bytes_outside_a_region_are_refused() {
    assert_fails(|pair| pair.write(1, 255, &[7; 2]), Syndrome::RemoteAccess);
    assert_fails(|pair| pair.write(1, 256, &[7]), Syndrome::RemoteAccess);
    assert_fails(|pair| pair.write(1, u64::MAX - 0x0fff, &[7]), Syndrome::RemoteAccess);
    let key = |to: Location| Operation::Write { to: Location { key: 9, ..to }, data: Payload::Inline(vec![7]) };
    assert_fails(move |pair| key(pair.memory[1]), Syndrome::RemoteAccess);
    let gather = |pair: &Pair, from: Location, length| Operation::Write {
        to: pair.at(1, 0),
        data: Payload::Gather(vec![(from, length)]),
    };
    assert_fails(|pair| gather(pair, pair.at(0, 0), 257), Syndrome::LocalProtection);
    assert_fails(|pair| gather(pair, pair.at(0, u64::MAX), 1), Syndrome::LocalProtection);
    assert_fails(|pair| gather(pair, pair.memory[1], 1), Syndrome::LocalProtection);
    assert_fails(|pair| equal(pair.at(0, 256), 0), Syndrome::LocalProtection);
    let add = |to: Location, before: Location| Operation::FetchAdd { to, add: 1, before };
    assert_fails(|pair| add(pair.at(1, 256), pair.at(0, 0)), Syndrome::RemoteAccess);
    assert_fails(|pair| add(pair.at(1, 0), pair.at(0, 256)), Syndrome::LocalProtection);
}

/// Memory that a host registered for itself alone.
#[test]
fn private_memory_is_refused_to_others() {
    let mut pair = Pair::new(7);
    let private = pair.mock.register(1, 0x9000, 64, false);
    pair.post(0, Operation::Write { to: private, data: Payload::Inline(vec![1]) });
    pair.mock.run();
    assert_eq!(pair.what(pair.sent[0]), [What::Failed(0, Syndrome::RemoteAccess)]);
    pair.post(1, Operation::Write { to: pair.at(0, 0), data: Payload::Gather(vec![(private, 1)]) });
    pair.mock.run();
    assert_eq!(pair.what(pair.sent[1]), [What::Sent(0)]);
}

#[test]
fn elements_that_make_no_sense_are_refused() {
    assert_fails(|_| Operation::WaitCompletions { queue: 9, count: 1 }, Syndrome::LocalOperation);
    let wait = |pair: &Pair| match equal(pair.at(0, 0), 1) {
        Operation::WaitWord(wait) => Operation::WaitWord(WaitWord { miss: Miss::Fail, ..wait }),
        other => other,
    };
    assert_fails(wait, Syndrome::LocalOperation);
    // The element of another queue pair.
    let mut pair = Pair::new(8);
    let element = Element { queue: 9, ..pair.element(0, pair.write(1, 0, &[1])) };
    pair.mock.post(pair.queues[0], &element).unwrap();
    pair.mock.ring(pair.queues[0]);
    pair.mock.run();
    assert_eq!(pair.what(pair.sent[0]), [What::Failed(0, Syndrome::LocalOperation)]);
    assert_eq!(pair.mock.load(1, pair.memory[1], 1), [0]);
}
