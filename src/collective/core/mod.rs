//! The protocol as a deterministic state machine: events in, operations out, time as an argument.
//!
//! [`Machine`] decides; a driver carries out its [`Op`]s on a fabric and reports completions. No
//! clock, no threads, no I/O: the same machine runs over shared memory and in the simulator, where
//! every interleaving can be replayed. Ranks agree on a cut in one of three ways: by tags where all
//! take part, by a [`word`], or by running a program ([`tree`]).
#![forbid(unsafe_code)]

mod arrival;
mod buffers;
mod cut;
mod entry;
mod filling;
mod firing;
mod homes;
mod in_flight;
mod inspect;
mod late;
mod learning;
mod machine;
mod moving;
mod names;
mod offloaded;
#[cfg(all(test, not(loom)))]
mod offloaded_tests;
mod op;
mod pace;
mod plan;
#[cfg(all(test, not(loom)))]
mod plan_tests;
mod pulling;
mod releases;
mod stats;
mod tag;
mod topology;
mod tree;
mod word;

pub use cut::Cut;
pub use entry::{Entry, Part};
pub(crate) use machine::{Cells, FOREVER, Machine};
pub(crate) use op::{Counted, Op, Token};
pub(crate) use plan::{Path, Plan, program};
pub use stats::Stats;
pub(crate) use topology::Topology;
pub(crate) use tree::Effort;

/// Nanoseconds since an origin that only the driver knows.
pub(crate) type Time = u64;
