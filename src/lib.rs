//! Partial collectives over one-sided transports.
//!
//! An ordinary allreduce ends when the slowest process arrives. Here the first process to arrive (or the q-th) triggers
//! the collective. Late processes are *carried*: their contribution enters the next round, exactly once. The outcome
//! tells every receiver whose data it got. There is no server.
//!
//! ```
//! use std::time::Duration;
//! use earlybird::{Fire, Scale, World};
//!
//! let deadline = Duration::from_secs(10);
//! // One rank without a launcher; `earlybird run -n 8 -- PROGRAM` gives eight.
//! let world = World::from_env()?;
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
//! The project promises the names on this page. The modules below them are private, and no feature opens them. They are
//! public only in this project's repository, for its own tests and measurements (`build.rs`). Nothing in them is
//! stable. Whatever can break memory there requires a `fabric::RawAccess`, which only `unsafe` code can create.
#![cfg_attr(
    not(earlybird_internals),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "what only the command, the tests and the measurements use is judged in the repository"
    )
)]

/// The modules of the library. Their files lie beside this one.
#[path = ""]
mod internals {
    pub mod bootstrap;
    pub mod collective;
    pub mod config;
    pub mod error;
    pub mod executor;
    pub mod fabric;
    pub mod fault;
    pub mod files;
    pub mod group;
    #[cfg(earlybird_tools)]
    pub mod measure;
    pub mod merge;
    pub mod model;
    pub mod offload;
    pub mod reduce;
    pub mod rule;
    #[cfg(earlybird_tools)]
    pub mod simulation;
    pub mod time;
    pub mod trigger;
    pub mod units;
}

mod board;
#[cfg(feature = "cli")]
mod cli;
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
mod trace;
#[cfg(test)]
#[cfg(earlybird_internals)]
mod untrusted;
mod world;

#[cfg(not(earlybird_internals))]
use internals::*;
#[cfg(earlybird_internals)]
pub use internals::*;

pub use board::Copies;
#[cfg(feature = "cli")]
pub use cli::command;
pub use collective::{
    Allreduce, AllreduceBuilder, BucketOutcome, BucketOutcomes, BucketedAllreduce, Buckets, BucketsBuilder, Checkpoint,
    Cut, Entry, Lateness, Outcome, Outcomes, Part, Preset, RankLateness, SlowSpell, Stats,
};
pub use config::{Config, FabricChoice, OfiSettings, Patience, VerbsSettings};
pub use error::{Error, ErrorKind, HostNames, Misuse, Ranks, Result};
pub use fabric::{Reached, Traffic};
pub use group::Group;
pub use interrupt::interrupt_when;
pub use named::UnknownName;
pub use rank_set::RankSet;
pub use reduce::{Dtype, Element, Item, Reduce, bf16, f16};
pub use rule::{Absent, Executor, Fire, Grace, Mover, RuleError, Scale, When};
pub use time::Deadline;
pub use world::{SymmetricMemory, World};
