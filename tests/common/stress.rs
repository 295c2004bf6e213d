//! One rank of a stress run, and a run: random delays, uneven step counts, integers exact, floats the
//! same bits everywhere.

use std::fmt;
use std::time::Duration;

use earlybird::{Config, Executor, Fire, Mover, Part, When, World};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Job, Way, left_behind, role, said, shared_memory_files};

const DEADLINE: Duration = Duration::from_secs(120);

/// Rounds that a rank may be behind.
const DEPTH: u32 = 8;

/// What rank `rank` contributes for round `target`: every rank can compute it, and check it.
fn value(rank: u32, target: u64, index: usize) -> u64 {
    (u64::from(rank) << 32 | target).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(index as u64)
}

fn as_float(bits: u64) -> f32 {
    (bits >> 40) as f32 / 1000.0
}

/// What the ranks of a stress run do with one collective.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    pub fire: &'a str,
    pub how: (Mover, Executor),
    pub length: usize,
    pub steps: u64,
}

impl fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { fire, how: (mover, executor), length, steps } = self;
        write!(f, "{fire} {mover} {executor} {length} {steps}")
    }
}

/// Plays one rank of a stress run; prints digests of what it received. The role has `FIRE MOVER EXECUTOR LENGTH STEPS`
/// of each collective, separated by semicolons.
pub fn play() {
    let Some(role) = role() else { return };
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    for run in role.split(';') {
        let words: Vec<&str> = run.split(' ').collect();
        let [fire, mover, executor, length, steps] = words[..] else { panic!("{run}") };
        let how = (mover.parse().unwrap(), executor.parse().unwrap());
        play_one(&world, &Run { fire, how, length: length.parse().unwrap(), steps: steps.parse().unwrap() });
    }
}

fn play_one(world: &World, run: &Run<'_>) {
    let Run { how: (mover, executor), length, steps, .. } = *run;
    let fire: Fire = run.fire.parse().unwrap();
    let me = world.rank();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(u64::from(me));
    let sums = world.allreduce::<u64>(&[length]).fire(fire).mover(mover).executor(executor);
    let mut sums = sums.depth(DEPTH).build().unwrap();
    assert_eq!(sums.executor(), executor, "another executor carries it out");
    // Uneven: the last rank makes about half as many steps as the first.
    let steps_of = |rank: u32| steps - steps / 2 * u64::from(rank) / u64::from(world.size());
    // The least arrivals of a round while so many ranks are certainly active: each step is in a round of its own.
    let needed = match fire.when() {
        When::All => world.size(),
        When::Quorum(quorum) => quorum,
        _ => 1,
    };
    let counted = steps_of(needed - 1);
    let steps = steps_of(me);
    let (mut newest, mut newest_float) = (0, 0);
    let mut digest = 0u64;
    let mut digests = Vec::new();
    let mut entered = 0;
    let pause = |rng: &mut Xoshiro256PlusPlus| {
        if rng.random_range(0..8) == 0 {
            std::thread::sleep(Duration::from_micros(rng.random_range(1..400)));
        }
    };
    for _ in 0..steps {
        if rng.random_range(0..4) == 0 {
            // No rank may still read what this overwrites.
            sums.contribution().unwrap().fill(u64::MAX);
        }
        pause(&mut rng);
        for (index, x) in sums.contribution().unwrap().iter_mut().enumerate() {
            *x = value(me, newest + 1, index);
        }
        sums.arrive().unwrap();
        if rng.random_range(0..4) == 0 {
            sums.contribution().unwrap().fill(u64::MAX);
        }
        let outcomes = sums.wait(DEADLINE).unwrap();
        assert!(outcomes.len() <= DEPTH as usize, "{fire}: {} rounds behind", outcomes.len());
        for outcome in outcomes {
            newest = outcome.round();
            let cut = outcome.cut();
            // A last arrival counts, and has no data.
            let arrived = cut.entries().filter(|entry| entry.part != Part::Carried).count();
            assert!(newest > counted || arrived >= needed as usize, "{fire}, round {newest} fired with {cut:?}");
            // If a program counts arrivals, no rank learns which was the last.
            let told = !fire.is_synchronous() && (executor != Executor::Provider || needed == 1);
            assert_eq!(outcome.initiator().is_some(), told, "{fire}, round {newest}: {cut:?}");
            assert!(outcome.ages().iter().all(|&(_, age)| age < newest), "{fire}, round {newest}: {cut:?}");
            for (index, &x) in outcome.data().iter().enumerate() {
                let expected = cut
                    .contributions()
                    .fold(0u64, |sum, entry| sum.wrapping_add(value(entry.rank, newest - entry.age, index)));
                assert_eq!(x, expected, "round {newest}, element {index}, {cut:?}");
            }
            entered += cut.contributions().filter(|entry| entry.rank == me).count() as u64;
        }
    }
    // This rank has not seen its last carried contribution enter; it does before `finish` returns.
    assert!(steps - entered <= 1, "rank {me} made {steps} contributions and saw {entered} of them");
    sums.finish(DEADLINE).unwrap();

    let mut floats = world.allreduce::<f32>(&[length]).fire(fire).mover(mover).executor(executor).build().unwrap();
    for _ in 0..steps {
        pause(&mut rng);
        for (index, x) in floats.contribution().unwrap().iter_mut().enumerate() {
            *x = as_float(value(me, newest_float + 1, index));
        }
        floats.arrive().unwrap();
        for outcome in floats.wait(DEADLINE).unwrap() {
            newest_float = outcome.round();
            for x in outcome.data() {
                digest = digest.rotate_left(5) ^ u64::from(x.to_bits());
            }
            // Every receiver of a round received all rounds before it, so its digest covers them all.
            digests.push(digest);
        }
    }
    floats.finish(DEADLINE).unwrap();
    println!(
        "\nDIGESTS {}",
        digests.iter().step_by(7).map(|digest| format!("{digest:x}")).collect::<Vec<_>>().join(",")
    );
}

/// Returns digests of all rounds, from the rank that saw the most of them.
pub fn stress(way: Way, ranks: u32, run: Run<'_>) -> Vec<String> {
    stress_in_turn(way, ranks, &[run]).remove(0)
}

/// The same processes do one run after the other: to load a library may take them longer than a run. Returns the digests
/// of each run.
pub fn stress_in_turn(way: Way, ranks: u32, runs: &[Run<'_>]) -> Vec<Vec<String>> {
    let before = shared_memory_files();
    let role: Vec<String> = runs.iter().map(Run::to_string).collect();
    let role = role.join(";");
    let job = Job::start(way, ranks, "rank", &role);
    let pids = job.pids();
    let digests = check(job, &format!("{way:?}, {ranks} ranks, {role}"));
    assert_eq!(digests.len(), runs.len());
    let left = left_behind(&before, &pids);
    assert!(left.is_empty(), "{way:?}: {left:?} was left behind");
    digests
}

/// Waits for the ranks of a job; returns the digests of each run.
pub fn check(job: Job, what: &str) -> Vec<Vec<String>> {
    let ends = job.finish(DEADLINE);
    // The first rank that failed may only report another rank's failure.
    let failed = ends.iter().enumerate().filter(|(_, (status, _))| !status.success());
    let failed: Vec<String> = failed.map(|(rank, (_, text))| format!("rank {rank}: {text}")).collect();
    assert!(failed.is_empty(), "{what}: {}", failed.join("\n"));
    let told: Vec<Vec<&str>> = ends.iter().map(|(_, text)| said(text, "DIGESTS")).collect();
    let of_run = |run: usize| {
        let of_rank = |told: &Vec<&str>| told[run].split(',').map(str::to_owned).collect();
        let digests: Vec<Vec<String>> = told.iter().map(of_rank).collect();
        assert!(have_same_bits(&digests), "{what}, run {run}: a rank saw other bits: {digests:?}");
        digests.into_iter().max_by_key(Vec::len).unwrap()
    };
    (0..told[0].len()).map(of_run).collect()
}

/// Whether these lists of digests, none of them empty, are the same as far as they go.
pub fn have_same_bits(digests: &[Vec<String>]) -> bool {
    let longest = digests.iter().max_by_key(|list| list.len()).unwrap();
    digests.iter().all(|list| !list[0].is_empty() && list.iter().zip(longest).all(|(a, b)| a == b))
}
