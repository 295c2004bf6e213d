//! Names of cells and operations, for people who read a trace.

use super::op::{Op, ProgramOp, PutData, RunnerOp};
use super::plan::Plan;
use crate::fabric::{Atomic, Change};

impl Plan {
    /// Returns the name of a control cell.
    fn cell_name(&self, cell: usize) -> String {
        let named = self.named_cells().into_iter().find(|&(_, at)| at == cell);
        named.map_or_else(|| format!("cell {cell}"), |(name, _)| name)
    }

    /// Describes an operation.
    pub(crate) fn op_name(&self, op: &Op) -> String {
        match *op {
            Op::Store { cell, value } => format!("stores {value:#x} in {}", self.cell_name(cell)),
            Op::Raise { cell, value } => format!("raises {} to {value}", self.cell_name(cell)),
            Op::Fence => "fences".to_owned(),
            Op::Put { host, data, signal, .. } => {
                let data = data.map(|data| match data {
                    PutData::Bytes { to, len, .. } => format!("puts {len} bytes at {to}"),
                    PutData::Cells { first, count } => format!("puts {count} cells at {}", self.cell_name(first)),
                });
                let signal = signal.map(|(cell, change)| match change {
                    Change::Set(value) => format!("sets {} to {value:#x}", self.cell_name(cell)),
                    Change::Add(value) => format!("adds {value:#x} to {}", self.cell_name(cell)),
                    Change::Advance { to, .. } => format!("advances {} to {to:#x}", self.cell_name(cell)),
                });
                let both: Vec<String> = data.into_iter().chain(signal).collect();
                format!("{} on host {host}", both.join(" and then "))
            }
            Op::Clear { host, first, count, .. } => {
                format!("clears {count} cells from {} on, on host {host}", self.cell_name(first))
            }
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
            Op::Read { host, from, len, .. } => format!("reads {len} bytes at {from} from host {host}"),
            Op::Combine { round, inputs, to, len } => {
                let round = round.map_or_else(|| "what it read".to_owned(), |round| format!("round {round}"));
                format!("reduces {len} bytes of {inputs} contributions to {to}, of {round}")
            }
            Op::Average { models, to, len, .. } => format!("averages {len} bytes of {models} models to {to}"),
            Op::Copy { from, to, len } => format!("copies {len} bytes from {from} to {to}"),
            Op::Record { words, cell, round, .. } => {
                format!("writes a record of {words} cells, and {round} in {}", self.cell_name(cell))
            }
            Op::Wake { most: u32::MAX, interest } => format!("wakes all who wait for {interest:?}"),
            Op::Wake { most, interest } => format!("wakes {most} who wait for {interest:?}"),
            Op::Program(ref op) => program_op_name(op),
        }
    }
}

fn program_op_name(op: &ProgramOp) -> String {
    match op {
        ProgramOp::Run(task) => format!("runs {task:?}"),
        ProgramOp::Seal { round, entries, .. } => format!("seals {entries} entries for round {round}"),
        ProgramOp::Sum { round, from, to, .. } => format!("sums {from:?} into {to} for round {round}"),
        ProgramOp::Runner(op) => match op {
            RunnerOp::Arm { round } => format!("arms round {round}"),
            RunnerOp::Ready { round } => format!("says that round {round} may fire"),
            RunnerOp::RevokeGateToken { round, .. } => format!("takes its token of round {round} back"),
            RunnerOp::Deposit { round, row, .. } => format!("deposits row {row:?} into round {round}"),
            RunnerOp::SignalArrival { round } => format!("arrives for round {round}"),
        },
    }
}
