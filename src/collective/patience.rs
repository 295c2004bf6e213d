//! How a call waits: it works and spins while that is likely to pay, then sleeps.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::{Effort, Machine, Time};
use super::driver::Driver;
use crate::error::{Error, Ranks, Result};
use crate::fabric::Fabric;
use crate::fabric::shm::HEARTBEAT;
use crate::time::Deadline;

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
            // Others may have died together with it, or while they did what it had in hand.
            let dead = std::iter::once(peer).chain(self.fabric.dead());
            let others_at_work = driver.inherit(dead, self.clock.now())?;
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

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::collective::core::{Op, Path, Plan, Token, program};
    use crate::collective::driver::{Reduction, Regions};
    use crate::fabric::shm::ShmFabric;
    use crate::fabric::{Endpoint, RawAccess};
    use crate::reduce::{Dtype, Reduce};
    use crate::rule::{Absent, Fire, Grace, Scale, Schedule};

    const RANKS: u32 = 3;
    const ELEMENTS: usize = 4;
    const SUM: Reduction =
        Reduction { dtype: Dtype::U64, reduce: Reduce::Sum, scale: Scale::Sum, absent: Absent::Carry };

    fn plan(me: u32) -> Plan {
        let (fire, grace, depth, segment) = (Fire::ALL, Grace::NONE, 2, 8);
        let bytes = ELEMENTS * size_of::<u64>();
        Plan {
            depth,
            bytes,
            wide_bytes: bytes,
            segment,
            program: Some(program(RANKS, (fire, grace), Schedule::Doubling, (bytes, segment), depth)),
            ..Plan::sample(me, vec![0; RANKS as usize], fire, Path::Program)
        }
    }

    /// All ranks of a world in this process; rank 0 takes `others` for the processes of the others.
    fn world(others: &[Child]) -> Vec<Arc<ShmFabric>> {
        let memory = ShmFabric::create(RANKS).unwrap();
        let unwatched = vec![None; RANKS as usize];
        let watched: Vec<_> = std::iter::once(None).chain(others.iter().map(|child| Some(child.id()))).collect();
        let join = |rank: u32| {
            let pids = if rank == 0 { &watched } else { &unwatched };
            Arc::new(ShmFabric::join(memory.try_clone().unwrap(), rank, RANKS, pids).unwrap())
        };
        (0..RANKS).map(join).collect()
    }

    fn drivers(fabrics: &[Arc<ShmFabric>]) -> Vec<Driver> {
        let open = |fabric: &Arc<ShmFabric>| fabric.open(RawAccess::CRATE).unwrap();
        let mut ends: Vec<Box<dyn Endpoint>> = fabrics.iter().map(open).collect();
        let cells = plan(0).control_cells() * size_of::<u64>();
        let regions = [(cells, Regions::CONTROL), (plan(0).data_bytes(), Regions::DATA)];
        let own = regions.map(|(bytes, access)| ends[0].register(bytes, access).unwrap());
        let keys = own.map(|region| ends[0].key(region));
        let driver = |(rank, mut end): (u32, Box<dyn Endpoint>)| {
            let [control, data] = if rank == 0 { own } else { keys.map(|key| end.import(0, key).unwrap()) };
            let regions = Regions { control: [control].into(), data: [data].into() };
            Driver::new(plan(rank), end, regions, SUM, None).unwrap()
        };
        (0..).zip(ends).map(driver).collect()
    }

    /// Hands in a contribution of ones.
    fn arrive(driver: &mut Driver) {
        let (plan, buffer) = (driver.machine().plan().clone(), driver.machine().buffer());
        driver.lender().contribution::<u64>(plan.contribution(plan.me, buffer), plan.bytes).fill(1);
        driver.machine_mut().arrive(0, 1);
    }

    /// Goes on until an operation is claimed, and no further: like a process that is killed then.
    fn claim(driver: &mut Driver) {
        let is_claim = |op: &Op| matches!(op, Op::Atomic { token: Token::Swap, .. });
        loop {
            let claims = driver.machine().peek_op().is_some_and(is_claim);
            assert!(driver.step(0, Effort::Work).unwrap(), "there is nothing to claim");
            if claims {
                return;
            }
        }
    }

    /// Each of two dead ranks holds an operation without which a round that has fired cannot land.
    #[test]
    fn a_round_that_had_fired_outlives_two_deaths() {
        let sleeper = || Command::new("sleep").arg("600").spawn().unwrap();
        let mut others = [sleeper(), sleeper()];
        let fabrics = world(&others);
        for other in &mut others {
            other.kill().unwrap();
            other.wait().unwrap();
        }
        let mut drivers = drivers(&fabrics);
        drivers.iter_mut().for_each(arrive);
        drivers[1..].iter_mut().for_each(claim);
        let survivor = &mut drivers[0];
        let mut patience = Patience::new(fabrics[0].clone(), Duration::from_millis(1), true);
        let deadline = Deadline::from(Duration::from_secs(60));
        patience.block(survivor, "wait", deadline, |machine| !machine.ready().is_empty()).unwrap();
        assert_eq!(survivor.machine().stats().inherited, 2);
        let at = survivor.machine().outcome_at(1);
        assert_eq!(survivor.lender().outcome::<u64>(at, plan(0).bytes), [u64::from(RANKS); ELEMENTS]);
        assert_eq!(fabrics[0].dead(), [1, 2]);
    }
}
