//! Rows for people and for programs.

use crate::{Fire, Group, World};
use serde_json::json;

use super::super::table::Rows;
use super::conditions::Conditions;
use super::measure::{Case, Measured};

pub(super) struct Report<'a> {
    speaks: bool,
    /// The conditions, if rows are for programs.
    conditions: Option<&'a Conditions>,
    table: Rows,
}

const COLUMNS: [&str; 14] = [
    "fire", "bytes", "skew", "iters", "mean_us", "p50_us", "p99_us", "min_us", "max_us", "ideal_us", "fresh", "min",
    "carried", "wrong",
];

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
            say!("{title}, {ranks} ranks, {transport}");
        }
        Report { speaks, conditions, table: Rows::new(&COLUMNS) }
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
        let (mean, [p50, p99, min, max]) = (times.mean(), [0.5, 0.99, 0.0, 1.0].map(|at| times.quantile(at)));
        if let Some(conditions) = self.conditions {
            let row = json!({
                "fire": case.fire.to_string(), "skew": case.skew.to_string(), "bytes": result.bytes,
                "iterations": times.len(), "mover": result.mover.to_string(), "path": result.path,
                "executor": result.executor.to_string(), "depth": result.depth, "grace": result.grace.to_string(),
                "mean_us": mean, "p50_us": p50, "p99_us": p99, "min_us": min, "max_us": max,
                "ideal_us": result.ideal_us, "fresh_mean": result.fresh_mean, "fresh_min": result.fresh_min,
                "carried_mean": result.carried_mean, "age_mean": result.age_mean, "age_max": result.age_max,
                "wrong": result.wrong,
            });
            return say!("{}", conditions.row(row));
        }
        let time = |us: f64| if us < 1000.0 { format!("{us:.2}") } else { format!("{us:.0}") };
        self.table.row(&[
            case.fire.to_string(),
            result.bytes.to_string(),
            case.skew.to_string(),
            times.len().to_string(),
            time(mean),
            time(p50),
            time(p99),
            time(min),
            time(max),
            result.ideal_us.map_or("-".to_owned(), time),
            format!("{:.2}", result.fresh_mean),
            result.fresh_min.to_string(),
            format!("{:.2}", result.carried_mean),
            result.wrong.to_string(),
        ]);
    }
}
