//! What the fabrics over a network share: messages, their numbers and credit, the memory and numbers
//! of what is in flight, and what a provider has to do for that ([`Wire`]).

pub(super) mod header_slots;
pub(super) mod limits;
pub(super) mod link;
pub(super) mod message;
pub(super) mod peer_info;
mod registration;
pub(super) mod secret;
pub(super) mod sequence;
pub(super) mod shares;
pub(super) mod suspects;
mod wire;

pub(super) use limits::Limits;
#[cfg(test)]
pub(crate) use message::Message;
#[cfg(test)]
pub(crate) use peer_info::PeerInfo;
pub(super) use registration::{Failed, Purpose, Registered, allocate};
pub(super) use wire::{Entry, Local, Posted, Remote, Watched, Wire};
