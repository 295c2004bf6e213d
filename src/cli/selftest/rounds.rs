//! Runs rounds of a collective until all ranks have reached the same one, and judges each.

use std::time::{Duration, Instant};

use crate::{Allreduce, Fire, Result, World};

use super::super::pattern::Exact;
use super::PATIENCE;
use super::witness::Witness;

/// A collective in use, as one rank sees it.
pub(super) struct Rounds<'w, T: Exact> {
    world: &'w World,
    sum: Allreduce<T>,
    depth: u32,
    pub(super) witness: Witness,
    /// The times from arriving to having the outcome, in seconds.
    pub(super) latencies: Vec<f64>,
}

/// The usual depth.
const DEPTH: u32 = 8;

impl<'w, T: Exact> Rounds<'w, T> {
    pub(super) fn new(world: &'w World, fire: Fire, bytes: usize) -> Result<Self> {
        let length = bytes / size_of::<T>();
        let sum = world.allreduce::<T>(&[length]).fire(fire).depth(DEPTH).build()?;
        let witness = Witness::new::<T>(world.size(), fire, sum.executor());
        Ok(Rounds { world, sum, depth: DEPTH, witness, latencies: Vec::new() })
    }

    /// Makes steps until round `end` is complete. Before each step the rank computes for a while.
    pub(super) fn until(&mut self, end: u64, pause: impl Fn(u64) -> Duration) -> Result<()> {
        let rank = self.world.rank();
        let mut step = 0;
        while self.witness.newest < end {
            std::thread::sleep(pause(step));
            step += 1;
            self.witness.contribute(self.sum.contribution()?, rank);
            let start = Instant::now();
            self.sum.arrive()?;
            let outcomes = self.sum.wait(PATIENCE)?;
            self.latencies.push(start.elapsed().as_secs_f64());
            // The rounds in which ranks leave come after those that all have received.
            self.witness.look(outcomes.into_iter().take_while(|outcome| outcome.round() <= end), self.depth);
        }
        Ok(())
    }

    /// Leaves, and compares what the ranks have seen; all ranks have received the same rounds.
    pub(super) fn finish(mut self) -> Result<Witness> {
        self.witness.account(self.world.rank());
        self.sum.finish(PATIENCE)?;
        let mine = [self.witness.newest, self.witness.digest()];
        let all = gather(self.world, mine)?;
        if let Some(other) = all.iter().position(|other| *other != mine) {
            let problem = || format!("G2: rank {other} has other cuts or other bits than rank {}", self.world.rank());
            self.witness.problem.get_or_insert_with(problem);
        }
        Ok(self.witness)
    }
}

/// Returns the numbers of all ranks, in rank order. All ranks call it.
pub(super) fn gather<const N: usize>(world: &World, mine: [u64; N]) -> Result<Vec<[u64; N]>> {
    let bytes = mine.map(u64::to_le_bytes).concat();
    let all = world.fabric().exchange("selftest", &bytes, Instant::now() + PATIENCE)?;
    let number = |bytes: &[u8], index: usize| {
        let word = bytes.get(index * 8..index * 8 + 8).and_then(|word| word.try_into().ok());
        word.map_or(u64::MAX, u64::from_le_bytes)
    };
    Ok(all.iter().map(|bytes| std::array::from_fn(|index| number(bytes, index))).collect())
}

/// Returns the longest of the times of all ranks. All ranks call it.
pub(super) fn longest(world: &World, mine: Duration) -> Result<Duration> {
    let all = gather(world, [mine.as_nanos() as u64])?;
    Ok(Duration::from_nanos(all.iter().map(|[nanos]| *nanos).max().unwrap_or(0)))
}

/// Returns the time of a small synchronous round on the slowest rank. All ranks call it.
pub(super) fn pace(world: &World) -> Result<Duration> {
    const ROUNDS: u64 = 8;
    let mut rounds = Rounds::<f32>::new(world, Fire::ALL, 64)?;
    // Ranks connect when they first have data to send.
    rounds.until(1, |_| Duration::ZERO)?;
    let start = Instant::now();
    rounds.until(1 + ROUNDS, |_| Duration::ZERO)?;
    let time = longest(world, start.elapsed())?;
    rounds.finish()?;
    Ok(time / ROUNDS as u32)
}

/// Returns a time for people.
pub(super) fn told(seconds: f64) -> String {
    let us = seconds * 1e6;
    match us {
        ..10.0 => format!("{us:.2} µs"),
        10.0..1000.0 => format!("{us:.0} µs"),
        _ => format!("{:.1} ms", us / 1000.0),
    }
}
