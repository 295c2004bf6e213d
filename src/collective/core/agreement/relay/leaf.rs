//! The leaf of a host: the tags of its ranks, which its agent closes for one round after the other.
//!
//! Each rank writes its own tags, and the agent alone writes the round that it has closed. To close a round, the agent
//! announces it, fences, and then takes every tag that it finds and has not taken before. A rank writes its tag, fences,
//! and then reads the closed round. Of two that each write and then look, one sees the other (Dekker): a rank that finds
//! its target open is in it, and a rank that finds a later round closed is in one up to that round, or in the next one.
//! A rank does not arrive again before it knows the outcome of the round that it found closed. So at most two of its tags
//! are not taken, and they lie in two of its three buffers.

use super::super::super::entry::{Entry, Part};
use super::super::super::input::Cells;
use super::super::super::plan::{BUFFERS, Plan};
use super::super::super::tag::Tag;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::{Absent, Condition};

/// The ranks of a host, as their agent sees them.
#[derive(Clone, Debug, Hash)]
pub(super) struct Leaf {
    /// The newest target that was taken of each rank, by its index on the host.
    taken: Vec<u64>,
    /// The ranks that were counted for the open round, by their index.
    counted: Vec<bool>,
    present: Present,
}

/// The ranks of a host that are there for the open round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Present {
    pub(super) count: u32,
    /// The rank whose arrival completes the count at its host: the drawn one if it is there, otherwise the last one
    /// that was counted.
    pub(super) last: u32,
}

/// Returns whether a late contribution waits for a full round, so that the round need not wait for its rank: the rank
/// has taken all rounds before its target, and the ring has a slot for this one.
pub(super) fn waits_for_full(target: u64, round: u64, plan: &Plan) -> bool {
    round - target < plan.depth
}

impl Leaf {
    pub(super) fn new(plan: &Plan) -> Self {
        let ranks = plan.topology.ranks_of(plan.host()).len();
        Leaf { taken: vec![0; ranks], counted: vec![false; ranks], present: Present::default() }
    }

    /// Begins to count for the next round.
    pub(super) fn begin(&mut self) {
        self.counted.fill(false);
        self.present = Present::default();
    }

    /// Counts the ranks that are there for the open round. What was counted stays: a tag is not written again before a
    /// round has taken it.
    pub(super) fn count(
        &mut self,
        round: u64,
        (active, condition): (&RankSet, Condition),
        plan: &Plan,
        cells: &impl Cells,
    ) -> Present {
        for (index, &rank) in plan.topology.ranks_of(plan.host()).iter().enumerate() {
            if self.counted[index] || !active.contains(rank) {
                continue;
            }
            let is_here = |tag: &Tag| match condition {
                _ if tag.leaving || tag.target == round => true,
                Condition::Full => plan.absent != Absent::Drop && waits_for_full(tag.target, round, plan),
                Condition::Count(_) | Condition::Rank(_) => plan.fault(Fault::CountLateAsFresh),
            };
            if !self.untaken(index, round, &tags_of(rank, plan, cells)).any(is_here) {
                continue;
            }
            self.counted[index] = true;
            self.present.count += 1;
            if self.present.count == 1 || condition != Condition::Rank(self.present.last) {
                self.present.last = rank;
            }
        }
        self.present
    }

    /// Returns whether a rank of this host was counted for the open round.
    pub(super) fn has_counted(&self, rank: u32, plan: &Plan) -> bool {
        self.counted[plan.topology.index_on_host(rank) as usize]
    }

    /// Takes all tags for a round that was announced as closed. The entries come in the order of a cut.
    pub(super) fn take(
        &mut self,
        round: u64,
        active: &RankSet,
        plan: &Plan,
        cells: &impl Cells,
        mut add: impl FnMut(Entry),
    ) {
        for (index, &rank) in plan.topology.ranks_of(plan.host()).iter().enumerate() {
            if !active.contains(rank) {
                continue;
            }
            // A rank rewrites a tag only after a later round than this one.
            let tags = tags_of(rank, plan, cells);
            let is_missed = |tag: &Tag| tag.leaving && tag.target < round && plan.fault(Fault::MissLateLeavers);
            for tag in self.untaken(index, round, &tags).filter(|tag| !is_missed(tag)) {
                let (part, age) = match round - tag.target {
                    _ if tag.leaving => (Part::Leaving, 0),
                    0 => (Part::Fresh, 0),
                    age => (Part::Carried, age),
                };
                if part != Part::Carried || plan.absent != Absent::Drop {
                    add(Entry::new(rank, part, (age, tag.particulars), tag.buffer));
                }
            }
            let newest = self.untaken(index, round, &tags).last().filter(|_| !plan.fault(Fault::ForgetWhatWasTaken));
            self.taken[index] = newest.map_or(self.taken[index], |tag| tag.target);
        }
    }

    /// Returns those of a rank's tags that no round before this one has taken. No rank is ahead of the open round, but a cell
    /// that another host can write may hold anything.
    fn untaken<'a>(&self, index: usize, round: u64, tags: &'a [Tag]) -> impl Iterator<Item = &'a Tag> + use<'a> {
        let taken = self.taken[index];
        tags.iter().filter(move |tag| tag.target > taken && tag.target <= round)
    }
}

/// Returns the tags of a rank, oldest first.
fn tags_of(rank: u32, plan: &Plan, cells: &impl Cells) -> [Tag; BUFFERS as usize] {
    let mut tags = std::array::from_fn(|buffer| Tag::from_cell(cells.load(plan.tag(rank, buffer as u32))));
    tags.sort_unstable_by_key(|tag: &Tag| tag.target);
    tags
}
