//! Memory that libfabric uses: the access that a registration allows, and its key.
//!
//! Peers reach only the memory that they need, with only the access that they need, by keys that
//! strangers have to guess. Other memory is not registered at all, unless the provider insists
//! (`FI_MR_LOCAL`): memory without a key cannot be named.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use earlybird_ffi::abandon;
use earlybird_ffi::ofi::{Code, Counter, Endpoint, Local, Memory, sys};

use super::keys::{DrawnKey, Keys};
use crate::fabric::net::{self, Purpose, allocate};
use crate::fabric::{Access, Window};
use crate::random::draw;

impl Purpose {
    /// The access flags of libfabric. `FI_SEND` is for messages alone: `ofi_rxm` lets peers read
    /// any memory that may be sent. Where devices change cells by atomics, which fetch, peers that may
    /// change memory may also read it.
    fn flags(self, by_atomics: bool) -> u64 {
        let Purpose::Operations(access) = self else {
            // Headers of writes go out from there, and what atomics fetch comes there.
            let fetched = if by_atomics { sys::FI_READ } else { 0 };
            return sys::FI_SEND | sys::FI_RECV | sys::FI_WRITE | fetched;
        };
        let reads = access.allows_reading() || (by_atomics && access.allows_writing());
        let read = if reads { sys::FI_REMOTE_READ } else { 0 };
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
pub(in crate::internals::fabric) struct Registrar {
    rank: u32,
    endpoint: Arc<Endpoint>,
    /// `None` where the provider chooses the keys.
    keys: Option<Arc<Keys>>,
    by_atomics: bool,
}

impl Registrar {
    /// The registrar of the only endpoint of a domain.
    pub(super) fn new(rank: u32, endpoint: Arc<Endpoint>) -> Self {
        let chosen = endpoint.memory_mode() & sys::FI_MR_PROV_KEY as i32 == 0;
        let keys = chosen.then(|| Keys::of_size(endpoint.key_size()));
        Registrar { rank, endpoint, keys, by_atomics: false }
    }

    /// The same where peers change cells by atomics.
    pub(super) fn with_atomics(self) -> Self {
        Registrar { by_atomics: true, ..self }
    }

    /// The same where they do not.
    pub(super) fn without_atomics(self) -> Self {
        Registrar { by_atomics: false, ..self }
    }

    /// Allocates zeroed memory of whole pages, for a purpose.
    pub(super) fn allocate(&self, bytes: usize, purpose: Purpose) -> Result<Registered, Failed> {
        let window = allocate(self.rank, bytes).map_err(Failed::System)?;
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
            unsafe { Memory::register(endpoint, part, purpose.flags(self.by_atomics), key, counter.cloned()) }
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

impl Drop for Registered {
    /// libfabric keeps what it was given if it is not told that this ends.
    fn drop(&mut self) {
        if self.memory.is_some() && abandon::is_over() {
            std::mem::forget(self.window.clone());
        }
    }
}

impl Registered {
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

impl net::Registered for Registered {
    fn window(&self) -> &Window {
        &self.window
    }

    fn access(&self) -> Access {
        self.access
    }

    fn key(&self) -> Option<(u64, u64)> {
        self.key()
    }
}

/// Why memory could not be registered.
pub(super) type Failed = net::Failed<Code>;

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
            assert_eq!(purpose.flags(false) & (read | write), remote, "{purpose:?}");
            let fetched = if remote & write != 0 { read } else { 0 };
            assert_eq!(purpose.flags(true) & (read | write), remote | fetched, "{purpose:?}");
            // `ofi_rxm` lets peers read what may be sent.
            let messages = purpose.flags(false) & (sys::FI_SEND | sys::FI_RECV) != 0;
            assert_eq!(messages, purpose == Purpose::Messages, "{purpose:?}");
            // Headers of writes go out from where messages do, and what atomics fetch comes there.
            for own in [sys::FI_WRITE, sys::FI_READ] {
                assert_ne!(purpose.flags(true) & own, 0, "{purpose:?}");
            }
            assert_ne!(purpose.flags(false) & sys::FI_WRITE, 0, "{purpose:?}");
            assert_eq!(purpose.is_registered(sys::FI_MR_VIRT_ADDR as i32), remote != 0, "{purpose:?}");
            assert!(purpose.is_registered(sys::FI_MR_LOCAL as i32), "{purpose:?}");
        }
    }
}
