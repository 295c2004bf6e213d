//! Progress while it runs, and a row a rule.

use earlybird::{Fire, World};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::super::table::Table;
use super::Args;
use super::worker::Trained;

pub(super) struct Report {
    speaks: bool,
    json: bool,
    ranks: u32,
    skew: String,
    bar: Option<(Fire, ProgressBar)>,
    yardstick: Option<f64>,
    table: Table,
}

const COLUMNS: [&str; 11] = [
    "fire",
    "steps",
    "samples_per_s",
    "speedup",
    "final_loss",
    "accuracy",
    "fresh_mean",
    "age_mean",
    "age_max",
    "wait_s",
    "method",
];

fn method(fire: Fire) -> &'static str {
    match fire {
        Fire::All => "synchronous SGD",
        Fire::Solo => "eager-SGD solo, nothing dropped",
        Fire::Quorum(_) => "SGD with an exact quorum",
    }
}

impl Report {
    pub(super) fn new(world: &World, args: &Args) -> Self {
        let skew = args.skew(world.size()).to_string();
        let report = Report {
            speaks: world.rank() == 0,
            json: args.common.json,
            ranks: world.size(),
            skew,
            bar: None,
            yardstick: None,
            table: Table::new(&COLUMNS),
        };
        if report.speaks && !report.json {
            let (ranks, skew, compute) = (report.ranks, &report.skew, args.compute_ms);
            say!("digits: {ranks} ranks, {compute} ms a step, late: {skew}");
        }
        report
    }

    pub(super) fn progress(&mut self, fire: Fire, done: u64, wanted: u64) {
        if !self.speaks {
            return;
        }
        if self.bar.as_ref().is_none_or(|(of, _)| *of != fire) {
            let bar = ProgressBar::new(wanted);
            let style = ProgressStyle::with_template("{msg:>12} [{bar:40}] {pos}/{len} contributions, {elapsed}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(fire.to_string());
            self.bar = Some((fire, bar));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(done.min(wanted));
        }
    }

    pub(super) fn row(&mut self, fire: Fire, result: &Trained) {
        if !self.speaks {
            return;
        }
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
        let speedup = result.samples_per_s / *self.yardstick.get_or_insert(result.samples_per_s);
        if self.json {
            say!(
                "{}",
                json!({
                    "task": "digits", "method": method(fire), "fire": fire.to_string(), "ranks": self.ranks, "skew": self.skew,
                    "steps": result.steps, "samples_per_s": result.samples_per_s, "speedup": speedup,
                    "final_loss": result.loss, "accuracy": result.accuracy, "fresh_mean": result.fresh_mean,
                    "age_mean": result.age_mean, "age_max": result.age_max, "wait_s": result.wait_s,
                })
            );
            return;
        }
        self.table.row(&[
            fire.to_string(),
            result.steps.to_string(),
            format!("{:.0}", result.samples_per_s),
            format!("{speedup:.2}"),
            format!("{:.4}", result.loss),
            format!("{:.3}", result.accuracy),
            format!("{:.2}", result.fresh_mean),
            format!("{:.2}", result.age_mean),
            result.age_max.to_string(),
            format!("{:.2}", result.wait_s),
            method(fire).to_owned(),
        ]);
    }

    pub(super) fn finish(self) {
        if self.speaks && !self.json {
            say!("{}", self.table);
        }
    }
}
