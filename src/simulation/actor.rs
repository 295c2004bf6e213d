//! One rank of a simulated world.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::coverage::operation;
use super::oracle::Oracle;
use super::scenario::{Death, Habits, Since};
use crate::collective::core::{Effort, Machine, Op, Stats, Time};
use crate::collective::driver::Driver;
use crate::fabric::Lender;
use crate::rule::Absent;

/// When a rank wants its next turn.
#[derive(Debug)]
pub(super) enum Next {
    After(Time),
    /// When woken, or at a time.
    Parked(Option<Time>),
    Gone,
    /// An operation of it completed with an error: it gives up, and says so.
    Broke,
}

/// Why a turn did not come to its end.
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
    /// In `arrive_with`, its contribution handed in and filled up to this piece.
    Filling {
        buffer: u32,
        piece: u64,
    },
    /// In `arrive`.
    Arriving,
    /// In `wait`, or in `finish` when nothing is left to contribute.
    Waiting,
    /// As waiting, announced as asleep.
    Parked,
    /// Reads outcomes up to this round.
    Holding {
        round: u64,
    },
    Gone,
    /// Failed, naming who died.
    Failed,
    Dead,
}

#[derive(Debug)]
pub(super) struct Actor {
    driver: Driver,
    memory: Lender,
    habits: Habits,
    doing: Doing,
    /// It has begun to write its next contribution.
    begun: bool,
    made: u32,
    /// Newest round that the oracle has judged through this rank's eyes.
    judged: u64,
    /// Whether late contributions are dropped, and the drops that the oracle has been told of.
    drops: bool,
    dropped: u64,
    finishing: bool,
    pub(super) turns: u64,
    /// When it hears of whose death.
    news: Vec<(Time, u32)>,
    /// Who died, as far as this rank knows.
    heard: Vec<u32>,
    /// At which of its turns it handed in its last arrival, and first heard of a death.
    left_off: Option<u64>,
    mourns: Option<u64>,
    /// When it hears that somebody aborted.
    aborted: Option<Time>,
    /// Operations that it made, as bits.
    performed: u32,
}

/// Everything about an actor that changes.
#[derive(Debug)]
pub(super) struct Saved {
    machine: Machine,
    doing: Doing,
    begun: bool,
    made: u32,
    judged: u64,
    dropped: u64,
    finishing: bool,
    heard: Vec<u32>,
}

impl Hash for Saved {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Saved { machine, doing, begun, made, judged, dropped, finishing, heard } = self;
        machine.fingerprint(state);
        (doing, begun, made, judged, dropped, finishing, heard).hash(state);
    }
}

impl Actor {
    pub(super) fn save(&self) -> Saved {
        let Actor { driver, doing, begun, made, judged, dropped, finishing, heard, .. } = self;
        let machine = driver.machine().clone();
        let (doing, begun, made, judged, dropped) = (*doing, *begun, *made, *judged, *dropped);
        Saved { machine, doing, begun, made, judged, dropped, finishing: *finishing, heard: heard.clone() }
    }

    pub(super) fn restore(&mut self, saved: &Saved) {
        *self.driver.machine_mut() = saved.machine.clone();
        (self.doing, self.made, self.judged) = (saved.doing, saved.made, saved.judged);
        (self.begun, self.dropped) = (saved.begun, saved.dropped);
        self.finishing = saved.finishing;
        self.heard.clone_from(&saved.heard);
    }

    /// Whether its next step is nobody else's business: it writes only what nobody reads before a
    /// later step says so, and reads only what nobody changes.
    pub(super) fn next_is_local(&self, mortals: bool, nobody_waits: bool) -> bool {
        match self.driver.machine().peek_op() {
            Some(Op::Fence) => true,
            Some(Op::Run(task)) => !self.driver.is_announced(*task),
            // Whoever begins to wait later looks at what this announces.
            Some(Op::Wake { .. }) => nobody_waits,
            // Claims are looked at again only when their owner is dead.
            Some(Op::Store { cell, .. }) => !mortals && self.driver.machine().is_claim(*cell),
            Some(_) => false,
            None => self.doing == Doing::Computing,
        }
    }

    /// Cells of claims that have no meaning any more: everything that was claimed has happened.
    pub(super) fn spent_claims(&self, cells: impl Fn(usize) -> u64) -> Vec<usize> {
        self.driver.machine().spent_claims(cells)
    }

    pub(super) fn has_heard(&self) -> bool {
        !self.heard.is_empty()
    }

    /// Learns that somebody died.
    pub(super) fn hear_of(&mut self, dead: u32) {
        self.heard.push(dead);
    }

    pub(super) fn new(driver: Driver, habits: Habits) -> Self {
        let drops = driver.machine().plan().absent == Absent::Drop;
        Actor {
            memory: driver.lender(),
            driver,
            habits,
            doing: Doing::Computing,
            begun: false,
            made: 0,
            judged: 0,
            drops,
            dropped: 0,
            finishing: false,
            turns: 0,
            news: Vec::new(),
            heard: Vec::new(),
            left_off: None,
            mourns: None,
            aborted: None,
            performed: 0,
        }
    }

    /// Hears at a time that somebody gave up.
    pub(super) fn will_hear_of_abort(&mut self, time: Time) {
        self.aborted.get_or_insert(time);
    }

    pub(super) fn is_parked(&self) -> bool {
        self.doing == Doing::Parked
    }

    /// Whether it came to an end, one way or another.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.doing, Doing::Gone | Doing::Failed | Doing::Dead)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.doing == Doing::Dead
    }

    /// Whether it has handed in its last arrival.
    pub(super) fn is_leaving(&self) -> bool {
        self.finishing
    }

    /// Whether a death of it is due.
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

    /// When it hears next of a death.
    pub(super) fn next_news(&self) -> Option<Time> {
        self.news.iter().map(|&(time, _)| time).min()
    }

    pub(super) fn summary(&self) -> String {
        format!("{:?}, {}", self.doing, self.driver.machine().summary())
    }

    /// What its next turn does, if that is an operation.
    pub(super) fn next_op(&self) -> Option<String> {
        let machine = self.driver.machine();
        machine.peek_op().map(|op| machine.plan().op_name(op))
    }

    pub(super) fn performed(&self) -> u32 {
        self.performed
    }

    pub(super) fn stats(&self) -> Stats {
        self.driver.machine().stats()
    }

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
        match self.try_turn(now, rng, oracle) {
            Ok(next) => Ok(next),
            Err(Trouble::Violation(what)) => Err(what),
            Err(Trouble::Broke) => {
                self.doing = Doing::Failed;
                Ok(Next::Broke)
            }
        }
    }

    fn try_turn(&mut self, now: Time, rng: &mut Xoshiro256PlusPlus, oracle: &mut Rc<Oracle>) -> Step<Next> {
        self.take_news(now);
        match self.doing {
            Doing::Computing if self.has_heard() => {
                self.doing = Doing::Failed;
                return Ok(Next::Gone);
            }
            Doing::Computing => self.arrive(now, oracle)?,
            Doing::Filling { buffer, piece } => {
                if !self.step(now, Effort::Work, oracle)? {
                    self.fill(buffer, piece, oracle);
                }
            }
            Doing::Arriving => {
                if self.step(now, self.habits.arriving, oracle)? {
                    return Ok(self.pause(rng));
                }
                self.doing = Doing::Waiting;
                if rng.random_range(0..256) < self.habits.overlaps {
                    if rng.random_bool(0.5) {
                        self.begin();
                    }
                    return Ok(Next::After(rng.random_range(1..=self.habits.compute)));
                }
            }
            Doing::Waiting => return self.wait(now, rng, oracle),
            Doing::Parked => {
                self.driver.endpoint().cancel_wait();
                self.doing = Doing::Waiting;
            }
            Doing::Holding { round } => {
                self.release(round, oracle)?;
                self.begin();
                self.doing = Doing::Computing;
                return Ok(Next::After(rng.random_range(1..=self.habits.compute)));
            }
            Doing::Gone | Doing::Failed | Doing::Dead => return Ok(Next::Gone),
        }
        Ok(self.pause(rng))
    }

    fn take_news(&mut self, now: Time) {
        let heard = &mut self.heard;
        self.news.retain(|&(time, dead)| {
            let is_new = time <= now;
            heard.extend(is_new.then_some(dead));
            !is_new
        });
        if self.has_heard() {
            self.mourns.get_or_insert(self.turns);
        }
    }

    fn pause(&self, rng: &mut Xoshiro256PlusPlus) -> Next {
        let descheduled = rng.random_range(0..4096) < self.habits.preempted;
        Next::After(if descheduled { rng.random_range(1_000..100_000) } else { rng.random_range(1..60) })
    }

    fn outcome(&self, round: u64) -> &[u8] {
        let machine = self.driver.machine();
        self.memory.outcome(machine.outcome_at(round), machine.plan().bytes)
    }

    fn rank(&self) -> u32 {
        self.driver.machine().plan().me
    }

    fn arrive(&mut self, now: Time, oracle: &mut Rc<Oracle>) -> Step<()> {
        let rank = self.rank();
        if self.made < self.habits.steps {
            let (plan, buffer) = (self.driver.machine().plan(), self.driver.machine().buffer());
            let contribution = self.memory.contribution::<u8>(plan.contribution(rank, buffer), plan.bytes);
            let fills = self.habits.fills && plan.pieces() > 1;
            match fills {
                true => contribution.fill(0xA5),
                false => oracle.fill(rank, self.made, contribution),
            }
            self.begun = false;
            Rc::make_mut(oracle).arrives(rank, self.made, self.driver.machine().taken() + 1, now)?;
            let weight = oracle.weight(rank, self.made);
            self.made += 1;
            if fills {
                self.driver.machine_mut().arrive_unfilled(now, weight);
                self.doing = Doing::Filling { buffer, piece: 0 };
                return Ok(());
            }
            self.driver.machine_mut().arrive(now, weight);
        } else {
            self.finishing = true;
            self.left_off = Some(self.turns);
            Rc::make_mut(oracle).leaves(rank, now);
            self.driver.machine_mut().leave();
        }
        self.doing = Doing::Arriving;
        Ok(())
    }

    /// Begins to write the next contribution, as if it came from a long computation: what it writes is not what
    /// it hands in, and nobody should ever read it.
    fn begin(&mut self) {
        let machine = self.driver.machine();
        let (plan, buffer) = (machine.plan(), machine.buffer());
        self.memory.contribution::<u8>(plan.contribution(plan.me, buffer), plan.bytes).fill(0x5A);
        self.begun = true;
    }

    /// Fills a piece of what was handed in last.
    fn fill(&mut self, buffer: u32, piece: u64, oracle: &Oracle) {
        let plan = self.driver.machine().plan();
        let missing = plan.pieces() - piece - 1;
        let (from, len) = plan.piece_span(piece);
        let mut whole = vec![0; plan.bytes];
        oracle.fill(plan.me, self.made - 1, &mut whole);
        let at = plan.contribution(plan.me, buffer) + from;
        self.memory.contribution::<u8>(at, len).copy_from_slice(&whole[from..from + len]);
        let machine = self.driver.machine_mut();
        machine.filled(buffer, missing);
        self.doing = Doing::Filling { buffer, piece: piece + 1 };
        if missing == 0 {
            machine.count_segments();
            self.doing = Doing::Arriving;
        }
    }

    /// One operation of the driver; what landed by it is judged.
    fn step(&mut self, now: Time, effort: Effort, oracle: &mut Rc<Oracle>) -> Step<bool> {
        self.performed |= self.driver.machine().peek_op().map_or(0, operation);
        let progress = self.driver.step(now, effort).map_err(|_| Trouble::Broke)?;
        if self.finishing {
            // What a leaver misses it lets go by itself.
            let released = oracle.released(self.rank()).max(self.driver.machine().taken());
            if released != oracle.released(self.rank()) {
                Rc::make_mut(oracle).releases(self.rank(), released);
            }
        }
        if self.drops && self.dropped < self.driver.machine().stats().dropped {
            self.dropped += 1;
            Rc::make_mut(oracle).drops(self.rank(), self.driver.machine().taken() + 1)?;
        }
        while self.judged < self.driver.machine().landed() {
            self.judged += 1;
            let cut = self.driver.machine().cut(self.judged);
            Rc::make_mut(oracle).lands(self.rank(), cut, self.outcome(self.judged), now)?;
        }
        Ok(progress)
    }

    fn wait(&mut self, now: Time, rng: &mut Xoshiro256PlusPlus, oracle: &mut Rc<Oracle>) -> Step<Next> {
        if self.step(now, Effort::Work, oracle)? {
            return Ok(self.pause(rng));
        }
        if self.finishing {
            if self.driver.machine().has_gone() {
                self.doing = Doing::Gone;
                return Ok(Next::Gone);
            }
            if self.driver.machine().is_finished() {
                self.driver.machine_mut().release(u64::MAX);
                return Ok(self.pause(rng));
            }
        } else {
            let rounds = self.driver.machine_mut().take(self.begun);
            if !rounds.is_empty() {
                let newest = *rounds.end();
                let rank = self.rank();
                rounds.into_iter().try_for_each(|round| Rc::make_mut(oracle).receives(rank, round))?;
                self.doing = Doing::Holding { round: newest };
                return Ok(Next::After(rng.random_range(1..=self.habits.holds)));
            }
        }
        if self.has_heard() {
            // One step at a time, so that the others come in between.
            let machine = self.driver.machine_mut();
            self.heard.iter().for_each(|&dead| machine.inherit(dead));
            if self.step(now, Effort::Search, oracle)? {
                return Ok(self.pause(rng));
            }
            if self.driver.is_pending() {
                // It looks again after a while, not all the time.
                return Ok(Next::After(rng.random_range(100..5_000)));
            }
            let machine = self.driver.machine();
            let over = if self.finishing { machine.is_finished() } else { !machine.ready().is_empty() };
            if over {
                return Ok(self.pause(rng));
            }
            if machine.has_arrival() && !machine.is_served() && self.driver.has_fired() {
                let summary = self.summary();
                return Err(format!("G8: rank {} gives up a round that had fired: {summary}", self.rank()).into());
            }
            self.doing = Doing::Failed;
            return Ok(Next::Gone);
        }
        let interest = self.driver.machine().interest() as u32;
        self.driver.endpoint().prepare_wait(interest);
        if self.step(now, Effort::Search, oracle)? {
            self.driver.endpoint().cancel_wait();
            return Ok(self.pause(rng));
        }
        self.doing = Doing::Parked;
        let timer = self.driver.machine().next_timer();
        Ok(Next::Parked(timer.into_iter().chain(self.next_news()).chain(self.aborted).min()))
    }

    fn release(&mut self, newest: u64, oracle: &mut Rc<Oracle>) -> Step<()> {
        let rank = self.rank();
        // It may hold several; all of them must read as they did.
        for round in oracle.released(rank) + 1..=newest {
            oracle.still(rank, round, self.outcome(round))?;
        }
        Rc::make_mut(oracle).releases(rank, newest);
        self.driver.machine_mut().release(newest);
        Ok(())
    }
}
