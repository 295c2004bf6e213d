//! A map of both regions, for people and for the test that nothing overlaps.

use std::ops::Range;

use super::areas::{Areas, OUTCOME};
use super::cell_names::CUT;
use super::{BUFFERS, Plan, RECEIVING_ROWS, RELAYED_ROUNDS};
use crate::collective::core::cut::Cut;
use crate::rule::{AgreementBy, MovementBy};
use crate::trigger::Area;

const CELL: usize = size_of::<u64>();

/// One of the two regions of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapRegion {
    Control,
    Data,
}

/// A named range of a region.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub(crate) region: MapRegion,
    pub(crate) name: String,
    /// The range in bytes, from the beginning of the region.
    pub(crate) bytes: Range<usize>,
}

impl Plan {
    /// Returns the region of a cell and the cell's offset in it.
    fn region_of(&self, cell: usize) -> (MapRegion, usize) {
        match cell.checked_sub(self.control_cells()) {
            None => (MapRegion::Control, cell * CELL),
            Some(cell) => (MapRegion::Data, cell * CELL),
        }
    }

    /// Returns every named range in the regions of a host, by offset. `reducers` reducers share a round.
    pub(crate) fn map(&self, host: u32, reducers: usize) -> Vec<Mapped> {
        let of_a_cut = |name: &str| name.starts_with(CUT);
        let cells = self.named_cells().into_iter().filter(|(name, _)| !of_a_cut(name)).map(|(name, cell)| {
            let (region, at) = self.region_of(cell);
            Mapped { region, name, bytes: at..at + CELL }
        });
        let cuts = self.records().map(|(slot, record)| {
            let (region, last) = self.region_of(self.recorded(record));
            let cells = Cut::cells(self.ranks) - 1;
            Mapped { region, name: format!("{CUT} in slot {slot}"), bytes: last + CELL - cells * CELL..last + CELL }
        });
        let data = self.named_bytes(host, reducers).into_iter();
        let data = data.map(|(name, bytes)| Mapped { region: MapRegion::Data, name, bytes });
        let mut all: Vec<Mapped> = cells.chain(cuts).chain(data).filter(|mapped| !mapped.bytes.is_empty()).collect();
        all.sort_by_key(|mapped| (mapped.region == MapRegion::Data, mapped.bytes.start, mapped.bytes.end));
        all
    }

    fn every_rank(&self) -> Range<u32> {
        0..self.ranks
    }

    fn on_host(&self, host: u32) -> impl Iterator<Item = Plan> {
        self.every_rank().filter(move |&rank| self.host_of(rank) == host).map(|rank| self.seen_by(rank))
    }

    /// Returns the named ranges of a host's data region at one time, where a round has `reducers` reducers.
    fn named_bytes(&self, host: u32, reducers: usize) -> Vec<(String, Range<usize>)> {
        let mut all = Vec::new();
        let mut add = |name: String, from: usize, len: usize| all.push((name, from..from + len));
        for plan in self.on_host(host) {
            let me = plan.me;
            for buffer in 0..BUFFERS {
                add(format!("buffer {buffer} of rank {me}"), plan.contribution(me, buffer), plan.bytes);
            }
            if plan.movement == MovementBy::Everyone {
                add(format!("outcome of rank {me}"), plan.outcome(1), plan.bytes);
            }
            if plan.elects_reducers() {
                add(format!("fallback outcome of rank {me}"), plan.fallback_outcome(), plan.bytes);
            }
        }
        let Some(plan) = self.on_host(host).next() else { return all };
        if plan.has_memory() {
            let several = plan.butterfly().is_some();
            for plan in self.on_host(host).take(if several { usize::MAX } else { 1 }) {
                let me = plan.me;
                for count in 0..plan.register_slots() {
                    add(format!("register of rank {me}, value {count}"), plan.register(me, count), plan.bytes);
                }
                if several && plan.topology.has_elsewhere() {
                    add(format!("segment in transit from rank {me}"), plan.transit(), plan.staging_row());
                }
            }
        } else if plan.movement != MovementBy::Everyone {
            let relayed = plan.data.areas.as_ref().map(Areas::outcomes);
            let slots = relayed.unwrap_or(if plan.elects_reducers() { 1 } else { plan.depth });
            let label = relayed.and_then(|_| plan.shape_of(OUTCOME)).map_or(0, |(label, _)| label);
            for round in 1..=slots {
                add(format!("outcome in slot {round}"), plan.outcome(round) - label, label + plan.bytes);
            }
        }
        if plan.pushes() {
            for rank in self.every_rank().filter(|&rank| self.host_of(rank) != host) {
                for place in 0..plan.pushed_rows() {
                    let from = plan.pushed(rank, place, u64::from(place) + 1);
                    add(format!("data {place} that rank {rank} pushes"), from, plan.bytes);
                }
            }
        }
        if let Some(program) = &plan.program {
            for round in 1..=plan.depth {
                for number in 0..program.partials() {
                    add(format!("partial sum {number} in slot {round}"), plan.partial(round, number), plan.wide_bytes);
                }
            }
        }
        if plan.agreement == AgreementBy::Relays {
            for round in 1..=RELAYED_ROUNDS {
                for (area, count) in plan.areas_among(plan.topology.hosts()) {
                    let (label, data) = plan.shape_of(area).unwrap_or_default();
                    for index in 0..count {
                        let area = Area { index, ..area };
                        let cell = if plan.cell_behind(area, round).is_some() { CELL } else { 0 };
                        let from = plan.area(area, round) - label;
                        let name = format!("{} ({index}) in slot {round}, with its label", area.buffer);
                        add(name, from, label + data - cell);
                    }
                }
            }
        }
        if plan.movement == MovementBy::Reducers {
            // This host is that of the reducer with the longest share.
            let (_, len) = plan.share_span(0, reducers);
            for row in 0..RECEIVING_ROWS {
                for rank in self.every_rank().filter(|&rank| (self.host_of(rank) as usize) < reducers) {
                    let from = plan.received(rank, row, (self.host_of(rank) as usize, reducers));
                    add(format!("share that rank {rank} sends, row {row}"), from, len);
                }
            }
        }
        all
    }
}
