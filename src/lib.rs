//! Partial collectives over one-sided transports.
//!
//! An ordinary allreduce ends when the slowest process arrives. Here the first process to arrive
//! (or the q-th) triggers the collective; those that are late are *carried*: their contribution
//! enters the next round, exactly once, and every receiver is told whose data it got. There is no
//! server.
//!
//! ```
//! use std::time::Duration;
//! use earlybird::{Config, Fire, Scale, World};
//!
//! let deadline = Duration::from_secs(10);
//! // One rank without a launcher; `earlybird run -n 8 -- PROGRAM` gives eight.
//! let world = World::from_env(&Config::default())?;
//! let quorum = Fire::quorum(world.size().div_ceil(2));
//! let mut mean = world.allreduce::<f32>(&[1000]).fire(quorum).scale(Scale::Contributions).build()?;
//! for step in 0..3 {
//!     mean.contribution()?.fill(step as f32); // registered memory, in place
//!     mean.arrive()?; // returns at once
//!     for outcome in mean.wait(deadline)? {
//!         println!("round {}: {} fresh", outcome.round(), outcome.fresh().len());
//!         assert_eq!(outcome.data()[0], step as f32);
//!     }
//! }
//! mean.finish(deadline)?;
//! # Ok::<(), earlybird::Error>(())
//! ```
//!
//! The book in `docs/` has the concepts, the semantics and the decisions.
//!
//! # What is promised
//! The names on this page. The modules below them are private. The feature `internals` opens them to the command, the
//! tests and the measurements of this project: nothing of them is stable, and what can break memory there asks for a
//! `fabric::RawAccess`, which only `unsafe` code gets.
#![cfg_attr(
    not(feature = "internals"),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "what only the command and the tests use is judged where they reach it: with the feature"
    )
)]

#[cfg(feature = "internals")]
pub mod bootstrap;
#[cfg(feature = "internals")]
pub mod collective;
#[cfg(feature = "internals")]
pub mod config;
#[cfg(feature = "internals")]
pub mod error;
#[cfg(feature = "internals")]
pub mod executor;
#[cfg(feature = "internals")]
pub mod fabric;
#[cfg(feature = "internals")]
pub mod fault;
#[cfg(feature = "internals")]
pub mod files;
#[cfg(feature = "internals")]
pub mod group;
#[cfg(feature = "internals")]
pub mod measure;
#[cfg(feature = "internals")]
pub mod merge;
#[cfg(feature = "internals")]
pub mod model;
#[cfg(feature = "internals")]
pub mod reduce;
#[cfg(feature = "internals")]
pub mod rule;
#[cfg(feature = "internals")]
pub mod simulation;
#[cfg(feature = "internals")]
pub mod time;
#[cfg(feature = "internals")]
pub mod trigger;
#[cfg(feature = "internals")]
pub mod units;

#[cfg(not(feature = "internals"))]
mod bootstrap;
#[cfg(not(feature = "internals"))]
mod collective;
#[cfg(not(feature = "internals"))]
mod config;
#[cfg(not(feature = "internals"))]
mod error;
#[cfg(not(feature = "internals"))]
mod executor;
#[cfg(not(feature = "internals"))]
mod fabric;
#[cfg(not(feature = "internals"))]
mod fault;
#[cfg(not(feature = "internals"))]
mod files;
#[cfg(not(feature = "internals"))]
mod group;
#[cfg(not(feature = "internals"))]
mod merge;
#[cfg(not(feature = "internals"))]
mod model;
#[cfg(not(feature = "internals"))]
mod reduce;
#[cfg(not(feature = "internals"))]
mod rule;
#[cfg(not(feature = "internals"))]
mod time;
#[cfg(not(feature = "internals"))]
mod trigger;
#[cfg(not(feature = "internals"))]
mod units;

mod board;
mod interrupt;
#[cfg(feature = "log")]
pub mod log;
mod machine;
mod named;
mod random;
mod rank_set;
mod seal;
#[cfg(test)]
#[path = "../ffi/tests/skipped/mod.rs"]
mod skipped;
mod strangers;
mod sync;
#[cfg(test)]
#[path = "../tests/common/tier.rs"]
mod tier;
mod topology;
#[cfg(test)]
#[cfg(feature = "internals")]
mod untrusted;
mod world;

pub use board::Copies;
pub use collective::{
    Allreduce, AllreduceBuilder, BucketOutcome, BucketOutcomes, BucketedAllreduce, Buckets, BucketsBuilder, Checkpoint,
    Cut, Entry, Outcome, Outcomes, Part, Preset, Stats,
};
pub use config::{Config, FabricChoice, OfiSettings, Patience, VerbsSettings};
pub use error::{Error, ErrorKind, HostNames, Ranks, Result};
pub use group::Group;
pub use interrupt::interrupt_when;
pub use named::UnknownName;
pub use rank_set::RankSet;
pub use reduce::{Dtype, Element, Item, Reduce, bf16, f16};
pub use rule::{Absent, Executor, Fire, Grace, Mover, RuleError, Scale, When};
pub use time::Deadline;
pub use world::{SymmetricMemory, World};
