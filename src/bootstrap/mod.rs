//! From a process to a member of a world: who am I, and where are the others.

pub mod identity;
mod peer;
mod place;
mod rendezvous;
mod roll;
pub(crate) mod store;
pub(crate) mod wire;

pub use place::Place;
pub(crate) use rendezvous::meet;

use crate::error::{Error, Result};

/// Bytes that nobody has drawn before.
pub(crate) fn draw<const N: usize>(rank: u32) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|cause| Error::os(rank, "draw a random number", cause))?;
    Ok(bytes)
}
