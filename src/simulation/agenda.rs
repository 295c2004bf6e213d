//! When each rank has its next turn.

use crate::collective::core::Time;
use crate::fabric::sim::Timeline;

/// The turns of all ranks. Those that were put off or called off since are still in it, and are told by their number.
#[derive(Debug)]
pub(super) struct Agenda {
    turns: Timeline<(u64, usize)>,
    /// The number of each rank's next turn; 0 for none.
    next: Vec<u64>,
    numbered: u64,
}

impl Agenda {
    pub(super) fn new(ranks: usize) -> Self {
        Agenda { turns: Timeline::new(), next: vec![0; ranks], numbered: 0 }
    }

    /// A rank has its next turn at this time, and not when it would have had it.
    pub(super) fn set(&mut self, rank: usize, time: Time) {
        self.numbered += 1;
        self.next[rank] = self.numbered;
        self.turns.push(time, (self.numbered, rank));
    }

    /// A rank has no next turn.
    pub(super) fn clear(&mut self, rank: usize) {
        self.next[rank] = 0;
    }

    /// The time of the next turn, also of one that was called off.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.turns.next_time()
    }

    /// Takes the next turn: its time, and whose it is unless it was called off.
    pub(super) fn take(&mut self) -> Option<(Time, Option<usize>)> {
        let (time, (number, rank)) = self.turns.pop()?;
        Some((time, Some(rank).filter(|&rank| self.next[rank] == number)))
    }
}
