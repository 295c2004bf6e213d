//! Carries out the machine's operations.
//!
//! Operations complete in the call or later. The driver polls the machine while no operation is in flight, with cells
//! that were read after the last one had completed.
//!
//! # Waiting over a network
//! No rank is notified of a change of the home's cells, so a waiting rank polls repeatedly. The next poll follows after
//! a quarter of the time that the rank has waited, within bounds ([`BACK_OFF`]). So polls make a wait longer by at most
//! a quarter, or by the shortest back-off, and a rank that waits for long costs the home a thousand reads in a second.

mod moving;

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::areas::Areas;
use super::home::Home;
use super::machine::{Event, TicketMachine};
use super::op::TicketOp;
use crate::collective::core::{Effort, Time};
use crate::error::Result;
use crate::fabric::{Access, Completion, Endpoint, HostMemory, Interest, Posted, Region};
use crate::reduce::{Arena, Dtype};
use moving::Moving;

/// The shortest and the longest time between two polls that find nothing, in nanoseconds. A shorter back-off would cost
/// as much as the read.
const BACK_OFF: RangeInclusive<Time> = 50_000..=1_000_000;

/// One in this number of polls that find nothing reads which ranks left, because an error names the missing ranks.
const POLLS_OF_LEAVERS: u32 = 16;

/// The token of an operation of the machine; one is in flight at a time.
const OPERATION: u64 = 0;
/// The token of a read of cells.
const READ: u64 = 1;
/// The token of a part of a segment.
const DATA: u64 = 2;
/// The first of the tokens for pairs of cells that have landed.
const LANDED: u64 = 3;

/// The memory that all ranks made for a collective.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The region of all cells.
    pub(crate) cells: Region,
    /// The data regions of all hosts.
    pub(crate) data: Arc<[Region]>,
    pub(crate) areas: Areas,
    pub(crate) dtype: Dtype,
    pub(crate) mean: Mean,
}

/// How a group averages its members' contributions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mean {
    /// The contributions are updates of the models that ranks have in registers.
    Registers,
    /// The contributions are models.
    Models,
    /// The contributions are models, weighted less by this factor for each iteration by which they are older than the
    /// newest.
    ModelsByAge(f32),
}

/// A machine and the memory that it works on.
#[derive(Debug)]
pub(crate) struct TicketDriver {
    machine: TicketMachine,
    endpoint: Box<dyn Endpoint>,
    home: Home,
    arena: Arena,
    memory: Memory,
    moving: Moving,
    /// Operations in flight: one operation of the machine, one read of cells, or parts of a segment.
    in_flight: usize,
    /// When the first poll that found nothing took place, since the machine last made progress.
    waits_since: Option<Time>,
    idle_polls: u32,
    next_poll: Time,
    /// All ranks have left, and no rank uses the memory of this one.
    is_over: bool,
}

impl TicketDriver {
    /// # Errors
    /// There is no memory for data from other hosts.
    ///
    /// # Panics
    /// If the data of this host cannot be mapped; the fabric guarantees that it can.
    pub(crate) fn new(machine: TicketMachine, mut endpoint: Box<dyn Endpoint>, memory: Memory) -> Result<Self> {
        let plan = machine.plan();
        let home = Home::new(&mut *endpoint, memory.cells, plan.cells())?;
        let data = memory.data[memory.areas.host_of(plan.me()) as usize];
        // The sources are registers, one of them a lender's, and contributions.
        let most = 2 * plan.size().min(plan.ranks()) as usize + 1;
        let staging = memory.areas.is_spread().then(|| endpoint.register(most * memory.areas.row(), Access::Local));
        let staging = staging.transpose()?;
        let window = |region| endpoint.window(region).expect("own host's memory is mapped");
        let mut arena = Arena::new(window(data), staging.map(window), most);
        arena.reserve();
        Ok(TicketDriver {
            moving: Moving::new(data, staging, most),
            machine,
            endpoint,
            home,
            arena,
            memory,
            in_flight: 0,
            waits_since: None,
            idle_polls: 0,
            next_poll: 0,
            is_over: false,
        })
    }

    pub(super) fn machine(&self) -> &TicketMachine {
        &self.machine
    }

    pub(super) fn machine_mut(&mut self) -> &mut TicketMachine {
        &mut self.machine
    }

    pub(super) fn endpoint(&mut self) -> &mut dyn Endpoint {
        &mut *self.endpoint
    }

    #[cfg(all(test, earlybird_internals))]
    pub(super) fn home(&self) -> &Home {
        &self.home
    }

    pub(super) fn areas(&self) -> &Areas {
        &self.memory.areas
    }

    pub(super) fn mean(&self) -> Mean {
        self.memory.mean
    }

    pub(crate) fn memory(&self) -> HostMemory {
        self.arena.memory()
    }

    /// Returns whether a wait of the endpoint was delegated and continues.
    pub(super) fn is_delegated(&self) -> bool {
        self.endpoint.is_delegated()
    }

    /// Returns whether some ranks share no memory.
    pub(super) fn is_spread(&self) -> bool {
        self.areas().is_spread()
    }

    /// Takes one step, with this effort; returns whether there was one. Without effort it does not begin to move large
    /// data and does not poll the network.
    pub(super) fn step(&mut self, now: Time, effort: Effort) -> Result<bool> {
        if self.in_flight > 0 || (self.is_spread() && effort > Effort::Nothing) {
            let completion =
                if effort == Effort::Nothing { self.endpoint.completion()? } else { self.endpoint.poll()? };
            if let Some(completion) = completion {
                return self.complete(completion, now);
            }
            if self.in_flight > 0 {
                return Ok(false);
            }
        }
        if self.home.is_full() {
            return Ok(false);
        }
        let is_large = self.areas().segments() > 1;
        if effort == Effort::Nothing && is_large && self.machine.is_to_move() {
            return Ok(false);
        }
        if let Some(op) = self.machine.next_op() {
            self.execute(op)?;
            return Ok(true);
        }
        self.poll_cells(now)
    }

    /// Takes what has arrived from the network; returns whether the machine made progress.
    pub(super) fn hear(&mut self, now: Time) -> Result<bool> {
        match self.endpoint.poll()? {
            Some(completion) => self.complete(completion, now),
            None => Ok(false),
        }
    }

    /// Takes the last step before a sleep; it begins no read of cells.
    pub(super) fn rest(&mut self, now: Time) -> Result<bool> {
        if self.home.is_here() { self.step(now, Effort::Work) } else { self.hear(now) }
    }

    /// Returns when a sleeping rank has to poll again, if no rank wakes it.
    pub(super) fn next_poll(&self, now: Time) -> Option<Time> {
        let answer = (self.in_flight > 0).then(|| now.saturating_add(*BACK_OFF.start()));
        let poll_cells = (self.is_spread() && self.waits_since.is_some()).then_some(self.next_poll);
        answer.or(poll_cells)
    }

    /// Reads cells and polls the machine, or begins to read them over the network.
    fn poll_cells(&mut self, now: Time) -> Result<bool> {
        let plan = self.machine.plan();
        let cells = match self.machine.watches() {
            _ if self.is_staying() => 0..plan.cells(),
            cells if cells.is_empty() || self.idle_polls % POLLS_OF_LEAVERS != POLLS_OF_LEAVERS - 1 => cells,
            _ => plan.leavers(),
        };
        let takes_a_read = !self.home.is_here() && !cells.is_empty();
        if takes_a_read && now < self.next_poll && self.waits_since.is_some() {
            return Ok(false);
        }
        match self.home.read(&mut *self.endpoint, cells, READ)? {
            Posted::Done(_) => Ok(self.see(now)),
            Posted::Pending => {
                self.in_flight = 1;
                Ok(false)
            }
        }
    }

    /// Polls the machine; the cells that it watches are up to date.
    fn see(&mut self, now: Time) -> bool {
        let progress = if self.is_staying() {
            self.is_over = self.machine.plan().is_over(&self.home);
            self.is_over
        } else {
            self.machine.poll(now, &self.home)
        };
        if progress {
            (self.waits_since, self.idle_polls) = (None, 0);
        } else {
            let since = *self.waits_since.get_or_insert(now);
            let back_off = (now.saturating_sub(since) / 4).clamp(*BACK_OFF.start(), *BACK_OFF.end());
            self.next_poll = now.saturating_add(back_off);
            self.idle_polls = self.idle_polls.wrapping_add(1);
        }
        progress
    }

    /// Returns whether this rank has left but others still use memory that disappears with its process: the home's
    /// cells, or areas of other ranks of its host.
    fn is_staying(&self) -> bool {
        self.machine.has_left() && !self.is_over && self.areas().keeps(self.machine.plan().me())
    }

    /// Returns whether this rank has left and no other rank needs it.
    pub(super) fn has_gone(&self) -> bool {
        self.machine.has_left() && !self.is_staying() && !self.home.has_pairs_in_flight()
    }

    /// Returns the ranks without which this one cannot continue.
    pub(super) fn missing(&self) -> Vec<u32> {
        self.machine.missing(&self.home)
    }

    fn complete(&mut self, Completion { token, value }: Completion, now: Time) -> Result<bool> {
        if let Some(place) = token.checked_sub(LANDED) {
            if self.home.has_landed(place) {
                self.in_flight -= 1;
                self.machine.complete(0);
            }
            return Ok(true);
        }
        self.in_flight -= 1;
        match token {
            READ => return Ok(self.see(now)),
            DATA if self.in_flight > 0 => {}
            DATA => self.go_on_moving()?,
            _ => self.machine.complete(value),
        }
        Ok(true)
    }

    fn execute(&mut self, op: TicketOp) -> Result<()> {
        (self.waits_since, self.idle_polls) = (None, 0);
        let event = self.machine.changes(&op);
        let endpoint = &mut *self.endpoint;
        let posted = match op {
            TicketOp::Atomic { cell, atomic } => self.home.change(endpoint, cell, atomic, OPERATION)?,
            TicketOp::StorePair { cell, values, seen } => {
                self.home.store_pair(endpoint, (cell, values), seen, LANDED)?
            }
            TicketOp::Combine { segment, .. } => return self.begin_to_move(segment),
        };
        match posted {
            Posted::Done(found) => self.machine.complete(found),
            Posted::Pending => self.in_flight = 1,
        }
        if let Some(event) = event {
            self.endpoint.wake(u32::MAX, interest(event));
        }
        Ok(())
    }
}

/// Returns the number of the event that a sleeping rank waits for.
pub(super) fn interest(Event { group, is_entry }: Event) -> Interest {
    // Groups so far apart that they share a number are never open together; and a wait may end without a cause.
    const NUMBERS: u64 = 1 << 29;
    2 * (1 + (group % NUMBERS) as Interest) + Interest::from(is_entry)
}
