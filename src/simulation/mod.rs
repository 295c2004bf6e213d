//! Whole worlds on a simulated network, from a seed, against an oracle that knows everything.
//!
//! The machines and drivers are those of production; ranks compute, arrive, overlap, wait, hold on
//! to outcomes, are descheduled between any two operations, and finish, at random. A parked rank is
//! not looked at until it is woken, an operation of it completes or a timer of it expires, so a
//! wake-up that is lost is found as well. Every landing is judged by the oracle.

mod actor;
pub mod explore;
mod oracle;
mod scenario;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

pub use crate::collective::core::Stats;
pub use scenario::Options;

use crate::collective::driver::{Driver, Regions};
use crate::fabric::sim::SimFabric;
use crate::fabric::{Endpoint, Fabric};
use actor::{Actor, Next};
use oracle::Oracle;
use scenario::Scenario;

/// How often each hard case was met. A run that met one of them never has shown little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Contributions made.
    pub contributions: u64,
    /// Rounds seen.
    pub rounds: u64,
    /// Contributions that found their round open when they came and closed when they asked.
    pub late_while_closing: u64,
    /// Rounds with a carried and a fresh contribution of one rank.
    pub carried_with_fresh: u64,
    /// Contributions that were carried over two rounds or more.
    pub jumps: u64,
    /// Arrivals that waited for room in the ring.
    pub full_ring: u64,
    /// Last arrivals that came late.
    pub finish_races: u64,
    /// Graces that ended by time.
    pub graces_expired: u64,
    /// Rounds closed for an initiator that had gone to compute.
    pub closed_for_others: u64,
    /// Segments moved.
    pub segments: u64,
    /// Operations of programs run.
    pub operations: u64,
    /// Messages that said that a round had fired.
    pub activations: u64,
    /// Ranks that died.
    pub deaths: u64,
    /// Operations of a dead rank that another one did again.
    pub inherited: u64,
}

impl Coverage {
    /// Name and count of each case.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, u64); 14] {
        [
            ("contributions", self.contributions),
            ("rounds", self.rounds),
            ("late_while_closing", self.late_while_closing),
            ("carried_with_fresh", self.carried_with_fresh),
            ("jumps", self.jumps),
            ("full_ring", self.full_ring),
            ("finish_races", self.finish_races),
            ("graces_expired", self.graces_expired),
            ("closed_for_others", self.closed_for_others),
            ("segments", self.segments),
            ("operations", self.operations),
            ("activations", self.activations),
            ("deaths", self.deaths),
            ("inherited", self.inherited),
        ]
    }

    /// Adds what another run met.
    pub fn add(&mut self, other: &Coverage) {
        self.contributions += other.contributions;
        self.rounds += other.rounds;
        self.late_while_closing += other.late_while_closing;
        self.carried_with_fresh += other.carried_with_fresh;
        self.jumps += other.jumps;
        self.full_ring += other.full_ring;
        self.finish_races += other.finish_races;
        self.graces_expired += other.graces_expired;
        self.closed_for_others += other.closed_for_others;
        self.segments += other.segments;
        self.operations += other.operations;
        self.activations += other.activations;
        self.deaths += other.deaths;
        self.inherited += other.inherited;
    }

    fn count(&mut self, stats: Stats) {
        self.late_while_closing += stats.late_while_closing;
        self.jumps += stats.jumps;
        self.full_ring += stats.full_ring;
        self.finish_races += stats.finish_retries;
        self.graces_expired += stats.graces_expired;
        self.closed_for_others += stats.closed_for_others;
        self.segments += stats.segments;
        self.operations += stats.operations;
        self.activations += stats.activations;
        self.inherited += stats.inherited;
    }
}

/// A schedule in which a guarantee did not hold.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}: {what}\n  in {scenario}")]
pub struct Failure {
    /// Replays it.
    pub seed: u64,
    /// Which guarantee, and how.
    pub what: String,
    /// The world it happened in.
    pub scenario: String,
}

/// Runs the schedule that belongs to a seed.
///
/// # Errors
/// The guarantee that was violated, a panic of the core, or a world that never came to its end.
pub fn run(seed: u64, options: &Options) -> Result<Coverage, Failure> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let scenario = Scenario::draw(&mut rng, options);
    let failed = |what: String| Failure { seed, what, scenario: format!("{scenario:?}") };
    let outcome = catch_unwind(AssertUnwindSafe(|| simulate(&scenario, &mut rng)));
    match outcome {
        Ok(result) => result.map_err(failed),
        Err(panic) => Err(failed(format!("panic: {}", panic_text(&*panic)))),
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default()
}

/// More than any world needs that makes progress.
const MOST_EVENTS: u64 = 4_000_000;

fn simulate(scenario: &Scenario, rng: &mut Xoshiro256PlusPlus) -> Result<Coverage, String> {
    let fabrics = SimFabric::world(&scenario.hosts, rng.random());
    let net = fabrics[0].net();
    net.lock().take_over();
    let mut actors = build(scenario, &fabrics)?;
    let mut oracle = Rc::new(Oracle::new(scenario));
    // Stale entries are recognised by the actor: only the newest of each counts.
    let mut agenda: BinaryHeap<Reverse<(u64, u64, usize)>> = BinaryHeap::new();
    let mut order = 0;
    let mut at = |agenda: &mut BinaryHeap<_>, time: u64, actor: usize| {
        order += 1;
        agenda.push(Reverse((time, order, actor)));
        order
    };
    for (index, actor) in actors.iter_mut().enumerate() {
        actor.scheduled = at(&mut agenda, rng.random_range(0..1000), index);
    }
    let mut woken = Vec::new();
    for _ in 0..MOST_EVENTS {
        let network = net.lock().next_time();
        let turn = agenda.peek().map(|Reverse((time, ..))| *time);
        match (network, turn) {
            (None, None) => return finish(&actors, &oracle, scenario),
            (Some(_), None) => net.lock().advance(),
            (Some(network), Some(turn)) if network <= turn => net.lock().advance(),
            (_, Some(turn)) => {
                let Some(Reverse((_, ticket, index))) = agenda.pop() else { continue };
                let actor = &mut actors[index];
                if actor.scheduled != ticket {
                    continue;
                }
                net.lock().pass_time(turn);
                if scenario.death.is_some_and(|(victim, at)| victim == index && at <= actor.turns) && !actor.is_gone() {
                    actor.die();
                    net.lock().kill(index);
                    for (survivor, actor) in actors.iter_mut().enumerate().filter(|(_, actor)| !actor.is_gone()) {
                        // They go on as if nothing had happened until they hear of it.
                        let time = turn + rng.random_range(0..20_000);
                        actor.will_hear(time, index as u32);
                        if actor.is_parked() {
                            actor.scheduled = at(&mut agenda, time, survivor);
                        }
                    }
                    continue;
                }
                match actor.turn(turn, rng, &mut oracle)? {
                    Next::After(pause) => actor.scheduled = at(&mut agenda, turn + pause, index),
                    Next::Parked(Some(timer)) => actor.scheduled = at(&mut agenda, timer.max(turn), index),
                    Next::Parked(None) => actor.scheduled = 0,
                    Next::Gone => actor.scheduled = 0,
                }
            }
        }
        let now = {
            let mut net = net.lock();
            net.take_woken(&mut woken);
            net.now()
        };
        for index in woken.drain(..) {
            if actors[index].is_parked() {
                actors[index].scheduled = at(&mut agenda, now + rng.random_range(10..400), index);
            }
        }
    }
    Err(format!("liveness: no end after {MOST_EVENTS} events"))
}

fn build(scenario: &Scenario, fabrics: &[SimFabric]) -> Result<Vec<Actor>, String> {
    let text = |error: crate::Error| error.to_string();
    let mut ends: Vec<Box<dyn Endpoint>> =
        fabrics.iter().map(Fabric::open).collect::<crate::Result<_>>().map_err(text)?;
    let plan = scenario.plan(0);
    let mut regions = Regions { control: Vec::new(), data: Vec::new() };
    for host in 0..plan.topology.hosts() {
        let leader = &mut ends[plan.topology.leader(host) as usize];
        regions.control.push(leader.register(plan.control_cells() * size_of::<u64>()).map_err(text)?);
        regions.data.push(leader.register(plan.data_bytes()).map_err(text)?);
    }
    ends.into_iter()
        .enumerate()
        .map(|(rank, end)| {
            let plan = scenario.plan(rank as u32);
            let driver = Driver::new(plan, end, regions.clone(), scenario.reduction).map_err(text)?;
            Ok(Actor::new(driver, scenario.ranks[rank].clone()))
        })
        .collect()
}

/// Nothing can happen any more: everybody must have come to the end.
fn finish(actors: &[Actor], oracle: &Oracle, scenario: &Scenario) -> Result<Coverage, String> {
    if actors.iter().any(|actor| !actor.is_gone()) {
        let stuck = actors.iter().enumerate().filter(|(_, actor)| !actor.is_gone());
        let stuck: Vec<String> = stuck.map(|(rank, actor)| format!("\n  rank {rank}: {}", actor.summary())).collect();
        return Err(format!("liveness: nothing left to happen, and not done are{}", stuck.concat()));
    }
    let deaths = actors.iter().filter(|actor| actor.is_dead()).count() as u64;
    if deaths == 0 {
        oracle.closes()?;
    }
    let mut coverage = Coverage {
        deaths,
        contributions: oracle.contributions,
        rounds: oracle.rounds(),
        carried_with_fresh: oracle.carried_with_fresh,
        ..Coverage::default()
    };
    debug_assert_eq!(actors.len(), scenario.hosts.len());
    actors.iter().for_each(|actor| coverage.count(actor.stats()));
    Ok(coverage)
}
