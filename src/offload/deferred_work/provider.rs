//! A deferred program as a collective sees it: the layout of its memory.
//!
//! A contribution is a header and two rows, one for the fresh contribution and one for the carried
//! one. The header holds the gate's word, so the cut comes with the data, and the weights.
#![forbid(unsafe_code)]

use super::{DeferredProgram, Introduction, provider_for};
use crate::error::{Error, Result};
use crate::executor::runner::{ROWS, Runner};
use crate::fabric::memory::check_memory;
use crate::fabric::{RawAccess, Window, ofi};
use crate::sync;
use crate::trigger::{Deposit, Gate, Request};

/// Bytes of a header: a cache line.
const HEADER: usize = 64;

/// A rank's deferred program for one collective.
#[derive(Debug)]
pub(crate) struct Provider {
    program: DeferredProgram,
    slots: u64,
    row: usize,
    bytes: usize,
}

impl Provider {
    /// Opens a provider for a collective that `wanted` describes, with the length of a
    /// contribution. The first `front` bytes of its memory are the collective's. `world` is the
    /// provider of the world, if it is over libfabric.
    ///
    /// # Errors
    /// No libfabric, no provider that runs programs, more operations than it can queue, or the
    /// provider's error.
    pub(crate) fn open(rank: u32, wanted: &Request, front: usize, world: Option<&str>) -> Result<(Self, Introduction)> {
        let &Request { ranks, slots, .. } = wanted;
        let bytes = wanted.bytes as usize;
        let row = bytes.next_multiple_of(HEADER);
        let block = HEADER as u64 + u64::from(ROWS) * row as u64;
        let need = block.saturating_mul((u64::from(ranks) + 1) * slots).saturating_add(front as u64);
        check_memory(rank, "allreduce.build", need)?;
        let none = |cause: String| Error::transport(rank, None, "open", cause);
        let library = ofi::library().map_err(|cause| none(cause.to_string()))?;
        let name = provider_for(&library, world).map_err(none)?;
        let request = Request { bytes: block, ..*wanted };
        let (program, introduction) = DeferredProgram::open(&library, &name, rank, &request, front, RawAccess::CRATE)?;
        Ok((Provider { program, slots, row, bytes }, introduction))
    }

    /// Adds the other ranks.
    ///
    /// # Errors
    /// The provider's error.
    pub(crate) fn connect(&mut self, introductions: &[Introduction]) -> Result<()> {
        self.program.connect(introductions)
    }

    fn slot(&self, round: u64) -> usize {
        ((round - 1) % self.slots) as usize
    }

    fn row_at(&self, row: u32) -> usize {
        HEADER + row as usize * self.row
    }

    fn header_of(&self, round: u64, rank: u32) -> (u64, u64) {
        let mut bytes = [0; 16];
        self.program.contribution_of(self.slot(round), rank, &mut bytes);
        let (gate, weights) = bytes.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        (word(gate), word(weights))
    }
}

impl Runner for Provider {
    fn last_round(&self) -> u64 {
        self.program.most_uses().saturating_mul(self.slots)
    }

    fn window(&self) -> &Window {
        self.program.window()
    }

    fn arm(&mut self, round: u64) -> Result<()> {
        let slot = self.slot(round);
        self.program.write(slot, &header(Gate::new(round, Deposit::default()).0, 0));
        self.program.arm(slot)
    }

    fn ready(&mut self, round: u64) -> Result<()> {
        self.program.ready(self.slot(round))
    }

    fn signal_arrival(&mut self, round: u64) -> Result<()> {
        self.program.arrive(self.slot(round))
    }

    fn revoke_token(&mut self, round: u64) -> Result<bool> {
        self.program.take_back(self.slot(round))
    }

    fn deposit(&mut self, round: u64, gate: u64, from: usize, row: Option<u32>, weight: u16) -> Result<()> {
        let slot = self.slot(round);
        let own = self.program.own();
        let mut weights = self.header_of(round, own).1;
        if let Some(row) = row {
            weights |= weight_in(row, weight);
            let window = self.program.window();
            let to = self.program.offset_of(slot, own) + self.row_at(row);
            Window::copy((window, from), (window, to), self.bytes);
        }
        self.program.write(slot, &header(gate, weights));
        self.program.let_in(slot)
    }

    fn set_off(&mut self) {
        self.program.set_off();
    }

    fn has_run(&mut self) -> Result<bool> {
        self.program.has_run()
    }

    fn is_over(&mut self, round: u64) -> Result<bool> {
        self.program.is_over(self.slot(round))
    }

    fn has_outcome(&mut self, round: u64) -> Result<bool> {
        self.program.has_outcome(self.slot(round))
    }

    fn deposit_of(&self, round: u64, rank: u32) -> Result<(Deposit, [u16; ROWS as usize])> {
        let (gate, weights) = self.header_of(round, rank);
        let deposit = Gate(gate).at(round).deposit();
        if deposit.fresh.into_iter().chain(deposit.carried.map(|(row, _)| row)).any(|row| row >= ROWS) {
            let cause = format!("rank {rank} sent a contribution that makes no sense");
            return Err(Error::transport(self.program.own(), rank, "read a contribution", cause));
        }
        Ok((deposit, weights_of(weights)))
    }

    fn offset_of(&self, round: u64, rank: u32, row: u32) -> usize {
        self.program.offset_of(self.slot(round), rank) + self.row_at(row)
    }

    fn has_heard(&self, round: u64, rank: u32) -> bool {
        // The provider may write it now, so it is read as the cell that it is.
        let at = self.program.offset_of(self.slot(round), rank);
        Gate(sync::look(self.program.window().cell(at / size_of::<u64>()))).round() == round
    }
}

/// Returns the weight of a row, shifted to its bits in a header's weights.
fn weight_in(row: u32, weight: u16) -> u64 {
    u64::from(weight) << (u16::BITS * row)
}

/// Returns the weights of the rows, from those of a header.
fn weights_of(weights: u64) -> [u16; ROWS as usize] {
    std::array::from_fn(|row| (weights >> (u16::BITS as usize * row)) as u16)
}

fn header(gate: u64, weights: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&gate.to_ne_bytes());
    bytes[8..].copy_from_slice(&weights.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_weight_of_its_own() {
        let weights: u64 = (0..ROWS).map(|row| weight_in(row, 7 + row as u16)).sum();
        assert!(weights_of(weights).into_iter().eq((7..).take(ROWS as usize)), "{weights:#x}");
    }
}
