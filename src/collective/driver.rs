//! Carries out the machine's operations on an endpoint, one at a time.
#![forbid(unsafe_code)]

mod cells;
#[cfg(all(test, loom))]
mod loom_tests;
mod programs;
mod reducing;
mod relaying;
mod runner;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::core::{Addend, Counted, Effort, Entry, Machine, Op, Operands, Plan, ProgramOp, PutData, Time, Token};
use crate::error::{Error, Result};
use crate::executor::runner::Runner;
use crate::fabric::{Access, At, Completion, Endpoint, HostMemory, Posted, Region, Signal};
use crate::fault::{Crash, Fault, Fuse};
use crate::rank_set::RankSet;
use crate::reduce::{Arena, DefaultFloats, Dtype, Place, Reduce, Source};
use crate::rule::{Absent, MOST_RADIX, MovementBy, Scale};
use crate::sync;
use crate::trigger::LAST_ROUND;
use cells::HostCells;
use relaying::{Parts, SumInput};

/// The invariant that a write to a landed outcome would break.
const WRITTEN_ONCE: &str = "G2: no rank writes an outcome between its landing and its release";

/// The longest sleep of a rank that waits for a runner of programs. A runner wakes no rank.
const BACK_OFF: Duration = Duration::from_micros(50);

/// The token of operations whose completion is ignored. Only deliberate faults post some.
const UNHEEDED: u64 = u64::MAX;

/// How elements are reduced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction {
    pub(crate) dtype: Dtype,
    pub(crate) reduce: Reduce,
    pub(crate) scale: Scale,
    pub(crate) absent: Absent,
}

/// The regions of every host, by this rank's names for them. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    pub(crate) control: Arc<[Region]>,
    pub(crate) data: Arc<[Region]>,
}

impl Regions {
    /// How ranks access the control region of another host: they change cells and write records.
    pub(crate) const CONTROL: Access = Access::Write;
    /// How ranks access the data region of another host: they read contributions and write outcomes.
    pub(crate) const DATA: Access = Access::ReadWrite;
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
    /// Zeros that clear remote cells.
    zeros: Option<Region>,
    reduction: Reduction,
    /// The runner of the program, if one runs it in place of the ranks.
    runner: Option<Box<dyn Runner>>,
    /// The parts of a cut that a program's reduction assembles.
    parts: Parts,
    /// The inputs of a sum of relayed data.
    inputs: Vec<SumInput>,
    sources: Vec<Source>,
    /// The lists of the operation that is being carried out.
    operands: Operands,
    /// The effort of the last poll, if the machine found nothing to do and this rank has changed nothing since.
    settled: Option<Effort>,
    fuse: Option<Fuse>,
}

/// Returns whether the driver awaits the completion of an operation, which may carry large data. Contributions and
/// shares are large in synchronous rounds only. There every rank sends something in every round, which confirms the
/// round before. The same holds for data that ranks relay. Of activations, a rank awaits those of some rounds ago.
fn is_awaited(token: Token) -> bool {
    let Token::Counted { what, .. } = token else { return true };
    !matches!(what, Counted::Tag { .. } | Counted::Outcome | Counted::Relayed { .. } | Counted::Signalled { .. })
}

impl Reduction {
    /// Returns the factor of a contribution.
    pub(crate) fn factor(self, entry: Entry) -> f32 {
        let weight = if self.scale == Scale::Weights { f32::from(entry.weight) } else { 1.0 };
        match self.absent {
            Absent::Decay(_) => DefaultFloats::compute(entry.age, |age| weight * self.absent.factor(age)),
            // A product with 1 is exact in any state of the floating-point unit.
            _ => weight * self.absent.factor(entry.age),
        }
    }

    /// Returns a contribution as a source; `None` if its factor is 0, whatever its memory holds.
    fn source(self, entry: Entry, at: Place) -> Option<Source> {
        let factor = self.factor(entry);
        (factor != 0.0).then_some(Source { at, wide: false, factor })
    }

    /// Returns the divisor of the sum over the contributions of a cut, if there is one.
    pub(crate) fn divisor(self, ranks: u32, contributions: impl Iterator<Item = Entry>) -> Option<f64> {
        let divisor = match self.scale {
            // Ages are those of groups by order of arrival.
            Scale::Sum | Scale::Ages(_) => return None,
            Scale::World => f64::from(ranks),
            Scale::Contributions => contributions.count() as f64,
            Scale::Weights => {
                let factors = contributions.map(|entry| f64::from(self.factor(entry)));
                DefaultFloats::compute(factors, Iterator::sum)
            }
        };
        // Without a contribution of any weight the mean is 0, like the sum.
        Some(divisor).filter(|&divisor| divisor != 1.0 && divisor > 0.0)
    }

    /// Returns an input of a reduction as a source; `None` if its factor is 0.
    fn source_of(self, Addend { at, entry }: Addend) -> Option<Source> {
        match entry {
            None => Some(Source { at, wide: false, factor: 1.0 }),
            Some(entry) => self.source(entry, at),
        }
    }

    fn kind(self) -> (Dtype, Reduce) {
        (self.dtype, self.reduce)
    }
}

impl Driver {
    /// # Panics
    /// If this host's regions cannot be mapped; the fabric guarantees that they can.
    pub(crate) fn new(
        plan: Plan,
        mut endpoint: Box<dyn Endpoint>,
        regions: Regions,
        reduction: Reduction,
        runner: Option<Box<dyn Runner>>,
    ) -> Result<Self> {
        let own = plan.host() as usize;
        let window = |endpoint: &dyn Endpoint, region| endpoint.window(region).expect("own host's memory is mapped");
        let data = match &runner {
            Some(runner) => runner.window().clone(),
            None => window(&*endpoint, regions.data[own]),
        };
        let control = window(&*endpoint, regions.control[own]);
        let control = HostCells::new(control, plan.control_cells(), data.clone());
        let (mut staging, mut zeros) = (None, None);
        if plan.topology.has_elsewhere() && runner.is_none() {
            zeros = Some(endpoint.register(plan.home_cells() * size_of::<u64>(), Access::Local)?);
            if plan.reads_from_elsewhere() {
                let bytes = plan.most_sources() * plan.staging_row();
                staging = Some(endpoint.register(bytes, Access::Local)?);
            }
        }
        let staged = staging.map(|region| window(&*endpoint, region));
        let arena = Arena::new(data, staged, plan.most_sources());
        // On other paths ranks read cuts from records, and need not assemble them.
        let by_parts = plan.movement == MovementBy::Program;
        let parts = if by_parts { Parts::with_room_for(plan.ranks) } else { Parts::default() };
        let sources = Vec::with_capacity(if by_parts { 2 * plan.ranks as usize } else { 0 });
        let machine = Machine::new(plan).with_waits_fence_peer(endpoint.waits_fence_peer());
        Ok(Driver {
            machine,
            endpoint,
            control,
            regions,
            arena,
            staging,
            zeros,
            reduction,
            runner,
            parts,
            inputs: Vec::with_capacity(if by_parts { MOST_RADIX as usize } else { 0 }),
            sources,
            operands: Operands::default(),
            settled: None,
            fuse: None,
        })
    }

    /// Reserves now the memory that rounds need, so that no round allocates any.
    pub(crate) fn reserve(&mut self) {
        self.machine.reserve();
        self.operands.reserve(self.machine.plan());
        self.parts.cut.reserve();
        self.arena.reserve();
    }

    #[inline]
    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    #[inline]
    pub(crate) fn machine_mut(&mut self) -> &mut Machine {
        self.settled = None;
        &mut self.machine
    }

    #[inline]
    pub(crate) fn endpoint(&mut self) -> &mut dyn Endpoint {
        &mut *self.endpoint
    }

    /// Arms a deliberate crash.
    #[cfg(earlybird_faults)]
    pub(crate) fn crash(&mut self, fuse: Option<Fuse>) {
        self.fuse = fuse;
    }

    /// Returns whether a wait of the endpoint was delegated and continues.
    pub(crate) fn is_delegated(&self) -> bool {
        self.endpoint.is_delegated()
    }

    pub(crate) fn memory(&self) -> HostMemory {
        self.arena.memory()
    }

    /// Carries out the operations that the machine has asked for.
    #[inline]
    pub(crate) fn carry_out(&mut self, now: Time) -> Result<()> {
        while let Some(op) = self.machine.next_op(&mut self.operands) {
            self.settled = None;
            self.execute(op, now)?;
        }
        Ok(())
    }

    /// Works until a segment was moved, or no step is left now.
    pub(crate) fn move_one(&mut self, now: Time) -> Result<()> {
        let before = self.machine.stats().segments;
        // The segment is moved when the operations that this takes are carried out.
        while self.step(now, Effort::Work)?
            && (self.machine.stats().segments == before || self.machine.peek_op().is_some())
        {}
        Ok(())
    }

    /// Takes one step: an operation, a completion, or a poll of the machine. Returns whether there was one. Without
    /// effort it does not poll the network, which costs as much as everything else: a rank that has just sent something
    /// need not wait for the answer.
    pub(crate) fn step(&mut self, now: Time, effort: Effort) -> Result<bool> {
        if let Some(op) = self.machine.next_op(&mut self.operands) {
            self.settled = None;
            self.execute(op, now)?;
            return Ok(true);
        }
        if effort == Effort::Nothing
            && let Some(completion) = self.endpoint.completion()?
        {
            if !self.machine.plan().fault(Fault::DropCompletion) {
                self.complete(completion, now);
            }
            return Ok(true);
        }
        self.poll_runner(effort)?;
        let elsewhere = self.machine.plan().topology.has_elsewhere();
        // A poll of the network is followed by another poll of the machine.
        let settled = elsewhere && effort > Effort::Nothing && self.settled >= Some(effort);
        if !settled && self.poll(now, effort)? {
            return Ok(true);
        }
        if effort == Effort::Nothing {
            return Ok(false);
        }
        let completed = self.look(now)?;
        // The poll of the network may have changed cells without a completion.
        Ok(completed || (elsewhere && self.poll(now, effort)?))
    }

    fn poll(&mut self, now: Time, effort: Effort) -> Result<bool> {
        let progress = self.machine.poll(now, effort, &self.control);
        if let Some(problem) = self.machine.problem() {
            let cause = format!("{problem}: a rank has written where it must not");
            return Err(Error::transport(self.machine.plan().me, None, "poll", cause));
        }
        self.settled = (!progress).then_some(effort);
        Ok(progress)
    }

    /// Polls the network; returns whether there was a completion.
    pub(crate) fn look(&mut self, now: Time) -> Result<bool> {
        let completion = self.endpoint.poll()?;
        if let Some(completion) = completion {
            self.complete(completion, now);
        }
        Ok(completion.is_some())
    }

    /// Returns the runner of the program, if one runs it in place of the ranks.
    pub(crate) fn runner(&mut self) -> Option<&mut dyn Runner> {
        match &mut self.runner {
            Some(runner) => Some(&mut **runner),
            None => None,
        }
    }

    /// Returns the last round that this collective can run.
    pub(crate) fn last_round(&self) -> u64 {
        self.runner.as_ref().map_or(LAST_ROUND, |runner| runner.last_round().min(LAST_ROUND))
    }

    /// Returns the longest sleep, if no rank wakes a sleeping one.
    pub(crate) fn back_off(&self) -> Option<Duration> {
        self.runner.as_ref().map(|_| BACK_OFF)
    }

    fn complete(&mut self, completion: Completion, now: Time) {
        self.settled = None;
        if cfg!(earlybird_faults) && completion.token == UNHEEDED {
            return;
        }
        self.machine.complete(Token::from_code(completion.token), completion.value, now);
    }

    /// Returns the ranks whose arrival for the awaited round was not seen.
    pub(crate) fn missing(&self) -> RankSet {
        let mut missing = self.machine.missing(&self.control);
        if let (Some(runner), Some((round, _))) = (&self.runner, self.machine.expected()) {
            // A rank whose contribution is here is not missing.
            let here: Vec<u32> = missing.iter().filter(|&rank| runner.has_heard(round, rank)).collect();
            here.into_iter().for_each(|rank| missing.remove(rank));
        }
        missing
    }

    /// Returns whether an operation of the next round is in progress on any rank.
    pub(crate) fn is_pending(&self) -> bool {
        self.machine.is_pending(&self.control)
    }

    /// Returns whether a rank may already read what a reduction writes; true for any other operation.
    pub(crate) fn is_announced(&self, op: &Op) -> bool {
        match *op {
            Op::Program(ProgramOp::Run(task)) => self.machine.is_announced(task, &self.control),
            Op::Combine { round: Some(round), .. } => self.machine.is_done(round, &self.control),
            _ => true,
        }
    }

    /// Returns whether the next round has fired and has not landed.
    pub(crate) fn has_fired(&self) -> bool {
        self.machine.has_fired(&self.control)
    }

    /// Returns the location of a cell of the control region or of the data region after it.
    fn cell_at(&self, host: u32, cell: usize) -> At {
        match cell.checked_sub(self.machine.plan().control_cells()) {
            None => At { region: self.regions.control[host as usize], offset: cell * size_of::<u64>() },
            Some(cell) => self.data_at(host, cell * size_of::<u64>()),
        }
    }

    fn data_at(&self, host: u32, offset: usize) -> At {
        At { region: self.regions.data[host as usize], offset }
    }

    fn execute(&mut self, op: Op, now: Time) -> Result<()> {
        match op {
            // Release order: a rank that sees a tag sees the contribution; a rank that sees a round released knows that
            // its outcome is not read any more; a rank that sees the round of a record sees the cut.
            Op::Store { cell, value } => self.control.announce(cell, value),
            Op::Raise { cell, value } => {
                Fuse::pass(&mut self.fuse, Crash::BetweenSignals);
                self.control.raise(cell, value);
            }
            Op::Fence => sync::full_fence(),
            Op::Put { host, data, signal, token } => {
                let signal = signal.map(|(cell, change)| Signal {
                    at: self.cell_at(host, cell),
                    change,
                    awaited: is_awaited(token),
                });
                let without = signal.is_some() && self.machine.plan().fault(Fault::SignalWithoutData);
                let data = data.filter(|data| !without || matches!(data, PutData::Cells { .. }));
                let posted = match (data.map(|data| self.ends_of(data, host)), signal) {
                    (Some((from, to, len)), signal) => self.endpoint.put(from, to, len, signal, token.code())?,
                    (None, Some(signal)) => self.endpoint.signal(signal, token.code())?,
                    (None, None) => Posted::Done(0),
                };
                self.posted(posted, token, now);
            }
            Op::Clear { host, first, count, token } => self.clear(host, first..first + count, token, now)?,
            Op::Atomic { host, cell, atomic, token } => {
                let posted = self.endpoint.atomic(self.cell_at(host, cell), atomic, token.code())?;
                self.posted(posted, token, now);
            }
            Op::Read { host, from, len, to, token } => {
                let from = self.data_at(host, from);
                if let Some(region) = self.staging {
                    let posted = self.endpoint.read(from, At { region, offset: to }, len, token.code())?;
                    self.posted(posted, token, now);
                }
            }
            Op::Combine { to, len, .. } => self.combine((to, len)),
            Op::Average { models, divisor, to, len, .. } => self.average(models as usize, divisor, (to, len)),
            Op::Copy { from, to, len } => self.copy(from, (to, len)),
            Op::Record { last, cell, round, .. } => {
                self.control.store_down(last, self.operands.words.iter().copied());
                self.control.announce(cell, round);
            }
            Op::Wake { most, interest } => {
                self.endpoint.wake(most, interest as u32);
            }
            Op::Program(op) => self.execute_program(op, now)?,
        }
        Ok(())
    }

    /// Returns the source of data on this host, its target, and the number of bytes.
    fn ends_of(&self, data: PutData, host: u32) -> (At, At, usize) {
        let own = self.machine.plan().host();
        match data {
            PutData::Bytes { from, to, len } => (self.data_at(own, from), self.data_at(host, to), len),
            PutData::Cells { first, count } => {
                (self.cell_at(own, first), self.cell_at(host, first), count * size_of::<u64>())
            }
        }
    }

    fn posted(&mut self, posted: Posted, token: Token, now: Time) {
        if let Posted::Done(value) = posted {
            self.machine.complete(token, value, now);
        }
    }

    fn clear(&mut self, host: u32, cells: Range<usize>, token: Token, now: Time) -> Result<()> {
        let plan = self.machine.plan();
        let posted = match self.zeros.filter(|_| host != plan.host()) {
            None => {
                // Visible to all ranks that learn of this round's end from the record, which is stored with release
                // order after this.
                self.control.clear(cells);
                Posted::Done(0)
            }
            Some(region) => {
                let to = self.cell_at(host, cells.start);
                let unawaited = plan.fault(Fault::ClearUnawaited);
                let code = if unawaited { UNHEEDED } else { token.code() };
                let bytes = cells.len() * size_of::<u64>();
                let posted = self.endpoint.put(At { region, offset: 0 }, to, bytes, None, code)?;
                if unawaited { Posted::Done(0) } else { posted }
            }
        };
        self.posted(posted, token, now);
        Ok(())
    }
}
