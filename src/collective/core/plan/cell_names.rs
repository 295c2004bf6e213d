//! The names of cells, for people who read a trace or a map.

use super::{BUFFERS, Plan, RELAYED_ROUNDS};
use crate::collective::core::cut::Cut;
use crate::rule::{AgreementBy, MovementBy};

/// What the cut in a record is called.
pub(super) const CUT: &str = "cut of the record";

impl Plan {
    /// Every cell that has a meaning, with its name.
    pub(crate) fn named_cells(&self) -> Vec<(String, usize)> {
        let mut cells = Vec::new();
        for rank in 0..self.ranks {
            cells.extend((0..BUFFERS).map(|number| (format!("tag {number} of rank {rank}"), self.tag(rank, number))));
            cells.push((format!("released by rank {rank}"), self.released(rank)));
            if self.movement == MovementBy::Segments {
                cells.extend((0..BUFFERS).map(|it| (format!("unfilled {it} of rank {rank}"), self.unfilled(rank, it))));
            }
        }
        if self.agreement == AgreementBy::Relays {
            cells.push(("closed on this host".to_owned(), self.closed()));
            cells.push(("landed on this host".to_owned(), self.landed()));
        }
        for slot in 1..=self.slots() {
            let mut add = |name: String, cell| cells.push((format!("{name} in slot {slot}"), cell));
            if self.elects_reducers() {
                (0..self.ranks).for_each(|rank| add(format!("reported by reducer {rank}"), self.reported(rank, slot)));
            }
            if let Some(program) = &self.program {
                for cell in 0..program.cells() {
                    let gate = (0..self.ranks).find(|&rank| program.gate(rank) == cell);
                    let other = || format!("cell {cell} of the program");
                    add(gate.map_or_else(other, |rank| format!("gate of rank {rank}")), self.program_cell(slot, cell));
                }
                continue;
            }
            if self.agreement == AgreementBy::Relays {
                for index in 0..self.inputs().count() {
                    let cell = self.input_cell(slot, index);
                    // Those behind data take turns as the data does.
                    if slot <= RELAYED_ROUNDS || cell == self.program_cell(slot, index) {
                        add(format!("input {index}"), cell);
                    }
                }
                let hosts = 0..self.topology.hosts();
                hosts.for_each(|host| add(format!("report of host {host}"), self.report(slot, host)));
                continue;
            }
            (0..self.words()).for_each(|index| add(format!("word {index}"), self.word(slot, index)));
            add("ticket".to_owned(), self.ticket(slot));
            (0..self.shares()).for_each(|share| add(format!("claim {share}"), self.claim(slot, share)));
            add("landed segments".to_owned(), self.done(slot));
        }
        for (slot, record) in self.records() {
            cells.push((format!("round of the record in slot {slot}"), record));
            let parts = 0..Cut::cells(self.ranks) - 1;
            cells.extend(parts.map(|part| (format!("{CUT} [{part}] in slot {slot}"), self.recorded(record) - part)));
        }
        cells
    }

    /// The slots with records, and the cell of each record's round. Those beside an outcome take turns as outcomes do.
    pub(super) fn records(&self) -> impl Iterator<Item = (u64, usize)> {
        let have_some = self.program.is_none() && self.agreement != AgreementBy::Relays;
        let slots = if self.announces_outcomes() { self.depth } else { self.slots() };
        (1..=slots).filter(move |_| have_some).map(|slot| (slot, self.record(slot)))
    }
}
