//! The protocol as a deterministic state machine: events in, operations out, time as an argument.
//!
//! [`Machine`] decides; a driver carries out its [`Op`]s on a fabric and reports completions. No
//! clock, no threads, no I/O: the same machine runs over shared memory and in the simulator, where
//! every interleaving can be replayed. Ranks agree on a cut in one of several ways ([`agreement`]), and its data moves
//! in one of several ways ([`movement`]). Each part owns what it knows; `docs/how-a-round-runs.md` lists the parts.
#![forbid(unsafe_code)]

mod agreement;
mod auto_quorum;
mod buffers;
mod context;
mod cut;
mod durations;
mod entry;
mod input;
mod label;
mod ledger;
mod machine;
mod movement;
#[cfg(any(test, earlybird_tools))]
mod names;
mod op;
mod outbox;
mod pace;
mod plan;
#[cfg(all(test, not(loom)))]
pub(crate) mod played_tests;
mod releases;
#[cfg(all(test, not(loom)))]
mod scenario_tests;
mod stats;
mod tag;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use auto_quorum::{AutoQuorum, SavedQuorum};
pub use cut::Cut;
pub(crate) use durations::{Durations, Particulars};
pub use entry::{Entry, Part};
pub(crate) use input::{Cells, Effort, FOREVER, Time};
pub(crate) use label::{Form, Label, label, rows};
pub(crate) use machine::Machine;
pub(crate) use op::{Addend, Counted, Op, Operands, ProgramOp, PutData, RunnerOp, Token};
#[cfg(feature = "cli")]
pub(crate) use plan::MapRegion;
pub(crate) use plan::{Plan, Terms, program, slot_of};
pub use stats::Stats;
