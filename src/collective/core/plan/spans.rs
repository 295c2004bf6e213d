//! The bytes of a contribution that segments, pieces, shares and chunks cover.

use super::Plan;
use super::rows::LINE;
use crate::rule::MovementBy;
use crate::trigger::Chunk;

/// The most work-stealing shares of a round. More shares would only cost memory, because each has a claim counter.
const MAX_SHARES: u64 = 32;

impl Plan {
    pub(super) fn count_segments(&self) -> u64 {
        match self.movement {
            MovementBy::Segments => self.parts().max(1) as u64,
            _ => 1,
        }
    }

    /// Returns the bytes of a contribution that segment `index` covers: offset and length.
    pub(crate) fn segment_span(&self, index: u64) -> (usize, usize) {
        match self.movement {
            MovementBy::Segments => self.part_span(index as usize),
            _ => (0, self.bytes),
        }
    }

    /// Returns the number of segment-sized parts in which a fallback read takes contributions.
    pub(crate) fn parts(&self) -> usize {
        self.bytes.div_ceil(self.segment)
    }

    /// Returns the bytes of a contribution that such a part covers: offset and length.
    pub(crate) fn part_span(&self, index: usize) -> (usize, usize) {
        let from = index * self.segment;
        (from, self.segment.min(self.bytes - from))
    }

    /// Returns the most sources of a reduction, each of which may be read from another host: two contributions of a
    /// rank, and its register.
    pub(crate) fn most_sources(&self) -> usize {
        let members = self.butterfly().map_or(self.ranks, |butterfly| butterfly.size().min(self.ranks));
        members as usize * if self.has_memory() { 3 } else { 2 }
    }

    /// Returns the bytes between the parts of a segment that are read from other hosts.
    pub(crate) fn staging_row(&self) -> usize {
        self.segment.min(self.bytes)
    }

    pub(super) fn count_shares(segments: u64, ranks: u32) -> u64 {
        segments.min(u64::from(ranks)).min(MAX_SHARES)
    }

    /// Returns the most groups that a round can have.
    pub(super) fn most_groups(&self) -> u64 {
        self.butterfly().map_or(1, |butterfly| u64::from(self.ranks.div_ceil(butterfly.size())))
    }

    /// Returns the range of segments in share `index`, of `segments` segments in a round.
    pub(crate) fn share(&self, index: u64, segments: u64) -> (u64, u64) {
        let bound = |i| i * segments / self.shares();
        (bound(index), bound(index + 1))
    }

    /// Returns the number of pieces in which a contribution may be filled after its arrival; 1 if it must be filled
    /// before. Pieces take turns between the shares, as the ranks that move them do.
    pub(crate) fn pieces(&self) -> u64 {
        let fills = self.movement == MovementBy::Segments && self.topology.is_one_host() && !self.has_memory();
        if fills { self.segments().div_ceil(self.shares()).div_ceil(self.run) * self.shares() } else { 1 }
    }

    /// Returns the piece that contains the segment of a share's ticket.
    pub(crate) fn piece_of(&self, share: u64, ticket: u64) -> u64 {
        ticket / self.run * self.shares() + share
    }

    /// Returns the bytes of a contribution that a piece covers: offset and length. Shares differ by one segment, so the
    /// last pieces may be empty.
    pub(crate) fn piece_span(&self, piece: u64) -> (usize, usize) {
        let (from, to) = self.share(piece % self.shares(), self.segments());
        let first = to.min(from + piece / self.shares() * self.run);
        let offset = |segment: u64| self.bytes.min(segment as usize * self.segment);
        (offset(first), offset(to.min(first + self.run)) - offset(first))
    }

    /// Returns the bytes between the shares of `reducers` reducers.
    pub(super) fn share_stride(&self, reducers: usize) -> usize {
        const LARGE: usize = 4096;
        let each = self.bytes.div_ceil(reducers.max(1));
        each.next_multiple_of(if each < LARGE { size_of::<u64>() } else { LINE * size_of::<u64>() })
    }

    /// Returns the bytes of a contribution that the share of one of `reducers` reducers covers: offset and length.
    pub(crate) fn share_span(&self, index: usize, reducers: usize) -> (usize, usize) {
        let each = self.share_stride(reducers);
        let from = self.bytes.min(index * each);
        (from, each.min(self.bytes - from))
    }

    /// Returns the bytes of a contribution that a chunk of a program covers: offset and length.
    pub(crate) fn chunk_span(&self, chunk: Chunk) -> (usize, usize) {
        let (from, len) = chunk.span(self.bytes as u64);
        (from as usize, len as usize)
    }
}
