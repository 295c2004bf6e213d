//! Carries out the machine's operations on an endpoint, one at a time.
#![forbid(unsafe_code)]

mod cells;
#[cfg(all(test, loom))]
mod loom_tests;
mod reducing;
mod relaying;

use std::sync::Arc;
use std::time::Duration;

use super::core::{Cells, Counted, Cut, Effort, Entry, Machine, Op, Plan, Time, Token};
use crate::error::{Error, Result};
use crate::executor::deferred_work::Provider;
use crate::fabric::{Access, At, Change, Completion, Endpoint, Lender, Posted, Region, Signal};
use crate::fault::{Crash, Fault, Fuse};
use crate::rank_set::RankSet;
use crate::reduce::{Arena, DefaultFloats, Dtype, Goal, Place, Reduce, Source};
use crate::rule::{Absent, MovementBy, Scale};
use crate::sync;
use crate::trigger::{Chunk, LAST_ROUND};
use cells::HostCells;
use relaying::Parts;

/// What a write to an outcome that has landed would break.
const WRITTEN_ONCE: &str = "G2: no rank writes an outcome between its landing and its release";

/// The longest sleep of a rank that waits for a provider, which wakes no rank.
const DOZE: Duration = Duration::from_micros(50);

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

/// The regions of every host, as this rank names them. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    pub(crate) control: Arc<[Region]>,
    pub(crate) data: Arc<[Region]>,
}

impl Regions {
    /// What ranks do with the control region of another host: change cells, and write records.
    pub(crate) const CONTROL: Access = Access::Write;
    /// What ranks do with the data region of another host: read contributions, and write outcomes.
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
    /// The provider that runs the program, if one does.
    provider: Option<Box<Provider>>,
    /// The parts of a cut that a program's reduction assembles.
    parts: Parts,
    sources: Vec<Source>,
    /// The effort of the last poll, if the machine found nothing to do and this rank has changed
    /// nothing since.
    settled: Option<Effort>,
    fuse: Option<Fuse>,
}

/// Whether the completion of an operation with large data is awaited. Contributions and shares are
/// large in synchronous rounds only. There every rank sends something in every round, which
/// confirms the round before. The same holds for data that ranks relay, and of activations and
/// arrivals a rank awaits those of some rounds ago.
fn is_awaited(token: Token) -> bool {
    let Token::Counted { what, .. } = token else { return true };
    !matches!(what, Counted::Tag { .. } | Counted::Outcome | Counted::Relayed { .. } | Counted::Told { .. })
}

impl Reduction {
    /// The factor of a contribution.
    pub(crate) fn factor(self, entry: Entry) -> f32 {
        let weight = if self.scale == Scale::Weights { f32::from(entry.weight) } else { 1.0 };
        match self.absent {
            Absent::Decay(_) => DefaultFloats::compute(entry.age, |age| weight * self.absent.factor(age)),
            // A product with 1 is exact in any state.
            _ => weight * self.absent.factor(entry.age),
        }
    }

    /// A contribution as a source; `None` if its factor is 0, whatever its memory holds.
    fn source(self, entry: Entry, at: Place) -> Option<Source> {
        let factor = self.factor(entry);
        (factor != 0.0).then_some(Source { at, wide: false, factor })
    }

    /// The divisor of the sum over a cut, if any.
    pub(crate) fn divisor(self, ranks: u32, cut: &Cut) -> Option<f64> {
        let divisor = match self.scale {
            // Ages are those of groups by order of arrival.
            Scale::Sum | Scale::Ages(_) => return None,
            Scale::World => f64::from(ranks),
            Scale::Contributions => cut.contributions().count() as f64,
            Scale::Weights => {
                let factors = cut.contributions().map(|entry| f64::from(self.factor(entry)));
                DefaultFloats::compute(factors, Iterator::sum)
            }
        };
        // Without a contribution of any weight the mean is 0, like the sum.
        Some(divisor).filter(|&divisor| divisor != 1.0 && divisor > 0.0)
    }

    fn kind(self) -> (Dtype, Reduce) {
        (self.dtype, self.reduce)
    }
}

impl Driver {
    /// # Panics
    /// If the own host's regions cannot be mapped; the fabric guarantees that they can.
    pub(crate) fn new(
        plan: Plan,
        mut endpoint: Box<dyn Endpoint>,
        regions: Regions,
        reduction: Reduction,
        provider: Option<Box<Provider>>,
    ) -> Result<Self> {
        let own = plan.host() as usize;
        let window = |endpoint: &dyn Endpoint, region| endpoint.window(region).expect("own host's memory is mapped");
        let data = match &provider {
            Some(provider) => provider.window().clone(),
            None => window(&*endpoint, regions.data[own]),
        };
        let control = window(&*endpoint, regions.control[own]);
        let control = HostCells::new(control, plan.control_cells(), data.clone());
        let (mut staging, mut zeros) = (None, None);
        if plan.topology.has_elsewhere() && provider.is_none() {
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
            provider,
            parts,
            sources,
            settled: None,
            fuse: None,
        })
    }

    /// Makes the memory that rounds need now, so that none of them allocates any.
    pub(crate) fn reserve(&mut self) {
        self.machine.reserve();
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
    #[cfg(feature = "faults")]
    pub(crate) fn crash(&mut self, fuse: Option<Fuse>) {
        self.fuse = fuse;
    }

    /// Whether a wait of the endpoint was delegated, and goes on.
    pub(crate) fn is_delegated(&self) -> bool {
        self.endpoint.is_delegated()
    }

    pub(crate) fn lender(&self) -> Lender {
        self.arena.lender()
    }

    /// Carries out what the machine has asked for.
    #[inline]
    pub(crate) fn carry_out(&mut self, now: Time) -> Result<()> {
        while let Some(op) = self.machine.next_op() {
            self.settled = None;
            self.execute(op, now)?;
        }
        Ok(())
    }

    /// Works until a segment was moved, or no step is left now.
    pub(crate) fn move_one(&mut self, now: Time) -> Result<()> {
        let before = self.machine.stats().segments;
        // It is moved when the operations that this takes are carried out.
        while self.step(now, Effort::Work)?
            && (self.machine.stats().segments == before || self.machine.peek_op().is_some())
        {}
        Ok(())
    }

    /// Takes one step: an operation, a completion, or a poll of the machine; returns whether there
    /// was one. Without effort it does not look at the network, which costs as much as all the
    /// rest: a rank that has just sent something need not look for the answer.
    pub(crate) fn step(&mut self, now: Time, effort: Effort) -> Result<bool> {
        if let Some(op) = self.machine.next_op() {
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
        self.look_at_provider(effort)?;
        let elsewhere = self.machine.plan().topology.has_elsewhere();
        // A look at the network is followed by another poll.
        let settled = elsewhere && effort > Effort::Nothing && self.settled >= Some(effort);
        if !settled && self.poll(now, effort)? {
            return Ok(true);
        }
        if effort == Effort::Nothing {
            return Ok(false);
        }
        let completed = self.look(now)?;
        // The look may have changed cells without a completion.
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

    /// Looks at the network; returns whether there was a completion.
    pub(crate) fn look(&mut self, now: Time) -> Result<bool> {
        let completion = self.endpoint.poll()?;
        if let Some(completion) = completion {
            self.complete(completion, now);
        }
        Ok(completion.is_some())
    }

    /// Records what a provider has done since, and with some effort reduces what has come.
    fn look_at_provider(&mut self, effort: Effort) -> Result<()> {
        let Driver { provider: Some(provider), machine, control, arena, reduction, parts, .. } = self else {
            return Ok(());
        };
        let plan = machine.plan();
        if let Some(round) = machine.nearly_over()
            && provider.is_over(round)?
        {
            control.announce(plan.over(round), round);
        }
        let Some((round, wanted)) = machine.expected().filter(|_| effort > Effort::Nothing) else { return Ok(()) };
        let record = plan.record(round);
        if control.load(record) != round && provider.has_outcome(round)? {
            let scratch = &mut parts.cut;
            scratch.begin(round, None);
            for rank in 0..plan.ranks {
                let (deposit, weights) = provider.deposit_of(round, rank)?;
                scratch.add_gate(rank, deposit, |row| weights[row as usize]);
            }
            control.store_down(plan.recorded(record), scratch.encode());
            if wanted {
                let source = |entry: Entry| {
                    let at = provider.place_of(round, entry.rank, entry.buffer);
                    reduction.source(entry, Place::Here(at))
                };
                debug_assert!(round > machine.landed(), "{WRITTEN_ONCE}");
                let goal = Goal { at: plan.outcome(round), wide: false };
                let (elements, divisor) = (plan.bytes / reduction.dtype.size(), reduction.divisor(plan.ranks, scratch));
                arena.combine(reduction.kind(), scratch.contributions().filter_map(source), goal, elements, divisor);
            }
            control.announce(record, round);
        }
        Ok(())
    }

    /// The provider that runs the program.
    pub(crate) fn provider(&mut self) -> Option<&mut Provider> {
        self.provider.as_deref_mut()
    }

    /// The last round that this collective can run.
    pub(crate) fn last_round(&self) -> u64 {
        self.provider.as_ref().map_or(LAST_ROUND, |provider| provider.last_round().min(LAST_ROUND))
    }

    /// The longest sleep, if no rank wakes a sleeping one.
    pub(crate) fn doze(&self) -> Option<Duration> {
        self.provider.as_ref().map(|_| DOZE)
    }

    fn complete(&mut self, completion: Completion, now: Time) {
        self.settled = None;
        if cfg!(feature = "faults") && completion.token == UNHEEDED {
            return;
        }
        self.machine.complete(Token::from_code(completion.token), completion.value, now);
    }

    /// Ranks whose arrival for the awaited round was not seen.
    pub(crate) fn missing(&self) -> RankSet {
        let mut missing = self.machine.missing(&self.control);
        if let (Some(provider), Some((round, _))) = (&self.provider, self.machine.expected()) {
            // A rank whose contribution is here is not missing.
            let here: Vec<u32> = missing.iter().filter(|&rank| provider.has_heard(round, rank)).collect();
            here.into_iter().for_each(|rank| missing.remove(rank));
        }
        missing
    }

    /// Whether an operation of the next round is in progress on any rank.
    pub(crate) fn is_pending(&self) -> bool {
        self.machine.is_pending(&self.control)
    }

    /// Whether a rank may already read what an operation writes, if that is a reduction.
    pub(crate) fn is_announced(&self, op: &Op) -> bool {
        match *op {
            Op::Run(task) => self.machine.is_announced(task, &self.control),
            Op::Combine { round, .. } => self.machine.is_done(round, &self.control),
            _ => true,
        }
    }

    /// Whether the next round has fired and has not landed.
    pub(crate) fn has_fired(&self) -> bool {
        self.machine.has_fired(&self.control)
    }

    /// Where a cell is, of the control region or behind it.
    fn cell_at(&self, host: u32, cell: usize) -> At {
        match cell.checked_sub(self.machine.plan().control_cells()) {
            None => At { region: self.regions.control[host as usize], offset: cell * size_of::<u64>() },
            Some(cell) => self.data_at(host, cell * size_of::<u64>()),
        }
    }

    fn signal(&self, host: u32, cell: usize, change: Change, token: Token) -> Signal {
        Signal { at: self.cell_at(host, cell), change, awaited: is_awaited(token) }
    }

    fn data_at(&self, host: u32, offset: usize) -> At {
        At { region: self.regions.data[host as usize], offset }
    }

    fn own_data_at(&self, offset: usize) -> At {
        self.data_at(self.machine.plan().host(), offset)
    }

    fn execute(&mut self, op: Op, now: Time) -> Result<()> {
        match op {
            // Release: a rank that sees a tag sees the contribution; one that sees a round released
            // knows that its outcome is not read any more.
            Op::Store { cell, value } => self.control.announce(cell, value),
            Op::Raise { cell, value } => {
                Fuse::pass(&mut self.fuse, Crash::BetweenSignals);
                self.control.raise(cell, value);
            }
            Op::Fence => sync::full_fence(),
            Op::Signal { host, data, cell, change, token } => {
                let signal = self.signal(host, cell, change, token);
                let data = data.filter(|_| !self.machine.plan().fault(Fault::SignalWithoutData));
                let posted = match data {
                    None => self.endpoint.signal(signal, token.code())?,
                    Some((from, to, len)) => {
                        let (from, to) = (self.own_data_at(from), self.data_at(host, to));
                        self.endpoint.put(from, to, len, Some(signal), token.code())?
                    }
                };
                self.posted(posted, token, now);
            }
            Op::Clear { host, round, token } => self.clear(host, round, token, now)?,
            Op::Atomic { host, cell, atomic, token } => {
                let posted = self.endpoint.atomic(self.cell_at(host, cell), atomic, token.code())?;
                self.posted(posted, token, now);
            }
            Op::Put { host, from, to, len, token } => {
                let (from, to) = (self.own_data_at(from), self.data_at(host, to));
                let posted = self.endpoint.put(from, to, len, None, token.code())?;
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
            Op::Combine { round, from, len } => self.combine(Some(round), (from, len)),
            Op::Average { round, group, from, len } => self.average(round, group, (from, len)),
            Op::CombineRead { from, len } => self.combine(None, (from, len)),
            Op::Run(task) => self.run(task),
            Op::Seal { round, deposit, initiator, crowded, pieces, order } => {
                let whole = Chunk { from: 0, to: pieces, of: pieces };
                self.seal(round, (deposit, initiator), crowded, (whole, order));
            }
            Op::Sum { round, from, to, chunk, order } => self.sum(round, from, to, (chunk, order)),
            Op::Publish { host, round, token } => self.publish(host, round, token, now)?,
            Op::Arm { round } => self.offloaded(|provider| provider.arm(round))?,
            Op::Ready { round } => self.offloaded(|provider| provider.ready(round))?,
            Op::SignalArrival { round } => self.offloaded(|provider| provider.give(round))?,
            Op::RevokeGateToken { round, token } => {
                let taken = self.offloaded(|provider| provider.take_back(round))?;
                self.machine.complete(token, u64::from(taken), now);
            }
            Op::Deposit { round, gate, buffer, row, weight } => {
                let plan = self.machine.plan();
                let from = plan.contribution(plan.me, buffer);
                self.offloaded(|provider| provider.let_in(round, gate, from, row, weight))?;
            }
            Op::Wake { most, interest } => {
                self.endpoint.wake(most, interest as u32);
            }
        }
        Ok(())
    }

    fn offloaded<R: Default>(&mut self, run: impl FnOnce(&mut Provider) -> Result<R>) -> Result<R> {
        self.provider.as_mut().map_or(Ok(R::default()), |provider| run(provider))
    }

    fn posted(&mut self, posted: Posted, token: Token, now: Time) {
        if let Posted::Done(value) = posted {
            self.machine.complete(token, value, now);
        }
    }

    fn clear(&mut self, host: u32, round: u64, token: Token, now: Time) -> Result<()> {
        let plan = self.machine.plan();
        let first = plan.word(round, 0);
        let count = if plan.fault(Fault::ForgetClaims) { plan.words() as usize } else { plan.home_cells() };
        let posted = match self.zeros.filter(|_| host != plan.host()) {
            None => {
                // Visible to all ranks that learn of this round's end from the record, which is
                // stored with release order after this.
                self.control.clear(first..first + count);
                Posted::Done(0)
            }
            Some(region) => {
                let to = self.cell_at(host, first);
                let unawaited = plan.fault(Fault::ClearUnawaited);
                let code = if unawaited { UNHEEDED } else { token.code() };
                let posted = self.endpoint.put(At { region, offset: 0 }, to, count * size_of::<u64>(), None, code)?;
                if unawaited { Posted::Done(0) } else { posted }
            }
        };
        self.posted(posted, token, now);
        Ok(())
    }

    /// Writes the record: on the own host with its round last, and from there to another host, with the outcome if that lies
    /// in it.
    fn publish(&mut self, host: u32, round: u64, token: Token, now: Time) -> Result<()> {
        let (plan, cut) = (self.machine.plan(), self.machine.cut(round));
        let record = plan.record(round);
        if host == plan.host() {
            self.control.store_down(plan.recorded(record), cut.encode());
            // Release: a rank that sees the round sees the cut, the cleared words of the next
            // round, and for small data the outcome.
            self.control.announce(record, round);
            self.machine.complete(token, 0, now);
            return Ok(());
        }
        // With what lies between the cut and its round.
        let lowest = plan.recorded(record) - cut.entries().len() + usize::from(plan.fault(Fault::ShortRecord));
        let bytes = (record - lowest) * size_of::<u64>();
        let (from, to) = (self.cell_at(plan.host(), lowest), self.cell_at(host, lowest));
        let mut signal = Some(self.signal(host, record, Change::Set(round), token));
        if let Some(early) = signal.take_if(|_| plan.fault(Fault::PublishBeforeEntries)) {
            self.endpoint.signal(early, UNHEEDED)?;
        }
        let posted = self.endpoint.put(from, to, bytes, signal, token.code())?;
        self.posted(posted, token, now);
        Ok(())
    }
}
