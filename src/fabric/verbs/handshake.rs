//! How two ranks connect their queue pairs over datagrams, which may be lost, repeated or overtaken.
//!
//! There is one kind of datagram, a hello. It names the sender's queue pair, and says whether that is
//! connected to the receiver's (the receiver's last hello has come) and whether the sender knows the
//! same of the receiver. A rank repeats its hello until it knows so, and answers a hello whose sender
//! does not know so. A rank may send over the connection once it knows that its peer's queue pair is
//! connected: packets that come before that are dropped. Either rank may begin, or both at once.
#![forbid(unsafe_code)]

use crate::time::Time;

/// The first and the longest time between two hellos, in nanoseconds.
const INTERVAL: Time = 10_000_000;
const LONGEST_INTERVAL: Time = 500_000_000;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The number of the queue pair.
    pub(super) pair: u32,
    /// The number of the first packet that it sends.
    pub(super) sequence: u32,
}

/// A datagram of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The rank that sends it.
    pub(super) from: u32,
    /// The rail of both queue pairs.
    pub(super) rail: u32,
    /// The sender's queue pair for this peer.
    pub(super) end: End,
    /// The sender's queue pair is connected.
    pub(super) connected: bool,
    /// The sender knows that the receiver's queue pair is connected.
    pub(super) ready: bool,
}

impl Hello {
    /// Tells a hello from other datagrams, and its format from later ones.
    const MAGIC: u32 = 0x4542_5602;

    pub(super) const BYTES: usize = 24;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let Hello { from, rail, end: End { pair, sequence }, connected, ready } = *self;
        let mut bytes = [0; Self::BYTES];
        let flags = u32::from(connected) | u32::from(ready) << 1;
        for (chunk, word) in bytes.chunks_exact_mut(4).zip([Self::MAGIC, from, rail, pair, sequence, flags]) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` for bytes that are no hello.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |index: usize| -> Option<u32> {
            Some(u32::from_le_bytes(bytes.get(4 * index..4 * index + 4)?.try_into().ok()?))
        };
        let (from, rail, end, flags) = (word(1)?, word(2)?, End { pair: word(3)?, sequence: word(4)? }, word(5)?);
        let hello = Hello { from, rail, end, connected: flags & 1 != 0, ready: flags & 2 != 0 };
        (word(0)? == Self::MAGIC && flags < 4).then_some(hello)
    }
}

/// What to do after a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reaction {
    /// Connect the own queue pair to this one.
    pub(super) connect: Option<End>,
    /// Send a hello.
    pub(super) answer: bool,
}

/// The state of the handshake with one peer.
#[derive(Clone, Debug)]
pub(super) struct Handshake {
    own: End,
    peer: Option<End>,
    is_ready: bool,
    next: Time,
    interval: Time,
}

impl Handshake {
    pub(super) fn new(own: End) -> Self {
        Handshake { own, peer: None, is_ready: false, next: 0, interval: INTERVAL }
    }

    /// This rank's end.
    pub(super) fn own(&self) -> End {
        self.own
    }

    /// Whether the peer's queue pair is known to be connected: this rank may send.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// The hello to send now, from this rank by a rail.
    pub(super) fn hello(&self, (from, rail): (u32, u32)) -> Hello {
        Hello { from, rail, end: self.own, connected: self.peer.is_some(), ready: self.is_ready }
    }

    /// Whether it is time for another hello; the next one is due later then.
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        let is_due = !self.is_ready && now >= self.next;
        if is_due {
            self.next = now + self.interval;
            self.interval = (2 * self.interval).min(LONGEST_INTERVAL);
        }
        is_due
    }

    /// The peer's hello has come; `None` if it is not from the queue pair that this one is connected
    /// to.
    pub(super) fn hear(&mut self, hello: &Hello) -> Option<Reaction> {
        if self.peer.is_some_and(|peer| peer != hello.end) {
            return None;
        }
        let connect = self.peer.is_none().then_some(hello.end);
        self.peer = Some(hello.end);
        self.is_ready |= hello.connected;
        Some(Reaction { connect, answer: !hello.ready })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello(flags: (bool, bool)) -> Hello {
        let end = End { pair: 0xAB_CDEF, sequence: 0xFF_FFFF };
        Hello { from: 0xFFFF, rail: 1, end, connected: flags.0, ready: flags.1 }
    }

    #[test]
    fn a_hello_survives_encoding() {
        for flags in [(false, false), (true, false), (true, true)] {
            let hello = hello(flags);
            let bytes = hello.encode();
            assert_eq!(Hello::decode(&bytes), Some(hello));
            (0..bytes.len()).for_each(|len| assert_eq!(Hello::decode(&bytes[..len]), None));
            assert_eq!(Hello::decode(&[0; Hello::BYTES]), None);
        }
    }

    #[test]
    fn another_queue_pair_is_not_believed() {
        let mut handshake = Handshake::new(End { pair: 1, sequence: 1 });
        assert_eq!(handshake.hear(&hello((false, false))).unwrap().connect, Some(hello((false, false)).end));
        let other = Hello { end: End { pair: 2, sequence: 2 }, connected: true, ..hello((true, true)) };
        assert_eq!(handshake.hear(&other), None);
        assert!(!handshake.is_ready());
    }

    proptest! {
        /// However many hellos are lost, repeated or overtaken, and whichever rank begins: no rank
        /// is ready before its peer is connected, each connects once, and both are ready when
        /// enough hellos have come.
        #[test]
        fn both_become_ready(
            steps in proptest::collection::vec((0..2usize, 0..4u8), 0..60),
            begins in proptest::sample::select(vec![[true, false], [false, true], [true, true]]),
        ) {
            let ends = [End { pair: 10, sequence: 1 }, End { pair: 20, sequence: 2 }];
            let mut ranks: [Option<Handshake>; 2] = [None, None];
            let (mut connected, mut on_the_way) = ([0; 2], [Vec::new(), Vec::new()]);
            for rank in (0..2).filter(|&rank| begins[rank]) {
                ranks[rank] = Some(Handshake::new(ends[rank]));
            }
            let mut now = 0;
            let hello = |ranks: &[Option<Handshake>; 2], rank: usize| {
                ranks[rank].as_ref().map(|own| own.hello((rank as u32, 0)))
            };
            // After the random part, all is delivered.
            let steps = steps.into_iter().chain((0..200).flat_map(|_| [(0, 0), (0, 1), (1, 0), (1, 1)]));
            for (rank, what) in steps {
                match what {
                    0 => {
                        now += LONGEST_INTERVAL;
                        if ranks[rank].as_mut().is_some_and(|own| own.is_due(now)) {
                            on_the_way[1 - rank].extend(hello(&ranks, rank));
                        }
                    }
                    // The last one overtakes, the first one does not, or is lost.
                    1 | 2 if !on_the_way[rank].is_empty() => {
                        let which = if what == 1 { 0 } else { on_the_way[rank].len() - 1 };
                        let said: Hello = on_the_way[rank].remove(which);
                        let own = ranks[rank].get_or_insert_with(|| Handshake::new(ends[rank]));
                        let reaction = own.hear(&said).unwrap();
                        connected[rank] += u32::from(reaction.connect.is_some());
                        if reaction.answer {
                            on_the_way[1 - rank].extend(hello(&ranks, rank));
                        }
                    }
                    3 if !on_the_way[rank].is_empty() => _ = on_the_way[rank].remove(0),
                    _ => {}
                }
                for rank in 0..2 {
                    let is_ready = ranks[rank].as_ref().is_some_and(Handshake::is_ready);
                    prop_assert!(!is_ready || connected[1 - rank] == 1, "rank {} sends too early", rank);
                }
            }
            prop_assert_eq!(connected, [1, 1]);
            prop_assert!(ranks.iter().flatten().all(Handshake::is_ready));
        }
    }
}
