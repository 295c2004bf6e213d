//! Memory is refused before any is taken.
#![forbid(unsafe_code)]

use crate::error::{Error, Result};
use crate::machine::available_memory;

/// Checks that `need` bytes are available before any are taken. Returns how many are.
///
/// # Errors
/// [`Error::Memory`] with the need.
pub(crate) fn check_memory(rank: u32, operation: &'static str, need: u64) -> Result<u64> {
    let (available, limit) = available_memory();
    match need <= available {
        true => Ok(available),
        false => Err(Error::Memory { rank, operation, need, available, limit }),
    }
}
