//! Partial collectives: the handles and the protocol core.

mod allreduce;
pub(crate) mod build;
pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod engine;
pub(crate) mod session;
#[cfg_attr(any(not(test), loom), expect(dead_code, unused_imports, reason = "no handle forms groups by tickets yet"))]
pub(crate) mod tickets;

mod outcome;
mod preset;
mod raw;
pub(crate) mod regions;

pub use self::core::{Cut, Entry, Part, Stats};
pub use allreduce::Allreduce;
#[cfg(feature = "internals")]
pub use allreduce::Chosen;
pub use build::AllreduceBuilder;
pub use outcome::{Outcome, Outcomes};
pub use preset::Preset;
