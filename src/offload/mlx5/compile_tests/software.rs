//! The worker of shared memory, without threads: each arrival runs the operations that it triggers.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use crate::trigger::{Layout, Request, SlotCells, Start, TaskWork, Want, Worker};

/// The software worker, whose tables all ranks share: each arrival runs the operations that it triggers.
pub(super) struct Software {
    layout: Layout,
    cells: Cells,
    workers: Vec<Worker>,
    pub(super) round: u64,
    ranks: u32,
}

struct Cells(Vec<u64>);

impl SlotCells for Cells {
    fn load(&self, _: u64, cell: usize) -> u64 {
        self.0[cell]
    }
}

impl Software {
    pub(super) fn new(request: &Request) -> Self {
        let layout = Layout::new(request);
        let workers = (0..request.ranks).map(|rank| Worker::new(rank, &layout, None)).collect();
        let cells = Cells(vec![0; layout.cells()]);
        Software { layout, cells, workers, round: 0, ranks: request.ranks }
    }

    fn raise(&mut self, (counter, cell): (u32, usize), by: u32) {
        self.cells.0[cell] = self.round;
        self.workers[by as usize].moved(&self.layout, counter, self.round, &self.cells);
    }

    pub(super) fn arrive(&mut self, rank: u32) {
        match self.layout.arrival(rank) {
            None => self.raise(self.layout.activation(rank), rank),
            Some((counter, cell)) => {
                self.cells.0[cell] = self.round;
                let Start::Count(threshold) = self.layout.start else { panic!("only a quorum counts arrivals") };
                if self.layout.value(counter, self.round, &self.cells) == threshold {
                    self.raise(self.layout.activation(rank), rank);
                }
            }
        }
        self.work(rank);
    }

    fn work(&mut self, rank: u32) {
        let Software { layout, cells, workers, .. } = self;
        let worker = &mut workers[rank as usize];
        let mut wants = Vec::new();
        while worker.step(layout, |_| false, cells, &mut |want| wants.push(want)) {
            while let Some(want) = (!wants.is_empty()).then(|| wants.remove(0)) {
                match want {
                    Want::Swap { cell, expect, new, .. } => {
                        let before = cells.0[cell];
                        if before == expect {
                            cells.0[cell] = new;
                        }
                        worker.answer(layout, before, &mut |want| wants.push(want));
                    }
                    Want::Store { cell, value, .. } => cells.0[cell] = value,
                    Want::Raise { round, cell } => cells.0[cell] = cells.0[cell].max(round),
                    Want::Run(_) | Want::Fence | Want::Call { .. } => {}
                }
            }
        }
    }

    /// Returns the row that closes a rank's gate. The activation triggers it, and its last signal shows that the
    /// contribution can be reduced.
    fn seal(&self, rank: u32) -> (u32, usize) {
        let row = self.layout.rows.iter().find(|row| row.work == TaskWork::Seal(rank)).unwrap();
        (row.when, row.then.last().unwrap().1)
    }

    /// Returns the inputs of a rank's activation that have come.
    pub(super) fn activations(&self, rank: u32) -> BTreeSet<u32> {
        let counter = &self.layout.counters[self.seal(rank).0 as usize];
        let given = |input: &u32| self.cells.0[counter.first + *input as usize] == self.round;
        (0..counter.inputs).filter(given).collect()
    }

    /// Returns the ranks whose contributions can be reduced.
    pub(super) fn sealed(&self) -> BTreeSet<u32> {
        (0..self.ranks).filter(|&rank| self.cells.0[self.seal(rank).1] == self.round).collect()
    }
}
