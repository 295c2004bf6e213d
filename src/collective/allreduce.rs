//! The handle of a partial allreduce.
#![forbid(unsafe_code)]

use std::cell::{Cell, Ref, RefCell};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::{Cut, FOREVER, Machine, Part, Stats, Time};
use super::driver::Driver;
use super::outcome::Outcomes;
use crate::error::{Error, Ranks, Result};
use crate::fabric::Fabric;
use crate::fabric::shm::HEARTBEAT;
use crate::reduce::Element;
use crate::world::{Deadline, World};

/// A persistent partial allreduce: round after round over the same memory.
///
/// The order of calls is *contribution, arrive, wait*, and at the end *finish*. A handle belongs
/// to one thread at a time. Dropping it without [`finish`](Allreduce::finish) aborts the job: the
/// others would wait for this rank for ever.
#[derive(Debug)]
pub struct Allreduce<T> {
    world: World,
    driver: RefCell<Driver>,
    pub(super) memory: crate::fabric::Reader,
    spin: Spin,
    lengths: Vec<usize>,
    clock: Clock,
    /// Outcomes that the caller holds.
    pub(super) held: Cell<usize>,
    /// Newest round that was released.
    released: Cell<u64>,
    /// Newest round in which each rank was fresh, up to `released`.
    pub(super) last_fresh: RefCell<Vec<u64>>,
    lookout: Lookout,
    leaving: bool,
    finished: bool,
    /// The last deadline that passed, to be told to the others if this rank gives up.
    last_timeout: Option<String>,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Allreduce<T> {
    pub(super) fn new(world: &World, driver: Driver, spin: Duration, lengths: Vec<usize>) -> Self {
        let memory = driver.reader();
        Allreduce {
            world: world.clone(),
            driver: RefCell::new(driver),
            memory,
            spin: Spin::new(spin, world.is_oversubscribed()),
            lengths,
            clock: Clock(Instant::now()),
            held: Cell::new(0),
            released: Cell::new(0),
            last_fresh: RefCell::new(vec![0; world.size() as usize]),
            lookout: Lookout::default(),
            leaving: false,
            finished: false,
            last_timeout: None,
            element: std::marker::PhantomData,
        }
    }

    /// Lengths of the tensors, in elements, as they were given: a contribution is one after the
    /// other.
    #[must_use]
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The memory of the next contribution: registered, in place, holding whatever an earlier one
    /// left there. May be written while the last arrival is still under way.
    ///
    /// # Errors
    /// [`Error::Usage`] after `finish`.
    pub fn contribution(&mut self) -> Result<&mut [T]> {
        self.settle();
        self.check("contribution", !self.leaving, "this rank has finished")?;
        Ok(self.driver.get_mut().contribution())
    }

    /// Hands the contribution in and returns at once. Small data may be reduced here, if this
    /// arrival fires the round; large data never is.
    ///
    /// The contribution is made for the round after the newest outcome that was returned. It is
    /// *fresh* if that round is still open; else it is *carried* into the next one that fires.
    ///
    /// # Errors
    /// [`Error::Usage`] while the outcome of the last arrival was not taken, or after `finish`;
    /// a dead peer or an aborted job.
    pub fn arrive(&mut self) -> Result<()> {
        self.settle();
        self.check("arrive", !self.leaving, "this rank has finished")?;
        let outstanding = self.driver.get_mut().machine().has_arrival();
        self.check("arrive", !outstanding, "the outcome of the last arrival was not taken; call wait or test first")?;
        self.world.fabric().health("arrive")?;
        let now = self.clock.now_for(self.driver.get_mut().machine());
        let driver = self.driver.get_mut();
        driver.machine_mut().arrive(now);
        driver.drive(now, false)?;
        if driver.machine().unmeasured().is_some_and(|round| round <= driver.machine().landed()) {
            let latency = self.clock.now().saturating_sub(now);
            driver.machine_mut().measured(Some(latency));
        }
        self.lookout.look(self.world.fabric(), "arrive", now)
    }

    /// Waits for the outcome of the last arrival, and returns it with everything that was missed,
    /// oldest first. While waiting, this rank moves data for everybody.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming who is missing: call again to go on waiting. [`Error::Usage`]
    /// without an arrival; a dead peer or an aborted job.
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Outcomes<'_, T>> {
        self.settle();
        let outstanding = self.driver.get_mut().machine().has_arrival() && !self.leaving;
        self.check("wait", outstanding, "nothing was handed in; call arrive first")?;
        self.block("wait", deadline.into(), |machine| !machine.ready().is_empty())?;
        Ok(self.take())
    }

    /// As [`wait`](Allreduce::wait) without blocking: nothing where it would have to wait.
    ///
    /// # Errors
    /// As `wait`, but for the timeout.
    pub fn test(&mut self) -> Result<Option<Outcomes<'_, T>>> {
        self.settle();
        let outstanding = self.driver.get_mut().machine().has_arrival() && !self.leaving;
        self.check("test", outstanding, "nothing was handed in; call arrive first")?;
        self.world.fabric().health("test")?;
        let now = self.clock.now();
        self.lookout.look(self.world.fabric(), "test", now)?;
        let driver = self.driver.get_mut();
        driver.drive(now, true)?;
        let ready = !driver.machine().ready().is_empty();
        Ok(ready.then(|| self.take()))
    }

    /// Leaves in good order: one more, empty arrival that counts towards firing, and nothing is
    /// expected of this rank after the round that it enters. Waits until that round is complete,
    /// so everything this rank contributed has entered. Outcomes that were not taken are dropped.
    ///
    /// # Errors
    /// [`Error::Timeout`]: call again to go on; a dead peer or an aborted job.
    pub fn finish(&mut self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        self.settle();
        if self.finished {
            return Ok(());
        }
        if !self.leaving {
            if self.driver.get_mut().machine().has_arrival() {
                self.block("finish", deadline, |machine| !machine.ready().is_empty())?;
                drop(self.take());
            }
            self.settle();
            self.driver.get_mut().machine_mut().leave();
            self.leaving = true;
        }
        self.block("finish", deadline, Machine::is_finished)?;
        let now = self.clock.now();
        let driver = self.driver.get_mut();
        driver.machine_mut().release(FOREVER);
        driver.drive(now, false)?;
        self.finished = true;
        Ok(())
    }

    /// What happened to this rank so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.driver.borrow().machine().stats()
    }

    /// The name of the way in which data moves: `replicated`, `eager` or `segmented`.
    #[must_use]
    pub fn mover(&self) -> &'static str {
        self.driver.borrow().machine().plan().path.name()
    }

    pub(super) fn cut(&self, round: u64) -> Ref<'_, Cut> {
        Ref::map(self.driver.borrow(), |driver| driver.machine().cut(round))
    }

    pub(super) fn place(&self, round: u64) -> (usize, usize) {
        let driver = self.driver.borrow();
        let plan = driver.machine().plan();
        (plan.outcome(round), plan.bytes)
    }

    /// Called when the last outcome that was held is dropped.
    pub(super) fn let_go(&self) {
        // Somebody may hold on to a cut; then the next call that needs the handle does this.
        if let Ok(mut driver) = self.driver.try_borrow_mut() {
            release(&mut driver, &self.released, &mut self.last_fresh.borrow_mut(), self.clock);
        }
    }

    /// Nobody holds an outcome any more: a caller with `&mut self` has no borrow of it.
    fn settle(&mut self) {
        self.held.set(0);
        if self.released.get() < self.driver.get_mut().machine().taken() {
            release(self.driver.get_mut(), &self.released, self.last_fresh.get_mut(), self.clock);
        }
    }

    fn take(&mut self) -> Outcomes<'_, T> {
        let rounds: RangeInclusive<u64> = self.driver.get_mut().machine_mut().take();
        Outcomes::new(self, rounds)
    }

    fn check(&self, operation: &'static str, allowed: bool, problem: &'static str) -> Result<()> {
        if allowed { Ok(()) } else { Err(Error::Usage { rank: self.world.rank(), operation, problem }) }
    }

    /// Works and waits until `over`: spins while that is likely to pay, then sleeps.
    fn block(&mut self, operation: &'static str, deadline: Deadline, over: impl Fn(&Machine) -> bool) -> Result<()> {
        let mut now = self.clock.now_for(self.driver.get_mut().machine());
        let driver = self.driver.get_mut();
        if spin_once(driver, now, &over)? {
            return Ok(());
        }
        let fabric = self.world.fabric();
        let started = self.clock.now();
        let mut idle_since = started;
        // What this rank closes from here on is timed. What it had closed when it last left the
        // library is not: it was away in between.
        if driver.machine().unmeasured().is_some() {
            driver.machine_mut().measured(None);
        }
        let mut closed: Option<Time> = None;
        loop {
            let done = spin_once(driver, now, &over)?;
            if let Some(round) = driver.machine().unmeasured() {
                let since = *closed.get_or_insert(now);
                if driver.machine().landed() >= round {
                    let latency = self.clock.now().saturating_sub(since);
                    driver.machine_mut().measured(Some(latency));
                    closed = None;
                }
            }
            if done {
                self.spin.paid(now.saturating_sub(idle_since));
                return Ok(());
            }
            if self.spin.yields {
                rustix::thread::sched_yield();
            }
            now = self.clock.now();
            fabric.health(operation)?;
            // A timer that is nearer than the longest spin is met more exactly by spinning.
            let near = driver.machine().next_timer().is_some_and(|at| at.saturating_sub(now) < self.spin.most);
            let late = deadline.has_passed();
            if !late && (near || now - idle_since < self.spin.budget) {
                continue;
            }
            if late {
                let missing = Ranks(driver.missing().iter().collect());
                let waited = Duration::from_nanos(now - started);
                let error = Error::Timeout { rank: self.world.rank(), operation, waited, missing };
                self.last_timeout = Some(error.to_string());
                return Err(error);
            }
            let interest = driver.machine().interest() as u32;
            driver.endpoint().prepare_wait(interest);
            if driver.step(now, true)? {
                driver.endpoint().cancel_wait();
                driver.drive(now, true)?;
                continue;
            }
            let timer = driver.machine().next_timer().map(|at| Duration::from_nanos(at.saturating_sub(now)));
            let at_most = HEARTBEAT.min(deadline.remaining()).min(timer.unwrap_or(HEARTBEAT));
            let asleep = now;
            driver.endpoint().wait(at_most);
            now = self.clock.now();
            self.spin.slept(now - asleep);
            self.lookout.look(fabric, operation, now)?;
            idle_since = now;
            driver.drive(now, true)?;
        }
    }
}

/// The time since the handle was made.
#[derive(Clone, Copy, Debug)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> Time {
        self.0.elapsed().as_nanos() as Time
    }

    /// The time if the machine makes use of it: reading the clock costs as much as a hand-over.
    fn now_for(self, machine: &Machine) -> Time {
        if machine.needs_time() { self.now() } else { 0 }
    }
}

/// Looks for dead peers now and then, also while nothing has to be waited for.
#[derive(Debug, Default)]
struct Lookout {
    looked: Time,
}

impl Lookout {
    fn look(&mut self, fabric: &Arc<dyn Fabric>, operation: &'static str, now: Time) -> Result<()> {
        if now.saturating_sub(self.looked) >= HEARTBEAT.as_nanos() as Time {
            self.looked = now;
            fabric.look_for_dead(operation)?;
        }
        Ok(())
    }
}

/// Releases what was taken.
fn release(driver: &mut Driver, released: &Cell<u64>, last_fresh: &mut [u64], clock: Clock) {
    let taken = driver.machine().taken();
    let before = released.replace(taken);
    for round in before + 1..=taken {
        let cut = driver.machine().cut(round);
        let fresh = cut.entries().iter().filter(|entry| entry.part == Part::Fresh);
        fresh.for_each(|entry| last_fresh[entry.rank as usize] = round);
    }
    driver.machine_mut().release(taken);
    let now = clock.now_for(driver.machine());
    // An endpoint that broke says so in the next call.
    let _ = driver.drive(now, false);
}

/// Polls between two readings of the clock.
const SPINS_PER_CLOCK: u32 = 16;

/// Works, and polls a few times; whether it is `over`.
fn spin_once(driver: &mut Driver, now: Time, over: &impl Fn(&Machine) -> bool) -> Result<bool> {
    for _ in 0..SPINS_PER_CLOCK {
        driver.drive(now, true)?;
        if over(driver.machine()) {
            return Ok(true);
        }
        std::hint::spin_loop();
    }
    Ok(false)
}

/// How long to spin before sleeping: what was enough before, within bounds.
#[derive(Debug)]
struct Spin {
    most: Time,
    budget: Time,
    /// More ranks than cores: who is waited for may need this very core.
    yields: bool,
}

const LEAST_SPIN: Time = 1_000;

impl Spin {
    fn new(most: Duration, yields: bool) -> Self {
        let most = most.as_nanos() as Time;
        Spin { most, budget: most, yields }
    }

    fn paid(&mut self, after: Time) {
        self.budget = self.budget.max(4 * after).clamp(LEAST_SPIN.min(self.most), self.most);
    }

    /// A short sleep would have been a short spin; a long one was worth it.
    fn slept(&mut self, time: Time) {
        if time < self.most {
            self.paid(time);
        } else {
            self.budget = (self.budget / 2).max(LEAST_SPIN.min(self.most));
        }
    }
}

impl<T> Drop for Allreduce<T> {
    fn drop(&mut self) {
        if !self.finished && self.world.fabric().health("drop").is_ok() {
            let after = self.last_timeout.take().map_or(String::new(), |text| format!(", after {text}"));
            self.world.abort(&format!("it dropped a collective without finish{after}"));
        }
    }
}
