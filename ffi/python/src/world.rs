//! The processes of a job.

use std::time::Duration;

use earlybird::{Config, FabricChoice, Misuse};
use pyo3::prelude::*;

use crate::errors::{bad_choice, forked, misused, raised};
use crate::interrupt;
use crate::symmetric::Memories;

/// The processes of a job, as one of them sees them.
#[pyclass(subclass, frozen, module = "earlybird._earlybird")]
pub(crate) struct World {
    /// Nothing when it was closed. A forked child never drops it.
    world: parking_lot::Mutex<Option<earlybird::World>>,
    pub(crate) memories: Memories,
}

/// The world that a program joins, where the environment does not say it.
#[derive(FromPyObject)]
pub(crate) enum Place {
    /// A rank, the number of ranks, and the store where they meet.
    Store(u32, u32, String),
    /// Ranks of a world that pass the same color, in the order of their keys.
    Group(Py<World>, u32, i32),
}

/// A time in seconds, or none.
pub(crate) fn duration(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds.filter(|&seconds| seconds != f64::INFINITY) else { return Ok(None) };
    let bad = |_| bad_choice(py, format!("a timeout of {seconds:?}: use seconds from 0 on, or None"));
    Duration::try_from_secs_f64(seconds).map(Some).map_err(bad)
}

impl World {
    pub(crate) fn handle(&self, py: Python<'_>) -> PyResult<earlybird::World> {
        self.world.lock().clone().ok_or_else(|| misused(py, Misuse::Finished("the world was closed")))
    }
}

#[pymethods]
impl World {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    #[pyo3(signature = (*, place=None, fabric=None, provider=None, secret=None, hw_config=None, deadline=None, levels=None))]
    fn new(
        py: Python<'_>,
        place: Option<Place>,
        fabric: Option<&str>,
        provider: Option<String>,
        secret: Option<String>,
        hw_config: Option<String>,
        deadline: Option<f64>,
        levels: Option<u32>,
    ) -> PyResult<Self> {
        let mut config = Config::from_env().map_err(|error| raised(py, &error))?;
        if let Some(fabric) = fabric {
            let parsed = fabric.parse::<FabricChoice>();
            config.fabric = parsed.map_err(|problem| bad_choice(py, problem.to_string()))?;
        }
        config.ofi.provider = provider.or(config.ofi.provider);
        config.secret = secret.or(config.secret);
        config.hw_config = hw_config.map(Into::into).or(config.hw_config);
        if let Some(deadline) = duration(py, deadline)? {
            config.deadline = deadline;
        }
        if let Some(levels) = levels {
            config.set_levels(levels).map_err(|error| raised(py, &error))?;
        }
        let joined = match place {
            None => interrupt::beside(py, move || earlybird::World::with(&config)),
            Some(Place::Store(rank, size, store)) => {
                interrupt::beside(py, move || earlybird::World::join(rank, size, &store, &config))
            }
            Some(Place::Group(world, color, key)) => {
                let world = world.get().handle(py)?;
                interrupt::beside(py, move || world.split(color, key))
            }
        };
        let world = joined?.map_err(|error| raised(py, &error))?;
        Ok(World { world: parking_lot::Mutex::new(Some(world)), memories: Memories::default() })
    }

    /// This rank, from 0.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.handle(py)?.rank())
    }

    /// Ranks in the world.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.handle(py)?.size())
    }

    /// The transport.
    #[getter]
    fn fabric(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.handle(py)?.fabric_name())
    }

    /// The provider of libfabric, or over verbs the kind of network, such as "RoCE v2"; None in shared memory.
    #[getter]
    fn provider(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.handle(py)?.provider().map(str::to_owned))
    }

    /// The ranks of each host, ascending. Ranks that share memory are on one host.
    #[getter]
    fn hosts(&self, py: Python<'_>) -> PyResult<Vec<Vec<u32>>> {
        Ok(self.handle(py)?.hosts())
    }

    /// Makes every later call of every rank fail, with this rank and the reason in the error. Any thread may call it.
    #[pyo3(signature = (reason="no reason given"))]
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let world = self.handle(py)?;
        if !world.is_own() {
            return Err(forked(py));
        }
        py.detach(|| world.abort(reason));
        Ok(())
    }

    /// Bytes of callers' data that synchronous collectives of this rank have copied: into boards, and out of them.
    #[getter]
    fn copies(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let copies = self.handle(py)?.copies();
        Ok((copies.into_boards, copies.out_of_boards))
    }

    /// Closes the handle. The rank leaves the world when its last collective is gone, too.
    fn close(&self, py: Python<'_>) {
        let world = self.world.lock().take();
        py.detach(|| forget_or_drop(world, |world| world.as_ref().is_none_or(earlybird::World::is_own)));
    }
}

/// Drops what belongs to this process. In a forked child it belongs to the parent.
pub(crate) fn forget_or_drop<T>(value: T, is_own: impl FnOnce(&T) -> bool) {
    if is_own(&value) {
        drop(value);
    } else {
        std::mem::forget(value);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        forget_or_drop(self.world.get_mut().take(), |world| world.as_ref().is_none_or(earlybird::World::is_own));
    }
}
