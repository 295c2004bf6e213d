//! libfabric: one interface to every HPC network.
//!
//! Bulk data moves by one-sided writes and reads of registered memory. Everything small goes by
//! messages that the receiving rank deals with in software: whoever is in the library there, or its
//! progress thread. So nothing depends on what a provider can do beyond messages and remote writes
//! and reads: not on its atomics, on the order of its operations, on completion data or on progress
//! of its own.
//!
//! # Putting
//! A word of data or two travels in the message that also names the signal. More is written to its place by an
//! operation that brings the message along, which is a *note* then. Where a provider cannot do that, small data is
//! received with its message and put in its place; large data, and what does not go into one operation, is written in
//! parts, which either say by marks that they have landed, or are complete before the message is sent.
//!
//! # Atomics
//! All changes of a cell, the home's own included, are made by the processor of the home under one
//! lock, so there is one domain of atomicity, and plain loads through a window see it.
//!
//! # Completion
//! Messages are numbered and dealt with exactly once. Each message says how many of the receiver's
//! were dealt with; where there is none to say it by, a word of its own does, when a rank is idle or
//! goes to sleep. No more than a window of messages to a peer is under way.
//!
//! # Closing
//! The memory of a collective stays until all ranks have said that they have closed it. A rank says so when nothing that
//! it began there is in flight, and leaves after that.
//!
//! # Strangers
//! Whoever knows a rank's address can connect to it. A message that does not carry the job's secret is counted and changes
//! nothing; what a write tells of itself carries a part of it, since some providers deliver that without a key. Keys of
//! memory are random, and memory that no peer needs has none. SECURITY.md says what that protects against.
//!
//! # Peers that are stalled
//! Each peer has its share of the message buffers and contexts, and what waits is posted in turns, so
//! a peer that takes nothing holds up nothing else. Acks wait for no data: they go first, by
//! injection, or else in a message buffer that is kept for them.
//!
//! # Death
//! The kernel tells of processes on the same machine. Of those elsewhere some sign of life is asked
//! for, by a few ranks each: a message, a write that landed here, or the answer to a read or a write.
//! A marked write that has gone out is no such sign. A rank believes in a peer's end only after it has dealt with what had
//! come by then: a peer that had left in good order is gone, any other is dead, and the rank that
//! finds it dead tells everybody. So does every rank of a failed world when it goes: no message of
//! its own says that it leaves, which might come first.

mod channel;
mod endpoint;
mod engine;
mod environment;
mod fabric;
mod header_slots;
mod keys;
mod limits;
mod message;
mod peer_info;
mod probe;
mod registration;
mod secret;
mod sequence;
mod shared;
mod shares;
#[cfg(test)]
mod stepping_tests;
#[cfg(test)]
mod stranger_tests;
mod suspects;
mod wire;
mod work_queue;

pub(crate) use earlybird_ffi::ofi::{Counter, Remote, Work};
pub use earlybird_ffi::ofi::{Library, LoadError};
pub use environment::{InForce, PROVIDER_VARIABLES, ProviderVariable, SetBy, provider_variables, variables_not_set};
pub use fabric::OfiFabric;
pub(crate) use limits::{largest_count, most_queued};
#[cfg(test)]
pub(crate) use message::Message;
#[cfg(test)]
pub(crate) use peer_info::PeerInfo;
pub use probe::{Device, Progress, devices};
pub(crate) use registration::Registered;
pub(crate) use work_queue::WorkQueue;

/// The libfabric that `EARLYBIRD_LIBFABRIC` names, or else the system's. The first time, and while this process has one
/// thread, it gets the [`PROVIDER_VARIABLES`] that the user has not set.
///
/// # Errors
/// That it is not there or too old, and what to do.
pub fn library() -> Result<Library, LoadError> {
    environment::prepare();
    Library::load(std::env::var_os("EARLYBIRD_LIBFABRIC").as_deref())
}
