//! libfabric's endpoint as a wire: the calls of its operations, and a context for each.
//!
//! No operation is `fi_inject_writedata`: if it fails because the peer is dead, `ofi_rxm` (1.17 to
//! 2.5) follows a null pointer, since `tcp` reports the failure of an operation without a context.
#![allow(unsafe_code)]

use std::collections::{BTreeSet, VecDeque};
use std::ffi::c_void;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use earlybird_ffi::abandon;
use earlybird_ffi::ofi::{self, Atomics, Code, Endpoint, NO_COMPLETION, sys};

use super::change::{Changing, Words, operands};
use super::door::{Door, internet_address};
use super::registration::{Failed, Registered, Registrar};
use super::watchdog::Watchdog;
use crate::error::Ranks;
use crate::fabric::net::{
    Atomicity, CellChange, Ends, Local, Posted, Purpose, QueueEntry, Registered as _, Remote, Telling, Watched, Wire,
};
use crate::fabric::{Access, Window};
use crate::time::Deadline;

/// Memory that libfabric may use for an operation until it completes (`FI_CONTEXT2`).
#[repr(C, align(64))]
struct Context(sys::fi_context2);

/// The endpoint at work.
pub(in crate::internals::fabric) struct OfiWire {
    pub(super) endpoint: Arc<Endpoint>,
    registrar: Registrar,
    /// libfabric's number of each rank.
    peers: Vec<u64>,
    /// The connections with ranks that have internet addresses.
    door: Door,
    /// The context of each operation, by its number. libfabric holds their addresses until the
    /// endpoint ends, so they never move, and are declared behind it.
    contexts: Box<[Context]>,
    entries: [sys::fi_cq_data_entry; 16],
    read: Range<usize>,
    failed: VecDeque<QueueEntry>,
    cell_changes: Option<Changes>,
    /// What to sleep on, and the provider's change count at which that was read, if it is known.
    watched: Arc<[Watched]>,
    changes: Option<u64>,
    /// The last to end: to close the endpoint takes calls, too.
    _watchdog: Watchdog,
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

/// The changes of cells in flight, by the numbers of their operations.
struct Changes {
    atomics: Atomics,
    left: Box<[Option<Changing>]>,
    /// Those whose next operation the provider has not taken yet.
    stalled: VecDeque<usize>,
}

fn local(part: &Local<'_, Registered>) -> ofi::Local {
    part.memory.local(part.offset, part.len)
}

impl OfiWire {
    /// The wire of an endpoint, for a given number of operations at a time.
    pub(super) fn new(
        (rank, watchdog): (u32, Watchdog),
        endpoint: Arc<Endpoint>,
        atomics: Option<Atomics>,
        operations: usize,
    ) -> Self {
        let internal = || Context(sys::fi_context2 { internal: [std::ptr::null_mut(); 8] });
        let registrar = Registrar::new(rank, endpoint.clone());
        OfiWire {
            registrar: if atomics.is_some() { registrar.with_atomics() } else { registrar },
            cell_changes: atomics.map(|atomics| Changes {
                atomics,
                left: vec![None; operations].into(),
                stalled: VecDeque::with_capacity(operations),
            }),
            peers: Vec::new(),
            door: Door::new(rank),
            contexts: (0..operations).map(|_| internal()).collect(),
            entries: [NO_COMPLETION; 16],
            read: 0..0,
            failed: VecDeque::new(),
            watched: Arc::new([]),
            changes: None,
            endpoint,
            _watchdog: watchdog,
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

    /// Posts the next operation of a change.
    fn go_on(&mut self, number: usize) -> Posted<Code> {
        let context = self.context(number);
        let Some(Changes { atomics, left, .. }) = &mut self.cell_changes else { return Err(Code::NO_FUNCTION) };
        let Some(changing) = &mut left[number] else { return Err(Code::NO_FUNCTION) };
        // SAFETY: as the caller of `change` says; the number's operation before has completed.
        let posted = posted(unsafe { changing.post(&self.endpoint, atomics, context) });
        if posted.is_err() || changing.is_over() {
            left[number] = None;
        }
        posted
    }

    /// Whether an operation that has completed has another one of its change behind it, which is posted.
    fn goes_on(&mut self, number: usize) -> bool {
        if self.cell_changes.as_ref().is_none_or(|changes| changes.left[number].is_none()) {
            return false;
        }
        self.go_on_or_later(number);
        true
    }

    fn go_on_or_later(&mut self, number: usize) {
        match self.go_on(number) {
            Ok(true) => {}
            Ok(false) => self.cell_changes.iter_mut().for_each(|changes| changes.stalled.push_back(number)),
            Err(code) => self.failed.push_back(QueueEntry::Failed { number, reason: self.text(code) }),
        }
    }

    /// Reads the entry of a failed operation.
    fn read_failed(&mut self) -> Result<Option<QueueEntry>, Code> {
        let failed = match self.endpoint.queue().failed() {
            Err(Code::AGAIN) => return Ok(None),
            failed => failed?,
        };
        let number = self.number(failed.context);
        if let (Some(number), Some(changes)) = (number, &mut self.cell_changes) {
            changes.left[number] = None;
        }
        Ok(number.map(|number| QueueEntry::Failed { number, reason: failed.text }))
    }
}

impl Wire for OfiWire {
    const FABRIC: &'static str = "ofi";
    const LIBRARY: &'static str = "libfabric";

    type Error = Code;
    type Memory = Registered;
    type Registrar = Registrar;

    const IN_ORDER: bool = false;
    const CAN_BE_FOUND: bool = true;

    fn registrar(&self) -> &Registrar {
        &self.registrar
    }

    fn allocate(registrar: &Registrar, bytes: usize, purpose: Purpose) -> Result<Registered, Failed> {
        registrar.allocate(bytes, purpose)
    }

    fn register(registrar: &Registrar, window: Window, access: Access) -> Result<Registered, Failed> {
        let all = 0..window.len();
        registrar.register(&window, all, Purpose::Operations(access), None)
    }

    fn insert(&mut self, address: &[u8]) -> Result<(), Code> {
        self.peers.push(self.endpoint.insert(address)?);
        if let Some(address) = internet_address(address) {
            self.door.add(address);
        }
        Ok(())
    }

    fn tell_connections(&mut self, step: Telling, told: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
        if self.door.ranks() != self.peers.len() {
            return Ok(Vec::new());
        }
        Ok(match step {
            Telling::Made => self.door.made(),
            Telling::Kept => {
                // A rank whose device changes its own cells may yet connect to itself.
                self.door.shut(told, self.cell_changes.is_some())?
            }
            Telling::StillMade => self.door.still_made(told),
        })
    }

    fn keep_strangers_out(&mut self, still_made: &[Vec<u8>]) -> Result<BTreeSet<SocketAddr>, Ranks> {
        self.door.cut(still_made)
    }

    fn is_connected(&self, peer: u32) -> bool {
        self.door.is_connected(peer)
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
        (peer, _): (u32, usize),
        (from, to): Ends<'_, Registered>,
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

    fn atomicity(&self) -> Atomicity {
        if self.cell_changes.is_some() { Atomicity::Device } else { Atomicity::Processor }
    }

    fn forgo_atomics(&mut self) {
        self.cell_changes = None;
        self.registrar = self.registrar.clone().without_atomics();
    }

    unsafe fn change(
        &mut self,
        peer: u32,
        data: Option<(Local<'_, Registered>, Remote)>,
        (cell, change): (Remote, CellChange),
        word: Local<'_, Registered>,
        immediate: Option<u64>,
        number: usize,
    ) -> Posted<Code> {
        debug_assert!(matches!(change, CellChange::Set(_)) || word.len == size_of::<u64>());
        for (index, operand) in operands(change).into_iter().enumerate() {
            let offset = word.offset + word.len + index * size_of::<u64>();
            word.memory.window().write(offset, &operand.to_ne_bytes());
        }
        let changing = Changing {
            data: data.map(|(from, to)| (local(&from), self.remote(peer, to))),
            change: Some(change),
            immediate,
            cell: self.remote(peer, cell),
            words: Words::new(word.memory.local(word.offset, word.len + Words::OPERANDS)),
        };
        let Some(changes) = &mut self.cell_changes else { return Err(Code::NO_FUNCTION) };
        changes.left[number] = Some(changing);
        let posted = self.go_on(number);
        if let (Ok(false), Some(changes)) = (posted, &mut self.cell_changes) {
            changes.left[number] = None;
        }
        posted
    }

    unsafe fn read(
        &mut self,
        (peer, _): (u32, usize),
        (to, from): Ends<'_, Registered>,
        number: usize,
    ) -> Posted<Code> {
        let (from, context) = (self.remote(peer, from), self.context(number));
        // SAFETY: as the caller says.
        posted(unsafe { self.endpoint.read(local(&to), from, context) })
    }

    fn poll(&mut self) -> Result<(), Code> {
        debug_assert!(self.read.is_empty());
        match self.endpoint.queue().read(&mut self.entries) {
            Ok(count) => self.read = 0..count,
            Err(Code::AGAIN) => {}
            Err(Code::AVAILABLE) => {
                let failed = self.read_failed()?;
                self.failed.extend(failed);
            }
            Err(code) => return Err(code),
        }
        // Each once, in turn: a peer that takes nothing holds up no other.
        let stalled = self.cell_changes.as_ref().map_or(0, |changes| changes.stalled.len());
        for _ in 0..stalled {
            let next = self.cell_changes.as_mut().and_then(|changes| changes.stalled.pop_front());
            next.into_iter().for_each(|number| self.go_on_or_later(number));
        }
        Ok(())
    }

    fn next(&mut self) -> Option<QueueEntry> {
        loop {
            if let Some(failed) = self.failed.pop_front() {
                return Some(failed);
            }
            let entry = self.entries[self.read.next()?];
            // Check both: some providers set the second flag on completions of the writer, too.
            let landed = sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA;
            if entry.flags & landed == landed {
                return Some(QueueEntry::Landed(entry.data));
            }
            let Some(number) = self.number(entry.op_context) else { return Some(QueueEntry::Nothing) };
            if !self.goes_on(number) {
                return Some(QueueEntry::Done { number, len: entry.len });
            }
        }
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
        let stalled = self.cell_changes.as_ref().is_some_and(|changes| !changes.stalled.is_empty());
        let safe = self.read.is_empty()
            && self.failed.is_empty()
            && !stalled
            && self.endpoint.domain().fabric().try_wait(queue).is_ok();
        (safe && queue.changes() == changes).then(|| self.watched.clone())
    }

    fn end(&mut self, in_flight: bool) -> bool {
        let keeps = in_flight || abandon::is_over();
        if keeps {
            // `ofi_rxm` (1.17) sometimes crashes when an endpoint is closed while an operation of its
            // own or of a peer is in flight.
            std::mem::forget((self.endpoint.clone(), std::mem::take(&mut self.contexts)));
        }
        !keeps
    }

    fn device_fault(&self) -> Option<String> {
        let places = self.door.hosts_without_ranks();
        (places.all() > 0).then(|| format!("connections to this rank came from hosts on which no rank is: {places}"))
    }

    fn expect_by(due: Option<Deadline>) -> Option<Deadline> {
        abandon::expect_by(due.map(Deadline::instant)).map(Deadline::from)
    }

    fn text(&self, code: Code) -> String {
        self.endpoint.domain().fabric().library().error_text(code.0)
    }
}
