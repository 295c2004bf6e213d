//! Partial collectives: the handles and the protocol core.

mod allreduce;
mod buckets;
pub(crate) mod build;
mod calls;
mod checkpoint;
pub(crate) mod choices;
pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod engine;
pub(crate) mod following;
pub(crate) mod lateness;
pub(crate) mod protocol;
pub(crate) mod session;
mod step_timer;
pub(crate) mod tickets;
mod wanted;

mod options;
mod outcome;
mod preset;
mod raw;
pub(crate) mod recording;
pub(crate) mod regions;

pub use self::core::{Cut, Entry, Part, Stats};
pub use allreduce::Allreduce;
#[cfg(earlybird_tools)]
pub use allreduce::Chosen;
pub use buckets::{BucketOutcome, BucketOutcomes, BucketedAllreduce, Buckets, BucketsBuilder};
pub use build::AllreduceBuilder;
pub use checkpoint::Checkpoint;
pub use lateness::{Lateness, RankLateness, SlowSpell};
pub use outcome::{Outcome, Outcomes};
pub use preset::Preset;
