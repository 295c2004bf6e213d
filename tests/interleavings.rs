//! Every interleaving of small worlds: two rounds, with a rank that is late, one that finishes early
//! and one that may die at any step.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/tier.rs"]
mod tier;

use std::sync::Mutex;

use earlybird::simulation::explore::{Explored, Means, World, explore};
use earlybird::trigger::Schedule;
use earlybird::{Fire, Group};
use tier::is_deep;

/// More states than any of these worlds has.
const MOST: u64 = 60_000_000;

const DOUBLING: Means = Means::Tree(Schedule::Doubling);
const SCATTER: Means = Means::Tree(Schedule::Scatter);
const GATHER: Means = Means::Tree(Schedule::Gather);

fn world(fire: Fire, means: Means, steps: &[u32], mortal: Option<u32>) -> World {
    World { fire, means, peer: true, steps: steps.to_vec(), mortal, thread: None, fault: None }
}

/// Explores all worlds, on as many threads as there are cores, and prints the counts of each.
fn explore_all(mut worlds: Vec<World>) {
    // The last ones are taken first.
    worlds.reverse();
    let queue = Mutex::new(worlds);
    let total = Mutex::new(Explored::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(world) = queue.lock().unwrap().pop() else { break };
                    let found = explore(&world, MOST).unwrap_or_else(|violation| panic!("{violation}"));
                    let World { fire, means, steps, mortal, thread, .. } = &world;
                    println!(
                        "{:>9} states, {:>9} steps, {:>6} ends: {fire}, {means:?}, contributions {steps:?}, mortal {mortal:?}, \
                         thread {thread:?}",
                        found.states, found.steps, found.ends
                    );
                    assert!(found.ends > 0);
                    let mut total = total.lock().unwrap();
                    total.states += found.states;
                    total.steps += found.steps;
                    total.ends += found.ends;
                }
            });
        }
    });
    println!("{:?}", total.into_inner().unwrap());
}

#[test]
fn two_ranks() {
    let mut worlds = Vec::new();
    for means in [DOUBLING, SCATTER, GATHER, Means::Eager, Means::Segments, Means::Pieces] {
        for fire in [Fire::ALL, Fire::SOLO, Fire::quorum(2)] {
            // A contribution and the last, empty arrival: two rounds, or more if a rank is late.
            worlds.push(world(fire, means, &[1, 1], None));
            worlds.push(world(fire, means, &[1, 1], Some(1)));
            worlds.push(world(fire, means, &[1, 0], Some(0)));
        }
    }
    for means in [DOUBLING, Means::Eager] {
        for fire in [Fire::majority(3), Fire::SOLO.full_every(2)] {
            worlds.push(world(fire, means, &[1, 1], Some(1)));
            worlds.push(world(fire, means, &[2, 1], None));
        }
    }
    for group in [Group::World, Group::Butterfly(2)] {
        for fire in [Fire::ALL, Fire::SOLO] {
            worlds.push(world(fire, Means::Registers(group), &[1, 1], None));
            worlds.push(world(fire, Means::Registers(group), &[1, 0], Some(0)));
        }
    }
    if is_deep() {
        worlds.push(world(Fire::ALL, DOUBLING, &[2, 2], Some(1)));
        worlds.push(world(Fire::SOLO, Means::Eager, &[2, 2], Some(1)));
    }
    explore_all(worlds);
}

/// Rank 0 has a helper thread. It may set to work at any step while its caller is away, and the
/// caller may come back then.
#[test]
fn a_thread() {
    let world = |fire, means, steps, mortal| World { thread: Some(0), ..world(fire, means, steps, mortal) };
    explore_all(vec![
        world(Fire::ALL, DOUBLING, &[1, 1], None),
        world(Fire::SOLO, GATHER, &[1, 1], None),
        world(Fire::quorum(2), GATHER, &[1, 0], Some(1)),
        world(Fire::ALL, Means::Eager, &[1, 1], None),
        world(Fire::SOLO, Means::Eager, &[1, 1], Some(1)),
        world(Fire::quorum(2), Means::Segments, &[1, 1], None),
        world(Fire::ALL, Means::Pieces, &[1, 1], None),
    ]);
}

/// Two hosts, whose agents relay: ranks that contribute and may be late beside ranks that only finish.
#[test]
fn hosts() {
    let mut worlds = vec![
        world(Fire::SOLO, Means::Hosts(1), &[1, 1], None),
        world(Fire::quorum(2), Means::Hosts(1), &[1, 1], None),
        world(Fire::SOLO, Means::Hosts(2), &[0, 0, 0], None),
    ];
    if is_deep() {
        worlds.extend([
            world(Fire::ALL, Means::Hosts(2), &[1, 0, 0, 0], None),
            world(Fire::quorum(4), Means::Hosts(2), &[0, 0, 0, 0], None),
        ]);
    }
    explore_all(worlds);
    let large = world(Fire::SOLO, Means::Hosts(2), &[0, 1, 0, 0], None);
    let most = if is_deep() { 2_000_000 } else { 100_000 };
    // It has more states than a test can visit.
    let ended = explore(&large, most).map_or_else(|violation| violation.what, |found| format!("{found:?}"));
    assert!(ended.contains("more than"), "{ended}");
}

/// Rank 0 contributes and may be late, rank 1 only finishes, another rank may die.
#[test]
fn three_ranks() {
    let worlds = vec![
        // How many groups move in a round depends on which rank is late.
        world(Fire::SOLO, Means::Registers(Group::Butterfly(2)), &[1, 0, 0], None),
        world(Fire::SOLO, GATHER, &[0, 0, 0], None),
        world(Fire::SOLO, DOUBLING, &[0, 0, 0], None),
        world(Fire::quorum(2), GATHER, &[0, 0, 0], Some(2)),
        world(Fire::ALL, DOUBLING, &[1, 0, 0], Some(1)),
        world(Fire::ALL, SCATTER, &[1, 0, 0], Some(1)),
        world(Fire::SOLO, Means::Eager, &[1, 0, 0], Some(2)),
        world(Fire::quorum(2), Means::Eager, &[1, 0, 0], Some(2)),
        world(Fire::ALL, Means::Eager, &[1, 0, 0], Some(2)),
        world(Fire::ALL, Means::Segments, &[1, 0, 0], Some(2)),
        world(Fire::quorum(3), Means::Segments, &[1, 0, 0], None),
        world(Fire::quorum(3), Means::Registers(Group::Butterfly(2)), &[1, 0, 0], None),
    ];
    // A minute and more: in the long tier.
    if is_deep() {
        explore_all(worlds);
    }
}

/// The same with a contribution, which makes it ten times as large.
#[test]
#[ignore = "takes ten minutes: before a release"]
fn three_ranks_at_length() {
    explore_all(vec![world(Fire::SOLO, DOUBLING, &[1, 0, 0], None)]);
}

/// The same search finds deliberate mistakes.
#[cfg(earlybird_faults)]
#[test]
fn faults_are_found() {
    use earlybird::fault::Fault;
    std::panic::set_hook(Box::new(|_| {}));
    let found: Vec<_> = [
        (Fault::GateOff, DOUBLING, Fire::SOLO, None),
        (Fault::HelpUnasked, Means::Segments, Fire::SOLO, None),
        (Fault::SignalBeforeData, DOUBLING, Fire::ALL, None),
        (Fault::ForgetSignal, GATHER, Fire::SOLO, None),
        (Fault::AbandonTheDead, DOUBLING, Fire::SOLO, Some(1)),
        (Fault::ReuseSlotEarly, GATHER, Fire::SOLO, None),
        (Fault::ForgetCarriedBit, Means::Eager, Fire::SOLO, None),
    ]
    .into_iter()
    .map(|(fault, means, fire, mortal)| {
        let steps = if fault == Fault::ReuseSlotEarly { [3, 1] } else { [1, 1] };
        let thread = (fault == Fault::HelpUnasked).then_some(0);
        let world = World { thread, fault: Some(fault), ..world(fire, means, &steps, mortal) };
        (fault, explore(&world, 2_000_000))
    })
    .collect();
    let _ = std::panic::take_hook();
    for (fault, result) in found {
        let violation = result.err().unwrap_or_else(|| panic!("{fault:?} breaks nothing"));
        assert!(!violation.what.contains("states"), "{fault:?}: {violation}");
        println!("{fault:?}: {}", violation.what.lines().next().unwrap_or_default());
    }
}
