//! Partial collectives: the handles and the protocol core.

mod allreduce;
pub(crate) mod build;
pub(crate) mod core;
pub(crate) mod driver;

mod outcome;
mod patience;
mod seat;

pub use self::core::{Cut, Entry, Part, Stats};
pub use allreduce::Allreduce;
pub use build::AllreduceBuilder;
pub use outcome::{Outcome, Outcomes};
