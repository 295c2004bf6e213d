//! What is simulated, drawn from a seed.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::explore::{Means, World};
use crate::collective::choice::Mover;
use crate::collective::core::{Effort, Path, Plan, Topology, program};
use crate::collective::driver::Reduction;
use crate::collective::rule::{Fire, Grace, Scale};
use crate::fault::Fault;
use crate::reduce::Dtype;
use crate::trigger::{Layout, Schedule};

/// Bounds within which scenarios are drawn.
#[derive(Clone, Debug)]
pub struct Options {
    /// World sizes to choose from, each range equally likely.
    pub ranks: Vec<std::ops::RangeInclusive<u32>>,
    /// Firing rules; `Quorum(0)` stands for a quorum drawn between 1 and P.
    pub fires: Vec<Fire>,
    /// How data moves: by a cut (on any hosts), or by a program (on one).
    pub movers: Vec<Mover>,
    /// Most contributions of a rank.
    pub steps: u32,
    /// Whether all ranks make the same number of contributions, each on a host of its own where the
    /// mover allows that.
    pub alike: bool,
    /// Whether a rank may die, anywhere.
    pub deaths: bool,
    /// A deliberate fault in the core.
    pub fault: Option<Fault>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ranks: vec![1..=17],
            fires: vec![Fire::All, Fire::Solo, Fire::Quorum(0)],
            movers: vec![Mover::Cut],
            steps: 6,
            alike: false,
            deaths: false,
            fault: None,
        }
    }
}

/// One world and what its ranks do.
pub(super) struct Scenario {
    pub(super) hosts: Vec<u32>,
    pub(super) fire: Fire,
    pub(super) grace: Grace,
    pub(super) depth: u64,
    pub(super) path: Path,
    pub(super) elements: usize,
    pub(super) segment: usize,
    /// On the path that has a program.
    pub(super) schedule: Option<Schedule>,
    program: Option<Arc<Layout>>,
    pub(super) reduction: Reduction,
    pub(super) ranks: Vec<Habits>,
    /// Who dies, and at which of its turns.
    pub(super) death: Option<(usize, u64)>,
    pub(super) fault: Option<Fault>,
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
            fault,
            ..
        } = self;
        write!(
            f,
            "{} ranks on hosts {hosts:?}, {fire} with grace {grace}, depth {depth}, {} {schedule:?}, {elements} elements, \
             segments of {segment}, {reduction:?}, death {death:?}, {fault:?}, {ranks:?}",
            hosts.len(),
            path.name(),
        )
    }
}

/// How one rank behaves.
#[derive(Clone, Debug)]
pub(super) struct Habits {
    /// What it does for others in `arrive`.
    pub(super) arriving: Effort,
    /// Contributions before it finishes.
    pub(super) steps: u32,
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
    pub(super) fn draw(rng: &mut Xoshiro256PlusPlus, options: &Options) -> Self {
        let range = options.ranks[rng.random_range(0..options.ranks.len())].clone();
        let ranks = rng.random_range(range);
        let fire = match options.fires[rng.random_range(0..options.fires.len())] {
            Fire::Quorum(0) => Fire::Quorum(rng.random_range(1..=ranks)),
            fire => fire,
        };
        let grace = match rng.random_range(0..4) {
            0 => Grace::NONE,
            1 => Grace::Auto,
            _ => Grace::Fixed(Duration::from_nanos(rng.random_range(1..60_000))),
        };
        let pushed = rng.random_bool(0.5);
        let path = match (pushed, fire) {
            (false, _) => Path::Segmented,
            (true, Fire::All) => Path::Replicated,
            (true, _) => Path::Eager,
        };
        let dtype = if rng.random_bool(0.7) { Dtype::U64 } else { Dtype::F32 };
        let scale = match rng.random_range(0..4) {
            0 if dtype.is_float() => Scale::World,
            1 if dtype.is_float() => Scale::Contributions,
            _ => Scale::Sum,
        };
        // Large worlds cost the most per schedule: they get fewer steps.
        let most_steps = if ranks > 17 { options.steps.min(3) } else { options.steps };
        let compute = 10u64.pow(rng.random_range(2..6));
        let stragglers = rng.random_range(0..=3);
        let arriving = if rng.random_bool(0.5) { Effort::Nothing } else { Effort::Work };
        let habits = |rng: &mut Xoshiro256PlusPlus, rank: u32| Habits {
            arriving,
            steps: if options.alike { most_steps } else { rng.random_range(0..=most_steps) },
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
        let depth = match fire {
            Fire::All if tree => 2,
            Fire::All => 1,
            _ => rng.random_range(1..=5),
        };
        let (elements, segment) = match schedule {
            // Chunks of programs are cache lines at least.
            Some(Schedule::Scatter) => (rng.random_range(0..50), 64),
            _ => (rng.random_range(0..9), dtype.size() * rng.random_range(1..4)),
        };
        let bytes = elements * dtype.size();
        let program = schedule.map(|schedule| program(ranks, (fire, grace), schedule, (bytes, segment), depth));
        // Early ones are as interesting as late ones.
        let death = (options.deaths && ranks > 1).then(|| {
            let most = 10u64.pow(rng.random_range(1..4));
            (rng.random_range(0..ranks as usize), rng.random_range(0..most))
        });
        Scenario {
            hosts,
            fire,
            grace,
            depth,
            path: if tree { Path::Program } else { path },
            elements,
            segment,
            schedule,
            program,
            death,
            reduction: Reduction { dtype, scale },
            ranks: (0..ranks).map(|rank| habits(rng, rank)).collect(),
            fault: options.fault,
        }
    }

    /// The world of an exhaustive search: one host, no time, two rounds under way.
    pub(super) fn small(world: &World) -> Self {
        let ranks = world.steps.len() as u32;
        let (grace, depth, elements, segment) = (Grace::NONE, 2, 2, 8);
        let path = match world.means {
            Means::Tree(_) => Path::Program,
            Means::Eager if world.fire == Fire::All => Path::Replicated,
            Means::Eager => Path::Eager,
            Means::Segments => Path::Segmented,
        };
        let schedule = match world.means {
            Means::Tree(schedule) => Some(schedule),
            _ => None,
        };
        let depth = if world.fire == Fire::All && schedule.is_none() { 1 } else { depth };
        let program = schedule.map(|schedule| program(ranks, (world.fire, grace), schedule, (16, segment), depth));
        let arriving = if world.peer { Effort::Work } else { Effort::Nothing };
        let habits = |&steps: &u32| Habits { arriving, steps, compute: 1, overlaps: 0, holds: 1, preempted: 0 };
        Scenario {
            hosts: vec![0; ranks as usize],
            fire: world.fire,
            grace,
            depth,
            path,
            elements,
            segment,
            schedule,
            program,
            reduction: Reduction { dtype: Dtype::U64, scale: Scale::Sum },
            ranks: world.steps.iter().map(habits).collect(),
            death: None,
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
            depth: self.depth,
            path: self.path,
            bytes: self.elements * self.reduction.dtype.size(),
            segment: self.segment,
            helpers: 2,
            program: self.program.clone(),
            fault: self.fault,
        }
    }
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
