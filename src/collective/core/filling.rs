//! Contributions that are handed in first and filled then, while others already move what is there.
//!
//! The data of a caller that keeps it in memory of its own has to be copied. Copied whole and handed
//! in afterwards, large data has left the caches by the time it is reduced. So the arrival comes
//! first, and the data follows in *pieces* of some segments each: beside the tag of a buffer stands how
//! many are missing, and a segment is claimed when everybody has filled its piece. Nobody is waited
//! for that is not at work: filling takes place inside one call, and depends on nobody.

use super::Time;
use super::machine::{Cells, Machine};
use super::op::{Interest, Op};
use super::plan::{Path, Plan};
use crate::fault::Fault;

impl Plan {
    /// In how many pieces a contribution may be filled after its arrival; 1 if it has to be filled
    /// before. They take turns between the shares, as those who move them do.
    pub(crate) fn pieces(&self) -> u64 {
        let fills = self.path == Path::Segmented && self.topology.hosts() == 1;
        if fills { self.segments().div_ceil(self.shares()).div_ceil(self.run) * self.shares() } else { 1 }
    }

    /// The piece in which the segment lies that a ticket of a share stands for.
    pub(super) fn piece_of(&self, share: u64, ticket: u64) -> u64 {
        ticket / self.run * self.shares() + share
    }

    /// Bytes of a contribution that a piece covers: offset and length. Shares differ by a segment,
    /// so the last ones may be empty.
    pub(crate) fn piece_span(&self, piece: u64) -> (usize, usize) {
        let (from, to) = self.share(piece % self.shares());
        let first = to.min(from + piece / self.shares() * self.run);
        let offset = |segment: u64| self.bytes.min(segment as usize * self.segment);
        (offset(first), offset(to.min(first + self.run)) - offset(first))
    }
}

impl Machine {
    /// Hands in the contribution in [`Machine::buffer`], of which nothing is there yet. The caller
    /// says [`Machine::filled`] until nothing is missing, whatever happens.
    pub(crate) fn arrive_unfilled(&mut self, now: Time, weight: u16) {
        let cell = self.plan.unfilled(self.plan.me, self.buffer());
        // Nobody looks at this before it learns of the arrival.
        self.push(Op::Store { cell, value: self.plan.pieces() });
        self.arrive(now, weight);
    }

    /// Of the contribution in a buffer, all but the last `missing` pieces are there.
    pub(crate) fn filled(&mut self, buffer: u32, missing: u64) {
        let cell = self.plan.unfilled(self.plan.me, buffer);
        self.push(Op::Store { cell, value: missing });
        if !self.plan.fault(Fault::ForgetWakeForPieces) {
            self.push(Op::Fence);
            self.wake(u32::MAX, Interest::Piece);
        }
    }

    /// The ranks whose contributions to a round lack a piece.
    pub(super) fn lacking(&self, round: u64, piece: u64, cells: &impl Cells) -> impl Iterator<Item = u32> {
        let there = self.plan.pieces() - piece;
        let waits = !self.plan.fault(Fault::ReadUnfilled);
        let missing = move |rank, buffer| cells.load(self.plan.unfilled(rank, buffer));
        let lacks = self.cut(round).contributions().filter(move |entry| missing(entry.rank, entry.buffer) >= there);
        lacks.filter(move |_| waits).map(|entry| entry.rank)
    }

    /// Whether every contribution to a round is there.
    pub(super) fn is_filled(&self, round: u64, cells: &impl Cells) -> bool {
        let pieces = self.plan.pieces();
        pieces == 1 || self.lacking(round, pieces - 1, cells).next().is_none()
    }
}
