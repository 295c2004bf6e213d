//! What is simulated, drawn from a seed.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::explore::{Means, World};
use super::recording::as_text;
use crate::collective::choice::Mover;
use crate::collective::core::{Effort, Path, Plan, Topology, program};
use crate::collective::driver::Reduction;
use crate::collective::rule::{Absent, Fire, Grace, Scale, When};
use crate::fabric::sim::{Kind, Stall, Weather};
use crate::fault::Fault;
use crate::reduce::{Dtype, Reduce};
use crate::trigger::{Layout, Schedule};

/// Bounds within which scenarios are drawn.
#[derive(Clone, Debug)]
pub struct Options {
    /// World sizes to choose from, each range equally likely.
    pub ranks: Vec<std::ops::RangeInclusive<u32>>,
    /// Firing rules; a quorum of 0 stands for one drawn between 1 and P, a deadline for one drawn.
    pub fires: Vec<Fire>,
    /// Whether rules get a deadline and full rounds now and then, and late contributions another
    /// fate than being carried.
    pub variations: bool,
    /// How data moves: by a cut (on any hosts), or by a program (on one).
    pub movers: Vec<Mover>,
    /// Most contributions of a rank.
    pub steps: u32,
    /// Whether all ranks make the same number of contributions, each on a host of its own where the
    /// mover allows that.
    pub alike: bool,
    /// How often a rank dies, anywhere, from 0 to 1.
    pub deaths: f64,
    /// Whether the network has troubles: data that lands more than once, receivers that are not
    /// ready, links and partitions on which nothing moves for a time, operations that complete
    /// with an error; and ranks that freeze for a time.
    pub weather: bool,
    /// A deliberate fault in the core.
    pub fault: Option<Fault>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ranks: vec![1..=17],
            fires: vec![
                Fire::ALL,
                Fire::SOLO,
                Fire::quorum(0),
                Fire::majority(0),
                Fire::deadline(Duration::from_micros(1)),
            ],
            variations: true,
            movers: vec![Mover::Cut],
            steps: 6,
            alike: false,
            deaths: 0.0,
            weather: false,
            fault: None,
        }
    }
}

impl Options {
    /// The same with a deliberate fault, over what it can show in.
    #[must_use]
    pub fn with_fault(self, fault: Fault) -> Self {
        let movers = match fault.mover() {
            Some(mover) => vec![mover],
            None => self.movers,
        };
        let deaths = if fault.needs_a_death() { 1.0 } else { self.deaths };
        Options { fault: Some(fault), movers, deaths, ..self }
    }

    /// Everything that there is: what a fuzzer draws from.
    #[must_use]
    pub fn everything() -> Self {
        Options {
            // Small worlds have the same races, and are drawn more often.
            ranks: vec![1..=4, 1..=4, 2..=8, 2..=8, 1..=17, 1..=17, 2..=6, 33..=40],
            movers: vec![Mover::Cut, Mover::Cut, Mover::Tree],
            deaths: 0.1,
            weather: true,
            ..Options::default()
        }
    }
}

/// One world and what its ranks do.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    pub(super) hosts: Vec<u32>,
    #[serde(with = "as_text")]
    pub(super) fire: Fire,
    #[serde(with = "as_text")]
    pub(super) grace: Grace,
    pub(super) depth: u64,
    pub(super) path: Path,
    pub(super) elements: usize,
    pub(super) segment: usize,
    /// Segments of a piece.
    run: u64,
    /// How long the homes of a round are waited for.
    pull_after: u64,
    /// On the path that has a program.
    pub(super) schedule: Option<Schedule>,
    #[serde(skip)]
    program: Option<Arc<Layout>>,
    /// Who dies, and at which of its turns.
    pub(super) death: Option<(usize, u64)>,
    /// Who freezes, at which of its turns, and for how long.
    pub(super) freeze: Option<(usize, u64, u64)>,
    #[serde(skip)]
    pub(super) fault: Option<Fault>,
    #[serde(with = "ReductionAsText")]
    pub(super) reduction: Reduction,
    #[serde(default)]
    pub(super) weather: Weather,
    pub(super) ranks: Vec<Habits>,
}

/// How a [`Reduction`] stands in a file.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Reduction", deny_unknown_fields)]
struct ReductionAsText {
    #[serde(with = "as_text")]
    dtype: Dtype,
    #[serde(with = "as_text")]
    reduce: Reduce,
    #[serde(with = "as_text")]
    scale: Scale,
    #[serde(with = "as_text")]
    absent: Absent,
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Scenario {
            hosts,
            fire,
            grace,
            depth,
            path,
            elements,
            segment,
            schedule,
            reduction,
            ranks,
            death,
            freeze,
            weather,
            fault,
            ..
        } = self;
        write!(
            f,
            "{} ranks on hosts {hosts:?}, {fire} with grace {grace}, depth {depth}, {} {schedule:?}, {elements} elements, \
             segments of {segment}, {reduction:?}, death {death:?}, freeze {freeze:?}, {weather:?}, fault {fault:?}, {ranks:?}",
            hosts.len(),
            path.name(),
        )
    }
}

/// How one rank behaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Habits {
    /// What it does for others in `arrive`.
    pub(super) arriving: Effort,
    /// Contributions before it finishes.
    pub(super) steps: u32,
    /// Whether it fills contributions after handing them in, where that is possible.
    pub(super) fills: bool,
    /// Longest computation between arrivals, ns.
    pub(super) compute: u64,
    /// How often it computes between arriving and waiting, of 256.
    pub(super) overlaps: u32,
    /// Longest time it holds on to outcomes, ns.
    pub(super) holds: u64,
    /// How often it is descheduled between two operations, of 4096.
    pub(super) preempted: u32,
}

impl Scenario {
    pub(super) fn draw(seed: u64, options: &Options) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let range = options.ranks[rng.random_range(0..options.ranks.len())].clone();
        let ranks = rng.random_range(range);
        let fire = draw_fire(rng, options, ranks);
        let grace = match rng.random_range(0..4) {
            0 => Grace::NONE,
            1 => Grace::Auto,
            _ => Grace::Fixed(Duration::from_nanos(rng.random_range(1..60_000))),
        };
        let pushed = rng.random_bool(0.5);
        let path = match (pushed, fire.is_synchronous()) {
            (false, _) => Path::Segmented,
            (true, true) => Path::Replicated,
            (true, false) => Path::Eager,
        };
        let reduction = draw_reduction(rng, options);
        let dtype = reduction.dtype;
        // Large worlds cost the most per schedule: they get fewer steps.
        let most_steps = if ranks > 17 { options.steps.min(3) } else { options.steps };
        let compute = 10u64.pow(rng.random_range(2..6));
        let stragglers = rng.random_range(0..=3);
        let arriving = if rng.random_bool(0.5) { Effort::Nothing } else { Effort::Work };
        let habits = |rng: &mut Xoshiro256PlusPlus, rank: u32| Habits {
            arriving,
            steps: if options.alike { most_steps } else { rng.random_range(0..=most_steps) },
            fills: false,
            compute: if rank < stragglers { compute * 20 } else { compute },
            overlaps: if rng.random_bool(0.3) { 128 } else { 8 },
            holds: if rng.random_bool(0.2) { compute * 4 } else { 100 },
            preempted: if rng.random_bool(0.1) { 64 } else { 2 },
        };
        let tree = options.movers[rng.random_range(0..options.movers.len())] == Mover::Tree;
        let schedule = tree.then(|| Schedule::EVERY[rng.random_range(0..3)]);
        let hosts = match (tree, options.alike) {
            (true, _) => vec![0; ranks as usize],
            (false, true) => (0..ranks).collect(),
            (false, false) => draw_hosts(rng, ranks),
        };
        let depth = match fire.is_synchronous() {
            true if tree => 2,
            true => 1,
            false => [1, 1, 2, 3, 5][rng.random_range(0..5)],
        };
        let (elements, segment) = match schedule {
            // Chunks of programs are cache lines at least.
            Some(Schedule::Scatter) => (rng.random_range(0..50), 64),
            _ => (rng.random_range(0..9), dtype.size() * rng.random_range(1..4)),
        };
        // Early ones are as interesting as late ones.
        let someone = |rng: &mut Xoshiro256PlusPlus| {
            let most = 10u64.pow(rng.random_range(1..4));
            (rng.random_range(0..ranks as usize), rng.random_range(0..most))
        };
        let death = (ranks > 1 && rng.random_bool(options.deaths)).then(|| someone(rng));
        let freeze = (options.weather && rng.random_bool(0.2)).then(|| {
            let (rank, turn) = someone(rng);
            (rank, turn, 10u64.pow(rng.random_range(4..7)))
        });
        let weather = if options.weather { draw_weather(rng, &hosts) } else { Weather::default() };
        let several = hosts.iter().any(|&host| host != 0);
        let path = match path {
            Path::Replicated if several => [Path::Replicated, Path::Gathered, Path::Scattered][rng.random_range(0..3)],
            path => path,
        };
        let mut scenario = Scenario {
            hosts,
            fire,
            grace,
            depth,
            path: if tree { Path::Program } else { path },
            elements,
            segment,
            run: 1,
            pull_after: 10u64.pow(rng.random_range(2..7)),
            schedule,
            program: None,
            death,
            freeze,
            weather,
            reduction,
            ranks: (0..ranks).map(|rank| habits(rng, rank)).collect(),
            fault: options.fault,
        };
        if rng.random_bool(0.3) {
            scenario.run = rng.random_range(1..=2);
            scenario.ranks.iter_mut().for_each(|habits| habits.fills = rng.random_bool(0.5));
        }
        scenario.compile();
        scenario
    }

    /// Leaves only the first ranks.
    pub(super) fn keep_ranks(&mut self, ranks: u32) {
        let kept = ranks as usize;
        self.hosts.truncate(kept);
        self.ranks.truncate(kept);
        let mut known: Vec<u32> = self.hosts.clone();
        known.sort_unstable();
        known.dedup();
        let dense = |host: &u32| known.binary_search(host).unwrap_or(0) as u32;
        self.hosts = self.hosts.iter().map(dense).collect();
        self.fire = self.fire.clamped(ranks);
        self.death = self.death.filter(|&(rank, _)| rank < kept);
        self.freeze = self.freeze.filter(|&(rank, ..)| rank < kept);
    }

    /// Whether it describes a world that the library would accept, and that comes to an end.
    pub(super) fn check(&self) -> Result<(), String> {
        let ranks = self.hosts.len();
        let hosts = self.hosts.iter().max().map_or(0, |most| *most as usize + 1);
        let bad = |what: &str| Err(what.to_owned());
        if !(1..=1_000).contains(&ranks) || self.ranks.len() != ranks {
            return bad("there must be 1 to 1,000 ranks, as many in `hosts` as in `ranks`");
        }
        if (0..hosts as u32).any(|host| !self.hosts.contains(&host)) {
            return bad("`hosts` must be numbered from 0 without a gap");
        }
        self.fire.check(ranks as u32).map_err(|error| error.to_string())?;
        let has_program = self.path == Path::Program;
        if self.path == Path::Offloaded || has_program != self.schedule.is_some() || (has_program && hosts > 1) {
            return bad("`schedule` belongs to the path `tree`, which needs one host; `offloaded` is not simulated");
        }
        let synchronous = matches!(self.path, Path::Replicated | Path::Gathered | Path::Scattered);
        if !has_program && self.path != Path::Segmented && synchronous != self.fire.is_synchronous() {
            return bad("replicated, gathered and scattered are for the rule `all`, eager is for the others");
        }
        let depths = match self.fire.is_synchronous() {
            true if has_program => 2..=2,
            true => 1..=1,
            false => 1..=8,
        };
        let sized = (1..=4_096).contains(&self.segment) && self.segment.is_multiple_of(self.reduction.dtype.size());
        if !depths.contains(&self.depth) || self.elements > 4_096 || !sized || !(1..=64).contains(&self.run) {
            return bad("`depth`, `elements`, `segment` or `run` is out of range");
        }
        let outside = |rank: usize| rank >= ranks;
        if self.death.is_some_and(|(rank, _)| outside(rank)) || self.freeze.is_some_and(|(rank, ..)| outside(rank)) {
            return bad("the rank that dies or freezes is none of this world");
        }
        if self.ranks.iter().any(|habits| habits.compute == 0 || habits.holds == 0) {
            return bad("`compute` and `holds` are 1 ns at least");
        }
        Ok(())
    }

    /// Makes the tables anew, if there are any.
    pub(super) fn compile(&mut self) {
        let Scenario { fire, grace, depth, segment, .. } = *self;
        let (ranks, bytes) = (self.hosts.len() as u32, self.elements * self.reduction.dtype.size());
        self.program = self.schedule.map(|schedule| program(ranks, (fire, grace), schedule, (bytes, segment), depth));
    }

    /// The world of an exhaustive search: one host, no time, two rounds under way.
    pub(super) fn small(world: &World) -> Self {
        let ranks = world.steps.len() as u32;
        let (grace, depth, elements, segment) = (Grace::NONE, 2, 2, 8);
        let path = match world.means {
            Means::Tree(_) => Path::Program,
            Means::Eager if world.fire.is_synchronous() => Path::Replicated,
            Means::Eager => Path::Eager,
            Means::Segments | Means::Pieces => Path::Segmented,
        };
        let schedule = match world.means {
            Means::Tree(schedule) => Some(schedule),
            _ => None,
        };
        let depth = if world.fire.is_synchronous() && schedule.is_none() { 1 } else { depth };
        let program = schedule.map(|schedule| program(ranks, (world.fire, grace), schedule, (16, segment), depth));
        let arriving = if world.peer { Effort::Work } else { Effort::Nothing };
        let fills = world.means == Means::Pieces;
        let habits = |&steps: &u32| Habits { arriving, steps, fills, compute: 1, overlaps: 0, holds: 1, preempted: 0 };
        Scenario {
            hosts: vec![0; ranks as usize],
            fire: world.fire,
            grace,
            depth,
            path,
            elements,
            segment,
            run: 1,
            pull_after: 1,
            schedule,
            program,
            reduction: Reduction { dtype: Dtype::U64, reduce: Reduce::Sum, scale: Scale::Sum, absent: Absent::Carry },
            ranks: world.steps.iter().map(habits).collect(),
            death: None,
            freeze: None,
            weather: Weather::default(),
            fault: world.fault,
        }
    }

    pub(super) fn plan(&self, me: u32) -> Plan {
        Plan {
            ranks: self.hosts.len() as u32,
            me,
            topology: Topology::new(self.hosts.clone()),
            fire: self.fire,
            grace: self.grace,
            absent: self.reduction.absent,
            weighted: self.reduction.scale == Scale::Weights,
            depth: self.depth,
            path: self.path,
            bytes: self.elements * self.reduction.dtype.size(),
            wide_bytes: self.elements * self.reduction.dtype.wide_size(),
            segment: self.segment,
            run: self.run,
            helpers: 2,
            pull_after: self.pull_after,
            program: self.program.clone(),
            fault: self.fault,
        }
    }
}

fn draw_weather(rng: &mut Xoshiro256PlusPlus, hosts: &[u32]) -> Weather {
    let hosts = hosts.iter().max().map_or(1, |most| most + 1);
    let mut weather = Weather::default();
    if hosts == 1 {
        return weather;
    }
    if rng.random_bool(0.3) {
        weather.repeats = rng.random_range(1..=160);
    }
    if rng.random_bool(0.3) {
        weather.not_ready = rng.random_range(1..32);
    }
    if rng.random_bool(0.3) {
        weather.stalls = (0..rng.random_range(1..4))
            .map(|_| {
                let begin = rng.random_range(0..200_000);
                let end = begin + 10u64.pow(rng.random_range(3..6)) * rng.random_range(1..10);
                let kind = match rng.random_bool(0.5) {
                    true => Kind::Clog { from: rng.random_range(0..hosts), to: rng.random_range(0..hosts) },
                    false => Kind::Partition { below: rng.random_range(1..hosts) },
                };
                Stall { kind, begin, end }
            })
            .collect();
    }
    if rng.random_bool(0.1) {
        let most = 10u64.pow(rng.random_range(1..4));
        weather.breaks = Some(rng.random_range(0..most));
    }
    weather
}

fn draw_fire(rng: &mut Xoshiro256PlusPlus, options: &Options, ranks: u32) -> Fire {
    let chosen = options.fires[rng.random_range(0..options.fires.len())];
    let limited = chosen.limit().is_some();
    let fire = match chosen.when() {
        When::Quorum(0) => Fire::quorum(rng.random_range(1..=ranks)),
        When::Quorum(q) => Fire::quorum(q),
        When::Majority(_) => Fire::majority(rng.random()),
        When::Solo => Fire::SOLO,
        When::All => Fire::ALL,
    };
    let varied = options.variations && (limited || !fire.is_synchronous());
    let limit = Duration::from_nanos(10u64.pow(rng.random_range(2..6)) * rng.random_range(1..10));
    let fire = if limited || (varied && rng.random_bool(0.2)) { fire.within(limit) } else { fire };
    if varied && rng.random_bool(0.3) { fire.full_every(rng.random_range(2..7)) } else { fire }
}

fn draw_reduction(rng: &mut Xoshiro256PlusPlus, options: &Options) -> Reduction {
    let dtype = [Dtype::U64, Dtype::U64, Dtype::F32, Dtype::F16][rng.random_range(0..4)];
    let reduce = match rng.random_range(0..6) {
        0 => Reduce::Min,
        1 => Reduce::Max,
        2 => Reduce::Prod,
        _ => Reduce::Sum,
    };
    let divides = dtype.is_float() && reduce == Reduce::Sum;
    let scale = match rng.random_range(0..5) {
        0 if divides => Scale::World,
        1 if divides => Scale::Contributions,
        2 if divides => Scale::Weights,
        _ => Scale::Sum,
    };
    let absent = match rng.random_range(0..5) {
        0 if options.variations => Absent::Drop,
        1 if options.variations && divides => Absent::Decay(rng.random_range(0.25..=1.0)),
        _ => Absent::Carry,
    };
    Reduction { dtype, reduce, scale, absent }
}

/// All on one host, each on its own, or mixed.
fn draw_hosts(rng: &mut Xoshiro256PlusPlus, ranks: u32) -> Vec<u32> {
    match rng.random_range(0..4) {
        0 | 1 => vec![0; ranks as usize],
        2 => (0..ranks).collect(),
        _ => {
            let hosts = rng.random_range(1..=ranks);
            // The first `hosts` ranks make the numbers dense.
            (0..ranks).map(|rank| if rank < hosts { rank } else { rng.random_range(0..hosts) }).collect()
        }
    }
}
