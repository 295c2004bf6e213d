//! Names of cells and operations, for people who read a trace.

use super::op::Op;
use super::plan::{BUFFERS, Plan};
use crate::fabric::{Atomic, Change};

impl Plan {
    /// What a control cell is.
    pub(crate) fn cell_name(&self, cell: usize) -> String {
        for rank in 0..self.ranks {
            if let Some(number) = (0..BUFFERS).find(|&number| self.tag(rank, number) == cell) {
                return format!("tag {number} of rank {rank}");
            }
            if self.released(rank) == cell {
                return format!("released by rank {rank}");
            }
            if self.elects_reducers() && (1..=self.slots()).any(|slot| self.told(rank, slot) == cell) {
                return format!("told by reducer {rank}");
            }
        }
        for slot in 1..=self.slots() {
            let base = self.program_cell(slot, 0);
            let within = (slot == self.slots() || cell < self.program_cell(slot + 1, 0)) && cell >= base;
            if !within {
                continue;
            }
            let name = match &self.program {
                Some(layout) => {
                    match (0..self.ranks).find(|&rank| self.program_cell(slot, layout.gate(rank)) == cell) {
                        Some(rank) => format!("gate of rank {rank}"),
                        None => format!("cell {} of the program", cell - base),
                    }
                }
                None if cell == self.done(slot) => "done".to_owned(),
                None if cell == self.ticket(slot) => "ticket".to_owned(),
                None if cell >= self.record(slot) => "record".to_owned(),
                None if (0..self.words()).any(|index| self.word(slot, index) == cell) => "word".to_owned(),
                None => "claim".to_owned(),
            };
            return format!("{name} in slot {slot}");
        }
        format!("cell {cell}")
    }

    /// What an operation does.
    pub(crate) fn op_name(&self, op: &Op) -> String {
        match *op {
            Op::Store { cell, value } => format!("stores {value:#x} in {}", self.cell_name(cell)),
            Op::Raise { cell, value } => format!("raises {} to {value}", self.cell_name(cell)),
            Op::Fence => "fences".to_owned(),
            Op::Signal { host, data, cell, change, .. } => {
                let data = data.map_or(String::new(), |(_, _, len)| format!("puts {len} bytes and then "));
                let change = match change {
                    Change::Set(value) => format!("sets {} to {value:#x}", self.cell_name(cell)),
                    Change::Add(value) => format!("adds {value:#x} to {}", self.cell_name(cell)),
                };
                format!("{data}{change} on host {host}")
            }
            Op::Clear { host, round, .. } => format!("clears the words of round {round} on host {host}"),
            Op::Atomic { host, cell, atomic, .. } => {
                let name = self.cell_name(cell);
                match atomic {
                    Atomic::FetchAdd(0) => format!("looks at {name} on host {host}"),
                    Atomic::FetchAdd(value) => format!("fetches and adds {value:#x} to {name} on host {host}"),
                    Atomic::CompareSwap { expect, new } => {
                        format!("swaps {expect:#x} for {new:#x} in {name} on host {host}")
                    }
                }
            }
            Op::Read { host, len, row, .. } => format!("reads {len} bytes from host {host} into row {row}"),
            Op::Combine { round, from, len } => format!("reduces {len} bytes of round {round} from {from} on"),
            Op::CombineRead { from, len } => format!("reduces {len} bytes that it read from {from} on"),
            Op::Run(task) => format!("runs {task:?}"),
            Op::Publish { host, round, .. } => format!("writes the record of round {round} on host {host}"),
            Op::Arm { round } => format!("arms round {round}"),
            Op::Ready { round } => format!("says that round {round} may fire"),
            Op::RevokeGateToken { round, .. } => format!("takes its token of round {round} back"),
            Op::Deposit { round, row, .. } => format!("deposits row {row:?} into round {round}"),
            Op::SignalArrival { round } => format!("arrives for round {round}"),
            Op::Wake { most: u32::MAX, interest } => format!("wakes all who wait for {interest:?}"),
            Op::Wake { most, interest } => format!("wakes {most} who wait for {interest:?}"),
        }
    }
}
