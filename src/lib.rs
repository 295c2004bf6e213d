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

pub mod bootstrap;
pub mod collective;
pub mod config;
pub mod error;
pub mod fabric;
pub mod fault;
pub mod model;
mod named;
pub mod reduce;
pub mod simulation;
#[cfg(test)]
#[path = "../ffi/tests/skipped/mod.rs"]
mod skipped;
mod sync;
pub mod trigger;
#[cfg(test)]
mod untrusted;
mod world;

pub use collective::{
    Absent, Allreduce, Cut, Entry, Executor, Fire, Grace, Mover, Outcome, Outcomes, Part, RankSet, Scale, When,
};
pub use config::Config;
pub use error::{Error, Result};
pub use reduce::{Dtype, Element, Reduce, bf16, f16};
pub use world::{Deadline, World};
