//! One rank of a simulated world: a caller, and the thread that helps it if it has one.
//!
//! Both drive the session and the engine that the library's own executors drive, a step at a time. They do the same as
//! `collective/raw.rs` and `executor/`; when they do it is drawn.

mod helper;
mod judged;
mod saved;
mod writing;

use std::ops::Range;
use std::rc::Rc;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::oracle::Oracle;
use super::replay::Lead;
use super::scenario::{Death, Habits, Since};
use crate::collective::core::{Cut, Effort, Stats, Time};
use crate::collective::driver::Driver;
use crate::collective::engine::Engine;
use crate::collective::protocol::{Goal, Protocol};
use crate::collective::session::Session;
use crate::executor::work::{Outlived, Polled, Rest, Work};
use crate::fabric::HostMemory;
use crate::rule::When;
use helper::Helper;
pub(super) use saved::{DeathOf, Saved};

/// When a rank wants its next turn.
#[derive(Debug)]
pub(super) enum Next {
    /// After this time; 0: in the same turn.
    After(Time),
    /// When woken, or at this time.
    Parked(Option<Time>),
    Gone,
    /// One of its operations completed with an error: the rank gives up, and reports it.
    Broke,
}

/// A limit that no turn reaches that makes progress.
const MOST_STEPS: u32 = 1_000_000;

/// Why a turn did not complete.
#[derive(Debug)]
enum Trouble {
    /// The fabric failed.
    Broke,
    /// A guarantee does not hold.
    Violation(String),
}

impl From<String> for Trouble {
    fn from(what: String) -> Self {
        Trouble::Violation(what)
    }
}

type Step<T> = Result<T, Trouble>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Computing,
    /// In `arrive_with`: its contribution is handed in and filled up to this piece.
    Filling {
        buffer: u32,
        piece: u64,
    },
    /// In `arrive`.
    Arriving,
    /// Outside the library, after handing in its arrival.
    Away,
    /// In `wait`, or in `finish` when nothing is left to contribute.
    Waiting {
        /// Its deadline.
        until: Option<Time>,
        /// Whether there was nothing to do at its last poll.
        idle: bool,
    },
    /// As waiting, but announced as asleep.
    Parked {
        until: Option<Time>,
    },
    /// Does what there is to do and goes away, unless it finds its goal reached: in `try_wait`, or at its deadline.
    Testing {
        late: bool,
    },
    /// Reads outcomes up to this round.
    Holding {
        round: u64,
    },
    /// Has dropped the outcomes.
    Releasing,
    Gone,
    /// Failed, and knows which ranks died.
    Failed,
    Dead,
}

#[derive(Debug)]
pub(super) struct Actor {
    engine: Engine,
    session: Session,
    memory: HostMemory,
    habits: Habits,
    doing: Doing,
    helper: Helper,
    /// When the caller and its thread continue: the one that is first has the next turn.
    caller_at: Option<Time>,
    helper_at: Option<Time>,
    made: u32,
    /// The last round of each wait that returned rounds.
    ends: Vec<u64>,
    /// The collective whose cuts it follows, if there is one.
    lead: Option<Lead>,
    /// The newest round that the oracle has judged through this rank's eyes.
    judged: u64,
    /// The number of drops that the oracle has been told about.
    dropped: u64,
    pub(super) turns: u64,
    /// When it hears of which deaths.
    news: Vec<(Time, u32)>,
    /// The dead ranks that this rank knows of.
    heard: Vec<u32>,
    /// The number of its turns at which it handed in its last arrival, and at which it first heard of a death.
    left_off: Option<u64>,
    mourns: Option<u64>,
    /// When it hears that a rank aborted.
    aborted: Option<Time>,
    /// The operations that it made, as bits.
    performed: u32,
    met: Met,
}

/// What callers and threads met.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Met {
    /// The number of tests that found nothing.
    pub(super) tests: u64,
    /// The number of deadlines of a wait that passed.
    pub(super) timeouts: u64,
    /// The number of arrivals that a thread completed.
    pub(super) helped: u64,
    /// The number of times that a thread had to give up its work.
    pub(super) interrupted: u64,
}

impl Actor {
    pub(super) fn new(driver: Driver, habits: Habits, lead: Option<Lead>) -> Self {
        let memory = driver.memory();
        let engine = Engine::new(driver).with_following(lead.as_ref().map(Lead::following));
        let serves = habits.thread && engine.machine().serves();
        let mut session = Session::new(&engine);
        if matches!(engine.machine().plan().fire.when(), When::Auto(_)) {
            // Runs have few steps, and they are short.
            session.measure_all_steps();
        }
        Actor {
            session,
            engine,
            memory,
            habits,
            doing: Doing::Computing,
            helper: if serves { Helper::HeadStart } else { Helper::Idle },
            caller_at: Some(0),
            helper_at: serves.then_some(1),
            made: 0,
            ends: Vec::new(),
            lead,
            judged: 0,
            dropped: 0,
            turns: 0,
            news: Vec::new(),
            heard: Vec::new(),
            left_off: None,
            mourns: None,
            aborted: None,
            performed: 0,
            met: Met::default(),
        }
    }

    pub(super) fn has_heard(&self) -> bool {
        !self.heard.is_empty()
    }

    /// Records that a rank died.
    pub(super) fn hear_of(&mut self, dead: u32) {
        self.heard.push(dead);
    }

    /// Sets when it hears that a rank gave up.
    pub(super) fn will_hear_of_abort(&mut self, time: Time) {
        self.aborted.get_or_insert(time);
    }

    #[inline]
    pub(super) fn is_parked(&self) -> bool {
        matches!(self.doing, Doing::Parked { .. }) || self.helper_is_parked()
    }

    /// Returns whether the rank has ended, in any way.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.doing, Doing::Gone | Doing::Failed | Doing::Dead)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.doing == Doing::Dead
    }

    /// Returns whether it has handed in its last arrival.
    pub(super) fn is_leaving(&self) -> bool {
        self.session.is_leaving()
    }

    /// Returns whether its death is due.
    pub(super) fn is_due(&self, death: &Death) -> bool {
        let since = match death.since {
            Since::Start => Some(0),
            Since::Leaving => self.left_off,
            Since::News => self.mourns,
        };
        since.is_some_and(|since| since + death.turns <= self.turns)
    }

    pub(super) fn die(&mut self) {
        self.doing = Doing::Dead;
    }

    pub(super) fn will_hear(&mut self, time: Time, dead: u32) {
        self.news.push((time, dead));
    }

    /// Returns when it hears of the next death.
    pub(super) fn next_news(&self) -> Option<Time> {
        self.news.iter().map(|&(time, _)| time).min()
    }

    pub(super) fn summary(&self) -> String {
        let helper = if self.habits.thread { format!(", thread {:?}", self.helper) } else { String::new() };
        format!("{:?}{helper}, {}", self.doing, self.engine.machine().summary())
    }

    /// Returns whether its next turn is an operation.
    #[inline]
    pub(super) fn has_op(&self) -> bool {
        self.engine.machine().peek_op().is_some()
    }

    /// Returns the time from a wake to its turn.
    pub(super) fn wakes_within(&self) -> Range<Time> {
        if self.habits.unbroken { 1_000..5_000 } else { 10..400 }
    }

    /// Returns whether its next turn may post operations.
    #[inline]
    pub(super) fn may_post(&self) -> bool {
        self.has_op() || self.habits.unbroken
    }

    /// Describes its next turn, if that is an operation.
    pub(super) fn next_op(&self) -> Option<String> {
        let machine = self.engine.machine();
        machine.peek_op().map(|op| machine.plan().op_name(op))
    }

    pub(super) fn performed(&self) -> u32 {
        self.performed
    }

    pub(super) fn stats(&self) -> Stats {
        self.engine.machine().stats()
    }

    pub(super) fn met(&self) -> Met {
        self.met
    }

    /// Returns the cuts that it recorded, and the last round of each wait that returned rounds.
    pub(super) fn recorded(&self) -> (Vec<Cut>, Vec<u64>) {
        let (mut machine, _) = self.engine.save();
        (machine.recorded(), self.ends.clone())
    }

    /// Takes the next turn: the caller's, or its thread's if that is due first.
    pub(super) fn turn(
        &mut self,
        now: Time,
        rng: &mut Xoshiro256PlusPlus,
        oracle: &mut Rc<Oracle>,
    ) -> Result<Next, String> {
        self.turns += 1;
        if self.aborted.is_some_and(|time| time <= now) && !self.is_gone() {
            self.doing = Doing::Failed;
            return Ok(Next::Gone);
        }
        if self.is_gone() {
            return Ok(Next::Gone);
        }
        let by_helper = self.habits.thread && self.helper_is_due(now);
        if !by_helper && !self.caller_is_due(now) {
            return Ok(self.next_of_both(now));
        }
        let mut steps = 0..MOST_STEPS;
        let next = loop {
            match self.turn_of(by_helper, now, rng, oracle)? {
                Next::After(0) if steps.next().is_none() => {
                    return Err(format!("liveness: no end of a turn after {MOST_STEPS} steps: {}", self.summary()));
                }
                Next::After(0) => {}
                next => break next,
            }
        };
        Ok(if self.habits.thread { self.next(by_helper, now, next) } else { next })
    }

    /// Takes a turn of the caller, or of its thread.
    pub(super) fn turn_of(
        &mut self,
        by_helper: bool,
        now: Time,
        rng: &mut Xoshiro256PlusPlus,
        oracle: &mut Rc<Oracle>,
    ) -> Result<Next, String> {
        self.take_news(now);
        self.lead.iter_mut().for_each(|lead| lead.may_tell(rng));
        let next = if by_helper { self.help(now, rng, oracle) } else { self.call(now, rng, oracle) };
        match next {
            Ok(next) => Ok(next),
            Err(Trouble::Violation(what)) => Err(what),
            Err(Trouble::Broke) => {
                self.doing = Doing::Failed;
                Ok(Next::Broke)
            }
        }
    }

    fn call(&mut self, now: Time, rng: &mut Xoshiro256PlusPlus, oracle: &mut Rc<Oracle>) -> Step<Next> {
        match self.doing {
            Doing::Computing if self.has_heard() && !self.is_leaving() => {
                self.doing = Doing::Failed;
                return Ok(Next::Gone);
            }
            Doing::Computing => self.arrive(now, rng, oracle)?,
            Doing::Filling { buffer, piece } => {
                self.take_lease(now);
                if !self.step(now, Effort::Work, oracle)? {
                    self.fill(buffer, piece, oracle);
                }
            }
            Doing::Arriving => {
                if !self.advance(now, self.habits.arriving, oracle)? {
                    self.tell_time(now);
                    let next = self.go(now, false, rng, oracle);
                    // It works in `arrive` exactly as it then does in `wait`. So what others do while it is away leads
                    // to the same states as when they do it before this poll, which found nothing.
                    let comes_back = self.habits.arriving == Effort::Work && !self.habits.thread;
                    return if self.habits.hasty && comes_back { self.call(now, rng, oracle) } else { Ok(next) };
                }
            }
            Doing::Away => {
                self.come(now, rng);
                return self.call(now, rng, oracle);
            }
            Doing::Waiting { until: Some(until), .. } if now >= until => {
                self.pursue().search();
                self.doing = Doing::Testing { late: true };
            }
            Doing::Waiting { until, idle } => return self.wait(now, (until, idle), rng, oracle),
            Doing::Parked { until } => {
                self.pursue().rouse();
                self.doing = Doing::Waiting { until, idle: false };
            }
            Doing::Testing { late } => match self.poll(now, oracle)? {
                Polled::Progress => {}
                Polled::Ready => return self.reached(now, rng, oracle),
                Polled::Idle => {
                    match late {
                        true => self.met.timeouts += 1,
                        false => self.met.tests += 1,
                    }
                    if late {
                        self.judge_missing()?;
                    }
                    return Ok(self.go(now, true, rng, oracle));
                }
            },
            Doing::Holding { round } => self.release(now, round, rng, oracle)?,
            Doing::Releasing => {
                if !self.step(now, Effort::Nothing, oracle)? || self.engine.machine().peek_op().is_none() {
                    if self.session.holds() {
                        self.doing = Doing::Holding { round: *self.session.held().end() };
                        self.leave_work(now, rng);
                        return Ok(Next::After(rng.random_range(1..=self.habits.holds)));
                    }
                    if !self.session.has_begun() && !self.is_leaving() {
                        self.begin(oracle);
                    }
                    self.doing = Doing::Computing;
                    self.leave_work(now, rng);
                    return Ok(Next::After(rng.random_range(1..=self.habits.compute)));
                }
            }
            Doing::Gone | Doing::Failed | Doing::Dead => return Ok(Next::Gone),
        }
        Ok(self.pause(rng))
    }

    fn take_news(&mut self, now: Time) {
        if !self.news.is_empty() {
            let heard = &mut self.heard;
            self.news.retain(|&(time, dead)| {
                let is_new = time <= now;
                heard.extend(is_new.then_some(dead));
                !is_new
            });
        }
        if self.has_heard() {
            self.mourns.get_or_insert(self.turns);
        }
    }

    #[inline]
    fn pause(&self, rng: &mut Xoshiro256PlusPlus) -> Next {
        if self.habits.unbroken {
            return Next::After(0);
        }
        let descheduled = rng.random_range(0..4096) < self.habits.preempted;
        Next::After(if descheduled { rng.random_range(1_000..100_000) } else { rng.random_range(1..60) })
    }

    fn rank(&self) -> u32 {
        self.session.facts().me
    }

    /// Returns the engine, working towards what the caller waits for.
    fn pursue(&mut self) -> &mut Engine {
        self.engine.towards(self.session.goal())
    }

    /// Leaves the library with a pending arrival, `again` or for the first time: for no time at all, for a while, or
    /// now and then with a thread until the thread has completed it.
    fn go(&mut self, now: Time, again: bool, rng: &mut Xoshiro256PlusPlus, oracle: &Oracle) -> Next {
        self.doing = Doing::Away;
        self.leave_work(now, rng);
        let overlaps = again || rng.random_range(0..256) < self.habits.overlaps;
        if !overlaps {
            return self.pause(rng);
        }
        if !again && rng.random_bool(0.5) {
            self.begin(oracle);
        }
        // A thread that also serves other ranks is never done; the thread of a follower is done when its caller has
        // told it all.
        let ends = self.habits.thread && !self.engine.machine().serves() && self.lead.is_none();
        let stays = ends && !self.is_leaving() && !self.engine.is_complete() && rng.random_bool(0.5);
        if stays { Next::Parked(None) } else { Next::After(rng.random_range(1..=self.habits.compute)) }
    }

    /// Calls `wait` or `finish`, or `try_wait`.
    fn come(&mut self, now: Time, rng: &mut Xoshiro256PlusPlus) {
        if let Some(lead) = &mut self.lead {
            lead.tell_end(self.ends.len());
        }
        self.claim_work(now);
        self.take_lease(now);
        let Habits { tests, deadline, .. } = self.habits;
        // A test fails at once when a rank has died.
        let may_test = tests > 0 && !self.is_leaving() && !self.has_heard();
        if may_test && rng.random_range(0..256) < tests {
            self.pursue().search();
            self.doing = Doing::Testing { late: false };
            return;
        }
        let impatient = deadline > 0 && rng.random_bool(0.25);
        let until = impatient.then(|| now + rng.random_range(1..=deadline));
        self.session.waits(|| now);
        self.pursue().begin();
        self.doing = Doing::Waiting { until, idle: false };
    }

    fn wait(
        &mut self,
        now: Time,
        (until, idle): (Option<Time>, bool),
        rng: &mut Xoshiro256PlusPlus,
        oracle: &mut Rc<Oracle>,
    ) -> Step<Next> {
        if idle && !self.has_heard() {
            let goal = self.session.goal();
            match self.drive(now, oracle, |engine| engine.towards(goal).rest(now))? {
                Rest::Awake => self.doing = Doing::Waiting { until, idle: false },
                Rest::Asleep { until: timer } => {
                    self.doing = Doing::Parked { until };
                    return Ok(self.parked(timer.into_iter().chain(until).min()));
                }
            }
            return Ok(self.pause(rng));
        }
        match self.poll(now, oracle)? {
            Polled::Progress => {}
            Polled::Ready => return self.reached(now, rng, oracle),
            Polled::Idle if self.has_heard() => match self.outlive(now, self.session.goal(), oracle)? {
                Outlived::Progress | Outlived::Ready => {}
                // It polls again after a while, not all the time.
                Outlived::Pending => return Ok(Next::After(rng.random_range(100..5_000))),
                Outlived::Lost => {
                    self.judge_loss()?;
                    self.doing = Doing::Failed;
                    return Ok(Next::Gone);
                }
            },
            Polled::Idle => {
                self.doing = Doing::Waiting { until, idle: true };
                if self.habits.hasty {
                    return self.wait(now, (until, true), rng, oracle);
                }
            }
        }
        Ok(self.pause(rng))
    }

    /// Sleeps until woken, until a time if there is one, or until there is news.
    fn parked(&self, timer: Option<Time>) -> Next {
        Next::Parked(timer.into_iter().chain(self.next_news()).chain(self.aborted).min())
    }

    /// Handles the arrival of what it waited for.
    fn reached(&mut self, now: Time, rng: &mut Xoshiro256PlusPlus, oracle: &mut Rc<Oracle>) -> Step<Next> {
        let goal = self.session.goal();
        if goal != Goal::Outcome {
            self.session.go_on_leaving(&mut self.engine);
            if goal == Goal::Left {
                oracle.has_left(self.rank())?;
            }
            if self.session.is_gone() {
                self.doing = Doing::Gone;
                return Ok(Next::Gone);
            }
            self.doing = Doing::Waiting { until: None, idle: false };
            return Ok(self.pause(rng));
        }
        let rounds = self.session.take(&mut self.engine);
        self.session.took(|| now);
        let (rank, newest) = (self.rank(), *rounds.end());
        if !rounds.is_empty() {
            self.ends.push(newest);
        }
        for round in rounds {
            Rc::make_mut(oracle).receives(rank, round)?;
            self.judge_held(round, oracle)?;
        }
        self.doing = Doing::Holding { round: newest };
        self.leave_work(now, rng);
        Ok(Next::After(rng.random_range(1..=self.habits.holds)))
    }

    /// Releases what it holds up to a round, or a part of that.
    fn release(&mut self, now: Time, newest: u64, rng: &mut Xoshiro256PlusPlus, oracle: &mut Rc<Oracle>) -> Step<()> {
        let rank = self.rank();
        let held = *self.session.held().start()..=newest;
        // All outcomes must read as they did.
        held.clone().try_for_each(|round| self.judge_held(round, oracle))?;
        let several = held.end() > held.start() && !self.habits.hasty;
        let newest = if several { rng.random_range(held) } else { newest };
        Rc::make_mut(oracle).releases(rank, newest);
        self.take_lease(now);
        self.session.release(&mut self.engine, newest);
        self.doing = Doing::Releasing;
        Ok(())
    }
}
