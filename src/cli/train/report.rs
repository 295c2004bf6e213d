//! Progress during training, and a row for each rule.

use std::path::PathBuf;

use crate::units::Number;
use crate::{World, files};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde_json::json;

use super::super::report::{ranks_as_json, spells};
use super::super::table::Table;
use super::method::Method;
use super::worker::Trained;
use super::{Args, html};

pub(super) struct Report {
    speaks: bool,
    json: bool,
    /// Whether runs are recorded, replayed, saved or restored, so that it matters whether models are equal to the bit.
    tells_models: bool,
    ranks: u32,
    skew: String,
    task: &'static str,
    compute_ms: f64,
    page: Option<PathBuf>,
    runs: Vec<(String, Trained)>,
    bar: Option<(String, ProgressBar)>,
    yardstick: Option<f64>,
    /// The loss to which the time is reported.
    goal: Option<f64>,
    table: Table,
}

const COLUMNS: [&str; 13] = [
    "steps",
    "samples_per_s",
    "speedup",
    "final_loss",
    "accuracy",
    "to_loss_s",
    "fresh_mean",
    "age_mean",
    "age_max",
    "wait_s",
    "apart",
    "windows_apart",
    "method",
];

impl Report {
    pub(super) fn new(world: &World, args: &Args, tells_models: bool) -> Self {
        let skew = args.skew(world.size()).to_string();
        let first = if args.preset.is_empty() { "fire" } else { "preset" };
        let report = Report {
            speaks: world.rank() == 0,
            json: args.common.start.json,
            tells_models,
            ranks: world.size(),
            skew,
            task: args.task.name(),
            compute_ms: args.compute_ms(),
            page: args.report.clone(),
            runs: Vec::new(),
            bar: None,
            yardstick: None,
            goal: args.loss,
            table: Table::new(&[&[first][..], &COLUMNS].concat()),
        };
        if report.speaks && !report.json {
            say!("{}", report.title());
        }
        report
    }

    fn title(&self) -> String {
        let Report { task, ranks, skew, .. } = self;
        let compute_ms = Number(self.compute_ms);
        format!("{task}: {ranks} ranks, {compute_ms} ms a step, late: {skew}")
    }

    pub(super) fn progress(&mut self, method: &Method, done: u64, wanted: u64) {
        if !self.speaks {
            return;
        }
        let label = method.label();
        if self.bar.as_ref().is_none_or(|(of, _)| *of != label) {
            // An error that ends the training begins a line of its own.
            let bar = ProgressBar::new(wanted).with_finish(ProgressFinish::AndClear);
            let style = ProgressStyle::with_template("{msg:>12} [{bar:40}] {pos}/{len} contributions, {elapsed}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(label.clone());
            self.bar = Some((label, bar));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(done.min(wanted));
        }
    }

    pub(super) fn row(&mut self, method: &Method, result: Trained) {
        if !self.speaks {
            return;
        }
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
        let speedup = result.samples_per_s / *self.yardstick.get_or_insert(result.samples_per_s);
        let (first, last, tally) = (result.first(), result.last(), &result.tally);
        let goal = *self.goal.get_or_insert(NEAR * last.loss);
        let seconds = result.seconds_to(goal);
        if self.json {
            say!(
                "{}",
                json!({
                    "task": self.task, "method": method.description(),
                    "preset": method.preset.map(|preset| preset.to_string()), "fire": method.fire.to_string(), "ranks": self.ranks,
                    "skew": self.skew, "compute_ms": self.compute_ms, "steps": tally.rounds,
                    "samples_per_s": result.samples_per_s, "speedup": speedup, "first_loss": first.loss,
                    "final_loss": last.loss, "accuracy": last.accuracy, "fresh_mean": tally.fresh_mean(),
                    "age_mean": tally.age_mean(), "age_max": tally.age_max(), "wait_s": result.wait_s,
                    "goal_loss": goal, "to_loss_s": seconds, "apart": result.apart, "groups_moved": result.moved,
                    "windows": result.windows.map(|windows| windows.all),
                    "windows_apart": result.windows.map(|windows| windows.apart),
                    "models": result.models, "lateness": ranks_as_json(&result.lateness),
                })
            );
        } else {
            self.table.row(&[
                method.label(),
                tally.rounds.to_string(),
                format!("{:.0}", result.samples_per_s),
                format!("{speedup:.2}"),
                format!("{:.4}", Number(last.loss)),
                last.accuracy.map_or("-".to_owned(), |accuracy| format!("{accuracy:.3}")),
                seconds.map_or("-".to_owned(), |seconds| format!("{seconds:.2}")),
                format!("{:.2}", tally.fresh_mean()),
                format!("{:.2}", tally.age_mean()),
                tally.age_max().to_string(),
                format!("{:.2}", result.wait_s),
                spread(result.apart),
                result.windows.map_or("-".to_owned(), |windows| format!("{}/{}", windows.apart, windows.all)),
                method.description().to_owned(),
            ]);
        }
        self.runs.push((method.label(), result));
    }

    pub(super) fn finish(self) -> Result<(), String> {
        if !self.speaks {
            return Ok(());
        }
        if !self.json {
            say!("{}", self.table);
            if let Some(goal) = self.goal {
                say!("to_loss_s: seconds until the loss was {:.4}", Number(goal));
            }
            for (label, run) in &self.runs {
                spells(&run.lateness, run.waited_for_all).iter().for_each(|sentence| say!("{label}: {sentence}"));
            }
        }
        for (label, run) in self.runs.iter().filter(|_| self.tells_models && !self.json) {
            say!("{label}: digest of the models {}", run.models);
        }
        let Some(path) = &self.page else { return Ok(()) };
        files::write(path, html::page(&self.title(), &self.runs).as_bytes())
            .map_err(|error| format!("{}: {error}", path.display()))?;
        if !self.json {
            say!("curves: {}", path.display());
        }
        Ok(())
    }
}

/// The default goal, relative to the final loss of the first run: a tenth more is near enough.
const NEAR: f64 = 1.1;

/// Describes how far models are apart, or that they are equal.
fn spread(apart: f64) -> String {
    if apart == 0.0 { "0".to_owned() } else { format!("{apart:.1e}") }
}
