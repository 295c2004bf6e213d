//! What a caller's calls need of the way in which ranks come together: round by round, or in groups by order of arrival.
#![forbid(unsafe_code)]

use std::ops::{Range, RangeInclusive};

use super::core::{Cut, Effort, Stats, slot_of};
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
    /// After the round in which this rank leaves: nothing of it is under way.
    Left,
    /// All ranks know that this one has released everything.
    Gone,
}

/// A buffer for a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Buffer {
    pub(crate) number: u32,
    /// Where it lies in the data memory of the own host, in bytes.
    pub(crate) at: usize,
}

/// What a collective is from its beginning to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) me: u32,
    pub(crate) ranks: u32,
    /// The length of a contribution.
    pub(crate) bytes: usize,
    /// The pieces in which a contribution can be filled after it is handed in.
    pub(crate) pieces: u64,
    /// The outcomes that a rank can hold.
    pub(crate) slots: usize,
    /// The last round that it can run.
    pub(crate) last_round: u64,
    /// The rounds before its first one, from whose checkpoint it goes on: its caller counts these, too.
    pub(crate) base: u64,
    /// Contributions have weights.
    pub(crate) weighted: bool,
    /// Outcomes are models.
    pub(crate) has_memory: bool,
    pub(crate) absent: Absent,
    /// How data moves.
    pub(crate) path: &'static str,
    pub(crate) mover: Mover,
    /// How long a round stays open after it fired.
    pub(crate) grace: Grace,
    /// Rounds that a rank may have unreleased.
    pub(crate) depth: u64,
    pub(crate) fault: Option<Fault>,
}

impl Facts {
    pub(crate) fn fault(&self, fault: Fault) -> bool {
        fault.is(self.fault)
    }

    /// Where the outcome of a round is among those that a rank can hold.
    pub(crate) fn slot(&self, round: u64) -> usize {
        slot_of(round, self.slots as u64)
    }
}

/// Carries a rank's arrivals through, for a caller and a helper thread by turns. Rounds have numbers, which grow from one
/// outcome of a rank to the next.
pub(crate) trait Protocol: Shared {
    fn facts(&self) -> Facts;

    /// The buffer of the next contribution.
    fn buffer(&self) -> Buffer;

    /// Hands in the next contribution. If it is `unfilled`, none of its pieces is there yet.
    fn arrive(&mut self, now: Time, weight: u16, unfilled: bool);

    /// The bytes of a piece, of [`Facts::pieces`].
    fn piece(&self, _piece: u64) -> Range<usize> {
        0..self.facts().bytes
    }

    /// In a buffer that was handed in unfilled, all but the last `missing` pieces are there.
    fn fill(&mut self, _buffer: u32, _missing: u64) {}

    /// All pieces are there: reports what this rank has moved meanwhile.
    fn filled(&mut self) {}

    /// Takes the outcomes that are there: their cuts and places. There are one or more, except for a rank that leaves. Whether
    /// the caller has `begun` to write the next contribution.
    fn take(&mut self, begun: bool, cuts: &mut [Cut], places: &mut [usize]) -> RangeInclusive<u64>;

    /// The caller releases all that it holds, up to a round.
    fn release(&mut self, newest: u64);

    /// Hands in the last, empty arrival; again, if the outcomes that were taken for it are of rounds without it.
    fn leave(&mut self, now: Time);

    /// Whether the last arrival is in a round.
    fn has_left(&self) -> bool;

    /// The last arrival is in a round: this rank releases everything.
    fn let_go(&mut self);

    /// The ranks whose contributions an outcome can have, where the ranks of `active` were active.
    fn members(&self, round: u64, active: RankSet) -> RankSet;

    /// Whether nothing that was contributed for a held round or before enters a later one; `active` are the ranks that could.
    fn carries_nothing(&self, _round: u64, _cut: &Cut, _active: &RankSet) -> bool {
        false
    }

    /// Whether the outcome of the arrival is there.
    fn is_complete(&self) -> bool;

    /// The same, working towards a goal from here on.
    fn towards(&mut self, goal: Goal) -> &mut Self;

    /// Whether other ranks need this one also when it has no arrival.
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

    /// Takes what has come from a network, and does no work for it.
    ///
    /// # Errors
    /// An endpoint that has failed.
    fn look(&mut self, now: Time) -> Result<()>;

    fn stats(&self) -> Stats;

    /// The cuts that became known since this was asked last, if they are to be recorded.
    fn recorded(&mut self) -> Vec<Cut> {
        Vec::new()
    }

    /// What runs the rounds in place of the ranks.
    fn runner(&mut self) -> Option<&mut dyn Runner> {
        None
    }
}
