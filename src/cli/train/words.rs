//! Verses of the King James Bible, read from the bundled file (see `data/README.md`), and how a network learns to write
//! them, character by character.
//!
//! Lines have 11 to 528 characters. A batch has lines of similar length, as trainers of recurrent networks choose them.
//! So the work of batches differs like the lengths of lines: this is the inherent imbalance of eager-SGD (PPoPP 2020).

use std::ops::Range;

use crate::Scale;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::gru::{self, Gru, SYMBOLS};
use super::learner::{Learner, Quality};

const FILE: &str = include_str!("../../../data/words.txt");

/// The characters of the file, in the order of their symbols. The first one ends a line.
const CHARACTERS: &[u8; SYMBOLS] = b"\n !'(),.:;?ABCDEFGHIJKLMNOPRSTUVWYZabcdefghijklmnopqrstuvwxyz";

/// One line in this number is for testing: one after each 49 for training.
const TEST_EVERY: usize = 50;

/// The learning rate at the beginning; it falls linearly to 0.
pub(super) const USUAL_RATE: f32 = 4.0;
pub(super) const USUAL_BATCH: u32 = 4;
pub(super) const USUAL_EPOCHS: u32 = 4;
pub(super) const USUAL_COMPUTE_MS: f64 = 50.0;
pub(super) const LARGEST_BATCH: u32 = 1024;

/// A longer gradient is shortened to this length.
const LONGEST_GRADIENT: f32 = 1.0;

/// Lines as symbols.
#[derive(Debug)]
struct Lines {
    /// Sorted by length.
    training: Vec<Vec<u8>>,
    test: Vec<Vec<u8>>,
}

impl Lines {
    fn load() -> Self {
        let symbol = |character: u8| CHARACTERS.iter().position(|&of| of == character).unwrap_or_default() as u8;
        let (mut training, mut test) = (Vec::new(), Vec::new());
        for (index, line) in FILE.split_inclusive('\n').enumerate() {
            let into = if index % TEST_EVERY == TEST_EVERY - 1 { &mut test } else { &mut training };
            into.push(line.bytes().map(symbol).collect::<Vec<u8>>());
        }
        training.sort_by_key(Vec::len);
        Lines { training, test }
    }
}

/// Learns to predict characters; each rank chooses its own batches.
#[derive(Debug)]
pub(super) struct WordsLearner {
    lines: Lines,
    gru: Gru,
    rng: Xoshiro256PlusPlus,
    seed: u64,
    rate: f32,
    batch: u32,
    epochs: u32,
    /// The mean number of characters of a line for training.
    mean_length: f64,
    share: f64,
}

impl WordsLearner {
    pub(super) fn new(seed: u64, rank: u32, rate: f32, batch: u32, epochs: u32) -> Self {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ (u64::from(rank) << 32));
        let lines = Lines::load();
        let characters: usize = lines.training.iter().map(Vec::len).sum();
        let mean_length = characters as f64 / lines.training.len() as f64;
        let seed = seed.wrapping_add(u64::from(rank));
        WordsLearner { lines, gru: Gru::default(), rng, seed, rate, batch, epochs, mean_length, share: 1.0 }
    }

    /// Draws the lines of the next batch: neighbours in the order of lengths.
    fn draw(&mut self) -> Range<usize> {
        let batch = self.batch as usize;
        let first = self.rng.random_range(0..=self.lines.training.len() - batch);
        let lines = first..first + batch;
        let characters: usize = self.lines.training[lines.clone()].iter().map(Vec::len).sum();
        self.share = characters as f64 / (self.mean_length * batch as f64);
        lines
    }
}

impl Learner for WordsLearner {
    fn tensors(&self) -> Vec<usize> {
        gru::TENSORS.to_vec()
    }

    fn initial(&self) -> Vec<f32> {
        gru::initial(self.seed)
    }

    fn gradient(&mut self, weights: &[f32], _: u64, into: &mut [f32]) {
        let drawn = self.draw();
        let lines: Vec<&[u8]> = self.lines.training[drawn].iter().map(Vec::as_slice).collect();
        self.gru.gradient(weights, &lines, into);
        let length = into.iter().map(|slope| slope * slope).sum::<f32>().sqrt();
        if length > LONGEST_GRADIENT {
            into.iter_mut().for_each(|slope| *slope *= LONGEST_GRADIENT / length);
        }
    }

    fn skip(&mut self, steps: u64) {
        for _ in 0..steps {
            self.draw();
        }
    }

    fn share(&self) -> f64 {
        self.share
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
        u64::from(self.epochs) * (self.lines.training.len() as u64).div_ceil(u64::from(self.batch))
    }

    fn evaluate(&self, weights: &[f32]) -> Quality {
        let lines: Vec<&[u8]> = self.lines.test.iter().map(Vec::as_slice).collect();
        let predicted = Gru::default().evaluate(weights, &lines);
        let symbols = predicted.symbols as f64;
        Quality { loss: predicted.loss / symbols, accuracy: Some(predicted.right as f64 / symbols) }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_file_is_what_it_says() {
        let lines = Lines::load();
        assert_eq!((lines.training.len(), lines.test.len()), (3096, 63));
        let lengths = || lines.training.iter().chain(&lines.test).map(|line| line.len() - 1);
        assert_eq!((lengths().min(), lengths().max(), lengths().sum()), (Some(11), Some(528), 378_713));
        let ends = |line: &Vec<u8>| line.iter().position(|&symbol| symbol == 0) == Some(line.len() - 1);
        assert!(lines.training.iter().chain(&lines.test).all(ends));
        assert!(FILE.bytes().all(|character| CHARACTERS.contains(&character)));
        assert!(CHARACTERS.is_sorted());
        let digest: String = Sha256::digest(FILE).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(include_str!("../../../data/README.md").contains(&digest), "{digest}");
    }

    #[test]
    fn the_work_of_batches_differs_and_is_one_as_a_mean() {
        let mut learner = WordsLearner::new(1, 0, 1.0, 4, 1);
        let shares: Vec<f64> = (0..20_000)
            .map(|_| {
                learner.draw();
                learner.share()
            })
            .collect();
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        let (least, most) = shares.iter().fold((f64::MAX, 0.0f64), |(a, b), &share| (a.min(share), b.max(share)));
        assert!(least < 0.25 && most > 3.0, "{least} {most}");
    }

    #[test]
    fn seed_and_rank_choose_the_batches() {
        let weights = gru::initial(7);
        let gradient = |seed, rank| {
            let mut learner = WordsLearner::new(seed, rank, 1.0, 2, 1);
            let mut into = vec![0.0; weights.len()];
            learner.gradient(&weights, 0, &mut into);
            into
        };
        assert_eq!(gradient(1, 2), gradient(1, 2));
        assert_ne!(gradient(1, 2), gradient(1, 3));
        assert_ne!(gradient(1, 2), gradient(2, 2));
    }

    /// Knowing only how frequent each character is leaves a loss of 3.0, and 18 % guessed right: the spaces.
    #[test]
    fn a_short_training_learns_more_than_frequencies() {
        let mut learner = WordsLearner::new(1, 0, 2.0, 4, 1);
        let mut weights = learner.initial();
        let mut slope = vec![0.0; weights.len()];
        let steps = 150;
        for step in 0..steps {
            learner.gradient(&weights, step, &mut slope);
            let rate = learner.rate(step as f32 / steps as f32);
            weights.iter_mut().zip(&slope).for_each(|(w, g)| *w -= rate * g);
        }
        let Quality { loss, accuracy } = learner.evaluate(&weights);
        assert!(loss < 2.7 && accuracy > Some(0.27), "{loss} {accuracy:?}");
    }
}
