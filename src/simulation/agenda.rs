//! When each rank has its next turn.

use crate::collective::core::Time;
use crate::fabric::sim::Timeline;

/// The next turns of all ranks.
#[derive(Debug)]
pub(super) struct Agenda {
    /// The turns of ranks, each with its number.
    turns: Timeline<(u32, u32)>,
    /// The number of each rank's last turn, and whether that turn is still to come.
    last: Vec<(u32, bool)>,
}

impl Agenda {
    pub(super) fn new(ranks: usize) -> Self {
        Agenda { turns: Timeline::new(), last: vec![(0, false); ranks] }
    }

    /// Sets the next turn of a rank, and cancels its earlier one.
    pub(super) fn set(&mut self, rank: usize, time: Time) {
        let (number, _) = self.last[rank];
        self.last[rank] = (number.wrapping_add(1), true);
        self.turns.push(time, (rank as u32, self.last[rank].0));
    }

    /// Cancels the next turn of a rank.
    pub(super) fn clear(&mut self, rank: usize) {
        self.last[rank].1 = false;
    }

    /// Returns a time before which there is no turn: usually that of the next one.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.turns.next_time()
    }

    /// Takes the next turn, if it is at this time or earlier. Returns its rank.
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
