//! Draws a world from a seed.
//!
//! Troubles and habits hide each other if every world has a little of all of them, and a case that needs three at once
//! hardly ever occurs. So each world first draws which of them occur, and how strongly (Groce et al.: Swarm Testing,
//! ISSTA 2012). All paths of the data are equally likely, however many rules have them.

use std::ops::Range;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::replay::Script;
use super::scenario::{Death, Habits, Scenario, Since};
use crate::collective::core::Effort;
use crate::collective::driver::Reduction;
use crate::fabric::sim::{Kind, Stall, Weather};
use crate::fault::Fault;
use crate::group::Group;
use crate::reduce::{Dtype, Reduce};
use crate::rule::{Absent, Fire, Grace, MOST_RADIX, MovementBy, Mover, Scale, Schedule, When};

/// The number of this generator. It changes with every change to the world or the order of events
/// that a seed draws.
pub const GENERATOR: u32 = 11;

/// Bounds within which scenarios are drawn.
#[derive(Clone, Debug)]
pub struct Options {
    /// The world sizes to choose from; each range is equally likely.
    pub ranks: Vec<std::ops::RangeInclusive<u32>>,
    /// The firing rules. A quorum of 0 stands for one drawn between 1 and P, and a deadline for a drawn one.
    pub fires: Vec<Fire>,
    /// Whether some rules get a deadline and full rounds, and some late contributions are dropped or decay.
    pub variations: bool,
    /// How data moves: by a cut (on any hosts), or by a program (on one).
    pub movers: Vec<Mover>,
    /// The maximum number of contributions of a rank.
    pub steps: u32,
    /// Whether all ranks make the same number of contributions, each on a host of its own if the mover allows that.
    pub alike: bool,
    /// The probability that a rank dies, at any moment. With three or more ranks a second one may die, too.
    pub deaths: f64,
    /// Whether the network has troubles: data that lands more than once, receivers that are not ready, links and
    /// partitions that stall for a time, operations that complete with an error; and ranks that freeze for a time.
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
                Fire::AUTO,
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
    /// Returns the same options with a deliberate fault, restricted to worlds that can show it.
    #[must_use]
    pub fn with_fault(self, fault: Fault) -> Self {
        let movers = match fault.mover() {
            Some(mover) => vec![mover],
            None => self.movers,
        };
        let deaths = if fault.needs_a_death() { 1.0 } else { self.deaths };
        Options { fault: Some(fault), movers, deaths, ..self }
    }

    /// Returns the options of a fuzzer, which include everything.
    #[must_use]
    pub fn everything() -> Self {
        Options {
            // Small worlds have the same races, so they are drawn more often.
            ranks: [(6, 1..=4), (5, 2..=6), (5, 2..=8), (3, 1..=17), (1, 33..=40)]
                .into_iter()
                .flat_map(|(times, ranks)| vec![ranks; times])
                .collect(),
            movers: vec![Mover::Cut, Mover::Cut, Mover::Tree],
            deaths: 0.1,
            weather: true,
            ..Options::default()
        }
    }
}

impl Scenario {
    /// Draws the world of a seed.
    pub(super) fn draw(seed: u64, options: &Options) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let range = options.ranks[rng.random_range(0..options.ranks.len())].clone();
        let ranks = rng.random_range(range);
        let tree = options.movers[rng.random_range(0..options.movers.len())] == Mover::Tree;
        let fire = draw_fire(rng, options, ranks, tree);
        let (movement, relays) = draw_movement(rng, fire, ranks, tree);
        let hosts = match movement {
            MovementBy::Program if relays && !options.alike => draw_relaying_hosts(rng, ranks),
            MovementBy::Program if relays => (0..ranks).collect(),
            MovementBy::Program => vec![0; ranks as usize],
            _ if options.alike => (0..ranks).collect(),
            _ => draw_hosts(rng, ranks, movement.has_reducers()),
        };
        let grace = match rng.random_range(0..4) {
            0 => Grace::NONE,
            1 => Grace::Auto,
            _ => Grace::Fixed(Duration::from_nanos(rng.random_range(1..60_000))),
        };
        let depth = match fire.is_synchronous() {
            true if tree => 2,
            true => 1,
            false => [1, 1, 2, 3, 5][rng.random_range(0..5)],
        };
        let memory = (movement == MovementBy::Segments && rng.random_bool(0.4)).then(|| draw_group(rng, ranks));
        let reduction = match memory {
            None => draw_reduction(rng, options),
            Some(_) => Reduction {
                dtype: [Dtype::F32, Dtype::F16][rng.random_range(0..2)],
                reduce: Reduce::Sum,
                scale: Scale::Sum,
                absent: if rng.random_bool(0.3) { Absent::Hold } else { draw_absent(rng, options, true) },
            },
        };
        let schedule = match movement {
            MovementBy::Program if relays => rng.random_bool(0.5).then_some(Schedule::Halving),
            // Where ranks share memory, halving is doubling.
            MovementBy::Program => {
                Some([Schedule::Doubling, Schedule::Scatter, Schedule::Gather][rng.random_range(0..3)])
            }
            _ => None,
        };
        let radix = if relays { [1, 2, 2, 3, 4, 8][rng.random_range(0..6)] } else { 2 };
        let members = hosts.iter().max().map_or(1, |most| most + 1);
        let radix = if radix == 1 && members > MOST_RADIX { 2 } else { radix };
        let (elements, segment) = match schedule {
            // A chunk of a program is at least a cache line.
            Some(Schedule::Scatter | Schedule::Halving) => (rng.random_range(0..50), 64),
            _ => {
                // Of several reducers only the first has a share of a few elements.
                let most = if movement == MovementBy::Reducers && rng.random_bool(0.5) { 64 } else { 9 };
                (rng.random_range(0..most), reduction.dtype.size() * rng.random_range(1..4))
            }
        };
        let fills = rng.random_bool(0.3);
        let habits = draw_habits(rng, options, &hosts, fills);
        let deadly = ranks > 1 && rng.random_bool(options.deaths);
        let deaths = if deadly { draw_deaths(rng, ranks) } else { Vec::new() };
        let freeze = (options.weather && rng.random_bool(0.2)).then(|| {
            let (rank, turn) = draw_moment(rng, ranks, 1..4);
            (rank, turn, 10u64.pow(rng.random_range(4..7)))
        });
        let mut weather = if options.weather { draw_weather(rng, &hosts) } else { Weather::default() };
        if relays && options.weather && rng.random_bool(0.6) {
            // What a host sent before it left does harm only if a link delays it for a few rounds.
            let (from, to) = (rng.random_range(0..members), rng.random_range(0..members));
            let begin = rng.random_range(0..60_000);
            let end = begin + rng.random_range(5_000..200_000);
            weather.stalls.push(Stall { kind: Kind::Clog { from, to }, begin, end });
        }
        let mut pull_after = 10u64.pow(rng.random_range(2..7));
        if movement == MovementBy::Reducers && options.weather && rng.random_bool(0.8) {
            // A repeated share does harm only if it takes longer than a round, so ranks make fallback reads soon.
            (weather.repeats, weather.lag) = (rng.random_range(64..=255), rng.random_range(10_000..100_000));
            pull_after = 100;
        }
        let base = draw_base(rng);
        let own_models = memory.is_some_and(|group| group != Group::World) && rng.random_bool(0.5);
        let mut scenario = Scenario {
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
            run: if fills { rng.random_range(1..=2) } else { 1 },
            pull_after,
            schedule,
            radix,
            program: None,
            deaths,
            freeze,
            weather,
            reduction,
            ranks: habits,
            script: Script::Free,
            fault: options.fault,
        };
        scenario.compile();
        scenario
    }
}

/// Draws the round from whose checkpoint a world resumes: mostly none, else any.
fn draw_base(rng: &mut Xoshiro256PlusPlus) -> u64 {
    if rng.random_bool(0.6) {
        return 0;
    }
    let most = [8, 1000, 1 << 62][rng.random_range(0..3)];
    rng.random_range(1..=most)
}

/// Draws a rank and a number of its turns, below a power of ten with an exponent from a range: early moments are as
/// likely as late ones.
fn draw_moment(rng: &mut Xoshiro256PlusPlus, ranks: u32, exponents: Range<u32>) -> (usize, u64) {
    let most = 10u64.pow(rng.random_range(exponents));
    (rng.random_range(0..ranks as usize), rng.random_range(0..most))
}

/// Draws a death, and often a second one if a rank is left to see both: at a time of its own, or while the survivors
/// handle the first.
fn draw_deaths(rng: &mut Xoshiro256PlusPlus, ranks: u32) -> Vec<Death> {
    // After a last arrival, or after news of a death, few turns are left.
    let exponents = |since: Since| if since == Since::Start { 1..4 } else { 0..3 };
    let since = if rng.random_bool(0.25) { Since::Leaving } else { Since::Start };
    let (first, turns) = draw_moment(rng, ranks, exponents(since));
    let mut deaths = vec![Death { rank: first, turns, since }];
    if ranks > 2 && rng.random_bool(0.4) {
        let since = [Since::Start, Since::Leaving, Since::News, Since::News][rng.random_range(0..4)];
        let (other, turns) = draw_moment(rng, ranks - 1, exponents(since));
        deaths.push(Death { rank: (first + 1 + other) % ranks as usize, turns, since });
    }
    deaths
}

/// Draws which habits the ranks of this world have, and how strongly each rank has them.
fn draw_habits(rng: &mut Xoshiro256PlusPlus, options: &Options, hosts: &[u32], fills: bool) -> Vec<Habits> {
    let compute = 10u64.pow(rng.random_range(2..6));
    let stragglers = rng.random_range(0..=3);
    let arriving = if rng.random_bool(0.5) { Effort::Nothing } else { Effort::Work };
    let (overlap, hold, preempt) = (rng.random_bool(0.5), rng.random_bool(0.4), rng.random_bool(0.4));
    let (test, impatient, threads) = (rng.random_bool(0.25), rng.random_bool(0.25), rng.random_bool(0.25));
    let steps = draw_steps(rng, options, hosts);
    let habits = |(rank, steps): (usize, u32)| Habits {
        arriving,
        steps,
        fills: fills && rng.random_bool(0.5),
        compute: if rank < stragglers { compute * 20 } else { compute },
        overlaps: if overlap { [8, 128, 255][rng.random_range(0..3)] } else { 0 },
        holds: if hold && rng.random_bool(0.5) { compute * 4 } else { 100 },
        preempted: if preempt { [2, 64, 512][rng.random_range(0..3)] } else { 0 },
        tests: if test { [0, 16, 128][rng.random_range(0..3)] } else { 0 },
        deadline: if impatient && rng.random_bool(0.5) { compute * [1, 4][rng.random_range(0..2)] } else { 0 },
        thread: threads && rng.random_bool(0.6),
        hasty: false,
        unbroken: false,
    };
    steps.into_iter().enumerate().map(habits).collect()
}

/// Draws the contributions that each rank makes before it leaves. The order of leaving decides which ranks are active,
/// drawn or reducers, and which hosts take part.
fn draw_steps(rng: &mut Xoshiro256PlusPlus, options: &Options, hosts: &[u32]) -> Vec<u32> {
    let ranks = hosts.len() as u32;
    // Large worlds cost the most per schedule, so they get fewer steps.
    let most = if ranks > 17 { options.steps.min(3) } else { options.steps };
    if options.alike {
        return vec![most; ranks as usize];
    }
    let (early, some) = (rng.random_range(0..=most), rng.random_range(0..ranks));
    match rng.random_range(0..6) {
        // All at once.
        0 => vec![early.max(1); ranks as usize],
        // One after the other.
        1 => (0..ranks).map(|rank| (rank + some) % (most + 1)).collect(),
        // One rank, or one host, before all others.
        2 => (0..ranks).map(|rank| if rank == some { early } else { most }).collect(),
        3 => hosts.iter().map(|&host| if host == hosts[some as usize] { early } else { most }).collect(),
        _ => (0..ranks).map(|_| rng.random_range(0..=most)).collect(),
    }
}

fn draw_weather(rng: &mut Xoshiro256PlusPlus, hosts: &[u32]) -> Weather {
    let hosts = hosts.iter().max().map_or(1, |most| most + 1);
    let mut weather = Weather::default();
    if hosts == 1 {
        return weather;
    }
    weather.slow = [0, 8, 8, 32, 96][rng.random_range(0..5)];
    if rng.random_bool(0.25) {
        return weather;
    }
    if rng.random_bool(0.5) {
        weather.repeats = rng.random_range(1..=255);
        weather.lag = 10u64.pow(rng.random_range(2..6)) * rng.random_range(1..10);
    }
    if rng.random_bool(0.5) {
        weather.not_ready = rng.random_range(1..64);
    }
    if rng.random_bool(0.4) {
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

/// Draws a rule, synchronous or not, in proportion to the number of paths for either.
fn draw_fire(rng: &mut Xoshiro256PlusPlus, options: &Options, ranks: u32, tree: bool) -> Fire {
    let synchronous = rng.random_bool(if tree { 0.25 } else { 0.6 });
    let fits = |fire: &&Fire| fire.is_synchronous() == synchronous;
    let fitting: Vec<Fire> = options.fires.iter().filter(fits).copied().collect();
    let fires = if fitting.is_empty() { &options.fires } else { &fitting };
    let chosen = fires[rng.random_range(0..fires.len())];
    let limited = chosen.limit().is_some();
    let fire = match chosen.when() {
        When::Quorum(0) => Fire::quorum(rng.random_range(1..=ranks)),
        When::Quorum(q) => Fire::quorum(q),
        When::Majority(_) => Fire::majority(rng.random()),
        When::Solo => Fire::SOLO,
        When::Auto(percent) => Fire::auto(percent),
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
    Reduction { dtype, reduce, scale, absent: draw_absent(rng, options, divides) }
}

fn draw_absent(rng: &mut Xoshiro256PlusPlus, options: &Options, divides: bool) -> Absent {
    match rng.random_range(0..5) {
        0 if options.variations => Absent::Drop,
        1 if options.variations && divides => Absent::Decay(rng.random_range(0.25..=1.0)),
        _ => Absent::Carry,
    }
}

/// Draws groups, preferring small ones: a small world has only one large group.
fn draw_group(rng: &mut Xoshiro256PlusPlus, ranks: u32) -> Group {
    match rng.random_range(0..4) {
        0 => Group::World,
        1 => Group::Butterfly(2),
        2 => Group::Butterfly(rng.random_range(2..=4)),
        _ => Group::Butterfly(rng.random_range(2..=ranks.max(2))),
    }
}

/// Draws how data moves, and whether ranks relay it. All ways of the rule are equally likely.
fn draw_movement(rng: &mut Xoshiro256PlusPlus, fire: Fire, ranks: u32, tree: bool) -> (MovementBy, bool) {
    use MovementBy::{Everyone, Initiator, Program, Reducer, Reducers, Segments};
    let ways: &[(MovementBy, bool)] = match fire.is_synchronous() {
        _ if tree && ranks > 1 => &[(Program, false), (Program, true)],
        _ if tree => &[(Program, false)],
        true if ranks > 1 => &[(Segments, false), (Everyone, false), (Reducer, false), (Reducers, false)],
        true => &[(Segments, false), (Everyone, false)],
        false => &[(Segments, false), (Initiator, false)],
    };
    ways[rng.random_range(0..ways.len())]
}

/// Draws the hosts of ranks that relay, at least two: one for each rank, neighbours on one, or mixed.
fn draw_relaying_hosts(rng: &mut Xoshiro256PlusPlus, ranks: u32) -> Vec<u32> {
    match rng.random_range(0..4) {
        0 => (0..ranks).collect(),
        1 => draw_hosts(rng, ranks, true),
        _ => {
            let hosts = rng.random_range(2..=ranks.min(6));
            let mut firsts: Vec<u32> = (1..ranks).collect();
            while firsts.len() as u32 >= hosts {
                firsts.swap_remove(rng.random_range(0..firsts.len()));
            }
            (0..ranks).map(|rank| firsts.iter().filter(|&&first| first <= rank).count() as u32).collect()
        }
    }
}

/// Draws the hosts of ranks: one host, a host for each rank, or mixed; more than one host if `several`.
fn draw_hosts(rng: &mut Xoshiro256PlusPlus, ranks: u32, several: bool) -> Vec<u32> {
    match rng.random_range(0..4) {
        0 | 1 if !several => vec![0; ranks as usize],
        1 | 2 => (0..ranks).collect(),
        _ => {
            let hosts = rng.random_range(if several { 2 } else { 1 }..=ranks);
            // The first `hosts` ranks make the numbers dense.
            (0..ranks).map(|rank| if rank < hosts { rank } else { rng.random_range(0..hosts) }).collect()
        }
    }
}
