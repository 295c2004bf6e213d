//! One operation between two ranks, in the columns of `ib_write_lat` and `ib_write_bw`.

use std::time::Duration;

use crate::measure::{Pair, WINDOW};
use crate::{Result, World};
use serde_json::json;

use super::super::distribution::Distribution;
use super::super::table::Rows;
use super::conditions::Conditions;
use super::{BenchOp, PATIENCE};

/// The measurement of one size.
pub(super) struct Measured {
    pub(super) bytes: usize,
    /// The time of each iteration; for bandwidth, of each window.
    pub(super) seconds: Vec<f64>,
    pub(super) iterations: u64,
}

/// Creates a table of latencies.
pub(super) fn latencies() -> Rows {
    Rows::new(&[
        "bytes",
        "iterations",
        "t_min_us",
        "t_max_us",
        "t_typical_us",
        "t_avg_us",
        "t_stdev_us",
        "99%_us",
        "99.9%_us",
    ])
}

fn measure(pair: &mut Pair<'_>, op: BenchOp, bytes: usize, (warmup, iterations): (u64, u64)) -> Result<Measured> {
    Ok(match op {
        BenchOp::WriteBw => {
            let seconds = pair.write_bandwidth(bytes, warmup, iterations)?;
            Measured { bytes, iterations: seconds.len() as u64 * WINDOW, seconds }
        }
        BenchOp::FetchAddLat => Measured { bytes: 8, seconds: pair.fetch_add_latency(warmup, iterations)?, iterations },
        _ => Measured { bytes, seconds: pair.write_latency(bytes, warmup, iterations)?, iterations },
    })
}

/// Returns the number of iterations. Writes that are measured in windows fill whole windows.
fn iterations(op: BenchOp, given: Option<u32>, bytes: usize) -> u64 {
    let wanted = given.map_or(if bytes <= 65_536 { 5_000 } else { (1 << 30) / bytes as u64 + 20 }, u64::from);
    if op == BenchOp::WriteBw { wanted.next_multiple_of(WINDOW) } else { wanted }
}

/// Measures each size, and prints the results of rank 0.
pub(super) fn run(
    world: &World,
    op: BenchOp,
    sizes: &[u64],
    (warmup, iters): (u32, Option<u32>),
    conditions: Option<&Conditions>,
) -> Result<()> {
    let most = sizes.last().copied().unwrap_or(8);
    let mut pair = Pair::new(&**world.fabric(), most as usize, PATIENCE)?;
    let bandwidth = op == BenchOp::WriteBw;
    let mut table = match bandwidth {
        true => Rows::new(&["bytes", "iterations", "BW_peak_MiB/s", "BW_average_MiB/s", "MsgRate_Mpps"]),
        false => latencies(),
    };
    if world.rank() == 0 && conditions.is_none() {
        say!("{op}, 2 ranks, {}", super::report::transport(world));
    }
    let atomic = [8];
    for &bytes in if op == BenchOp::FetchAddLat { &atomic } else { sizes } {
        let bytes = bytes as usize;
        let measured = measure(&mut pair, op, bytes, (u64::from(warmup), iterations(op, iters, bytes)))?;
        world.barrier(PATIENCE)?;
        if world.rank() == 0 {
            if bandwidth { rate(&measured, conditions, &mut table) } else { times(measured, conditions, &mut table) }
        }
    }
    // No rank leaves while the other may still write.
    world.barrier(Duration::from_secs(10))
}

pub(super) fn times(measured: Measured, conditions: Option<&Conditions>, table: &mut Rows) {
    let times = Distribution::of(measured.seconds);
    let [min, max, typical, p99, p999] = [0.0, 1.0, 0.5, 0.99, 0.999].map(|at| times.quantile(at));
    let values = [min, max, typical, times.mean(), times.deviation(), p99, p999].map(|seconds| seconds * 1e6);
    if let Some(conditions) = conditions {
        let [min, max, typical, average, deviation, p99, p999] = values;
        let row = json!({
            "bytes": measured.bytes, "iterations": measured.iterations, "min_us": min, "max_us": max,
            "p50_us": typical, "mean_us": average, "stdev_us": deviation, "p99_us": p99, "p999_us": p999,
        });
        return conditions.say(row);
    }
    let numbers = values.iter().map(|value| format!("{value:.2}"));
    table.row(
        &[measured.bytes.to_string(), measured.iterations.to_string()].into_iter().chain(numbers).collect::<Vec<_>>(),
    );
}

/// Prints the rate in MiB per second, as `ib_write_bw` does, which calls it MB (perftest, `report_fmt`: 0x100000
/// bytes).
fn rate(measured: &Measured, conditions: Option<&Conditions>, table: &mut Rows) {
    let per_window = WINDOW as f64 * measured.bytes as f64 / f64::from(1 << 20);
    let least = measured.seconds.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::NAN);
    let total: f64 = measured.seconds.iter().sum();
    let (peak, average) = (per_window / least, per_window * measured.seconds.len() as f64 / total);
    let messages = measured.iterations as f64 / total / 1e6;
    if let Some(conditions) = conditions {
        let row = json!({
            "bytes": measured.bytes, "iterations": measured.iterations, "peak_mib_s": peak, "mean_mib_s": average,
            "messages_m_s": messages,
        });
        return conditions.say(row);
    }
    let numbers = [peak, average].map(|value| format!("{value:.2}"));
    let [peak, average] = numbers;
    table.row(&[measured.bytes.to_string(), measured.iterations.to_string(), peak, average, format!("{messages:.6}")]);
}
