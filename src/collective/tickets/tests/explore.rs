//! Every order of steps in small worlds. A state that was reached before is not explored again.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::world::{Checked, Step, World, ensure};
use crate::collective::core::Time;
use crate::collective::tickets::TicketTerms;

/// Counts of an exploration.
#[derive(Debug, Default)]
struct Explored {
    states: u64,
    /// The number of states in which all ranks have left.
    ends: u64,
    /// The number of steps that closed a group before it was full, or found a lender.
    closed_early: u64,
    expired: u64,
    bridges: u64,
}

/// Takes one step of a rank. A rank that does not wait for others takes its group and makes its next arrival at once: a
/// slow rank is one that gets no turn.
fn step(world: &mut World, me: u32, now: Time) -> Checked<bool> {
    let mut step = world.step(me, now)?;
    while step == Step::Something && world.ranks[me as usize].machine.is_ready() {
        step = world.step(me, now)?;
    }
    if step == Step::Took && !world.has_left(me) {
        world.arrive(me, 0);
    }
    Ok(step != Step::Nothing)
}

/// Explores all orders of steps. Time stands still, but a rank's deadline may have passed at any poll.
fn explore(terms: &TicketTerms, records: Option<u64>, steps: &[u64]) -> Checked<Explored> {
    let mut start = World::new(terms, records, steps);
    (start.log, start.data) = (None, None);
    (0..terms.ranks).for_each(|me| start.arrive(me, 0));
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let mut seen = HashSet::from([hasher.hash_one(&start)]);
    let mut open = vec![start];
    let mut explored = Explored::default();
    while let Some(world) = open.pop() {
        explored.states += 1;
        let mut goes_on = false;
        for me in (0..terms.ranks).filter(|&me| !world.has_left(me)) {
            let times = std::iter::once(0).chain(world.ranks[me as usize].machine.next_timer());
            for now in times {
                let mut next = world.clone();
                if step(&mut next, me, now)? {
                    goes_on = true;
                    let [before, after] = [&world, &next].map(|world| world.ranks[me as usize].machine.stats());
                    explored.closed_early += after.closed_early - before.closed_early;
                    explored.expired += after.expired - before.expired;
                    explored.bridges += after.bridges - before.bridges;
                    if seen.insert(hasher.hash_one(&next)) {
                        open.push(next);
                    }
                }
            }
        }
        if world.all_left() {
            world.check_end_of_all()?;
            explored.ends += 1;
        } else {
            ensure!(goes_on, "hangs with {:?}", world.ranks.iter().map(|rank| rank.machine.seat()).collect::<Vec<_>>());
        }
    }
    Ok(explored)
}

#[test]
fn every_order_of_small_worlds_holds_what_is_promised() {
    let terms = |ranks, deadline: Option<Time>, lends| TicketTerms { deadline, lends, ..TicketTerms::sample(ranks, 2) };
    for (what, terms, records, steps) in [
        ("1 rank", terms(1, None, false), None, &[2][..]),
        ("2 ranks", terms(2, None, false), None, &[2, 2]),
        ("2 ranks, deadline", terms(2, Some(1), false), None, &[2, 2]),
        ("3 ranks", terms(3, None, false), Some(3), &[2, 2, 2]),
        ("3 ranks, one record", terms(3, None, false), Some(1), &[2, 2, 2]),
        ("3 ranks, deadline", terms(3, Some(1), false), Some(2), &[1, 1, 1]),
        ("3 ranks, lenders", terms(3, None, true), Some(2), &[2, 2, 2]),
    ] {
        let begin = std::time::Instant::now();
        let explored = explore(&terms, records, steps).unwrap();
        println!("{what}: {explored:?} in {:?}", begin.elapsed());
        assert!(explored.ends > 0 && explored.closed_early > 0);
        assert_eq!(explored.expired > 0, terms.deadline.is_some());
        assert_eq!(explored.bridges > 0, terms.lends);
    }
}
