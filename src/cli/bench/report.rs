//! Rows for people and for programs.

use crate::machine::{host_name, kernel};
use crate::{Executor, Fire, Group, World};
use serde_json::{Value, json};

use super::super::table::Rows;
use super::conditions::Conditions;
use super::measure::{COUNTED, Case, Measured, counts};
use super::picture::Picture;

pub(super) struct Report<'a> {
    speaks: bool,
    ranks: u32,
    /// The conditions, if rows are for programs.
    conditions: Option<&'a Conditions>,
    table: Rows,
    title: String,
    picture: Option<Picture>,
}

const COLUMNS: [&str; 17] = [
    "fire", "bytes", "skew", "iters", "mean_us", "p50_us", "p90_us", "p99_us", "p99.9_us", "min_us", "max_us",
    "ideal_us", "busbw", "fresh", "least", "carried", "wrong",
];

/// What the columns say that do not explain themselves.
const LEGEND: [&str; 4] = [
    "# mean_us to max_us: from arriving to having the outcome, mean over ranks; ideal_us: the wait if communication took no time (- where that is not known beforehand)",
    "# busbw: GB/s by the mean time, as nccl-tests counts them: bytes / time x 2 (ranks - 1) / ranks",
    "# fresh, least: contributions in the round they were made for, mean and least of the rounds",
    "# carried: late contributions in a round, mean; wrong: elements that are not the sum of what a cut lists",
];

/// Returns the rate at which each rank's data was reduced, in GB/s (`algbw` of nccl-tests), and what this needs of the links
/// of each rank at least (`busbw`), where an allreduce moves 2 (n - 1) / n of the data to and from each of n ranks.
pub(super) fn bandwidths(bytes: f64, us: f64, moved: f64) -> [f64; 2] {
    let rate = bytes / us / 1e3;
    [rate, rate * moved]
}

/// The share of its data that an allreduce moves to and from each of these ranks.
pub(super) fn moved_by_allreduce(ranks: u32) -> f64 {
    2.0 * f64::from(ranks - 1) / f64::from(ranks)
}

/// Adds what this rank sent: in a round, as a mean over the measured ones; to make the collective; and at its end. Also
/// what all ranks sent in a round. What a provider sends by itself is not known.
fn add_sent(result: &Measured, row: &mut Value) {
    let sent = &result.sent;
    let is_known = result.executor != Executor::Provider;
    for ((name, of_rank), all) in COUNTED.iter().zip(sent.round).zip(sent.by_all) {
        row[format!("round_{name}")] = json!(is_known.then_some(of_rank));
        row[format!("round_{name}_by_all")] = json!(is_known.then_some(all));
    }
    for (part, of) in [("setup", sent.setup), ("end", sent.end)] {
        COUNTED.iter().zip(counts(of)).for_each(|(name, count)| row[format!("{part}_{name}")] = json!(count));
    }
    (row["peers"], row["queue_pairs"]) = (json!(sent.reached.peers), json!(sent.reached.queue_pairs));
}

/// Returns a line about the binary and this machine, which programs that read tables skip.
pub(super) fn about_here() -> String {
    let cores = crate::machine::parallelism();
    format!("# earlybird {}, {}, {cores} core(s), {}", env!("CARGO_PKG_VERSION"), host_name(), kernel())
}

/// Returns the transport of the world, for people.
pub(super) fn transport(world: &World) -> String {
    let provider = world.provider().map_or(String::new(), |provider| format!(" ({provider})"));
    format!("{}{provider}", world.fabric_name())
}

impl<'a> Report<'a> {
    pub(super) fn new(world: &World, group: Option<Group>, conditions: Option<&'a Conditions>) -> Self {
        let (ranks, transport) = (world.size(), transport(world));
        let title = group.map_or_else(|| "allreduce".to_owned(), |group| format!("averages of models, {group}"));
        let speaks = world.rank() == 0;
        if speaks && conditions.is_none() {
            say!("# {title}, {ranks} ranks, {transport}");
            say!("{}", about_here());
        }
        let title = format!("{title}, {ranks} ranks, {transport}");
        Report { speaks, ranks, conditions, table: Rows::new(&COLUMNS), title, picture: None }
    }

    /// Also draws the rows.
    pub(super) fn with_picture(mut self, picture: Option<Picture>) -> Self {
        self.picture = picture.filter(|_| self.speaks);
        self
    }

    /// Writes the picture, if there is one.
    pub(super) fn draw(&self) -> Result<(), String> {
        self.picture.as_ref().map_or(Ok(()), |picture| picture.write(&self.title))
    }

    /// Explains the columns, for people.
    pub(super) fn explain(&self) {
        if self.speaks && self.conditions.is_none() {
            LEGEND.iter().for_each(|line| say!("{line}"));
        }
    }

    /// Widens a column for a rule that a later row has.
    pub(super) fn with_room_for(mut self, fire: Fire) -> Self {
        self.table.widen(0, fire.to_string().chars().count());
        self
    }

    /// Prints a row.
    pub(super) fn row(&mut self, case: &Case, result: &Measured) {
        if !self.speaks {
            return;
        }
        let times = &result.latencies;
        let (mean, [p50, p90, p99, p999, min, max]) = (times.mean(), times.usual());
        if let Some(picture) = &mut self.picture {
            picture.add(case.fire.to_string(), result.bytes as f64, p50);
        }
        let [algbw, busbw] = bandwidths(result.bytes as f64, mean, moved_by_allreduce(self.ranks));
        if let Some(conditions) = self.conditions {
            let mut row = json!({
                "fire": case.fire.to_string(), "skew": case.skew.to_string(), "bytes": result.bytes,
                "iterations": times.len(), "mover": result.mover.to_string(), "path": result.path,
                "executor": result.executor.to_string(), "depth": result.depth, "grace": result.grace.to_string(),
                "mean_us": mean, "p50_us": p50, "p90_us": p90, "p99_us": p99, "p999_us": p999, "min_us": min,
                "max_us": max, "algbw_gb_s": algbw, "busbw_gb_s": busbw,
                "ideal_us": result.ideal_us, "fresh_mean": result.fresh_mean, "fresh_min": result.fresh_min,
                "carried_mean": result.carried_mean, "age_mean": result.age_mean, "age_max": result.age_max,
                "wrong": result.wrong,
            });
            add_sent(result, &mut row);
            return conditions.say(row);
        }
        let time = |us: f64| if us < 1000.0 { format!("{us:.2}") } else { format!("{us:.0}") };
        self.table.row(&[
            case.fire.to_string(),
            result.bytes.to_string(),
            case.skew.to_string(),
            times.len().to_string(),
            time(mean),
            time(p50),
            time(p90),
            time(p99),
            time(p999),
            time(min),
            time(max),
            result.ideal_us.map_or("-".to_owned(), time),
            format!("{busbw:.3}"),
            format!("{:.2}", result.fresh_mean),
            result.fresh_min.to_string(),
            format!("{:.2}", result.carried_mean),
            result.wrong.to_string(),
        ]);
    }
}
