//! libfabric's endpoint as a wire: the calls of its operations, and a context for each.
//!
//! No operation is `fi_inject_writedata`: if it fails because the peer is dead, `ofi_rxm` (1.17 to
//! 2.5) follows a null pointer, since `tcp` reports the failure of an operation without a context.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use earlybird_ffi::ofi::{self, Code, Endpoint, NO_COMPLETION, sys};

use super::registration::{Failed, Registered, Registrar};
use crate::fabric::net::{Entry, Local, Posted, Purpose, Remote, Watched, Wire};

/// Memory that libfabric may use for an operation until it completes (`FI_CONTEXT2`).
#[repr(C, align(64))]
struct Context(sys::fi_context2);

/// The endpoint at work.
pub(in crate::fabric) struct OfiWire {
    pub(super) endpoint: Arc<Endpoint>,
    registrar: Registrar,
    /// libfabric's number of each rank.
    peers: Vec<u64>,
    /// The context of each operation, by its number. libfabric holds their addresses until the
    /// endpoint ends, so they never move, and are declared behind it.
    contexts: Box<[Context]>,
    entries: [sys::fi_cq_data_entry; 16],
    read: Range<usize>,
    failed: Option<Entry>,
    /// What to sleep on, and the provider's change count at which that was read, if it is known.
    watched: Arc<[Watched]>,
    changes: Option<u64>,
}

// SAFETY: the addresses in `entries` are compared and never followed.
unsafe impl Send for OfiWire {}

impl fmt::Debug for OfiWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfiWire").field("peers", &self.peers).finish_non_exhaustive()
    }
}

fn posted(result: Result<(), Code>) -> Posted<Code> {
    match result {
        Ok(()) => Ok(true),
        Err(Code::AGAIN) => Ok(false),
        Err(code) => Err(code),
    }
}

fn local(part: &Local<'_, Registered>) -> ofi::Local {
    part.memory.local(part.offset, part.len)
}

impl OfiWire {
    /// The wire of an endpoint, for so many operations at a time.
    pub(super) fn new(rank: u32, endpoint: Arc<Endpoint>, operations: usize) -> Self {
        let internal = || Context(sys::fi_context2 { internal: [std::ptr::null_mut(); 8] });
        OfiWire {
            registrar: Registrar::new(rank, endpoint.clone()),
            peers: Vec::new(),
            contexts: (0..operations).map(|_| internal()).collect(),
            entries: [NO_COMPLETION; 16],
            read: 0..0,
            failed: None,
            watched: Arc::new([]),
            changes: None,
            endpoint,
        }
    }

    fn remote(&self, peer: u32, Remote { address, key }: Remote) -> ofi::Remote {
        ofi::Remote { peer: self.peers[peer as usize], address, key }
    }

    fn context(&mut self, number: usize) -> *mut c_void {
        (&raw mut self.contexts[number]).cast()
    }

    /// The number of the operation with this context.
    fn number(&self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let number = offset / size_of::<Context>();
        (offset % size_of::<Context>() == 0 && number < self.contexts.len()).then_some(number)
    }

    /// Reads the entry of a failed operation.
    fn read_failed(&mut self) -> Result<Option<Entry>, Code> {
        let failed = match self.endpoint.queue().failed() {
            Err(Code::AGAIN) => return Ok(None),
            failed => failed?,
        };
        Ok(self.number(failed.context).map(|number| Entry::Failed { number, reason: failed.text }))
    }
}

impl Wire for OfiWire {
    const FABRIC: &'static str = "ofi";
    const LIBRARY: &'static str = "libfabric";

    type Error = Code;
    type Memory = Registered;
    type Registrar = Registrar;

    fn registrar(&self) -> &Registrar {
        &self.registrar
    }

    fn allocate(registrar: &Registrar, bytes: usize, purpose: Purpose) -> Result<Registered, Failed> {
        registrar.allocate(bytes, purpose)
    }

    fn insert(&mut self, address: &[u8]) -> Result<(), Code> {
        self.peers.push(self.endpoint.insert(address)?);
        Ok(())
    }

    unsafe fn receive(&mut self, to: Local<'_, Registered>, number: usize) -> Result<(), Code> {
        let context = self.context(number);
        // SAFETY: as the caller says.
        unsafe { self.endpoint.receive(local(&to), context) }
    }

    unsafe fn send(&mut self, peer: u32, from: Local<'_, Registered>, number: usize) -> Posted<Code> {
        let context = self.context(number);
        // SAFETY: as the caller says.
        posted(unsafe { self.endpoint.send(local(&from), self.peers[peer as usize], context) })
    }

    fn most_injected(&self) -> usize {
        self.endpoint.inject_size()
    }

    fn inject(&mut self, peer: u32, message: &[u8]) -> Posted<Code> {
        posted(self.endpoint.inject(message, self.peers[peer as usize]))
    }

    unsafe fn write(
        &mut self,
        peer: u32,
        from: Local<'_, Registered>,
        to: Remote,
        immediate: Option<u64>,
        number: usize,
    ) -> Posted<Code> {
        let how = match immediate {
            None => (sys::FI_DELIVERY_COMPLETE, 0),
            Some(immediate) => (sys::FI_REMOTE_CQ_DATA, immediate),
        };
        let (place, context) = ((local(&from), self.remote(peer, to)), self.context(number));
        // SAFETY: as the caller says.
        posted(unsafe { self.endpoint.write([place], how, context) })
    }

    unsafe fn write_both(
        &mut self,
        peer: u32,
        places: [(Local<'_, Registered>, Remote); 2],
        immediate: u64,
        number: usize,
    ) -> Posted<Code> {
        let places = places.map(|(from, to)| (local(&from), self.remote(peer, to)));
        let context = self.context(number);
        // SAFETY: as the caller says.
        posted(unsafe { self.endpoint.write(places, (sys::FI_REMOTE_CQ_DATA, immediate), context) })
    }

    unsafe fn read(&mut self, peer: u32, to: Local<'_, Registered>, from: Remote, number: usize) -> Posted<Code> {
        let (from, context) = (self.remote(peer, from), self.context(number));
        // SAFETY: as the caller says.
        posted(unsafe { self.endpoint.read(local(&to), from, context) })
    }

    fn poll(&mut self) -> Result<(), Code> {
        debug_assert!(self.read.is_empty());
        match self.endpoint.queue().read(&mut self.entries) {
            Ok(count) => self.read = 0..count,
            Err(Code::AGAIN) => {}
            Err(Code::AVAILABLE) => self.failed = self.read_failed()?,
            Err(code) => return Err(code),
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Entry> {
        if let Some(failed) = self.failed.take() {
            return Some(failed);
        }
        let entry = self.entries[self.read.next()?];
        // Check both: some providers set the second flag on completions of the writer, too.
        let landed = sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA;
        if entry.flags & landed == landed {
            return Some(Entry::Landed(entry.data));
        }
        let number = self.number(entry.op_context);
        Some(number.map_or(Entry::Nothing, |number| Entry::Done { number, len: entry.len }))
    }

    fn may_sleep(&mut self) -> Option<Arc<[Watched]>> {
        let queue = self.endpoint.queue();
        let changes = queue.changes();
        if self.changes != Some(changes) {
            if self.changes.is_some() {
                queue.refresh();
            }
            let watched = queue.watched().into_iter();
            self.watched = watched.map(|ofi::Watched { descriptor, events }| Watched { descriptor, events }).collect();
            // A process that could not copy the descriptors may succeed the next time.
            self.changes = (!self.watched.is_empty()).then_some(changes);
        }
        // `try_wait` makes progress, which may change the list again.
        let safe = self.read.is_empty() && self.endpoint.domain().fabric().try_wait(queue).is_ok();
        (safe && queue.changes() == changes).then(|| self.watched.clone())
    }

    fn end(&mut self, in_flight: bool) -> bool {
        if in_flight {
            // `ofi_rxm` (1.17) sometimes crashes when an endpoint is closed while an operation of its
            // own or of a peer is in flight.
            std::mem::forget((self.endpoint.clone(), std::mem::take(&mut self.contexts)));
        }
        !in_flight
    }

    fn text(&self, code: Code) -> String {
        self.endpoint.domain().fabric().library().error_text(code.0)
    }
}
