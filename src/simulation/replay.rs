//! Schedules that are recorded, and run again with the same cuts in another order of events. They run as a replay,
//! whose cuts are all known when it begins, or as a collective that follows the recorded one.

use std::collections::VecDeque;
use std::sync::Arc;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::actor::Actor;
use super::case::Case;
use super::oracle::Oracle;
use super::{Coverage, Failure, MOST_EVENTS, Options, run_within};
use crate::collective::core::{Cut, Machine, Part};
use crate::collective::following::{Following, Inbox};
use crate::fabric::sim::Weather;
use crate::rule::{Absent, MovementBy};

/// Whether a world's rounds are recorded, or replayed.
#[derive(Clone, Default)]
pub(super) enum Script {
    #[default]
    Free,
    Recorded,
    Given(Arc<Played>),
    /// Each rank learns of the cuts one after the other.
    Followed(Arc<Played>),
}

impl Script {
    /// Returns whether cuts come from another run.
    pub(super) fn gives(&self) -> bool {
        matches!(self, Script::Given(_) | Script::Followed(_))
    }

    /// Instructs a machine that has not begun.
    pub(super) fn instruct(&self, machine: &mut Machine) {
        if !matches!(self, Script::Free) {
            machine.record();
        }
        if let Script::Given(played) = self {
            let (cuts, ends) = &played.ranks[machine.plan().me as usize];
            cuts.iter().for_each(|cut| machine.give(cut.clone()));
            ends.iter().for_each(|&end| machine.give_end(end));
        }
    }

    /// Returns what a rank is told in the course of the run.
    pub(super) fn lead(&self, rank: u32) -> Option<Lead> {
        let Script::Followed(played) = self else { return None };
        let (cuts, ends) = played.ranks[rank as usize].clone();
        Some(Lead { cuts: cuts.into(), ends: ends.into(), told: 0, inbox: Arc::default() })
    }
}

/// What the leader of a rank's collective has yet to tell. The leader ran before, so whatever the follower is told may
/// come as early or as late as a caller can make it.
#[derive(Debug)]
pub(super) struct Lead {
    cuts: VecDeque<Cut>,
    ends: VecDeque<u64>,
    /// The number of ends that were told.
    told: usize,
    inbox: Arc<Inbox>,
}

impl Lead {
    pub(super) fn following(&self) -> Following {
        Following::Follows(self.inbox.clone())
    }

    /// Lets the leader learn of a cut, perhaps.
    pub(super) fn may_tell(&mut self, rng: &mut Xoshiro256PlusPlus) {
        if !self.cuts.is_empty() && rng.random_bool(0.25) {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.cuts.pop_front().into_iter().for_each(|cut| self.inbox.tell_cut(cut));
    }

    /// Tells the end of a wait: the caller has the leader's outcomes for an arrival, and is about to wait for the
    /// follower's. `taken` waits have returned some before.
    pub(super) fn tell_end(&mut self, taken: usize) {
        if self.told > taken {
            return;
        }
        self.told += 1;
        if let Some(end) = self.ends.pop_front() {
            while self.cuts.front().is_some_and(|cut| cut.round() <= end) {
                self.tell();
            }
            self.inbox.tell_end(end);
        }
    }
}

/// A run that was played.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Played {
    /// By rank: the cuts that it recorded, and the last round of each wait that returned rounds.
    ranks: Vec<(Vec<Cut>, Vec<u64>)>,
    /// The cut of each round, and what each rank sees of it.
    rounds: Vec<(Cut, Vec<Vec<u8>>)>,
}

impl Played {
    pub(super) fn of(actors: &[Actor], oracle: &Oracle) -> Self {
        Played { ranks: actors.iter().map(Actor::recorded).collect(), rounds: oracle.seen().collect() }
    }

    /// Describes the first difference from another run, if there is one.
    fn difference(&self, other: &Played) -> Option<String> {
        for (rank, ((cuts, ends), (other_cuts, other_ends))) in self.ranks.iter().zip(&other.ranks).enumerate() {
            if ends != other_ends {
                return Some(format!("waits of rank {rank} end with rounds {other_ends:?} and not {ends:?}"));
            }
            // A rank may learn the cuts of some rounds after the one in which it leaves.
            let leaves = |cut: &Cut| cut.holds(rank as u32, Part::Leaving);
            let last = |cuts: &[Cut]| cuts.iter().position(leaves).map_or(cuts.len(), |before| before + 1);
            let (cuts, other_cuts) = (&cuts[..last(cuts)], &other_cuts[..last(other_cuts)]);
            if cuts != other_cuts {
                return Some(format!("rank {rank} sees the cuts {other_cuts:?} and not {cuts:?}"));
            }
        }
        let pairs = self.rounds.iter().zip(&other.rounds);
        let different = pairs.into_iter().find(|(one, other)| one != other);
        let rounds = (self.rounds.len(), other.rounds.len());
        let lengths = (rounds.0 != rounds.1).then(|| format!("{} rounds and not {}", rounds.1, rounds.0));
        different.map(|(one, other)| format!("{other:?} and not {one:?}")).or(lengths)
    }
}

/// Records a schedule, and runs it again in another order of events, on the same hosts or on one. Either all cuts are
/// given when it begins, or each rank follows those of the recorded run.
///
/// # Errors
/// A guarantee that was violated, or a difference in the replay.
pub fn replay(case: &Case, options: &Options) -> Result<Coverage, Failure> {
    let mut scenario = case.scenario(options);
    // Worlds that fail are excluded.
    scenario.deaths.clear();
    scenario.weather.breaks = None;
    scenario.script = Script::Recorded;
    let fault = scenario.fault.take();
    let recorded = run_within(case, &scenario, MOST_EVENTS, &mut None)?;
    let played = Arc::new(recorded.played);
    // Held models are replayed on one host only.
    if scenario.reduction.absent == Absent::Hold || case.seed().is_multiple_of(2) {
        scenario.hosts.fill(0);
        scenario.weather = Weather::default();
    }
    (scenario.movement, scenario.fault) = (MovementBy::Segments, fault);
    // No models are followed, and the fate of a late one is known only from later cuts.
    let follows = (case.seed() / 2).is_multiple_of(2) && scenario.reduction.absent != Absent::Hold;
    scenario.script = if follows { Script::Followed } else { Script::Given }(played.clone());
    let other = case.clone().in_order(case.order + 1);
    let replayed = run_within(&other, &scenario, MOST_EVENTS, &mut None)?;
    match played.difference(&replayed.played) {
        None => Ok(recorded.coverage),
        Some(what) => {
            let what = format!("{}: {what}", if follows { "follower" } else { "replay" });
            Err(Failure { case: other, what, scenario: format!("{scenario:?}") })
        }
    }
}
