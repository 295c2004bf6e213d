//! What the handles of collectives have in common: one thread uses them at a time, their waits hear signals, and the memory of
//! outcomes is lent as long as they are not released.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use earlybird::{Cut, Error, Lateness, Misuse, Part, RankLateness, SlowSpell};
use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::errors::{forked, misused, raised};
use crate::interrupt::SLICE;
use crate::world::{duration, forget_or_drop};

/// What a rank has in a round, and how many rounds late: rank, part, age, weight, and the seconds that it computed and
/// waited, where they are known.
pub(crate) type Entry = (u32, &'static str, u64, u16, Option<f64>, Option<f64>);

/// The first and the last of some rounds.
pub(crate) type Ends = (u64, u64);

/// Why an outcome cannot be had.
pub(crate) const RELEASED: &str = "the outcome was released";

/// The calls of a collective, and what they need.
pub(crate) struct Handle<C: Send> {
    world: earlybird::World,
    held: Mutex<Held<C>>,
    /// Arrays of outcomes that exist.
    pub(crate) views: Arc<AtomicUsize>,
}

pub(crate) struct Held<C> {
    /// Nothing only while this object is dropped.
    calls: Option<C>,
    /// Contributions that were handed in.
    pub(crate) handed_in: u64,
    /// Rounds that a wait has returned to nothing: it was interrupted when they came.
    untaken: Option<Ends>,
}

impl<C> Held<C> {
    pub(crate) fn get(&self) -> &C {
        self.calls.as_ref().expect("only a drop takes it")
    }

    pub(crate) fn get_mut(&mut self) -> &mut C {
        self.calls.as_mut().expect("only a drop takes it")
    }
}

impl<C: Send> Handle<C> {
    pub(crate) fn new(world: &earlybird::World, calls: C) -> Self {
        let held = Mutex::new(Held { calls: Some(calls), handed_in: 0, untaken: None });
        Handle { world: world.clone(), held, views: Arc::default() }
    }

    /// The calls, unless another thread is in one.
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Held<C>>> {
        if !self.world.is_own() {
            return Err(forked(py));
        }
        self.held
            .try_lock()
            .ok_or_else(|| misused(py, Misuse::Order("another thread is in a call with this allreduce")))
    }

    /// The same, for a call that releases outcomes.
    pub(crate) fn enter_and_release(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Held<C>>> {
        let held = self.enter(py)?;
        match self.views.load(Ordering::Relaxed) {
            0 => Ok(held),
            count => Err(PyBufferError::new_err(format!(
                "{count} arrays of outcomes exist, whose memory this call would give away; copy what you keep, and delete them"
            ))),
        }
    }

    /// Makes every later call of every rank fail.
    pub(crate) fn abort(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.world.abort(reason));
    }

    /// Whether memory may be lent now; `problem` says why not.
    pub(crate) fn check_loan(&self, is_lent: impl FnOnce(&Held<C>) -> bool, problem: &'static str) -> PyResult<()> {
        let held = self.held.try_lock().filter(|_| self.world.is_own());
        let held = held
            .ok_or_else(|| PyBufferError::new_err("the allreduce is in use by another thread or a parent process"))?;
        if is_lent(&held) { Ok(()) } else { Err(PyBufferError::new_err(problem)) }
    }

    /// Makes a call that releases outcomes, without the interpreter's lock.
    pub(crate) fn call<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut C) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let mut held = self.enter_and_release(py)?;
        let calls = held.get_mut();
        py.detach(|| call(calls)).map_err(|error| raised(py, &error))
    }

    /// Makes a call that hands a contribution in, or begins one: what a wait has returned is gone then.
    pub(crate) fn go_on(&self, py: Python<'_>, call: impl FnOnce(&mut C) -> Result<(), Error> + Send) -> PyResult<()> {
        let mut held = self.enter_and_release(py)?;
        let calls = held.get_mut();
        py.detach(|| call(calls)).map_err(|error| raised(py, &error))?;
        held.handed_in += 1;
        held.untaken = None;
        Ok(())
    }

    /// Repeats a call that waits until it is done, or its time is over, or the interpreter has a signal.
    pub(crate) fn wait_for<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        mut once: impl FnMut(&mut C, Duration) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let begun = Instant::now();
        let until = duration(py, timeout)?.and_then(|timeout| begun.checked_add(timeout));
        let mut held = self.enter_and_release(py)?;
        loop {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            let calls = held.get_mut();
            match py.detach(|| once(calls, left.min(SLICE))) {
                Ok(done) => return Ok(done),
                Err(Error::Timeout { .. }) if left > SLICE => py.check_signals()?,
                Err(mut error) => {
                    if let Error::Timeout { waited, .. } = &mut error {
                        *waited = begun.elapsed();
                    }
                    return Err(raised(py, &error));
                }
            }
        }
    }

    /// Waits for outcomes. Where an exception is raised in place of them, the next wait gives them.
    pub(crate) fn take(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        once: impl FnMut(&mut C, Duration) -> Result<Ends, Error> + Send,
    ) -> PyResult<Ends> {
        if let Some(rounds) = self.enter(py)?.untaken.take() {
            return Ok(rounds);
        }
        let rounds = self.wait_for(py, timeout, once)?;
        py.check_signals().inspect_err(|_| {
            if let Some(mut held) = self.held.try_lock() {
                held.untaken = Some(rounds);
            }
        })?;
        Ok(rounds)
    }
}

impl<C: Send> Drop for Handle<C> {
    fn drop(&mut self) {
        let calls = self.held.get_mut().calls.take();
        forget_or_drop(calls, |_| self.world.is_own());
        if !self.world.is_own() {
            std::mem::forget(self.world.clone());
        }
    }
}

/// A slow spell of a rank: since, until, factor, and the cost in seconds.
type Spell = (u64, Option<u64>, f64, f64);

/// What the account of lateness says of a rank: its contributions, those that were late, their mean age, its measured
/// and its slow steps, the seconds that it computed, waited and would have waited for all ranks, and its slow spells.
pub(crate) type Account = (u64, u64, f64, u64, u64, f64, f64, f64, Vec<Spell>);

/// The account of lateness, a rank after the other.
pub(crate) fn accounts(lateness: &Lateness) -> Vec<Account> {
    let spell = |spell: &SlowSpell| (spell.since, spell.until, spell.factor, spell.cost.as_secs_f64());
    let rank = |of: &RankLateness| {
        let (computed, waited) = (of.computed.as_secs_f64(), of.waited.as_secs_f64());
        let spells = of.spells.iter().map(spell).collect();
        let would_wait = of.would_wait.as_secs_f64();
        (of.contributions, of.late, of.mean_age, of.measured, of.slow, computed, waited, would_wait, spells)
    };
    lateness.ranks.iter().map(rank).collect()
}

/// The initiator and the entries of a cut.
pub(crate) fn entries(cut: &Cut) -> (Option<u32>, Vec<Entry>) {
    let named = |part| match part {
        Part::Carried => "carried",
        Part::Fresh => "fresh",
        Part::Leaving => "leaving",
    };
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let entries = cut.entries().map(|entry| {
        let (computed, waited) = (seconds(entry.computed()), seconds(entry.waited()));
        (entry.rank, named(entry.part), entry.age, entry.weight, computed, waited)
    });
    (cut.initiator(), entries.collect())
}
