//! Programs that a provider runs by itself: tables of operations as deferred work
//! (`FI_QUEUE_WORK`).
//!
//! A slot of the ring has a counter for each counter of the table, and they only grow. A signal to another rank is a
//! write of one cell into memory whose counter counts it; a signal to the rank itself is a counter operation. The
//! counter of an inbox counts the puts to it, so data and signal are one write. Every rank sends to every rank
//! (*gather*), since no provider sums vectors well; a rank sums when its caller asks for the outcome. Thresholds are
//! cumulative over the uses of a slot, so only the gate is reset, whose token the rank revokes while it writes its
//! contribution.
//!
//! It runs on `sockets`, whose limits are the stricter ones here: every transfer names a counter that it completes on,
//! the code relies on no order of thresholds, and no counter leads back to itself.
#![forbid(unsafe_code)]

mod budget;
mod introduction;
mod opening;
mod provider;
mod slot;
mod teardown;

use std::sync::Arc;

use crate::error::{Error, Misuse, Result};
use crate::fabric::ofi::{Counter, Library, Registered, Remote, Work, WorkQueue, most_queued};
use crate::fabric::{Access, RawAccess, Window};
use crate::trigger::{Action, Operation, Profile, Program, Request, Role, Schedule, Signal, compile};
use budget::most_uses;
pub use budget::{largest_depth, operations, provider_for};
pub use introduction::Introduction;
use introduction::{SIGNALLED, SlotKeys};
pub(crate) use opening::open;
use provider::Provider;
use slot::{Queued, Slot};

/// Bytes of a cell that receives signals: each has a cache line.
const CELL: usize = 64;

/// One rank's part of a program, run by its provider.
///
/// The calls for each use of a slot: [`arm`](DeferredProgram::arm), then
/// [`ready`](DeferredProgram::ready); contributions between
/// [`take_back`](DeferredProgram::take_back) and [`let_in`](DeferredProgram::let_in);
/// [`arrive`](DeferredProgram::arrive) once; after [`has_outcome`](DeferredProgram::has_outcome),
/// [`contribution_of`](DeferredProgram::contribution_of) each rank; after
/// [`is_over`](DeferredProgram::is_over), the next use.
///
/// A call in the wrong order is refused if it would give a counter one input too many: that would trigger work of
/// another use, or work that is not queued, and libfabric does not detect it. Conditions that only the caller can check
/// are in the contract of [`RawAccess::promise`].
pub struct DeferredProgram {
    rank: u32,
    ranks: u32,
    program: Program,
    bytes: usize,
    slots: Vec<Slot>,
    most_uses: u64,
    /// The source of every signal that is written: a 1.
    one: Arc<Registered>,
    /// All memory that peers reach, after the `front` bytes of the caller.
    window: Window,
    peers: Vec<PeerMemory>,
    calls: u64,
    queue: WorkQueue,
}

/// The address of a peer, and its keys by slot.
struct PeerMemory {
    address: u64,
    slots: Vec<SlotKeys>,
}

impl std::fmt::Debug for DeferredProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredProgram")
            .field("rank", &self.rank)
            .field("slots", &self.slots.len())
            .finish_non_exhaustive()
    }
}

impl DeferredProgram {
    /// Opens a provider that can run programs, and prepares the program of `rank`.
    /// `request.schedule` must be [`Schedule::Gather`]. The first `front` bytes of its memory are
    /// the caller's. Its use can break memory: `access` has promised that it does not.
    ///
    /// # Errors
    /// A provider that cannot run programs, or not one of this size; the provider's error.
    pub fn open(
        library: &Library,
        provider: &str,
        rank: u32,
        request: &Request,
        front: usize,
        access: RawAccess,
    ) -> Result<(Self, Introduction)> {
        if request.schedule != Schedule::Gather {
            let problem = Misuse::Choice("providers run programs that gather; sums of vectors are beyond them");
            return Err(Error::Usage { rank, operation: "open", problem });
        }
        let mut world = compile(request, &Profile::NETWORK);
        let most_uses = most_uses(provider, &world);
        let program = world.swap_remove(rank as usize);
        let (slots, each, most) = (request.slots, operations(&program), most_queued(provider));
        if slots * each > most {
            let cause = format!(
                "{slots} slots of {each} operations are more than the {most} that {provider} can queue for \
                 sure; use a smaller depth"
            );
            return Err(Error::transport(rank, None, "open", cause));
        }
        let queue = WorkQueue::open(library, provider, (rank, request.ranks), access)?;
        let front = front.next_multiple_of(CELL);
        let window = queue.allocate(front + request.slots as usize * Slot::bytes(request))?;
        let slot = |index: u64| {
            let at = front + index as usize * Slot::bytes(request);
            Slot::new(&queue, (&window, at), request, &program)
        };
        let slots = (0..request.slots).map(slot).collect::<Result<Vec<_>>>()?;
        let line = queue.allocate(CELL)?;
        line.write(0, &1u64.to_ne_bytes());
        let one = Arc::new(queue.register(&line, 0..line.len(), Access::Local, None)?);
        let introduction =
            Introduction { address: queue.address()?, slots: slots.iter().map(Slot::introduce).collect() };
        let bytes = request.bytes as usize;
        let program = DeferredProgram {
            rank,
            ranks: request.ranks,
            program,
            bytes,
            slots,
            most_uses,
            one,
            window,
            peers: Vec::new(),
            calls: 0,
            queue,
        };
        Ok((program, introduction))
    }

    /// Adds the other ranks, and prepares the work that writes to them. May be called once.
    ///
    /// # Errors
    /// [`Error::Usage`] if it was called before; the provider's error.
    pub fn connect(&mut self, introductions: &[Introduction]) -> Result<()> {
        if !self.peers.is_empty() {
            return Err(self.usage(
                "connect",
                Misuse::Order("the other ranks are known already; open another program for other ranks"),
            ));
        }
        let has = |rank: u32, role: Role| {
            let slots = introductions.get(rank as usize).map(|introduction| &introduction.slots);
            slots.is_some_and(|slots| {
                slots.len() == self.slots.len() && slots.iter().all(|keys| keys.cells.contains_key(&role))
            })
        };
        let signals = self.program.operations.iter().flat_map(|operation| &operation.then);
        let mut cells = signals.filter(|signal| signal.rank != self.rank && SIGNALLED.contains(&signal.counter));
        let ranks = (0..self.ranks).all(|rank| has(rank, Role::Start)) && introductions.len() == self.ranks as usize;
        if !ranks || !cells.all(|signal| has(signal.rank, signal.counter)) {
            let cause = "the tables of the ranks differ, as those of different versions do";
            return Err(Error::transport(self.rank, None, "connect", cause));
        }
        for introduction in introductions {
            let address = self.queue.insert(&introduction.address)?;
            self.peers.push(PeerMemory { address, slots: introduction.slots.clone() });
        }
        for index in 0..self.slots.len() {
            let work: Vec<Queued> =
                self.program.operations.iter().flat_map(|operation| self.work_of(index, operation)).collect();
            self.slots[index].work = work;
        }
        Ok(())
    }

    fn work_of(&self, index: usize, operation: &Operation) -> Vec<Queued> {
        let slot = &self.slots[index];
        let trigger = || slot.counters[&operation.when].clone();
        let queued = |work| Queued { when: operation.when, threshold: operation.threshold, work };
        match &operation.action {
            // A rank sums when its caller asks for the outcome.
            Action::Reduce { .. } => Vec::new(),
            Action::Put { to, .. } => {
                let peer = &self.peers[to.rank as usize];
                let (key, base) = peer.slots[index].inboxes;
                let address = base + u64::from(self.rank) * slot.stride as u64;
                let to = Remote { peer: peer.address, address, key };
                let done = slot.counters[&Role::Sent].clone();
                vec![queued(self.queue.write_when(trigger(), (&slot.contribution, self.bytes), to, done))]
            }
            Action::Signal | Action::Seal => {
                let signal = |signal: &Signal| match signal.rank == self.rank {
                    true => queued(Work::add(trigger(), slot.counters[&signal.counter].clone(), 1)),
                    false => {
                        let to = self.cell(index, *signal);
                        queued(self.queue.write_when(trigger(), self.one(), to, slot.signals_written.clone()))
                    }
                };
                operation.then.iter().map(signal).collect()
            }
        }
    }

    fn one(&self) -> (&Registered, usize) {
        (&self.one, size_of::<u64>())
    }

    fn cell(&self, index: usize, signal: Signal) -> Remote {
        let peer = &self.peers[signal.rank as usize];
        let (key, base) = peer.slots[index].cells[&signal.counter];
        Remote { peer: peer.address, address: base, key }
    }

    fn usage(&self, operation: &'static str, problem: Misuse) -> Error {
        Error::Usage { rank: self.rank, operation, problem }
    }

    /// Queues a slot's work for its next use, and puts the token into the gate.
    ///
    /// # Errors
    /// [`Error::Usage`] before [`connect`](DeferredProgram::connect), before
    /// [`is_over`](DeferredProgram::is_over) for the last use, and after
    /// [`most_uses`](DeferredProgram::most_uses); the provider's error: the length of its queue is
    /// limited.
    pub fn arm(&mut self, slot: usize) -> Result<()> {
        if self.peers.len() < self.ranks as usize {
            return Err(self.usage("arm", Misuse::Order("the other ranks are not known; call connect first")));
        }
        let uses = self.slots[slot].uses;
        if uses > 0 && !self.is_over(slot)? {
            return Err(self.usage("arm", Misuse::Order("the slot is still in use; wait until it is over")));
        }
        if uses >= self.most_uses {
            let problem =
                Misuse::Exhausted("the provider's counters can count no further round; make a new collective");
            return Err(Error::Usage { rank: self.rank, operation: "arm", problem });
        }
        self.reset_gate(slot)?;
        // Count the use before work is queued: if the provider refuses half-way, this use is never
        // over, and the provider may still hold its work.
        self.slots[slot].uses += 1;
        self.slots[slot].is_token_revoked = false;
        for queued in 0..self.slots[slot].work.len() {
            let Queued { when, threshold, .. } = self.slots[slot].work[queued];
            let before = if when == Role::Gate { 0 } else { uses * u64::from(self.program.inputs(when)) };
            let threshold = before + u64::from(threshold);
            // All work of the last use has run, as `is_over` returned. Work lives as long as the program, and longer if
            // it has not run when the program ends.
            self.queue.enqueue(&mut self.slots[slot].work[queued].work, threshold)?;
        }
        self.add(slot, Role::Gate)
    }

    fn add(&mut self, slot: usize, role: Role) -> Result<()> {
        let added = self.slots[slot].counters[&role].add(1);
        added.map_err(|code| self.queue.refused(code))
    }

    /// Tells all ranks that the slot is free to be written. May be called once for each use that was armed.
    ///
    /// # Errors
    /// [`Error::Usage`] before [`arm`](DeferredProgram::arm), or a second time; the provider's
    /// error.
    pub fn ready(&mut self, slot: usize) -> Result<()> {
        self.calls += 1;
        let state = &mut self.slots[slot];
        if state.readied == state.uses {
            return Err(self.usage(
                "ready",
                Misuse::Order("the others were told already, or the slot is not armed; arm it first"),
            ));
        }
        state.readied = state.uses;
        for peer in (0..self.peers.len() as u32).filter(|&peer| peer != self.rank) {
            let cell = self.cell(slot, Signal { rank: peer, counter: Role::Start, input: 1 + self.rank });
            self.queue.write(self.one(), cell)?;
        }
        self.add(slot, Role::Start)
    }

    /// Signals that this rank has arrived for the slot's round, or has no contribution to it. May be called once for
    /// each use that was armed.
    ///
    /// # Errors
    /// [`Error::Usage`] before [`arm`](DeferredProgram::arm), or a second time; the provider's
    /// error.
    pub fn arrive(&mut self, slot: usize) -> Result<()> {
        self.calls += 1;
        let state = &mut self.slots[slot];
        if state.arrived == state.uses {
            return Err(
                self.usage("arrive", Misuse::Order("it has arrived already, or the slot is not armed; arm it first"))
            );
        }
        state.arrived = state.uses;
        self.add(slot, Role::Start)
    }

    /// Revokes the gate's token, so that the contribution can be written; returns `false` if the
    /// round has sealed the contribution.
    ///
    /// # Errors
    /// The provider's error.
    pub fn take_back(&mut self, slot: usize) -> Result<bool> {
        self.calls += 1;
        if self.slots[slot].is_token_revoked {
            // A second reset would lose an activation that came in between.
            return Err(
                self.usage("take_back", Misuse::Order("the token is out already; let the contribution in first"))
            );
        }
        if self.is_sealed(slot)? {
            return Ok(false);
        }
        // An activation that came before this has sealed the gate; one that comes later waits for the token.
        self.reset_gate(slot)?;
        let taken = !self.is_sealed(slot)?;
        self.slots[slot].is_token_revoked = taken;
        Ok(taken)
    }

    /// Resets the gate. It is the only counter that is ever reset, and only to 0, which network cards are documented to
    /// do at once.
    fn reset_gate(&self, slot: usize) -> Result<()> {
        self.slots[slot].counters[&Role::Gate].set(0).map_err(|code| self.queue.refused(code))
    }

    fn is_sealed(&self, slot: usize) -> Result<bool> {
        let state = &self.slots[slot];
        Ok(self.value(slot, Role::Made(0))? >= state.uses)
    }

    /// Writes the contribution while its token is revoked or its slot is not armed.
    pub fn write(&mut self, slot: usize, data: &[u8]) {
        self.window.write(self.slots[slot].at, &data[..data.len().min(self.bytes)]);
    }

    pub(crate) fn own(&self) -> u32 {
        self.rank
    }

    /// Returns the memory of the contributions of all ranks.
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    /// Returns the offset of a rank's contribution to the slot's round. No peer writes it between the round's outcome
    /// and this rank's [`ready`](DeferredProgram::ready); this rank writes its own contribution only while its token is
    /// revoked.
    pub(crate) fn offset_of(&self, slot: usize, rank: u32) -> usize {
        let Slot { at, stride, .. } = self.slots[slot];
        if rank == self.rank { at } else { at + (1 + rank as usize) * stride }
    }

    /// Returns the token: the contribution is part of the round, which may seal it from now on.
    ///
    /// # Errors
    /// [`Error::Usage`] if the token is not revoked; the provider's error.
    pub fn let_in(&mut self, slot: usize) -> Result<()> {
        self.calls += 1;
        if !std::mem::take(&mut self.slots[slot].is_token_revoked) {
            return Err(self.usage("let_in", Misuse::Order("the token is in the gate; take it back first")));
        }
        self.add(slot, Role::Gate)
    }

    fn value(&self, slot: usize, role: Role) -> Result<u64> {
        let counter = self.slots[slot].counters.get(&role);
        counter.map_or(Ok(0), |counter| counter.read()).map_err(|code| self.queue.refused(code))
    }

    /// Returns an error if a write of the slot's work has failed: nothing that it triggers comes any more.
    fn check_writes(&self, slot: usize) -> Result<()> {
        let Slot { counters, signals_written, .. } = &self.slots[slot];
        // A provider that counts no failures has none to report.
        let failed = |counter: &Counter| counter.failures().is_ok_and(|failures| failures > 0);
        match counters.get(&Role::Sent).is_some_and(|sent| failed(sent)) || failed(signals_written) {
            true => Err(Error::transport(self.rank, None, "poll", "a write that its provider had queued failed")),
            false => Ok(()),
        }
    }

    fn is_full(&self, slot: usize, role: Role) -> Result<bool> {
        let inputs = u64::from(self.program.inputs(role));
        Ok(self.value(slot, role)? >= self.slots[slot].uses * inputs)
    }

    /// Returns whether the contributions of all ranks to the slot's round are here.
    ///
    /// # Errors
    /// The provider's error.
    pub fn has_outcome(&mut self, slot: usize) -> Result<bool> {
        self.calls += 1;
        self.check_writes(slot)?;
        self.is_full(slot, Role::Sealed)
    }

    /// Copies a rank's contribution to the slot's round.
    pub fn contribution_of(&self, slot: usize, rank: u32, into: &mut [u8]) {
        let len = into.len().min(self.bytes);
        self.window.read(self.offset_of(slot, rank), &mut into[..len]);
    }

    /// Returns whether all work of the slot's round has run, so that it can be armed again. Its outcome must have been
    /// taken.
    ///
    /// # Errors
    /// The provider's error.
    pub fn is_over(&mut self, slot: usize) -> Result<bool> {
        self.calls += 1;
        self.check_writes(slot)?;
        let state = &self.slots[slot];
        let written = state.signals_written.read().map_err(|code| self.queue.refused(code))?;
        if written < state.uses * state.signals {
            return Ok(false);
        }
        for counter in &self.program.counters {
            // The gate's counter is reset; the deposits that it admitted are counted as made.
            if !matches!(counter.role, Role::Done | Role::Gate) && !self.is_full(slot, counter.role)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the number of calls: a sleeping rank makes none.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Returns how often a slot can be used, the same on all ranks: beyond that the provider's counters overflow.
    #[must_use]
    pub fn most_uses(&self) -> u64 {
        self.most_uses
    }

    /// Continues as if every slot had been used `uses` times, for tests of late uses. All ranks must call it before
    /// anything is armed.
    ///
    /// # Errors
    /// The provider's error.
    pub fn wind(&mut self, uses: u64) -> Result<()> {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            for counter in self.program.counters.iter().filter(|counter| counter.role != Role::Gate) {
                let value = uses * u64::from(counter.inputs);
                slot.counters[&counter.role].set(value).map_err(|code| self.queue.refused(code))?;
            }
            slot.signals_written.set(uses * slot.signals).map_err(|code| self.queue.refused(code))?;
            let state = &mut self.slots[index];
            (state.uses, state.readied, state.arrived) = (uses, uses, uses);
        }
        Ok(())
    }

    /// Returns the number of operations that a use of a slot queues.
    #[must_use]
    pub fn operations(&self) -> u64 {
        operations(&self.program)
    }
}
