//! A persistent partial allreduce.

use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;

use earlybird::{Dtype, Misuse};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{bad_choice, misused, raised};
use crate::handle::{Account, Ends, Entry, Handle, RELEASED, accounts, entries};
use crate::memory::{Loan, Memory};
use crate::world::World;

/// A collective that is used by one thread at a time.
#[pyclass(subclass, frozen, module = "earlybird._earlybird")]
pub(crate) struct Allreduce(Handle<earlybird::Allreduce<u8>>);

impl Allreduce {
    /// Whether the contribution of a number may be lent now.
    pub(crate) fn check_contribution(&self, number: u64) -> PyResult<()> {
        self.0.check_loan(|held| number == held.handed_in, "the contribution was handed in")
    }

    /// Whether the outcome of a round may be lent now.
    pub(crate) fn check_outcome(&self, round: u64) -> PyResult<()> {
        self.0.check_loan(|held| held.get().kept(round).is_some(), RELEASED)
    }
}

pub(crate) fn builder<'w>(
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

pub(crate) fn ends(rounds: &RangeInclusive<u64>) -> Ends {
    (*rounds.start(), *rounds.end())
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
        Ok(Allreduce(Handle::new(&world, sum)))
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
        Ok(self.0.enter(py)?.get().dtype().to_string())
    }

    /// Lengths of the tensors, in elements.
    #[getter]
    fn lengths(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        Ok(self.0.enter(py)?.get().lengths().to_vec())
    }

    /// The name of the path of the data.
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.0.enter(py)?.get().path())
    }

    /// The agent that carries rounds out.
    #[getter]
    fn executor(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.enter(py)?.get().executor().to_string())
    }

    fn _contribution(slf: &Bound<'_, Self>) -> PyResult<Memory> {
        let this = slf.get();
        let mut held = this.0.enter_and_release(slf.py())?;
        let number = held.handed_in;
        let contribution = held.get_mut().contribution().map_err(|error| raised(slf.py(), &error))?;
        let place = (contribution.as_mut_ptr() as usize, contribution.len());
        Ok(Memory::new(Loan::Contribution(slf.clone().unbind(), number), place, this.0.views.clone()))
    }

    /// Sets the weight of the next contribution, under the scale "weights".
    fn weigh(&self, py: Python<'_>, weight: u16) -> PyResult<()> {
        self.0.enter(py)?.get_mut().weigh(weight).map_err(|error| raised(py, &error))
    }

    fn _arrive(&self, py: Python<'_>) -> PyResult<()> {
        self.0.go_on(py, earlybird::Allreduce::arrive)
    }

    /// The first and the last round that the wait returned.
    fn _wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Ends> {
        self.0.take(py, timeout, |sum, within| Ok(ends(&sum.wait(within)?.keep())))
    }

    fn _try_wait(&self, py: Python<'_>) -> PyResult<Option<Ends>> {
        self.0.call(py, |sum| Ok(sum.try_wait()?.map(|outcomes| ends(&outcomes.keep()))))
    }

    fn _outcome(slf: &Bound<'_, Self>, round: u64) -> PyResult<Memory> {
        let this = slf.get();
        let held = this.0.enter(slf.py())?;
        let kept = held.get().kept(round).ok_or_else(|| PyBufferError::new_err(RELEASED))?;
        let place = (kept.data().as_ptr() as usize, kept.data().len());
        Ok(Memory::new(Loan::Outcome(slf.clone().unbind(), round), place, this.0.views.clone()))
    }

    /// The initiator and the entries of a round that is not released.
    fn _cut(&self, py: Python<'_>, round: u64) -> PyResult<(Option<u32>, Vec<Entry>)> {
        let held = self.0.enter(py)?;
        let kept = held.get().kept(round).ok_or_else(|| misused(py, Misuse::Order(RELEASED)))?;
        Ok(entries(kept.cut()))
    }

    /// Releases the outcomes of the last wait, up to a round if one is given: their memory may be used again.
    #[pyo3(signature = (round = None))]
    fn release(&self, py: Python<'_>, round: Option<u64>) -> PyResult<()> {
        self.0.enter_and_release(py)?.get_mut().release_up_to(round.unwrap_or(u64::MAX));
        Ok(())
    }

    /// A descriptor that is readable when there is something to take: for `select` and event loops. It needs the executor
    /// "thread".
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let held = self.0.enter(py)?;
        let descriptor = held.get().completion().map(|descriptor| descriptor.as_raw_fd());
        descriptor.map_err(|error| raised(py, &error))
    }

    /// Makes every later call of every rank fail.
    fn _abort(&self, py: Python<'_>, reason: &str) {
        self.0.abort(py, reason);
    }

    /// The first and the last round of the next outcomes of a rank that leaves; nothing once it has left.
    fn _leave(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Ends>> {
        self.0.wait_for(py, timeout, |sum, within| Ok(sum.leave(within)?.map(|outcomes| ends(&outcomes.keep()))))
    }

    fn _finish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.0.wait_for(py, timeout, |sum, within| sum.finish(within))
    }

    /// Notes that the program begins to compute its next contribution now.
    fn begin_computation(&self, py: Python<'_>) -> PyResult<()> {
        self.0.enter(py)?.get_mut().begin_computation();
        Ok(())
    }

    /// The account of lateness, a rank after the other.
    fn _lateness(&self, py: Python<'_>) -> PyResult<Vec<Account>> {
        Ok(accounts(&self.0.enter(py)?.get().lateness()))
    }

    /// This rank's counts so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.enter(py)?.get().stats();
        let counts = PyDict::new(py);
        for (name, count) in [
            ("fresh", stats.fresh),
            ("late", stats.late),
            ("dropped", stats.dropped),
            ("initiated", stats.initiated),
            ("deadlines_expired", stats.deadlines_expired),
            ("segments", stats.segments),
            ("groups", stats.groups),
            ("quorum", stats.quorum.into()),
        ] {
            counts.set_item(name, count)?;
        }
        Ok(counts)
    }
}
