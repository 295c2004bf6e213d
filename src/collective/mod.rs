//! Partial collectives.
pub(crate) mod core;
pub(crate) mod driver;
pub mod rule;
