//! What the fabrics over a network share.
//!
//! Bulk data moves by one-sided writes and reads of registered memory. Small data, signals and atomics go the same way
//! where devices change cells. Elsewhere they go by messages that the receiving rank processes in software: in a call
//! of its own into the library, or on its helper thread.
//!
//! # Layers
//! A provider implements [`Wire`]: it posts operations, reports what has completed, registers memory, and names the
//! descriptors to sleep on. [`Link`] adds message buffers, header slots and a number for each operation in flight. The
//! [engine] sends and processes messages over it. All threads of a rank share the engine behind one lock ([`shared`]).
//! [`NetFabric`] is the world. All of these are generic over the wire, so each provider has code of its own and no
//! operation is a virtual call.
//!
//! # Putting
//! Where devices change cells, a put is a write of the data and then an operation on the cell of the signal, which
//! lands after it. Immediate data follows and ends a wait of the target. Without a signal it is the write alone.
//!
//! Elsewhere, one or two words of data travel in the message that also names the signal. An operation that writes more
//! data to its address also writes the message into a header slot. Where a provider cannot do that, small data is
//! received with its message and copied to its address. Large data, and data that does not fit one operation, is
//! written in parts. Either immediate data announces the parts that have landed, or the parts complete before the
//! message is sent.
//!
//! # Atomics
//! One agent makes all changes of a cell, the home's own included, so there is one domain of
//! atomicity ([`Atomicity`]):
//!
//! - the home's processor, under one lock, asked by messages; or
//! - the home's device, which answers peers without a processor. The home asks it by a connection to
//!   itself, unless the device is atomic with the processor.
//!
//! Plain loads through a window see the changes of both.
//!
//! # Completion
//! Messages are numbered and processed exactly once. Each message acknowledges the receiver's messages that were
//! processed. A rank that has no message to send sends a separate ack when it is idle or before it sleeps. At most a
//! window of messages to a peer is in flight.
//!
//! # Closing
//! The memory of a collective exists until all ranks have announced that they have closed it. A rank announces it when
//! no operation that it began there is in flight, and leaves after that.
//!
//! # Strangers
//! Any process that knows a rank's address can connect to it. A message that does not carry the job's secret is counted
//! and changes nothing. Immediate data carries a part of the secret, since some providers deliver it without a key.
//! Keys of memory are random, and memory that no peer needs has none. SECURITY.md says what that protects against.
//!
//! # Peers that are stalled
//! Each peer has its share of the message buffers and contexts, and waiting operations are posted in turns, so a peer
//! that takes nothing delays no other. Acks wait for no data: they go first, by injection, or else in a message buffer
//! that is reserved for them.
//!
//! # Death
//! The kernel reports the end of processes on the same machine. A few ranks ask each remote rank for a sign of life: a
//! message, a write that landed here, or the answer to a read or a write. A write with immediate data that has gone out
//! is not such a sign. A rank treats a peer as ended only after it has processed what the peer had sent by then. A peer
//! that had left before is not missed. Any other is dead, and the rank that finds it dead tells all others. Every rank
//! of a failed world does the same when it ends. It sends no message that it leaves, because that message might
//! overtake the failure.
//!
//! A device also reports trouble by itself, such as a failed queue, which may end no operation. Ranks check for it when
//! they check for dead ranks.

mod candidate;
mod channel;
mod endpoint;
mod engine;
mod fabric;
mod header_slots;
mod limits;
mod link;
mod message;
mod peer_info;
mod registration;
mod secret;
mod sequence;
mod shared;
mod shares;
#[cfg(test)]
pub(super) mod stepping_tests;
mod suspects;
mod wire;

pub(super) use candidate::{NetCandidate, Opened, Taken};
#[cfg(test)]
pub(super) use engine::MOST_GUESSES;
pub(super) use fabric::{NetFabric, OverWire, in_this_process};
#[cfg(test)]
pub(super) use header_slots::{IN_SLOT, ImmediateData};
pub(super) use limits::Limits;
#[cfg(test)]
pub(super) use link::Event;
pub(super) use link::Link;
#[cfg(test)]
pub(crate) use message::Message;
#[cfg(test)]
pub(super) use message::{Content, Location};
#[cfg(test)]
pub(crate) use peer_info::PeerInfo;
pub(super) use registration::{Failed, Purpose, Registered, allocate};
pub(crate) use secret::JobSecret;
pub(super) use shares::peers;
#[cfg(all(test, not(loom)))]
pub(super) use shares::share;
pub(super) use wire::{
    Atomicity, CellChange, Ends, Local, Posted, QueueEntry, Remote, Telling, Trouble, Watched, Wire,
};
