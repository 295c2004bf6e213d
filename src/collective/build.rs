//! From the caller's choices to a collective that all ranks agree on.
#![forbid(unsafe_code)]

use std::marker::PhantomData;

use super::allreduce::Allreduce;
use super::core::{Path, Plan, Terms, Topology, program};
use super::driver::{Driver, Reduction};
use super::preset::Preset;
use super::raw::Raw;
use super::regions::{import_regions, make_regions};
use crate::error::{Error, Result};
use crate::executor::caller::Waiter;
use crate::executor::deferred_work::{Introduction, Provider};
use crate::fabric::{MOST_EXCHANGED, RawAccess};
use crate::fault::Fault;
use crate::group::Group;
use crate::reduce::{Element, Reduce};
use crate::rule::{Absent, Executor, Fire, Grace, Mover, Scale, Schedule};
use crate::time::Deadline;
use crate::trigger::{Request, Start};
use crate::world::World;

/// The choices for a partial allreduce, from [`World::allreduce`]. All ranks must make the same.
#[derive(Debug)]
#[must_use = "nothing happens before build()"]
pub struct AllreduceBuilder<'w, T> {
    world: &'w World,
    lengths: Vec<usize>,
    fire: Fire,
    grace: Grace,
    absent: Absent,
    reduce: Reduce,
    scale: Scale,
    depth: u32,
    mover: Mover,
    executor: Executor,
    group: Group,
    initial: Option<&'w [T]>,
    #[cfg(feature = "faults")]
    fuse: Option<crate::fault::Fuse>,
    element: PhantomData<T>,
}

/// The largest depth.
const MOST_DEPTH: u32 = 1 << 16;

impl World {
    /// Begins a partial allreduce over tensors of these lengths (in elements), which lie one after
    /// the other in a contribution. [`build`](AllreduceBuilder::build) completes it.
    pub fn allreduce<T: Element>(&self, lengths: &[usize]) -> AllreduceBuilder<'_, T> {
        AllreduceBuilder::new(self, lengths)
    }
}

impl<'w, T: Element> AllreduceBuilder<'w, T> {
    fn new(world: &'w World, lengths: &[usize]) -> Self {
        AllreduceBuilder {
            world,
            lengths: lengths.to_vec(),
            fire: Fire::ALL,
            grace: Grace::Auto,
            absent: Absent::Carry,
            reduce: Reduce::Sum,
            scale: Scale::Sum,
            depth: 8,
            mover: Mover::Auto,
            executor: Executor::Auto,
            group: Group::World,
            initial: None,
            #[cfg(feature = "faults")]
            fuse: None,
            element: PhantomData,
        }
    }

    /// When a round fires. Default: [`Fire::ALL`].
    pub fn fire(mut self, fire: Fire) -> Self {
        self.fire = fire;
        self
    }

    /// Makes the choices of a method: [`fire`](AllreduceBuilder::fire), [`absent`](AllreduceBuilder::absent),
    /// [`scale`](AllreduceBuilder::scale) and [`group`](AllreduceBuilder::group), in place of what was chosen before. Later
    /// calls change them. A preset that averages models needs a [`memory`](AllreduceBuilder::memory), too.
    pub fn preset(mut self, preset: Preset) -> Self {
        let ranks = self.world.size();
        self.fire = preset.fire(ranks);
        (self.absent, self.scale) = (preset.absent(), preset.scale());
        self.group = preset.group(ranks).unwrap_or_default();
        self
    }

    /// How long a round stays open after it has fired. Default: [`Grace::Auto`]. Has no effect
    /// under [`Fire::ALL`].
    pub fn grace(mut self, grace: Grace) -> Self {
        self.grace = grace;
        self
    }

    /// What happens to late contributions. Default: [`Absent::Carry`].
    pub fn absent(mut self, absent: Absent) -> Self {
        self.absent = absent;
        self
    }

    /// The reduction. Default: [`Reduce::Sum`].
    pub fn reduce(mut self, reduce: Reduce) -> Self {
        self.reduce = reduce;
        self
    }

    /// The divisor of the sum. Default: [`Scale::Sum`], none.
    pub fn scale(mut self, scale: Scale) -> Self {
        self.scale = scale;
        self
    }

    /// The number of unreleased rounds that a rank may have before the others wait for it: the
    /// bound on staleness. Default: 8. Has no effect under [`Fire::ALL`], where no rank gets ahead.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }

    /// How data moves once a round fires. Default: [`Mover::Auto`], by the hw-config.
    pub fn mover(mut self, mover: Mover) -> Self {
        self.mover = mover;
        self
    }

    /// The agent that carries a round out. Default: [`Executor::Auto`], by the hw-config.
    pub fn executor(mut self, executor: Executor) -> Self {
        self.executor = executor;
        self
    }

    /// Which ranks average with each other. Default: [`Group::World`]. Other groups need a
    /// [`memory`](AllreduceBuilder::memory).
    pub fn group(mut self, group: Group) -> Self {
        self.group = group;
        self
    }

    /// Gives each rank a *register*, which holds a model, all tensors one after the other; at first this one, the same on
    /// all ranks. A contribution is an update of the model then, and an outcome is the model itself.
    ///
    /// In each round every group to which a member contributed averages the registers of its members, absent ones
    /// included, and adds the sum of the updates, divided by the number of members. All members have the result in their
    /// registers then. Under [`Absent::Carry`] every update enters once, late ones in the next round that fires: but for
    /// rounding, the sum of all registers grows by the sum of the updates. A rank that leaves takes its register along. A
    /// rank computes its next update on its newest outcome.
    ///
    /// Under [`Absent::Hold`] contributions are models.
    ///
    /// Floating-point sums only, with [`Scale::Sum`]: the division is that by the members.
    pub fn memory(mut self, initial: &'w [T]) -> Self {
        self.initial = Some(initial);
        self
    }

    /// Kills this process when it has passed a place so many times.
    #[cfg(feature = "faults")]
    pub fn crash(mut self, place: crate::fault::Crash, after: u64) -> Self {
        self.fuse = Some(crate::fault::Fuse::new(place, after));
        self
    }

    /// Creates the collective. All ranks call it, in the same order as their other collective
    /// calls, within the world's deadline. Returns when all have.
    ///
    /// # Errors
    /// An invalid choice, before anything is created; [`Error::Mismatch`] with both values if ranks
    /// chose differently; [`Error::Memory`] with the bytes needed; [`Error::Timeout`] with the
    /// ranks that did not come.
    pub fn build(self) -> Result<Allreduce<T>> {
        let operation = "allreduce.build";
        let world = self.world;
        let parameters = world.parameters();
        let planned = self.plan(self.executor == Executor::Provider);
        // All ranks take part in both exchanges even after an error, so that an error of one is an
        // error of all, with its reason.
        let until = Deadline::from(world.deadline()).instant();
        let choices = match &planned {
            Ok(plan) => self.choices(plan),
            Err(error) => vec![("error", error.to_string())],
        };
        let everybody = world.fabric().exchange(operation, &encode(&choices), until)?;
        let mut plan = planned?;
        compare(world.rank(), operation, &choices, &everybody)?;

        let mut executor = match self.executor {
            Executor::Auto => parameters.executor(),
            chosen => chosen,
        };
        let mut endpoint = world.fabric().open(RawAccess::CRATE)?;
        let provider = match plan.path {
            Path::Offloaded => self.offload(&plan, until)?.map(Box::new),
            _ => None,
        };
        if self.executor == Executor::Auto && plan.path == Path::Relayed {
            // A rank that computes would hold up all that it relays.
            executor = Executor::Thread;
        }
        if provider.is_none() && plan.path == Path::Offloaded {
            plan = self.plan(false)?;
            executor = parameters.executor();
        }
        let made = make_regions(&mut *endpoint, &plan, self.initial).map_err(|error| error.in_call(operation));
        let keys = match &made {
            Ok(keys) => [b"ok".to_vec(), keys.iter().flat_map(|key| key.encode()).collect()].concat(),
            Err(error) => error.to_string().into_bytes(),
        };
        let everybody = world.fabric().exchange(operation, &keys, until)?;
        made?;
        let regions = import_regions(world.rank(), operation, &mut *endpoint, &plan, &everybody)?;
        let reduction = Reduction { dtype: T::DTYPE, reduce: self.reduce, scale: self.scale, absent: self.absent };
        tracing::debug!(rank = world.rank(), fire = %self.fire, bytes = plan.bytes, path = plan.path.name(), "collective made");
        // From here on the other ranks count on this one.
        let driver = Driver::new(plan, endpoint, regions, reduction, provider)
            .map_err(|error| error.in_call(operation))
            .inspect_err(|error| world.abort(&format!("it could not make a collective: {error}")))?;
        #[cfg(feature = "faults")]
        let driver = {
            let mut driver = driver;
            driver.crash(self.fuse);
            driver
        };
        let waiter = Waiter::new(world.fabric().clone(), world.spin());
        let raw = Raw::new(world, driver, executor, waiter)
            .inspect_err(|error| world.abort(&format!("it could not make a collective: {error}")))?;
        Ok(Allreduce::new(raw, self.lengths))
    }

    /// Opens the providers of all ranks. `None` if one rank cannot: all do without then.
    fn offload(&self, plan: &Plan, until: std::time::Instant) -> Result<Option<Provider>> {
        let (operation, rank, fabric) = ("allreduce.build", plan.me, self.world.fabric());
        let wanted = Request {
            ranks: plan.ranks,
            start: Start::of(plan.fire, plan.grace, plan.ranks),
            schedule: Schedule::Gather,
            bytes: plan.bytes as u64,
            chunk: 0,
            slots: plan.slots(),
        };
        let opened = Provider::open(rank, &wanted, plan.data_bytes(), self.world.provider());
        let told = match &opened {
            Ok((_, introduction)) => [b"ok".to_vec(), introduction.encode()].concat(),
            Err(error) => reason_of(error).into_bytes(),
        };
        let everybody = fabric.exchange_long(operation, &told, until)?;
        let connected = opened.and_then(|(mut provider, _)| {
            let theirs = everybody.iter().zip(0..).map(|(bytes, peer)| {
                let introduction = bytes.strip_prefix(b"ok").and_then(Introduction::decode);
                introduction
                    .ok_or_else(|| Error::transport(rank, peer, operation, format!("rank {peer} has no provider")))
            });
            provider.connect(&theirs.collect::<Result<Vec<_>>>()?)?;
            Ok(provider)
        });
        let told = connected.as_ref().map_or_else(|error| reason_of(error).into_bytes(), |_| b"ok".to_vec());
        let connections = fabric.exchange(operation, &told[..told.len().min(MOST_EXCHANGED)], until)?;
        let refused = everybody.iter().chain(&connections).find(|answer| !answer.starts_with(b"ok"));
        if let Some(reason) = refused {
            let reason = String::from_utf8_lossy(reason);
            match rank {
                0 => tracing::warn!(%reason, "no provider carries this collective out; its ranks do"),
                _ => tracing::debug!(rank, %reason, "no provider carries this collective out; its ranks do"),
            }
        }
        Ok(connected.ok().filter(|_| refused.is_none()))
    }

    /// This rank's plan; or what is wrong with its choices.
    fn plan(&self, offloaded: bool) -> Result<Plan> {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let usage = |problem| self.usage(problem);
        self.fire.check(ranks)?;
        self.grace.check()?;
        if self.depth == 0 || self.depth > MOST_DEPTH {
            return Err(usage("depth must be between 1 and 65536"));
        }
        self.absent.check()?;
        let adds = T::DTYPE.is_float() && self.reduce == Reduce::Sum;
        if self.scale != Scale::Sum && !adds {
            return Err(usage("only sums of floating-point numbers can be divided; use Scale::Sum"));
        }
        if matches!(self.absent, Absent::Decay(_)) && !adds {
            return Err(usage("only sums of floating-point numbers can decay; use Absent::Carry or Absent::Drop"));
        }
        if self.group.schedule().is_err() {
            return Err(usage("groups need a size of 2 ranks or more"));
        }
        if self.initial.is_none() && (self.group != Group::World || self.absent == Absent::Hold) {
            return Err(usage(
                "groups and Absent::Hold are for models; give each rank one with memory(), or choose others",
            ));
        }
        let elements = self.lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
        if self.initial.is_some() {
            self.check_memory(adds, elements)?;
        }
        let bytes = elements.and_then(|elements| elements.checked_mul(size_of::<T>()));
        let bytes = bytes.ok_or_else(|| usage("more elements than can be addressed"))?;
        let parameters = self.world.parameters();
        let topology = match offloaded {
            // Under a provider, ranks make no use of shared memory.
            true => Topology::new((0..ranks).collect()),
            false => Topology::new(self.world.fabric().hosts()),
        };
        if offloaded {
            self.check_offloaded()?;
        }
        let tree = match self.mover {
            _ if offloaded => false,
            // The provider that was asked for is not there.
            Mover::Tree if self.executor == Executor::Provider => topology.hosts() == 1,
            Mover::Tree if topology.hosts() > 1 && topology.hosts() < ranks => {
                return Err(usage(
                    "the tree mover needs all ranks on one host, or each on a host of its own; use the cut mover",
                ));
            }
            Mover::Tree => true,
            _ if self.initial.is_some() => false,
            Mover::Auto if topology.hosts() == 1 => parameters.mover() == Mover::Tree,
            Mover::Auto => self.may_relay() && self.would_relay(&topology, bytes),
            Mover::Cut => false,
        };
        let path = match tree {
            _ if offloaded => Path::Offloaded,
            true if topology.hosts() > 1 => Path::Relayed,
            true => Path::Program,
            false if self.initial.is_some() => Path::Segmented,
            false => parameters.path(self.fire, ranks, bytes as u64),
        };
        let grace = if offloaded { Grace::NONE } else { self.grace };
        // A tree's outcomes are released one by one: with two slots no rank waits for that.
        let depth = match self.fire {
            fire if !fire.is_synchronous() => u64::from(self.depth),
            _ if tree || offloaded => 2,
            _ => 1,
        };
        let segment = parameters.segment();
        let schedule = parameters.schedule(bytes as u64, path, ranks);
        let program =
            (path == Path::Program).then(|| program(ranks, (self.fire, self.grace), schedule, (bytes, segment), depth));
        let plan = Plan::new(Terms {
            ranks,
            me: rank,
            topology,
            fire: self.fire,
            grace,
            absent: self.absent,
            weighted: self.scale == Scale::Weights,
            depth,
            path,
            memory: self.initial.map(|_| self.group),
            bytes,
            wide_bytes: elements.and_then(|count| count.checked_mul(T::DTYPE.wide_size())).unwrap_or(usize::MAX),
            segment,
            run: parameters.run(),
            pull_after: parameters.pull_after(bytes),
            helpers: self.world.cores().clamp(1, ranks),
            schedule,
            program,
            fault: Fault::chosen(),
        });
        plan.checked_data_bytes()
            .ok_or_else(|| usage("more memory than can be addressed; use fewer elements or a smaller depth"))?;
        Ok(plan)
    }

    fn usage(&self, problem: &'static str) -> Error {
        Error::Usage { rank: self.world.rank(), operation: "allreduce.build", problem }
    }

    /// Rejects choices that do not go with registers.
    fn check_memory(&self, adds: bool, elements: Option<usize>) -> Result<()> {
        let usage = |problem| self.usage(problem);
        let length = self.initial.map_or(0, <[T]>::len);
        if !adds {
            return Err(usage("only floating-point models are averaged; use a memory with a sum of floats"));
        }
        if self.scale != Scale::Sum {
            return Err(usage(
                "updates of a model are divided by the members of a group; use Scale::Sum, or a preset that averages models",
            ));
        }
        if self.mover == Mover::Tree {
            return Err(usage("the tree mover moves no models; use Mover::Auto or Mover::Cut"));
        }
        if self.executor == Executor::Provider {
            return Err(usage("no provider moves models; use Executor::Auto, Caller, Thread or Peer"));
        }
        if elements != Some(length) {
            return Err(usage("the model of memory() must be as long as all tensors together"));
        }
        Ok(())
    }

    /// A digest of the model that all begin with, if they have one.
    fn model_digest(&self) -> String {
        let of = |model: &[T]| {
            let bytes: &[u8] = bytemuck::cast_slice(model);
            let word = |part: &[u8]| part.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            format!("{:016x}", digest(bytes.chunks(8).map(word)))
        };
        self.initial.map_or_else(|| "none".to_owned(), of)
    }

    /// Whether `auto` stands for relays here, if the executor lets it.
    fn would_relay(&self, topology: &Topology, bytes: usize) -> bool {
        let alone = topology.hosts() > 1 && topology.hosts() == self.world.size() && self.initial.is_none();
        self.mover == Mover::Auto && alone && self.world.parameters().relays(self.fire, bytes as u64)
    }

    /// Whether this rank relays while it computes. One that does not would hold up every round.
    fn may_relay(&self) -> bool {
        matches!(self.executor, Executor::Auto | Executor::Thread)
    }

    /// Rejects choices that a provider cannot carry out.
    fn check_offloaded(&self) -> Result<()> {
        let usage = |problem| self.usage(problem);
        if self.mover == Mover::Cut {
            return Err(usage("a provider runs programs; use the tree mover, or auto"));
        }
        if !matches!(self.grace, Grace::Auto) && self.grace != Grace::NONE {
            return Err(usage("a provider has no clock; use no grace under its executor"));
        }
        if self.fire.limit().is_some() || (self.fire.is_full(0) && !self.fire.is_synchronous()) {
            return Err(usage(
                "a provider runs rounds that all look alike, without a deadline; use all, solo, majority or quorum",
            ));
        }
        Ok(())
    }

    /// The lengths of the tensors, or a digest of them if they are many.
    fn tensors(&self) -> String {
        let shown = self.lengths.iter().take(8).map(usize::to_string).collect::<Vec<_>>().join("+");
        let mixed = digest(self.lengths.iter().map(|&length| length as u64));
        match self.lengths.len() {
            0..=8 => shown,
            count => format!("{count}: {shown}+... ({mixed:016x})"),
        }
    }

    /// All that must be the same on all ranks.
    fn choices(&self, plan: &Plan) -> Vec<(&'static str, String)> {
        let schedule = |plan: &Plan| match plan.path {
            Path::Program | Path::Relayed => plan.schedule.name(),
            _ => "none",
        };
        // It is not known yet whether there is a provider.
        let otherwise = (plan.path == Path::Offloaded).then(|| self.plan(false).ok()).flatten();
        let otherwise = otherwise.map(|plan| format!("{} {}", plan.path.name(), schedule(&plan)));
        let total: usize = self.lengths.iter().sum();
        let relays = self.may_relay() && self.would_relay(&plan.topology, plan.bytes);
        vec![
            ("the length", total.to_string()),
            ("the tensors", self.tensors()),
            ("the element type", T::DTYPE.to_string()),
            ("fire", self.fire.to_string()),
            ("grace", self.grace.to_string()),
            ("absent", self.absent.to_string()),
            ("reduce", self.reduce.to_string()),
            ("scale", self.scale.to_string()),
            ("depth", self.depth.to_string()),
            ("group", self.group.to_string()),
            ("the model of memory()", self.model_digest()),
            ("mover", self.mover.to_string()),
            ("whether ranks relay (mover auto: if the executor is auto or thread)", relays.to_string()),
            ("the path (by hw-config)", plan.path.name().to_owned()),
            ("the segment (by hw-config)", plan.segment.to_string()),
            ("the piece (by hw-config)", (plan.run * plan.segment as u64).to_string()),
            ("the schedule (by hw-config)", schedule(plan).to_owned()),
            ("the path without a provider (by hw-config)", otherwise.unwrap_or_default()),
        ]
    }
}

/// Tells values apart that ranks may have given by mistake.
fn digest(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0, |hash: u64, word| (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn encode(choices: &[(&'static str, String)]) -> Vec<u8> {
    let lines: Vec<String> = choices.iter().map(|(name, value)| format!("{name}\t{value}")).collect();
    let text = lines.join("\n");
    text.bytes().take(900).collect()
}

/// The first rank that chose differently, and its choice.
pub(crate) fn compare(
    rank: u32,
    operation: &'static str,
    mine: &[(&'static str, String)],
    everybody: &[Vec<u8>],
) -> Result<()> {
    for (peer, theirs) in everybody.iter().enumerate() {
        let peer = peer as u32;
        let theirs = String::from_utf8_lossy(theirs);
        if let Some(reason) = theirs.strip_prefix("error\t") {
            return Err(Error::Aborted { rank, operation, by: peer, reason: reason.to_owned() });
        }
        let lines = theirs.lines().map(Some).chain(std::iter::repeat(None));
        for ((what, mine), line) in mine.iter().zip(lines) {
            let told = line.and_then(|line| line.split_once('\t')).filter(|(name, _)| *name == *what);
            let theirs = told.map_or("another version", |(_, value)| value);
            if theirs != mine {
                let (mine, theirs) = (mine.clone(), theirs.to_owned());
                return Err(Error::Mismatch { rank, operation, what, mine, peer, theirs });
            }
        }
    }
    Ok(())
}

/// What a rank without a provider tells the others, who go on without one as it does.
fn reason_of(error: &Error) -> String {
    match error {
        Error::Transport { cause, .. } => cause.clone(),
        other => other.to_string(),
    }
}
