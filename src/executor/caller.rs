//! Does work on the thread that wants it done: it polls and spins while that is likely to pay, then sleeps.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::spin::Spin;
use super::work::{Outlived, Polled, Polls, Rest, Work};
use crate::error::{Error, Result};
use crate::fabric::Fabric;
use crate::fabric::watch::HEARTBEAT;
use crate::interrupt;
use crate::time::{Deadline, Time};

/// The time since a collective was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Clock(Instant::now())
    }

    pub(crate) fn now(self) -> Time {
        self.0.elapsed().as_nanos() as Time
    }

    pub(super) fn time_of(self, at: Instant) -> Time {
        at.saturating_duration_since(self.0).as_nanos() as Time
    }

    /// Returns the instant of a time; `None` if it is too far away.
    pub(super) fn instant_of(self, time: Time) -> Option<Instant> {
        self.0.checked_add(Duration::from_nanos(time))
    }

    /// Returns the time if it is needed: reading the clock costs as much as a hand-over.
    #[inline]
    pub(crate) fn now_if(self, needed: bool) -> Time {
        if needed { self.now() } else { 0 }
    }
}

/// Waits for work to be done, and does it meanwhile.
#[derive(Debug)]
pub(crate) struct Waiter {
    clock: Clock,
    fabric: Arc<dyn Fabric>,
    spin: Spin,
    /// When it last checked for dead peers. It does so now and then, even while there is nothing to wait for.
    checked: Time,
    /// When it last asked whether its waits should end. It does so now and then, also across many short waits.
    asked: Time,
    /// A rank that it waited for at that time, and that had left.
    gone: Option<u32>,
}

/// How long the living ranks have to finish what a fired round still needs.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);

impl Waiter {
    pub(crate) fn new(fabric: Arc<dyn Fabric>, spin: Spin) -> Self {
        Waiter { clock: Clock::start(), fabric, spin, checked: 0, asked: 0, gone: None }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Checks whether all peers are alive, unless that was done recently.
    #[inline]
    pub(crate) fn check_peers_if_due(&mut self, operation: &'static str, now: Time) -> Result<()> {
        if now.saturating_sub(self.checked) >= HEARTBEAT.as_nanos() as Time {
            self.checked = now;
            self.fabric.check_peers(operation)?;
        }
        Ok(())
    }

    /// Names a failure after the caller's operation.
    #[inline]
    pub(crate) fn explain<R>(&self, operation: &'static str, result: Result<R>) -> Result<R> {
        result.map_err(|error| self.explain_error(operation, error))
    }

    /// Finds the dead peer behind a refusal: a provider usually refuses because a peer has ended, and it soon turns out
    /// which.
    #[cold]
    fn explain_error(&self, operation: &'static str, error: Error) -> Error {
        let error = error.in_call(operation).on(&self.fabric.host_names()).beside_strangers(|| self.fabric.strangers());
        if !matches!(error, Error::Transport { .. }) {
            return error;
        }
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until {
            if let Err(cause) = self.fabric.check_peers(operation) {
                return cause;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        error
    }

    /// Does work until it is complete.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline; a dead peer or an aborted job; a failed operation.
    #[inline]
    pub(crate) fn block(&mut self, work: &mut impl Work, operation: &'static str, deadline: Deadline) -> Result<()> {
        let outer = self.fabric.expect_by(Some(deadline));
        let done = self.carry_on(work, operation, deadline);
        self.fabric.expect_by(outer);
        done
    }

    #[inline]
    fn carry_on(&mut self, work: &mut impl Work, operation: &'static str, deadline: Deadline) -> Result<()> {
        let stay = &|| false;
        let mut now = self.clock.now_if(work.needs_time());
        let polls = work.polls(self.spin.yields());
        if poll(work, now, polls, stay)? {
            return Ok(());
        }
        let deadline = self.clock.time_of(deadline.instant());
        let started = self.clock.now();
        self.spin.begin(started);
        work.begin();
        loop {
            let done = poll(work, now, polls, stay)?;
            if work.wants_time(now) {
                work.time(self.clock.now());
            }
            if done {
                self.spin.paid(now);
                return Ok(());
            }
            if self.spin.yields() {
                rustix::thread::sched_yield();
            }
            now = self.clock.now();
            if let Err(error) = self.fabric.health(operation) {
                return self.outlive(work, error, deadline);
            }
            if now >= deadline {
                if work.exhaust(now)? {
                    return Ok(());
                }
                self.ask(work, operation, now)?;
                let waited = Duration::from_nanos(now - started);
                let (rank, missing) = (self.fabric.rank(), work.missing());
                return Err(Error::timeout(rank, operation, waited, missing, false));
            }
            if self.spin.goes_on(now, work.next_timer()) {
                continue;
            }
            let Rest::Asleep { until } = work.rest(now)? else { continue };
            let until = until.map_or(deadline, |until| until.min(deadline));
            let asleep = now;
            work.sleep(Duration::from_nanos(until.saturating_sub(now)).min(HEARTBEAT));
            now = self.clock.now();
            self.spin.slept(asleep, now);
            if let Err(error) = self.check_peers_if_due(operation, now) {
                return self.outlive(work, error, deadline);
            }
            self.ask(work, operation, now)?;
        }
    }

    /// Asks whether this wait should end, and checks for ranks that have left, unless that was done recently. Sleeps
    /// and waits may be much shorter than a heartbeat.
    fn ask(&mut self, work: &impl Work, operation: &'static str, now: Time) -> Result<()> {
        if now.saturating_sub(self.asked) < HEARTBEAT.as_nanos() as Time {
            return Ok(());
        }
        self.asked = now;
        interrupt::check(self.fabric.rank(), operation)?;
        if work.needs_missing() {
            let before = self.gone;
            self.gone = work.missing().0.into_iter().find(|&peer| self.fabric.has_left(peer));
            // All that it did before it left was visible when the work was polled in between.
            if let Some(peer) = self.gone.filter(|_| self.gone == before) {
                return Err(Error::left(self.fabric.rank(), operation, peer));
            }
        }
        Ok(())
    }

    /// Continues after a rank died. A fired round can complete without it: other ranks repeat what the dead rank had
    /// claimed.
    fn outlive(&self, work: &mut impl Work, error: Error, deadline: Time) -> Result<()> {
        if !matches!(error, Error::PeerDied { .. }) {
            return Err(error);
        }
        let until = deadline.min(self.clock.now() + LAST_WORDS.as_nanos() as Time);
        loop {
            // Other ranks may have died together with it, or while they repeated what it had claimed.
            dead(&*self.fabric, &error).into_iter().for_each(|rank| work.hear_of(rank));
            let now = self.clock.now();
            let stands = loop {
                match work.outlive(now)? {
                    Outlived::Progress => {}
                    stands => break stands,
                }
            };
            match stands {
                Outlived::Ready => return Ok(()),
                Outlived::Pending if self.clock.now() < until => rustix::thread::sched_yield(),
                _ => return Err(error),
            }
        }
    }
}

/// Returns the ranks that have died, if that is the failure. Others may have died together with the first one, or while
/// they repeated what it had claimed.
pub(super) fn dead(fabric: &dyn Fabric, failure: &Error) -> Vec<u32> {
    match failure {
        Error::PeerDied { peer, .. } => std::iter::once(*peer).chain(fabric.dead()).collect(),
        _ => Vec::new(),
    }
}

/// Polls as long as there is something to do, and a few times more. Returns whether the goal is reached. Stops at the
/// next step when `leave` returns true.
#[inline]
pub(super) fn poll(work: &mut impl Work, now: Time, polls: Polls, leave: &impl Fn() -> bool) -> Result<bool> {
    for _ in 0..polls.times {
        loop {
            match work.poll(now)? {
                Polled::Ready => return Ok(true),
                Polled::Progress if leave() => return Ok(false),
                Polled::Progress => {}
                Polled::Idle => break,
            }
        }
        if polls.pauses {
            std::hint::spin_loop();
        }
    }
    Ok(false)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::Ranks;
    use crate::fabric::shm::ShmFabric;

    /// Work that is done at the last of several polls, and notes what its executor does.
    struct Noting {
        polls: u32,
        /// Polls since the core could be offered.
        since: u32,
        most: u32,
    }

    impl Work for Noting {
        fn needs_time(&self) -> bool {
            false
        }

        fn polls(&self, yields: bool) -> Polls {
            Polls::new(yields, true)
        }

        fn poll(&mut self, _now: Time) -> Result<Polled> {
            self.polls += 1;
            self.since += 1;
            self.most = self.most.max(self.since);
            Ok(if self.polls == 1000 { Polled::Ready } else { Polled::Idle })
        }

        fn begin(&mut self) {
            // The first polls come before anything else.
            self.since = 0;
        }

        fn wants_time(&mut self, _polled: Time) -> bool {
            self.since = 0;
            false
        }

        fn time(&mut self, _now: Time) {}

        fn next_timer(&self) -> Option<Time> {
            None
        }

        fn search(&mut self) {}

        fn rest(&mut self, _now: Time) -> Result<Rest> {
            Ok(Rest::Awake)
        }

        fn sleep(&mut self, _at_most: Duration) {}

        fn rouse(&mut self) {}

        fn delegate(&mut self) -> bool {
            false
        }

        fn missing(&self) -> Ranks {
            Ranks::default()
        }

        fn hear_of(&mut self, _dead: u32) {}

        fn outlive(&mut self, _now: Time) -> Result<Outlived> {
            Ok(Outlived::Pending)
        }
    }

    #[test]
    fn a_rank_that_shares_its_core_polls_once_between_offers() {
        for (yields, most) in [(true, 1), (false, 16)] {
            let fabric = Arc::new(ShmFabric::in_this_process(1).unwrap().remove(0));
            let mut waiter = Waiter::new(fabric, Spin::new(Duration::from_secs(60), yields));
            let mut work = Noting { polls: 0, since: 0, most: 0 };
            waiter.block(&mut work, "wait", Duration::from_secs(60).into()).unwrap();
            assert_eq!((work.polls, work.most), (1000, most));
        }
    }
}
