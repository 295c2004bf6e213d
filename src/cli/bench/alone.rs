//! What a *solo* round takes the rank that makes it while all others are away.

use std::time::{Duration, Instant};

use earlybird::{Fire, Grace, Result, World};

use super::p2p::{self, Measured};
use super::{Args, PATIENCE, conditions::Conditions};

/// Rounds that one rank makes for each size. Returns wrong results.
pub(super) fn run(world: &World, args: &Args, sizes: &[u64], conditions: Option<&Conditions>) -> Result<u64> {
    let mut table = p2p::latencies();
    let mut wrong = 0;
    for &bytes in sizes {
        let (measured, errors) = measure(world, args, bytes as usize)?;
        wrong += errors;
        if world.rank() == 0 {
            p2p::times(measured, conditions, &mut table);
        }
    }
    if world.rank() == 0 && conditions.is_none() {
        say!("{}, {} ranks, {}: the others are away", args.op, world.size(), super::report::transport(world));
        say!("{table}");
    }
    world.barrier(Duration::from_secs(10))?;
    Ok(wrong)
}

/// Rank 0 makes as many rounds as it may be ahead, then all begin anew: so nothing is carried. The others wait at a
/// barrier.
fn measure(world: &World, args: &Args, bytes: usize) -> Result<(Measured, u64)> {
    let (depth, length) = (args.common.depth, bytes / size_of::<f32>());
    let (warmup, iterations) = (args.warmup as usize, args.iters.unwrap_or(1_000) as usize);
    let (mut seconds, mut wrong, mut made) = (Vec::with_capacity(iterations), 0, 0);
    while made < warmup + iterations {
        let rounds = (warmup + iterations - made).min(depth as usize);
        let sum = world.allreduce::<f32>(&[length]).fire(Fire::SOLO).grace(Grace::NONE).depth(depth);
        let mut sum = sum.mover(args.common.mover).executor(args.common.executor).build()?;
        world.barrier(PATIENCE)?;
        for round in (made..made + rounds).take_while(|_| world.rank() == 0) {
            let value = (round % 100) as f32;
            sum.contribution()?.fill(value);
            let start = Instant::now();
            sum.arrive()?;
            let outcomes = sum.wait(PATIENCE)?;
            if round >= warmup {
                seconds.push(start.elapsed().as_secs_f64());
            }
            let newest = outcomes.newest();
            let alone = newest.cut().contributions().count() == 1;
            wrong += u64::from(!alone || newest.data().iter().any(|&x| x != value));
        }
        world.barrier(PATIENCE)?;
        sum.finish(PATIENCE)?;
        made += rounds;
    }
    Ok((Measured { bytes: length * size_of::<f32>(), iterations: seconds.len() as u64, seconds }, wrong))
}
