//! What each rank does, the same under every rule.

use std::time::{Duration, Instant};

use crate::collective::Part;
use crate::{Checkpoint, Error, Lateness, Outcome, Preset, Result, Scale, World};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::super::common::mean_over_ranks;
use super::super::report::waits_for_all;
use super::Args;
use super::layers::Layers;
use super::learner::{Learner, Quality};
use super::method::Method;
use super::report::Report;
use super::saved::{Progress, Saved};
use super::windows::{Groups, Windows};

const PATIENCE: Duration = Duration::from_secs(300);

/// The number of points of a learning curve.
const POINTS: u64 = 60;

/// The state of training at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) seconds: f64,
    pub(super) samples: u64,
    pub(super) quality: Quality,
}

#[derive(Debug, Default)]
pub(super) struct Trained {
    pub(super) samples_per_s: f64,
    pub(super) wait_s: f64,
    pub(super) tally: Tally,
    /// How far the models of ranks are from their mean at the end: the root of the mean square, relative to the mean's
    /// length.
    pub(super) apart: f64,
    /// The number of groups that moved, if ranks average models.
    pub(super) moved: u64,
    /// The windows of groups, if groups form by order of arrival.
    pub(super) windows: Option<Windows>,
    /// Which ranks were late.
    pub(super) lateness: Lateness,
    /// Whether each round waited for all ranks.
    pub(super) waited_for_all: bool,
    /// A digest of the models of all ranks at the end.
    pub(super) models: String,
    pub(super) curve: Vec<Point>,
}

impl Trained {
    pub(super) fn last(&self) -> Quality {
        self.curve.last().map_or(Quality::default(), |point| point.quality)
    }

    /// Returns when the loss was at most this for the first time; `None` if it never was.
    pub(super) fn seconds_to(&self, loss: f64) -> Option<f64> {
        self.curve.iter().find(|point| point.quality.loss <= loss).map(|point| point.seconds)
    }

    pub(super) fn first(&self) -> Quality {
        self.curve.first().map_or(Quality::default(), |point| point.quality)
    }
}

/// What entered the rounds so far. It is the same on all ranks, because they see the same cuts. With groups by order of
/// arrival a rank sees only its own groups, and knows from their numbers how many there were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tally {
    pub(super) rounds: u64,
    pub(super) contributions: u64,
    /// The number of rounds by the number of fresh contributions.
    pub(super) fresh: Vec<u64>,
    /// The number of contributions by age.
    pub(super) ages: Vec<u64>,
}

impl Tally {
    fn count(&mut self, outcome: &Outcome<'_, f32>, arrivals: Option<u32>) {
        let count = |into: &mut Vec<u64>, at: usize| {
            into.resize(into.len().max(at + 1), 0);
            into[at] += 1;
        };
        let mut fresh = 0;
        self.rounds = outcome.round();
        let seen = outcome.cut().contributions().count() as u64;
        self.contributions = arrivals.map_or(self.contributions + seen, |size| self.rounds * u64::from(size));
        for entry in outcome.cut().contributions() {
            fresh += usize::from(entry.part == Part::Fresh);
            count(&mut self.ages, entry.age as usize);
        }
        count(&mut self.fresh, fresh);
    }

    /// Counts a round in which all ranks are fresh.
    fn count_all(&mut self, ranks: u32) {
        self.rounds += 1;
        self.contributions += u64::from(ranks);
        self.fresh.resize(ranks as usize + 1, 0);
        self.fresh[ranks as usize] += 1;
        self.ages.resize(1, 0);
        self.ages[0] += u64::from(ranks);
    }

    /// Returns the progress from 0 to 1, by the contributions that entered, on which all ranks agree.
    fn progress(&self, wanted: u64) -> f32 {
        self.contributions as f32 / wanted as f32
    }

    pub(super) fn fresh_mean(&self) -> f64 {
        mean(&self.fresh)
    }

    pub(super) fn age_mean(&self) -> f64 {
        mean(&self.ages)
    }

    pub(super) fn age_max(&self) -> usize {
        self.ages.len().saturating_sub(1)
    }
}

/// Returns the mean of a histogram.
fn mean(counts: &[u64]) -> f64 {
    let total: u64 = counts.iter().sum();
    let sum: f64 = counts.iter().enumerate().map(|(value, &count)| value as f64 * count as f64).sum();
    sum / total.max(1) as f64
}

pub(super) fn train(
    world: &World,
    args: &Args,
    method: &Method,
    learner: &mut dyn Learner,
    report: &mut Report,
) -> Result<Trained> {
    let (rank, ranks) = (world.rank(), world.size());
    let wanted = learner.wanted();
    let skew = args.skew(ranks);
    let saved = restored(world, args, (method, wanted), learner.tensors().iter().sum())?;
    let (saved, checkpoint, mut weights) = match saved {
        Some(Saved { progress, weights, checkpoint }) => (progress, Some(checkpoint), weights),
        None => {
            let mut weights = learner.initial();
            world.broadcast(&mut weights, 0, PATIENCE)?;
            (Progress::default(), None, weights)
        }
    };
    learner.skip(saved.steps);
    let initial = weights.clone();
    let common = &args.common;
    let mut layers = None;
    if method.hands_in_layers() {
        let scale = method.preset.map_or(learner.scale(), Preset::scale);
        layers = Some(Layers::new(world, &learner.tensors(), scale, (common.mover, common.executor))?);
    }
    let builder = world
        .allreduce::<f32>(&learner.tensors())
        .grace(args.common.grace)
        .absent(args.common.absent)
        .depth(args.common.depth)
        .mover(args.common.mover)
        .executor(args.common.executor);
    let mut channel = match &layers {
        None => Some(method.choose(builder, (&initial, checkpoint.as_ref()), learner.scale()).build()?),
        Some(_) => None,
    };

    let mut gradient = vec![0.0; if layers.is_some() { weights.len() } else { 0 }];
    // The model that was contributed last.
    let mut mine = Vec::new();
    let Progress { steps: first, mut tally } = saved;
    let begun_with = tally.contributions;
    let mut saving = Saving::new(args, tally.rounds);
    let mut groups = Groups::default();
    let mut waited = Duration::ZERO;
    // Evaluated after training, because that takes longer than some steps.
    let mut snapshots = vec![(0.0, begun_with, weights.clone())];
    world.barrier(PATIENCE)?;
    let start = Instant::now();
    let snapshot = |tally: &Tally, weights: &[f32], snapshots: &mut Vec<(f64, u64, Vec<f32>)>| {
        let due = begun_with + snapshots.len() as u64 * (wanted - begun_with) / POINTS;
        if rank == 0 && (tally.contributions >= due || tally.contributions >= wanted) {
            snapshots.push((start.elapsed().as_secs_f64(), tally.contributions, weights.to_vec()));
        }
    };
    for step in first.. {
        let begun = Instant::now();
        let now = learner.rate(tally.progress(wanted));
        let mean_step = Duration::from_secs_f64(args.compute_ms() / 1e3);
        let delay = skew.delays(ranks, step, args.common.seed, mean_step)[rank as usize];
        let whole = |learner: &dyn Learner| mean_step.mul_f64(learner.share()) + delay;
        if let Some(layers) = &mut layers {
            learner.gradient(&weights, step, &mut gradient);
            layers.hand_in(&gradient, (begun, whole(learner)))?;
            let before = Instant::now();
            let (means, ranges) = layers.wait(PATIENCE)?;
            waited += before.elapsed();
            for (tensor, range) in ranges.iter().enumerate() {
                let mean = means.tensor(tensor).unwrap_or_default();
                weights[range.clone()].iter_mut().zip(mean).for_each(|(w, g)| *w -= now * g);
            }
            tally.count_all(ranks);
            snapshot(&tally, &weights, &mut snapshots);
            report.progress(method, tally.contributions, wanted);
            if tally.contributions >= wanted {
                break;
            }
            continue;
        }
        let Some(channel) = &mut channel else { break };
        let contribution = channel.contribution()?;
        learner.gradient(&weights, step, contribution);
        if method.holds_models() {
            weights.iter_mut().zip(&*contribution).for_each(|(w, g)| *w -= now * g);
            contribution.copy_from_slice(&weights);
            mine.clone_from(&weights);
        } else if method.averages_models() {
            contribution.iter_mut().for_each(|x| *x *= -now);
        }
        std::thread::sleep(whole(learner).saturating_sub(begun.elapsed()));

        channel.arrive()?;
        let before = Instant::now();
        let outcomes = channel.wait(PATIENCE)?;
        waited += before.elapsed();
        for outcome in outcomes {
            // All ranks stop after the same round, whatever else was returned with it.
            if tally.contributions < wanted {
                let rate = learner.rate(tally.progress(wanted));
                tally.count(&outcome, method.arrivals());
                if method.arrivals().is_some() {
                    groups.add(outcome.round(), outcome.group());
                }
                if method.holds_models() {
                    // Of several outcomes the newest counts.
                    weights.copy_from_slice(&mine);
                    outcome.merge_into(&mut weights)?;
                } else if method.averages_models() {
                    weights.copy_from_slice(outcome.data());
                } else {
                    weights.iter_mut().zip(outcome.data()).for_each(|(w, g)| *w -= rate * g);
                }
                snapshot(&tally, &weights, &mut snapshots);
                if saving.is_due(&outcome) && tally.contributions < wanted {
                    let progress = Progress { steps: step + 1, tally: tally.clone() };
                    saving.save(Saved { progress, weights: weights.clone(), checkpoint: outcome.checkpoint()? })?;
                }
            }
        }
        report.progress(method, tally.contributions, wanted);
        if tally.contributions >= wanted {
            break;
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let mut moved = 0;
    let mut lateness = Lateness::default();
    if let Some(mut channel) = channel {
        (moved, lateness) = (channel.stats().groups, channel.lateness());
        channel.finish(PATIENCE)?;
    }
    if let Some(mut layers) = layers {
        lateness = layers.lateness();
        layers.finish(PATIENCE)?;
    }
    let models = digest_of_models(world, &weights)?;
    let (mean, apart) = mean_model(world, &weights)?;
    let windows = match method.arrivals() {
        Some(size) => Some(groups.windows(world, (size, wanted.div_ceil(size.into())), PATIENCE)?),
        None => None,
    };
    if method.arrivals().is_some() {
        // Each rank has closed some of them.
        moved = tally.rounds;
    }
    if let Some((.., last)) = snapshots.last_mut().filter(|_| method.averages_models()) {
        // The model that training leaves.
        *last = mean;
    }

    let batch = learner.batch();
    let point = |(seconds, contributions, weights): (f64, u64, Vec<f32>)| Point {
        seconds,
        samples: (contributions as f64 * batch).round() as u64,
        quality: learner.evaluate(&weights),
    };
    Ok(Trained {
        samples_per_s: (tally.contributions - begun_with) as f64 * batch / elapsed,
        wait_s: mean_over_ranks(world, &[waited.as_secs_f64()], PATIENCE)?[0],
        tally,
        apart,
        moved,
        windows,
        lateness,
        waited_for_all: waits_for_all(method.fire, world.size()),
        models,
        curve: snapshots.into_iter().map(point).collect(),
    })
}

/// Returns what this rank resumes from; `None` if it does not resume. If it cannot, the others learn why.
fn restored(world: &World, args: &Args, (method, wanted): (&Method, u64), weights: usize) -> Result<Option<Saved>> {
    let Some(name) = &args.restore else { return Ok(None) };
    let checked = |saved: Saved| {
        let bad = |problem: String| Err(Error::Config(format!("rank {}: --restore: {problem}", world.rank())));
        let (done, steps) = (saved.progress.tally.contributions, saved.progress.steps);
        if saved.weights.len() != weights {
            return bad(format!("it has {} weights, and the model has {weights}", saved.weights.len()));
        }
        if steps > done {
            return bad(format!("it has {steps} steps of this rank, and {done} of all ranks; it was changed"));
        }
        if done >= wanted {
            return bad(format!(
                "it has {done} contributions, and this training ends with {wanted}; use more --epochs"
            ));
        }
        match (has_model(&saved.checkpoint), method.averages_models()) {
            (true, false) => bad("it is of ranks that average models; choose such a --preset".to_owned()),
            (false, true) => {
                bad("it is of ranks that sum gradients; choose a --fire, or a --preset that does so".to_owned())
            }
            _ => Ok(saved),
        }
    };
    let loaded = Saved::load(world, name, args, PATIENCE).and_then(checked);
    loaded.map(Some).inspect_err(|error| world.abort(&error.to_string()))
}

fn has_model(checkpoint: &Checkpoint) -> bool {
    checkpoint.model::<f32>().is_some()
}

/// When this rank saves next.
struct Saving<'a> {
    args: &'a Args,
    /// It saves after the first round from this one on that can be saved.
    due: Option<u64>,
}

impl<'a> Saving<'a> {
    fn new(args: &'a Args, round: u64) -> Self {
        let mut saving = Saving { args, due: None };
        saving.plan(round);
        saving
    }

    /// Plans to save at the next multiple after a round.
    fn plan(&mut self, round: u64) {
        self.due = self.args.checkpoint_every.map(|every| (round / u64::from(every) + 1) * u64::from(every));
    }

    fn is_due(&self, outcome: &Outcome<'_, f32>) -> bool {
        self.due.is_some_and(|due| outcome.round() >= due) && outcome.can_checkpoint()
    }

    fn save(&mut self, saved: Saved) -> Result<()> {
        self.plan(saved.checkpoint.round());
        self.args.checkpoint.as_ref().map_or(Ok(()), |name| saved.write(name, self.args))
    }
}

/// Returns a digest of the models of all ranks, which differs if a bit of any model differs.
fn digest_of_models(world: &World, model: &[f32]) -> Result<String> {
    let mut own = Sha256::new();
    model.iter().for_each(|weight| own.update(weight.to_bits().to_le_bytes()));
    let all = world.fabric().exchange("train", own.finalize().as_slice(), Instant::now() + PATIENCE)?;
    Ok(Sha256::digest(all.concat()).iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the mean of the models of all ranks, and how far these are from it. The mean of equal models is equal to
/// them, to the bit.
fn mean_model(world: &World, model: &[f32]) -> Result<(Vec<f32>, f64)> {
    let mut mean = model.to_vec();
    world.broadcast(&mut mean, 0, PATIENCE)?;
    let mut differences = world.allreduce::<f32>(&[model.len()]).scale(Scale::World).build()?;
    let contribution = differences.contribution()?;
    contribution.iter_mut().zip(model.iter().zip(&mean)).for_each(|(into, (&own, &first))| *into = own - first);
    differences.arrive()?;
    let difference = differences.wait(PATIENCE)?.newest().to_vec();
    differences.finish(PATIENCE)?;
    mean.iter_mut().zip(&difference).for_each(|(mean, &difference)| *mean += difference);
    let square = |x: f32| f64::from(x) * f64::from(x);
    let distance: f64 = model.iter().zip(&mean).map(|(&x, &y)| square(x - y)).sum();
    let length: f64 = mean.iter().map(|&x| square(x)).sum();
    let distance = mean_over_ranks(world, &[distance], PATIENCE)?[0];
    Ok((mean, (distance / length.max(f64::MIN_POSITIVE)).sqrt()))
}
