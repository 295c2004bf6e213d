//! How a rank's peers share its endpoint: a peer that returns nothing, or refuses everything, delays nothing for the
//! others.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;

/// A pool of message buffers or contexts, which operations hold until they complete. Each peer has a share of its own,
/// so the others keep theirs whatever one peer fails to return.
#[derive(Debug)]
pub(super) struct Pool {
    free: Vec<usize>,
    /// The number of indices that each rank holds.
    held: Vec<usize>,
    /// The maximum number that one rank may hold.
    share: usize,
    size: usize,
}

impl Pool {
    /// Creates a pool of these indices for the peers of a rank. All shares can be full at once if there is one index
    /// for each peer.
    pub(super) fn new(indices: Range<usize>, ranks: u32) -> Self {
        let size = indices.len();
        Pool { size, free: indices.collect(), held: vec![0; ranks as usize], share: share(size, ranks) }
    }

    /// Returns the index that [`Pool::take`] takes next for a peer. `None` if the peer holds its share, except for the
    /// last `reserved` indices of it.
    #[inline]
    pub(super) fn next(&self, peer: u32, reserved: usize) -> Option<usize> {
        let may = self.held[peer as usize] + reserved < self.share;
        self.free.last().copied().filter(|_| may)
    }

    /// Takes the index that [`Pool::next`] returned.
    #[inline]
    pub(super) fn take(&mut self, peer: u32) {
        let taken = self.free.pop();
        debug_assert!(taken.is_some(), "nothing is free");
        self.held[peer as usize] += usize::from(taken.is_some());
    }

    /// Frees the index of a peer's operation that is over.
    #[inline]
    pub(super) fn give_back(&mut self, index: usize, peer: u32) {
        self.free.push(index);
        self.held[peer as usize] -= 1;
    }

    /// Returns whether no index is taken.
    pub(super) fn is_whole(&self) -> bool {
        self.free.len() == self.size
    }
}

/// Returns what one peer may hold of a pool of this size.
pub(in crate::internals::fabric) fn share(size: usize, ranks: u32) -> usize {
    (size / peers(ranks)).max(1)
}

/// Returns the number of peers in a world of `ranks`, at least 1.
pub(in crate::internals::fabric) fn peers(ranks: u32) -> usize {
    ranks.saturating_sub(1).max(1) as usize
}

/// Operations that wait until they can be posted, in order for each peer. Peers take turns.
#[derive(Debug)]
pub(super) struct Queues<T> {
    waiting: Vec<VecDeque<T>>,
    /// The peers for which an operation waits.
    turns: VecDeque<u32>,
    /// For each rank, the last call of [`Queues::post`] in which it refused.
    refused: Vec<u64>,
    calls: u64,
}

impl<T> Queues<T> {
    pub(super) fn new(ranks: u32) -> Self {
        Queues {
            waiting: (0..ranks).map(|_| VecDeque::new()).collect(),
            turns: VecDeque::with_capacity(ranks as usize),
            refused: vec![0; ranks as usize],
            calls: 0,
        }
    }

    /// Returns whether no operation waits for any peer.
    #[inline]
    pub(super) fn are_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn is_empty(&self, peer: u32) -> bool {
        self.waiting[peer as usize].is_empty()
    }

    pub(super) fn push(&mut self, peer: u32, item: T) {
        let queue = &mut self.waiting[peer as usize];
        if queue.is_empty() {
            self.turns.push_back(peer);
        }
        queue.push_back(item);
    }

    /// Removes the operations that wait for a peer that will never take them.
    pub(super) fn drain(&mut self, peer: u32) -> VecDeque<T> {
        self.turns.retain(|&turn| turn != peer);
        std::mem::take(&mut self.waiting[peer as usize])
    }

    /// Offers waiting operations to `post`, one for each peer at a time, until each peer has refused (`false`) or has
    /// no more.
    #[inline]
    pub(super) fn post(&mut self, mut post: impl FnMut(&T) -> bool) {
        self.calls += 1;
        // The number of consecutive peers for which nothing was posted.
        let mut idle = 0;
        while idle < self.turns.len() {
            let Some(peer) = self.turns.pop_front() else { return };
            let queue = &mut self.waiting[peer as usize];
            let refused = &mut self.refused[peer as usize];
            if *refused != self.calls && queue.front().is_some_and(&mut post) {
                queue.pop_front();
                idle = 0;
            } else {
                *refused = self.calls;
                idle += 1;
            }
            if !queue.is_empty() {
                self.turns.push_back(peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANKS: u32 = 5;

    proptest! {
        /// In any sequence of takes and returns, no index is taken twice, and a peer that holds
        /// less than its share gets another.
        #[test]
        fn a_share_is_there_for_each_peer(
            steps in proptest::collection::vec((1..RANKS, any::<bool>()), 1..400),
            size in 4usize..64,
        ) {
            let mut pool = Pool::new(100..100 + size, RANKS);
            let share = size / 4;
            let mut held: Vec<Vec<usize>> = vec![Vec::new(); RANKS as usize];
            for (peer, takes) in steps {
                let mine = &mut held[peer as usize];
                if takes {
                    let next = pool.next(peer, 0);
                    prop_assert_eq!(next.is_some(), mine.len() < share);
                    prop_assert_eq!(pool.next(peer, 1).is_some(), mine.len() + 1 < share);
                    if let Some(index) = next {
                        pool.take(peer);
                        mine.push(index);
                    }
                } else if let Some(index) = mine.pop() {
                    pool.give_back(index, peer);
                }
                let mut taken = held.concat();
                taken.sort_unstable();
                prop_assert!(taken.iter().all(|index| (100..100 + size).contains(index)));
                taken.dedup();
                prop_assert_eq!(taken.len(), held.iter().map(Vec::len).sum::<usize>());
                prop_assert_eq!(pool.is_whole(), taken.is_empty());
            }
        }

        /// Peers that refuse hold up no other: all that waits for the others is posted, in order
        /// for each, and peers that accept take turns.
        #[test]
        fn what_some_refuse_stops_nothing_else(
            items in proptest::collection::vec(1..RANKS, 0..100),
            stalled in proptest::collection::vec(any::<bool>(), RANKS as usize),
        ) {
            let mut queues = Queues::new(RANKS);
            for (number, &peer) in items.iter().enumerate() {
                queues.push(peer, (peer, number));
            }
            let (mut posted, mut refusals) = (Vec::new(), vec![0; RANKS as usize]);
            queues.post(|&(peer, number)| {
                let accepts = !stalled[peer as usize];
                match accepts {
                    true => posted.push((peer, number)),
                    false => refusals[peer as usize] += 1,
                }
                accepts
            });
            prop_assert!(refusals.iter().all(|&times| times <= 1), "asked again: {:?}", refusals);
            for peer in 1..RANKS {
                let theirs = |list: &[(u32, usize)]| -> Vec<usize> {
                    list.iter().filter(|item| item.0 == peer).map(|item| item.1).collect()
                };
                let all: Vec<(u32, usize)> = items.iter().enumerate().map(|(number, &peer)| (peer, number)).collect();
                let expected = if stalled[peer as usize] { Vec::new() } else { theirs(&all) };
                prop_assert_eq!(theirs(&posted), expected);
                prop_assert_eq!(queues.is_empty(peer), !stalled[peer as usize] || theirs(&all).is_empty());
            }
            // In each turn, all peers that still have something come once.
            for upto in 0..posted.len() {
                let count = |peer: u32| posted[..upto].iter().filter(|item| item.0 == peer).count();
                let most = (1..RANKS).map(count).max().unwrap_or(0);
                for (peer, count) in (1..RANKS).map(|peer| (peer, count(peer))) {
                    let waits = posted[upto..].iter().any(|item| item.0 == peer);
                    prop_assert!(!waits || count + 1 >= most, "rank {} has {} of {}", peer, count, most);
                }
            }
            // A peer that was stalled goes on where it was, or is given up.
            let mut rest = queues.drain(1).len();
            prop_assert!(queues.is_empty(1));
            queues.post(|&(peer, _)| {
                assert_ne!(peer, 1);
                rest += 1;
                true
            });
            prop_assert_eq!(rest + posted.len(), items.len());
        }
    }

    /// Each peer gets as much of a scarce resource, whichever has most to post.
    #[test]
    fn turns_go_on_from_call_to_call() {
        let mut queues = Queues::new(3);
        (0..100).for_each(|_| queues.push(1, 1));
        (0..10).for_each(|_| queues.push(2, 2));
        let mut posted = vec![0; 3];
        for _ in 0..20 {
            let mut left = 1;
            queues.post(|&peer: &usize| {
                let accepts = left > 0;
                left -= i32::from(accepts);
                posted[peer] += i32::from(accepts);
                accepts
            });
        }
        assert_eq!(posted, [0, 10, 10]);
    }
}
