//! The data that members of groups move: registers, updates, outcomes, and their expected values.

use std::collections::BTreeMap;

use super::world::{Checked, ensure};
use crate::collective::tickets::record::GroupCut;

/// The models of all ranks, with one number for each segment.
#[derive(Clone)]
pub(super) struct Data {
    registers: Vec<Vec<f64>>,
    outcomes: Vec<Vec<f64>>,
    /// The model that a group must leave, from when it was published, and which of its segments are moved.
    expected: BTreeMap<u64, (Vec<f64>, Vec<bool>)>,
    /// The value that a rank is computing for a segment.
    computed: Vec<Option<f64>>,
    pub(super) segments: u64,
}

/// Returns the amount that a contribution adds.
fn update(rank: u32, iteration: u64, segment: usize) -> f64 {
    let mixed = (u64::from(rank) << 40 ^ iteration << 8 ^ segment as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 12) as f64 / (1u64 << 51) as f64 - 1.0
}

/// Returns the ranks whose registers take part, ascending.
fn registers(cut: &GroupCut) -> Vec<u32> {
    let mut ranks: Vec<u32> = cut.contributors().map(|member| member.rank).chain(cut.lender).collect();
    ranks.sort_unstable();
    ranks
}

impl Data {
    pub(super) fn new(ranks: usize, segments: u64) -> Self {
        let models = vec![vec![0.0; segments as usize]; ranks];
        let (outcomes, computed) = (models.clone(), vec![None; ranks]);
        Data { registers: models, outcomes, expected: BTreeMap::new(), computed, segments }
    }

    /// Returns the current mean of the registers plus the updates.
    fn mean(&self, cut: &GroupCut, segment: usize) -> f64 {
        let ranks = registers(cut);
        let of = |rank: u32| self.registers[rank as usize][segment];
        let first = of(ranks[0]);
        let differences: f64 = ranks.iter().map(|&rank| of(rank) - first).sum();
        let updates: f64 = cut.contributors().map(|member| update(member.rank, member.iteration, segment)).sum();
        first + (differences + updates) / ranks.len() as f64
    }

    pub(super) fn publish(&mut self, cut: &GroupCut) {
        if cut.contributors().next().is_some() {
            let all = (0..self.segments as usize).map(|segment| self.mean(cut, segment)).collect();
            self.expected.insert(cut.group, (all, vec![false; self.segments as usize]));
        }
    }

    /// Begins to move a segment: the rank reads.
    pub(super) fn begin(&mut self, me: u32, cut: &GroupCut, segment: u64) -> Checked {
        let mean = self.mean(cut, segment as usize);
        let Some((expected, moved)) = self.expected.get_mut(&cut.group) else {
            return Err(format!("rank {me} moves a group that is not published: {cut:?}"));
        };
        let once = !std::mem::replace(&mut moved[segment as usize], true);
        ensure!(once, "segment {segment} of group {} is moved twice", cut.group);
        let wanted = expected[segment as usize];
        ensure!(mean.to_bits() == wanted.to_bits(), "rank {me} makes {mean} of group {}, not {wanted}", cut.group);
        self.computed[me as usize] = Some(mean);
        Ok(())
    }

    /// Ends the movement of a segment: the rank has written.
    pub(super) fn end(&mut self, me: u32, cut: &GroupCut, segment: u64) {
        let Some(mean) = self.computed[me as usize].take() else { return };
        for rank in registers(cut) {
            self.registers[rank as usize][segment as usize] = mean;
        }
        for member in cut.contributors() {
            self.outcomes[member.rank as usize][segment as usize] = mean;
        }
    }

    /// Checks the outcome that a member takes.
    pub(super) fn take(&self, me: u32, cut: &GroupCut) -> Checked {
        if let Some((expected, _)) = self.expected.get(&cut.group)
            && cut.contributors().any(|member| member.rank == me)
        {
            let found = &self.outcomes[me as usize];
            ensure!(found == expected, "rank {me} takes {found:?} from group {}, not {expected:?}", cut.group);
        }
        Ok(())
    }

    /// Checks that every update has entered once.
    pub(super) fn check_end_of_all(&self, cuts: &BTreeMap<u64, GroupCut>) -> Checked {
        let unmoved = self.expected.iter().find(|(_, (_, moved))| moved.contains(&false));
        ensure!(unmoved.is_none(), "{unmoved:?} is not moved");
        for segment in 0..self.segments as usize {
            let sum: f64 = self.registers.iter().map(|register| register[segment]).sum();
            let members = cuts.values().flat_map(GroupCut::contributors);
            let updates: f64 = members.map(|member| update(member.rank, member.iteration, segment)).sum();
            let is_close = (sum - updates).abs() < 1e-9;
            ensure!(is_close, "registers have grown by {sum}, updates are {updates}");
        }
        Ok(())
    }
}
