//! The life of a collective as its caller sees it: what it handed in, what it took and holds, and how it ends.
//!
//! A session never waits. Its caller works towards [`Session::goal`] with the engine, under any executor, and then
//! takes what is there. Neither of them reads a clock: the simulator drives them as the executors do.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::core::{Cut, FOREVER, Machine, Part, Plan};
use super::engine::{Engine, Goal};
use crate::error::{Error, Result};
use crate::executor::work::Shared;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::time::Time;

/// How far a rank has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Leaving {
    /// It has not begun to.
    No,
    /// Its last arrival is handed in.
    HandedIn,
    /// The last arrival is in a round, and this rank has released everything.
    LetGo,
    /// All ranks know that.
    Gone,
}

/// The state behind a caller's calls. The state of the work is in the [`Engine`], which a helper
/// thread may use in between.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    plan: Arc<Plan>,
    /// Cuts of the rounds that the caller holds, by slot.
    cuts: Vec<Cut>,
    /// The offsets of their outcomes.
    places: Vec<usize>,
    /// The last round that this collective can run.
    last_round: u64,
    /// Newest round that was returned.
    taken: u64,
    /// The buffer of the next contribution.
    buffer: u32,
    /// The caller may have begun to write it.
    begun: bool,
    /// The weight of the next contribution.
    weight: u16,
    /// An arrival whose outcome was not taken.
    outstanding: bool,
    leaving: Leaving,
    /// Newest round that was released.
    released: Cell<u64>,
    /// Newest round in which each rank was fresh, up to `released`.
    last_fresh: RefCell<Vec<u64>>,
    /// Ranks that are active after it.
    active: RefCell<RankSet>,
}

impl Session {
    pub(crate) fn new(engine: &Engine) -> Self {
        let plan = engine.machine().plan().clone();
        Session {
            cuts: (0..plan.slots()).map(|_| Cut::with_room_for(plan.ranks)).collect(),
            places: vec![0; plan.slots() as usize],
            last_round: engine.driver().last_round(),
            taken: 0,
            buffer: 0,
            begun: false,
            weight: 1,
            outstanding: false,
            leaving: Leaving::No,
            released: Cell::new(0),
            last_fresh: RefCell::new(vec![0; plan.ranks as usize]),
            active: RefCell::new(RankSet::full(plan.ranks)),
            plan,
        }
    }

    /// Makes the memory that rounds need now.
    pub(crate) fn reserve(&mut self) {
        self.cuts.iter_mut().for_each(Cut::reserve);
    }

    #[inline]
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Offset and bytes of the next contribution, which the caller begins to write.
    #[inline]
    pub(crate) fn begin(&mut self) -> (usize, usize) {
        self.begun = true;
        self.contribution()
    }

    /// Offset and bytes of the next contribution.
    #[inline]
    pub(crate) fn contribution(&self) -> (usize, usize) {
        (self.plan.contribution(self.plan.me, self.buffer), self.plan.bytes)
    }

    /// The buffer of the next contribution.
    pub(crate) fn buffer(&self) -> u32 {
        self.buffer
    }

    /// Whether the caller may have begun to write the next contribution.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Sets the weight of the next contribution.
    pub(crate) fn weigh(&mut self, weight: u16) {
        self.weight = weight;
    }

    /// Hands in the next contribution. If it is `unfilled`, none of its pieces is there yet.
    #[inline]
    pub(crate) fn arrive(&mut self, engine: &mut Engine, now: Time, unfilled: bool) {
        engine.begin_arrival(now);
        let weight = std::mem::replace(&mut self.weight, 1);
        let start = if unfilled { Machine::arrive_unfilled } else { Machine::arrive };
        start(engine.machine_mut(), now, weight);
        self.outstanding = true;
        let buffer = if self.plan.fault(Fault::KeepBuffer) { self.buffer } else { engine.machine().buffer() };
        (self.buffer, self.begun) = (buffer, false);
    }

    /// In a buffer that was handed in unfilled, all but the last `missing` pieces are there.
    pub(crate) fn fill(&self, engine: &mut Engine, buffer: u32, missing: u64) {
        engine.machine_mut().filled(buffer, missing);
    }

    /// All pieces are there: reports what this rank has moved meanwhile.
    pub(crate) fn filled(&self, engine: &mut Engine) {
        // The others must not have to wait until this rank returns to the library.
        engine.machine_mut().count_segments();
        // What this rank closed meanwhile took as long as its copy, so it is no measure of a round.
        engine.forget_time();
    }

    /// What the caller waits for.
    #[inline]
    pub(crate) fn goal(&self) -> Goal {
        match self.leaving {
            Leaving::No => Goal::Outcome,
            Leaving::HandedIn => Goal::Left,
            Leaving::LetGo | Leaving::Gone => Goal::Gone,
        }
    }

    /// Takes the outcomes. There are some: the goal was reached, and no helper thread had the engine since.
    #[inline]
    pub(crate) fn take(&mut self, engine: &mut Engine) -> RangeInclusive<u64> {
        let begun = self.begun && !self.plan.fault(Fault::ForgetBegun);
        let rounds = engine.machine_mut().take(begun);
        debug_assert!(!rounds.is_empty());
        engine.machine_mut().hand_cuts_to(rounds.clone(), &mut self.cuts);
        for round in rounds.clone() {
            self.places[self.plan.slot(round)] = engine.machine().outcome_at(round);
        }
        self.taken = *rounds.end();
        self.buffer = engine.machine().buffer();
        self.outstanding = false;
        rounds
    }

    /// Whether the caller, which returns to the application, leaves work to a helper thread.
    #[inline]
    pub(crate) fn leaves_work(&self, engine: &mut Engine) -> bool {
        engine.left_undone().is_some() && !self.plan.fault(Fault::ForgetThread)
    }

    /// Hands in the last, empty arrival.
    pub(crate) fn leave(&mut self, engine: &mut Engine) {
        engine.machine_mut().leave();
        self.leaving = Leaving::HandedIn;
    }

    /// The goal of a leaving rank is reached: sets the next one.
    pub(crate) fn go_on_leaving(&mut self, engine: &mut Engine) {
        match self.leaving {
            Leaving::No => {}
            Leaving::HandedIn => {
                engine.machine_mut().release(FOREVER);
                // If an operation failed after this rank has left, others would wait, and no rank could say why.
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

    /// Whether a leaving rank has nothing left to do.
    pub(crate) fn is_gone(&self) -> bool {
        self.leaving == Leaving::Gone
    }

    /// Whether round numbers are left. A late contribution may be carried a whole ring further, and
    /// a rank that leaves needs a round.
    pub(crate) fn has_rounds_left(&self) -> bool {
        self.taken < self.last_round.saturating_sub(1 << 20)
    }

    /// The cut of a held round.
    pub(crate) fn cut(&self, round: u64) -> &Cut {
        &self.cuts[self.plan.slot(round)]
    }

    /// The ranks with which this one averages in a held round.
    pub(crate) fn group(&self, round: u64) -> RankSet {
        let mut active = self.active.borrow().clone();
        for before in self.released.get() + 1..round {
            self.cut(before).leaving().for_each(|rank| active.remove(rank));
        }
        let Some(group) = self.plan.memory else { return active };
        let members = group.members(&active, round, self.plan.me);
        active.clear();
        members.into_iter().for_each(|rank| active.insert(rank));
        active
    }

    /// Offset and bytes of a held round's outcome.
    pub(crate) fn place(&self, round: u64) -> (usize, usize) {
        (self.places[self.plan.slot(round)], self.plan.bytes)
    }

    /// The newest released round in which a rank was fresh; 0 if there is none.
    pub(crate) fn last_fresh(&self, rank: u32) -> u64 {
        self.last_fresh.borrow().get(rank as usize).copied().unwrap_or(0)
    }

    /// Whether something is held that can be released.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.released.get() < self.taken
    }

    /// Hashes what its next steps depend on. They do not change what the caller holds.
    pub(crate) fn fingerprint(&self, state: &mut impl Hasher) {
        let Session { taken, buffer, begun, weight, outstanding, leaving, released, .. } = self;
        (taken, buffer, begun, weight, outstanding, leaving, released.get()).hash(state);
    }

    /// The caller releases all that it holds.
    #[inline]
    pub(crate) fn release(&self, engine: &mut Engine) {
        let before = self.released.replace(self.taken);
        let (mut last_fresh, mut active) = (self.last_fresh.borrow_mut(), self.active.borrow_mut());
        for round in before + 1..=self.taken {
            for entry in self.cut(round).entries.iter() {
                match entry.part {
                    Part::Fresh => last_fresh[entry.rank as usize] = round,
                    Part::Leaving => active.remove(entry.rank),
                    Part::Carried => {}
                }
            }
        }
        engine.machine_mut().release(self.taken);
    }

    /// Checks that there may be another arrival.
    pub(crate) fn check_free(&self, operation: &'static str) -> Result<()> {
        self.check_present(operation)?;
        let problem = "the outcome of the last arrival was not taken; call wait or test first";
        self.check(operation, !self.outstanding, problem)
    }

    /// Checks that there is an arrival whose outcome can be taken.
    pub(crate) fn check_outstanding(&self, operation: &'static str) -> Result<()> {
        let waits = self.outstanding && !self.is_leaving();
        self.check(operation, waits, "nothing was handed in; call arrive first")
    }

    /// Checks that this rank has not left.
    pub(crate) fn check_present(&self, operation: &'static str) -> Result<()> {
        self.check(operation, !self.is_leaving(), "this rank has finished")
    }

    pub(crate) fn check(&self, operation: &'static str, allowed: bool, problem: &'static str) -> Result<()> {
        if allowed { Ok(()) } else { Err(self.usage(operation, problem)) }
    }

    pub(crate) fn usage(&self, operation: &'static str, problem: &'static str) -> Error {
        Error::Usage { rank: self.plan.me, operation, problem }
    }
}
