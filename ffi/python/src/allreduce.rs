//! A persistent partial allreduce.

use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use earlybird::{Dtype, Error, Part};
use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{bad_choice, forked, misused, raised};
use crate::interrupt::SLICE;
use crate::memory::{Loan, Memory};
use crate::world::{World, duration, forget_or_drop};

/// What a rank has in a round, and how many rounds late: rank, part, age, weight.
type Entry = (u32, &'static str, u64, u16);

/// The calls of a collective, and what they need: used by one thread at a time.
#[pyclass(subclass, frozen, module = "earlybird._earlybird")]
pub(crate) struct Allreduce {
    world: earlybird::World,
    held: Mutex<Held>,
    /// Arrays of outcomes that exist.
    views: Arc<AtomicUsize>,
}

struct Held {
    /// Nothing only while this object is dropped.
    sum: Option<earlybird::Allreduce<u8>>,
    /// Contributions that were handed in.
    handed_in: u64,
    /// Rounds that a wait has returned to nothing: it was interrupted when they came.
    untaken: Option<(u64, u64)>,
}

impl Allreduce {
    /// The calls, unless another thread is in one.
    fn enter(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Held>> {
        if !self.world.is_own() {
            return Err(forked(py));
        }
        self.held.try_lock().ok_or_else(|| misused(py, "another thread is in a call with this allreduce"))
    }

    /// The same, for a call that releases outcomes.
    fn enter_and_release(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Held>> {
        let held = self.enter(py)?;
        match self.views.load(Ordering::Relaxed) {
            0 => Ok(held),
            count => Err(PyBufferError::new_err(format!(
                "{count} arrays of outcomes exist, whose memory this call would give away; copy what you keep, and delete them"
            ))),
        }
    }

    /// Whether memory may be lent now.
    pub(crate) fn check_loan(&self, loan: Loan) -> PyResult<()> {
        let held = self.held.try_lock().filter(|_| self.world.is_own());
        let held = held
            .ok_or_else(|| PyBufferError::new_err("the allreduce is in use by another thread or a parent process"))?;
        let problem = match loan {
            Loan::Contribution(number) if number != held.handed_in => "the contribution was handed in",
            Loan::Outcome(round) if held.get().kept(round).is_none() => "the outcome was released",
            Loan::Contribution(_) | Loan::Outcome(_) => return Ok(()),
        };
        Err(PyBufferError::new_err(problem))
    }

    /// Repeats a call that waits until it is done, or its time is over, or the interpreter has a signal.
    fn wait_for<R>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        mut once: impl FnMut(&mut earlybird::Allreduce<u8>, Duration) -> Result<R, Error> + Send,
    ) -> PyResult<R>
    where
        R: Send,
    {
        let begun = Instant::now();
        let until = duration(py, timeout)?.and_then(|timeout| begun.checked_add(timeout));
        let mut held = self.enter_and_release(py)?;
        loop {
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            let sum = held.get_mut();
            match py.detach(|| once(sum, left.min(SLICE))) {
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
}

fn builder<'w>(
    py: Python<'_>,
    world: &'w earlybird::World,
    (dtype, lengths): (&str, &[usize]),
    choices: &[(String, String)],
) -> PyResult<earlybird::AllreduceBuilder<'w, u8>> {
    let dtype = dtype.parse::<Dtype>().map_err(|problem| bad_choice(py, format!("dtype: {problem}")))?;
    let builder = world.allreduce_bytes(dtype, lengths);
    let chosen = choices.iter().try_fold(builder, |builder, (name, value)| builder.choose(name, value));
    chosen.map_err(|error| raised(py, &error))
}

fn ends(rounds: &RangeInclusive<u64>) -> (u64, u64) {
    (*rounds.start(), *rounds.end())
}

impl Held {
    fn get(&self) -> &earlybird::Allreduce<u8> {
        self.sum.as_ref().expect("only a drop takes it")
    }

    fn get_mut(&mut self) -> &mut earlybird::Allreduce<u8> {
        self.sum.as_mut().expect("only a drop takes it")
    }
}

#[pymethods]
impl Allreduce {
    #[new]
    #[pyo3(signature = (world, lengths, dtype, model, choices))]
    fn new(
        py: Python<'_>,
        world: &World,
        lengths: Vec<usize>,
        dtype: &str,
        model: Option<Vec<u8>>,
        choices: Vec<(String, String)>,
    ) -> PyResult<Self> {
        let world = world.handle(py)?;
        let mut builder = builder(py, &world, (dtype, &lengths), &choices)?;
        if let Some(model) = &model {
            builder = builder.memory(model);
        }
        let sum = py.detach(|| builder.build()).map_err(|error| raised(py, &error))?;
        let held = Mutex::new(Held { sum: Some(sum), handed_in: 0, untaken: None });
        Ok(Allreduce { world: world.clone(), held, views: Arc::default() })
    }

    /// Refuses what a new one with these choices would refuse on this rank.
    #[staticmethod]
    fn _check(
        py: Python<'_>,
        world: &World,
        lengths: Vec<usize>,
        dtype: &str,
        choices: Vec<(String, String)>,
    ) -> PyResult<()> {
        let world = world.handle(py)?;
        builder(py, &world, (dtype, &lengths), &choices)?.check().map_err(|error| raised(py, &error))
    }

    #[getter]
    fn _dtype(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.enter(py)?.get().dtype().to_string())
    }

    /// Lengths of the tensors, in elements.
    #[getter]
    fn lengths(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.enter(py)?.get().lengths().to_vec())
    }

    /// The name of the path of the data.
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.enter(py)?.get().path())
    }

    /// The agent that carries rounds out.
    #[getter]
    fn executor(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.enter(py)?.get().executor().to_string())
    }

    fn _contribution(slf: &Bound<'_, Self>) -> PyResult<Memory> {
        let this = slf.get();
        let mut held = this.enter_and_release(slf.py())?;
        let number = held.handed_in;
        let contribution = held.get_mut().contribution().map_err(|error| raised(slf.py(), &error))?;
        let place = (contribution.as_mut_ptr() as usize, contribution.len());
        Ok(Memory::new(slf.clone().unbind(), Loan::Contribution(number), place, this.views.clone()))
    }

    /// Sets the weight of the next contribution, under the scale "weights".
    fn weigh(&self, py: Python<'_>, weight: u16) -> PyResult<()> {
        self.enter(py)?.get_mut().weigh(weight).map_err(|error| raised(py, &error))
    }

    fn _arrive(&self, py: Python<'_>) -> PyResult<()> {
        let mut held = self.enter_and_release(py)?;
        let sum = held.get_mut();
        py.detach(|| sum.arrive()).map_err(|error| raised(py, &error))?;
        held.handed_in += 1;
        held.untaken = None;
        Ok(())
    }

    /// The first and the last round that the wait returned.
    fn _wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(u64, u64)> {
        if let Some(rounds) = self.enter(py)?.untaken.take() {
            return Ok(rounds);
        }
        let rounds = self.wait_for(py, timeout, |sum, within| Ok(ends(&sum.wait(within)?.keep())))?;
        py.check_signals().inspect_err(|_| {
            // An exception is raised in place of the outcomes: the next wait gives them.
            if let Some(mut held) = self.held.try_lock() {
                held.untaken = Some(rounds);
            }
        })?;
        Ok(rounds)
    }

    fn _test(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        let mut held = self.enter_and_release(py)?;
        let sum = held.get_mut();
        let tested = py.detach(|| Ok(sum.test()?.map(|outcomes| ends(&outcomes.keep()))));
        tested.map_err(|error| raised(py, &error))
    }

    fn _outcome(slf: &Bound<'_, Self>, round: u64) -> PyResult<Memory> {
        let this = slf.get();
        let held = this.enter(slf.py())?;
        let kept = held.get().kept(round).ok_or_else(|| PyBufferError::new_err("the outcome was released"))?;
        let place = (kept.data().as_ptr() as usize, kept.data().len());
        Ok(Memory::new(slf.clone().unbind(), Loan::Outcome(round), place, this.views.clone()))
    }

    /// The initiator and the entries of a round that is not released.
    fn _cut(&self, py: Python<'_>, round: u64) -> PyResult<(Option<u32>, Vec<Entry>)> {
        let held = self.enter(py)?;
        let kept = held.get().kept(round).ok_or_else(|| misused(py, "the outcome was released"))?;
        let named = |part| match part {
            Part::Carried => "carried",
            Part::Fresh => "fresh",
            Part::Leaving => "leaving",
        };
        let entries = kept.cut().entries().map(|entry| (entry.rank, named(entry.part), entry.age, entry.weight));
        Ok((kept.cut().initiator(), entries.collect()))
    }

    /// Releases the outcomes of the last wait, up to a round if one is given: their memory may be used again.
    #[pyo3(signature = (round = None))]
    fn release(&self, py: Python<'_>, round: Option<u64>) -> PyResult<()> {
        let mut held = self.enter_and_release(py)?;
        held.get_mut().release_up_to(round.unwrap_or(u64::MAX));
        Ok(())
    }

    /// A descriptor that is readable when there is something to take: for `select` and event loops. It needs the executor
    /// "thread".
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let held = self.enter(py)?;
        let descriptor = held.get().completion().map(|descriptor| descriptor.as_raw_fd());
        descriptor.map_err(|error| raised(py, &error))
    }

    /// Makes every later call of every rank fail.
    fn _abort(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.world.abort(reason));
    }

    /// The first and the last round of the next outcomes of a rank that leaves; nothing once it has left.
    fn _leave(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<(u64, u64)>> {
        self.wait_for(py, timeout, |sum, within| Ok(sum.leave(within)?.map(|outcomes| ends(&outcomes.keep()))))
    }

    fn _finish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.wait_for(py, timeout, |sum, within| sum.finish(within))
    }

    /// This rank's counts so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.enter(py)?.get().stats();
        let counts = PyDict::new(py);
        for (name, count) in [
            ("fresh", stats.fresh),
            ("late", stats.late),
            ("dropped", stats.dropped),
            ("initiated", stats.initiated),
            ("deadlines_expired", stats.deadlines_expired),
            ("segments", stats.segments),
            ("groups", stats.groups),
        ] {
            counts.set_item(name, count)?;
        }
        Ok(counts)
    }
}

impl Drop for Allreduce {
    fn drop(&mut self) {
        let sum = self.held.get_mut().sum.take();
        forget_or_drop(sum, |_| self.world.is_own());
        if !self.world.is_own() {
            std::mem::forget(self.world.clone());
        }
    }
}
