//! Partial collectives: the choices, the handles and the protocol core.

mod allreduce;
pub(crate) mod build;
pub(crate) mod core;
pub(crate) mod driver;
mod outcome;
pub mod rule;

pub use self::core::{Cut, Entry, Part, RankSet, Stats};
pub use allreduce::Allreduce;
pub use build::AllreduceBuilder;
pub use outcome::{Outcome, Outcomes};
pub use rule::{Fire, Grace, Scale};
