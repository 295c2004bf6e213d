//! The interface between a caller's calls and the way in which ranks come together: round by round, or in groups by
//! order of arrival.
#![forbid(unsafe_code)]

use std::ops::{Range, RangeInclusive};

use super::core::{AutoQuorum, Cut, Effort, Particulars, Stats, slot_of};
use crate::error::Result;
use crate::executor::runner::Runner;
use crate::executor::work::Shared;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::{Absent, Grace, Mover};
use crate::time::Time;

/// The goal of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Goal {
    /// Outcomes that the caller can take.
    Outcome,
    /// No work is left for the arrival: its outcome is there, or there is no arrival.
    Arrival,
    /// This rank has left with its last round and has nothing in flight.
    Left,
    /// All ranks know that this rank has released everything.
    Gone,
}

/// A buffer for a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Buffer {
    pub(crate) number: u32,
    /// Its offset in the data memory of this host, in bytes.
    pub(crate) at: usize,
}

/// The constants of a collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) me: u32,
    pub(crate) ranks: u32,
    /// The length of a contribution.
    pub(crate) bytes: usize,
    /// The number of pieces in which a contribution can be filled after it is handed in.
    pub(crate) pieces: u64,
    /// The number of outcomes that a rank can hold.
    pub(crate) slots: usize,
    /// The last round that the collective can run.
    pub(crate) last_round: u64,
    /// The number of rounds before its first one, if it resumes from a checkpoint: its caller counts these, too.
    pub(crate) base: u64,
    /// Whether contributions have weights.
    pub(crate) weighted: bool,
    /// Whether its contributions tell how long they took.
    pub(crate) tells_durations: bool,
    /// Whether outcomes are models.
    pub(crate) has_memory: bool,
    pub(crate) absent: Absent,
    /// How data moves, by the name of the path.
    pub(crate) path: &'static str,
    pub(crate) mover: Mover,
    /// How long a round stays open after it fired.
    pub(crate) grace: Grace,
    /// The number of rounds that a rank may have unreleased.
    pub(crate) depth: u64,
    pub(crate) fault: Option<Fault>,
}

impl Facts {
    pub(crate) fn fault(&self, fault: Fault) -> bool {
        fault.is(self.fault)
    }

    /// Returns the index of a round's outcome among those that a rank can hold.
    pub(crate) fn slot(&self, round: u64) -> usize {
        slot_of(round, self.slots as u64)
    }
}

/// Completes a rank's arrivals, for a caller and a helper thread by turns. Rounds have numbers, which grow from one
/// outcome of a rank to the next.
pub(crate) trait Protocol: Shared {
    fn facts(&self) -> Facts;

    /// Returns the buffer of the next contribution.
    fn buffer(&self) -> Buffer;

    /// Hands in the next contribution. If it is `unfilled`, none of its pieces is there yet.
    fn arrive(&mut self, now: Time, particulars: Particulars, unfilled: bool);

    /// Returns the bytes of a piece, of [`Facts::pieces`].
    fn piece(&self, _piece: u64) -> Range<usize> {
        0..self.facts().bytes
    }

    /// Notes that all but the last `missing` pieces are there, in a buffer that was handed in unfilled.
    fn fill(&mut self, _buffer: u32, _missing: u64) {}

    /// Notes that all pieces are there, and reports what this rank has moved meanwhile.
    fn filled(&mut self) {}

    /// Takes the available outcomes: their cuts and offsets. There is at least one, except for a rank that leaves.
    /// `begun`: the caller has begun to write the next contribution.
    fn take(&mut self, begun: bool, cuts: &mut [Cut], places: &mut [usize]) -> RangeInclusive<u64>;

    /// Releases all rounds that the caller holds, up to a round.
    fn release(&mut self, newest: u64);

    /// Hands in the last, empty arrival. The caller repeats it if the outcomes that it took for it are of rounds
    /// without it.
    fn leave(&mut self, now: Time);

    /// Returns whether the last arrival is in a round.
    fn has_left(&self) -> bool;

    /// Releases everything. The last arrival is in a round.
    fn let_go(&mut self);

    /// Returns the ranks whose contributions an outcome can contain, where the ranks of `active` were active.
    fn members(&self, round: u64, active: RankSet) -> RankSet;

    /// Returns whether no contribution made for a held round or earlier enters a later one; `active` are the ranks that
    /// could make one.
    fn carries_nothing(&self, _round: u64, _cut: &Cut, _active: &RankSet) -> bool {
        false
    }

    /// Returns whether the outcome of the arrival is there.
    fn is_complete(&self) -> bool;

    /// Sets the goal that the engine works towards from now on, and returns the engine.
    fn towards(&mut self, goal: Goal) -> &mut Self;

    /// Returns whether other ranks need this one even when it has no arrival.
    fn serves(&self) -> bool {
        false
    }

    /// Works until no step is left now.
    ///
    /// # Errors
    /// An operation that failed.
    fn drive(&mut self, now: Time, effort: Effort) -> Result<()>;

    /// Works until a segment was moved, or no step is left now.
    ///
    /// # Errors
    /// An operation that failed.
    fn move_one(&mut self, _now: Time) -> Result<()> {
        Ok(())
    }

    /// Takes what has arrived from a network, and does no work for it.
    ///
    /// # Errors
    /// An endpoint that has failed.
    fn look(&mut self, now: Time) -> Result<()>;

    fn stats(&self) -> Stats;

    /// Returns what chooses the quorum of the next round, if the collective chooses it itself.
    fn auto_quorum(&self) -> Option<&AutoQuorum> {
        None
    }

    /// Returns the cuts that became known since the last call, if they are recorded.
    fn recorded(&mut self) -> Vec<Cut> {
        Vec::new()
    }

    /// Returns the runner of the rounds, if one runs them in place of the ranks.
    fn runner(&mut self) -> Option<&mut dyn Runner> {
        None
    }
}
