//! When each rank has its next turn.

use crate::collective::core::Time;
use crate::fabric::sim::Timeline;

/// The next turns of all ranks.
#[derive(Debug)]
pub(super) struct Agenda {
    /// Turns of ranks, and the number that each of them was given.
    turns: Timeline<(u32, u32)>,
    /// The number of each rank's last turn, and whether it is still to come.
    last: Vec<(u32, bool)>,
}

impl Agenda {
    pub(super) fn new(ranks: usize) -> Self {
        Agenda { turns: Timeline::new(), last: vec![(0, false); ranks] }
    }

    /// A rank has its next turn at this time, and not when it would have had it.
    pub(super) fn set(&mut self, rank: usize, time: Time) {
        let (number, _) = self.last[rank];
        self.last[rank] = (number.wrapping_add(1), true);
        self.turns.push(time, (rank as u32, self.last[rank].0));
    }

    /// A rank has no next turn.
    pub(super) fn clear(&mut self, rank: usize) {
        self.last[rank].1 = false;
    }

    /// A time that no turn is earlier than: usually that of the next one.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.turns.next_time()
    }

    /// Takes the next turn, if it is at this time or earlier; says whose it is.
    pub(super) fn take(&mut self, time: Time) -> Option<usize> {
        loop {
            let (_, (rank, number)) = self.turns.pop_within(time)?;
            let last = &mut self.last[rank as usize];
            if *last == (number, true) {
                last.1 = false;
                return Some(rank as usize);
            }
        }
    }
}
