//! The counted messages between this rank and a peer: each is dealt with once, in any order, and the
//! sender hears of it.

use std::collections::VecDeque;

/// Most messages that were sent and not told to be dealt with.
pub(crate) const WINDOW: u32 = 64;

/// What was sent to a peer, oldest first, each with what its sender wants to know.
#[derive(Debug)]
pub(crate) struct Sent<T> {
    /// Dealt with by the peer, all up to this one.
    upto: u32,
    open: VecDeque<T>,
}

impl<T> Default for Sent<T> {
    fn default() -> Self {
        Sent { upto: 0, open: VecDeque::with_capacity(WINDOW as usize) }
    }
}

impl<T> Sent<T> {
    /// Whether another may be sent.
    pub(crate) fn has_room(&self) -> bool {
        self.open.len() < WINDOW as usize
    }

    /// What the peer has not said to have dealt with.
    pub(crate) fn open(&self) -> impl Iterator<Item = &T> {
        self.open.iter()
    }

    /// Whether all were dealt with.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The number of the next: from 1, in a circle.
    pub(crate) fn next(&self) -> u32 {
        self.upto.wrapping_add(self.open.len() as u32).wrapping_add(1)
    }

    /// It was sent.
    pub(crate) fn push(&mut self, what: T) {
        self.open.push_back(what);
    }

    /// The peer deals with nothing any more: what it was to deal with.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = T> + '_ {
        self.open.drain(..)
    }

    /// The peer has dealt with all up to a number: the next of those. Nothing for a number that was
    /// not sent or is old news.
    pub(crate) fn settle(&mut self, upto: u32) -> Option<T> {
        let ahead = upto.wrapping_sub(self.upto);
        if ahead == 0 || ahead as usize > self.open.len() {
            return None;
        }
        self.upto = self.upto.wrapping_add(1);
        self.open.pop_front()
    }
}

/// What came from a peer.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// All up to this one were dealt with.
    upto: u32,
    /// Which of those after the next one were: the lowest bit is for the one after it.
    ahead: u64,
    /// What the peer was last told.
    told: u32,
    /// All up to this one were, when somebody last asked whether the peer is to be told.
    noticed: u32,
}

/// Whether a message is to be dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Novelty {
    /// It came for the first time.
    New,
    /// It was dealt with before.
    Known,
    /// No honest peer sends this number now.
    Nonsense,
}

impl Received {
    /// A message came.
    pub(crate) fn take(&mut self, number: u32) -> Novelty {
        let ahead = number.wrapping_sub(self.upto);
        match ahead {
            1 => {
                self.upto = number;
                while self.ahead & 1 != 0 {
                    self.upto = self.upto.wrapping_add(1);
                    self.ahead >>= 1;
                }
                self.ahead >>= 1;
                Novelty::New
            }
            2..=WINDOW => {
                let bit = 1 << (ahead - 2);
                let known = self.ahead & bit != 0;
                self.ahead |= bit;
                if known { Novelty::Known } else { Novelty::New }
            }
            _ if self.upto.wrapping_sub(number) < 2 * WINDOW => Novelty::Known,
            _ => Novelty::Nonsense,
        }
    }

    /// Messages that the peer was not told of.
    pub(crate) fn owed(&self) -> u32 {
        self.upto.wrapping_sub(self.told)
    }

    /// Notes down what there is to be told; whether something that was noted down the last time is still not told.
    pub(crate) fn remind(&mut self) -> bool {
        let noticed = std::mem::replace(&mut self.noticed, self.upto);
        // In a circle: what it was told comes before.
        noticed.wrapping_sub(self.told).cast_signed() > 0
    }

    /// What the peer is to be told.
    pub(crate) fn upto(&self) -> u32 {
        self.upto
    }

    /// It is on its way to the peer.
    pub(crate) fn told(&mut self) {
        self.told = self.upto;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the order of delivery within the window, and whatever comes twice, each message
        /// is new once, and the sender hears of all.
        #[test]
        fn each_is_new_once(order in proptest::collection::vec(0..WINDOW as usize, 1..600), start in any::<u32>()) {
            let mut sent = Sent { upto: start, open: VecDeque::new() };
            let mut received = Received { upto: start, ahead: 0, told: start, noticed: start };
            let mut under_way: Vec<u32> = Vec::new();
            let (mut posted, mut dealt_with, mut settled) = (0, 0, 0);
            for pick in order {
                while sent.has_room() {
                    under_way.push(sent.next());
                    sent.push(());
                    posted += 1;
                }
                let number = under_way.swap_remove(pick % under_way.len());
                prop_assert_eq!(received.take(number), Novelty::New);
                prop_assert_eq!(received.take(number), Novelty::Known);
                dealt_with += 1;
                let upto = received.upto();
                while sent.settle(upto).is_some() {
                    settled += 1;
                }
                prop_assert!(settled <= dealt_with && sent.settle(upto).is_none());
            }
            for number in std::mem::take(&mut under_way) {
                prop_assert_eq!(received.take(number), Novelty::New);
            }
            prop_assert_eq!(received.take(sent.next().wrapping_add(WINDOW)), Novelty::Nonsense);
            let upto = received.upto();
            received.told();
            while sent.settle(upto).is_some() {
                settled += 1;
            }
            prop_assert_eq!((settled, received.owed()), (posted, 0));
            prop_assert!(sent.is_empty());
        }
    }

    #[test]
    fn what_was_told_meanwhile_is_not_overdue() {
        let mut received = Received::default();
        let mut remind = |number: u32, told: bool| {
            assert_eq!(received.take(number), Novelty::New);
            if told {
                received.told();
            }
            received.remind()
        };
        assert_eq!(
            [(1, false), (2, true), (3, false), (4, false), (5, true)].map(|(n, told)| remind(n, told)),
            [false, false, false, true, false]
        );
    }

    #[test]
    fn more_than_was_sent_is_not_believed() {
        let mut sent = Sent::default();
        sent.push('a');
        assert_eq!(sent.settle(2), None);
        assert_eq!(sent.settle(1), Some('a'));
        assert_eq!(sent.settle(1), None);
    }
}
