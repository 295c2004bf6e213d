//! From a process to a member of a world: who am I, and where are the others.

pub mod identity;
mod peer;
mod place;
mod rendezvous;
mod roll;
pub(crate) mod store;
pub(crate) mod wire;

pub use place::Place;
pub(crate) use rendezvous::{Met, meet};
