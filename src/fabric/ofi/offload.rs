//! Programs that a provider runs by itself: tables as deferred work (`FI_QUEUE_WORK`).
//!
//! A slot of the ring has a counter for each of the table's, and they only grow. Signals to another
//! rank are writes of one cell into memory whose counter counts them; signals of the own rank are
//! counter operations. What is put into an inbox is counted there, too, so data and signal are one
//! write. Everybody sends to everybody (*gather*), since no provider sums vectors well; a rank sums
//! when it comes for the outcome. Thresholds are those of the slot's next use, cumulative, so nothing
//! is reset but the gate, whose token the rank takes back while it writes its contribution.
//!
//! Run for real on `sockets`, whose limits are the stricter ones here: every transfer names a counter
//! that it completes on, no order of thresholds is relied upon, no counter leads back to itself.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Range;
use std::sync::Arc;

use super::wire::{Failed, Registered, allocate};
use crate::error::{Error, Result};
use crate::fabric::Window;
use crate::trigger::{Action, Profile, Program, Request, Role, Schedule, Signal, compile};
use earlybird_ffi::ofi::{
    self, Code, Counter, Domain, Endpoint, Library, Local, NO_COMPLETION, Queue, Remote, Wanted, Work, sys,
};

/// Bytes of a cell that signals are written to; one each, on a line of its own.
const CELL: usize = 64;

/// One rank's part of a program, run by its provider.
///
/// The calls for each use of a slot: [`arm`](Card::arm), then [`ready`](Card::ready); contributions
/// between [`take_back`](Card::take_back) and [`let_in`](Card::let_in); [`arrive`](Card::arrive) once;
/// when [`has_outcome`](Card::has_outcome), [`contribution_of`](Card::contribution_of) each rank; when
/// [`is_over`](Card::is_over), the next use.
pub struct Card {
    rank: u32,
    program: Program,
    bytes: usize,
    slots: Vec<Slot>,
    /// What tokens are written from.
    one: Registered,
    peers: Vec<Peer>,
    calls: u64,
    endpoint: Arc<Endpoint>,
    domain: Arc<Domain>,
}

struct Slot {
    /// Uses that were armed.
    uses: u64,
    work: Vec<Queued>,
    counters: BTreeMap<Role, Arc<Counter>>,
    /// Counts signals that were written.
    told: Arc<Counter>,
    signals: u64,
    // Registrations end before what they are of.
    cells: Vec<(Role, Registered)>,
    inboxes: Registered,
    contribution: Registered,
    /// The own contribution, then everybody's inbox, a stride each, then the cells.
    window: Window,
    stride: usize,
}

/// An operation of the table, and when it runs.
struct Queued {
    when: Role,
    threshold: u32,
    work: Work,
}

/// Of a registration, and where it counts from.
type Key = (u64, u64);

/// What peers need of a slot.
#[derive(Clone, Debug)]
struct Keys {
    inboxes: Key,
    cells: BTreeMap<Role, Key>,
}

/// Where a peer's memory is, by slot.
struct Peer {
    address: u64,
    slots: Vec<Keys>,
}

/// What the other ranks must know of a card.
#[derive(Clone, Debug)]
pub struct Introduction {
    address: Vec<u8>,
    slots: Vec<Keys>,
}

impl std::fmt::Debug for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Card").field("rank", &self.rank).field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

/// Roles whose counters other ranks give inputs to by writing a cell.
const TOLD: [Role; 3] = [Role::Start, Role::Arrived, Role::Active];

impl Card {
    /// Opens a provider that can run programs, and what one of `rank` needs. `request.schedule` must be
    /// [`Schedule::Gather`].
    ///
    /// # Errors
    /// A provider that cannot, or what it says.
    pub fn open(library: &Library, provider: &str, rank: u32, request: &Request) -> Result<(Self, Introduction)> {
        let refused = |code: Code| Error::join(rank, format!("{provider}: {}", library.error_text(code.0)));
        let failed = |failed| match failed {
            Failed::Memory(cause) => Error::os(rank, "allocate memory", cause),
            Failed::Code(code) => refused(code),
        };
        if request.schedule != Schedule::Gather {
            let problem = "providers run programs that gather; sums of vectors are beyond them";
            return Err(Error::Usage { rank, operation: "open", problem });
        }
        let program = compile(request, &Profile::NETWORK).swap_remove(rank as usize);
        let name = CString::new(provider).map_err(|_| Error::join(rank, "the provider's name has a zero byte"))?;
        let wanted = Wanted {
            caps: sys::FI_MSG | sys::FI_RMA | sys::FI_TRIGGER | sys::FI_RMA_EVENT,
            endpoint: sys::FI_EP_RDM,
            threading: sys::FI_THREAD_SAFE,
            provider: Some(name),
            ..Wanted::default()
        };
        let list = library.info(&wanted).map_err(|code| {
            Error::join(rank, format!("{provider} cannot run programs by itself: {}", library.error_text(code)))
        })?;
        let info = list.iter().next().ok_or_else(|| Error::join(rank, "libfabric described nothing"))?;
        let fabric = ofi::Fabric::open(library, info).map_err(refused)?;
        let domain = Domain::open(fabric, info).map_err(refused)?;
        let queue = Queue::open(domain.clone(), 1024).map_err(refused)?;
        let endpoint = Endpoint::open(domain.clone(), info, queue, request.ranks as usize).map_err(refused)?;
        let mut keys = 0;
        let slot = |_| Slot::new(&domain, &endpoint, (rank, request), &program, &mut keys);
        let slots = (0..request.slots).map(slot).collect::<std::result::Result<Vec<_>, _>>().map_err(failed)?;
        let one = Registered::new(&endpoint, CELL, keys + 1).map_err(failed)?;
        one.window().write(0, &1u64.to_ne_bytes());
        let address = endpoint.name().map_err(refused)?;
        let introduction = Introduction { address, slots: slots.iter().map(Slot::introduce).collect() };
        let bytes = request.bytes as usize;
        let card = Card { rank, program, bytes, slots, one, peers: Vec::new(), calls: 0, endpoint, domain };
        Ok((card, introduction))
    }

    /// Makes the other ranks known, and the work that leads to them.
    ///
    /// # Errors
    /// What the provider says.
    pub fn connect(&mut self, everybody: &[Introduction]) -> Result<()> {
        for introduction in everybody {
            let address = self.endpoint.insert(&introduction.address).map_err(|code| self.refused(code))?;
            self.peers.push(Peer { address, slots: introduction.slots.clone() });
        }
        for index in 0..self.slots.len() {
            let work: Vec<Queued> =
                self.program.operations.iter().flat_map(|operation| self.work_of(index, operation)).collect();
            self.slots[index].work = work;
        }
        Ok(())
    }

    fn work_of(&self, index: usize, operation: &crate::trigger::Operation) -> Vec<Queued> {
        let slot = &self.slots[index];
        let trigger = || slot.counters[&operation.when].clone();
        let queued = |work| Queued { when: operation.when, threshold: operation.threshold, work };
        match &operation.action {
            // A sum is made when somebody asks for it.
            Action::Reduce { .. } => Vec::new(),
            Action::Put { to, .. } => {
                let peer = &self.peers[to.rank as usize];
                let (key, base) = peer.slots[index].inboxes;
                let address = base + u64::from(self.rank) * slot.stride as u64;
                let from = slot.contribution.local(0, self.bytes);
                let to = Remote { peer: peer.address, address, key };
                let done = slot.counters[&Role::Sent].clone();
                vec![queued(Work::write(trigger(), self.endpoint.clone(), from, to, done))]
            }
            Action::Signal | Action::Seal => {
                let signal = |signal: &Signal| match signal.rank == self.rank {
                    true => queued(Work::add(trigger(), slot.counters[&signal.counter].clone(), 1)),
                    false => {
                        let to = self.cell(index, *signal);
                        queued(Work::write(trigger(), self.endpoint.clone(), self.one(), to, slot.told.clone()))
                    }
                };
                operation.then.iter().map(signal).collect()
            }
        }
    }

    fn one(&self) -> Local {
        self.one.local(0, size_of::<u64>())
    }

    fn cell(&self, index: usize, signal: Signal) -> Remote {
        let peer = &self.peers[signal.rank as usize];
        let (key, base) = peer.slots[index].cells[&signal.counter];
        Remote { peer: peer.address, address: base, key }
    }

    fn refused(&self, code: Code) -> Error {
        let text = self.domain.fabric().library().error_text(code.0);
        Error::join(self.rank, format!("the provider refuses: {text}"))
    }

    /// Queues a slot's work for its next use, with an empty contribution, and puts the token into the gate.
    ///
    /// # Errors
    /// [`Error::Usage`] before [`is_over`](Card::is_over) for the last use; what the provider says: what
    /// it can queue is limited.
    pub fn arm(&mut self, slot: usize) -> Result<()> {
        let uses = self.slots[slot].uses;
        if uses > 0 && !self.is_over(slot)? {
            let problem = "the slot is still in use";
            return Err(Error::Usage { rank: self.rank, operation: "arm", problem });
        }
        self.slots[slot].window.write(0, &vec![0; self.bytes]);
        for queued in 0..self.slots[slot].work.len() {
            let Queued { when, threshold, .. } = self.slots[slot].work[queued];
            let threshold = uses * u64::from(self.program.inputs(when)) + u64::from(threshold);
            // SAFETY: all of the last use have run, as `is_over` said. They live as long as the card, and
            // longer if they have not run when it ends.
            let done = unsafe { self.slots[slot].work[queued].work.queue(&self.domain, threshold) };
            done.map_err(|code| self.refused(code))?;
        }
        self.slots[slot].uses += 1;
        self.add(slot, Role::Gate)
    }

    fn add(&mut self, slot: usize, role: Role) -> Result<()> {
        let added = self.slots[slot].counters[&role].add(1);
        added.map_err(|code| self.refused(code))
    }

    /// Tells all ranks that the slot is free to be written to.
    ///
    /// # Errors
    /// What the provider says.
    pub fn ready(&mut self, slot: usize) -> Result<()> {
        self.calls += 1;
        for peer in (0..self.peers.len() as u32).filter(|&peer| peer != self.rank) {
            let to = self.cell(slot, Signal { rank: peer, counter: Role::Start, input: 1 + self.rank });
            loop {
                // SAFETY: the source never changes, and lives as long as the card.
                let written = unsafe { self.endpoint.write(self.one(), to, (0, 0), std::ptr::null_mut()) };
                // Completions are not needed, but they have to go somewhere.
                let _ = self.endpoint.queue().read(&mut [NO_COMPLETION; 16]);
                match written {
                    Ok(()) => break,
                    Err(Code::AGAIN) => std::thread::yield_now(),
                    Err(code) => return Err(self.refused(code)),
                }
            }
        }
        self.add(slot, Role::Start)
    }

    /// This rank has arrived for the slot's round, or has nothing to say in it.
    ///
    /// # Errors
    /// What the provider says.
    pub fn arrive(&mut self, slot: usize) -> Result<()> {
        self.calls += 1;
        self.add(slot, Role::Start)
    }

    /// Takes the token of the gate back, so that the contribution can be written; not if the round has
    /// sealed it.
    ///
    /// # Errors
    /// What the provider says.
    pub fn take_back(&mut self, slot: usize) -> Result<bool> {
        self.calls += 1;
        let state = &self.slots[slot];
        let base = (state.uses - 1) * 2;
        if self.is_sealed(slot)? {
            return Ok(false);
        }
        let gate = &state.counters[&Role::Gate];
        gate.set(base).map_err(|code| self.refused(code))?;
        if self.is_sealed(slot)? {
            // Sealed in between; what was counted has been used.
            gate.set(base + 2).map_err(|code| self.refused(code))?;
            return Ok(false);
        }
        Ok(true)
    }

    fn is_sealed(&self, slot: usize) -> Result<bool> {
        let state = &self.slots[slot];
        Ok(self.value(slot, Role::Made(0))? >= state.uses)
    }

    /// Writes the contribution, whose token is out.
    pub fn write(&mut self, slot: usize, data: &[u8]) {
        self.slots[slot].window.write(0, &data[..data.len().min(self.bytes)]);
    }

    /// Gives the token back: the contribution is part of the round, which may seal it from now on.
    ///
    /// # Errors
    /// What the provider says.
    pub fn let_in(&mut self, slot: usize) -> Result<()> {
        self.calls += 1;
        self.add(slot, Role::Gate)
    }

    fn value(&self, slot: usize, role: Role) -> Result<u64> {
        let counter = self.slots[slot].counters.get(&role);
        counter.map_or(Ok(0), |counter| counter.read()).map_err(|code| self.refused(code))
    }

    fn is_full(&self, slot: usize, role: Role) -> Result<bool> {
        let inputs = u64::from(self.program.inputs(role));
        Ok(self.value(slot, role)? >= self.slots[slot].uses * inputs)
    }

    /// Whether the contributions of all ranks to the slot's round are here.
    ///
    /// # Errors
    /// What the provider says.
    pub fn has_outcome(&mut self, slot: usize) -> Result<bool> {
        self.calls += 1;
        self.is_full(slot, Role::Sealed)
    }

    /// What a rank contributed to the slot's round: zeroes, if nothing.
    pub fn contribution_of(&self, slot: usize, rank: u32, into: &mut [u8]) {
        let at = if rank == self.rank { 0 } else { (1 + rank as usize) * self.slots[slot].stride };
        let len = into.len().min(self.bytes);
        self.slots[slot].window.read(at, &mut into[..len]);
    }

    /// Whether everything of the slot's round has run, so that it can be armed again. Its outcome must
    /// have been taken.
    ///
    /// # Errors
    /// What the provider says.
    pub fn is_over(&mut self, slot: usize) -> Result<bool> {
        self.calls += 1;
        let state = &self.slots[slot];
        let told = state.told.read().map_err(|code| self.refused(code))?;
        if told < state.uses * state.signals {
            return Ok(false);
        }
        for counter in &self.program.counters {
            if counter.role != Role::Done && !self.is_full(slot, counter.role)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// How often it was called: a rank that sleeps calls nothing.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Operations that a use of a slot queues.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.slots.first().map_or(0, |slot| slot.work.len())
    }
}

impl Slot {
    fn new(
        domain: &Arc<Domain>,
        endpoint: &Arc<Endpoint>,
        (rank, request): (u32, &Request),
        program: &Program,
        keys: &mut u64,
    ) -> std::result::Result<Self, Failed> {
        let stride = (request.bytes as usize).next_multiple_of(CELL);
        let inboxes = stride..stride * (1 + request.ranks as usize);
        let window = allocate(inboxes.end + TOLD.len() * CELL)?;
        let open = || Counter::open(domain.clone()).map_err(Failed::Code);
        let mut counters = BTreeMap::new();
        for counter in &program.counters {
            counters.insert(counter.role, open()?);
        }
        let mut register = |part: Range<usize>, counter: Option<&Arc<Counter>>| {
            *keys += 1;
            Registered::part(endpoint, &window, part, *keys, counter.cloned())
        };
        let mut cells = Vec::new();
        for (index, role) in TOLD.into_iter().enumerate() {
            if let Some(counter) = counters.get(&role) {
                let from = inboxes.end + index * CELL;
                cells.push((role, register(from..from + CELL, Some(counter))?));
            }
        }
        let contribution = register(0..stride, None)?;
        let inbox = register(inboxes, counters.get(&Role::Sealed))?;
        let remote = |signal: &&Signal| signal.rank != rank;
        let tells = |operation: &&crate::trigger::Operation| !matches!(operation.action, Action::Put { .. });
        let signals =
            program.operations.iter().filter(tells).flat_map(|operation| &operation.then).filter(remote).count();
        Ok(Slot {
            uses: 0,
            work: Vec::new(),
            counters,
            told: open()?,
            signals: signals as u64,
            cells,
            inboxes: inbox,
            contribution,
            window,
            stride,
        })
    }

    fn introduce(&self) -> Keys {
        let cells = self.cells.iter().map(|(role, cell)| (*role, cell.key())).collect();
        Keys { inboxes: self.inboxes.key(), cells }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].uses > 0 && !self.is_over(slot).unwrap_or(false) {
                // Work that has not run cannot be withdrawn: the provider may still follow it, and read
                // what it is to write.
                let left = std::mem::take(&mut self.slots[slot].work);
                std::mem::forget((left, self.slots[slot].window.clone(), self.one.window().clone()));
            }
        }
    }
}
