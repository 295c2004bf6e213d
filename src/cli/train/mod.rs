//! `earlybird train`: data-parallel training through the public API, one firing rule against another.

mod digits;
mod gru;
mod html;
mod hyperplane;
mod layers;
mod learner;
mod method;
mod mlp;
#[cfg(all(test, not(loom)))]
mod played_tests;
mod report;
mod rows;
mod saved;
mod windows;
mod words;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::units::Number;
use crate::{Absent, Executor, Fire, Mover, Preset, World};
use clap::ValueEnum;

use super::common::{Common, Membership};
use super::launch::again;
use super::skew::Skew;
use digits::DigitsLearner;
use hyperplane::Hyperplane;
use learner::Learner;
use method::Method;
use report::Report;
use words::WordsLearner;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Task {
    /// 1,797 handwritten digits, a network with one hidden layer
    Digits,
    /// Linear regression in 8,192 dimensions over 32,768 points, global batch 2,048 (PPoPP 2020)
    Hyperplane,
    /// 3,159 verses of 11 to 528 characters, a recurrent network that predicts the next character
    Words,
}

impl Task {
    fn name(self) -> &'static str {
        match self {
            Task::Digits => "digits",
            Task::Hyperplane => "hyperplane",
            Task::Words => "words",
        }
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// What to train
    #[arg(value_enum)]
    task: Task,
    /// Firing rule, as for bench; may be repeated, and the first is the baseline
    /// [default: all, solo and a quorum of half]
    #[arg(long, value_name = "RULE")]
    fire: Vec<Fire>,
    /// A method in place of a rule, and the first is the baseline: synchronous, solo, majority, quorum, wagma,
    /// wagma-published, p-reduce, p-reduce-published or mg-wfbp; may be repeated
    #[arg(long, value_name = "PRESET", conflicts_with = "fire")]
    preset: Vec<Preset>,
    /// Which ranks are late, drawn for each step of a rank: none, linear:1ms, half:10ms,
    /// one:RANK:30ms, random:K:30ms, lognormal:MEAN:SIGMA, failslow:FACTOR:START:END[:RANKS] (steps; these ranks, or the
    /// last, take a multiple of --compute-ms), trace:FILE (lines of step,rank,seconds) [default: the last rank by 30 ms,
    /// and none for words, where batches differ in length]
    #[arg(long)]
    skew: Option<Skew>,
    /// Milliseconds of computation in a step, padded by sleeping; words: of a step with a batch of mean
    /// length [default: 10, and 50 for words]
    #[arg(long)]
    compute_ms: Option<f64>,
    /// Passes over the training set, counted in contributions [default: 24 for digits, 7 for
    /// hyperplane, 4 for words]
    #[arg(long)]
    epochs: Option<u32>,
    /// Samples in a contribution [default: 16 for digits, 4 for words; hyperplane has its share of
    /// 2,048]
    #[arg(long)]
    batch: Option<u32>,
    /// digits and words: initial learning rate, falling linearly to 0 [default: 0.8 and 4];
    /// hyperplane: fraction of the largest stable synchronous rate [default: 0.1]
    #[arg(long)]
    rate: Option<f32>,
    /// Tell the time to this loss [default: 1.1 times the final loss of the first run]
    #[arg(long, value_name = "LOSS")]
    loss: Option<f64>,
    /// Write a page with curves: loss and accuracy over time and samples, arrivals, ages
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Save to FILE.RANK, to go on from there with --restore; each rank keeps the last two
    #[arg(long, value_name = "FILE", requires = "checkpoint_every")]
    checkpoint: Option<PathBuf>,
    /// Save every N rounds. A rule that does not wait for all does so every N rounds then, unless it has
    /// such rounds already: it saves after those
    #[arg(long, value_name = "ROUNDS", requires = "checkpoint")]
    checkpoint_every: Option<u32>,
    /// Go on from what was saved to FILE.RANK
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

impl Args {
    fn check(&self, ranks: u32) -> Result<(), String> {
        self.check_saving(ranks)?;
        let fires: Vec<Fire> = self.methods(ranks).iter().map(|method| method.fire).collect();
        self.common.check(ranks, &fires)?;
        self.skew(ranks).check(ranks)?;
        if self.common.absent == Absent::Hold {
            return Err(
                "--absent hold: ranks hold models, not gradients; use --preset wagma-published or p-reduce-published"
                    .to_owned(),
            );
        }
        if let Some(preset) = self.preset.iter().find(|_| self.common.absent != Absent::Carry) {
            return Err(format!("--absent {}: --preset {preset} makes this choice; omit one", self.common.absent));
        }
        let averages = |preset: &&Preset| preset.group(ranks).is_some();
        let moves = self.common.mover != Mover::Tree && self.common.executor != Executor::Provider;
        if let Some(preset) = self.preset.iter().find(averages).filter(|_| !moves) {
            let problem =
                "averages models, which neither the tree mover nor a provider moves; omit --mover and --executor";
            return Err(format!("--preset {preset} {problem}"));
        }
        if !(0.0..=600_000.0).contains(&self.compute_ms()) {
            return Err(format!("--compute-ms {}: use 0 to 600000", Number(self.compute_ms())));
        }
        if self.epochs == Some(0) || self.batch.is_some_and(|batch| batch == 0 || batch > 4096) {
            return Err("--epochs must be 1 or more, and --batch 1 to 4096".to_owned());
        }
        if self.batch.is_some() && self.task == Task::Hyperplane {
            return Err("--batch: a rank of hyperplane has its share of 2,048 points".to_owned());
        }
        if let Some(batch) = self.batch.filter(|&batch| self.task == Task::Words && batch > words::LARGEST_BATCH) {
            return Err(format!("--batch {batch}: words has batches of up to {} lines", words::LARGEST_BATCH));
        }
        if let Some(rate) = self.rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            return Err(format!("--rate {}: use a number greater than 0", Number(rate)));
        }
        if let Some(loss) = self.loss.filter(|loss| !loss.is_finite()) {
            return Err(format!("--loss {}: use a number", Number(loss)));
        }
        if let Some(path) = &self.report {
            // A bad path is reported before training, which takes a while.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if path.is_dir() {
                return Err(format!("--report {}: this is a folder; name a file in it", path.display()));
            }
            if folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(format!("--report {}: there is no folder to put this file in", path.display()));
            }
        }
        Ok(())
    }

    /// Rejects what cannot be saved or restored.
    fn check_saving(&self, ranks: u32) -> Result<(), String> {
        let Some((option, file)) = self
            .checkpoint
            .as_ref()
            .map(|file| ("--checkpoint", file))
            .or(self.restore.as_ref().map(|file| ("--restore", file)))
        else {
            return Ok(());
        };
        let [method] = self.methods(ranks)[..] else {
            return Err(format!("{option}: this is for one run; choose one --fire or --preset"));
        };
        if method.arrivals().is_some() {
            return Err(format!(
                "{option}: groups by order of arrival have no rounds in common; use --preset wagma, or wagma-published"
            ));
        }
        if method.hands_in_layers() {
            return Err(format!("{option}: a training layer by layer is not saved; use --preset synchronous"));
        }
        match self.checkpoint_every {
            Some(0) => return Err("--checkpoint-every 0: use 1 or more".to_owned()),
            Some(1) if !method.fire.is_synchronous() => {
                return Err(
                    "--checkpoint-every 1: every round would wait for all; use 2 or more, or --fire all".to_owned()
                );
            }
            _ => {}
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        match folder.is_some_and(|folder| !folder.is_dir()) {
            true => Err(format!("{option} {}: there is no such folder", file.display())),
            false => Ok(()),
        }
    }

    fn learner(&self, rank: u32, ranks: u32) -> Box<dyn Learner> {
        let seed = self.common.seed;
        match self.task {
            Task::Digits => {
                let batch = self.batch.unwrap_or(digits::USUAL_BATCH);
                let epochs = self.epochs.unwrap_or(digits::USUAL_EPOCHS);
                Box::new(DigitsLearner::new(seed, rank, self.rate.unwrap_or(digits::USUAL_RATE), batch, epochs))
            }
            Task::Hyperplane => {
                let rate = self.rate.unwrap_or(hyperplane::USUAL_RATE);
                Box::new(Hyperplane::new(seed, (rank, ranks), rate, self.epochs.unwrap_or(hyperplane::USUAL_EPOCHS)))
            }
            Task::Words => {
                let batch = self.batch.unwrap_or(words::USUAL_BATCH);
                let epochs = self.epochs.unwrap_or(words::USUAL_EPOCHS);
                Box::new(WordsLearner::new(seed, rank, self.rate.unwrap_or(words::USUAL_RATE), batch, epochs))
            }
        }
    }

    fn methods(&self, ranks: u32) -> Vec<Method> {
        let usual = [Fire::ALL, Fire::SOLO, Fire::quorum(ranks.div_ceil(2))];
        let fires = if self.fire.is_empty() { &usual[..] } else { &self.fire };
        let methods: Vec<Method> = match self.preset.is_empty() {
            true => fires.iter().map(|&fire| Method::of_rule(fire)).collect(),
            false => self.preset.iter().map(|&preset| Method::of_preset(preset, ranks)).collect(),
        };
        methods.into_iter().map(|method| method.saved_every(self.checkpoint_every)).collect()
    }

    fn skew(&self, ranks: u32) -> Skew {
        let straggler = Skew::One { rank: ranks.saturating_sub(1), by: Duration::from_millis(30) };
        let balanced = self.task != Task::Words;
        self.skew.clone().unwrap_or(if balanced && ranks > 1 { straggler } else { Skew::None })
    }

    fn compute_ms(&self) -> f64 {
        self.compute_ms.unwrap_or(if self.task == Task::Words { words::USUAL_COMPUTE_MS } else { 10.0 })
    }
}

pub(super) fn main(args: Args) -> super::Outcome {
    let Membership { ranks, launched, config } = args.common.start.place(4)?;
    args.check(ranks)?;
    if !launched {
        return again(ranks, args.common.start.bind, &config);
    }
    let world = World::with(&config)?;
    let is_repeated = config.record.is_some() || config.replay.is_some();
    let is_saved = args.checkpoint.is_some() || args.restore.is_some();
    let mut report = Report::new(&world, &args, is_repeated || is_saved);
    for method in args.methods(ranks) {
        let mut learner = args.learner(world.rank(), world.size());
        let result = worker::train(&world, &args, &method, &mut *learner, &mut report)?;
        report.row(&method, result);
    }
    report.finish()?;
    Ok(ExitCode::SUCCESS)
}
