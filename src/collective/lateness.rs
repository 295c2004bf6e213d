//! An account of which ranks are late, since when, and what that costs. It follows from the cuts alone, so all ranks
//! have the same account of the same rounds.
//!
//! A step of a rank is *slow* if it takes 15 % longer than that of a rank that is among the fastest quarter. A slow step
//! is no news where slow steps are usual: the test asks how much likelier the last steps are for a rank that has become
//! slow (nine steps of ten are slow then) than for the other ranks at present. A rank is named when that is ten million
//! times as likely, and its slow spell began where the evidence began to grow (the cumulative sum of Page, Biometrika
//! 1954). A single long step is jitter, however long.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::core::{Cut, Durations, Part, Time};

/// A step is slow if it takes this percentage of the time of the ranks that are fast.
const SLOW: Time = 115;

/// The share of slow steps of a slow rank.
const OF_A_SLOW_RANK: f64 = 0.9;

/// The least and the largest share of slow steps that is assumed of the other ranks.
const LEAST_SHARE: f64 = 0.01;
const LARGEST_SHARE: f64 = 0.8;

/// The logarithm of how much likelier it must be that a rank has become slow, or is slow no more.
const CERTAINTY: f64 = 16.0;

/// The number of rounds after which most of the share of slow steps is new.
const MEMORY: f64 = 64.0;

/// The largest number of slow spells of a rank that are kept apart: a rank that is slow again and again has the two
/// oldest as one.
const MOST_SPELLS: usize = 16;

/// A time in which a rank was slow.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SlowSpell {
    /// The first round for which the rank made a contribution slowly.
    pub since: u64,
    /// The first round for which it was as fast as the others again; `None` if it still is slow.
    pub until: Option<u64>,
    /// How many times as long as a fast rank it took.
    pub factor: f64,
    /// What waiting for it costs, or would have cost: how much later than all ranks that are not slow it was, in all
    /// measured steps of the spell.
    pub cost: Duration,
}

/// What is known of the lateness of a rank.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RankLateness {
    /// The rank.
    pub rank: u32,
    /// Its contributions that have entered a round, and those of them that came too late for their own round.
    pub contributions: u64,
    /// See [`contributions`](RankLateness::contributions).
    pub late: u64,
    /// The mean age at which its contributions entered: 0 if none was late.
    pub mean_age: f64,
    /// Its steps that were measured, and those of them that were slow.
    pub measured: u64,
    /// See [`measured`](RankLateness::measured).
    pub slow: u64,
    /// How long it computed, and how long it waited, in all steps that were measured.
    pub computed: Duration,
    /// See [`computed`](RankLateness::computed).
    pub waited: Duration,
    /// How long it would have waited in the same steps if each had waited for all ranks.
    pub would_wait: Duration,
    /// When it was slow, oldest first. Empty for a rank whose slow steps are jitter. Of a rank with more than 16
    /// spells, the first joins the oldest ones, and the time between them.
    pub spells: Vec<SlowSpell>,
}

impl RankLateness {
    /// Returns whether the rank is slow now.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.spells.last().is_some_and(|spell| spell.until.is_none())
    }
}

/// The account of a collective's rounds so far.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Lateness {
    /// The number of rounds.
    pub rounds: u64,
    /// What is known of each rank.
    pub ranks: Vec<RankLateness>,
    /// What single long steps cost, or would have cost, those that wait for all ranks: how much longer than a fast rank
    /// the last rank took that is not slow, in all measured rounds.
    pub jitter: Duration,
}

impl Lateness {
    /// Returns the ranks that were slow for a while, or are.
    pub fn slow_ranks(&self) -> impl Iterator<Item = &RankLateness> {
        self.ranks.iter().filter(|rank| !rank.spells.is_empty())
    }

    /// Returns the hosts whose ranks, two or more, all became slow together: within 16 rounds. `host_of` names the host
    /// of a rank.
    pub fn slow_hosts(&self, host_of: impl Fn(u32) -> u32) -> Vec<u32> {
        const TOGETHER: u64 = 16;
        let mut hosts: Vec<u32> = self.slow_ranks().map(|rank| host_of(rank.rank)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let begins = |rank: &RankLateness| rank.spells.iter().map(|spell| spell.since).collect::<Vec<_>>();
        let is_slow = |&host: &u32| {
            let ranks: Vec<Vec<u64>> =
                self.ranks.iter().filter(|rank| host_of(rank.rank) == host).map(begins).collect();
            let Some(first) = ranks.first().filter(|_| ranks.len() > 1) else { return false };
            let alike = |since: u64| ranks.iter().all(|other| other.iter().any(|&at| at.abs_diff(since) <= TOGETHER));
            first.iter().any(|&since| alike(since))
        };
        hosts.retain(is_slow);
        hosts
    }
}

/// What the account keeps of a rank.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// The newest round in which it was fresh.
    last_fresh: u64,
    contributions: u64,
    late: u64,
    ages: u64,
    measured: u64,
    slow: u64,
    computed: Time,
    waited: Time,
    would_wait: Time,
    /// The evidence for a change, and the first round of it.
    evidence: f64,
    begins: u64,
    spells: Vec<Spell>,
    /// Since the evidence began: the steps, and the sums of their factors and costs.
    since: Sums,
}

#[derive(Clone, Copy, Debug)]
struct Spell {
    since: u64,
    until: Option<u64>,
    sums: Sums,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    steps: u64,
    factors: f64,
    cost: Time,
    /// What was taken for jitter until the rank was named.
    jitter: Time,
}

impl Sums {
    fn add(&mut self, other: Sums) {
        self.steps += other.steps;
        self.factors += other.factors;
        self.cost = self.cost.saturating_add(other.cost);
        self.jitter = self.jitter.saturating_add(other.jitter);
    }
}

impl Seen {
    fn reserve(&mut self) {
        self.spells.reserve(MOST_SPELLS);
    }

    fn is_slow(&self) -> bool {
        self.spells.last().is_some_and(|spell| spell.until.is_none())
    }

    /// Learns that a step, for a contribution to this round, was slow or not. `share` is the share of slow steps of
    /// the other ranks. Returns what was no jitter, because the rank is named now.
    fn judge(&mut self, round: u64, is_slow: bool, step: Sums, share: f64) -> Time {
        let likelier =
            if is_slow { (OF_A_SLOW_RANK / share).ln() } else { ((1.0 - OF_A_SLOW_RANK) / (1.0 - share)).ln() };
        let towards = if self.is_slow() { -likelier } else { likelier };
        if self.evidence <= 0.0 {
            (self.evidence, self.begins, self.since) = (0.0, round, Sums::default());
        }
        self.evidence += towards;
        self.since.add(step);
        let mut no_jitter = 0;
        if self.evidence <= 0.0 {
            self.settle();
        } else if self.evidence > CERTAINTY {
            let (begins, sums) = (self.begins, std::mem::take(&mut self.since));
            match self.spells.last_mut().filter(|spell| spell.until.is_none()) {
                Some(spell) => spell.until = Some(begins),
                None => {
                    no_jitter = sums.jitter;
                    self.begin(Spell { since: begins, until: None, sums });
                }
            }
            self.evidence = 0.0;
        }
        no_jitter
    }

    fn begin(&mut self, spell: Spell) {
        if self.spells.len() == MOST_SPELLS {
            let second = self.spells.remove(1);
            self.spells[0].until = second.until;
            self.spells[0].sums.add(second.sums);
        }
        self.spells.push(spell);
    }

    /// The evidence came to nothing: its steps belong to what was before.
    fn settle(&mut self) {
        let sums = std::mem::take(&mut self.since);
        if let Some(spell) = self.spells.last_mut().filter(|spell| spell.until.is_none()) {
            spell.sums.add(sums);
        }
    }
}

/// The newest measured step of each rank.
#[derive(Clone, Debug)]
pub(crate) struct NewestSteps {
    times: Vec<Option<Time>>,
    /// A list that is kept for its memory.
    sorted: Vec<Time>,
}

impl NewestSteps {
    pub(crate) fn new(ranks: u32) -> Self {
        NewestSteps { times: vec![None; ranks as usize], sorted: Vec::with_capacity(ranks as usize) }
    }

    /// Learns the steps of a cut, and returns how long that of a fast rank took: one of the fastest quarter, because
    /// half of the ranks may be slow. `None` if nothing was measured yet.
    pub(crate) fn learn(&mut self, cut: &Cut) -> Option<Time> {
        for entry in cut.contributions() {
            if let Some(time) = entry.particulars().durations().computed() {
                self.times[entry.rank as usize] = Some(time);
            }
        }
        self.without_leavers(cut);
        self.sorted.clear();
        self.sorted.extend(self.times.iter().flatten());
        self.sorted.sort_unstable();
        // No step is shorter than the clock can tell.
        self.sorted.get(self.sorted.len().saturating_sub(1) / 4).map(|&time| time.max(Durations::UNIT))
    }

    fn without_leavers(&mut self, cut: &Cut) {
        cut.leaving().for_each(|rank| self.times[rank as usize] = None);
    }
}

/// Learns cuts, in the order of their rounds.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    rounds: u64,
    ranks: Vec<Seen>,
    /// The slow steps, and all steps, of ranks that are not slow, of late.
    slow_of_late: f64,
    all_of_late: f64,
    jitter: Time,
    newest: NewestSteps,
}

impl Account {
    pub(crate) fn new(ranks: u32) -> Self {
        let ranks_seen = (0..ranks).map(|_| Seen::default()).collect();
        let newest = NewestSteps::new(ranks);
        Account { rounds: 0, ranks: ranks_seen, slow_of_late: 0.0, all_of_late: 0.0, jitter: 0, newest }
    }

    /// Reserves now the memory for the spells of slow ranks, so that no round takes any.
    pub(crate) fn reserve(&mut self) {
        self.ranks.iter_mut().for_each(Seen::reserve);
    }

    /// Returns the newest round in which a rank was fresh; 0 if there is none.
    pub(crate) fn last_fresh(&self, rank: u32) -> u64 {
        self.ranks.get(rank as usize).map_or(0, |seen| seen.last_fresh)
    }

    /// Learns the cut of the next round, which the caller knows by this number, and names the ranks that leave in it.
    #[inline]
    pub(crate) fn add(&mut self, round: u64, cut: &Cut, mut leaves: impl FnMut(u32)) {
        self.rounds += 1;
        let (mut is_measured, mut has_leavers) = (false, false);
        for entry in cut.entries() {
            let seen = &mut self.ranks[entry.rank as usize];
            match entry.part {
                Part::Fresh => seen.last_fresh = round,
                Part::Carried => (seen.late, seen.ages) = (seen.late + 1, seen.ages + entry.age),
                Part::Leaving => {
                    leaves(entry.rank);
                    has_leavers = true;
                    continue;
                }
            }
            seen.contributions += 1;
            is_measured |= entry.particulars().is_measured();
        }
        if is_measured {
            self.measure(cut);
        }
        if has_leavers {
            self.newest.without_leavers(cut);
        }
    }

    #[inline(never)]
    fn measure(&mut self, cut: &Cut) {
        let mut has_steps = false;
        // The two longest steps of ranks that are not slow, and whose the longest is.
        let (mut longest, mut second, mut whose) = (0, 0, None);
        for entry in cut.contributions() {
            let (seen, durations) = (&mut self.ranks[entry.rank as usize], entry.particulars().durations());
            seen.waited += durations.waited().unwrap_or(0);
            if let Some(time) = durations.computed() {
                seen.computed += time;
                seen.measured += 1;
                has_steps = true;
                if !seen.is_slow() && time > longest {
                    (second, longest, whose) = (longest, time, Some(entry.rank));
                } else if !seen.is_slow() {
                    second = second.max(time);
                }
            }
        }
        if !has_steps {
            return;
        }
        let Some(fast) = self.newest.learn(cut) else { return };
        let others = self.ranks.iter().zip(&self.newest.times).filter(|(seen, _)| !seen.is_slow());
        let slowest = others.filter_map(|(_, &time)| time).max().unwrap_or(fast);
        let last = self.newest.times.iter().flatten().max().copied().unwrap_or(fast);
        let share = (self.slow_of_late / self.all_of_late.max(1.0)).clamp(LEAST_SHARE, LARGEST_SHARE);
        self.slow_of_late *= 1.0 - 1.0 / MEMORY;
        self.all_of_late *= 1.0 - 1.0 / MEMORY;
        let (longest, second) = (longest.max(fast), second.max(fast));
        self.jitter = self.jitter.saturating_add(longest - fast);
        for entry in cut.contributions() {
            let Some(time) = entry.particulars().durations().computed() else { continue };
            let seen = &mut self.ranks[entry.rank as usize];
            let is_slow = u128::from(time) * 100 > u128::from(fast) * u128::from(SLOW);
            seen.slow += u64::from(is_slow);
            seen.would_wait = seen.would_wait.saturating_add(last.saturating_sub(time));
            if !seen.is_slow() {
                self.all_of_late += 1.0;
                self.slow_of_late += f64::from(u8::from(is_slow));
            }
            let cost = time.saturating_sub(if seen.is_slow() { slowest } else { fast });
            let jitter = if whose == Some(entry.rank) { longest - second } else { 0 };
            let step = Sums { steps: 1, factors: time as f64 / fast as f64, cost, jitter };
            let no_jitter = seen.judge(cut.round.saturating_sub(entry.age), is_slow, step, share);
            self.jitter = self.jitter.saturating_sub(no_jitter);
        }
    }

    pub(crate) fn lateness(&self) -> Lateness {
        let spell = |spell: &Spell| {
            let sums = spell.sums;
            let factor = sums.factors / sums.steps.max(1) as f64;
            SlowSpell { since: spell.since, until: spell.until, factor, cost: Duration::from_nanos(sums.cost) }
        };
        let rank = |(rank, seen): (usize, &Seen)| RankLateness {
            rank: rank as u32,
            contributions: seen.contributions,
            late: seen.late,
            mean_age: seen.ages as f64 / seen.contributions.max(1) as f64,
            measured: seen.measured,
            slow: seen.slow,
            computed: Duration::from_nanos(seen.computed),
            waited: Duration::from_nanos(seen.waited),
            would_wait: Duration::from_nanos(seen.would_wait),
            spells: seen.spells.iter().map(spell).collect(),
        };
        let ranks = self.ranks.iter().enumerate().map(rank).collect();
        Lateness { rounds: self.rounds, ranks, jitter: Duration::from_nanos(self.jitter) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
