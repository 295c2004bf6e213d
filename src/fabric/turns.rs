//! The order of exchanges: one at a time, in the same order on all ranks, and none after one that
//! failed.

use std::time::Instant;

use parking_lot::Mutex;

use super::Fabric;
use crate::error::{Error, Misuse, Result};
use crate::interrupt;

#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Turn>);

#[derive(Debug, Default)]
struct Turn {
    number: u64,
    broken: bool,
}

impl Turns {
    /// Takes the next turn: passes its number to `exchange`, for `mine` of at most `most` bytes. If
    /// it fails, the ranks are out of step. If it was interrupted, the others are told: they need not wait until their
    /// deadlines, nor go on as if this rank had come.
    pub(crate) fn take<T>(
        &self,
        fabric: &impl Fabric,
        (operation, until): (&'static str, Instant),
        (mine, most): (&[u8], usize),
        exchange: impl FnOnce(u64) -> Result<T>,
    ) -> Result<T> {
        let mut turn = interrupt::lock(&self.0, fabric.rank(), operation, until)?;
        // Why the world has failed says more than that the ranks are out of step since.
        fabric.health(operation)?;
        let usage = |problem| Error::Usage { rank: fabric.rank(), operation, problem };
        if turn.broken {
            return Err(usage(Misuse::OutOfStep(
                "an earlier call that all ranks make together has failed, so they are out of step; start a new world",
            )));
        }
        if mine.len() > most {
            return Err(usage(Misuse::Argument("more than fits into an exchange")));
        }
        turn.number += 1;
        turn.broken = true;
        let exchanged = exchange(turn.number).inspect_err(|error| {
            if matches!(error, Error::Interrupted { .. }) {
                fabric.abort(&error.to_string());
            }
        })?;
        turn.broken = false;
        Ok(exchanged)
    }
}
