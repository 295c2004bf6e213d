//! Random orders of operations, deliberate mistakes, all orders of small worlds, and ranks of fixed speeds.

mod data;
mod explore;
#[cfg(earlybird_internals)]
mod hosts;
mod speeds;
mod world;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::TicketTerms;
use crate::fault::Fault;
use crate::tier::by_tier;
use world::{Checked, Log, Step, World, ensure};

const SCHEDULES: u64 = 20_000;

/// Returns the number of schedules; the deep tier runs twenty times that number.
fn schedules() -> u64 {
    SCHEDULES * by_tier(1, 20) / 2
}

/// Counts of events in the schedules.
#[derive(Clone, Copy, Debug, Default)]
struct Coverage {
    arrivals: u64,
    groups: u64,
    closed_early: u64,
    expired: u64,
    bridges: u64,
    no_lender: u64,
    lent: u64,
    refusals: u64,
    full_ring: u64,
    overtaken: u64,
}

impl Coverage {
    fn add(&mut self, world: &World) {
        for rank in &world.ranks {
            let stats = rank.machine.stats();
            self.arrivals += stats.arrivals;
            self.groups += stats.closed;
            self.closed_early += stats.closed_early;
            self.expired += stats.expired;
            self.bridges += stats.bridges;
            self.no_lender += stats.no_lender;
            self.lent += stats.lent;
        }
        if let Some(Log { full_ring, overtaken, refusals, .. }) = world.log {
            self.full_ring += full_ring;
            self.overtaken += overtaken;
            self.refusals += refusals;
        }
    }

    fn all(&self) -> [u64; 10] {
        let Coverage { arrivals, groups, closed_early, expired, bridges, no_lender, .. } = *self;
        let Coverage { lent, refusals, full_ring, overtaken, .. } = *self;
        [arrivals, groups, closed_early, expired, bridges, no_lender, lent, refusals, full_ring, overtaken]
    }
}

/// Runs a world that is drawn from a seed to its end.
fn schedule(seed: u64, fault: Option<Fault>) -> Checked<World> {
    Ok(schedule_with(seed, fault, false)?.0)
}

/// After this number of turns every rank, even the slowest, has had one without anything to do: the slowest gets one in
/// eight of its share.
const POLLS: u32 = 192;

/// Runs such a world, in which a rank may die at some time. At the end, only ranks may be left that miss the dead one,
/// or a rank that misses it. Returns whether a rank has died.
fn schedule_with(seed: u64, fault: Option<Fault>, may_die: bool) -> Checked<(World, bool)> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    // Few worlds have more than one cell of ranks that left.
    let ranks = if rng.random_ratio(1, 200) { rng.random_range(33..=70) } else { rng.random_range(1..=17) };
    let size = rng.random_range(2..=ranks.max(2));
    let terms = TicketTerms {
        me: 0,
        ranks,
        size,
        deadline: rng.random_bool(0.3).then(|| rng.random_range(1..200)),
        lends: rng.random_bool(0.5),
        segments: rng.random_range(1..=3),
        fault,
    };
    let records = rng.random_bool(0.7).then(|| rng.random_range(1..=2 * u64::from(ranks.div_ceil(size))));
    let steps: Vec<u64> = (0..ranks).map(|_| rng.random_range(0..=7)).collect();
    let mut world = World::new(&terms, records, &steps);
    // A rank's next arrival, while it computes.
    let mut arrives_at = vec![Some(0); ranks as usize];
    // How often a rank gets its turn, and how long it computes.
    let speeds: Vec<u32> = (0..ranks).map(|_| if rng.random_bool(0.3) { 1 } else { 8 }).collect();
    let longest: Vec<u64> = (0..ranks).map(|_| [1, 10, 100][rng.random_range(0..3)]).collect();
    let (mut now, mut idle) = (0, 0);
    let mut dies =
        (may_die && ranks > 1).then(|| (rng.random_range(0..ranks), rng.random_range(0..300 * u64::from(ranks))));
    let mut dead = None;
    while !world.all_left() {
        now += rng.random_range(0..3);
        if let Some((rank, _)) = dies.take_if(|(rank, at)| *at <= now && !world.has_left(*rank)) {
            dead = Some(rank);
        }
        let me = rng.random_range(0..ranks);
        if dead == Some(me) {
            idle += 1;
            if idle > POLLS * ranks && !(0..ranks).any(|me| dead != Some(me) && world.has_timer(me, now)) {
                world.check_bereaved(me)?;
                return Ok((world, true));
            }
        }
        if dead == Some(me) || world.has_left(me) || rng.random_range(0..8) >= speeds[me as usize] {
            continue;
        }
        let arrival = &mut arrives_at[me as usize];
        let step = if arrival.is_some_and(|at| at <= now) {
            *arrival = None;
            world.arrive(me, now);
            Step::Something
        } else if arrival.is_some() {
            // The arrival will come.
            Step::Something
        } else {
            world.step(me, now)?
        };
        if step == Step::Took && !world.has_left(me) {
            *arrival = Some(now + rng.random_range(0..longest[me as usize]));
        }
        idle = if step == Step::Nothing { idle + 1 } else { 0 };
        if idle > POLLS * ranks {
            // Nothing but a deadline can end this wait, and each rank has had its turn meanwhile.
            ensure!(dead.is_some() || (0..ranks).any(|me| world.has_timer(me, now)), "hangs");
            now += 200;
            idle = if dead.is_some() { idle } else { 0 };
        }
    }
    world.check_end_of_all()?;
    Ok((world, false))
}

/// Runs schedules until one fails; returns the counts, or the first failure.
fn run(fault: Option<Fault>) -> Checked<Coverage> {
    let mut coverage = Coverage::default();
    for seed in 0..schedules() {
        let world = schedule(seed, fault).map_err(|what| format!("seed {seed}: {what}"))?;
        coverage.add(&world);
    }
    Ok(coverage)
}

#[test]
fn random_schedules_hold_what_is_promised() {
    let coverage = run(None).unwrap();
    println!("{coverage:?}");
    assert!(coverage.all().iter().all(|&count| count > 100), "{coverage:?}");
}

/// The outcomes of survivors are right, and those that cannot continue know which ranks they miss.
#[test]
fn a_death_breaks_no_promise() {
    let (mut died, mut survivors) = (0, 0);
    for seed in 0..schedules() {
        let (world, has_died) = schedule_with(seed, None, true).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        died += u64::from(has_died);
        survivors += (0..world.ranks.len() as u32).filter(|&rank| has_died && world.has_left(rank)).count();
    }
    println!("{died} deaths that held others up or came last, {survivors} ranks that left all the same");
    assert!(died > schedules() / 4 && survivors > 100);
}

/// A late cut, which no rank awaited, lands in a later turn of its record. On one host no cut is late.
#[cfg(earlybird_faults)]
#[test]
fn a_cut_that_comes_late_is_found() {
    let lands = |seed: &u64| std::panic::catch_unwind(|| hosts::schedule(*seed, Some(Fault::OverlookCut))).is_err();
    let found = (0..SCHEDULES).find(lands);
    println!("OverlookCut: seed {found:?}");
    assert!(found.is_some());
}

/// Each mistake does the harm that it stands for, not just any harm.
#[cfg(earlybird_faults)]
#[test]
fn every_fault_is_found() {
    for fault in crate::fault::Suite::Tickets.faults() {
        let harm = match fault {
            Fault::NoTail => "hangs",
            Fault::CloseByAdd => "publishes",
            Fault::ReuseRecord => "writes into the record",
            Fault::UnclaimedBridge => "register is in groups",
            Fault::ReleaseUnmoved => "takes",
            // Another test finds this mistake.
            Fault::OverlookCut => continue,
            _ => panic!("{fault:?} has no harm here"),
        };
        let does_harm = |seed: &u64| {
            // A mistake may also break what the code itself asserts.
            let run = std::panic::catch_unwind(|| schedule(*seed, Some(fault)).err());
            run.is_ok_and(|what| what.is_some_and(|what| what.contains(harm)))
        };
        let found = (0..SCHEDULES).find(does_harm);
        println!("{fault:?}: seed {found:?}");
        assert!(found.is_some(), "{fault:?} is not found in {SCHEDULES} schedules");
    }
}
