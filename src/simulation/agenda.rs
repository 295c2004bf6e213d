//! When each rank has its next turn.

use crate::collective::core::Time;
use crate::fabric::sim::Timeline;

/// The next turns of all ranks.
#[derive(Debug)]
pub(super) struct Agenda {
    turns: Timeline<usize>,
    /// Where each rank's next turn is.
    slots: Vec<Option<u32>>,
}

impl Agenda {
    pub(super) fn new(ranks: usize) -> Self {
        Agenda { turns: Timeline::new(), slots: vec![None; ranks] }
    }

    /// A rank has its next turn at this time, and not when it would have had it.
    pub(super) fn set(&mut self, rank: usize, time: Time) {
        self.clear(rank);
        self.slots[rank] = Some(self.turns.push(time, rank));
    }

    /// A rank has no next turn.
    pub(super) fn clear(&mut self, rank: usize) {
        if let Some(slot) = self.slots[rank].take() {
            self.turns.remove(slot);
        }
    }

    /// A time that no turn is earlier than: usually that of the next one.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.turns.next_time()
    }

    /// Takes the next turn, if it is at this time or earlier; says whose it is.
    pub(super) fn take(&mut self, time: Time) -> Option<usize> {
        let (_, rank) = self.turns.pop_within(time)?;
        self.slots[rank] = None;
        Some(rank)
    }
}
