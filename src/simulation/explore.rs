//! Explores every interleaving of a small world, instead of a random one.
//!
//! The actors and the oracle are those of the random schedules, on a network whose operations take effect at once. What
//! remains is the order of the ranks' steps, and all orders are tried. A state that was reached before is not followed
//! again.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::actor::{Actor, DeathOf, Saved};
use super::oracle::Oracle;
use super::scenario::Scenario;
use super::{build, panic_text};
use crate::fabric::Fabric;
use crate::fabric::sim::{SimFabric, Snapshot};
use crate::group::Group;
use crate::rule::{Fire, Schedule};

/// A world that is small enough to explore.
#[derive(Clone, Debug)]
pub struct World {
    /// The firing rule. There is no grace, because time does not pass.
    pub fire: Fire,
    /// How data moves: by a program with a schedule, or by cuts, with small data or in segments.
    pub means: Means,
    /// Whether `arrive` works for other ranks.
    pub peer: bool,
    /// The number of contributions of each rank before it finishes.
    pub steps: Vec<u32>,
    /// A rank that may die, at any of its steps.
    pub mortal: Option<u32>,
    /// A rank with a thread, which may begin at any step while its caller is away.
    pub thread: Option<u32>,
    /// A deliberate fault.
    pub fault: Option<crate::fault::Fault>,
}

/// How the world moves its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// By a program.
    Tree(Schedule),
    /// Between the agents of hosts with this number of ranks each.
    Hosts(u32),
    /// By a cut and one reducer.
    Eager,
    /// By a cut and segments.
    Segments,
    /// By a cut and segments that are filled after the arrival.
    Pieces,
    /// By a cut and segments of the registers of groups.
    Registers(Group),
}

/// The result of an exploration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// The number of different states of ranks and memory.
    pub states: u64,
    /// The number of steps between them.
    pub steps: u64,
    /// The number of states in which all ranks had ended.
    pub ends: u64,
}

/// A guarantee that did not hold, and the steps that led there.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}\n  after {steps}\n  in {world:?}")]
pub struct Violation {
    /// The guarantee, and how it was violated.
    pub what: String,
    /// The ranks of the steps, in order.
    pub steps: String,
    /// The world.
    pub world: Box<World>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A rank's next step.
    Turn(usize),
    /// The next step of a rank's thread.
    Help(usize),
    /// The mortal rank dies.
    Death(usize),
    /// A rank hears of it.
    News(usize),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Turn(rank) => write!(f, "{rank}"),
            Step::Help(rank) => write!(f, "+{rank}"),
            Step::Death(rank) => write!(f, "†{rank}"),
            Step::News(rank) => write!(f, "!{rank}"),
        }
    }
}

/// The path to a state, newest step first.
struct Way {
    step: Step,
    before: Option<Rc<Way>>,
}

/// An actor, and a hash of it. States share the actors that did not change.
type Kept = Rc<(Saved, u64)>;

struct State {
    actors: Vec<Kept>,
    oracle: Rc<Oracle>,
    memory: Rc<Snapshot>,
    print: u64,
    way: Option<Rc<Way>>,
}

/// Explores all interleavings.
///
/// # Errors
/// The first violation found, or more states than `most`.
pub fn explore(world: &World, most: u64) -> Result<Explored, Violation> {
    let mut way = None;
    let result = catch_unwind(AssertUnwindSafe(|| Explorer::new(world)?.run(most, &mut way)));
    let violation = |what: String| {
        let mut steps = Vec::new();
        let mut next = way.as_ref();
        while let Some(way) = next {
            steps.push(way.step.to_string());
            next = way.before.as_ref();
        }
        steps.reverse();
        Violation { what, steps: steps.join(" "), world: Box::new(world.clone()) }
    };
    match result {
        Ok(result) => result.map_err(violation),
        Err(panic) => Err(violation(format!("panic: {}", panic_text(&*panic)))),
    }
}

struct Explorer {
    actors: Vec<Actor>,
    /// The stored form of each actor; `None` for one that has made a step since.
    as_kept: Vec<Option<Kept>>,
    /// A hash of each actor.
    prints: Vec<u64>,
    /// The stored form of the memory, unless a step was made since.
    as_memory: Option<Rc<Snapshot>>,
    oracle: Rc<Oracle>,
    net: crate::fabric::sim::SimShared,
    rng: Xoshiro256PlusPlus,
    mortal: Option<usize>,
}

impl Explorer {
    fn new(world: &World) -> Result<Self, String> {
        let scenario = Scenario::small(world);
        let fabrics = SimFabric::world(&scenario.hosts, 0);
        debug_assert!(fabrics.iter().all(|fabric| fabric.ranks() as usize == world.steps.len()));
        let net = fabrics[0].net();
        net.lock().take_over();
        net.lock().make_instant();
        let oracle = Oracle::new(&scenario);
        let actors = build(&scenario, &oracle, &fabrics)?;
        let mortal = world.mortal.map(|rank| rank as usize);
        let (as_kept, prints) = (vec![None; actors.len()], vec![0; actors.len()]);
        let (oracle, rng) = (Rc::new(oracle), Xoshiro256PlusPlus::seed_from_u64(0));
        Ok(Explorer { actors, as_kept, prints, as_memory: None, oracle, net, rng, mortal })
    }

    /// Returns the state, whose hash is `print`.
    fn save(&mut self, print: u64, way: Option<Rc<Way>>) -> State {
        for ((actor, kept), &print) in self.actors.iter().zip(&mut self.as_kept).zip(&self.prints) {
            kept.get_or_insert_with(|| Rc::new((actor.save(), print)));
        }
        let memory = self.as_memory.get_or_insert_with(|| Rc::new(self.net.lock().save()));
        State {
            actors: self.as_kept.iter().flatten().cloned().collect(),
            oracle: self.oracle.clone(),
            memory: memory.clone(),
            print,
            way,
        }
    }

    fn restore(&mut self, state: &State) {
        let places = self.as_kept.iter_mut().zip(&mut self.prints);
        for ((actor, (was, print)), kept) in self.actors.iter_mut().zip(places).zip(&state.actors) {
            if !was.as_ref().is_some_and(|was| Rc::ptr_eq(was, kept)) {
                actor.restore(&kept.0);
                (*was, *print) = (Some(kept.clone()), kept.1);
            }
        }
        self.oracle = state.oracle.clone();
        if !self.as_memory.as_ref().is_some_and(|was| Rc::ptr_eq(was, &state.memory)) {
            self.net.lock().restore(&state.memory);
            self.as_memory = Some(state.memory.clone());
        }
    }

    /// Returns a hash of the state. Most states are known, and need not be stored.
    fn fingerprint(&mut self) -> u64 {
        for ((actor, print), _) in
            self.actors.iter().zip(&mut self.prints).zip(&self.as_kept).filter(|(_, kept)| kept.is_none())
        {
            let mut mixer = Mixer::default();
            actor.fingerprint(&mut mixer);
            *print = mixer.finish();
        }
        let mut mixer = Mixer::default();
        self.prints.iter().for_each(|&print| mixer.write_u64(print));
        // The origin of completed effects does not matter any more: states that differ only in it are the same.
        let net = self.net.lock();
        let spent = self.actors[0].spent_claims(|cell| net.first_region(cell));
        net.hash_but(&spent, &mut mixer);
        mixer.finish()
    }

    fn enabled(&self) -> Vec<Step> {
        let net = self.net.lock();
        let dead = self.actors.iter().any(Actor::is_dead);
        let death = |rank| match self.mortal {
            Some(mortal) if mortal == rank => DeathOf::This,
            _ if dead => DeathOf::Other,
            _ => DeathOf::None,
        };
        let is_local = |(rank, actor): (usize, &Actor)| !actor.is_gone() && actor.next_is_local(death(rank), &net);
        if let Some(rank) = self.actors.iter().enumerate().position(is_local) {
            // In any order with steps of others it leads to the same state.
            return vec![Step::Turn(rank)];
        }
        let mut steps = Vec::new();
        for (rank, actor) in self.actors.iter().enumerate().filter(|(_, actor)| !actor.is_gone()) {
            let can_go_on = !actor.is_parked() || actor.has_heard() || !net.is_waiting(rank);
            if can_go_on || actor.helper_is_parked() {
                steps.push(Step::Turn(rank));
            }
            if can_go_on && actor.has_helper() {
                steps.push(Step::Help(rank));
            }
            if dead && !actor.has_heard() && actor.heeds_deaths() {
                steps.push(Step::News(rank));
            }
            if self.mortal == Some(rank) {
                steps.push(Step::Death(rank));
            }
        }
        steps
    }

    fn apply(&mut self, step: Step) -> Result<(), String> {
        let (Step::Turn(rank) | Step::Help(rank) | Step::Death(rank) | Step::News(rank)) = step;
        (self.as_kept[rank], self.as_memory) = (None, None);
        match step {
            Step::Turn(rank) | Step::Help(rank) => {
                // Most steps tell the oracle nothing; only the others copy it.
                let by_helper = matches!(step, Step::Help(_));
                self.actors[rank].turn_of(by_helper, 0, &mut self.rng, &mut self.oracle)?;
            }
            Step::Death(rank) => self.actors[rank].die(),
            Step::News(rank) => {
                let dead = self.actors.iter().position(Actor::is_dead).unwrap_or_default();
                self.actors[rank].hear_of(dead as u32);
            }
        }
        Ok(())
    }

    fn run(&mut self, most: u64, way: &mut Option<Rc<Way>>) -> Result<Explored, String> {
        let mut explored = Explored::default();
        let first = self.fingerprint();
        let mut seen: HashSet<u64, BuildHasherDefault<Mixer>> = HashSet::from_iter([first]);
        let mut open = vec![self.save(first, None)];
        while let Some(state) = open.pop() {
            explored.states += 1;
            if explored.states > most {
                return Err(format!("more than {most} states"));
            }
            self.restore(&state);
            let steps = self.enabled();
            // A rank that can only die, or poll again and again, is stuck.
            let mut stuck = true;
            for step in steps {
                self.restore(&state);
                *way = Some(Rc::new(Way { step, before: state.way.clone() }));
                self.apply(step)?;
                explored.steps += 1;
                let print = self.fingerprint();
                stuck &= print == state.print || matches!(step, Step::Death(_));
                if seen.insert(print) {
                    open.push(self.save(print, way.clone()));
                }
            }
            if stuck {
                way.clone_from(&state.way);
                self.restore(&state);
                self.ends()?;
                explored.ends += 1;
            }
        }
        Ok(explored)
    }

    fn ends(&self) -> Result<(), String> {
        let stuck = self.actors.iter().enumerate().find(|(_, actor)| !actor.is_gone());
        if let Some((rank, actor)) = stuck {
            return Err(format!("liveness: nothing left to happen, and not done is rank {rank}: {}", actor.summary()));
        }
        if self.actors.iter().any(Actor::is_dead) { Ok(()) } else { self.oracle.closes() }
    }
}

/// Mixes every word thoroughly: two states that differ in one bit get hashes that differ in half of the bits.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = super::oracle::mix(self.0.rotate_left(1) ^ word);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}
