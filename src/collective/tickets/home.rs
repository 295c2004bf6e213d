//! The cells of all ranks, which lie at one host. A rank reads them in its memory, or in a copy.
//!
//! A rank that shares no memory with that host reads cells over the network. A read brings each cell as a whole, but
//! the cells in any order. [`record`](super::record) explains why that is safe: entries and cuts name their group in
//! both of their cells, and all other cells that a rank waits for only grow.

use std::ops::Range;

use crate::collective::core::Cells;
use crate::error::Result;
use crate::fabric::{Access, At, Atomic, Change, Endpoint, Posted, Region, Signal, Window};
use crate::sync::{self, Ordering};

/// The cells as one rank knows them.
#[derive(Debug)]
pub(super) struct Home {
    region: Region,
    /// The cells, or the copy of them.
    view: Window,
    /// The region of the copy. After the copy it has memory for pairs in flight.
    copy: Option<Region>,
    cells: usize,
    /// The pairs that are in use, one bit for each.
    in_use: u32,
    /// The pair that an operation waits for.
    awaited: Option<u64>,
}

/// The number of pairs that can be in flight.
const PAIRS: usize = 8;

impl Cells for Home {
    fn load(&self, cell: usize) -> u64 {
        sync::look(self.view.cell(cell))
    }
}

fn at(region: Region, cell: usize) -> At {
    At { region, offset: cell * size_of::<u64>() }
}

impl Home {
    /// Returns the first cells of a region.
    ///
    /// # Errors
    /// There is no memory for a copy.
    pub(super) fn new(endpoint: &mut dyn Endpoint, region: Region, cells: usize) -> Result<Self> {
        if let Some(view) = endpoint.window(region) {
            return Ok(Home { region, view, copy: None, cells, in_use: 0, awaited: None });
        }
        let copy = endpoint.register((cells + 2 * PAIRS) * size_of::<u64>(), Access::Local)?;
        let view = endpoint.window(copy).expect("own memory is mapped");
        Ok(Home { region, view, copy: Some(copy), cells, in_use: 0, awaited: None })
    }

    /// Returns whether this rank sees every change at once.
    pub(super) fn is_here(&self) -> bool {
        self.copy.is_none()
    }

    /// Brings these cells up to date, if that takes an operation.
    pub(super) fn read(&self, endpoint: &mut dyn Endpoint, cells: Range<usize>, token: u64) -> Result<Posted> {
        let Some(copy) = self.copy.filter(|_| !cells.is_empty()) else { return Ok(Posted::Done(0)) };
        let from = at(self.region, cells.start);
        endpoint.read(from, at(copy, cells.start), cells.len() * size_of::<u64>(), token)
    }

    /// Runs an atomic. The endpoint runs it even on this host, because on networks one agent changes a cell.
    pub(super) fn change(
        &self,
        endpoint: &mut dyn Endpoint,
        cell: usize,
        atomic: Atomic,
        token: u64,
    ) -> Result<Posted> {
        endpoint.atomic(at(self.region, cell), atomic, token)
    }

    /// Stores two neighbouring cells, which no rank changes by atomics meanwhile. Over a network it completes later if
    /// the pair must be `seen`, and at once if its rank's next steps do not need it. In both cases an ack comes later,
    /// with a token that is `landed` or above.
    pub(super) fn store_pair(
        &mut self,
        endpoint: &mut dyn Endpoint,
        (cell, [first, second]): (usize, [u64; 2]),
        seen: bool,
        landed: u64,
    ) -> Result<Posted> {
        let Some(copy) = self.copy else {
            self.view.cell(cell).store(first, Ordering::Relaxed);
            // Release: a rank that sees the second cell sees the first, and the contribution or the moved data.
            sync::announce(self.view.cell(cell + 1), second);
            return Ok(Posted::Done(0));
        };
        let place = u64::from(self.in_use.trailing_ones());
        let (from, to, token) = (self.cells + 2 * place as usize, at(self.region, cell), landed + place);
        self.view.cell(from).store(first, Ordering::Relaxed);
        self.view.cell(from + 1).store(second, Ordering::Relaxed);
        // Both cells become zero again, and no rank reads them before.
        let posted = if [first, second] == [0, 0] {
            endpoint.put(at(copy, from), to, 2 * size_of::<u64>(), None, token)?
        } else {
            let signal = Signal { at: at(self.region, cell + 1), change: Change::Set(second), awaited: true };
            endpoint.put(at(copy, from), to, size_of::<u64>(), Some(signal), token)?
        };
        if posted != Posted::Pending {
            return Ok(posted);
        }
        self.in_use |= 1 << place;
        self.awaited = seen.then_some(place);
        Ok(if seen { Posted::Pending } else { Posted::Done(0) })
    }

    /// Notes that a pair has landed; returns whether an operation waits for it.
    pub(super) fn has_landed(&mut self, place: u64) -> bool {
        self.in_use &= !(1 << place);
        self.awaited.take_if(|awaited| *awaited == place).is_some()
    }

    /// Returns whether no other pair can be stored before one has landed.
    pub(super) fn is_full(&self) -> bool {
        self.in_use.count_ones() as usize == PAIRS
    }

    /// Returns whether pairs are in flight.
    pub(super) fn has_pairs_in_flight(&self) -> bool {
        self.in_use != 0
    }
}
