//! Runners of programs of triggered operations, which need no processor of the ranks: a provider of libfabric
//! ([`deferred_work`]), or a network card ([`mlx5`], on a model of its queues).
//!
//! A collective reaches a runner only by the trait `Runner` of `executor`. [`Cards`] is a model of any such machine:
//! operations run as soon as their inputs have come, and messages overtake each other.

mod cards;
#[cfg(all(test, not(loom)))]
mod cards_tests;
pub mod deferred_work;
#[cfg(any(test, earlybird_tools))]
pub mod mlx5;

pub use cards::{Cards, Sum};
pub(crate) use deferred_work::open;
