//! From a process to a member of a world: who am I, and where are the others.

mod attendance;
pub mod identity;
mod peer;
mod rendezvous;
mod store_address;

pub(crate) mod store;
pub(crate) mod wire;

pub(crate) use rendezvous::{Joined, meet};
pub use store_address::StoreAddress;
