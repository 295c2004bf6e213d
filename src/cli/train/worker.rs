//! What each rank does, the same under every rule.

use std::time::{Duration, Instant};

use earlybird::collective::Part;
use earlybird::{Fire, Outcome, Result, World};

use super::super::common::mean_over_ranks;
use super::Args;
use super::learner::{Learner, Quality};
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
    pub(super) curve: Vec<Point>,
}

impl Trained {
    pub(super) fn last(&self) -> Quality {
        self.curve.last().map_or(Quality::default(), |point| point.quality)
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
    fire: Fire,
    learner: &mut dyn Learner,
    report: &mut Report,
) -> Result<Trained> {
    let (rank, ranks) = (world.rank(), world.size());
    let wanted = learner.wanted();
    let skew = args.skew(ranks);
    let mut weights = learner.initial();
    world.broadcast(&mut weights, 0, PATIENCE)?;
    let mut gradients = world
        .allreduce::<f32>(&[weights.len()])
        .fire(fire)
        .grace(args.common.grace)
        .absent(args.common.absent)
        .depth(args.common.depth)
        .mover(args.common.mover)
        .executor(args.common.executor)
        .scale(learner.scale())
        .build()?;

    let mut tally = Tally::default();
    let mut waited = Duration::ZERO;
    // Evaluated after training, because that takes longer than some steps.
    let mut snapshots = vec![(0.0, 0, weights.clone())];
    world.barrier(PATIENCE)?;
    let start = Instant::now();
    for step in 0.. {
        let begun = Instant::now();
        learner.gradient(&weights, step, gradients.contribution()?);
        let whole =
            Duration::from_secs_f64(args.compute_ms / 1e3) + skew.delays(ranks, step, args.common.seed)[rank as usize];
        std::thread::sleep(whole.saturating_sub(begun.elapsed()));

        gradients.arrive()?;
        let before = Instant::now();
        let outcomes = gradients.wait(PATIENCE)?;
        waited += before.elapsed();
        for outcome in outcomes {
            // All ranks stop after the same round, whatever else was returned with it.
            if tally.contributions < wanted {
                // The rate falls with the contributions that entered, on which all ranks agree.
                let rate = learner.rate(tally.contributions as f32 / wanted as f32);
                tally.count(&outcome);
                weights.iter_mut().zip(outcome.data()).for_each(|(w, g)| *w -= rate * g);
                let due = snapshots.len() as u64 * wanted / POINTS;
                if rank == 0 && (tally.contributions >= due || tally.contributions >= wanted) {
                    snapshots.push((start.elapsed().as_secs_f64(), tally.contributions, weights.clone()));
                }
            }
        }
        report.progress(fire, tally.contributions, wanted);
        if tally.contributions >= wanted {
            break;
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    gradients.finish(PATIENCE)?;
    drop(gradients);

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
        curve: snapshots.into_iter().map(point).collect(),
    })
}
