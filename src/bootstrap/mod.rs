//! Turns a process into a rank of a world: finds its rank and the other ranks.

mod attendance;
mod beside;
pub(crate) mod hosts;
pub mod identity;
mod peer;
mod pmi;
mod process_manager;
mod rendezvous;
mod slurm;
mod store_address;

pub(crate) mod store;
pub(crate) mod wire;

pub(crate) use attendance::MeetingTerms;
pub use process_manager::ProcessManager;
pub(crate) use rendezvous::{Joined, meet};
pub use store_address::StoreAddress;
