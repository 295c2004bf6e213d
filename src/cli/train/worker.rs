//! What each rank does, the same under every rule.

use std::time::{Duration, Instant};

use earlybird::collective::Part;
use earlybird::{Fire, Outcome, Result, Scale, World};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::super::common::mean_over_ranks;
use super::digits::{Digits, Sample};
use super::report::Report;
use super::{Args, mlp};

const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub(super) struct Trained {
    pub(super) steps: u64,
    pub(super) samples_per_s: f64,
    pub(super) loss: f64,
    pub(super) accuracy: f64,
    pub(super) fresh_mean: f64,
    pub(super) age_mean: f64,
    pub(super) age_max: u64,
    pub(super) wait_s: f64,
}

/// What entered the rounds so far: the same on all ranks, since they see the same cuts.
#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    contributions: u64,
    fresh: u64,
    ages: u64,
    age_max: u64,
}

impl Tally {
    fn count(&mut self, outcome: &Outcome<'_, f32>) {
        self.rounds += 1;
        for entry in outcome.cut().contributions() {
            self.contributions += 1;
            self.fresh += u64::from(entry.part == Part::Fresh);
            self.ages += entry.age;
            self.age_max = self.age_max.max(entry.age);
        }
    }
}

pub(super) fn train(world: &World, args: &Args, fire: Fire, report: &mut Report) -> Result<Trained> {
    let (rank, ranks) = (world.rank(), world.size());
    let digits = Digits::load();
    let wanted = u64::from(args.epochs) * (digits.training.len() as u64).div_ceil(u64::from(args.batch));
    let skew = args.skew(ranks);

    let mut weights = mlp::initial(args.common.seed + u64::from(rank));
    world.broadcast(&mut weights, 0, PATIENCE)?;
    let mut gradients = world
        .allreduce::<f32>(&[mlp::PARAMETERS])
        .fire(fire)
        .grace(args.common.grace)
        .depth(args.common.depth)
        .mover(args.common.mover)
        .executor(args.common.executor)
        .scale(Scale::Contributions)
        .build()?;

    let mut rng = Xoshiro256PlusPlus::seed_from_u64(args.common.seed ^ (u64::from(rank) << 32));
    let mut tally = Tally::default();
    let mut waited = Duration::ZERO;
    world.barrier(PATIENCE)?;
    let start = Instant::now();
    let mut elapsed = Duration::ZERO;
    for step in 0.. {
        let begun = Instant::now();
        let mut draw = || -> &Sample { &digits.training[rng.random_range(0..digits.training.len())] };
        let batch: Vec<&Sample> = (0..args.batch).map(|_| draw()).collect();
        mlp::gradient(&weights, batch.into_iter(), gradients.contribution()?);
        let whole =
            Duration::from_secs_f64(args.compute_ms / 1e3) + skew.delays(ranks, step, args.common.seed)[rank as usize];
        std::thread::sleep(whole.saturating_sub(begun.elapsed()));

        gradients.arrive()?;
        let before = Instant::now();
        let outcomes = gradients.wait(PATIENCE)?;
        waited += before.elapsed();
        for outcome in outcomes {
            // Everybody stops after the same round, whatever else was returned with it.
            if tally.contributions < wanted {
                // Falls to zero along what entered, which all ranks agree on.
                let rate = args.rate * (1.0 - tally.contributions as f32 / wanted as f32);
                tally.count(&outcome);
                weights.iter_mut().zip(outcome.data()).for_each(|(w, g)| *w -= rate * g);
                elapsed = start.elapsed();
            }
        }
        report.progress(fire, tally.contributions, wanted);
        if tally.contributions >= wanted {
            break;
        }
    }
    gradients.finish(PATIENCE)?;
    drop(gradients);

    let (loss, _) = mlp::evaluate(&weights, &digits.training);
    let (_, accuracy) = mlp::evaluate(&weights, &digits.test);
    Ok(Trained {
        steps: tally.rounds,
        samples_per_s: tally.contributions as f64 * f64::from(args.batch) / elapsed.as_secs_f64(),
        loss,
        accuracy,
        fresh_mean: tally.fresh as f64 / tally.rounds as f64,
        age_mean: tally.ages as f64 / tally.contributions as f64,
        age_max: tally.age_max,
        wait_s: mean_over_ranks(world, &[waited.as_secs_f64()], PATIENCE)?[0],
    })
}
