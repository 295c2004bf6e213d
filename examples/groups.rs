//! Ranks that a launcher starts, in two groups. In a group no rank waits for a slower one; then all ranks sum what they have.
//!
//! `cargo build --release --example groups && earlybird run -n 4 -- target/release/examples/groups`

use std::thread;
use std::time::Duration;

use earlybird::{Fire, Reduce, World};

const DEADLINE: Duration = Duration::from_secs(30);

fn main() -> earlybird::Result<()> {
    let world = World::from_env()?;
    let (rank, color) = (world.rank(), world.rank() % 2);
    let group = world.split(color, 0)?;

    let mut steps = group.allreduce::<f32>(&[1]).fire(Fire::SOLO).build()?;
    for step in 0..5 {
        thread::sleep(Duration::from_millis(u64::from(10 * (1 + rank))));
        steps.contribution()?.fill(1.0);
        steps.arrive()?;
        for outcome in steps.wait(DEADLINE)? {
            let (sum, fresh, carried) = (outcome.data()[0], outcome.fresh().len(), outcome.carried().len());
            let of = format!("rank {} of {} in group {color}", group.rank(), group.size());
            // A rank that leaves arrives once more, with nothing.
            println!("{of}, step {step}: {sum}, of {fresh} ranks for this round and {carried} for earlier ones");
        }
    }
    steps.finish(DEADLINE)?;

    let mut ranks = [1];
    world.all_reduce(&mut ranks, Reduce::Sum, DEADLINE)?;
    println!("rank {rank} of {}: done", ranks[0]);
    Ok(())
}
