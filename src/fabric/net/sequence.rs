//! Sequence numbers of the messages between this rank and a peer. Each message is processed once, in any order, and
//! acknowledged.

use std::collections::VecDeque;

/// The maximum number of messages that were sent and are not acknowledged.
pub(crate) const WINDOW: u32 = 64;

/// Messages to a peer that are not acknowledged, oldest first, each with what its sender keeps for it.
#[derive(Debug)]
pub(crate) struct Sent<T> {
    /// The peer has acknowledged all messages up to this number.
    acked: u32,
    in_flight: VecDeque<T>,
}

impl<T> Default for Sent<T> {
    fn default() -> Self {
        Sent { acked: 0, in_flight: VecDeque::with_capacity(WINDOW as usize) }
    }
}

impl<T> Sent<T> {
    /// Returns whether another message may be sent.
    pub(crate) fn has_credit(&self) -> bool {
        self.in_flight.len() < WINDOW as usize
    }

    /// Returns what the peer has not acknowledged.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &T> {
        self.in_flight.iter()
    }

    /// Returns whether the peer has acknowledged all messages.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns the number of the next message. Numbers count from 1 and wrap.
    pub(crate) fn next(&self) -> u32 {
        self.acked.wrapping_add(self.in_flight.len() as u32).wrapping_add(1)
    }

    /// Records that the next message was sent.
    pub(crate) fn push(&mut self, what: T) {
        self.in_flight.push_back(what);
    }

    /// Takes all that is not acknowledged, because the peer processes nothing any more.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.in_flight.drain(..)
    }

    /// Takes the oldest message that the peer acknowledges with `upto`. `None` if there is no further one, or if `upto`
    /// was never sent or is out of date.
    pub(crate) fn pop_acked(&mut self, upto: u32) -> Option<T> {
        let ahead = upto.wrapping_sub(self.acked);
        if ahead == 0 || ahead as usize > self.in_flight.len() {
            return None;
        }
        self.acked = self.acked.wrapping_add(1);
        self.in_flight.pop_front()
    }
}

/// Messages that came from a peer.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// All messages up to this number are processed.
    processed: u32,
    /// Which messages after the next one are processed: the lowest bit is for the one after it.
    ahead: u64,
    /// The last acknowledgement that was sent.
    acked: u32,
    /// The messages that were processed at the last call of [`Received::is_overdue`].
    checked: u32,
}

/// Whether to process a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receipt {
    /// It came for the first time.
    New,
    /// It was processed before.
    Duplicate,
    /// No honest peer sends this number now.
    Invalid,
}

impl Received {
    /// Records a message, and returns whether to process it.
    pub(crate) fn take(&mut self, number: u32) -> Receipt {
        let ahead = number.wrapping_sub(self.processed);
        match ahead {
            1 => {
                self.processed = number;
                while self.ahead & 1 != 0 {
                    self.processed = self.processed.wrapping_add(1);
                    self.ahead >>= 1;
                }
                self.ahead >>= 1;
                Receipt::New
            }
            2..=WINDOW => {
                let bit = 1 << (ahead - 2);
                let known = self.ahead & bit != 0;
                self.ahead |= bit;
                if known { Receipt::Duplicate } else { Receipt::New }
            }
            _ if self.processed.wrapping_sub(number) < 2 * WINDOW => Receipt::Duplicate,
            _ => Receipt::Invalid,
        }
    }

    /// Returns the number of messages whose ack is pending.
    pub(crate) fn unacked(&self) -> u32 {
        self.processed.wrapping_sub(self.acked)
    }

    /// Returns whether an ack that was pending at the last call is still pending.
    pub(crate) fn is_overdue(&mut self) -> bool {
        let checked = std::mem::replace(&mut self.checked, self.processed);
        // Numbers wrap, and `checked` may lie before `acked`.
        checked.wrapping_sub(self.acked).cast_signed() > 0
    }

    /// Returns the number that the next acknowledgement carries.
    pub(crate) fn processed(&self) -> u32 {
        self.processed
    }

    /// Records that an acknowledgement of all processed messages was sent.
    pub(crate) fn acked(&mut self) {
        self.acked = self.processed;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// In any order of delivery within the window, and with duplicates, each message is new
        /// once, and the sender learns of all.
        #[test]
        fn each_is_new_once(order in proptest::collection::vec(0..WINDOW as usize, 1..600), start in any::<u32>()) {
            let mut sent = Sent { acked: start, in_flight: VecDeque::new() };
            let mut received = Received { processed: start, ahead: 0, acked: start, checked: start };
            let mut in_flight: Vec<u32> = Vec::new();
            let (mut posted, mut processed, mut acked) = (0, 0, 0);
            for pick in order {
                while sent.has_credit() {
                    in_flight.push(sent.next());
                    sent.push(());
                    posted += 1;
                }
                let number = in_flight.swap_remove(pick % in_flight.len());
                prop_assert_eq!(received.take(number), Receipt::New);
                prop_assert_eq!(received.take(number), Receipt::Duplicate);
                processed += 1;
                let upto = received.processed();
                while sent.pop_acked(upto).is_some() {
                    acked += 1;
                }
                prop_assert!(acked <= processed && sent.pop_acked(upto).is_none());
            }
            for number in std::mem::take(&mut in_flight) {
                prop_assert_eq!(received.take(number), Receipt::New);
            }
            prop_assert_eq!(received.take(sent.next().wrapping_add(WINDOW)), Receipt::Invalid);
            let upto = received.processed();
            received.acked();
            while sent.pop_acked(upto).is_some() {
                acked += 1;
            }
            prop_assert_eq!((acked, received.unacked()), (posted, 0));
            prop_assert!(sent.is_empty());
        }
    }

    #[test]
    fn what_was_acknowledged_meanwhile_is_not_overdue() {
        let mut received = Received::default();
        let mut check = |number: u32, acked: bool| {
            assert_eq!(received.take(number), Receipt::New);
            if acked {
                received.acked();
            }
            received.is_overdue()
        };
        assert_eq!(
            [(1, false), (2, true), (3, false), (4, false), (5, true)].map(|(n, acked)| check(n, acked)),
            [false, false, false, true, false]
        );
    }

    #[test]
    fn more_than_was_sent_is_not_believed() {
        let mut sent = Sent::default();
        sent.push('a');
        assert_eq!(sent.pop_acked(2), None);
        assert_eq!(sent.pop_acked(1), Some('a'));
        assert_eq!(sent.pop_acked(1), None);
    }
}
