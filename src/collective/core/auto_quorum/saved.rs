//! What a checkpoint keeps of the choice of quorums.

use serde::{Deserialize, Serialize};

use super::{AutoQuorum, Evidence, MEMORIES, STEPS, Steps};
use crate::collective::core::durations::Durations;
use crate::collective::core::input::Time;
use crate::rank_set::RankSet;

/// All that the quorums of later rounds follow from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedQuorum {
    quorum: u32,
    present: u32,
    /// The ranks that were fresh in the newest round.
    fresh: Vec<u32>,
    /// By number of ranks: the time waited and all time, by memory, and whether usual times are uneven.
    evidence: Vec<([Time; MEMORIES.len()], [Time; MEMORIES.len()], bool)>,
    /// By rank: its last steps, their number, and the newest round with a contribution.
    steps: Vec<([Time; STEPS], u64, u64)>,
}

impl SavedQuorum {
    /// Returns whether a world of this size can have saved it after this round.
    pub(crate) fn is_possible(&self, ranks: u32, round: u64) -> bool {
        // Sums over all ranks must not overflow. The evidence saturates.
        let in_range = |times: &[Time]| times.iter().all(|&time| time <= Durations::LONGEST);
        let most = ranks as usize;
        (1..=ranks).contains(&self.quorum)
            && (1..=ranks).contains(&self.present)
            && self.fresh.iter().all(|&rank| rank < ranks)
            && (self.evidence.len(), self.steps.len()) == (most, most)
            && self.steps.iter().all(|(last, known, seen)| in_range(last) && *known <= round && *seen <= round)
    }
}

impl AutoQuorum {
    pub(crate) fn save(&self) -> SavedQuorum {
        let AutoQuorum { quorum, present, evidence, steps, fresh, .. } = self;
        SavedQuorum {
            quorum: *quorum,
            present: *present,
            fresh: fresh.iter().collect(),
            evidence: evidence.iter().map(|of| (of.waited, of.all, of.is_uneven)).collect(),
            steps: steps.iter().map(|of| (of.last, of.known as u64, of.seen)).collect(),
        }
    }

    /// Continues from what was saved, with the share that was chosen now.
    pub(crate) fn resume(&mut self, saved: &SavedQuorum) {
        (self.quorum, self.present) = (saved.quorum, saved.present);
        self.fresh = RankSet::empty(self.steps.len() as u32);
        saved.fresh.iter().for_each(|&rank| self.fresh.insert(rank));
        for (evidence, &(waited, all, is_uneven)) in self.evidence.iter_mut().zip(&saved.evidence) {
            *evidence = Evidence { waited, all, is_uneven };
        }
        for (steps, &(last, known, seen)) in self.steps.iter_mut().zip(&saved.steps) {
            *steps = Steps { last, known: known as usize, seen };
        }
    }
}
