//! Where the data of all ranks lies: contributions, registers and outcomes, each on the host of its rank.

use crate::topology::Topology;
use std::ops::Range;

/// A rank writes one contribution while a group uses its last one.
pub(super) const BUFFERS: u32 = 2;

/// The areas of a rank: its contributions, its register, and its outcome.
const AREAS: usize = BUFFERS as usize + 2;

/// Areas begin at multiples of this number of bytes, so that no two ranks write to one cache line.
const ALIGNMENT: usize = 128;

/// The memory of a collective with groups by tickets, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Areas {
    topology: Topology,
    bytes: usize,
    /// The most bytes that are moved at a time.
    segment: usize,
}

impl Areas {
    /// Returns the areas for models of `bytes` bytes, which are moved in segments.
    pub(crate) fn new(topology: Topology, bytes: usize, segment: usize) -> Self {
        Areas { topology, bytes, segment: segment.max(1) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of segments in a model: at least one.
    pub(crate) fn segments(&self) -> u64 {
        self.bytes.div_ceil(self.segment).max(1) as u64
    }

    /// Returns the bytes of a segment.
    pub(super) fn segment(&self, segment: u64) -> Range<usize> {
        let from = segment as usize * self.segment;
        from..self.bytes.min(from + self.segment)
    }

    fn stride(&self) -> usize {
        self.bytes.next_multiple_of(ALIGNMENT)
    }

    /// Returns whether some ranks share no memory.
    pub(super) fn is_spread(&self) -> bool {
        self.topology.has_elsewhere()
    }

    pub(super) fn host_of(&self, rank: u32) -> u32 {
        self.topology.host_of(rank)
    }

    pub(super) fn share_memory(&self, one: u32, other: u32) -> bool {
        self.host_of(one) == self.host_of(other)
    }

    /// Returns whether other ranks use memory that disappears with this rank's process. All cells are at the host of
    /// rank 0.
    pub(super) fn keeps(&self, rank: u32) -> bool {
        let host = self.host_of(rank);
        let is_needed = host == self.host_of(0) || self.topology.is_shared(host);
        self.is_spread() && self.topology.leader(host) == rank && is_needed
    }

    /// Returns the bytes for a segment that comes from another host.
    pub(super) fn row(&self) -> usize {
        self.segment.min(self.bytes).next_multiple_of(ALIGNMENT)
    }

    fn area(&self, rank: u32, number: usize) -> usize {
        (self.topology.index_on_host(rank) as usize * AREAS + number) * self.stride()
    }

    pub(super) fn contribution(&self, rank: u32, buffer: u32) -> usize {
        self.area(rank, buffer as usize)
    }

    /// Returns the offset of a rank's model between its groups: the model changes while the rank computes, if it is
    /// lent.
    pub(crate) fn register(&self, rank: u32) -> usize {
        self.area(rank, BUFFERS as usize)
    }

    /// Returns the offset of the model that a rank reads: it changes only while the rank has an arrival.
    pub(super) fn outcome(&self, rank: u32) -> usize {
        self.area(rank, BUFFERS as usize + 1)
    }

    /// Returns the bytes of a host's memory; `None` if they cannot be addressed.
    pub(crate) fn of_host(&self) -> Option<usize> {
        let ranks = self.topology.widest() as usize;
        let all = self.bytes.checked_next_multiple_of(ALIGNMENT)?.checked_mul(AREAS)?.checked_mul(ranks)?;
        (all <= isize::MAX as usize).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_apart_and_segments_cover_a_model() {
        for (bytes, segment, count) in [(0, 64, 1), (1, 64, 1), (640, 64, 10), (1_000, 64, 16)] {
            let areas = &Areas::new(Topology::one_host(3), bytes, segment);
            assert_eq!(areas.segments(), count);
            let mut next = 0;
            for number in 0..count {
                let range = areas.segment(number);
                assert_eq!(range.start, next);
                next = range.end;
            }
            assert_eq!(next, bytes);
            let mut begins: Vec<usize> = (0..3)
                .flat_map(|rank| {
                    let contributions = (0..BUFFERS).map(move |buffer| areas.contribution(rank, buffer));
                    contributions.chain([areas.register(rank), areas.outcome(rank)])
                })
                .collect();
            begins.sort_unstable();
            assert!(begins.windows(2).all(|pair| pair[1] - pair[0] >= bytes));
            assert!(begins.last().is_some_and(|last| last + bytes <= areas.of_host().unwrap()));
        }
        assert_eq!(Areas::new(Topology::one_host(3), usize::MAX / 2, 64).of_host(), None);
    }
}
