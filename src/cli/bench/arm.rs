//! What it costs to queue the operations of a round in a provider, which then runs them by itself.

use std::time::{Duration, Instant};

use earlybird::fabric::ofi;
use earlybird::fabric::ofi::offload::{Card, Introduction, provider_for};
use earlybird::trigger::{Request, Schedule, Start, hops};
use earlybird::{Error, Result, World};
use serde_json::json;

use super::super::table::Table;
use super::PATIENCE;

/// Rounds that are armed one after the other.
const SLOTS: u64 = 8;

fn open(world: &World, bytes: u64) -> Result<(Card, String)> {
    let rank = world.rank();
    let cannot = |rank, cause: String| Error::Join { rank, cause };
    let library = ofi::library().map_err(|problem| cannot(rank, problem.to_string()))?;
    let provider = provider_for(&library, world.provider()).map_err(|problem| cannot(rank, problem))?;
    let (start, schedule) = (Start::First, Schedule::Gather);
    let request = Request { ranks: world.size(), start, schedule, bytes, chunk: 0, slots: SLOTS };
    let (mut card, introduction) = Card::open(&library, &provider, rank, &request, 0)?;
    let everybody = world.fabric().exchange_long("arm", &introduction.encode(), Instant::now() + PATIENCE)?;
    let strange =
        |peer| cannot(rank, format!("rank {peer} introduced itself in a way this version does not understand"));
    let everybody =
        everybody.iter().zip(0u32..).map(|(bytes, peer)| Introduction::decode(bytes).ok_or_else(|| strange(peer)));
    card.connect(&everybody.collect::<Result<Vec<_>>>()?)?;
    Ok((card, provider))
}

fn wait_for(world: &World, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let since = Instant::now();
    while !done()? {
        world.fabric().look_for_dead("arm")?;
        if since.elapsed() > PATIENCE {
            let missing = earlybird::error::Ranks::default();
            return Err(Error::Timeout { rank: world.rank(), operation: "arm", waited: since.elapsed(), missing });
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// Arms rounds, lets them run, and prints what arming took on rank 0.
pub(super) fn run(world: &World, bytes: u64, (warmup, iters): (u32, Option<u32>), as_json: bool) -> Result<()> {
    let (mut card, provider) = open(world, bytes)?;
    let slots = 0..SLOTS as usize;
    let warmup = u64::from(warmup).div_ceil(SLOTS);
    let turns = warmup + u64::from(iters.unwrap_or(200)).div_ceil(SLOTS);
    let mut seconds = Vec::new();
    for turn in 0..turns {
        for slot in slots.clone() {
            let start = Instant::now();
            card.arm(slot)?;
            if turn >= warmup {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        for slot in slots.clone() {
            card.ready(slot)?;
            if world.rank() == 0 {
                card.arrive(slot)?;
            }
        }
        for slot in slots.clone() {
            wait_for(world, || card.has_outcome(slot))?;
            if world.rank() != 0 {
                card.arrive(slot)?;
            }
        }
        for slot in slots.clone() {
            wait_for(world, || card.is_over(slot))?;
        }
    }
    if world.rank() == 0 {
        tell(world, &provider, card.operations(), seconds, as_json);
    }
    // Nobody goes while others may still be told something.
    world.barrier(PATIENCE)
}

fn tell(world: &World, provider: &str, operations: u64, mut seconds: Vec<f64>, as_json: bool) {
    seconds.sort_unstable_by(f64::total_cmp);
    let at = |q: f64| seconds[((seconds.len() - 1) as f64 * q).round() as usize] * 1e6;
    let each = |us: f64| us / operations as f64;
    let transfers = u64::from(hops(world.size()) + world.size() - 1);
    let (p50, p99) = (at(0.5), at(0.99));
    if as_json {
        let row = json!({
            "op": "arm", "provider": provider, "ranks": world.size(), "operations": operations, "transfers": transfers,
            "rounds": seconds.len(), "p50_us": p50, "p99_us": p99, "each_us": each(p50),
        });
        return say!("{row}");
    }
    let mut table = Table::new(&["ranks", "operations", "transfers", "rounds", "p50_us", "p99_us", "each_us"]);
    let counts = [u64::from(world.size()), operations, transfers, seconds.len() as u64].map(|count| count.to_string());
    let times = [p50, p99, each(p50)].map(|us| format!("{us:.2}"));
    table.row(&counts.into_iter().chain(times).collect::<Vec<_>>());
    say!("arm, {provider}: what a rank queues for a round");
    say!("{table}");
}
