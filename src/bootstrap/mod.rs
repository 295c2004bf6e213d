//! From a process to a member of a world: who am I, and where are the others.

pub mod identity;
mod rendezvous;
pub(crate) mod wire;

pub(crate) use rendezvous::meet;
