//! Synchronous collectives and messages: bytes of the caller in, bytes out.

use std::sync::Arc;
use std::time::Duration;

use earlybird::{Dtype, Misuse, Reduce, Result};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::errors::{bad_argument, bad_choice, misused, raised};
use crate::symmetric::{Shared, Symmetric};
use crate::world::{World, duration};

/// The memory of a caller, held for a call.
pub(crate) struct Held {
    /// What it held, if the result is written over it.
    copy: Option<Vec<u64>>,
    _buffer: PyBuffer<u8>,
    address: usize,
    bytes: usize,
}

impl Held {
    fn new(py: Python<'_>, buffer: PyBuffer<u8>, is_written: bool) -> PyResult<Self> {
        if !buffer.is_c_contiguous() || is_written && buffer.readonly() {
            let problem = "a call needs contiguous memory, and results memory that can be written";
            return Err(misused(py, Misuse::Argument(problem)));
        }
        let (address, bytes) = (buffer.buf_ptr() as usize, buffer.len_bytes());
        Ok(Held { copy: None, _buffer: buffer, address, bytes })
    }

    /// A source whose result may lie in the same memory: then it is copied first.
    fn apart(mut self, result: &Held) -> Self {
        let overlaps = self.address < result.address + result.bytes && result.address < self.address + self.bytes;
        if overlaps {
            let mut copy = vec![0u64; self.bytes.div_ceil(size_of::<u64>())];
            // SAFETY: `copy` has so many bytes, and any bits are valid for it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(copy.as_mut_ptr().cast::<u8>(), self.bytes) };
            bytes.copy_from_slice(self.read());
            self.copy = Some(copy);
        }
        self
    }

    /// Memory that is read.
    pub(crate) fn source(py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<Self> {
        Held::new(py, buffer, false)
    }

    pub(crate) fn read(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        if let Some(copy) = &self.copy {
            // SAFETY: it has so many bytes, and is borrowed as long as they are.
            return unsafe { std::slice::from_raw_parts(copy.as_ptr().cast::<u8>(), self.bytes) };
        }
        // SAFETY: the buffer has so many bytes and is held as long as this. Other threads of the program must leave it
        // alone meanwhile, as the documentation says.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }

    fn write(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as above, and the bytes can be written.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.bytes) }
    }
}

fn results(py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<Held> {
    Held::new(py, buffer, true)
}

/// An element type and a reduction, by their names.
fn reduction(py: Python<'_>, dtype: &str, reduce: &str) -> PyResult<(Dtype, Reduce)> {
    let dtype = dtype.parse().map_err(|problem| bad_choice(py, format!("dtype: {problem}")))?;
    let reduce = reduce.parse().map_err(|problem| bad_choice(py, format!("reduce: {problem}")))?;
    Ok((dtype, reduce))
}

/// A rank.
fn rank(given: &Bound<'_, PyAny>) -> PyResult<u32> {
    let rank: i64 = given.extract()?;
    u32::try_from(rank).map_err(|_| bad_argument(given.py(), format!("{rank} is not a rank of this world")))
}

/// A rank, or none for any.
fn any_rank(given: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    if given.is_none() { Ok(None) } else { rank(given).map(Some) }
}

/// The tag of a message.
fn tag(given: &Bound<'_, PyAny>) -> PyResult<u64> {
    let tag: i128 = given.extract()?;
    u64::try_from(tag)
        .map_err(|_| bad_argument(given.py(), format!("tags are numbers of 64 bits from 0 on, and not {tag}")))
}

/// Makes a call without the interpreter's lock.
fn call<R: Send>(
    py: Python<'_>,
    world: &World,
    timeout: Option<f64>,
    made: impl FnOnce(&earlybird::World, Duration) -> Result<R> + Send,
) -> PyResult<R> {
    let (world, timeout) = (world.handle(py)?, duration(py, timeout)?.unwrap_or(Duration::MAX));
    py.detach(|| made(&world, timeout)).map_err(|error| raised(py, &error))
}

#[pymodule]
pub(crate) mod collectives {
    use super::*;

    #[pyfunction]
    fn barrier(py: Python<'_>, world: &World, timeout: Option<f64>) -> PyResult<()> {
        call(py, world, timeout, |world, timeout| world.barrier(timeout))
    }

    #[pyfunction]
    fn broadcast(
        py: Python<'_>,
        world: &World,
        data: PyBuffer<u8>,
        #[pyo3(from_py_with = rank)] root: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let mut data = results(py, data)?;
        call(py, world, timeout, |world, timeout| world.broadcast(data.write(), root, timeout))
    }

    #[pyfunction]
    fn all_gather(
        py: Python<'_>,
        world: &World,
        mine: PyBuffer<u8>,
        all: PyBuffer<u8>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (mine, mut all) = (Held::source(py, mine)?, results(py, all)?);
        let mine = mine.apart(&all);
        call(py, world, timeout, |world, timeout| world.all_gather(mine.read(), all.write(), timeout))
    }

    #[pyfunction]
    fn gather(
        py: Python<'_>,
        world: &World,
        mine: PyBuffer<u8>,
        all: Option<PyBuffer<u8>>,
        #[pyo3(from_py_with = rank)] root: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (mine, mut all) = (Held::source(py, mine)?, all.map(|all| results(py, all)).transpose()?);
        let mine = if let Some(all) = &all { mine.apart(all) } else { mine };
        call(py, world, timeout, |world, timeout| {
            world.gather(mine.read(), all.as_mut().map(Held::write), root, timeout)
        })
    }

    #[pyfunction]
    fn scatter(
        py: Python<'_>,
        world: &World,
        all: Option<PyBuffer<u8>>,
        mine: PyBuffer<u8>,
        #[pyo3(from_py_with = rank)] root: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (all, mut mine) = (all.map(|all| Held::source(py, all)).transpose()?, results(py, mine)?);
        let all = all.map(|all| all.apart(&mine));
        call(py, world, timeout, |world, timeout| {
            world.scatter(all.as_ref().map(Held::read), mine.write(), root, timeout)
        })
    }

    #[pyfunction]
    fn all_to_all(
        py: Python<'_>,
        world: &World,
        sent: PyBuffer<u8>,
        received: PyBuffer<u8>,
        lengths: Option<(Vec<usize>, Vec<usize>)>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (sent, mut received) = (Held::source(py, sent)?, results(py, received)?);
        let sent = sent.apart(&received);
        call(py, world, timeout, |world, timeout| match &lengths {
            None => world.all_to_all(sent.read(), received.write(), timeout),
            Some((to, from)) => world.all_to_all_of((sent.read(), to), (received.write(), from), timeout),
        })
    }

    #[pyfunction]
    fn all_reduce(
        py: Python<'_>,
        world: &World,
        data: PyBuffer<u8>,
        kinds: (String, String),
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (mut data, (dtype, reduce)) = (results(py, data)?, reduction(py, &kinds.0, &kinds.1)?);
        let part = world.memories.part(data.address, data.bytes);
        call(py, world, timeout, |world, timeout| match &part {
            Some(part) => part.all_reduce(world.rank(), (dtype, reduce), timeout),
            None => world.all_reduce_bytes(dtype, data.write(), reduce, timeout),
        })
    }

    #[pyfunction]
    fn reduce(
        py: Python<'_>,
        world: &World,
        mine: PyBuffer<u8>,
        result: Option<PyBuffer<u8>>,
        kinds: (String, String),
        #[pyo3(from_py_with = rank)] root: u32,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (dtype, reduce) = reduction(py, &kinds.0, &kinds.1)?;
        let (mine, mut result) = (Held::source(py, mine)?, result.map(|result| results(py, result)).transpose()?);
        let mine = if let Some(result) = &result { mine.apart(result) } else { mine };
        call(py, world, timeout, |world, timeout| {
            let result = result.as_mut().map(Held::write);
            world.reduce_bytes(dtype, mine.read(), result, reduce, root, timeout)
        })
    }

    #[pyfunction]
    fn reduce_scatter(
        py: Python<'_>,
        world: &World,
        all: PyBuffer<u8>,
        mine: PyBuffer<u8>,
        kinds: (String, String),
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (dtype, reduce) = reduction(py, &kinds.0, &kinds.1)?;
        let (all, mut mine) = (Held::source(py, all)?, results(py, mine)?);
        let all = all.apart(&mine);
        call(py, world, timeout, |world, timeout| {
            world.reduce_scatter_bytes(dtype, all.read(), mine.write(), reduce, timeout)
        })
    }

    /// Makes memory that all ranks have.
    #[pyfunction]
    fn symmetric(py: Python<'_>, world: &World, bytes: usize, timeout: Option<f64>) -> PyResult<Symmetric> {
        let memory = call(py, world, timeout, |world, timeout| world.symmetric_memory(bytes, timeout))?;
        let shared = Arc::new(Shared::new(memory));
        world.memories.add(&shared);
        Ok(Symmetric(shared))
    }

    #[pyfunction]
    fn open_messages(py: Python<'_>, world: &World, timeout: Option<f64>) -> PyResult<()> {
        call(py, world, timeout, |world, timeout| world.open_messages(timeout))
    }

    #[pyfunction]
    fn send(
        py: Python<'_>,
        world: &World,
        data: PyBuffer<u8>,
        #[pyo3(from_py_with = rank)] to: u32,
        #[pyo3(from_py_with = tag)] tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let data = Held::source(py, data)?;
        call(py, world, timeout, |world, timeout| world.send(data.read(), to, tag, timeout))
    }

    /// From a rank, or from any; returns the rank.
    #[pyfunction]
    fn receive(
        py: Python<'_>,
        world: &World,
        data: PyBuffer<u8>,
        #[pyo3(from_py_with = any_rank)] from: Option<u32>,
        #[pyo3(from_py_with = tag)] tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<u32> {
        let mut data = results(py, data)?;
        call(py, world, timeout, |world, timeout| match from {
            Some(from) => world.receive(data.write(), from, tag, timeout).map(|()| from),
            None => world.receive_any(data.write(), tag, timeout),
        })
    }
}
