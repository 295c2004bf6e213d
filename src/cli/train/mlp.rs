//! A small network: one hidden layer with ReLU, softmax and cross-entropy.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::digits::{PIXELS, Sample};

const HIDDEN: usize = 32;
const CLASSES: usize = 10;
const FIRST: usize = PIXELS * HIDDEN;
const SECOND: usize = HIDDEN * CLASSES;

/// The number of all weights and biases, which lie one after the other.
pub(super) const PARAMETERS: usize = FIRST + HIDDEN + SECOND + CLASSES;
/// The lengths of its tensors: weights and biases of both layers.
pub(super) const TENSORS: [usize; 4] = [FIRST, HIDDEN, SECOND, CLASSES];

pub(super) fn initial(seed: u64) -> Vec<f32> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut weights = vec![0.0; PARAMETERS];
    let mut fill = |from: usize, count: usize, inputs: usize| {
        let bound = (6.0 / inputs as f32).sqrt();
        weights[from..from + count].fill_with(|| rng.random_range(-bound..bound));
    };
    fill(0, FIRST, PIXELS);
    fill(FIRST + HIDDEN, SECOND, HIDDEN);
    weights
}

struct Activations {
    hidden: [f32; HIDDEN],
    probabilities: [f32; CLASSES],
}

fn forward(weights: &[f32], pixels: &[f32; PIXELS]) -> Activations {
    let (first, rest) = weights.split_at(FIRST);
    let (first_bias, rest) = rest.split_at(HIDDEN);
    let (second, second_bias) = rest.split_at(SECOND);
    let dot = |row: &[f32], input: &[f32]| row.iter().zip(input).map(|(w, x)| w * x).sum::<f32>();
    let hidden: [f32; HIDDEN] =
        std::array::from_fn(|i| (dot(&first[i * PIXELS..(i + 1) * PIXELS], pixels) + first_bias[i]).max(0.0));
    let scores: [f32; CLASSES] =
        std::array::from_fn(|i| dot(&second[i * HIDDEN..(i + 1) * HIDDEN], &hidden) + second_bias[i]);
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    let powers = scores.map(|score| (score - most).exp());
    let total: f32 = powers.iter().sum();
    Activations { hidden, probabilities: powers.map(|power| power / total) }
}

/// Writes the mean gradient over a batch.
pub(super) fn gradient<'a>(weights: &[f32], batch: impl ExactSizeIterator<Item = &'a Sample>, into: &mut [f32]) {
    into.fill(0.0);
    let share = 1.0 / batch.len() as f32;
    for sample in batch {
        let Activations { hidden, mut probabilities } = forward(weights, &sample.pixels);
        probabilities[sample.digit] -= 1.0;
        let second = &weights[FIRST + HIDDEN..FIRST + HIDDEN + SECOND];
        let mut back = [0.0; HIDDEN];
        for (class, &error) in probabilities.iter().enumerate() {
            let error = error * share;
            for i in 0..HIDDEN {
                into[FIRST + HIDDEN + class * HIDDEN + i] += error * hidden[i];
                back[i] += error * second[class * HIDDEN + i];
            }
            into[FIRST + HIDDEN + SECOND + class] += error;
        }
        for i in (0..HIDDEN).filter(|&i| hidden[i] > 0.0) {
            for (slot, pixel) in into[i * PIXELS..(i + 1) * PIXELS].iter_mut().zip(&sample.pixels) {
                *slot += back[i] * pixel;
            }
            into[FIRST + i] += back[i];
        }
    }
}

/// Returns the mean loss, and the fraction of samples that are recognised.
pub(super) fn evaluate(weights: &[f32], samples: &[Sample]) -> (f64, f64) {
    let (mut loss, mut right) = (0.0, 0);
    for sample in samples {
        let probabilities = forward(weights, &sample.pixels).probabilities;
        loss -= f64::from(probabilities[sample.digit].max(1e-12)).ln();
        let best = (0..CLASSES).max_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b]));
        right += usize::from(best == Some(sample.digit));
    }
    (loss / samples.len() as f64, right as f64 / samples.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::super::digits::Digits;
    use super::*;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let digits = Digits::load();
        let batch = &digits.training[..8];
        let weights = initial(3);
        let mut slope = vec![0.0; PARAMETERS];
        gradient(&weights, batch.iter(), &mut slope);
        for index in [5, FIRST + 3, FIRST + HIDDEN + 40, PARAMETERS - 2, 700] {
            let at = |shift: f32| {
                let mut weights = weights.clone();
                weights[index] += shift;
                evaluate(&weights, batch).0
            };
            let numeric = (at(1e-2) - at(-1e-2)) / 2e-2;
            assert!((numeric - f64::from(slope[index])).abs() < 2e-3, "{index}: {numeric} {}", slope[index]);
        }
    }
}
