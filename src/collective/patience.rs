//! How a call waits: it works and spins while that is likely to pay, then sleeps.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::{Effort, Machine, Time};
use super::driver::Driver;
use crate::error::{Error, Ranks, Result};
use crate::fabric::Fabric;
use crate::fabric::shm::HEARTBEAT;
use crate::world::Deadline;

/// The time since a collective was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Clock(Instant::now())
    }

    pub(super) fn now(self) -> Time {
        self.0.elapsed().as_nanos() as Time
    }

    fn time_of(self, at: Instant) -> Time {
        at.saturating_duration_since(self.0).as_nanos() as Time
    }

    /// The time if the machine makes use of it: reading the clock costs as much as a hand-over.
    pub(super) fn now_for(self, machine: &Machine) -> Time {
        if machine.needs_time() { self.now() } else { 0 }
    }
}

/// Looks for dead peers now and then, also while nothing has to be waited for.
#[derive(Clone, Debug, Default)]
struct Lookout {
    looked: Time,
}

/// Works and waits. Each thread that drives a collective has its own.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    pub(super) clock: Clock,
    fabric: Arc<dyn Fabric>,
    spin: Spin,
    lookout: Lookout,
}

/// Contributions whose messages come with one look: of a longer one libfabric's `tcp` reads the head and then the
/// rest. Elsewhere a second look costs little beside so much data.
const ONE_LOOK: usize = 8 << 10;

/// Polls between two readings of the clock.
const SPINS_PER_CLOCK: u32 = 16;

impl Patience {
    /// `spin` is the longest time to spin; `yields` offers the core to others meanwhile.
    pub(super) fn new(fabric: Arc<dyn Fabric>, spin: Duration, yields: bool) -> Self {
        Patience { clock: Clock::start(), fabric, spin: Spin::new(spin, yields), lookout: Lookout::default() }
    }

    /// Fails the job.
    pub(super) fn abort(&self, reason: &str) {
        self.fabric.abort(reason);
    }

    /// Looks whether everybody is alive, if that was not done lately.
    pub(super) fn look(&mut self, operation: &'static str, now: Time) -> Result<()> {
        if now.saturating_sub(self.lookout.looked) >= HEARTBEAT.as_nanos() as Time {
            self.lookout.looked = now;
            self.fabric.look_for_dead(operation)?;
        }
        Ok(())
    }

    /// A provider that refuses something usually does so because a peer is gone: who, comes out soon.
    pub(super) fn explain<R>(&self, operation: &'static str, result: Result<R>) -> Result<R> {
        if !matches!(result, Err(Error::Join { .. })) {
            return result;
        }
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until {
            self.fabric.look_for_dead(operation)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        result
    }

    /// Works and waits until `over`, for a caller.
    pub(super) fn block(
        &mut self,
        driver: &mut Driver,
        operation: &'static str,
        deadline: Deadline,
        over: impl Fn(&Machine) -> bool,
    ) -> Result<()> {
        self.run(driver, operation, Some(deadline), over, || false).map(drop)
    }

    /// Works and waits until `over`, or until somebody else wants the driver.
    pub(super) fn work(
        &mut self,
        driver: &mut Driver,
        over: impl Fn(&Machine) -> bool,
        leave: impl Fn() -> bool,
    ) -> Result<()> {
        self.run(driver, "arrive", None, over, leave)
    }

    fn run(
        &mut self,
        driver: &mut Driver,
        operation: &'static str,
        deadline: Option<Deadline>,
        over: impl Fn(&Machine) -> bool,
        leave: impl Fn() -> bool,
    ) -> Result<()> {
        let mut now = self.clock.now_for(driver.machine());
        // A look at a network costs as much as a switch to somebody who needs the core.
        let plan = driver.machine().plan();
        let looks = match self.spin.yields && plan.topology.hosts() > 1 {
            true if plan.bytes > ONE_LOOK => 2,
            true => 1,
            false => SPINS_PER_CLOCK,
        };
        if spin_once(driver, now, looks, &over, &leave)? {
            return Ok(());
        }
        let deadline = deadline.map(|deadline| self.clock.time_of(deadline.instant()));
        let started = self.clock.now();
        let mut idle_since = started;
        // What this rank closes from here on is timed. What it had closed when it last left the
        // library is not: it was away in between.
        driver.machine_mut().measured(None);
        let mut closed: Option<Time> = None;
        loop {
            let done = spin_once(driver, now, looks, &over, &leave)?;
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
            if leave() {
                return Ok(());
            }
            if self.spin.yields {
                rustix::thread::sched_yield();
            }
            now = self.clock.now();
            if let Err(error) = self.fabric.health(operation) {
                return self.outlive(driver, error, deadline, over, leave);
            }
            // A timer that is nearer than the longest spin is met more exactly by spinning.
            let near = driver.machine().next_timer().is_some_and(|at| at.saturating_sub(now) < self.spin.most);
            let late = deadline.is_some_and(|deadline| now >= deadline);
            if !late && (near || now - idle_since < self.spin.budget) {
                continue;
            }
            if late {
                driver.drive(now, Effort::Search)?;
                if over(driver.machine()) {
                    return Ok(());
                }
                let missing = Ranks(driver.missing().iter().collect());
                let waited = Duration::from_nanos(now - started);
                return Err(Error::Timeout { rank: self.fabric.rank(), operation, waited, missing });
            }
            let interest = driver.machine().interest() as u32;
            driver.endpoint().prepare_wait(interest);
            if driver.step(now, Effort::Search)? || leave() {
                driver.endpoint().cancel_wait();
                driver.drive(now, Effort::Work)?;
                continue;
            }
            let timer = driver.machine().next_timer().map(|at| Duration::from_nanos(at.saturating_sub(now)));
            let at_most = HEARTBEAT.min(timer.unwrap_or(HEARTBEAT));
            let remaining = |deadline: Time| Duration::from_nanos(deadline.saturating_sub(now));
            let at_most = deadline.map_or(at_most, |deadline| at_most.min(remaining(deadline)));
            let at_most = driver.doze().map_or(at_most, |doze| at_most.min(doze));
            let asleep = now;
            driver.endpoint().wait(at_most);
            now = self.clock.now();
            self.spin.slept(now - asleep);
            if let Err(error) = self.look(operation, now) {
                return self.outlive(driver, error, deadline, over, leave);
            }
            idle_since = now;
            driver.drive(now, Effort::Search)?;
        }
    }
}

/// How long the living may take to finish what a round that had fired still needs.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Patience {
    /// Somebody died. A round that had fired can do without: what the dead had in hand is done again.
    fn outlive(
        &self,
        driver: &mut Driver,
        error: Error,
        deadline: Option<Time>,
        over: impl Fn(&Machine) -> bool,
        leave: impl Fn() -> bool,
    ) -> Result<()> {
        let Error::PeerDied { peer, .. } = error else { return Err(error) };
        let last_words = self.clock.now() + LAST_WORDS.as_nanos() as Time;
        let until = deadline.map_or(last_words, |deadline| deadline.min(last_words));
        loop {
            let others_at_work = driver.inherit(peer, self.clock.now())?;
            if over(driver.machine()) {
                return Ok(());
            }
            if !others_at_work || self.clock.now() >= until || leave() {
                return Err(error);
            }
            rustix::thread::sched_yield();
        }
    }
}

/// Works, and polls a few times; whether it is `over`. Stops at the next step when it is to `leave`.
#[inline]
fn spin_once(
    driver: &mut Driver,
    now: Time,
    looks: u32,
    over: &impl Fn(&Machine) -> bool,
    leave: &impl Fn() -> bool,
) -> Result<bool> {
    for _ in 0..looks {
        while driver.step(now, Effort::Work)? {
            if leave() {
                return Ok(false);
            }
            // What is wanted is there: a look at a network could only cost time.
            if driver.machine().peek_op().is_none() && over(driver.machine()) {
                return Ok(true);
            }
        }
        if over(driver.machine()) {
            return Ok(true);
        }
        if driver.machine().plan().topology.hosts() == 1 {
            std::hint::spin_loop();
        }
    }
    Ok(false)
}

/// How long to spin before sleeping: what was enough before, within bounds.
#[derive(Clone, Debug)]
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
