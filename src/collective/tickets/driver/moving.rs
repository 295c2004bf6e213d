//! Moves a segment of a group's data: the models of members and lender become the mean, in all their registers and
//! outcomes.
//!
//! The rank first reads all data of other hosts at once. It computes the mean in its own outcome; a leaving rank has an
//! outcome, too, and reads it no more. Then it copies the mean on its host, and writes it to other hosts. The segment
//! is moved when all writes have completed.

use std::hint::black_box;

use super::{DATA, Mean, TicketDriver};
use crate::collective::tickets::ages;
use crate::error::Result;
use crate::fabric::{At, Posted, Region};
use crate::reduce::{DefaultFloats, Goal, Place, Reduce, Source};

/// How far the movement of a segment has come.
#[derive(Debug)]
pub(super) struct Moving {
    /// The data of this host.
    data: Region,
    /// The data from other hosts, a row for each source.
    staging: Option<Region>,
    segment: u64,
    /// The mean is computed, and is being written to other hosts.
    is_made: bool,
    /// The ranks with the offsets of their models, then those with the offsets of their contributions.
    sources: Vec<(u32, usize)>,
    /// The number of sources that are models.
    models: usize,
}

impl Moving {
    /// Reserves memory for at most `most` sources.
    pub(super) fn new(data: Region, staging: Option<Region>, most: usize) -> Self {
        Moving { data, staging, segment: 0, is_made: false, sources: Vec::with_capacity(most), models: 0 }
    }
}

impl TicketDriver {
    /// Begins to move a segment with the reads.
    pub(super) fn begin_to_move(&mut self, segment: u64) -> Result<()> {
        let TicketDriver { machine, endpoint, memory, moving, in_flight, .. } = self;
        let (cut, areas, me) = (machine.cut(), &memory.areas, machine.plan().me());
        let range = areas.segment(segment);
        (moving.segment, moving.is_made) = (segment, false);
        moving.sources.clear();
        if memory.mean == Mean::Registers {
            let registers = cut.contributors().map(|member| member.rank).chain(cut.lender);
            moving.sources.extend(registers.map(|rank| (rank, areas.register(rank) + range.start)));
            moving.sources.sort_unstable();
        }
        moving.models = moving.sources.len();
        let contribution = |rank, buffer| (rank, areas.contribution(rank, buffer) + range.start);
        moving.sources.extend(cut.contributors().map(|member| contribution(member.rank, member.buffer)));
        let elsewhere = moving.sources.iter().enumerate().filter(|(_, (rank, _))| !areas.share_memory(*rank, me));
        for ((row, &(rank, offset)), region) in elsewhere.zip(std::iter::repeat(moving.staging).flatten()) {
            let from = At { region: memory.data[areas.host_of(rank) as usize], offset };
            let to = At { region, offset: row * areas.row() };
            let posted = endpoint.read(from, to, range.len(), DATA)?;
            *in_flight += usize::from(posted == Posted::Pending);
        }
        self.go_on_moving()
    }

    /// Continues after all operations of the segment have completed, or if none was in flight.
    pub(super) fn go_on_moving(&mut self) -> Result<()> {
        if self.in_flight > 0 {
            return Ok(());
        }
        if !self.moving.is_made {
            self.moving.is_made = true;
            self.make_mean();
            self.write_elsewhere()?;
        }
        if self.in_flight == 0 {
            self.machine.complete(0);
        }
        Ok(())
    }

    /// Computes the mean of a group, in the outcomes and registers of this host.
    fn make_mean(&mut self) {
        let TicketDriver { machine, arena, memory, moving, .. } = self;
        let (cut, areas, me, dtype) = (machine.cut(), &memory.areas, machine.plan().me(), memory.dtype);
        let range = areas.segment(moving.segment);
        let (elements, made) = (range.len() / dtype.size(), areas.outcome(me) + range.start);
        let source = |(row, &(rank, at)): (usize, &(u32, usize))| {
            let at = if areas.share_memory(rank, me) { Place::Here(at) } else { Place::Staged(row * areas.row()) };
            Source { at, wide: false, factor: 1.0 }
        };
        let (sources, goal) = (moving.sources.iter().enumerate().map(source), Goal { at: made, wide: false });
        match memory.mean {
            Mean::Registers => {
                arena.average(dtype, (moving.models, sources), made, elements, moving.models as u32);
            }
            Mean::Models => {
                let divisor = cut.contributors().count() as f64;
                arena.combine((dtype, Reduce::Sum), sources, goal, elements, Some(divisor));
            }
            Mean::ModelsByAge(factor) => {
                let _floats = DefaultFloats::enter();
                let sources = sources
                    .zip(ages::weights(cut, black_box(factor)))
                    .map(|(source, factor)| Source { factor, ..source });
                arena.combine((dtype, Reduce::Sum), sources, goal, elements, None);
            }
        }
        let outcomes = cut.contributors().map(|member| (member.rank, areas.outcome(member.rank)));
        let registers = moving.sources[..moving.models].iter().map(|&(rank, _)| (rank, areas.register(rank)));
        for (rank, at) in outcomes.chain(registers).map(|(rank, at)| (rank, at + range.start)) {
            if areas.share_memory(rank, me) && at != made {
                let source = Source { at: Place::Here(made), wide: false, factor: 1.0 };
                arena.combine((dtype, Reduce::Sum), [source].into_iter(), Goal { at, wide: false }, elements, None);
            }
        }
    }

    /// Writes the mean to the outcomes and registers of other hosts.
    fn write_elsewhere(&mut self) -> Result<()> {
        let TicketDriver { machine, endpoint, memory, moving, in_flight, .. } = self;
        let (cut, areas, me) = (machine.cut(), &memory.areas, machine.plan().me());
        let range = areas.segment(moving.segment);
        let from = At { region: moving.data, offset: areas.outcome(me) + range.start };
        let outcomes = cut.contributors().map(|member| (member.rank, areas.outcome(member.rank)));
        let registers = moving.sources[..moving.models].iter().map(|&(rank, _)| (rank, areas.register(rank)));
        for (rank, at) in outcomes.chain(registers).filter(|(rank, _)| !areas.share_memory(*rank, me)) {
            let to = At { region: memory.data[areas.host_of(rank) as usize], offset: at + range.start };
            let posted = endpoint.put(from, to, range.len(), None, DATA)?;
            *in_flight += usize::from(posted == Posted::Pending);
        }
        Ok(())
    }
}
