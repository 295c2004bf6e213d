//! Whole worlds on a simulated network, from a seed, judged by an oracle that sees everything.
//!
//! The machines, drivers, engines and sessions are those of production. At random, ranks compute, arrive, overlap,
//! wait, test, miss their deadlines, have a helper thread, hold on to outcomes, are preempted between any two
//! operations, and finish. A parked rank is not polled until it is woken, an operation of it completes or a timer of
//! it expires, so the simulator finds lost wake-ups, too. The oracle judges every landing.

mod actor;
mod agenda;
mod calm;
mod case;
mod coverage;
pub mod explore;
mod fuzz;
mod generator;
mod oracle;
mod recording;
mod registers;
mod replay;
mod scenario;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

pub use crate::collective::core::Stats;
pub use calm::{Calm, Costs};
pub use case::{Case, Edit, NotACase};
pub use coverage::{Coverage, Pair, Pairs};
pub use fuzz::{Found, fuzz, shrink};
pub use generator::{GENERATOR, Options};
pub use recording::{NotAWorld, Recording};
pub use replay::replay;

use crate::collective::core::Time;
use crate::collective::driver::{Driver, Regions};
use crate::fabric::sim::SimFabric;
use crate::fabric::{Endpoint, Fabric, HostMemory, RawAccess, Traffic};
use actor::{Actor, Next};
use agenda::Agenda;
use coverage::Conditions;
use oracle::Oracle;
use replay::Played;
use scenario::Scenario;

/// A schedule in which a guarantee did not hold.
#[derive(Clone, Debug, thiserror::Error)]
#[error("schedule {case}: {what}\n  in {scenario}")]
pub struct Failure {
    /// The schedule that replays it.
    pub case: Case,
    /// The violated guarantee, and how it was violated.
    pub what: String,
    /// The world in which it failed.
    pub scenario: String,
}

/// Runs one schedule.
///
/// # Errors
/// The guarantee that was violated, a panic of the core, or a world that did not end.
pub fn run(case: &Case, options: &Options) -> Result<Coverage, Failure> {
    run_and_log(case, options, &mut None).map(|(coverage, _)| coverage)
}

/// As [`run`]; also returns a line for each event.
///
/// # Errors
/// As `run`.
pub fn trace(case: &Case, options: &Options) -> (Result<Coverage, Failure>, Vec<String>) {
    let mut log = Some(Vec::new());
    let result = run_and_log(case, options, &mut log).map(|(coverage, _)| coverage);
    (result, log.unwrap_or_default())
}

fn run_and_log(case: &Case, options: &Options, log: &mut EventLog) -> Result<(Coverage, Conditions), Failure> {
    let scenario = case.scenario(options);
    let ended = run_within(case, &scenario, MOST_EVENTS, log)?;
    Ok((ended.coverage, ended.conditions))
}

/// Runs a schedule in the world of its case, up to `most_events` events.
fn run_within(case: &Case, scenario: &Scenario, most_events: u64, log: &mut EventLog) -> Result<Ended, Failure> {
    let failed = |what: String| Failure { case: case.clone(), what, scenario: format!("{scenario:?}") };
    // Uses a generator of its own, so that a change to the world does not affect the order.
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(oracle::mix(case.seed()) ^ case.order);
    let outcome = catch_unwind(AssertUnwindSafe(|| simulate(scenario, &mut rng, most_events, log)));
    match outcome {
        Ok(result) => result.map_err(failed),
        Err(panic) => Err(failed(format!("panic: {}", panic_text(&*panic)))),
    }
}

/// A schedule that ended.
struct Ended {
    coverage: Coverage,
    conditions: Conditions,
    events: u64,
    /// The virtual time in nanoseconds.
    time: u64,
    /// What all ranks sent to other hosts.
    traffic: Traffic,
    /// What was recorded.
    played: Played,
}

/// The events, if they are to be recorded.
type EventLog = Option<Vec<String>>;

/// Returns the message of a panic.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default()
}

/// A limit that no world reaches that makes progress.
const MOST_EVENTS: u64 = 2_000_000;

fn simulate(
    scenario: &Scenario,
    rng: &mut Xoshiro256PlusPlus,
    most_events: u64,
    log: &mut EventLog,
) -> Result<Ended, String> {
    let fabrics = SimFabric::world(&scenario.hosts, rng.random());
    let net = fabrics[0].net();
    net.lock().take_over();
    net.lock().set_weather(scenario.weather.clone());
    let mut oracle = Rc::new(Oracle::new(scenario));
    let mut actors = build(scenario, &oracle, &fabrics)?;
    let mut agenda = Agenda::new(actors.len());
    (0..actors.len()).for_each(|index| agenda.set(index, rng.random_range(0..1000)));
    let mut woken = Vec::new();
    let (mut freeze, mut now) = (scenario.freeze, 0);
    let mut failed = false;
    let mut events = 0;
    // Before this time the network has nothing to do.
    let mut quiet = 0;
    loop {
        // Of simultaneous events, those of the network come first.
        let turn = agenda.next_time();
        if turn.is_none_or(|turn| turn >= quiet) {
            let mut network = net.lock();
            events += network.advance_to(turn, most_events - events);
            if network.take_woken(&mut woken) {
                let woken_at = network.now();
                for index in woken.drain(..) {
                    if actors[index].is_parked() {
                        agenda.set(index, woken_at + rng.random_range(actors[index].wakes_within()));
                    }
                }
                continue;
            }
            quiet = network.next_time().unwrap_or(Time::MAX);
        }
        if events == most_events {
            break;
        }
        let Some(turn) = turn else {
            let network = net.lock();
            let mut coverage = finish(&actors, &oracle, failed)?;
            coverage.weather(network.met());
            coverage.freezes = u64::from(scenario.freeze.is_some() && freeze.is_none());
            let performed = actors.iter().fold(0, |performed, actor| performed | actor.performed());
            let conditions = Conditions::of(scenario, &coverage, performed);
            let played = Played::of(&actors, &oracle);
            return Ok(Ended {
                coverage,
                conditions,
                events,
                time: now.max(network.now()),
                traffic: network.traffic(),
                played,
            });
        };
        let Some(index) = agenda.take(turn) else { continue };
        (events, now) = (events + 1, turn);
        let actor = &mut actors[index];
        if actor.may_post() {
            // They are posted at this time.
            net.lock().pass_time(turn);
            quiet = 0;
        }
        if let Some((victim, at_turn, length)) = freeze
            && victim == index
            && at_turn <= actor.turns
        {
            freeze = None;
            log_event(log, turn, index, || format!("freezes for {length} ns"));
            agenda.set(index, turn + length);
            continue;
        }
        if scenario.deaths.iter().any(|death| death.rank == index && actor.is_due(death)) && !actor.is_gone() {
            actor.die();
            log_event(log, turn, index, || "dies".to_owned());
            net.lock().kill(index);
            for (survivor, actor) in actors.iter_mut().enumerate().filter(|(_, actor)| !actor.is_gone()) {
                // The other ranks continue unaffected until they learn of it.
                actor.will_hear(turn + rng.random_range(0..20_000), index as u32);
                if let Some(time) = actor.next_news().filter(|_| actor.is_parked()) {
                    agenda.set(survivor, time.max(turn));
                }
            }
            continue;
        }
        let before = log.is_some().then(|| (actor.next_op(), actor.summary()));
        let next = actor.turn(turn, rng, &mut oracle);
        if let Some((op, summary)) = before {
            let after = actor.summary();
            if let Some(op) = op {
                log_event(log, turn, index, || op);
            } else if after != summary {
                log_event(log, turn, index, || after);
            }
        }
        match next? {
            Next::After(pause) => agenda.set(index, turn + pause),
            Next::Parked(Some(timer)) => agenda.set(index, timer.max(turn)),
            Next::Parked(None) | Next::Gone => agenda.clear(index),
            Next::Broke => {
                agenda.clear(index);
                failed = true;
                for (other, actor) in actors.iter_mut().enumerate().filter(|(_, actor)| !actor.is_gone()) {
                    let time = turn + rng.random_range(0..20_000);
                    actor.will_hear_of_abort(time);
                    if actor.is_parked() {
                        agenda.set(other, time);
                    }
                }
            }
        }
    }
    Err(format!("liveness: no end after {most_events} events"))
}

fn log_event(log: &mut EventLog, time: u64, rank: usize, what: impl FnOnce() -> String) {
    if let Some(log) = log {
        log.push(format!("{time:>9} ns  rank {rank:>2}  {}", what()));
    }
}

fn build(scenario: &Scenario, oracle: &Oracle, fabrics: &[SimFabric]) -> Result<Vec<Actor>, String> {
    let text = |error: crate::Error| error.to_string();
    let ends = fabrics.iter().map(|fabric| fabric.open(RawAccess::CRATE));
    let mut ends: Vec<Box<dyn Endpoint>> = ends.collect::<crate::Result<_>>().map_err(text)?;
    let plan = scenario.plan();
    let (mut controls, mut datas) = (Vec::new(), Vec::new());
    for host in 0..plan.topology.hosts() {
        let leader = &mut ends[plan.topology.leader(host) as usize];
        let cells = plan.control_cells() * size_of::<u64>();
        controls.push(leader.register(cells, Regions::CONTROL).map_err(text)?);
        let data = leader.register(plan.data_bytes(), Regions::DATA).map_err(text)?;
        datas.push(data);
        if let Some(mut memory) = leader.window(data).map(HostMemory::new).filter(|_| plan.has_memory()) {
            for &rank in plan.topology.ranks_of(host) {
                let model = oracle.first_model(rank);
                plan.first_models(rank).for_each(|at| memory.contribution(at, plan.bytes).copy_from_slice(&model));
            }
        }
    }
    let regions = Regions { control: controls.into(), data: datas.into() };
    (0..)
        .zip(ends)
        .zip(&scenario.ranks)
        .map(|((me, end), habits)| {
            let mut driver =
                Driver::new(plan.seen_by(me), end, regions.clone(), scenario.reduction, None).map_err(text)?;
            scenario.script.instruct(driver.machine_mut());
            Ok(Actor::new(driver, habits.clone(), scenario.script.lead(me)))
        })
        .collect()
}

/// Checks that all ranks have ended, once no event is left.
fn finish(actors: &[Actor], oracle: &Oracle, failed: bool) -> Result<Coverage, String> {
    if actors.iter().any(|actor| !actor.is_gone()) {
        let stuck = actors.iter().enumerate().filter(|(_, actor)| !actor.is_gone());
        let stuck: Vec<String> = stuck.map(|(rank, actor)| format!("\n  rank {rank}: {}", actor.summary())).collect();
        return Err(format!("liveness: no event is left, and these ranks have not ended:{}", stuck.concat()));
    }
    let dead = || actors.iter().filter(|actor| actor.is_dead());
    let deaths = dead().count() as u64;
    let whole = deaths == 0 && !failed;
    if whole {
        oracle.closes()?;
    }
    let mut coverage = Coverage {
        deaths,
        deaths_together: deaths.saturating_sub(1),
        deaths_while_leaving: dead().filter(|actor| actor.is_leaving()).count() as u64,
        successors_died: dead().filter(|actor| actor.stats().inherited > 0).count() as u64,
        contributions: oracle.contributions,
        rounds: oracle.rounds(),
        carried_with_fresh: oracle.carried_with_fresh,
        lowered: oracle.lowered,
        measured: oracle.measured,
        full_with_carried: oracle.full_with_carried,
        ..Coverage::default()
    };
    actors.iter().for_each(|actor| coverage.count(actor.stats(), actor.met()));
    if whole && oracle.early > coverage.deadlines_expired {
        let (early, expired) = (oracle.early, coverage.deadlines_expired);
        return Err(format!("G5: {early} rounds closed before their time, but only {expired} deadlines had passed"));
    }
    Ok(coverage)
}
