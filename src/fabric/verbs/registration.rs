//! Memory that the device uses: the access that a registration allows, and its keys.
//!
//! A device uses no memory that is not registered. Peers reach only what they need, with only the
//! access that they need; other memory is registered for this rank alone. No process but the ranks
//! of the world is connected to this one, and a device checks a key against the connection that
//! names it.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use earlybird_ffi::verbs::sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
};
use earlybird_ffi::verbs::{Domain, Local, Memory};
use rustix::io::Errno;

use crate::fabric::net::{self, Purpose, allocate};
use crate::fabric::{Access, Window};

use super::super::locked_memory::LockedMemory;
use super::code::Code;

/// The operation that errors name.
const REGISTER: &str = "register";

/// What peers may do over a connection, as far as each registration allows it.
pub(super) const REMOTE_ACCESS: u32 = REMOTE_ACCESS_TO_SECOND | IBV_ACCESS_REMOTE_ATOMIC;

/// The same over a connection of the second rail, whose device need have no atomics.
pub(super) const REMOTE_ACCESS_TO_SECOND: u32 = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

impl Purpose {
    /// The access flags of libibverbs.
    fn access_flags(self) -> u32 {
        let access = self.access();
        // Peers that may change cells may look at them: by reads.
        let read = if access.is_shared() { IBV_ACCESS_REMOTE_READ } else { 0 };
        let write = if access.allows_writing() { IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
        IBV_ACCESS_LOCAL_WRITE | read | write
    }
}

/// Registers memory with a device.
#[derive(Clone, Debug)]
pub(in crate::internals::fabric) struct Registrar {
    rank: u32,
    domain: Arc<Domain>,
    /// That of the second rail.
    second: Option<Arc<Domain>>,
}

/// Memory of this process that the device may use, and that of the second rail. The registrations end before the memory.
#[derive(Debug)]
pub(in crate::internals::fabric) struct Registered {
    memory: Memory,
    second: Option<Memory>,
    window: Window,
    access: Access,
}

/// Why memory could not be registered.
pub(super) type Failed = net::Failed<Code>;

impl Registrar {
    pub(super) fn new(rank: u32, domain: Arc<Domain>, second: Option<Arc<Domain>>) -> Self {
        Registrar { rank, domain, second }
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Returns the other rail by which memory for a purpose is reached, if there is one. Messages go by the first rail only.
    fn second(&self, purpose: Purpose) -> Option<&Arc<Domain>> {
        self.second.as_ref().filter(|_| purpose != Purpose::Messages)
    }

    /// Checks that the kernel would lock this memory, of which it counts each registration.
    fn check(&self, bytes: usize, purpose: Purpose) -> Result<(), Failed> {
        let need = bytes as u64 * (1 + u64::from(self.second(purpose).is_some()));
        LockedMemory::now().check(self.rank, REGISTER, need).map_err(Failed::System)
    }

    /// Allocates zeroed memory of whole pages, for a purpose.
    pub(super) fn allocate(&self, bytes: usize, purpose: Purpose) -> Result<Registered, Failed> {
        // Before the memory is taken.
        self.check(bytes, purpose)?;
        self.register(allocate(self.rank, bytes).map_err(Failed::System)?, purpose)
    }

    /// Registers the memory of a window, for a purpose.
    pub(super) fn register(&self, window: Window, purpose: Purpose) -> Result<Registered, Failed> {
        self.check(window.len(), purpose)?;
        let base = window.bytes(0, window.len());
        let register = |domain: &Arc<Domain>, flags: u32| {
            // SAFETY: the `Registered` keeps the window, and so the memory, for longer than the
            // registration. All access goes through windows.
            let memory = unsafe { Memory::register(domain.clone(), (base, window.len()), flags) };
            memory.map_err(|cause| self.refused(&cause, window.len()))
        };
        let flags = purpose.access_flags();
        let memory = register(&self.domain, flags)?;
        let second =
            self.second(purpose).map(|domain| register(domain, flags & !IBV_ACCESS_REMOTE_ATOMIC)).transpose()?;
        Ok(Registered { memory, second, window, access: purpose.access() })
    }

    /// Why the kernel has refused a registration: the limit of locked memory, if that explains it.
    fn refused(&self, cause: &io::Error, bytes: usize) -> Failed {
        let limit = match Errno::from_io_error(cause) {
            Some(Errno::NOMEM | Errno::AGAIN) => LockedMemory::now().explain(self.rank, REGISTER, bytes as u64),
            _ => None,
        };
        limit.map_or_else(|| Failed::Code(Code::of(cause)), Failed::System)
    }
}

impl Registered {
    pub(super) fn local(&self, offset: usize, len: usize) -> Local {
        self.local_by(self.memory.local_key(), offset, len)
    }

    /// As the second rail names it.
    pub(super) fn local_of_second(&self, offset: usize, len: usize) -> Local {
        self.local_by(self.second.as_ref().map_or(0, Memory::local_key), offset, len)
    }

    fn local_by(&self, key: u32, offset: usize, len: usize) -> Local {
        // A part of a transfer or a message: `Limits::part` is far below the limit of a request.
        let len32 = u32::try_from(len).unwrap_or(u32::MAX);
        Local { base: self.window.bytes(offset, len).as_ptr(), len: len32, key }
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
        let base = self.window.bytes(0, self.window.len()).as_ptr() as u64;
        let second = self.second.as_ref().map_or(0, Memory::remote_key);
        self.access.is_shared().then(|| (u64::from(second) << 32 | u64::from(self.memory.remote_key()), base))
    }
}

/// The keys of both rails that a key holds for peers.
pub(super) fn keys(key: u64) -> (u32, u32) {
    (key as u32, (key >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_may_do_what_the_purpose_needs() {
        let (read, write) = (IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
        for (purpose, remote) in [
            (Purpose::Messages, 0),
            (Purpose::Operations(Access::Local), 0),
            (Purpose::Operations(Access::Read), read),
            (Purpose::Operations(Access::Write), read | write),
            (Purpose::Operations(Access::ReadWrite), read | write),
        ] {
            assert_eq!(purpose.access_flags(), IBV_ACCESS_LOCAL_WRITE | remote, "{purpose:?}");
        }
    }
}
