//! Partial collectives: the choices, the handles and the protocol core.

mod allreduce;
pub(crate) mod build;
pub mod choice;
pub(crate) mod core;
pub(crate) mod driver;

mod outcome;
mod patience;
mod provider;
pub mod rule;
mod seat;

pub use self::core::{Cut, Entry, Part, RankSet, Stats};
pub use allreduce::Allreduce;
pub use build::AllreduceBuilder;
pub use choice::{Executor, Mover};
pub use outcome::{Outcome, Outcomes};
pub use rule::{Absent, Fire, Grace, Scale, When};
