//! Synchronous collectives: calls that every rank makes, and that end when the rank has its result.

use std::time::{Duration, Instant};

use crate::{Reduce, Result, World};
use serde_json::json;

use super::super::common::mean_over_ranks;
use super::super::distribution::Distribution;
use super::super::table::Rows;
use super::conditions::Conditions;
use super::report::{about_here, bandwidths, moved_by_allreduce, transport};
use super::{BenchOp, PATIENCE, TRIAL, iters_within};

/// The data of a rank for one size.
struct Case<'a> {
    world: &'a World,
    op: BenchOp,
    /// The number of 32-bit elements that a rank contributes, or of each block.
    block: usize,
    one: Vec<u32>,
    all: Vec<u32>,
    all_received: Vec<u32>,
}

/// The root, if the call has one.
const ROOT: u32 = 0;

impl<'a> Case<'a> {
    fn new(world: &'a World, op: BenchOp, block: usize) -> Self {
        let blocks = block * world.size() as usize;
        Case { world, op, block, one: vec![0; block], all: vec![0; blocks], all_received: vec![0; blocks] }
    }

    fn rank(&self) -> u32 {
        self.world.rank()
    }

    /// Returns what `rank` contributes at an index.
    fn value(rank: u32, index: usize) -> u32 {
        rank * 3 + index as u32 % 1021
    }

    fn fill(&mut self) {
        let rank = self.rank();
        for (index, value) in self.one.iter_mut().enumerate() {
            *value = Self::value(rank, index);
        }
        for (index, value) in self.all.iter_mut().enumerate() {
            *value = Self::value(rank, index);
        }
        self.all_received.fill(u32::MAX);
    }

    /// Writes anew what the next call sends, as a program does: data that no rank writes stays in the caches of its
    /// readers.
    fn renew(&mut self) {
        let sent = match self.op {
            BenchOp::Scatter | BenchOp::AllToAll | BenchOp::ReduceScatter => &mut self.all,
            _ => &mut self.one,
        };
        sent.iter_mut().for_each(|value| *value = value.wrapping_add(1));
    }

    fn call(&mut self) -> Result<()> {
        let Case { world, op, one, all, all_received, .. } = self;
        let at_root = world.rank() == ROOT;
        match op {
            BenchOp::Broadcast => world.broadcast(one, ROOT, PATIENCE),
            BenchOp::Gather => world.gather(one, at_root.then_some(&mut all_received[..]), ROOT, PATIENCE),
            BenchOp::AllGather => world.all_gather(one, all_received, PATIENCE),
            BenchOp::Scatter => world.scatter(at_root.then_some(&all[..]), one, ROOT, PATIENCE),
            BenchOp::AllToAll => world.all_to_all(all, all_received, PATIENCE),
            BenchOp::Reduce => {
                let result = at_root.then_some(&mut all_received[..one.len()]);
                world.reduce(one, result, Reduce::Sum, ROOT, PATIENCE)
            }
            BenchOp::ReduceScatter => world.reduce_scatter(all, one, Reduce::Sum, PATIENCE),
            _ => world.all_reduce(one, Reduce::Sum, PATIENCE),
        }
    }

    /// Returns the number of elements that are wrong after a call with fresh data.
    fn wrong(&self) -> u64 {
        let (rank, ranks) = (self.rank(), self.world.size());
        let sum = |index: usize| (0..ranks).map(|rank| Self::value(rank, index)).sum::<u32>();
        let differs = |data: &[u32], expected: &dyn Fn(usize) -> u32| {
            data.iter().enumerate().filter(|&(index, &value)| value != expected(index)).count() as u64
        };
        let (block, own) = (self.block, rank as usize * self.block);
        let of_all = |index: usize| Self::value((index / block) as u32, index % block);
        match self.op {
            BenchOp::Gather | BenchOp::Reduce if rank != ROOT => 0,
            BenchOp::Broadcast => differs(&self.one, &|index| Self::value(ROOT, index)),
            BenchOp::Gather | BenchOp::AllGather => differs(&self.all_received, &of_all),
            BenchOp::Scatter => differs(&self.one, &|index| Self::value(ROOT, own + index)),
            BenchOp::AllToAll => {
                differs(&self.all_received, &|index| Self::value((index / block) as u32, own + index % block))
            }
            BenchOp::Reduce => differs(&self.all_received[..block], &sum),
            BenchOp::ReduceScatter => differs(&self.one, &|index| sum(own + index)),
            _ => differs(&self.one, &sum),
        }
    }
}

/// Returns how many blocks the data of a call has, as nccl-tests counts it, and the share of it that each rank moves.
fn moved(op: BenchOp, ranks: u32) -> (f64, f64) {
    let (all, others) = (f64::from(ranks), f64::from(ranks - 1) / f64::from(ranks));
    match op {
        BenchOp::AllReduce => (1.0, moved_by_allreduce(ranks)),
        BenchOp::Broadcast | BenchOp::Reduce => (1.0, 1.0),
        _ => (all, others),
    }
}

/// Measures each size. Returns how many elements were wrong on this rank.
pub(super) fn run(
    world: &World,
    op: BenchOp,
    sizes: &[u64],
    (warmup, iters, seconds): (u32, Option<u32>, f64),
    conditions: Option<&Conditions>,
) -> Result<u64> {
    let mut table = Rows::new(&[
        "bytes", "iters", "mean_us", "p50_us", "p90_us", "p99_us", "p99.9_us", "min_us", "max_us", "algbw", "busbw",
        "wrong",
    ]);
    let mut wrong = 0;
    if world.rank() == 0 && conditions.is_none() {
        say!("# {op}, {} ranks, {}", world.size(), transport(world));
        say!("{}", about_here());
        say!("# algbw, busbw: GB/s by the mean time, as nccl-tests counts them");
    }
    for &bytes in sizes {
        let block = bytes as usize / size_of::<u32>();
        let mut case = Case::new(world, op, block);
        let mut wrong_here = 0;
        for _ in 0..3 {
            case.fill();
            case.call()?;
            wrong_here += case.wrong();
        }
        case.fill();
        let iterations = match iters {
            Some(iters) => iters,
            None => {
                let begun = Instant::now();
                for _ in 0..TRIAL {
                    case.renew();
                    case.call()?;
                }
                let pace = begun.elapsed().as_secs_f64() / f64::from(TRIAL);
                iters_within(seconds, mean_over_ranks(world, &[pace], PATIENCE)?[0])
            }
        };
        let mut latencies = Vec::with_capacity(iterations as usize);
        for iteration in 0..warmup + iterations {
            case.renew();
            let started = Instant::now();
            case.call()?;
            if iteration >= warmup {
                latencies.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        let times = Distribution::of(mean_over_ranks(world, &latencies, PATIENCE)?);
        let mut total = [wrong_here];
        world.all_reduce(&mut total, Reduce::Sum, PATIENCE)?;
        wrong += total[0];
        if world.rank() != 0 {
            continue;
        }
        let (mean, [p50, p90, p99, p999, min, max]) = (times.mean(), times.usual());
        let bytes = block * size_of::<u32>();
        let (blocks, moved) = moved(op, world.size());
        let [algbw, busbw] = bandwidths(bytes as f64 * blocks, mean, moved);
        match conditions {
            Some(conditions) => {
                let row = json!({
                    "bytes": bytes, "iterations": times.len(), "mean_us": mean, "p50_us": p50, "p90_us": p90,
                    "p99_us": p99, "p999_us": p999, "min_us": min, "max_us": max, "algbw_gb_s": algbw,
                    "busbw_gb_s": busbw, "wrong": total[0],
                });
                conditions.say(row);
            }
            None => table.row(&[
                bytes.to_string(),
                times.len().to_string(),
                format!("{mean:.2}"),
                format!("{p50:.2}"),
                format!("{p90:.2}"),
                format!("{p99:.2}"),
                format!("{p999:.2}"),
                format!("{min:.2}"),
                format!("{max:.2}"),
                format!("{algbw:.3}"),
                format!("{busbw:.3}"),
                total[0].to_string(),
            ]),
        }
    }
    world.barrier(Duration::from_secs(10))?;
    Ok(wrong)
}
