//! A persistent allreduce in buckets.

use std::ops::Range;

use earlybird::{BucketOutcomes, Buckets, Misuse};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::allreduce::{builder, ends};
use crate::collectives::Held;
use crate::errors::{bad_argument, bad_choice, misused, raised};
use crate::handle::{Account, Ends, Entry, Handle, RELEASED, accounts, entries};
use crate::memory::{Loan, Memory};
use crate::world::World;

/// A collective that is used by one thread at a time. Tensors are copied into it: where buckets change, their memory does.
#[pyclass(subclass, frozen, module = "earlybird._earlybird")]
pub(crate) struct BucketedAllreduce(Handle<earlybird::BucketedAllreduce<u8>>);

impl BucketedAllreduce {
    /// Whether the outcome of a round may be lent now.
    pub(crate) fn check_outcome(&self, round: u64) -> PyResult<()> {
        self.0.check_loan(|held| held.get().kept(round).is_some(), RELEASED)
    }
}

/// The rounds of outcomes, which are kept.
fn kept(outcomes: BucketOutcomes<'_, u8>) -> Ends {
    outcomes.keep().as_ref().map_or((1, 0), ends)
}

fn read(py: Python<'_>, buckets: &str) -> PyResult<Buckets> {
    buckets.parse().map_err(|problem| bad_choice(py, format!("buckets: {problem}")))
}

#[pymethods]
impl BucketedAllreduce {
    #[new]
    fn new(
        py: Python<'_>,
        world: &World,
        lengths: Vec<usize>,
        dtype: &str,
        buckets: &str,
        choices: Vec<(String, String)>,
    ) -> PyResult<Self> {
        let world = world.handle(py)?;
        let buckets = read(py, buckets)?;
        let builder = builder(py, &world, (dtype, &lengths), &choices)?.buckets(buckets);
        let sum = py.detach(|| builder.build()).map_err(|error| raised(py, &error))?;
        Ok(BucketedAllreduce(Handle::new(&world, sum)))
    }

    /// Refuses what are no buckets.
    #[staticmethod]
    fn _check(py: Python<'_>, buckets: &str) -> PyResult<()> {
        read(py, buckets).map(drop)
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

    /// The first tensor of each bucket and the one behind its last, as they are now.
    #[getter]
    fn buckets(&self, py: Python<'_>) -> PyResult<Vec<(usize, usize)>> {
        Ok(self.0.enter(py)?.get().buckets().map(|Range { start, end }| (start, end)).collect())
    }

    /// How often buckets have changed.
    #[getter]
    fn replans(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.enter(py)?.get().replans())
    }

    /// Begins a step.
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        self.0.go_on(py, earlybird::BucketedAllreduce::begin)
    }

    /// Copies a tensor, which is complete with it.
    fn _fill(&self, py: Python<'_>, index: usize, bytes: PyBuffer<u8>) -> PyResult<()> {
        let given = Held::source(py, bytes)?;
        let fits = self.0.call(py, |sum| {
            let place = sum.tensor(index)?;
            let fits = place.len() == given.read().len();
            if fits {
                place.copy_from_slice(given.read());
                sum.filled(index)?;
            }
            Ok(fits)
        })?;
        if fits { Ok(()) } else { Err(bad_argument(py, format!("tensor {index} has another length"))) }
    }

    /// The first and the last round that the wait returned.
    fn _wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Ends> {
        self.0.take(py, timeout, |sum, within| Ok(kept(sum.wait(within)?)))
    }

    /// The memory of a tensor in the outcome of a round.
    fn _tensor(slf: &Bound<'_, Self>, round: u64, index: usize) -> PyResult<Memory> {
        let this = slf.get();
        let held = this.0.enter(slf.py())?;
        let kept = held.get().kept(round).ok_or_else(|| PyBufferError::new_err(RELEASED))?;
        let data = kept.tensor(index).ok_or_else(|| bad_argument(slf.py(), format!("there is no tensor {index}")))?;
        let place = (data.as_ptr() as usize, data.len());
        Ok(Memory::new(Loan::Tensor(slf.clone().unbind(), round), place, this.0.views.clone()))
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

    /// Notes that the program begins to compute its next contribution now.
    fn begin_computation(&self, py: Python<'_>) -> PyResult<()> {
        self.0.enter(py)?.get_mut().begin_computation();
        Ok(())
    }

    /// The account of lateness, a rank after the other.
    fn _lateness(&self, py: Python<'_>) -> PyResult<Vec<Account>> {
        Ok(accounts(&self.0.enter(py)?.get().lateness()))
    }

    /// Makes every later call of every rank fail.
    fn _abort(&self, py: Python<'_>, reason: &str) {
        self.0.abort(py, reason);
    }

    /// The first and the last round of the next outcomes of a rank that leaves; nothing once it has left.
    fn _leave(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Ends>> {
        self.0.wait_for(py, timeout, |sum, within| Ok(sum.leave(within)?.map(kept)))
    }

    fn _finish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.0.wait_for(py, timeout, |sum, within| sum.finish(within))
    }
}
