//! Memory of the same length on every rank, lent by the buffer protocol as long as an array of it exists.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Weak};
use std::time::Duration;

use earlybird::{Dtype, Error, Misuse, Reduce, Result, SymmetricMemory};
use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::world::forget_or_drop;

/// The memory, and the calls over it.
#[derive(Debug)]
pub(crate) struct Shared {
    address: usize,
    bytes: usize,
    /// Always there, until this is dropped.
    memory: Mutex<Option<SymmetricMemory>>,
}

impl Shared {
    pub(crate) fn new(memory: SymmetricMemory) -> Self {
        let (address, bytes) = (memory.address().as_ptr() as usize, memory.len());
        Shared { address, bytes, memory: Mutex::new(Some(memory)) }
    }

    /// Where in it bytes begin that have an address, if all of them lie in it.
    fn offset(&self, address: usize, bytes: usize) -> Option<usize> {
        let at = address.checked_sub(self.address)?;
        (bytes > 0 && at.checked_add(bytes)? <= self.bytes).then_some(at)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        forget_or_drop(self.memory.get_mut().take(), |memory| memory.as_ref().is_none_or(SymmetricMemory::is_own));
    }
}

/// A part of a memory.
pub(crate) struct Part {
    of: Arc<Shared>,
    at: usize,
    bytes: usize,
}

impl Part {
    pub(crate) fn all_reduce(&self, rank: u32, (dtype, reduce): (Dtype, Reduce), timeout: Duration) -> Result<()> {
        let mut memory = self.of.memory.try_lock();
        let Some(memory) = memory.as_mut().and_then(|memory| memory.as_mut()) else {
            let problem = Misuse::Order("another thread is in a call over this memory");
            return Err(Error::Usage { rank, operation: "all_reduce", problem });
        };
        memory.all_reduce_bytes(dtype, self.at..self.at + self.bytes, reduce, timeout)
    }
}

/// The memories of a world.
#[derive(Debug, Default)]
pub(crate) struct Memories(Mutex<Vec<Weak<Shared>>>);

impl Memories {
    pub(crate) fn add(&self, memory: &Arc<Shared>) {
        let mut all = self.0.lock();
        all.retain(|memory| memory.strong_count() > 0);
        all.push(Arc::downgrade(memory));
    }

    /// The part that bytes at an address are, if they lie in one of these.
    pub(crate) fn part(&self, address: usize, bytes: usize) -> Option<Part> {
        let all = self.0.lock();
        let mut parts = all.iter().filter_map(|memory| {
            let of = memory.upgrade()?;
            let at = of.offset(address, bytes)?;
            Some(Part { of, at, bytes })
        });
        parts.next()
    }
}

/// Symmetric memory. A view can be had at any time, and keeps it.
#[pyclass(frozen, module = "earlybird._earlybird")]
pub(crate) struct Symmetric(pub(crate) Arc<Shared>);

#[pymethods]
impl Symmetric {
    /// Bytes.
    fn __len__(&self) -> usize {
        self.0.bytes
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let Shared { address, bytes, .. } = &*slf.get().0;
        // SAFETY: `view` is the interpreter's to fill. The address is that of so many bytes, which stay where they are as
        // long as this object, which the view keeps. Other ranks never write them, and read them only in a call of this
        // rank; other threads of the program must leave them alone meanwhile, as the documentation says.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), *address as *mut c_void, *bytes as isize, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
