//! Trains the digits in virtual time, under `auto` and under each fixed quorum: which one gets to the accuracy first?

use std::time::Duration;

use super::super::skew::Skew;
use super::digits::{Digits, DigitsLearner, USUAL_BATCH, USUAL_EPOCHS, USUAL_RATE};
use super::learner::Learner;
use super::mlp;
use crate::collective::core::Time;
use crate::collective::core::played_tests::{Played, play_work};
use crate::tier::by_tier;

const RANKS: u32 = 8;
const STEP: Duration = Duration::from_millis(10);

/// The fraction of unseen images that must be recognised, as a mean of some evaluations.
const ACCURACY: f64 = 0.95;
const EVALUATIONS: usize = 3;

/// The number of contributions from one evaluation to the next.
const EVERY: u64 = 40;

/// A training, as `train digits` does it, and how far it is.
struct Training<'a> {
    skew: &'a Skew,
    digits: &'a Digits,
    seed: u64,
    learners: Vec<DigitsLearner>,
    weights: Vec<f32>,
    /// What each rank computes, and the sum that enters the next round.
    gradients: Vec<Vec<f32>>,
    sum: Vec<f32>,
    contributions: u64,
    in_sum: u64,
    accuracies: Vec<f64>,
    reached: Option<Time>,
}

impl<'a> Training<'a> {
    fn new(skew: &'a Skew, digits: &'a Digits, seed: u64) -> Self {
        let learner = |rank| DigitsLearner::new(seed, rank, USUAL_RATE, USUAL_BATCH, USUAL_EPOCHS);
        let learners: Vec<DigitsLearner> = (0..RANKS).map(learner).collect();
        let weights = learners[0].initial();
        let sum = vec![0.0; weights.len()];
        let gradients = vec![sum.clone(); RANKS as usize];
        let (contributions, in_sum, accuracies, reached) = (0, 0, Vec::new(), None);
        Training { skew, digits, seed, learners, weights, gradients, sum, contributions, in_sum, accuracies, reached }
    }
}

impl Played for Training<'_> {
    fn begins(&mut self, rank: u32, round: u64) -> Time {
        let index = rank as usize;
        self.learners[index].gradient(&self.weights, round, &mut self.gradients[index]);
        let delay = self.skew.delays(RANKS, round, self.seed, STEP)[index];
        // No two ranks take equally long.
        let jitter = Duration::from_micros((round * 7 + u64::from(rank) * 13 + self.seed) % 11 * 20);
        (STEP + delay + jitter).as_nanos() as Time
    }

    fn enters(&mut self, rank: u32) {
        self.sum.iter_mut().zip(&self.gradients[rank as usize]).for_each(|(sum, gradient)| *sum += gradient);
        self.in_sum += 1;
    }

    fn fires(&mut self, _: u64, now: Time) -> bool {
        let wanted = self.learners[0].wanted();
        let rate = self.learners[0].rate((self.contributions as f32 / wanted as f32).min(1.0));
        // Each contribution moves the model as far under every rule.
        let step = rate / RANKS as f32;
        self.weights.iter_mut().zip(&mut self.sum).for_each(|(weight, sum)| *weight -= step * std::mem::take(sum));
        let before = self.contributions;
        self.contributions += std::mem::take(&mut self.in_sum);
        if self.contributions / EVERY > before / EVERY {
            self.accuracies.push(mlp::evaluate(&self.weights, &self.digits.test).1);
            let last = self.accuracies.iter().rev().take(EVALUATIONS);
            if self.accuracies.len() >= EVALUATIONS && last.sum::<f64>() >= ACCURACY * EVALUATIONS as f64 {
                self.reached = Some(now);
            }
        }
        self.reached.is_none() && self.contributions < wanted
    }
}

/// The time to the accuracy in seconds, the geometric mean over seeds: the accuracy of a single run jumps.
fn time_to_accuracy(skew: &Skew, digits: &Digits, fixed: Option<u32>) -> f64 {
    let reached = |seed| {
        let mut training = Training::new(skew, digits, seed);
        play_work(&mut training, RANKS, fixed, 0);
        training.reached.map_or(f64::INFINITY, |time| time as f64 / 1e9)
    };
    let seeds = by_tier(4, 20);
    ((1..=seeds).map(|seed| f64::ln(reached(seed))).sum::<f64>() / seeds as f64).exp()
}

#[test]
fn auto_is_nearly_as_fast_to_the_accuracy_as_the_best_fixed_quorum() {
    let digits = Digits::load();
    let trace = concat!("trace:", env!("CARGO_MANIFEST_DIR"), "/data/late_ranks.csv");
    // These trainings take some hundred rounds. Where another rank is late in each step, the rule needs twenty of them to
    // see that, and waits for too many ranks meanwhile.
    let kinds =
        [("none", 1.15), ("one:7:30ms", 1.15), ("failslow:5:20:60:7", 1.15), (trace, 1.15), ("random:1:30ms", 1.3)];
    for (skew, most) in kinds.into_iter().take(by_tier(2, kinds.len())) {
        let skew: Skew = skew.parse().unwrap();
        let fixed = (1..=RANKS).map(|quorum| (time_to_accuracy(&skew, &digits, Some(quorum)), quorum));
        let (best, quorum) = fixed.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap();
        let auto = time_to_accuracy(&skew, &digits, None);
        println!("{skew}: auto {auto:.3} s, quorum={quorum} {best:.3} s, {:.3}", auto / best);
        assert!(best.is_finite() && auto <= best * most, "{skew}: auto {auto} s, quorum={quorum} {best} s");
    }
}
