//! Carries out the machine's operations on an endpoint, one at a time.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use bytemuck::Pod;

use super::core::{Cells, Machine, Op, Path, Plan, RankSet, Time, Token};
use super::rule::Scale;
use crate::error::Result;
use crate::fabric::{Arena, At, Change, Endpoint, Posted, Reader, Region, Signal, Window, arena::Source};
use crate::reduce::Dtype;

/// What is done with the elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub(crate) dtype: Dtype,
    pub(crate) scale: Scale,
}

/// The regions of every host, as this rank names them.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    pub(crate) control: Vec<Region>,
    pub(crate) data: Vec<Region>,
}

/// A machine and the fabric it runs on.
#[derive(Debug)]
pub(crate) struct Driver {
    machine: Machine,
    endpoint: Box<dyn Endpoint>,
    control: HostCells,
    regions: Regions,
    arena: Arena,
    staging: Option<Region>,
    /// Zeroes to clear remote cells with.
    zeros: Option<Region>,
    reduction: Reduction,
}

#[derive(Debug)]
struct HostCells(Window);

impl Cells for HostCells {
    #[inline]
    fn load(&self, cell: usize) -> u64 {
        // Pairs with the release of whoever wrote it: what the cell announces is visible too.
        self.0.cell(cell).load(Ordering::Acquire)
    }
}

impl Driver {
    /// # Panics
    /// If the regions of the own host cannot be mapped; the fabric has promised that they can.
    pub(crate) fn new(
        plan: Plan,
        mut endpoint: Box<dyn Endpoint>,
        regions: Regions,
        reduction: Reduction,
    ) -> Result<Self> {
        let own = plan.host() as usize;
        let window = |endpoint: &dyn Endpoint, region| endpoint.window(region).expect("own host's memory is mapped");
        let control = HostCells(window(&*endpoint, regions.control[own]));
        let data = window(&*endpoint, regions.data[own]);
        let (mut staging, mut zeros) = (None, None);
        if plan.topology.hosts() > 1 {
            zeros = Some(endpoint.register(plan.home_cells() * size_of::<u64>())?);
            if plan.path == Path::Segmented {
                staging = Some(endpoint.register(2 * plan.ranks as usize * plan.staging_row())?);
            }
        }
        let staged = staging.map(|region| window(&*endpoint, region));
        let arena = Arena::new(data, staged, plan.ranks);
        Ok(Driver { machine: Machine::new(plan), endpoint, control, regions, arena, staging, zeros, reduction })
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    pub(crate) fn endpoint(&mut self) -> &mut dyn Endpoint {
        &mut *self.endpoint
    }

    pub(crate) fn contribution<T: Pod>(&mut self) -> &mut [T] {
        let plan = self.machine.plan();
        self.arena.contribution(plan.contribution(plan.me, self.machine.buffer()), plan.bytes)
    }

    pub(crate) fn reader(&self) -> Reader {
        self.arena.reader()
    }

    /// Works until there is nothing left to do now.
    pub(crate) fn drive(&mut self, now: Time, moving: bool) -> Result<()> {
        while self.step(now, moving)? {}
        Ok(())
    }

    /// Does one thing: an operation, a completion, or a poll of the machine. Whether there was one.
    pub(crate) fn step(&mut self, now: Time, moving: bool) -> Result<bool> {
        if let Some(op) = self.machine.next_op() {
            self.execute(op, now)?;
            return Ok(true);
        }
        if let Some(completion) = self.endpoint.poll()? {
            self.machine.complete(Token::from_code(completion.token), completion.value, now);
            return Ok(true);
        }
        Ok(self.machine.poll(now, moving, &self.control))
    }

    /// Ranks whose arrival for the round that is waited for was not seen.
    pub(crate) fn missing(&self) -> RankSet {
        self.machine.missing(&self.control)
    }

    fn control_at(&self, host: u32, cell: usize) -> At {
        At { region: self.regions.control[host as usize], offset: cell * size_of::<u64>() }
    }

    fn data_at(&self, host: u32, offset: usize) -> At {
        At { region: self.regions.data[host as usize], offset }
    }

    fn execute(&mut self, op: Op, now: Time) -> Result<()> {
        let own = self.machine.plan().host();
        match op {
            // Release: who sees a tag sees the contribution, who sees a round released knows that
            // its outcome is not read any more.
            Op::Store { cell, value } => self.control.0.cell(cell).store(value, Ordering::Release),
            Op::Fence => std::sync::atomic::fence(Ordering::SeqCst),
            Op::Signal { host, data, cell, change, token } => {
                let signal = Signal { at: self.control_at(host, cell), change };
                let posted = match data {
                    None => self.endpoint.signal(signal, token.code())?,
                    Some((from, to, len)) => {
                        let (from, to) = (self.data_at(own, from), self.data_at(host, to));
                        self.endpoint.put(from, to, len, Some(signal), token.code())?
                    }
                };
                self.posted(posted, token, now);
            }
            Op::Clear { host, round, token } => self.clear(host, round, token, now)?,
            Op::Atomic { host, cell, atomic, token } => {
                let posted = self.endpoint.atomic(self.control_at(host, cell), atomic, token.code())?;
                self.posted(posted, token, now);
            }
            Op::Read { host, from, len, row, token } => {
                let from = self.data_at(host, from);
                if let Some(region) = self.staging {
                    let to = At { region, offset: row * self.machine.plan().staging_row() };
                    let posted = self.endpoint.read(from, to, len, token.code())?;
                    self.posted(posted, token, now);
                }
            }
            Op::Combine { round, segment } => self.combine(round, segment),
            Op::Publish { host, round, token } => self.publish(host, round, token, now)?,
            Op::Wake { most, interest } => {
                self.endpoint.wake(most, interest as u32);
            }
        }
        Ok(())
    }

    fn posted(&mut self, posted: Posted, token: Token, now: Time) {
        if let Posted::Done(value) = posted {
            self.machine.complete(token, value, now);
        }
    }

    fn clear(&mut self, host: u32, round: u64, token: Token, now: Time) -> Result<()> {
        let plan = self.machine.plan();
        let (first, count) = (plan.word(round, 0), plan.home_cells());
        let posted = match self.zeros.filter(|_| host != plan.host()) {
            None => {
                // Visible to all that learn of this round's end through the record, which is
                // stored with release order after this.
                (first..first + count).for_each(|cell| self.control.0.cell(cell).store(0, Ordering::Relaxed));
                Posted::Done(0)
            }
            Some(region) => {
                let to = self.control_at(host, first);
                self.endpoint.put(At { region, offset: 0 }, to, count * size_of::<u64>(), None, token.code())?
            }
        };
        self.posted(posted, token, now);
        Ok(())
    }

    fn combine(&mut self, round: u64, segment: u64) {
        let Driver { machine, arena, reduction, .. } = self;
        let (plan, cut) = (machine.plan(), machine.cut(round));
        let (from, len) = plan.segment_span(segment);
        let sources = cut.contributions().enumerate().map(|(row, entry)| {
            if plan.path.pushes() || plan.host_of(entry.rank) == plan.host() {
                Source::Here(plan.contribution(entry.rank, entry.buffer) + from)
            } else {
                Source::Staged(row * plan.staging_row())
            }
        });
        let divisor = match reduction.scale {
            Scale::Sum => None,
            Scale::World => Some(plan.ranks),
            Scale::Contributions => Some(cut.contributions().count() as u32).filter(|&count| count > 1),
        };
        arena.combine(reduction.dtype, sources, plan.outcome(round) + from, len, divisor.filter(|&by| by != 1));
    }

    /// Writes the record: on the own host with its round last, and from there to another.
    fn publish(&mut self, host: u32, round: u64, token: Token, now: Time) -> Result<()> {
        let (plan, cut) = (self.machine.plan(), self.machine.cut(round));
        let record = plan.record(round);
        if host == plan.host() {
            let mut cell = record;
            for value in cut.encode() {
                cell += 1;
                self.control.0.cell(cell).store(value, Ordering::Relaxed);
            }
            // Release: who sees the round sees the cut, the cleared words of the next round, and
            // for small data the outcome.
            self.control.0.cell(record).store(round, Ordering::Release);
            self.machine.complete(token, 0, now);
            return Ok(());
        }
        let bytes = (1 + cut.entries().len()) * size_of::<u64>();
        let (from, to) = (self.control_at(plan.host(), record + 1), self.control_at(host, record + 1));
        let signal = Signal { at: self.control_at(host, record), change: Change::Set(round) };
        let posted = self.endpoint.put(from, to, bytes, Some(signal), token.code())?;
        self.posted(posted, token, now);
        Ok(())
    }
}
