//! Deferred work (`FI_QUEUE_WORK`): operations that a provider runs by itself when a counter
//! reaches a threshold, with the endpoint, the memory and the counters that they use.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use earlybird_ffi::ofi::{
    Code, Counter, Domain, Endpoint, Fabric, Library, NO_COMPLETION, Queue, Remote, Sign, Wanted, Work,
};

use super::registration::{Failed, Registered, Registrar};
use super::{environment, probe};
use crate::error::{Error, Result};
use crate::fabric::net::{Purpose, allocate};
use crate::fabric::{Access, RawAccess, Window};

/// Capacity for completions, which are read and ignored.
const COMPLETIONS: usize = 1024;

/// A provider's queue of deferred work.
///
/// Its use can break memory, as with an endpoint. The [`RawAccess`] that opened it promises that it
/// does not:
/// - Work is queued again only after it has run, and lives until then.
/// - Until it has run, the memory that it reads stays registered, and is not written from when the
///   work may be triggered.
/// - Memory that work or a peer may write is read only after a counter has shown that the write is
///   over.
pub(crate) struct WorkQueue {
    rank: u32,
    provider: String,
    registrar: Registrar,
    endpoint: Arc<Endpoint>,
    domain: Arc<Domain>,
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("provider", &self.provider).finish_non_exhaustive()
    }
}

impl WorkQueue {
    /// Opens the queue of one rank in a world of `ranks`.
    ///
    /// # Errors
    /// A provider without deferred work; the provider's error.
    pub(crate) fn open(library: &Library, provider: &str, (rank, ranks): (u32, u32), _: RawAccess) -> Result<Self> {
        let refused = |code: Code| unusable(rank, provider, library, code);
        let none = |cause: String| Error::transport(rank, None, "open", cause);
        let name = CString::new(provider).map_err(|_| none("the provider's name has a zero byte".to_owned()))?;
        let wanted = Wanted { provider: Some(name), ..probe::runs_programs() };
        let list = library.info(&wanted).map_err(|code| {
            let filter = environment::filter().map_or_else(String::new, |filter| format!("; {filter}"));
            none(format!("{provider} cannot run programs by itself: {}{filter}", library.error_text(code)))
        })?;
        let info = list.iter().next().ok_or_else(|| none("libfabric described nothing".to_owned()))?;
        environment::warn(rank, provider);
        let fabric = Fabric::open(library, info).map_err(refused)?;
        let domain = Domain::open(fabric, info).map_err(refused)?;
        let completions = Queue::open(domain.clone(), COMPLETIONS, Sign::None).map_err(refused)?;
        let endpoint = Endpoint::open(domain.clone(), info, completions, ranks as usize).map_err(refused)?;
        let registrar = Registrar::new(rank, endpoint.clone());
        Ok(WorkQueue { rank, provider: provider.to_owned(), registrar, endpoint, domain })
    }

    fn unusable(&self, code: Code) -> Error {
        unusable(self.rank, &self.provider, self.domain.fabric().library(), code)
    }

    fn failed(&self, failed: Failed) -> Error {
        match failed {
            Failed::System(error) => error,
            Failed::Code(code) => self.unusable(code),
        }
    }

    /// The error of an operation on this queue or its counters.
    pub(crate) fn refused(&self, code: Code) -> Error {
        let text = self.domain.fabric().library().error_text(code.0);
        Error::transport(self.rank, None, "run a program", format!("{} refuses: {text}", self.provider))
    }

    /// The address by which peers reach the endpoint.
    ///
    /// # Errors
    /// The provider's error.
    pub(crate) fn address(&self) -> Result<Vec<u8>> {
        self.endpoint.name().map_err(|code| self.unusable(code))
    }

    /// Adds a peer; returns the number by which work names it.
    ///
    /// # Errors
    /// The provider's error.
    pub(crate) fn insert(&self, address: &[u8]) -> Result<u64> {
        self.endpoint.insert(address).map_err(|code| self.refused(code))
    }

    /// A counter at 0.
    ///
    /// # Errors
    /// The provider's error.
    pub(crate) fn counter(&self) -> Result<Arc<Counter>> {
        Counter::open(self.domain.clone()).map_err(|code| self.unusable(code))
    }

    /// Allocates zeroed memory of whole pages.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Window> {
        allocate(self.rank, bytes)
    }

    /// Registers a part of a window, with a counter of remote writes, if one is given.
    ///
    /// # Errors
    /// The error of the system or of the provider.
    pub(crate) fn register(
        &self,
        window: &Window,
        part: Range<usize>,
        access: Access,
        counter: Option<&Arc<Counter>>,
    ) -> Result<Registered> {
        let registered = self.registrar.register(window, part, Purpose::Operations(access), counter);
        registered.map_err(|failed| self.failed(failed))
    }

    /// Work that writes the first `len` bytes of `from` to a peer when `when` reaches the
    /// threshold, and adds to `done` when the source may be written again.
    pub(crate) fn write_when(
        &self,
        when: Arc<Counter>,
        (from, len): (&Registered, usize),
        to: Remote,
        done: Arc<Counter>,
    ) -> Work {
        Work::write(when, self.endpoint.clone(), from.local(0, len), to, done)
    }

    /// Queues work to run when its counter reaches `threshold`; at once, if it already has.
    ///
    /// # Errors
    /// The provider's error; the length of its queue is limited.
    pub(crate) fn enqueue(&self, work: &mut Work, threshold: u64) -> Result<()> {
        // SAFETY: as this queue's `RawAccess` has promised: the work is not queued now, and it and
        // its memory live until it has run.
        let queued = unsafe { work.queue(&self.domain, threshold) };
        queued.map_err(|code| self.refused(code))
    }

    /// Writes the first `len` bytes of memory that never changes to a peer now.
    ///
    /// # Errors
    /// The provider's error.
    pub(crate) fn write(&self, (from, len): (&Registered, usize), to: Remote) -> Result<()> {
        let places = [(from.local(0, len), to)];
        loop {
            // SAFETY: as this queue's `RawAccess` has promised: the source stays registered, and
            // nothing writes it.
            let written = unsafe { self.endpoint.write(places, (0, 0), std::ptr::null_mut()) };
            // Drop completions, so that their queue does not fill up.
            let _ = self.endpoint.queue().read(&mut [NO_COMPLETION; 16]);
            match written {
                Ok(()) => return Ok(()),
                Err(Code::AGAIN) => std::thread::yield_now(),
                Err(code) => return Err(self.refused(code)),
            }
        }
    }
}

/// The error of opening a provider.
fn unusable(rank: u32, provider: &str, library: &Library, code: Code) -> Error {
    Error::transport(rank, None, "open", format!("{provider}: {}", library.error_text(code.0)))
}
