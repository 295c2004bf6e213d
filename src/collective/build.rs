//! From the caller's choices to a collective that all ranks agree on.
#![forbid(unsafe_code)]

use std::marker::PhantomData;

mod arrivals;
mod checks;
mod choices;
mod combinations;
#[cfg(feature = "cli")]
pub(crate) mod layout;
mod models;
mod plan;
mod texts;

use std::sync::Arc;
use std::time::Instant;

use super::allreduce::Allreduce;
use super::calls::Calls;
use super::checkpoint::Checkpoint;
use super::choices::{Choices, compare, encode, encode_error};
use super::core::{Plan, SavedQuorum};
use super::driver::{Driver, Reduction};
use super::engine::Engine;
use super::following::Following;
use super::options::Options;
use super::preset::Preset;
use super::protocol::Protocol;
use super::raw::Raw;
use super::recording::Tape;
use super::regions::{Made, check_answers, decode_run, encode_keys, import_regions, make_regions};
use crate::error::{Error, Misuse, Result};
use crate::executor::caller::Waiter;
use crate::executor::runner::Runner;
use crate::fabric::HostMemory;
use crate::group::Group;
use crate::offload;
use crate::random;
use crate::reduce::{Dtype, Element, Item, Reduce};
use crate::rule::{Absent, AgreementBy, Executor, Fire, Grace, Mover, Scale, Schedule};
use crate::time::Deadline;
use crate::trace::Track;
use crate::trigger::{Request, Start};
use crate::world::World;
use crate::world::endpoints::Endpoints;
use models::Model;

/// The choices for a partial allreduce, from [`World::allreduce`]. All ranks must make the same choices.
#[derive(Debug)]
#[must_use = "nothing happens before build()"]
pub struct AllreduceBuilder<'w, T> {
    world: &'w World,
    lengths: Vec<usize>,
    chosen: Options,
    following: Option<Following>,
    /// Whether the preset needs tensors handed in as they become ready.
    needs_buckets: bool,
    model: Option<Model<'w>>,
    restored: Option<&'w Checkpoint>,
    /// What the first quorum follows from, if the collective chooses quorums and resumes.
    quorum: Option<SavedQuorum>,
    /// The time by which it must be made; `None` for the world's deadline, counted from the start of `build`.
    until: Option<Instant>,
    #[cfg(earlybird_faults)]
    fuse: Option<crate::fault::Fuse>,
    item: PhantomData<T>,
}

/// The name of this operation in errors.
const OPERATION: &str = "allreduce.build";

/// The largest depth.
const MOST_DEPTH: u32 = 1 << 16;

impl World {
    /// Begins a partial allreduce over tensors of these lengths (in elements), which lie one after the other in a
    /// contribution. [`build`](AllreduceBuilder::build) creates it.
    pub fn allreduce<T: Element>(&self, lengths: &[usize]) -> AllreduceBuilder<'_, T> {
        AllreduceBuilder::new(self, T::DTYPE, lengths)
    }

    /// As [`allreduce`](World::allreduce), for elements whose type is known only at run time: contributions, outcomes
    /// and models are bytes. Lengths are still in elements.
    pub fn allreduce_bytes(&self, dtype: Dtype, lengths: &[usize]) -> AllreduceBuilder<'_, u8> {
        AllreduceBuilder::new(self, dtype, lengths)
    }
}

impl<'w, T: Item> AllreduceBuilder<'w, T> {
    fn new(world: &'w World, dtype: Dtype, lengths: &[usize]) -> Self {
        AllreduceBuilder {
            world,
            lengths: lengths.to_vec(),
            chosen: Options::usual(dtype),
            following: None,
            needs_buckets: false,
            model: None,
            restored: None,
            quorum: None,
            until: None,
            #[cfg(earlybird_faults)]
            fuse: None,
            item: PhantomData,
        }
    }

    /// Sets when a round fires. Default: [`Fire::ALL`].
    pub fn fire(mut self, fire: Fire) -> Self {
        self.chosen.fire = fire;
        self
    }

    /// Sets the choices of a method: [`fire`](AllreduceBuilder::fire), [`absent`](AllreduceBuilder::absent),
    /// [`scale`](AllreduceBuilder::scale) and [`group`](AllreduceBuilder::group). It replaces earlier choices; later
    /// calls change them. A preset that averages models also needs a [`memory`](AllreduceBuilder::memory), and
    /// [`Preset::MgWfbp`] needs [`buckets`](AllreduceBuilder::buckets).
    pub fn preset(mut self, preset: Preset) -> Self {
        let ranks = self.world.size();
        self.chosen.fire = preset.fire(ranks);
        (self.chosen.absent, self.chosen.scale) = (preset.absent(), preset.scale());
        self.chosen.group = preset.group(ranks).unwrap_or_default();
        self.needs_buckets = preset == Preset::MgWfbp;
        self
    }

    /// Sets how long a round stays open after it has fired. Default: [`Grace::Auto`]. Has no effect under
    /// [`Fire::ALL`].
    pub fn grace(mut self, grace: Grace) -> Self {
        self.chosen.grace = grace;
        self
    }

    /// Sets what happens to late contributions. Default: [`Absent::Carry`].
    pub fn absent(mut self, absent: Absent) -> Self {
        self.chosen.absent = absent;
        self
    }

    /// Sets the reduction. Default: [`Reduce::Sum`].
    pub fn reduce(mut self, reduce: Reduce) -> Self {
        self.chosen.reduce = reduce;
        self
    }

    /// Sets the divisor of the sum. Default: [`Scale::Sum`], no division.
    pub fn scale(mut self, scale: Scale) -> Self {
        self.chosen.scale = scale;
        self
    }

    /// Sets the maximum number of unreleased rounds of a rank; with more the others wait for it. It bounds staleness.
    /// Default: 8. Has no effect under [`Fire::ALL`], where no rank gets ahead.
    pub fn depth(mut self, depth: u32) -> Self {
        self.chosen.depth = depth;
        self
    }

    /// Sets how data moves after a round fires. Default: [`Mover::Auto`], chosen by the hw-config, but in a world of several
    /// hosts with several ranks each [`Mover::Tree`], by which the lowest rank of a host relays for its ranks.
    pub fn mover(mut self, mover: Mover) -> Self {
        self.chosen.mover = mover;
        self
    }

    /// Sets the agent that carries out rounds. Default: [`Executor::Auto`], chosen by the hw-config.
    pub fn executor(mut self, executor: Executor) -> Self {
        self.chosen.executor = executor;
        self
    }

    /// Sets which ranks average with each other. Default: [`Group::World`]. Other groups need a
    /// [`memory`](AllreduceBuilder::memory).
    pub fn group(mut self, group: Group) -> Self {
        self.chosen.group = group;
        self
    }

    /// Counts rounds from `round` on: the first round is the one after it.
    pub(super) fn behind(mut self, round: u64) -> Self {
        self.chosen.base = round;
        self
    }

    /// Continues to choose quorums from what was saved.
    pub(super) fn with_quorum(mut self, saved: Option<SavedQuorum>) -> Self {
        self.quorum = saved;
        self
    }

    /// Sets the time by which it must be made, as a part of a call that all ranks make together.
    pub(super) fn by(mut self, until: Deadline) -> Self {
        self.until = Some(until.instant());
        self
    }

    /// Takes the cuts from another collective, or passes its own to others. Only the mover of cuts runs rounds with
    /// given cuts.
    pub(super) fn following(mut self, following: Following) -> Self {
        self.following = Some(following);
        self.mover(Mover::Cut)
    }

    /// Kills this process when it has passed a point a given number of times.
    #[cfg(earlybird_faults)]
    pub fn crash(mut self, place: crate::fault::Crash, after: u64) -> Self {
        self.fuse = Some(crate::fault::Fuse::new(place, after));
        self
    }

    /// Checks the choices like [`build`](AllreduceBuilder::build), on this rank alone: other ranks take no part.
    ///
    /// # Errors
    /// A choice that `build` would refuse on this rank.
    pub fn check(&self) -> Result<()> {
        match self.chosen.group {
            Group::Arrivals(size) => self.plan_arrivals(size).map(drop),
            _ => self.plan(self.chosen.executor == Executor::Provider).map(drop),
        }
    }

    /// Creates the collective. All ranks call it, in the same order as their other collective calls, and within the
    /// world's deadline. Returns when all ranks have called it.
    ///
    /// # Errors
    /// An invalid choice, or a checkpoint of another rank, world, type or length, before a collective is created.
    /// [`Error::Mismatch`] with both values if ranks chose differently, or have checkpoints that do not belong
    /// together. [`Error::Memory`] with the bytes needed. [`Error::Timeout`] with the ranks that did not come.
    pub fn build(mut self) -> Result<Allreduce<T>> {
        if let Group::Arrivals(size) = self.chosen.group {
            return self.build_arrivals(size);
        }
        let operation = OPERATION;
        let world = self.world;
        let parameters = world.parameters();
        let until = self.until.unwrap_or_else(|| Deadline::from(world.deadline()).instant());
        let number = world.next_collective();
        let planned = self.plan(self.chosen.executor == Executor::Provider).and_then(|plan| {
            let choices = self.choices(&plan);
            let tape = if self.is_led() { None } else { Tape::open(world, number, &plan, &choices)? };
            Ok((tape, choices, plan))
        });
        let (mut tape, _, mut plan) = self.agree(planned, |(_, choices, _)| choices.clone(), until)?;
        let alike = tape.as_ref().map_or(Ok(()), |tape| tape.compare(world, operation, until));
        alike.map_err(|error| world.with_hosts(error))?;

        let mut executor = self.chosen_executor();
        let endpoints =
            if plan.agreement == AgreementBy::Relays { world.endpoints_of_relays() } else { Endpoints::OfRanks };
        let mut endpoint = self.or_abort(world.open(endpoints, OPERATION, until))?;
        let runner = match plan.agreement {
            AgreementBy::Runner => self.offload(&plan, until)?,
            _ => None,
        };
        if self.chosen.executor == Executor::Auto && plan.agreement == AgreementBy::Relays {
            // A rank that computes, or waits for another collective, would delay everything that it relays.
            executor = Executor::Thread;
        }
        if runner.is_none() && plan.agreement == AgreementBy::Runner {
            plan = self.or_abort(self.plan(false))?;
            executor = parameters.executor();
        }
        let model = self.model();
        let shared = model.filter(|model| !model.own);
        let made = make_regions(&mut *endpoint, &plan, shared.map(|model| model.bytes));
        let (made, everybody) = self.trade_keys(made, until)?;
        let named = import_regions(world.rank(), operation, &mut *endpoint, (&plan.topology, &made), &everybody);
        let regions = self.or_abort(named)?;
        let Options { dtype, reduce, scale, absent, .. } = self.chosen;
        let reduction = Reduction { dtype, reduce, scale, absent };
        tracing::debug!(rank = world.rank(), fire = %self.chosen.fire, bytes = plan.bytes, path = plan.path_name(), "collective made");
        let made = Driver::new(plan, endpoint, regions, reduction, runner);
        let mut driver = self.or_abort(made.map_err(|error| error.in_call(operation)))?;
        #[cfg(earlybird_faults)]
        driver.crash(self.fuse);
        driver.reserve();
        tape.iter_mut().for_each(|tape| tape.instruct(driver.machine_mut()));
        self.quorum.iter().for_each(|saved| driver.machine_mut().resume_quorum(saved));
        let mut following = self.following.take();
        let records = tape.as_ref().is_some_and(|tape| tape.records());
        following.iter_mut().for_each(|following| following.instruct(driver.machine_mut(), records));
        let mut memory = driver.memory();
        let places = driver.machine().plan().first_models(world.rank());
        self.write_own_model(&mut memory, places, until)?;
        let track = self.track(number, driver.machine().plan().path_name());
        let engine = Engine::new(driver).with_following(following).traced_by(track.as_ref());
        let raw = self.raw(engine, memory, (executor, endpoints), (tape, track))?;
        Ok(Allreduce::new(Calls::Rounds(raw), (self.chosen.dtype, self.lengths), decode_run(&everybody)))
    }

    /// Returns the plan of this rank if all ranks have chosen alike. A rank with an error still takes part in this
    /// exchange, so that an error of one rank is an error of all, with its reason.
    fn agree<P>(&self, planned: Result<P>, choices: impl FnOnce(&P) -> Choices, until: Instant) -> Result<P> {
        let rank = self.world.rank();
        let planned = planned.and_then(|plan| {
            let choices = choices(&plan);
            Ok((encode(rank, OPERATION, &choices)?, choices, plan))
        });
        let told = planned.as_ref().map_or_else(encode_error, |(told, ..)| told.clone());
        let everybody = self.world.fabric().exchange(OPERATION, &told, until)?;
        let (_, choices, plan) = planned?;
        compare(rank, OPERATION, &choices, &everybody).map_err(|error| self.world.with_hosts(error))?;
        Ok(plan)
    }

    /// Returns the executor that was chosen, or that of the hw-config.
    fn chosen_executor(&self) -> Executor {
        match self.chosen.executor {
            Executor::Auto => self.world.parameters().executor(),
            chosen => chosen,
        }
    }

    /// Aborts the job if `made` is an error: the other ranks depend on this rank from now on.
    fn or_abort<R>(&self, made: Result<R>) -> Result<R> {
        made.map_err(|error| {
            let error = self.world.with_hosts(error);
            self.world.abort(&format!("it could not make a collective: {error}"));
            error
        })
    }

    /// Creates the calls of an engine whose contributions and outcomes lie in `memory`.
    fn raw<P: Protocol>(
        &self,
        engine: P,
        memory: HostMemory,
        (executor, endpoints): (Executor, Endpoints),
        told: (Option<Box<Tape>>, Option<Arc<Track>>),
    ) -> Result<Raw<P>> {
        let waiter = Waiter::new(self.world.fabric().clone(), self.world.spin());
        self.or_abort(Raw::new(self.world, engine, memory, (executor, waiter, endpoints), told))
    }

    /// Returns the track of the collective that is being built, if this rank is traced.
    fn track(&self, number: u32, path: &str) -> Option<Arc<Track>> {
        let elements: usize = self.lengths.iter().sum();
        let title = || format!("fire {}, {elements} elements, {path}", self.chosen.fire);
        self.world.trace().map(|trace| trace.track(number, &title()))
    }

    /// Tells all ranks the keys of what this rank has made, or its error. Returns what it has made, and what all ranks told.
    fn trade_keys(&self, made: Result<Made>, until: Instant) -> Result<(Made, Vec<Vec<u8>>)> {
        let made = made.map_err(|error| error.in_call(OPERATION));
        let made = made.and_then(|made| Ok((encode_keys(random::draw(self.world.rank())?, &made), made)));
        let told = made.as_ref().map_or_else(|error| error.to_string().into_bytes(), |(told, _)| told.clone());
        let everybody = self.world.fabric().exchange(OPERATION, &told, until)?;
        let (_, made) = made?;
        check_answers(self.world.rank(), OPERATION, &everybody)?;
        Ok((made, everybody))
    }

    /// Returns what the first quorum follows from, if the collective resumes.
    pub(super) fn quorum(&self) -> Option<SavedQuorum> {
        self.quorum.clone()
    }

    pub(super) fn world(&self) -> &'w World {
        self.world
    }

    pub(super) fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// What runs the program of a plan in place of the ranks; `None` if that is not there on one rank: all do without then.
    fn offload(&self, plan: &Plan, until: Instant) -> Result<Option<Box<dyn Runner>>> {
        let wanted = Request {
            ranks: plan.ranks,
            start: Start::of(plan.fire, plan.grace, plan.ranks),
            schedule: Schedule::Gather,
            radix: 2,
            bytes: plan.bytes as u64,
            chunk: 0,
            slots: plan.slots(),
        };
        offload::open(&**self.world.fabric(), OPERATION, &wanted, (plan.data_bytes(), self.world.provider()), until)
    }

    fn usage(&self, problem: &'static str) -> Error {
        Error::Usage { rank: self.world.rank(), operation: OPERATION, problem: Misuse::Choice(problem) }
    }

    /// Returns whether its cuts are those of one run only, and recorded or replayed. Synchronous rounds have the same cuts
    /// in every run: they are recorded for reports, and never replayed.
    pub(super) fn is_taped(&self) -> bool {
        let is_free = !self.chosen.fire.is_synchronous() && !self.is_led();
        is_free && (self.world.record().is_some() || self.world.replay().is_some())
    }

    /// Returns whether its cuts are given, by a recording or by another collective.
    fn is_given(&self) -> bool {
        self.is_led() || (self.is_taped() && self.world.replay().is_some())
    }

    /// Returns whether it takes its cuts from another collective.
    fn is_led(&self) -> bool {
        self.following.as_ref().is_some_and(Following::is_led)
    }
}
