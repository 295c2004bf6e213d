//! What each rank does, the same under every rule.

use std::time::{Duration, Instant};

use earlybird::collective::Part;
use earlybird::{Outcome, Result, Scale, World};

use super::super::common::mean_over_ranks;
use super::Args;
use super::learner::{Learner, Quality};
use super::method::Method;
use super::report::Report;

const PATIENCE: Duration = Duration::from_secs(300);

/// Points of a learning curve.
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
    /// How far the models of ranks are from their mean, in the end: the root of the mean square, by the mean's length.
    pub(super) apart: f64,
    /// Groups that moved, where ranks average models.
    pub(super) moved: u64,
    pub(super) curve: Vec<Point>,
}

impl Trained {
    pub(super) fn last(&self) -> Quality {
        self.curve.last().map_or(Quality::default(), |point| point.quality)
    }

    /// When the loss was at most this for the first time, if it ever was.
    pub(super) fn seconds_to(&self, loss: f64) -> Option<f64> {
        self.curve.iter().find(|point| point.quality.loss <= loss).map(|point| point.seconds)
    }

    pub(super) fn first(&self) -> Quality {
        self.curve.first().map_or(Quality::default(), |point| point.quality)
    }
}

/// What entered the rounds so far: the same on all ranks, because they see the same cuts.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) rounds: u64,
    pub(super) contributions: u64,
    /// Rounds by the number of fresh contributions.
    pub(super) fresh: Vec<u64>,
    /// Contributions by age.
    pub(super) ages: Vec<u64>,
}

impl Tally {
    fn count(&mut self, outcome: &Outcome<'_, f32>) {
        let count = |into: &mut Vec<u64>, at: usize| {
            into.resize(into.len().max(at + 1), 0);
            into[at] += 1;
        };
        self.rounds += 1;
        let mut fresh = 0;
        for entry in outcome.cut().contributions() {
            self.contributions += 1;
            fresh += usize::from(entry.part == Part::Fresh);
            count(&mut self.ages, entry.age as usize);
        }
        count(&mut self.fresh, fresh);
    }

    /// From 0 to 1: the contributions that entered, on which all ranks agree.
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

/// The mean of a histogram.
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
    let mut weights = learner.initial();
    world.broadcast(&mut weights, 0, PATIENCE)?;
    let initial = weights.clone();
    let builder = world
        .allreduce::<f32>(&learner.tensors())
        .grace(args.common.grace)
        .absent(args.common.absent)
        .depth(args.common.depth)
        .mover(args.common.mover)
        .executor(args.common.executor);
    let mut channel = method.choose(builder, &initial, learner.scale()).build()?;

    // The model that was contributed last.
    let mut mine = Vec::new();
    let mut tally = Tally::default();
    let mut waited = Duration::ZERO;
    // Evaluated after training, because that takes longer than some steps.
    let mut snapshots = vec![(0.0, 0, weights.clone())];
    world.barrier(PATIENCE)?;
    let start = Instant::now();
    for step in 0.. {
        let begun = Instant::now();
        let contribution = channel.contribution()?;
        let now = learner.rate(tally.progress(wanted));
        learner.gradient(&weights, step, contribution);
        if method.holds_models() {
            weights.iter_mut().zip(&*contribution).for_each(|(w, g)| *w -= now * g);
            contribution.copy_from_slice(&weights);
            mine.clone_from(&weights);
        } else if method.averages_models() {
            contribution.iter_mut().for_each(|x| *x *= -now);
        }
        let compute = Duration::from_secs_f64(args.compute_ms() / 1e3 * learner.share());
        let whole = compute + skew.delays(ranks, step, args.common.seed)[rank as usize];
        std::thread::sleep(whole.saturating_sub(begun.elapsed()));

        channel.arrive()?;
        let before = Instant::now();
        let outcomes = channel.wait(PATIENCE)?;
        waited += before.elapsed();
        for outcome in outcomes {
            // All ranks stop after the same round, whatever else was returned with it.
            if tally.contributions < wanted {
                let rate = learner.rate(tally.progress(wanted));
                tally.count(&outcome);
                if method.holds_models() {
                    // Of several, the newest counts.
                    weights.copy_from_slice(&mine);
                    outcome.merge_into(&mut weights)?;
                } else if method.averages_models() {
                    weights.copy_from_slice(outcome.data());
                } else {
                    weights.iter_mut().zip(outcome.data()).for_each(|(w, g)| *w -= rate * g);
                }
                let due = snapshots.len() as u64 * wanted / POINTS;
                if rank == 0 && (tally.contributions >= due || tally.contributions >= wanted) {
                    snapshots.push((start.elapsed().as_secs_f64(), tally.contributions, weights.clone()));
                }
            }
        }
        report.progress(method, tally.contributions, wanted);
        if tally.contributions >= wanted {
            break;
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let moved = channel.stats().groups;
    channel.finish(PATIENCE)?;
    drop(channel);
    let (mean, apart) = mean_model(world, &weights)?;
    if let Some((.., last)) = snapshots.last_mut().filter(|_| method.averages_models()) {
        // What training leaves behind.
        *last = mean;
    }

    let batch = learner.batch();
    let point = |(seconds, contributions, weights): (f64, u64, Vec<f32>)| Point {
        seconds,
        samples: (contributions as f64 * batch).round() as u64,
        quality: learner.evaluate(&weights),
    };
    Ok(Trained {
        samples_per_s: tally.contributions as f64 * batch / elapsed,
        wait_s: mean_over_ranks(world, &[waited.as_secs_f64()], PATIENCE)?[0],
        tally,
        apart,
        moved,
        curve: snapshots.into_iter().map(point).collect(),
    })
}

/// The mean of the models of all ranks, and how far these are from it; of equal models it is equal to the bit.
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
