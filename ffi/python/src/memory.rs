//! Memory of a collective, lent by the buffer protocol.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::allreduce::Allreduce;
use crate::buckets::BucketedAllreduce;

/// What is lent, and by which handle.
pub(crate) enum Loan {
    /// The contribution that is written now, by its number.
    Contribution(Py<Allreduce>, u64),
    /// The outcome of a round.
    Outcome(Py<Allreduce>, u64),
    /// A tensor in the outcome of a round.
    Tensor(Py<BucketedAllreduce>, u64),
}

impl Loan {
    /// Refuses what is lent no more.
    fn check(&self) -> PyResult<()> {
        match self {
            Loan::Contribution(owner, number) => owner.get().check_contribution(*number),
            Loan::Outcome(owner, round) => owner.get().check_outcome(*round),
            Loan::Tensor(owner, round) => owner.get().check_outcome(*round),
        }
    }
}

/// The memory of a contribution or an outcome. A view can be had while the loan lasts.
#[pyclass(frozen, module = "earlybird._earlybird")]
pub(crate) struct Memory {
    loan: Loan,
    address: usize,
    bytes: usize,
    /// Views of outcomes that the owner waits for.
    views: Arc<AtomicUsize>,
}

impl Memory {
    pub(crate) fn new(loan: Loan, (address, bytes): (usize, usize), views: Arc<AtomicUsize>) -> Self {
        Memory { loan, address, bytes, views }
    }

    fn is_outcome(&self) -> bool {
        !matches!(self.loan, Loan::Contribution(..))
    }
}

#[pymethods]
impl Memory {
    /// Bytes.
    fn __len__(&self) -> usize {
        self.bytes
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get();
        memory.loan.check()?;
        if memory.is_outcome() && flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("an outcome is read-only; copy it to change it"));
        }
        // SAFETY: `view` is the interpreter's to fill. The address is that of so many bytes of registered memory, which stay
        // where they are as long as the owner, and the view keeps this object and so the owner. Peers write a contribution
        // never and an outcome not before it is released, which the owner refuses while there are views.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                memory.address as *mut c_void,
                memory.bytes as isize,
                c_int::from(memory.is_outcome()),
                flags,
            )
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        if memory.is_outcome() {
            memory.views.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        if self.is_outcome() {
            self.views.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
