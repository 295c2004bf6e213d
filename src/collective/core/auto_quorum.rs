//! The quorum that a collective chooses itself ([`When::Auto`](crate::When::Auto)): the largest one whose waiting costs
//! at most a share of the ranks' time.
//!
//! It follows from the cuts alone, so all ranks choose the same quorum for the same round. No clock and no message takes
//! part: the entries of a cut tell how long ranks computed, and how long they waited in the round before.
//!
//! For every number of ranks, there is *evidence* of what waiting for that number costs. For quorums up to the present one
//! it is measured: the waiting of each rank shows when it arrived, and so what a smaller quorum would have waited. For
//! larger quorums it is computed: as if all ranks had begun their last computation at the same time. So a larger quorum
//! is tried as soon as it looks affordable, and given up as soon as it is not. A smaller quorum is never chosen by what
//! was only computed: where lateness is random, ranks that are late do not make others late, and such a choice would
//! confirm itself until no rank waits for another one.
//!
//! Evidence is kept in a short and in a long memory, and a quorum must be affordable by both. The short one follows a
//! change downwards within a few rounds. The long one remembers a wait that is rare and dear. After a lasting change
//! upwards it would remember for too long: so it forgets when the ranks' usual times, which one long step does not
//! change, become even again. A step counts as 16 usual steps at most, so that a pause of all ranks does not hide what
//! follows. A rank that has been away for some rounds is not waited for, whatever the evidence.

mod saved;

use std::hash::{Hash, Hasher};

use super::cut::Cut;
use super::entry::Part;
use super::input::Time;
use crate::rank_set::RankSet;
pub(crate) use saved::SavedQuorum;

/// The number of rounds after which each memory has lost most of what it knew.
const MEMORIES: [u64; 2] = [16, 256];
const LONG: usize = 1;

/// The number of steps of which the middle one is a rank's usual time.
const STEPS: usize = 7;

/// The most usual steps that one step counts for.
const LONGEST: Time = 16;

/// A rank without a contribution in this number of rounds is away.
const AWAY: u64 = 3;

/// What waiting for a number of ranks cost, as each memory knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Evidence {
    /// The time that the ranks waited, and all of their time.
    waited: [Time; MEMORIES.len()],
    all: [Time; MEMORIES.len()],
    /// The usual times of that number of ranks differ by more than the share.
    is_uneven: bool,
}

impl Evidence {
    fn add(&mut self, waited: Time, computed: Time) {
        let fade = |sum: &mut Time, memory: u64, more: Time| *sum = (*sum - *sum / memory).saturating_add(more);
        for (number, memory) in MEMORIES.into_iter().enumerate() {
            fade(&mut self.waited[number], memory, waited);
            fade(&mut self.all[number], memory, waited.saturating_add(computed));
        }
    }

    /// Returns whether waiting costs at most four fifths of the share, so that it stays below the share on average.
    fn is_affordable(&self, percent: u32) -> bool {
        let costs = self.waited.into_iter().zip(self.all);
        costs.into_iter().all(|(waited, all)| u128::from(waited) * 125 <= u128::from(all) * u128::from(percent))
    }

    /// Notes how long the ranks would usually wait, out of how long. The long memory forgets when that becomes
    /// affordable; the short one will have seen it soon.
    fn note_usual(&mut self, waits: Time, all: Time, percent: u32) {
        let (waits, all) = (u128::from(waits) * 100, u128::from(all) * u128::from(percent));
        if waits > all {
            self.is_uneven = true;
        } else if self.is_uneven && 2 * waits < all {
            self.is_uneven = false;
            (self.waited[LONG], self.all[LONG]) = (0, 0);
        }
    }
}

/// What is known of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Steps {
    /// How long it computed in its last steps.
    last: [Time; STEPS],
    known: usize,
    /// The newest round with a contribution of it.
    seen: u64,
}

impl Steps {
    fn push(&mut self, time: Time) {
        self.last[self.known % STEPS] = time;
        self.known += 1;
    }

    fn newest(&self) -> Option<Time> {
        let index = self.known.checked_sub(1)?;
        Some(self.last[index % STEPS])
    }

    fn usual(&self) -> Option<Time> {
        let mut sorted = self.last;
        median(&mut sorted[..self.known.min(STEPS)])
    }
}

fn median(times: &mut [Time]) -> Option<Time> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// The quorum of the next round, and what it follows from.
#[derive(Clone, Debug)]
pub(crate) struct AutoQuorum {
    percent: u32,
    quorum: u32,
    /// By number of ranks, from 1 on.
    evidence: Vec<Evidence>,
    steps: Vec<Steps>,
    /// The number of active ranks that are not away.
    present: u32,
    /// The ranks that were fresh in the newest round.
    fresh: RankSet,
    /// Lists that are kept for their memory.
    waits: Vec<Time>,
    times: Vec<Time>,
    usual: Vec<Time>,
}

impl AutoQuorum {
    /// Begins with all ranks, after the round that the caller knows by the number `base`.
    pub(crate) fn new(ranks: u32, percent: u32, base: u64) -> Self {
        let most = ranks as usize;
        AutoQuorum {
            percent,
            quorum: ranks,
            present: ranks,
            evidence: vec![Evidence::default(); most],
            steps: vec![Steps { seen: base, ..Steps::default() }; most],
            fresh: RankSet::empty(ranks),
            waits: Vec::with_capacity(most),
            times: Vec::with_capacity(most),
            usual: Vec::with_capacity(most),
        }
    }

    /// Returns the number of arrivals that the next round waits for; `active` ranks take part in it.
    pub(crate) fn quorum(&self, active: u32) -> u32 {
        self.quorum.min(self.present).min(active).max(1)
    }

    /// Learns from the cut of the next round, which the caller knows by this number. `active` are the ranks that are
    /// active after it.
    pub(crate) fn learn(&mut self, round: u64, cut: &Cut, active: &RankSet) {
        for entry in cut.contributions() {
            let steps = &mut self.steps[entry.rank as usize];
            steps.seen = round;
            if let Some(time) = entry.particulars().durations().computed() {
                steps.push(time);
            }
        }
        if cut.leaving().next().is_some() {
            // A number of ranks stands for other ranks now.
            self.forget();
        } else if self.read_waits(cut) {
            self.weigh(active);
        }
        let here = |&rank: &u32| round - self.steps[rank as usize].seen < AWAY;
        self.present = active.iter().filter(here).count() as u32;
        self.fresh.clear();
        cut.entries.ranks(Part::Fresh).for_each(|rank| self.fresh.insert(rank));
    }

    /// Forgets what waiting cost.
    pub(super) fn forget(&mut self) {
        self.evidence.fill(Evidence::default());
    }

    /// Reads how long ranks waited in the round before, longest first. Returns whether anything was measured.
    fn read_waits(&mut self, cut: &Cut) -> bool {
        self.waits.clear();
        let mut is_measured = false;
        for entry in cut.contributions() {
            let Some(waited) = entry.particulars().durations().waited() else { continue };
            is_measured = true;
            if entry.part == Part::Fresh && self.fresh.contains(entry.rank) {
                self.waits.push(waited);
            }
        }
        if self.waits.len() < 2 {
            // One rank alone says nothing about when the others arrived.
            self.waits.clear();
            return is_measured;
        }
        self.waits.sort_unstable_by(|one, other| other.cmp(one));
        // Ranks of that round that are late in this one tell nothing in time: they count as the others do.
        let middle = self.waits[self.waits.len() / 2];
        self.waits.resize(self.fresh.len() as usize, middle);
        self.waits.sort_unstable_by(|one, other| other.cmp(one));
        // The last arrival waited only for the data to move, and so did all the others.
        let least = self.waits.last().copied().unwrap_or(0);
        self.waits.iter_mut().for_each(|waited| *waited -= least);
        is_measured
    }

    /// Adds the newest round to the evidence, and chooses the quorum.
    fn weigh(&mut self, active: &RankSet) {
        let AutoQuorum { percent, evidence, steps, fresh, waits, times, usual, .. } = self;
        usual.clear();
        usual.extend(active.iter().filter_map(|rank| steps[rank as usize].usual()));
        let Some(middle) = median(usual) else { return };
        let most = middle.saturating_mul(LONGEST);
        // A rank of which nothing is known counts as one in the middle.
        usual.resize(active.len() as usize, middle);
        usual.iter_mut().for_each(|time| *time = (*time).min(most));
        usual.sort_unstable();
        times.clear();
        times.extend(active.iter().map(|rank| steps[rank as usize].newest().unwrap_or(middle).min(most)));
        times.sort_unstable();
        let mean = times.iter().sum::<Time>() / times.len() as u64;
        let (mut waited, mut computed, mut usually) = (0, 0, 0);
        self.quorum = 1;
        for (index, evidence) in evidence.iter_mut().enumerate().take(times.len()) {
            let ranks = index as u64 + 1;
            computed += times[index];
            usually += usual[index];
            match waits.get(index) {
                Some(&wait) => {
                    let wait = wait.min(most);
                    waited += wait;
                    evidence.add(waited - ranks * wait, ranks * mean);
                }
                // That round waited for this number of ranks, and it is not known how long.
                None if index < fresh.len() as usize => {}
                None => evidence.add(ranks * times[index] - computed, computed),
            }
            let all = ranks * usual[index];
            evidence.note_usual(all - usually, all, *percent);
            if evidence.is_affordable(*percent) {
                self.quorum = ranks as u32;
            }
        }
    }
}

impl Hash for AutoQuorum {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The lists are filled anew in each round.
        let AutoQuorum { percent, quorum, evidence, steps, present, fresh, .. } = self;
        (percent, quorum, evidence, steps, present, fresh).hash(state);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
