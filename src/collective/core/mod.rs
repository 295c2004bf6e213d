//! The protocol as a deterministic state machine: events in, operations out, time as an argument.
//!
//! [`Machine`] decides; a driver carries out its [`Op`]s on a fabric and reports completions. No
//! clock, no threads, no I/O: the same machine runs over shared memory and in the simulator, where
//! every interleaving can be replayed. A program of triggered operations is another way to produce
//! the same cuts and outcomes, and would stand beside [`word`] and the tags as a third agreement.
#![forbid(unsafe_code)]

mod arrival;
mod cut;
mod fault;
mod firing;
mod machine;
mod moving;
mod op;
mod pace;
mod plan;
mod rank_set;
mod word;

pub use cut::{Cut, Entry, Part};
pub use fault::Fault;
pub use machine::Stats;
pub(crate) use machine::{Cells, FOREVER, Machine};
pub(crate) use op::{Op, Token};
pub(crate) use plan::{Path, Plan, Topology};
pub use rank_set::RankSet;

/// Nanoseconds since an origin that only the driver knows.
pub(crate) type Time = u64;
