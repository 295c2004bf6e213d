//! Memory of this process that libfabric uses: its allocation, and the access that a registration
//! allows.
//!
//! Peers reach only the memory that they need, with only the access that they need, by keys that
//! strangers have to guess. Other memory is not registered at all, unless the provider insists
//! (`FI_MR_LOCAL`): memory without a key cannot be named.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use earlybird_ffi::ofi::{Code, Counter, Endpoint, Local, Memory, sys};
use memmap2::{Advice, MmapOptions, MmapRaw};

use super::keys::{DrawnKey, Keys};
use crate::error::Error;
use crate::fabric::{Access, Window};
use crate::random::draw;

/// The purpose of memory, which decides what operations may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Messages are received into it and sent from it; headers of writes are sent from it.
    Messages,
    /// One-sided operations of this rank, and those of peers that the access allows.
    Operations(Access),
}

impl Purpose {
    fn access(self) -> Access {
        match self {
            Purpose::Messages => Access::Local,
            Purpose::Operations(access) => access,
        }
    }

    /// The access flags of libfabric. `FI_SEND` is for messages alone: `ofi_rxm` lets peers read
    /// any memory that may be sent.
    fn flags(self) -> u64 {
        let Purpose::Operations(access) = self else { return sys::FI_SEND | sys::FI_RECV | sys::FI_WRITE };
        let read = if access.allows_reading() { sys::FI_REMOTE_READ } else { 0 };
        let write = if access.allows_writing() { sys::FI_REMOTE_WRITE } else { 0 };
        sys::FI_READ | sys::FI_WRITE | read | write
    }

    /// Whether a provider with this memory mode needs a registration.
    fn is_registered(self, mode: i32) -> bool {
        self.access().is_shared() || mode & sys::FI_MR_LOCAL as i32 != 0
    }
}

/// Registers the memory of an endpoint.
#[derive(Clone, Debug)]
pub(super) struct Registrar {
    rank: u32,
    endpoint: Arc<Endpoint>,
    /// `None` where the provider chooses the keys.
    keys: Option<Arc<Keys>>,
}

impl Registrar {
    /// The registrar of the only endpoint of a domain.
    pub(super) fn new(rank: u32, endpoint: Arc<Endpoint>) -> Self {
        let chosen = endpoint.memory_mode() & sys::FI_MR_PROV_KEY as i32 == 0;
        let keys = chosen.then(|| Keys::of_size(endpoint.key_size()));
        Registrar { rank, endpoint, keys }
    }

    /// Allocates zeroed memory of whole pages, for a purpose.
    pub(super) fn allocate(&self, bytes: usize, purpose: Purpose) -> Result<Registered, Failed> {
        let window = allocate(self.rank, bytes)?;
        let all = 0..window.len();
        self.register(&window, all, purpose, None)
    }

    /// Registers a part of a window, with a counter of remote writes, if one is given.
    pub(super) fn register(
        &self,
        window: &Window,
        part: Range<usize>,
        purpose: Purpose,
        counter: Option<&Arc<Counter>>,
    ) -> Result<Registered, Failed> {
        let base = window.bytes(part.start, part.len());
        let make = |key| {
            let (endpoint, part) = (self.endpoint.clone(), (base, part.len()));
            // SAFETY: the `Registered` that is made of it keeps the window, and so the memory, for
            // longer than the registration. All access goes through windows.
            unsafe { Memory::register(endpoint, part, purpose.flags(), key, counter.cloned()) }
        };
        let random = || draw(self.rank).map(u64::from_le_bytes).map_err(Failed::System);
        let (memory, key) = match &self.keys {
            _ if !purpose.is_registered(self.endpoint.memory_mode()) => (None, None),
            // The requested key does not matter.
            None => (Some(make(0).map_err(Failed::Code)?), None),
            Some(keys) => keys.with_key(random, make).map(|(memory, key)| (Some(memory), Some(key)))?,
        };
        let (window, origin) = (window.clone(), self.endpoint.origin(base));
        Ok(Registered { memory, _key: key, window, offset: part.start, origin, access: purpose.access() })
    }
}

/// Memory of this process that libfabric may use. A registration ends before its key is free, and
/// before the memory.
#[derive(Debug)]
pub(crate) struct Registered {
    memory: Option<Memory>,
    _key: Option<DrawnKey>,
    window: Window,
    /// Offset of the memory in the window.
    offset: usize,
    /// What remote addresses count from: an address, or 0.
    origin: u64,
    access: Access,
}

impl Registered {
    pub(super) fn window(&self) -> &Window {
        &self.window
    }

    /// What peers may do with the memory.
    pub(super) fn access(&self) -> Access {
        self.access
    }

    /// What peers need to name the memory: the key of the registration and the base of remote
    /// addresses. `None` if peers may not use it.
    pub(crate) fn key(&self) -> Option<(u64, u64)> {
        let memory = self.memory.as_ref().filter(|_| self.access.is_shared())?;
        Some((memory.key(), self.origin))
    }

    pub(super) fn local(&self, offset: usize, len: usize) -> Local {
        let base = self.window.bytes(self.offset + offset, len).as_ptr();
        Local { base, len, descriptor: self.memory.as_ref().map_or(ptr::null_mut(), Memory::descriptor) }
    }
}

/// Why memory could not be registered.
#[derive(Debug)]
pub(super) enum Failed {
    /// The system refused.
    System(Error),
    /// The provider refused.
    Code(Code),
}

/// Allocates zeroed memory of whole pages and populates them, as some devices require.
pub(super) fn allocate(rank: u32, bytes: usize) -> Result<Window, Failed> {
    const PAGE: usize = 4096;
    const LARGE_PAGE: usize = 2 << 20;
    let refused = |cause: std::io::Error| Failed::System(Error::os(rank, "allocate memory", cause));
    let len = bytes.max(1).next_multiple_of(PAGE);
    let mut options = MmapOptions::new();
    options.len(len);
    // Copies and devices touch every byte; with large pages they look up fewer of them.
    let large = (len >= LARGE_PAGE).then(|| options.map_anon().map(MmapRaw::from)).transpose().map_err(refused)?;
    let large = large.filter(|map| map.advise(Advice::HugePage).is_ok() && map.advise(Advice::PopulateWrite).is_ok());
    let map = match large {
        Some(map) => map,
        None => MmapRaw::from(options.populate().map_anon().map_err(refused)?),
    };
    let base = NonNull::new(map.as_mut_ptr()).ok_or(Failed::Code(Code::NO_MEMORY))?;
    // SAFETY: a private mapping of that length, page-aligned and zeroed, which the window keeps.
    Ok(unsafe { Window::new(base, len, Arc::new(map)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_may_do_what_the_role_needs() {
        let (read, write) = (sys::FI_REMOTE_READ, sys::FI_REMOTE_WRITE);
        for (purpose, remote) in [
            (Purpose::Messages, 0),
            (Purpose::Operations(Access::Local), 0),
            (Purpose::Operations(Access::Read), read),
            (Purpose::Operations(Access::Write), write),
            (Purpose::Operations(Access::ReadWrite), read | write),
        ] {
            assert_eq!(purpose.flags() & (read | write), remote, "{purpose:?}");
            // `ofi_rxm` lets peers read what may be sent.
            let messages = purpose.flags() & (sys::FI_SEND | sys::FI_RECV) != 0;
            assert_eq!(messages, purpose == Purpose::Messages, "{purpose:?}");
            // Headers of writes go out from where messages do.
            assert_ne!(purpose.flags() & sys::FI_WRITE, 0, "{purpose:?}");
            assert_eq!(purpose.is_registered(sys::FI_MR_VIRT_ADDR as i32), remote != 0, "{purpose:?}");
            assert!(purpose.is_registered(sys::FI_MR_LOCAL as i32), "{purpose:?}");
        }
    }
}
