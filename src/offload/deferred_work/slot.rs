//! A slot of the ring: its counters, its memory, and the work that is queued for each of its uses.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::CELL;
use super::budget::signals;
use super::introduction::{ABSENT, SIGNALLED, SlotKeys};
use crate::error::Result;
use crate::fabric::ofi::{Counter, Registered, Work, WorkQueue};
use crate::fabric::{Access, Window};
use crate::trigger::{Program, Request, Role};

pub(super) struct Slot {
    /// Number of uses that were armed.
    pub(super) uses: u64,
    /// The last use for which this rank has told the others that the slot is free.
    pub(super) readied: u64,
    /// The last use for which this rank has arrived.
    pub(super) arrived: u64,
    /// Whether the gate's token is revoked, so that the contribution can be written.
    pub(super) is_token_revoked: bool,
    pub(super) work: Vec<Queued>,
    pub(super) counters: BTreeMap<Role, Arc<Counter>>,
    /// Counts the signals that this rank has written to others.
    pub(super) signals_written: Arc<Counter>,
    pub(super) signals: u64,
    // Registrations are dropped before their memory.
    pub(super) cells: Vec<(Role, Registered)>,
    pub(super) inboxes: Registered,
    pub(super) contribution: Registered,
    /// Offset of the slot in the window. It holds this rank's contribution, the inbox of every rank, a stride each, and
    /// the cells.
    pub(super) at: usize,
    pub(super) stride: usize,
}

/// An operation of the table, and the condition under which it runs.
pub(super) struct Queued {
    pub(super) when: Role,
    pub(super) threshold: u32,
    pub(super) work: Work,
}

impl Slot {
    fn stride(request: &Request) -> usize {
        (request.bytes as usize).next_multiple_of(CELL)
    }

    pub(super) fn bytes(request: &Request) -> usize {
        Self::stride(request) * (1 + request.ranks as usize) + SIGNALLED.len() * CELL
    }

    pub(super) fn new(
        queue: &WorkQueue,
        (window, at): (&Window, usize),
        request: &Request,
        program: &Program,
    ) -> Result<Self> {
        let stride = Self::stride(request);
        let inboxes = stride..stride * (1 + request.ranks as usize);
        let mut counters = BTreeMap::new();
        for counter in &program.counters {
            counters.insert(counter.role, queue.counter()?);
        }
        let register = |part: Range<usize>, access: Access, counter: Option<&Arc<Counter>>| {
            queue.register(window, at + part.start..at + part.end, access, counter)
        };
        let mut cells = Vec::new();
        for (index, role) in SIGNALLED.into_iter().enumerate() {
            if let Some(counter) = counters.get(&role) {
                let from = inboxes.end + index * CELL;
                cells.push((role, register(from..from + CELL, Access::Write, Some(counter))?));
            }
        }
        let contribution = register(0..stride, Access::Local, None)?;
        let inbox = register(inboxes, Access::Write, counters.get(&Role::Sealed))?;
        Ok(Slot {
            uses: 0,
            readied: 0,
            arrived: 0,
            is_token_revoked: false,
            work: Vec::new(),
            counters,
            signals_written: queue.counter()?,
            signals: signals(program),
            cells,
            inboxes: inbox,
            contribution,
            at,
            stride,
        })
    }

    pub(super) fn introduce(&self) -> SlotKeys {
        let cells = self.cells.iter().filter_map(|(role, cell)| Some((*role, cell.key()?))).collect();
        SlotKeys { inboxes: self.inboxes.key().unwrap_or(ABSENT), cells }
    }
}
