//! `earlybird train`: data-parallel training through the public API, one firing rule against another.

mod digits;
mod mlp;
mod report;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use earlybird::{Fire, World};

use super::common::{Common, Place};
use super::launch::again;
use super::skew::Skew;
use report::Report;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Task {
    /// 1,797 handwritten digits, a network with one hidden layer
    Digits,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// What is trained
    #[arg(value_enum)]
    task: Task,
    /// Firing rule: all, solo or quorum=Q; may be repeated, and the first is the yardstick
    /// [default: all, solo and a quorum of half]
    #[arg(long, value_name = "RULE")]
    fire: Vec<Fire>,
    /// Who is late, drawn for each step of a rank: none, linear:1ms, one:RANK:30ms, random:K:30ms,
    /// lognormal:MEAN:SIGMA [default: the last rank by 30 ms]
    #[arg(long)]
    skew: Option<Skew>,
    /// Milliseconds that the computing part of a step takes, padded by sleeping
    #[arg(long, default_value_t = 10.0)]
    compute_ms: f64,
    /// Passes over the training set, counted in contributions
    #[arg(long, default_value_t = 24)]
    epochs: u32,
    /// Samples in a contribution
    #[arg(long, default_value_t = 16)]
    batch: u32,
    /// Learning rate at the beginning; falls to 0 in a straight line
    #[arg(long, default_value_t = 0.8)]
    rate: f32,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn check(&self, ranks: u32) -> Result<(), String> {
        self.common.check(ranks, &self.fires(ranks))?;
        self.skew(ranks).check(ranks)?;
        if !(0.0..=600_000.0).contains(&self.compute_ms) {
            return Err(format!("--compute-ms {}: use 0 to 600000", self.compute_ms));
        }
        if self.epochs == 0 || self.batch == 0 || self.batch > 4096 {
            return Err("--epochs must be 1 or more, and --batch 1 to 4096".to_owned());
        }
        if !(self.rate.is_finite() && self.rate > 0.0) {
            return Err(format!("--rate {}: use a number greater than 0", self.rate));
        }
        Ok(())
    }

    fn fires(&self, ranks: u32) -> Vec<Fire> {
        match self.fire.is_empty() {
            true => vec![Fire::All, Fire::Solo, Fire::quorum(ranks.div_ceil(2))],
            false => self.fire.clone(),
        }
    }

    fn skew(&self, ranks: u32) -> Skew {
        let straggler = Skew::One { rank: ranks.saturating_sub(1), by: Duration::from_millis(30) };
        self.skew.clone().unwrap_or(if ranks > 1 { straggler } else { Skew::None })
    }
}

pub(super) fn main(args: Args) -> super::Outcome {
    let Place { ranks, launched, config } = args.common.place(4)?;
    args.check(ranks)?;
    if !launched {
        return again(ranks, args.common.bind);
    }
    let world = World::from_env(&config)?;
    let mut report = Report::new(&world, &args);
    for fire in args.fires(ranks) {
        let result = worker::train(&world, &args, fire, &mut report)?;
        report.row(fire, &result);
    }
    report.finish();
    Ok(ExitCode::SUCCESS)
}
