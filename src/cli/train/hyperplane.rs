//! Linear regression in 8,192 dimensions, the first workload of eager-SGD (PPoPP 2020): 32,768 points on a hyperplane
//! with noise in their labels, and a global batch of 2,048.
//!
//! Points are computed from the seed whenever they are needed, because all of them would take a gigabyte.

use crate::Scale;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::learner::{Learner, Quality};
use super::rows::dot;

const DIMENSIONS: usize = 8192;
const POINTS: u64 = 32_768;
const GLOBAL_BATCH: u32 = 2048;

/// The standard deviation of the noise in labels.
const NOISE: f32 = 1.0;

/// The variance of a label without noise.
const SIGNAL: f32 = 32.0;

/// The default learning rate, as a fraction of the largest stable one.
pub(super) const USUAL_RATE: f32 = 0.1;

/// The number of epochs in which the loss falls to a twentieth with the default rate.
pub(super) const USUAL_EPOCHS: u32 = 7;

/// Returns the largest learning rate with which synchronous training converges. The expected squared distance from the
/// truth shrinks by 1 - 2r + r²(1 + (d + 1) / B) in a step, for a fresh batch of B points in d dimensions whose
/// coordinates are independent and have variance 1.
fn largest_stable() -> f32 {
    2.0 / (1.0 + (DIMENSIONS as f32 + 1.0) / GLOBAL_BATCH as f32)
}

#[derive(Debug)]
pub(super) struct Hyperplane {
    seed: u64,
    truth: Vec<f32>,
    rate: f32,
    rank: u32,
    ranks: u32,
    epochs: u32,
    point: Vec<f32>,
}

impl Hyperplane {
    /// Creates the learner. `rate` is a fraction of the largest stable one.
    pub(super) fn new(seed: u64, (rank, ranks): (u32, u32), rate: f32, epochs: u32) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let scale = (SIGNAL / DIMENSIONS as f32).sqrt();
        let normal = |rng: &mut Xoshiro256PlusPlus| -> f32 { StandardNormal.sample(rng) };
        let truth = (0..DIMENSIONS).map(|_| scale * normal(&mut rng)).collect();
        let rate = rate * largest_stable();
        Hyperplane { seed, truth, rate, rank, ranks, epochs, point: vec![0.0; DIMENSIONS] }
    }

    fn steps_in_epoch() -> u64 {
        POINTS / u64::from(GLOBAL_BATCH)
    }

    /// Writes point `index`, and returns its label.
    fn draw(&self, index: u64, point: &mut [f32]) -> f32 {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed ^ (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        // The coordinates are uniform with a variance of 1, four from each random word.
        let scale = 3.0f32.sqrt() / 32_768.0;
        for four in point.chunks_exact_mut(4) {
            let bits = rng.next_u64();
            for (place, x) in four.iter_mut().enumerate() {
                *x = (f32::from((bits >> (16 * place)) as u16) - 32_767.5) * scale;
            }
        }
        let noise: f32 = StandardNormal.sample(&mut rng);
        dot(point, &self.truth) + NOISE * noise
    }
}

impl Learner for Hyperplane {
    fn initial(&self) -> Vec<f32> {
        vec![0.0; DIMENSIONS]
    }

    fn gradient(&mut self, weights: &[f32], step: u64, into: &mut [f32]) {
        into.fill(0.0);
        // The ranks' batches may differ by a point. Each is divided by their mean size, so the mean of all gradients is
        // that of the global batch.
        let bound = |rank: u32| u64::from(rank) * u64::from(GLOBAL_BATCH) / u64::from(self.ranks);
        let first = step % Self::steps_in_epoch() * u64::from(GLOBAL_BATCH);
        let batch = self.batch() as f32;
        let mut point = std::mem::take(&mut self.point);
        for index in first + bound(self.rank)..first + bound(self.rank + 1) {
            let label = self.draw(index, &mut point);
            let error = (dot(&point, weights) - label) / batch;
            into.iter_mut().zip(&point).for_each(|(slope, x)| *slope += error * x);
        }
        self.point = point;
    }

    fn rate(&self, _: f32) -> f32 {
        self.rate
    }

    fn scale(&self) -> Scale {
        Scale::World
    }

    fn batch(&self) -> f64 {
        f64::from(GLOBAL_BATCH) / f64::from(self.ranks)
    }

    fn wanted(&self) -> u64 {
        u64::from(self.epochs) * Self::steps_in_epoch() * u64::from(self.ranks)
    }

    /// Returns the expected squared error of a new point. Coordinates are independent and have variance 1, so the error
    /// is the noise plus the squared distance from the truth.
    fn evaluate(&self, weights: &[f32]) -> Quality {
        let distance: f64 = weights.iter().zip(&self.truth).map(|(w, t)| f64::from(w - t).powi(2)).sum();
        Quality { loss: f64::from(NOISE).powi(2) + distance, accuracy: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_shrinks_the_error_as_the_formula_says() {
        let mut all = Hyperplane::new(3, (0, 1), 0.5, 1);
        let mut weights = all.initial();
        let mut slope = all.initial();
        let before = all.evaluate(&weights).loss - 1.0;
        assert!((before - f64::from(SIGNAL)).abs() < 2.0, "{before}");
        all.gradient(&weights, 0, &mut slope);
        let rate = all.rate(0.0);
        weights.iter_mut().zip(&slope).for_each(|(w, g)| *w -= rate * g);
        let after = all.evaluate(&weights).loss - 1.0;
        // Half of the largest stable rate is the best one: it shrinks by 1 - r. Noise adds r² d/B.
        let rate = f64::from(rate);
        let expected = before * (1.0 - rate) + rate * rate * DIMENSIONS as f64 / f64::from(GLOBAL_BATCH);
        assert!((after / expected - 1.0).abs() < 0.05, "{after} {expected}");
    }

    #[test]
    fn batches_of_ranks_are_parts_of_the_global_one() {
        let mut whole = Hyperplane::new(1, (0, 1), 0.1, 1);
        let weights: Vec<f32> = (0..DIMENSIONS).map(|i| (i % 7) as f32 * 0.01).collect();
        let mut all = whole.initial();
        whole.gradient(&weights, 17, &mut all);
        for ranks in [3, 4] {
            let mut sum = vec![0.0; DIMENSIONS];
            for rank in 0..ranks {
                let mut part = Hyperplane::new(1, (rank, ranks), 0.1, 1);
                let mut slope = whole.initial();
                part.gradient(&weights, 17, &mut slope);
                sum.iter_mut().zip(&slope).for_each(|(sum, x)| *sum += x / ranks as f32);
            }
            assert!(all.iter().zip(&sum).all(|(a, b)| (a - b).abs() < 1e-4));
        }
    }
}
