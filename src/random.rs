//! Random bytes from the system.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};

/// Fresh random bytes.
pub(crate) fn draw<const N: usize>(rank: u32) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|cause| Error::os(rank, "draw a random number", cause))?;
    Ok(bytes)
}
