//! Checks without troubles: operations between two ranks, rules, types.

use std::time::{Duration, Instant};

use crate::measure::{Pair, reach};
use crate::units::Bytes;
use crate::{Fire, Reduce, Result, World, bf16, f16};

use super::super::distribution::Distribution;
use super::super::pattern::Exact;
use super::report::Finding;
use super::rounds::{Rounds, gather, longest, told};
use super::{Effort, PATIENCE};

pub(super) fn connectivity(world: &World, effort: &Effort) -> Result<Finding> {
    let reached = reach(&**world.fabric(), (effort.operations / 20).max(5), PATIENCE)?;
    let mine = reached.slowest.map_or([0; 2], |(peer, seconds)| [(seconds * 1e9) as u64, u64::from(peer)]);
    let all = (0..).zip(gather(world, mine)?).map(|(rank, [nanos, peer])| (nanos, rank, peer));
    let (nanos, rank, peer): (u64, u32, u64) = all.max().unwrap_or_default();
    let (ranks, time) = (u64::from(world.size()), told(nanos as f64 / 1e9));
    Ok(Finding::held(format!("{} pairs; the slowest fetch-add, rank {rank} to {peer}: {time}", ranks * (ranks - 1))))
}

/// Returns the first and the last rank, which often are on different hosts.
fn ends(world: &World) -> (u32, u32) {
    (0, world.size() - 1)
}

fn times(seconds: Vec<f64>, what: &str, (first, last): (u32, u32)) -> Finding {
    let seconds = Distribution::of(seconds);
    let [p50, p99] = [0.5, 0.99].map(|at| told(seconds.quantile(at)));
    Finding::held(format!("{what} p50 {p50}, p99 {p99}, ranks {first} and {last}"))
}

pub(super) fn write_latency(world: &World, effort: &Effort) -> Result<Finding> {
    let pair = ends(world);
    let mut both = Pair::between(&**world.fabric(), pair, 8, PATIENCE)?;
    let seconds = both.write_latency(8, effort.operations / 10, effort.operations)?;
    world.barrier(PATIENCE)?;
    Ok(times(seconds, "write_lat 8 B", pair))
}

pub(super) fn atomic_latency(world: &World, effort: &Effort) -> Result<Finding> {
    let pair = ends(world);
    let mut both = Pair::between(&**world.fabric(), pair, 8, PATIENCE)?;
    let seconds = both.fetch_add_latency(effort.operations / 10, effort.operations)?;
    world.barrier(PATIENCE)?;
    Ok(times(seconds, "fetch_add_lat", pair))
}

/// Returns the rules to try.
pub(super) fn rules(ranks: u32) -> Vec<Fire> {
    let half = Fire::quorum(ranks.div_ceil(2));
    vec![Fire::ALL, Fire::SOLO, half, Fire::majority(1), Fire::deadline(Duration::from_millis(2))]
}

/// The number of rounds that show how long one takes.
const TRIAL: u64 = 6;

/// The maximum number of rounds of a size.
const MOST: u64 = 2000;

/// Runs rounds of a rule in every size; each rank computes a little now and then. If rounds are very slow, the larger
/// sizes are omitted.
pub(super) fn rule(world: &World, effort: &Effort, fire: Fire) -> Result<Finding> {
    let (mut total, mut parts, mut problem) = (0, Vec::new(), None);
    for &bytes in effort.sizes {
        let mut rounds = Rounds::<f32>::new(world, fire, bytes)?;
        let rank = u64::from(world.rank());
        let pause = |step: u64| Duration::from_micros(if (step + rank).is_multiple_of(5) { 300 } else { 0 });
        let start = Instant::now();
        rounds.until(TRIAL, pause)?;
        let each = longest(world, start.elapsed() / TRIAL as u32)?;
        let more = (effort.time.as_secs_f64() / each.as_secs_f64().max(1e-9)) as u64;
        rounds.until(TRIAL + more.clamp(2, MOST), pause)?;
        let p50 = Distribution::of(std::mem::take(&mut rounds.latencies)).quantile(0.5);
        let witness = rounds.finish()?;
        total += witness.newest;
        parts.push(format!("{} {}", Bytes(bytes as u64), told(p50)));
        problem = problem.or(witness.problem.map(|problem| format!("{}: {problem}", Bytes(bytes as u64))));
        if each > effort.time {
            break;
        }
    }
    let left_out = if parts.len() < effort.sizes.len() { "; larger sizes are too slow here" } else { "" };
    let shown: Vec<String> = parts.first().into_iter().chain(parts[1..].last()).cloned().collect();
    Ok(Finding::unless(problem, format!("{total} rounds; p50 of {}{left_out}", shown.join(", of "))))
}

/// Lengths that no segment or word divides.
const LENGTHS: [usize; 4] = [0, 1, 7, 1000];

/// Tries every element type with every reduction.
pub(super) fn types(world: &World, _: &Effort) -> Result<Finding> {
    let problems = [
        reductions::<f32>(world)?,
        reductions::<f64>(world)?,
        reductions::<f16>(world)?,
        reductions::<bf16>(world)?,
        reductions::<i32>(world)?,
        reductions::<i64>(world)?,
        reductions::<u32>(world)?,
        reductions::<u64>(world)?,
    ];
    let problem = problems.into_iter().flatten().next();
    Ok(Finding::unless(problem, "8 types, sum min max prod, lengths 0 1 7 1000"))
}

/// Returns what a rank contributes. At most eight ranks have a two, so that a type can represent every product.
fn small(rank: u32, index: usize) -> u32 {
    if rank < 8 { 1 + (rank + index as u32) % 2 } else { 1 }
}

fn reductions<T: Exact>(world: &World) -> Result<Option<String>> {
    let mut problem = None;
    for reduce in [Reduce::Sum, Reduce::Min, Reduce::Max, Reduce::Prod] {
        let combine = |a: u32, b: u32| match reduce {
            Reduce::Min => a.min(b),
            Reduce::Max => a.max(b),
            Reduce::Prod => a * b,
            _ => a + b,
        };
        for length in LENGTHS {
            // A greater sum is not exact in every type.
            if reduce == Reduce::Sum && 2 * world.size() > T::MOST {
                continue;
            }
            let mut all = world.allreduce::<T>(&[length]).reduce(reduce).build()?;
            let mine = all.contribution()?;
            mine.iter_mut().enumerate().for_each(|(index, x)| *x = T::from_small(small(world.rank(), index)));
            all.arrive()?;
            let expected = |index: usize| (0..world.size()).map(|rank| small(rank, index)).reduce(combine).unwrap_or(0);
            let outcome = all.wait(PATIENCE)?.newest();
            let wrong = outcome.iter().enumerate().find(|(index, x)| **x != T::from_small(expected(*index)));
            if let Some((index, x)) = wrong {
                let (dtype, is, expected) = (T::DTYPE, x.to_f64(), expected(index));
                problem.get_or_insert(format!(
                    "G6: {reduce} of {dtype}: element {index} of {length} is {is}, not {expected}"
                ));
            }
            let is_short = outcome.data().len() != length;
            drop(outcome);
            if is_short {
                problem.get_or_insert(format!("G6: an outcome of {length} elements has another length"));
            }
            all.finish(PATIENCE)?;
        }
    }
    Ok(problem)
}
