//! The handwritten digits, read from the bundled file (see `data/README.md`), and how a network learns them.

use crate::Scale;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::learner::{Learner, Quality};
use super::mlp;

const FILE: &[u8] = include_bytes!("../../../data/digits.bin");
pub(super) const PIXELS: usize = 64;
const RECORD: usize = PIXELS + 1;

/// An image with values between 0 and 1, and the digit that it shows.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) pixels: [f32; PIXELS],
    pub(super) digit: usize,
}

/// Every fifth image is kept for testing.
#[derive(Debug)]
pub(super) struct Digits {
    pub(super) training: Vec<Sample>,
    pub(super) test: Vec<Sample>,
}

impl Digits {
    pub(super) fn load() -> Self {
        let sample = |record: &[u8]| Sample {
            pixels: std::array::from_fn(|pixel| f32::from(record[pixel]) / 16.0),
            digit: usize::from(record[PIXELS]),
        };
        let (mut training, mut test) = (Vec::new(), Vec::new());
        for (index, record) in FILE.chunks_exact(RECORD).enumerate() {
            if index % 5 == 4 { test.push(sample(record)) } else { training.push(sample(record)) }
        }
        Digits { training, test }
    }
}

/// Learning rate at the beginning; it falls linearly to 0.
pub(super) const USUAL_RATE: f32 = 0.8;
pub(super) const USUAL_BATCH: u32 = 16;
pub(super) const USUAL_EPOCHS: u32 = 24;

/// Learns the digits with a small network; each rank chooses its own batches.
#[derive(Debug)]
pub(super) struct DigitsLearner {
    digits: Digits,
    rng: Xoshiro256PlusPlus,
    seed: u64,
    rate: f32,
    batch: u32,
    epochs: u32,
}

impl DigitsLearner {
    pub(super) fn new(seed: u64, rank: u32, rate: f32, batch: u32, epochs: u32) -> Self {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ (u64::from(rank) << 32));
        DigitsLearner { digits: Digits::load(), rng, seed: seed.wrapping_add(u64::from(rank)), rate, batch, epochs }
    }

    /// Draws the samples of the next batch.
    fn draw(&mut self) -> Vec<usize> {
        let samples = self.digits.training.len();
        (0..self.batch).map(|_| self.rng.random_range(0..samples)).collect()
    }
}

impl Learner for DigitsLearner {
    fn tensors(&self) -> Vec<usize> {
        mlp::TENSORS.to_vec()
    }

    fn initial(&self) -> Vec<f32> {
        mlp::initial(self.seed)
    }

    fn gradient(&mut self, weights: &[f32], _: u64, into: &mut [f32]) {
        let drawn = self.draw();
        mlp::gradient(weights, drawn.iter().map(|&index| &self.digits.training[index]), into);
    }

    fn skip(&mut self, steps: u64) {
        for _ in 0..steps {
            self.draw();
        }
    }

    fn rate(&self, progress: f32) -> f32 {
        self.rate * (1.0 - progress)
    }

    fn scale(&self) -> Scale {
        Scale::Contributions
    }

    fn batch(&self) -> f64 {
        f64::from(self.batch)
    }

    fn wanted(&self) -> u64 {
        u64::from(self.epochs) * (self.digits.training.len() as u64).div_ceil(u64::from(self.batch))
    }

    fn evaluate(&self, weights: &[f32]) -> Quality {
        let (loss, _) = mlp::evaluate(weights, &self.digits.training);
        let (_, accuracy) = mlp::evaluate(weights, &self.digits.test);
        Quality { loss, accuracy: Some(accuracy) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_what_it_says() {
        let digits = Digits::load();
        assert_eq!((digits.training.len(), digits.test.len()), (1438, 359));
        assert_eq!(FILE.len() % RECORD, 0);
        assert!(digits.training.iter().chain(&digits.test).all(|sample| sample.digit < 10));
        assert!(digits.training.iter().all(|sample| sample.pixels.iter().all(|pixel| (0.0..=1.0).contains(pixel))));
    }
}
