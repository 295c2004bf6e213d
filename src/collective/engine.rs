//! Completes a rank's arrivals: the driver, and how a wait for it proceeds.
#![forbid(unsafe_code)]

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use super::core::{AutoQuorum, Cut, Effort, FOREVER, Machine, Part, Particulars, Stats};
use super::driver::Driver;
use super::following::Following;
use super::protocol::{Buffer, Facts, Goal, Protocol};
use crate::error::{Ranks, Result};
use crate::executor::runner::Runner;
use crate::executor::work::{Outlived, Polled, Polls, Rest, Shared, Work};
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::{AgreementBy, MovementBy, Mover};
use crate::time::Time;
use crate::trace::{Event, Track};

/// A driver and its state between two calls. The caller uses it, or a helper thread in the caller's place.
#[derive(Debug)]
pub(crate) struct Engine {
    driver: Driver,
    /// The goal that it works towards.
    goal: Goal,
    /// Polls also search for work that others left, until none is left.
    searches: bool,
    /// When this rank closed the round whose landing is measured.
    closed: Option<Time>,
    following: Option<Box<Following>>,
    traced: Option<Box<Traced>>,
}

/// The track of a collective, and what it has told.
#[derive(Debug)]
struct Traced {
    track: Arc<Track>,
    fired: u64,
    landed: u64,
}

impl Traced {
    /// Tells what has become known or complete since the last call. A cut is there until its round is taken.
    #[cold]
    fn follow(&mut self, machine: &Machine) {
        let plan = machine.plan();
        for round in self.fired + 1..=machine.fired() {
            let (number, cut) = (plan.number(round), machine.cut(round));
            if cut.initiator() == Some(plan.me) {
                self.track.tell(Event::Fires { round: number });
            }
            let count = |part| cut.entries().filter(|entry| entry.part == part).count();
            let (fresh, carried) = (count(Part::Fresh), count(Part::Carried));
            self.track.tell(Event::Learns { round: number, fresh, carried });
        }
        for round in self.landed + 1..=machine.landed() {
            self.track.tell(Event::Lands { round: plan.number(round) });
        }
        (self.fired, self.landed) = (machine.fired(), machine.landed());
    }
}

impl Engine {
    pub(crate) fn new(driver: Driver) -> Self {
        Engine { driver, goal: Goal::Outcome, searches: false, closed: None, following: None, traced: None }
    }

    /// Sets the collectives that this engine leads, or the one that leads it.
    pub(crate) fn with_following(mut self, following: Option<Following>) -> Self {
        self.following = following.map(Box::new);
        self
    }

    /// Tells a track what happens from now on.
    pub(crate) fn traced_by(mut self, track: Option<&Arc<Track>>) -> Self {
        let (fired, landed) = (self.machine().fired(), self.machine().landed());
        self.traced = track.map(|track| Box::new(Traced { track: track.clone(), fired, landed }));
        self
    }

    #[inline]
    pub(crate) fn machine(&self) -> &Machine {
        self.driver.machine()
    }

    fn machine_mut(&mut self) -> &mut Machine {
        self.driver.machine_mut()
    }

    #[inline]
    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    #[inline]
    fn has_reached(&self, goal: Goal) -> bool {
        let machine = self.machine();
        match goal {
            Goal::Outcome => self.is_complete(),
            // If others need a rank, its work does not end with an arrival.
            Goal::Arrival => (self.is_complete() || !machine.has_arrival()) && !machine.serves(),
            Goal::Left => machine.is_finished(),
            Goal::Gone => machine.has_gone(),
        }
    }

    /// Gives the followers the cuts that this rank knows, or takes those of the leader.
    #[inline]
    fn pass_cuts(&mut self) {
        if let Some(following) = &mut self.following {
            following.pass(self.driver.machine_mut());
        }
    }

    /// Traces what a step has brought, and passes cuts on.
    #[inline]
    fn stepped(&mut self) {
        self.trace();
        self.pass_cuts();
    }

    #[inline]
    fn trace(&mut self) {
        if let Some(traced) = &mut self.traced {
            traced.follow(self.driver.machine());
        }
    }

    /// Forgets when this rank closed a round: the rank was busy with something else, so the time is not a measure.
    fn forget_time(&mut self) {
        self.machine_mut().measured(None);
        self.closed = None;
    }

    /// Takes one step, with this effort; returns whether there was one.
    ///
    /// # Errors
    /// An operation that failed.
    pub(crate) fn step(&mut self, now: Time, effort: Effort) -> Result<bool> {
        self.pass_cuts();
        let stepped = self.driver.step(now, effort);
        self.stepped();
        stepped
    }

    /// Takes one step, unless the caller can have its outcome without it; returns whether there was one.
    ///
    /// # Errors
    /// An operation that failed.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time, effort: Effort) -> Result<bool> {
        Ok(!self.has_all_without_polling() && self.step(now, effort)?)
    }

    /// Advances until there is nothing left to do.
    fn drive_on(&mut self, now: Time, effort: Effort) -> Result<()> {
        loop {
            self.driver.carry_out(now)?;
            if self.has_all_without_polling() || !self.driver.step(now, effort)? {
                return Ok(());
            }
        }
    }

    /// Returns whether the outcome is there, all operations are carried out, and there is no network: then polling
    /// again cannot help any rank. Collectives that share cuts poll anyway, because the others wait for what one of
    /// them learns.
    #[inline]
    fn has_all_without_polling(&self) -> bool {
        let machine = self.machine();
        let alone = self.following.is_none() && machine.plan().topology.is_one_host();
        alone && machine.peek_op().is_none() && machine.is_ready()
    }

    /// Returns all state that changes, except memory and times.
    pub(crate) fn save(&self) -> (Machine, bool) {
        (self.machine().clone(), self.searches)
    }

    /// Returns whether polls search for work that others left.
    pub(crate) fn searches(&self) -> bool {
        self.searches
    }

    /// Restores the state that `save` returned.
    pub(crate) fn restore(&mut self, machine: &Machine, searches: bool) {
        self.machine_mut().clone_from(machine);
        self.searches = searches;
    }
}

impl Protocol for Engine {
    fn facts(&self) -> Facts {
        let (plan, last_round) = (self.machine().plan(), self.driver.last_round());
        Facts {
            me: plan.me,
            ranks: plan.ranks,
            bytes: plan.bytes,
            pieces: plan.pieces(),
            slots: plan.slots() as usize,
            last_round,
            base: plan.base,
            weighted: plan.weighted,
            tells_durations: !plan.weighted && plan.agreement != AgreementBy::Runner,
            has_memory: plan.has_memory(),
            absent: plan.absent,
            path: plan.path_name(),
            mover: if plan.movement == MovementBy::Program { Mover::Tree } else { Mover::Cut },
            grace: plan.grace,
            depth: plan.depth,
            fault: plan.fault,
        }
    }

    #[inline]
    fn buffer(&self) -> Buffer {
        let (plan, number) = (self.machine().plan(), self.machine().buffer());
        Buffer { number, at: plan.contribution(plan.me, number) }
    }

    /// Begins an arrival. The duration of a round that was closed before can no longer be known.
    #[inline]
    fn arrive(&mut self, now: Time, particulars: Particulars, unfilled: bool) {
        let start = if unfilled { Machine::arrive_unfilled } else { Machine::arrive };
        let machine = self.machine_mut();
        machine.measured(None);
        start(machine, now, particulars);
        self.closed = Some(now);
    }

    fn piece(&self, piece: u64) -> Range<usize> {
        let (from, len) = self.machine().plan().piece_span(piece);
        from..from + len
    }

    fn fill(&mut self, buffer: u32, missing: u64) {
        self.machine_mut().filled(buffer, missing);
    }

    fn filled(&mut self) {
        // The others must not have to wait until this rank returns to the library.
        self.machine_mut().count_segments();
        // A round that this rank closed meanwhile took as long as its copy, so the time is not a measure of a round.
        self.forget_time();
    }

    #[inline]
    fn take(&mut self, begun: bool, cuts: &mut [Cut], places: &mut [usize]) -> RangeInclusive<u64> {
        let machine = self.machine_mut();
        let rounds = machine.take(begun);
        machine.hand_cuts_to(rounds.clone(), cuts);
        for round in rounds.clone() {
            let slot = machine.plan().slot(round);
            places[slot] = machine.outcome_at(round);
            cuts[slot].round = machine.plan().number(round);
        }
        rounds
    }

    #[inline]
    fn release(&mut self, newest: u64) {
        self.machine_mut().release(newest);
    }

    fn leave(&mut self, _now: Time) {
        self.machine_mut().leave();
    }

    fn has_left(&self) -> bool {
        self.machine().has_left()
    }

    fn let_go(&mut self) {
        self.machine_mut().release(FOREVER);
    }

    fn members(&self, round: u64, mut active: RankSet) -> RankSet {
        let plan = self.machine().plan();
        let Some(group) = plan.memory else { return active };
        let members = group.members(&active, plan.number(round), plan.me);
        active.clear();
        members.into_iter().for_each(|rank| active.insert(rank));
        active
    }

    /// Returns true if the round has a contribution of each active rank. In a full round, a rank with only a carried
    /// contribution has waited for the round with it.
    fn carries_nothing(&self, round: u64, cut: &Cut, active: &RankSet) -> bool {
        self.machine().plan().is_full(round) || active.iter().all(|rank| cut.holds(rank, Part::Fresh))
    }

    #[inline]
    fn is_complete(&self) -> bool {
        self.machine().is_ready()
    }

    #[inline]
    fn towards(&mut self, goal: Goal) -> &mut Self {
        self.goal = goal;
        self
    }

    fn serves(&self) -> bool {
        self.machine().serves()
    }

    fn drive(&mut self, now: Time, effort: Effort) -> Result<()> {
        self.pass_cuts();
        let driven = self.drive_on(now, effort);
        self.stepped();
        driven
    }

    fn move_one(&mut self, now: Time) -> Result<()> {
        self.driver.move_one(now)
    }

    fn look(&mut self, now: Time) -> Result<()> {
        self.driver.look(now)?;
        self.drive(now, Effort::Nothing)
    }

    fn stats(&self) -> Stats {
        self.machine().stats()
    }

    fn auto_quorum(&self) -> Option<&AutoQuorum> {
        self.machine().auto_quorum()
    }

    fn recorded(&mut self) -> Vec<Cut> {
        match &mut self.following {
            None => self.machine_mut().recorded(),
            Some(following) => following.recorded(),
        }
    }

    fn runner(&mut self) -> Option<&mut dyn Runner> {
        self.driver.runner()
    }
}

impl Shared for Engine {
    fn left_undone(&mut self) -> Option<&mut Self> {
        // Once the outcome is there, the caller may stay away for long, and so would a claim of its helper thread.
        // Decided operations are carried out anyway, because other ranks may wait for them.
        let machine = self.machine();
        let decided = machine.peek_op().is_some() || machine.plan().fault(Fault::HelpUnasked);
        let needed = decided || !self.has_reached(Goal::Arrival);
        needed.then(|| self.towards(Goal::Arrival))
    }

    fn has_result(&self) -> bool {
        self.is_complete()
    }

    fn is_asleep(&self) -> bool {
        let has_news = self.following.as_ref().is_some_and(|following| following.has_news());
        self.driver.is_delegated() && !has_news
    }
}

impl Work for Engine {
    fn needs_time(&self) -> bool {
        self.machine().needs_time()
    }

    fn polls(&self, yields: bool) -> Polls {
        Polls::new(yields, self.machine().plan().topology.is_one_host())
    }

    #[inline]
    fn poll(&mut self, now: Time) -> Result<Polled> {
        // The arrival may have brought the outcome.
        if self.goal == Goal::Outcome && self.has_all_without_polling() {
            self.searches = false;
            return Ok(Polled::Ready);
        }
        let effort = if self.searches { Effort::Search } else { Effort::Work };
        if self.step(now, effort)? {
            // The outcome is there, so polling a network could only cost time. A rank that leaves still has to poll: a
            // completion that frees it may also free something that others wait for, such as its share of a round.
            let outcome = matches!(self.goal, Goal::Outcome | Goal::Arrival);
            if !outcome || self.machine().peek_op().is_some() || !self.has_reached(self.goal) {
                return Ok(Polled::Progress);
            }
            self.searches = false;
            return Ok(Polled::Ready);
        }
        self.searches = false;
        Ok(if self.has_reached(self.goal) { Polled::Ready } else { Polled::Idle })
    }

    /// Only rounds that this rank closes from now on are timed. For a round that it closed when it last left the
    /// library, the time would include its absence.
    fn begin(&mut self) {
        self.forget_time();
    }

    #[inline]
    fn wants_time(&mut self, polled: Time) -> bool {
        let Some(round) = self.machine().unmeasured() else { return false };
        self.closed.get_or_insert(polled);
        self.machine().landed() >= round
    }

    fn time(&mut self, now: Time) {
        let latency = self.closed.take().map(|closed| now.saturating_sub(closed));
        self.machine_mut().measured(latency);
    }

    fn next_timer(&self) -> Option<Time> {
        self.machine().next_timer()
    }

    fn search(&mut self) {
        self.searches = true;
    }

    fn rest(&mut self, now: Time) -> Result<Rest> {
        let Engine { driver, searches, .. } = self;
        let interest = driver.machine().interest() as u32;
        driver.endpoint().prepare_wait(interest);
        let unseen = driver.machine().plan().fault(Fault::SleepUnseen);
        if !unseen && driver.step(now, Effort::Search)? {
            driver.endpoint().cancel_wait();
            self.trace();
            return Ok(Rest::Awake);
        }
        *searches = false;
        let back_off = driver.back_off().map(|back_off| now.saturating_add(back_off.as_nanos() as Time));
        let machine = driver.machine();
        let timer = machine.next_timer().filter(|_| !machine.plan().fault(Fault::SleepThroughTimers));
        Ok(Rest::Asleep { until: [timer, back_off].into_iter().flatten().min() })
    }

    fn sleep(&mut self, at_most: Duration) {
        self.driver.endpoint().wait(at_most);
        self.searches = true;
    }

    fn rouse(&mut self) {
        self.driver.endpoint().cancel_wait();
        self.searches = true;
    }

    fn delegate(&mut self) -> bool {
        self.driver.endpoint().delegate_wait()
    }

    fn missing(&self) -> Ranks {
        Ranks(self.driver.missing().iter().collect())
    }

    fn hear_of(&mut self, dead: u32) {
        self.machine_mut().inherit(dead);
    }

    fn outlive(&mut self, now: Time) -> Result<Outlived> {
        if self.step(now, Effort::Search)? {
            return Ok(Outlived::Progress);
        }
        Ok(match () {
            () if self.has_reached(self.goal) => Outlived::Ready,
            () if self.machine().plan().fault(Fault::GiveUpEarly) => Outlived::Lost,
            () if self.driver.is_pending() => Outlived::Pending,
            () => Outlived::Lost,
        })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
