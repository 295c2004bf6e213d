//! Checks with troubles: ranks that are late, asleep or missing, and ranks that disagree.

use std::time::{Duration, Instant};

use crate::{Error, Fire, Grace, Mover, Part, Result, World};

use super::report::Finding;
use super::rounds::{Rounds, longest, pace, told};
use super::{Effort, PATIENCE};

/// The period of full rounds: each of them waits for all ranks, so that every earlier contribution has entered.
const FULL: u64 = 8;

/// The minimum time for which the late rank computes before each step.
const COMPUTE: Duration = Duration::from_millis(4);

/// Returns the rules under which ranks can be late.
pub(super) fn late_rules(ranks: u32) -> Vec<Fire> {
    let full = |fire: Fire| fire.full_every(FULL as u32);
    vec![full(Fire::SOLO), full(Fire::quorum(ranks.div_ceil(2))), full(Fire::deadline(COMPUTE / 2))]
}

/// The last rank computes before each step, and the others do not, so it is late repeatedly. After a full round each
/// contribution must have entered, once.
pub(super) fn late(world: &World, effort: &Effort, fire: Fire) -> Result<Finding> {
    let compute = (pace(world)? * 3).clamp(COMPUTE, Duration::from_millis(500));
    let is_late = world.rank() + 1 == world.size();
    let pause = |_| if is_late { compute } else { Duration::ZERO };
    let (mut contributions, mut carried, mut age, mut problem) = (0, 0, 0, None);
    for &bytes in effort.sizes.iter().filter(|&&bytes| bytes <= 65_536) {
        let mut rounds = Rounds::<u64>::new(world, fire, bytes)?;
        let start = Instant::now();
        rounds.until(FULL, pause)?;
        let each = longest(world, start.elapsed())?;
        let more = (effort.time.as_secs_f64() / each.as_secs_f64().max(1e-9)) as u64;
        rounds.until(FULL * (1 + more.clamp(2, 50)), pause)?;
        let witness = rounds.finish()?;
        (contributions, carried) = (contributions + witness.contributions(), carried + witness.carried);
        age = age.max(witness.age_max);
        problem = problem.or(witness.problem);
        if each > effort.time * 4 {
            break;
        }
    }
    Ok(match carried {
        0 if problem.is_none() => Finding::not_run(format!("no rank was late in {contributions} contributions")),
        _ => Finding::unless(problem, format!("{contributions} contributions, {carried} carried, oldest {age} rounds")),
    })
}

/// The number of rounds that are made without the sleeping rank. All fit its ring.
const WITHOUT: u64 = 4;

/// Returns how long a rank sleeps: far longer than the rounds that the others make meanwhile.
fn pause(world: &World) -> Result<Duration> {
    Ok((pace(world)? * 10 * WITHOUT as u32).clamp(Duration::from_millis(150), Duration::from_secs(3)))
}

/// How often a check is repeated, each time with twice the time.
const REPEATS: u32 = 4;

/// Makes a check in a time. On a busy machine other ranks may do less in it than the check needs. If a rank reports
/// that, the check is repeated in twice the time. So the check judges what ranks have done, not how fast.
fn in_enough_time<R>(
    world: &World,
    mut time: Duration,
    check: impl Fn(Duration) -> Result<(bool, R)>,
) -> Result<(Duration, R)> {
    for repeat in 0.. {
        let (hurried, found) = check(time)?;
        let any_hurried = !longest(world, Duration::from_secs(u64::from(hurried)))?.is_zero();
        if !any_hurried || repeat == REPEATS {
            return Ok((time, found));
        }
        time *= 2;
    }
    unreachable!("the last repeat returns")
}

/// Lets each rank in turn sleep outside the library, while the others make rounds. So the home of a round sleeps, too.
pub(super) fn absent(world: &World, effort: &Effort) -> Result<Finding> {
    let (ranks, mut pause) = (world.size(), pause(world)?);
    let turns = ranks.min(effort.absent);
    let (mut slowest, mut problem) = (Duration::ZERO, None);
    for turn in 0..turns {
        // Spread over the world.
        let sleeper = (u64::from(turn) * u64::from(ranks) / u64::from(turns)) as u32;
        let (slept, (took, found)) = in_enough_time(world, pause, |pause| without(world, sleeper, pause))?;
        pause = slept;
        slowest = slowest.max(took);
        problem = problem.or(found);
    }
    let (took, slept) = (told(longest(world, slowest)?.as_secs_f64()), told(pause.as_secs_f64()));
    let figure = format!("{turns} ranks in turn; {WITHOUT} rounds took {took} at most, of {slept} of sleep");
    Ok(Finding::unless(problem, figure))
}

/// Makes rounds without one rank, which then receives them and is carried into the next one. Returns whether that rank
/// woke before they were made, the time that the rounds took here, and a problem that this rank has seen. If the others
/// need the rank, it always wakes before.
fn without(world: &World, sleeper: u32, pause: Duration) -> Result<(bool, (Duration, Option<String>))> {
    let ranks = world.size();
    let fire = Fire::quorum(ranks - 1);
    let mut sum = world.allreduce::<u64>(&[16]).fire(fire).grace(Grace::NONE).build()?;
    let sleeps = world.rank() == sleeper;
    let mut problem = None;
    let mut mind = |holds: bool, text: String| {
        if !holds {
            problem.get_or_insert(text);
        }
    };
    world.barrier(PATIENCE)?;
    let start = Instant::now();
    let (mut took, mut early) = (Duration::ZERO, false);
    if sleeps {
        std::thread::sleep(pause);
        sum.contribution()?.fill(1);
        sum.arrive()?;
        let missed: Vec<u64> = sum.wait(PATIENCE)?.iter().map(|outcome| outcome.round()).collect();
        let expected: Vec<u64> = (1..=WITHOUT).collect();
        early = missed.len() < expected.len();
        mind(
            !early,
            format!("G3: {} of {WITHOUT} rounds were made while rank {sleeper} slept {pause:?}", missed.len()),
        );
        mind(missed == expected, format!("G4: rank {sleeper} slept through {expected:?} and received {missed:?}"));
    } else {
        for round in 1..=WITHOUT {
            sum.contribution()?.fill(1);
            sum.arrive()?;
            let outcome = sum.wait(PATIENCE)?.newest();
            let (is, value) = (outcome.round(), outcome.data()[0]);
            mind(is == round, format!("G4: round {is} came where round {round} was due"));
            mind(value == u64::from(ranks) - 1, format!("G5: round {round} has {value} contributions of {ranks} - 1"));
        }
        took = start.elapsed();
    }
    // The sleeper has arrived late by now, so it is carried into the next round.
    world.barrier(PATIENCE)?;
    if !sleeps {
        sum.contribution()?.fill(1);
        sum.arrive()?;
        // Other ranks may have left meanwhile, which closes further rounds.
        let outcomes = sum.wait(PATIENCE)?;
        let mut entries = outcomes.iter().flat_map(|outcome| outcome.cut().entries());
        let age = entries.find(|entry| entry.rank == sleeper && entry.part == Part::Carried).map(|entry| entry.age);
        let cuts = || outcomes.iter().map(|outcome| format!("{:?}", outcome.cut())).collect::<Vec<_>>().join(", ");
        let text = format!("G1: what rank {sleeper} contributed after its sleep is not carried: {}", cuts());
        mind(age == Some(WITHOUT), text);
    }
    sum.finish(PATIENCE)?;
    Ok((early, (took, problem)))
}

/// Checks a deadline: a rank does not come, the deadline of the others names it, and nothing is lost.
pub(super) fn deadline(world: &World, _: &Effort) -> Result<Finding> {
    let missing = world.size() - 1;
    let (short, problem) = in_enough_time(world, pause(world)?, |short| without_the_last(world, missing, short))?;
    Ok(Finding::unless(problem, format!("after {} each other rank named rank {missing}", told(short.as_secs_f64()))))
}

/// Makes a round for which one rank is late. Returns whether others were late, too, and a problem that this rank has
/// seen.
fn without_the_last(world: &World, missing: u32, short: Duration) -> Result<(bool, Option<String>)> {
    // Under the other mover a rank names one that may itself be waiting.
    let mut sum = world.allreduce::<u64>(&[16]).mover(Mover::Cut).build()?;
    world.barrier(PATIENCE)?;
    let (mut problem, mut hurried) = (None, false);
    if world.rank() == missing {
        std::thread::sleep(short * 3);
    }
    sum.contribution()?.fill(1);
    sum.arrive()?;
    if world.rank() != missing {
        match sum.wait(short).map(|outcomes| outcomes.newest().round()) {
            Err(Error::Timeout { missing: named, .. }) if named.0 == [missing] => {}
            Err(Error::Timeout { missing: named, .. }) => {
                hurried = named.0.contains(&missing);
                problem = Some(format!("G8: the deadline named {named}, and rank {missing} was missing"));
            }
            Err(error) => return Err(error),
            Ok(_) => problem = Some(format!("G5: a round of all ranks fired without rank {missing}")),
        }
    }
    let outcome = sum.wait(PATIENCE)?.newest();
    let value = outcome.data()[0];
    drop(outcome);
    if value != u64::from(world.size()) {
        problem.get_or_insert(format!("G8: after a deadline the outcome has {value} contributions"));
    }
    sum.finish(PATIENCE)?;
    Ok((hurried, problem))
}

/// Checks a mismatch: one rank asks for another depth, and every rank is told both values.
pub(super) fn mismatch(world: &World, _: &Effort) -> Result<Finding> {
    let is_different = world.rank() + 1 == world.size();
    let depth = if is_different { 4 } else { 5 };
    let built = world.allreduce::<u64>(&[16]).fire(Fire::SOLO).depth(depth).build();
    let problem = match built {
        Err(Error::Mismatch { what, mine, theirs, .. }) if mine != theirs && !what.is_empty() => None,
        Err(error) => return Err(error),
        Ok(mut sum) => {
            sum.finish(PATIENCE)?;
            Some("G8: a collective was built although ranks chose different depths".to_owned())
        }
    };
    Ok(Finding::unless(problem, "every rank names the difference"))
}
