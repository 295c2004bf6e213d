//! One operation between two ranks, in the columns of `ib_write_lat` and `ib_write_bw`.

use std::time::{Duration, Instant};

use earlybird::fabric::{At, Atomic, Change, Endpoint, Key, Posted, Region, Signal};
use earlybird::{Error, Result, World};
use serde_json::json;

use super::super::table::Table;
use super::{Op, PATIENCE};

/// Writes under way when bandwidth is measured.
const WINDOW: u64 = 64;

/// Where the cells begin that tell a rank how far the other is; data begins behind them.
const DATA: usize = 128;

/// An endpoint and the other rank's memory.
struct Pair<'w> {
    world: &'w World,
    endpoint: Box<dyn Endpoint>,
    own: Region,
    theirs: Region,
    /// Completions of operations that were posted.
    open: u64,
    /// Round trips so far: the cell has no value twice.
    rounds: u64,
}

impl<'w> Pair<'w> {
    fn new(world: &'w World, bytes: usize) -> Result<Self> {
        let fabric = world.fabric();
        let mut endpoint = fabric.open()?;
        let own = endpoint.register(DATA + bytes)?;
        let key: Vec<u8> = endpoint.key(own).iter().flat_map(|part| part.to_le_bytes()).collect();
        let keys = fabric.exchange("bench", &key, Instant::now() + PATIENCE)?;
        let peer = 1 - world.rank();
        let part = |index: usize| {
            let bytes = keys[peer as usize].get(8 * index..8 * index + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let key: Key = std::array::from_fn(part);
        let theirs = endpoint.import(peer, key)?;
        Ok(Pair { world, endpoint, own, theirs, open: 0, rounds: 0 })
    }

    fn late(&self, operation: &'static str, since: Instant) -> Result<()> {
        self.world.fabric().health(operation)?;
        if since.elapsed() < PATIENCE {
            return Ok(());
        }
        let missing = earlybird::error::Ranks(vec![1 - self.world.rank()]);
        Err(Error::Timeout { rank: self.world.rank(), operation, waited: since.elapsed(), missing })
    }

    /// Waits until at most so many operations are under way.
    fn settle(&mut self, operation: &'static str, most: u64) -> Result<u64> {
        let (since, mut value) = (Instant::now(), 0);
        while self.open > most {
            match self.endpoint.poll()? {
                Some(completion) => (self.open, value) = (self.open - 1, completion.value),
                None => self.late(operation, since)?,
            }
        }
        Ok(value)
    }

    /// Waits until the other rank has raised the first cell to `round`.
    fn hear(&mut self, operation: &'static str, round: u64) -> Result<()> {
        let since = Instant::now();
        let Some(window) = self.endpoint.window(self.own) else {
            return Err(Error::Usage { rank: self.world.rank(), operation, problem: "own memory is not mapped" });
        };
        let cell = window.cell(0);
        let mut looks = 0u32;
        while cell.load(std::sync::atomic::Ordering::Acquire) < round {
            if self.endpoint.poll()?.is_some() {
                self.open -= 1;
            }
            looks += 1;
            if looks.is_multiple_of(1024) {
                self.late(operation, since)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: usize, round: Option<u64>) -> Result<()> {
        let (from, to) = (At { region: self.own, offset: DATA }, At { region: self.theirs, offset: DATA });
        let cell = At { region: self.theirs, offset: 0 };
        let signal = round.map(|round| Signal { at: cell, change: Change::Set(round), awaited: true });
        self.open += u64::from(self.endpoint.put(from, to, bytes, signal, 0)? == Posted::Pending);
        Ok(())
    }
}

/// What was measured of one size.
struct Measured {
    bytes: usize,
    /// One each iteration; of bandwidth, one each window.
    seconds: Vec<f64>,
    iterations: u64,
}

fn write_latency(pair: &mut Pair<'_>, bytes: usize, warmup: u64, iterations: u64) -> Result<Measured> {
    let first = pair.world.rank() == 0;
    let mut seconds = Vec::with_capacity(iterations as usize);
    let base = pair.rounds;
    pair.rounds += warmup + iterations;
    for round in 1..=warmup + iterations {
        let start = Instant::now();
        if !first {
            pair.hear("write_lat", base + round)?;
        }
        pair.write(bytes, Some(base + round))?;
        if first {
            pair.hear("write_lat", base + round)?;
            if round > warmup {
                seconds.push(start.elapsed().as_secs_f64() / 2.0);
            }
        }
        pair.settle("write_lat", 4)?;
    }
    pair.settle("write_lat", 0)?;
    Ok(Measured { bytes, seconds, iterations })
}

fn write_bandwidth(pair: &mut Pair<'_>, bytes: usize, warmup: u64, iterations: u64) -> Result<Measured> {
    let mut seconds = Vec::new();
    if pair.world.rank() == 0 {
        for window in 0..(warmup + iterations).div_ceil(WINDOW) {
            let start = Instant::now();
            for _ in 0..WINDOW {
                pair.write(bytes, None)?;
            }
            // What is under way at the end of a window is part of the next.
            pair.settle("write_bw", if (window + 1) * WINDOW < warmup + iterations { WINDOW / 2 } else { 0 })?;
            if window * WINDOW >= warmup {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
    }
    pair.world.barrier(PATIENCE)?;
    Ok(Measured { bytes, iterations: seconds.len() as u64 * WINDOW, seconds })
}

fn fetch_add_latency(pair: &mut Pair<'_>, warmup: u64, iterations: u64) -> Result<Measured> {
    let mut seconds = Vec::with_capacity(iterations as usize);
    let at = At { region: pair.theirs, offset: 64 };
    let mut expected = None;
    if pair.world.rank() == 0 {
        for round in 0..warmup + iterations {
            let start = Instant::now();
            let before = match pair.endpoint.atomic(at, Atomic::FetchAdd(1), 0)? {
                Posted::Done(value) => value,
                Posted::Pending => {
                    pair.open += 1;
                    pair.settle("fetch_add_lat", 0)?
                }
            };
            if round >= warmup {
                seconds.push(start.elapsed().as_secs_f64());
            }
            let counted = expected.is_none_or(|expected| expected == before);
            expected = Some(before + 1);
            if !counted {
                let problem = "an atomic did not return the value before";
                return Err(Error::Usage { rank: 0, operation: "fetch_add_lat", problem });
            }
        }
    }
    pair.world.barrier(PATIENCE)?;
    Ok(Measured { bytes: 8, seconds, iterations })
}

fn iterations(given: Option<u32>, bytes: usize) -> u64 {
    given.map_or(if bytes <= 65_536 { 5_000 } else { (1 << 30) / bytes as u64 + 20 }, u64::from)
}

/// Measures each size, and prints what rank 0 has seen.
pub(super) fn run(
    world: &World,
    op: Op,
    sizes: &[u64],
    (warmup, iters): (u32, Option<u32>),
    as_json: bool,
) -> Result<()> {
    let most = sizes.last().copied().unwrap_or(8);
    let mut pair = Pair::new(world, most as usize)?;
    let bandwidth = op == Op::WriteBw;
    let mut table = Table::new(match bandwidth {
        true => &["bytes", "iterations", "BW_peak_MB/s", "BW_average_MB/s", "MsgRate_Mpps"],
        false => &[
            "bytes",
            "iterations",
            "t_min_us",
            "t_max_us",
            "t_typical_us",
            "t_avg_us",
            "t_stdev_us",
            "99%_us",
            "99.9%_us",
        ],
    });
    let atomic = [8];
    for &bytes in if op == Op::FetchAddLat { &atomic } else { sizes } {
        let (bytes, warmup) = (bytes as usize, u64::from(warmup));
        let count = iterations(iters, bytes);
        let measured = match op {
            Op::WriteBw => write_bandwidth(&mut pair, bytes, warmup, count)?,
            Op::FetchAddLat => fetch_add_latency(&mut pair, warmup, count)?,
            Op::WriteLat | Op::Allreduce | Op::Arm => write_latency(&mut pair, bytes, warmup, count)?,
        };
        world.barrier(PATIENCE)?;
        if world.rank() == 0 {
            if bandwidth {
                rate(world, &measured, as_json, &mut table)
            } else {
                times(world, op, measured, as_json, &mut table)
            }
        }
    }
    if world.rank() == 0 && !as_json {
        say!("{op}, 2 ranks, {}", super::report::transport(world));
        say!("{table}");
    }
    // Nobody goes while the other may still write.
    world.barrier(Duration::from_secs(10))
}

fn times(world: &World, op: Op, mut measured: Measured, as_json: bool, table: &mut Table) {
    let times = &mut measured.seconds;
    times.sort_unstable_by(f64::total_cmp);
    let at = |q: f64| times[((times.len() - 1) as f64 * q).round() as usize] * 1e6;
    let mean = times.iter().sum::<f64>() / times.len() as f64 * 1e6;
    let variance = times.iter().map(|time| (time * 1e6 - mean).powi(2)).sum::<f64>() / times.len() as f64;
    let values = [at(0.0), at(1.0), at(0.5), mean, variance.sqrt(), at(0.99), at(0.999)];
    if as_json {
        let [min, max, typical, average, deviation, p99, p999] = values;
        let (fabric, provider) = (world.fabric_name(), world.provider());
        let row = json!({
            "op": op.to_string(), "fabric": fabric, "provider": provider, "bytes": measured.bytes,
            "iterations": measured.iterations, "min_us": min, "max_us": max, "p50_us": typical, "mean_us": average,
            "stdev_us": deviation, "p99_us": p99, "p999_us": p999,
        });
        return say!("{row}");
    }
    let numbers = values.iter().map(|value| format!("{value:.2}"));
    table.row(
        &[measured.bytes.to_string(), measured.iterations.to_string()].into_iter().chain(numbers).collect::<Vec<_>>(),
    );
}

/// In millions of bytes a second, as `ib_write_bw` has it.
fn rate(world: &World, measured: &Measured, as_json: bool, table: &mut Table) {
    let per_window = WINDOW as f64 * measured.bytes as f64 / 1e6;
    let least = measured.seconds.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::NAN);
    let total: f64 = measured.seconds.iter().sum();
    let (peak, average) = (per_window / least, per_window * measured.seconds.len() as f64 / total);
    let messages = measured.iterations as f64 / total / 1e6;
    if as_json {
        let (fabric, provider) = (world.fabric_name(), world.provider());
        let row = json!({
            "op": Op::WriteBw.to_string(), "fabric": fabric, "provider": provider, "bytes": measured.bytes,
            "iterations": measured.iterations, "peak_mb_s": peak, "mean_mb_s": average, "messages_m_s": messages,
        });
        return say!("{row}");
    }
    let numbers = [peak, average].map(|value| format!("{value:.2}"));
    let [peak, average] = numbers;
    table.row(&[measured.bytes.to_string(), measured.iterations.to_string(), peak, average, format!("{messages:.4}")]);
}
