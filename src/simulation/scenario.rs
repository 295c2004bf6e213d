//! What is simulated: a world and what its ranks do.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use super::explore::{Means, World};
use super::recording::as_text;
use super::replay::Script;
use crate::collective::core::{Effort, Plan, Terms, program};
use crate::collective::driver::Reduction;
use crate::fabric::sim::Weather;
use crate::fault::Fault;
use crate::group::Group;
use crate::reduce::{Dtype, Reduce};
use crate::rule::{Absent, AgreementBy, Fire, Grace, MOST_RADIX, MovementBy, Scale, Schedule};
use crate::topology::Topology;
use crate::trigger::Layout;

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
    /// The round from whose checkpoint the ranks resume.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) base: u64,
    /// Whether each rank begins with a model of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) own_models: bool,
    #[serde(rename = "path", with = "as_text")]
    pub(super) movement: MovementBy,
    /// Whether ranks have registers, and which of them average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Group>,
    pub(super) elements: usize,
    pub(super) segment: usize,
    /// The number of segments of a piece.
    pub(super) run: u64,
    /// The nanoseconds until a rank that waits for reducers makes a fallback read.
    pub(super) pull_after: u64,
    /// How a program reduces.
    pub(super) schedule: Option<Schedule>,
    /// How many parts meet at a level, where ranks relay; 1 is a star.
    #[serde(default = "pairs", skip_serializing_if = "is_pairs")]
    pub(super) radix: u32,
    #[serde(skip)]
    pub(super) program: Option<Arc<Layout>>,
    /// The ranks that die, and when.
    #[serde(default, alias = "death", deserialize_with = "Death::list", skip_serializing_if = "Vec::is_empty")]
    pub(super) deaths: Vec<Death>,
    /// The rank that freezes, at which of its turns, and for how long.
    pub(super) freeze: Option<(usize, u64, u64)>,
    /// Whether its rounds are recorded, or replayed.
    #[serde(skip)]
    pub(super) script: Script,
    #[serde(skip)]
    pub(super) fault: Option<Fault>,
    #[serde(with = "ReductionAsText")]
    pub(super) reduction: Reduction,
    #[serde(default)]
    pub(super) weather: Weather,
    pub(super) ranks: Vec<Habits>,
}

/// The form of a [`Reduction`] in a file.
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
            base,
            own_models,
            movement,
            memory,
            elements,
            segment,
            schedule,
            radix,
            reduction,
            ranks,
            deaths,
            freeze,
            weather,
            fault,
            ..
        } = self;
        write!(
            f,
            "{} ranks on hosts {hosts:?}, {fire} with grace {grace}, depth {depth}, from round {base}, {} {schedule:?} of radix {radix}, memory {memory:?}, own models {own_models}, {elements} elements, \
             segments of {segment}, {reduction:?}, deaths {deaths:?}, freeze {freeze:?}, {weather:?}, fault {fault:?}, {ranks:?}",
            hosts.len(),
            movement,
        )
    }
}

fn pairs() -> u32 {
    2
}

fn is_pairs(radix: &u32) -> bool {
    *radix == 2
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A rank that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Death {
    pub(super) rank: usize,
    /// It dies after this number of its turns.
    pub(super) turns: u64,
    /// The moment from which the turns are counted.
    pub(super) since: Since,
}

/// The moment from which turns are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Since {
    /// From the beginning.
    Start,
    /// From its last arrival: it dies before it has left.
    Leaving,
    /// From the time when it learned that another rank had died.
    News,
}

impl Death {
    /// Reads a list of deaths; a single one may also be a pair of rank and turns.
    fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Death>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Deaths {
            Pair(usize, u64),
            List(Vec<Death>),
        }
        Ok(match Deaths::deserialize(from)? {
            Deaths::Pair(rank, turns) => vec![Death { rank, turns, since: Since::Start }],
            Deaths::List(deaths) => deaths,
        })
    }
}

/// How one rank behaves.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Habits {
    /// The effort of its polls in `arrive`.
    pub(super) arriving: Effort,
    /// The number of contributions before it finishes.
    pub(super) steps: u32,
    /// Whether it fills contributions after handing them in, where that is possible.
    pub(super) fills: bool,
    /// The longest computation between arrivals, in ns.
    pub(super) compute: u64,
    /// How often it computes between arriving and waiting, of 256.
    pub(super) overlaps: u32,
    /// The longest time for which it keeps outcomes, in ns.
    pub(super) holds: u64,
    /// How often it is descheduled between two operations, of 4096.
    pub(super) preempted: u32,
    /// How often it calls `try_wait` in place of `wait`, of 256.
    #[serde(default)]
    pub(super) tests: u32,
    /// The longest deadline of a wait, in ns. If it is 0, waits have none; else a quarter of them have one.
    #[serde(default)]
    pub(super) deadline: u64,
    /// Whether a helper thread works for it while it computes.
    #[serde(default)]
    pub(super) thread: bool,
    /// Whether it waits at once when it has nothing left to do in `arrive`, and goes to sleep in the turn in which it
    /// finds nothing to do. An explorer then has fewer orders.
    #[serde(skip)]
    pub(super) hasty: bool,
    /// Whether nothing happens between two of its steps: a turn lasts until it sleeps or goes away, and takes no time.
    /// Waking up takes it some microseconds, like a thread.
    #[serde(skip)]
    pub(super) unbroken: bool,
}

impl Scenario {
    /// Keeps only the first ranks.
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
        self.deaths.retain(|death| death.rank < kept);
        self.freeze = self.freeze.filter(|&(rank, ..)| rank < kept);
    }

    /// Checks that the library would accept this world, and that it comes to an end.
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
        let (has_program, relays) = (self.has_program(), self.relays());
        let fits = match self.schedule {
            Some(Schedule::Halving) => has_program || relays,
            Some(_) => has_program,
            None => !has_program,
        };
        if !fits {
            return bad(
                "`schedule` belongs to the path `tree`: any where all ranks are on one host, elsewhere `halving` or none",
            );
        }
        if !(1..=MOST_RADIX).contains(&self.radix) || (self.radix == 1 && hosts as u32 > MOST_RADIX) {
            return bad("`radix` must be 1 to 32, and a star has at most 32 hosts");
        }
        let synchronous = matches!(self.movement, MovementBy::Everyone | MovementBy::Reducer | MovementBy::Reducers);
        let any = matches!(self.movement, MovementBy::Program | MovementBy::Segments);
        if !any && synchronous != self.fire.is_synchronous() {
            return bad("replicated, gathered and scattered are for the rule `all`, eager is for the others");
        }
        if self.reduction.reduce == Reduce::Mean {
            return bad("`mean` is for synchronous collectives; use `sum` and a scale");
        }
        if let Some(group) = self.memory {
            let Reduction { dtype, reduce, scale, .. } = self.reduction;
            let averages = dtype.is_float() && reduce == Reduce::Sum && scale == Scale::Sum;
            if self.movement != MovementBy::Segments || !averages || group.schedule().is_err() {
                return bad("`memory` needs the path `segmented`, the sum of floats, and groups of 2 or more");
            }
        } else if self.reduction.absent == Absent::Hold || self.own_models {
            return bad("`hold` and `own_models` need `memory`");
        }
        if self.base > 1 << 62 || (self.own_models && self.memory == Some(Group::World)) {
            return bad("`base` is at most 2^62, and in the group `world` ranks begin with the same model");
        }
        let depths = match self.fire.is_synchronous() {
            true if has_program || relays => 2..=2,
            true => 1..=1,
            false => 1..=8,
        };
        let sized = (1..=4_096).contains(&self.segment) && self.segment.is_multiple_of(self.reduction.dtype.size());
        if !depths.contains(&self.depth) || self.elements > 4_096 || !sized || !(1..=64).contains(&self.run) {
            return bad("`depth`, `elements`, `segment` or `run` is out of range");
        }
        let outside = |rank: usize| rank >= ranks;
        if self.deaths.iter().any(|death| outside(death.rank)) || self.freeze.is_some_and(|(rank, ..)| outside(rank)) {
            return bad("the rank that dies or freezes is not in this world");
        }
        if self.ranks.iter().any(|habits| habits.compute == 0 || habits.holds == 0) {
            return bad("`compute` and `holds` must be 1 ns or more");
        }
        Ok(())
    }

    /// Recompiles the tables, if there are any.
    pub(super) fn compile(&mut self) {
        let Scenario { fire, grace, depth, segment, .. } = *self;
        let (ranks, bytes) = (self.hosts.len() as u32, self.elements * self.reduction.dtype.size());
        // A world of relays that has shrunk to one rank has a program, too.
        let schedule = self.has_program().then(|| self.schedule.unwrap_or(Schedule::Doubling));
        self.program = schedule.map(|schedule| program(ranks, (fire, grace), schedule, (bytes, segment), depth));
    }

    /// Returns whether a program in shared memory agrees and moves.
    fn has_program(&self) -> bool {
        self.movement == MovementBy::Program && !self.relays()
    }

    /// Returns whether each host runs its own table.
    pub(super) fn relays(&self) -> bool {
        self.movement == MovementBy::Program && self.hosts.iter().any(|&host| host != 0)
    }

    /// Creates the world of an exhaustive search: no time, two rounds in progress.
    pub(super) fn small(world: &World) -> Self {
        let ranks = world.steps.len() as u32;
        let (grace, depth, elements, segment) = (Grace::NONE, 2, 2, 8);
        let movement = match world.means {
            Means::Tree(_) | Means::Hosts(_) => MovementBy::Program,
            Means::Eager if world.fire.is_synchronous() => MovementBy::Everyone,
            Means::Eager => MovementBy::Initiator,
            Means::Segments | Means::Pieces | Means::Registers(_) => MovementBy::Segments,
        };
        let schedule = match world.means {
            Means::Tree(schedule) => Some(schedule),
            _ => None,
        };
        let (memory, dtype) = match world.means {
            // Two elements of 32 bits share a segment, and so do two of 64.
            Means::Registers(group) => (Some(group), Dtype::F32),
            _ => (None, Dtype::U64),
        };
        let per_host = if let Means::Hosts(per_host) = world.means { per_host } else { ranks };
        let by_rounds = movement != MovementBy::Program;
        let depth = if world.fire.is_synchronous() && by_rounds { 1 } else { depth };
        let program = schedule.map(|schedule| program(ranks, (world.fire, grace), schedule, (16, segment), depth));
        let arriving = if world.peer { Effort::Work } else { Effort::Nothing };
        let fills = world.means == Means::Pieces;
        let habits = |(rank, &steps): (u32, &u32)| Habits {
            arriving,
            steps,
            fills,
            compute: 1,
            overlaps: 0,
            holds: 1,
            preempted: 0,
            tests: 0,
            deadline: 0,
            thread: world.thread == Some(rank),
            hasty: true,
            unbroken: false,
        };
        Scenario {
            hosts: (0..ranks).map(|rank| rank / per_host).collect(),
            fire: world.fire,
            grace,
            depth,
            base: 0,
            own_models: false,
            movement,
            memory,
            elements,
            segment,
            run: 1,
            pull_after: 1,
            schedule,
            radix: 2,
            program,
            reduction: Reduction { dtype, reduce: Reduce::Sum, scale: Scale::Sum, absent: Absent::Carry },
            ranks: (0..).zip(&world.steps).map(habits).collect(),
            deaths: Vec::new(),
            freeze: None,
            weather: Weather::default(),
            script: Script::Free,
            fault: world.fault,
        }
    }

    /// Returns what its ranks agree on, as rank 0 sees it.
    pub(super) fn plan(&self) -> Plan {
        let topology = Topology::new(self.hosts.clone());
        let agreement = match self.script.gives() {
            true => AgreementBy::Given,
            false => AgreementBy::usual(self.fire, self.movement, &topology),
        };
        Plan::new(Terms {
            ranks: self.hosts.len() as u32,
            me: 0,
            topology,
            agreement,
            movement: self.movement,
            fire: self.fire,
            grace: self.grace,
            absent: self.reduction.absent,
            weighted: self.reduction.scale == Scale::Weights,
            depth: self.depth,
            base: self.base,
            memory: self.memory,
            bytes: self.elements * self.reduction.dtype.size(),
            wide_bytes: self.elements * self.reduction.dtype.wide_size(),
            segment: self.segment,
            run: self.run,
            helpers: 2,
            pull_after: self.pull_after,
            schedule: self.schedule.unwrap_or(Schedule::Doubling),
            radix: self.radix,
            program: self.program.clone(),
            fault: self.fault,
        })
    }
}
