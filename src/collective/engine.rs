//! Carries a rank's arrivals through: the driver, and how a wait for it continues.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::core::{Effort, Machine};
use super::driver::Driver;
use crate::error::{Ranks, Result};
use crate::executor::deferred_work::Provider;
use crate::executor::work::{Looks, Outlived, Polled, Rest, Shared, Work};
use crate::fault::Fault;
use crate::time::Time;

/// Contributions whose messages arrive with one look: of a longer one libfabric's `tcp` reads the
/// header and then the rest. Elsewhere a second look costs little compared with so much data.
const ONE_LOOK: usize = 8 << 10;

/// Polls between two readings of the clock.
const SPINS_PER_CLOCK: u32 = 16;

/// The goal of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Goal {
    /// Outcomes that the caller can take.
    Outcome,
    /// No work is left for the arrival: its outcome is there, or there is no arrival.
    Arrival,
    /// The round in which this rank leaves.
    Left,
    /// All ranks know that this one has released everything.
    Gone,
}

/// A driver and its state between two calls. The caller uses it, or a helper thread in the caller's place.
#[derive(Debug)]
pub(crate) struct Engine {
    driver: Driver,
    /// Polls also search for work that others left, until none is left.
    searches: bool,
    /// When this rank closed the round whose landing is measured.
    closed: Option<Time>,
}

/// An engine that works towards a goal.
#[derive(Debug)]
pub(crate) struct Pursuit<'a> {
    engine: &'a mut Engine,
    goal: Goal,
}

impl Engine {
    pub(crate) fn new(driver: Driver) -> Self {
        Engine { driver, searches: false, closed: None }
    }

    #[inline]
    pub(crate) fn machine(&self) -> &Machine {
        self.driver.machine()
    }

    pub(super) fn machine_mut(&mut self) -> &mut Machine {
        self.driver.machine_mut()
    }

    #[inline]
    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(super) fn provider(&mut self) -> Option<&mut Provider> {
        self.driver.provider()
    }

    /// The same engine, working towards a goal.
    #[inline]
    pub(crate) fn towards(&mut self, goal: Goal) -> Pursuit<'_> {
        Pursuit { engine: self, goal }
    }

    /// Whether the outcome of the arrival is there.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.machine().is_ready()
    }

    #[inline]
    fn has_reached(&self, goal: Goal) -> bool {
        let machine = self.machine();
        match goal {
            Goal::Outcome => self.is_complete(),
            // Of a rank that others need, no arrival is the last.
            Goal::Arrival => (self.is_complete() || !machine.has_arrival()) && !machine.serves(),
            Goal::Left => machine.is_finished(),
            Goal::Gone => machine.has_gone(),
        }
    }

    /// An arrival is handed in. The duration of a round that was closed before can no longer be known.
    pub(super) fn begin_arrival(&mut self, now: Time) {
        self.machine_mut().measured(None);
        self.closed = Some(now);
    }

    /// Forgets when this rank closed a round: it was busy with something else, so that time is no measure.
    pub(super) fn forget_time(&mut self) {
        self.machine_mut().measured(None);
        self.closed = None;
    }

    /// Whether a round that was closed here has landed, so that [`Engine::time`] needs the time.
    /// `polled` is the earliest time at which this rank can have closed one.
    #[inline]
    pub(crate) fn wants_time(&mut self, polled: Time) -> bool {
        let Some(round) = self.machine().unmeasured() else { return false };
        self.closed.get_or_insert(polled);
        self.machine().landed() >= round
    }

    /// Takes the time, if [`Engine::wants_time`] asked for it.
    pub(crate) fn time(&mut self, now: Time) {
        let latency = self.closed.take().map(|closed| now.saturating_sub(closed));
        self.machine_mut().measured(latency);
    }

    /// Takes one step, with so much effort; returns whether there was one.
    ///
    /// # Errors
    /// An operation that failed.
    pub(crate) fn step(&mut self, now: Time, effort: Effort) -> Result<bool> {
        self.driver.step(now, effort)
    }

    /// All state that changes, except memory and times.
    pub(crate) fn save(&self) -> (Machine, bool) {
        (self.machine().clone(), self.searches)
    }

    /// Restores what `save` returned.
    pub(crate) fn restore(&mut self, machine: &Machine, searches: bool) {
        self.machine_mut().clone_from(machine);
        self.searches = searches;
    }

    /// Works until no step is left now.
    ///
    /// # Errors
    /// An operation that failed.
    pub(super) fn drive(&mut self, now: Time, effort: Effort) -> Result<()> {
        self.driver.drive(now, effort)
    }

    /// Works until a segment was moved, or no step is left now.
    ///
    /// # Errors
    /// An operation that failed.
    pub(super) fn move_one(&mut self, now: Time) -> Result<()> {
        self.driver.move_one(now)
    }

    /// Takes what has come from a network, and does no work for it.
    ///
    /// # Errors
    /// An endpoint that has failed.
    pub(super) fn look(&mut self, now: Time) -> Result<()> {
        self.driver.look(now)?;
        self.driver.drive(now, Effort::Nothing)
    }
}

impl Shared for Engine {
    type Work<'a> = Pursuit<'a>;

    fn left_undone(&mut self) -> Option<Pursuit<'_>> {
        // Once the outcome is there, the caller may stay away for long, and so would a claim of its helper thread. What
        // was decided before is carried out all the same: other ranks may wait for it.
        let machine = self.machine();
        let decided = machine.peek_op().is_some() || machine.plan().fault(Fault::HelpUnasked);
        let needed = decided || !self.has_reached(Goal::Arrival);
        needed.then(|| self.towards(Goal::Arrival))
    }

    fn is_asleep(&self) -> bool {
        self.driver.is_delegated()
    }

    fn rouse(&mut self) {
        self.towards(Goal::Arrival).rouse();
    }
}

impl Work for Pursuit<'_> {
    fn needs_time(&self) -> bool {
        self.engine.machine().needs_time()
    }

    fn looks(&self, yields: bool) -> Looks {
        let plan = self.engine.machine().plan();
        let pauses = plan.topology.hosts() == 1;
        // A look at a network costs as much as a switch to a process that needs the core.
        let times = match yields && !pauses {
            true if plan.bytes > ONE_LOOK => 2,
            true => 1,
            false => SPINS_PER_CLOCK,
        };
        Looks { times, pauses }
    }

    #[inline]
    fn poll(&mut self, now: Time) -> Result<Polled> {
        let effort = if self.engine.searches { Effort::Search } else { Effort::Work };
        if self.engine.driver.step(now, effort)? {
            // The outcome is there: a look at a network could only cost time. A rank that leaves still has to poll: a
            // completion that frees it may also free something that others wait for, such as its share of a round.
            let outcome = matches!(self.goal, Goal::Outcome | Goal::Arrival);
            if !outcome || self.engine.machine().peek_op().is_some() || !self.engine.has_reached(self.goal) {
                return Ok(Polled::Progress);
            }
            self.engine.searches = false;
            return Ok(Polled::Ready);
        }
        self.engine.searches = false;
        Ok(if self.engine.has_reached(self.goal) { Polled::Ready } else { Polled::Idle })
    }

    /// Only rounds that this rank closes from here on are timed. For one that it closed when it
    /// last left the library, the time would include its absence.
    fn begin(&mut self) {
        self.engine.forget_time();
    }

    #[inline]
    fn wants_time(&mut self, polled: Time) -> bool {
        self.engine.wants_time(polled)
    }

    fn time(&mut self, now: Time) {
        self.engine.time(now);
    }

    fn next_timer(&self) -> Option<Time> {
        self.engine.machine().next_timer()
    }

    fn search(&mut self) {
        self.engine.searches = true;
    }

    fn rest(&mut self, now: Time) -> Result<Rest> {
        let Engine { driver, searches, .. } = &mut *self.engine;
        let interest = driver.machine().interest() as u32;
        driver.endpoint().prepare_wait(interest);
        let unseen = driver.machine().plan().fault(Fault::SleepUnseen);
        if !unseen && driver.step(now, Effort::Search)? {
            driver.endpoint().cancel_wait();
            return Ok(Rest::Awake);
        }
        *searches = false;
        let doze = driver.doze().map(|doze| now.saturating_add(doze.as_nanos() as Time));
        let machine = driver.machine();
        let timer = machine.next_timer().filter(|_| !machine.plan().fault(Fault::SleepThroughTimers));
        Ok(Rest::Asleep { until: [timer, doze].into_iter().flatten().min() })
    }

    fn sleep(&mut self, at_most: Duration) {
        self.engine.driver.endpoint().wait(at_most);
        self.engine.searches = true;
    }

    fn rouse(&mut self) {
        self.engine.driver.endpoint().cancel_wait();
        self.engine.searches = true;
    }

    fn delegate(&mut self) -> bool {
        self.engine.driver.endpoint().delegate_wait()
    }

    fn missing(&self) -> Ranks {
        Ranks(self.engine.driver.missing().iter().collect())
    }

    fn hear_of(&mut self, dead: u32) {
        self.engine.machine_mut().inherit(dead);
    }

    fn outlive(&mut self, now: Time) -> Result<Outlived> {
        if self.engine.driver.step(now, Effort::Search)? {
            return Ok(Outlived::Progress);
        }
        Ok(match () {
            () if self.engine.has_reached(self.goal) => Outlived::Ready,
            () if self.engine.machine().plan().fault(Fault::GiveUpEarly) => Outlived::Lost,
            () if self.engine.driver.is_pending() => Outlived::Pending,
            () => Outlived::Lost,
        })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::process::{Child, Command};

    use std::sync::Arc;

    use super::*;
    use crate::collective::core::{Op, Path, Plan, Terms, Token, program};
    use crate::collective::driver::{Reduction, Regions};
    use crate::executor::caller::Waiter;
    use crate::executor::spin::Spin;
    use crate::fabric::shm::ShmFabric;
    use crate::fabric::{Endpoint, Fabric, RawAccess};
    use crate::reduce::{Dtype, Reduce};
    use crate::rule::{Absent, Fire, Grace, Scale, Schedule};
    use crate::time::Deadline;

    const RANKS: u32 = 3;
    const ELEMENTS: usize = 4;
    const SUM: Reduction =
        Reduction { dtype: Dtype::U64, reduce: Reduce::Sum, scale: Scale::Sum, absent: Absent::Carry };

    fn plan(me: u32) -> Plan {
        let (fire, grace, depth, segment) = (Fire::ALL, Grace::NONE, 2, 8);
        let bytes = ELEMENTS * size_of::<u64>();
        Plan::new(Terms {
            depth,
            bytes,
            wide_bytes: bytes,
            segment,
            program: Some(program(RANKS, (fire, grace), Schedule::Doubling, (bytes, segment), depth)),
            ..Terms::sample(me, vec![0; RANKS as usize], fire, Path::Program)
        })
    }

    /// All ranks of a world in this process; rank 0 takes `others` for the processes of the other ranks.
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

    /// Continues until an operation is claimed, and no further: like a process that is killed then.
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
        let memory = drivers[0].lender();
        let mut survivor = Engine::new(drivers.remove(0));
        let mut waiter = Waiter::new(fabrics[0].clone(), Spin::new(Duration::from_millis(1), true));
        let deadline = Deadline::from(Duration::from_secs(60));
        waiter.block(&mut survivor.towards(Goal::Outcome), "wait", deadline).unwrap();
        assert_eq!(survivor.machine().stats().inherited, 2);
        let at = survivor.machine().outcome_at(1);
        assert_eq!(memory.outcome::<u64>(at, plan(0).bytes), [u64::from(RANKS); ELEMENTS]);
        assert_eq!(fabrics[0].dead(), [1, 2]);
    }
}
