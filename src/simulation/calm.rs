//! Worlds without troubles, of any size, which show what a schedule costs.

use std::sync::Arc;

use super::case::Case;
use super::recording::Recording;
use super::replay::Script;
use super::scenario::{Habits, Scenario};
use super::{Failure, run_within};
use crate::collective::core::Effort;
use crate::collective::driver::Reduction;
use crate::fabric::Traffic;
use crate::fabric::sim::Weather;
use crate::reduce::{Dtype, Reduce};
use crate::rule::{Absent, Fire, Grace, MovementBy, Mover, Scale};

/// A world of small contributions whose ranks all behave alike, on a network without troubles.
#[derive(Clone, Debug)]
pub struct Calm {
    /// The number of ranks in the world.
    pub ranks: u32,
    /// The number of ranks of a host; they are consecutive.
    pub per_host: u32,
    /// The firing rule.
    pub fire: Fire,
    /// How long a round stays open after it has fired.
    pub grace: Grace,
    /// The number of rounds that may be unreleased; 1 in a synchronous world.
    pub depth: u64,
    /// The number of contributions of each rank before it finishes.
    pub steps: u32,
    /// The number of 64-bit integers of a contribution.
    pub elements: usize,
    /// How data moves: by a cut, or between the agents of hosts.
    pub mover: Mover,
    /// How many hosts meet at a level, where agents relay; 1 is a star.
    pub radix: u32,
}

/// The cost of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The number of turns of ranks and effects of operations.
    pub events: u64,
    /// The number of rounds that fired.
    pub rounds: u64,
    /// The virtual time in nanoseconds.
    pub time: u64,
    /// What all ranks sent to other hosts in the whole run. A put is one message, with its signal, and has no header.
    pub traffic: Traffic,
}

/// The longest computation between arrivals, in ns.
const COMPUTE: u64 = 10_000;

/// The longest time for which a rank keeps outcomes, in ns.
const HOLDS: u64 = 100;

impl Calm {
    /// Runs the schedule of a seed, of at most `most_events` events.
    ///
    /// # Errors
    /// The guarantee that was violated, a panic of the core, or a world that did not end.
    pub fn run(&self, seed: u64, most_events: u64) -> Result<Costs, Failure> {
        let name = format!("{seed} of a calm world of {} ranks", self.ranks);
        let scenario = self.scenario();
        let case = Case::recorded(Arc::new(Recording::of(name, seed, scenario.clone())), 0);
        let ended = run_within(&case, &scenario, most_events, &mut None)?;
        Ok(Costs { events: ended.events, rounds: ended.coverage.rounds, time: ended.time, traffic: ended.traffic })
    }

    fn scenario(&self) -> Scenario {
        let synchronous = self.fire.is_synchronous();
        let several = self.ranks > self.per_host;
        let relays = several && self.mover == Mover::Tree;
        let habits = Habits {
            arriving: Effort::Nothing,
            steps: self.steps,
            fills: false,
            compute: COMPUTE,
            overlaps: 0,
            holds: HOLDS,
            preempted: 0,
            tests: 0,
            deadline: 0,
            thread: false,
            hasty: true,
            unbroken: true,
        };
        Scenario {
            hosts: (0..self.ranks).map(|rank| rank / self.per_host).collect(),
            fire: self.fire,
            grace: self.grace,
            depth: match synchronous {
                true if relays => 2,
                true => 1,
                false => self.depth,
            },
            base: 0,
            own_models: false,
            movement: match synchronous {
                _ if relays => MovementBy::Program,
                true if several => MovementBy::Reducer,
                true => MovementBy::Everyone,
                false => MovementBy::Initiator,
            },
            memory: None,
            elements: self.elements,
            segment: size_of::<u64>(),
            run: 1,
            pull_after: 1_000_000,
            schedule: None,
            radix: self.radix,
            program: None,
            deaths: Vec::new(),
            freeze: None,
            script: Script::Free,
            fault: None,
            reduction: Reduction { dtype: Dtype::U64, reduce: Reduce::Sum, scale: Scale::Sum, absent: Absent::Carry },
            weather: Weather::default(),
            ranks: vec![habits; self.ranks as usize],
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_schedule() {
        for fire in [Fire::quorum(30), Fire::ALL] {
            let (grace, mover) = (Grace::Auto, Mover::Cut);
            let world = Calm { ranks: 40, per_host: 8, fire, grace, depth: 2, steps: 2, elements: 1, mover, radix: 2 };
            let costs = |seed| world.run(seed, 1_000_000).unwrap();
            assert_eq!(costs(1), costs(1));
            assert_ne!(costs(1), costs(2));
            assert!(costs(1).rounds >= 2 && world.run(1, 100).is_err());
            assert!(costs(1).traffic.messages > 0);
            let relayed = Calm { mover: Mover::Tree, ..world.clone() };
            let sent = |world: &Calm| {
                let costs = world.run(1, 1_000_000).unwrap();
                costs.traffic.messages / costs.rounds
            };
            assert!(sent(&relayed) < sent(&world) && relayed.run(1, 1_000_000).unwrap().traffic.atomics == 0);
            let one_host = Calm { per_host: 40, ..world };
            assert_eq!(one_host.run(1, 1_000_000).unwrap().traffic, Traffic::default());
        }
    }
}
