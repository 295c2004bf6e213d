//! RDMA verbs: InfiniBand and RoCE, by the system's libibverbs.
//!
//! `fabric::net` has what all networks share. Here are a wire over queue pairs, the choice of a
//! device, port and GID, and the handshake that connects two ranks.
//!
//! # Connections
//! Two ranks have one reliable connection (RC), which either makes when it first has something to
//! send. Each rank has an unreliable datagram queue pair (UD), whose address all ranks learn when
//! they join. Over it two ranks tell each other the numbers of their queue pairs (`handshake.rs`).
//!
//! # Queues
//! A rank has one completion queue, and one shared receive queue for all its connections: its
//! memory for messages does not grow with the number of ranks. Both messages and writes with
//! immediate data take an entry of the receive queue. When it is empty, the device asks the sender
//! to try again (RNR), for as long as it takes. The completion queue has an entry for each request
//! that can be in flight, so it never overruns.
//!
//! # Rails
//! A rank may have a second device, over which every other part of large transfers goes (`wire.rs`); all else goes by the
//! first. Memory of collectives is registered with both. Nothing goes to a peer before both are connected.
//!
//! # Events
//! A device also reports by itself that a queue, a connection or a port has failed (`events.rs`).

mod address;
mod code;
mod connection;
mod connections;
mod device;
mod events;
mod handshake;
mod hellos;
mod numa;
mod opening;
#[cfg(test)]
mod queue_tests;
mod rail;
mod registration;
mod settings;
#[cfg(test)]
mod stranger_tests;
mod wire;
mod work;

pub use super::locked_memory::{ENOUGH_LOCKED_MEMORY, LockedMemory};
pub use device::{DevicePort, LinkLayer, Survey, devices, survey};
pub use earlybird_ffi::verbs::{Library, LoadError, Waits};
#[cfg(all(test, not(loom)))]
pub(super) use hellos::MEMORY as HELLOS;
pub use opening::VerbsFabric;
#[cfg(all(test, not(loom)))]
pub(super) use opening::limits;
#[cfg(all(test, not(loom)))]
pub(super) use settings::{completions, sends};

/// The system's libibverbs, prepared for processes that fork: a child must not use a world, and the
/// parent's registered memory stays its own.
///
/// # Errors
/// libibverbs is missing or too old; the error says what to do.
pub fn library() -> Result<Library, LoadError> {
    let library = Library::load(None)?;
    if let Err(cause) = library.fork_init() {
        // Memory was registered before, by another library: what a fork does then is its decision.
        tracing::debug!(%cause, "a forked child may damage registered memory");
    }
    Ok(library)
}
