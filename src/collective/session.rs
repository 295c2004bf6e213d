//! The life of a collective as its caller sees it: the contributions that it handed in, the outcomes that it took and
//! holds, and how the collective ends.
//!
//! A session never waits. Its caller works towards [`Session::goal`] with the engine, under any executor, and then
//! takes the outcomes. Neither of them reads a clock: the simulator drives them as the executors do. Any [`Protocol`]
//! can be the engine.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;

use super::core::{AutoQuorum, Cut, Part, Particulars, SavedQuorum};
use super::lateness::{Account, Lateness};
use super::protocol::{Buffer, Facts, Goal, Protocol};
use super::step_timer::StepTimer;
use crate::error::{Error, Misuse, Result};
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::time::Time;
use crate::trace::Event;

/// How far a rank has come with leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Leaving {
    /// The rank has not begun to leave.
    No,
    /// The rank's last arrival is handed in.
    HandedIn,
    /// The round of its last arrival has fired without it: the caller must hand it in again.
    Missed,
    /// The last arrival is in a round, and the caller has the outcome of that round.
    Entered,
    /// This rank has released everything.
    LetGo,
    /// All ranks know that this rank has released everything.
    Gone,
}

/// The state behind a caller's calls. The state of the work is in the engine, which a helper thread may use between
/// calls.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    facts: Facts,
    /// Cuts of the rounds that the caller holds, by slot.
    cuts: Vec<Cut>,
    /// The offsets of their outcomes.
    places: Vec<usize>,
    /// First and newest round that the last call with outcomes returned.
    first: u64,
    taken: u64,
    /// The buffer of the next contribution.
    buffer: Buffer,
    /// Whether the caller may have begun to write it.
    begun: bool,
    /// The weight of the next contribution.
    weight: u16,
    timer: StepTimer,
    /// Whether there is an arrival whose outcome was not taken.
    outstanding: bool,
    leaving: Leaving,
    /// Newest round that was released.
    released: Cell<u64>,
    /// What the rounds up to `released` tell of each rank.
    account: RefCell<Account>,
    /// Ranks that are active after round `released`.
    active: RefCell<RankSet>,
    /// What chooses quorums, after round `released`: a checkpoint of a held round continues from there.
    auto: Option<Box<RefCell<AutoQuorum>>>,
}

impl Session {
    pub(crate) fn new(engine: &impl Protocol) -> Self {
        let facts = engine.facts();
        Session {
            cuts: (0..facts.slots).map(|_| Cut::with_room_for(facts.ranks)).collect(),
            places: vec![0; facts.slots],
            first: 1,
            taken: 0,
            buffer: engine.buffer(),
            begun: false,
            weight: 1,
            timer: StepTimer::new(facts.tells_durations),
            outstanding: false,
            leaving: Leaving::No,
            released: Cell::new(0),
            account: RefCell::new(Account::new(facts.ranks)),
            active: RefCell::new(RankSet::full(facts.ranks)),
            auto: engine.auto_quorum().map(|auto| Box::new(RefCell::new(auto.clone()))),
            facts,
        }
    }

    /// Measures even short steps, as the simulator's are.
    #[cfg(any(test, earlybird_tools))]
    pub(crate) fn measure_all_steps(&mut self) {
        self.timer.measure_all();
    }

    /// Reserves now the memory that rounds need.
    pub(crate) fn reserve(&mut self) {
        self.cuts.iter_mut().for_each(Cut::reserve);
        self.account.get_mut().reserve();
    }

    /// Returns the facts that do not change.
    #[inline]
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the offset and bytes of the next contribution, which the caller begins to write.
    #[inline]
    pub(crate) fn begin(&mut self) -> (usize, usize) {
        self.begun = true;
        self.contribution()
    }

    /// Returns the offset and bytes of the next contribution.
    #[inline]
    pub(crate) fn contribution(&self) -> (usize, usize) {
        (self.buffer.at, self.facts.bytes)
    }

    /// Returns the number of the next contribution's buffer.
    pub(crate) fn buffer(&self) -> u32 {
        self.buffer.number
    }

    /// Returns whether the caller may have begun to write the next contribution.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Sets the weight of the next contribution.
    pub(crate) fn weigh(&mut self, weight: u16) {
        self.weight = weight;
    }

    /// Returns whether [`arrive`](Session::arrive) needs the time, apart from the engine.
    #[inline]
    pub(crate) fn needs_time(&self) -> bool {
        self.timer.needs_time()
    }

    /// Hands in the next contribution. If it is `unfilled`, none of its pieces is there yet. Returns what it says about
    /// itself.
    #[inline]
    pub(crate) fn arrive(&mut self, engine: &mut impl Protocol, now: Time, unfilled: bool) -> Particulars {
        let durations = self.timer.arrives(now);
        let weight = std::mem::replace(&mut self.weight, 1);
        let told = Particulars::new(weight, durations);
        engine.arrive(now, told, unfilled);
        self.outstanding = true;
        self.begun = false;
        if !self.facts.fault(Fault::KeepBuffer) {
            self.buffer = engine.buffer();
        }
        told
    }

    /// Returns what the caller waits for.
    #[inline]
    pub(crate) fn goal(&self) -> Goal {
        match self.leaving {
            Leaving::No | Leaving::HandedIn | Leaving::Missed => Goal::Outcome,
            Leaving::Entered => Goal::Left,
            Leaving::LetGo | Leaving::Gone => Goal::Gone,
        }
    }

    /// Notes that the caller waits in a call for its outcome.
    #[inline]
    pub(crate) fn waits(&mut self, now: impl FnOnce() -> Time) {
        self.timer.waits(now);
    }

    /// Notes that the application begins to compute its next contribution only now.
    pub(crate) fn computes(&mut self, now: impl FnOnce() -> Time) {
        self.timer.computes(now);
    }

    /// Notes when the caller got the outcomes that were taken.
    #[inline]
    pub(crate) fn took(&mut self, now: impl FnOnce() -> Time) {
        self.timer.took(self.taken, now);
    }

    /// Takes the outcomes. There are some: the goal was reached, and no helper thread has used the engine since.
    #[inline]
    pub(crate) fn take(&mut self, engine: &mut impl Protocol) -> RangeInclusive<u64> {
        let begun = self.begun && !self.facts.fault(Fault::ForgetBegun);
        let rounds = engine.take(begun, &mut self.cuts, &mut self.places);
        debug_assert!(!rounds.is_empty() || self.is_leaving());
        (self.first, self.taken) = (*rounds.start(), *rounds.end());
        self.buffer = engine.buffer();
        self.outstanding = false;
        if self.leaving == Leaving::HandedIn {
            self.leaving = if engine.has_left() { Leaving::Entered } else { Leaving::Missed };
        }
        rounds
    }

    /// Returns whether the caller, which returns to the application, leaves work to a helper thread.
    #[inline]
    pub(crate) fn leaves_work(&self, engine: &mut impl Protocol) -> bool {
        engine.left_undone().is_some() && !self.facts.fault(Fault::ForgetThread)
    }

    /// Returns whether the caller must hand in the last arrival, once it has released its outcomes.
    pub(crate) fn is_to_leave(&self) -> bool {
        matches!(self.leaving, Leaving::No | Leaving::Missed)
    }

    /// Hands in the last, empty arrival.
    pub(crate) fn leave(&mut self, engine: &mut impl Protocol, now: Time) {
        engine.leave(now);
        self.leaving = Leaving::HandedIn;
    }

    /// Sets the next goal of a leaving rank, which has reached its goal.
    pub(crate) fn go_on_leaving(&mut self, engine: &mut impl Protocol) {
        match self.leaving {
            Leaving::No | Leaving::HandedIn | Leaving::Missed => {}
            Leaving::Entered => {
                engine.let_go();
                // If an operation failed after this rank has left, others would wait, and no rank could report the
                // reason.
                self.leaving = Leaving::LetGo;
            }
            Leaving::LetGo | Leaving::Gone => self.leaving = Leaving::Gone,
        }
    }

    pub(crate) fn is_outstanding(&self) -> bool {
        self.outstanding
    }

    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving != Leaving::No
    }

    /// Returns whether a leaving rank has nothing left to do.
    pub(crate) fn is_gone(&self) -> bool {
        self.leaving == Leaving::Gone
    }

    /// Returns the round for which the next contribution is made, by the caller's number.
    pub(crate) fn next_round(&self) -> u64 {
        self.facts.base + self.taken + 1
    }

    /// Returns the event of having taken rounds.
    pub(crate) fn takes(&self, rounds: &RangeInclusive<u64>) -> Event {
        let (base, me) = (self.facts.base, self.facts.me);
        let fresh = rounds.clone().find(|&round| self.cut(round).holds(me, Part::Fresh)).map(|round| base + round);
        Event::Takes { first: base + rounds.start(), last: base + rounds.end(), fresh }
    }

    /// Returns whether round numbers are left. A late contribution may be carried a whole ring further, and a rank that
    /// leaves needs a round.
    pub(crate) fn has_rounds_left(&self) -> bool {
        self.taken < self.facts.last_round.saturating_sub(1 << 20)
    }

    /// Returns the cut of a held round.
    pub(crate) fn cut(&self, round: u64) -> &Cut {
        &self.cuts[self.facts.slot(round)]
    }

    /// Returns the ranks that were active in a held round.
    pub(crate) fn active_in(&self, round: u64) -> RankSet {
        let mut active = self.active.borrow().clone();
        for before in self.oldest_held()..round {
            self.cut(before).leaving().for_each(|rank| active.remove(rank));
        }
        active
    }

    /// Returns the offset and bytes of a held round's outcome.
    pub(crate) fn place(&self, round: u64) -> (usize, usize) {
        debug_assert!(self.held().contains(&round), "G2: an outcome is lent from its landing to its release");
        (self.places[self.facts.slot(round)], self.facts.bytes)
    }

    /// Returns the rounds that the caller holds.
    pub(crate) fn held(&self) -> RangeInclusive<u64> {
        self.oldest_held()..=self.taken
    }

    fn oldest_held(&self) -> u64 {
        self.first.max(self.released.get() + 1)
    }

    /// Returns the newest released round in which a rank was fresh; 0 if there is none.
    pub(crate) fn last_fresh(&self, rank: u32) -> u64 {
        self.account.borrow().last_fresh(rank)
    }

    /// Returns what quorums follow from after a held round, or the newest released one.
    pub(crate) fn quorum_after(&self, round: u64) -> Option<SavedQuorum> {
        let mut auto = self.auto.as_ref()?.borrow().clone();
        let mut active = self.active.borrow().clone();
        for held in self.oldest_held()..=round {
            self.cut(held).leaving().for_each(|rank| active.remove(rank));
            auto.learn(self.facts.base + held, self.cut(held), &active);
        }
        Some(auto.save())
    }

    /// Returns the account of the rounds that were released.
    pub(crate) fn lateness(&self) -> Lateness {
        self.account.borrow().lateness()
    }

    /// Returns whether the caller holds a round that can be released.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.released.get() < self.taken
    }

    /// Hashes the state that the session's next steps depend on. They do not change what the caller holds.
    pub(crate) fn fingerprint(&self, state: &mut impl Hasher) {
        let Session { taken, buffer, begun, weight, timer, outstanding, leaving, released, .. } = self;
        (taken, buffer, begun, weight, timer, outstanding, leaving, released.get()).hash(state);
    }

    /// Releases the rounds that the caller holds, up to a round.
    #[inline]
    pub(crate) fn release(&self, engine: &mut impl Protocol, newest: u64) {
        debug_assert!(newest <= self.taken);
        let oldest = self.oldest_held();
        self.released.set(newest);
        let (mut account, mut active) = (self.account.borrow_mut(), self.active.borrow_mut());
        for round in oldest..=newest {
            account.add(round, self.cut(round), |rank| active.remove(rank));
            if let Some(auto) = &self.auto {
                auto.borrow_mut().learn(self.facts.base + round, self.cut(round), &active);
            }
        }
        engine.release(newest);
    }

    /// Checks that the caller may make another arrival.
    pub(crate) fn check_free(&self, operation: &'static str) -> Result<()> {
        self.check_present(operation)?;
        let problem = Misuse::Order("the outcome of the last arrival was not taken; call wait or try_wait first");
        self.check(operation, !self.outstanding, problem)
    }

    /// Checks that there is an arrival whose outcome can be taken.
    pub(crate) fn check_outstanding(&self, operation: &'static str) -> Result<()> {
        self.check_present(operation)?;
        self.check(operation, self.outstanding, Misuse::Order("nothing was handed in; call arrive first"))
    }

    /// Checks that this rank has not left.
    pub(crate) fn check_present(&self, operation: &'static str) -> Result<()> {
        self.check(operation, !self.is_leaving(), Misuse::Finished("this rank has finished"))
    }

    pub(crate) fn check(&self, operation: &'static str, allowed: bool, problem: Misuse) -> Result<()> {
        if allowed { Ok(()) } else { Err(self.usage(operation, problem)) }
    }

    pub(crate) fn usage(&self, operation: &'static str, problem: Misuse) -> Error {
        Error::Usage { rank: self.facts.me, operation, problem }
    }
}
