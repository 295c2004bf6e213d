//! Steps in which gradients become ready one after the other, and share messages.

use std::path::PathBuf;
use std::time::Instant;

use crate::merge::Gradient;
use crate::{BucketedAllreduce, Buckets, Result, World};
use serde_json::json;

use super::super::common::mean_over_ranks;
use super::super::distribution::Distribution;
use super::super::model::trace::Trace;
use super::super::table::Table;
use super::conditions::Conditions;
use super::{Args, PATIENCE};

/// What is compared.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Choices {
    /// For --op buckets: a CSV with the header elements,backward_seconds and a line a gradient in backward order
    /// [default: GoogLeNet on a K80, measured by the authors of MG-WFBP]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// For --op buckets: which gradients share a message: measured, each, one, or the bytes that complete a bucket; may be
    /// repeated [default: measured, each, one and 25M]
    #[arg(long)]
    buckets: Vec<Buckets>,
}

impl Choices {
    pub(super) fn is_empty(&self) -> bool {
        self.trace.is_none() && self.buckets.is_empty()
    }

    /// Reads the trace.
    pub(super) fn trace(&self) -> std::result::Result<Trace, String> {
        let trace = Trace::load(self.trace.as_deref(), size_of::<f32>() as u64);
        trace.map_err(|error| format!("--trace {error}"))
    }

    fn buckets(&self) -> Vec<Buckets> {
        match &self.buckets[..] {
            [] => vec![Buckets::Measured, Buckets::Each, Buckets::One, Buckets::Bytes(25 << 20)],
            chosen => chosen.to_vec(),
        }
    }
}

/// One of the compared choices, and the times of its steps in seconds.
struct Run {
    buckets: Buckets,
    sum: BucketedAllreduce<f32>,
    steps: Vec<f64>,
    wrong: u64,
}

/// The number of steps of a choice before those of the next one.
const TURN: u32 = 3;

/// The number of steps before measuring, in which a choice that measures finds its buckets.
const WARMUP: u32 = 12;

/// Measures the choices by turns, and prints a row for each. Returns the number of wrong sums.
pub(super) fn run(world: &World, args: &Args, trace: &Trace, conditions: Option<&Conditions>) -> Result<u64> {
    let lengths: Vec<usize> =
        trace.gradients.iter().map(|gradient| gradient.bytes as usize / size_of::<f32>()).collect();
    let mut runs = Vec::new();
    for buckets in args.choices.buckets() {
        let sum = world.allreduce::<f32>(&lengths).mover(args.common.mover).executor(args.common.executor);
        let sum = sum.buckets(buckets).build()?;
        runs.push(Run { buckets, sum, steps: Vec::new(), wrong: 0 });
    }
    let warmup = args.warmup.max(WARMUP);
    for run in &mut runs {
        for _ in 0..warmup {
            run.step(world, &trace.gradients)?;
        }
        run.steps.clear();
    }
    let iters = args.iters.unwrap_or(10 * TURN);
    for turn in 0..iters.div_ceil(TURN) {
        for run in &mut runs {
            world.barrier(PATIENCE)?;
            for _ in 0..TURN.min(iters - turn * TURN) {
                run.step(world, &trace.gradients)?;
            }
        }
    }
    let mut table =
        Table::new(&["buckets", "messages", "steps", "mean_ms", "p50_ms", "min_ms", "predicted_ms", "wrong"]);
    let mut all_wrong = 0;
    for mut run in runs {
        let wrong = mean_over_ranks(world, &[run.wrong as f64], PATIENCE)?[0] * f64::from(world.size());
        all_wrong += wrong.round() as u64;
        let times = Distribution::of(mean_over_ranks(world, &run.steps, PATIENCE)?);
        let predicted = run.sum.predicted().map(|end| end.as_secs_f64() * 1e3);
        let messages = run.sum.buckets().len();
        run.sum.finish(PATIENCE)?;
        if world.rank() != 0 {
            continue;
        }
        let (mean, [p50, min]) = (times.mean() * 1e3, [0.5, 0.0].map(|at| times.quantile(at) * 1e3));
        if let Some(conditions) = conditions {
            let row = json!({
                "buckets": run.buckets.to_string(), "messages": messages, "steps": times.len(), "mean_ms": mean,
                "p50_ms": p50, "min_ms": min, "warmup": warmup, "predicted_ms": predicted, "wrong": wrong,
            });
            conditions.say(row);
            continue;
        }
        let time = |ms: f64| format!("{ms:.2}");
        table.row(&[
            run.buckets.to_string(),
            messages.to_string(),
            times.len().to_string(),
            time(mean),
            time(p50),
            time(min),
            predicted.map_or("-".to_owned(), time),
            wrong.to_string(),
        ]);
    }
    if world.rank() == 0 && conditions.is_none() {
        let backward = trace.backward.as_secs_f64() * 1e3;
        say!(
            "{} gradients, {} bytes, ready within {backward:.2} ms, {} ranks",
            lengths.len(),
            trace.bytes(),
            world.size()
        );
        say!("{table}");
    }
    Ok(all_wrong)
}

impl Run {
    /// Simulates a backward pass: each gradient is ready at its time, and nothing else is done meanwhile.
    fn step(&mut self, world: &World, gradients: &[Gradient]) -> Result<()> {
        self.sum.begin()?;
        let begin = Instant::now();
        for (tensor, gradient) in gradients.iter().enumerate() {
            std::thread::sleep(gradient.ready.saturating_sub(begin.elapsed()));
            // The other elements keep the values of earlier steps, because moving is what is measured.
            if let Some(first) = self.sum.tensor(tensor)?.first_mut() {
                *first = (tensor % 8 + 1) as f32;
            }
            self.sum.filled(tensor)?;
        }
        let outcomes = self.sum.wait(PATIENCE)?;
        self.steps.push(begin.elapsed().as_secs_f64());
        let is_right = |tensor: usize| {
            let first = outcomes.tensor(tensor).and_then(<[f32]>::first);
            first == Some(&((tensor % 8 + 1) as f32 * world.size() as f32))
        };
        self.wrong += (0..gradients.len()).filter(|&tensor| !is_right(tensor)).count() as u64;
        Ok(())
    }
}
