//! A recurrent network with gates over the symbols of a line: a GRU (Cho et al., arXiv 1406.1078v1). Its reset gate scales
//! a product and not the state before it, so one product of matrices serves all three gates.
//!
//! For each symbol the network reads, it predicts the next one. With x the row of that symbol in `input`, h the state
//! before and p = h · `recurrent` + `bias`, each in three parts:
//!
//! ```text
//! keep = σ(x₁ + p₁)    reset = σ(x₂ + p₂)    fresh = tanh(x₃ + reset p₃)
//! state = fresh + keep (h − fresh)           scores = `output` · state + `output bias`
//! ```

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::rows::{add_scaled, dot, row, row_mut};

/// The number of different symbols. Symbol 0 ends a line, and the network reads it before its first symbol.
pub(super) const SYMBOLS: usize = 61;
const END: u8 = 0;

const HIDDEN: usize = 160;
const GATES: usize = 3 * HIDDEN;

/// The elements of each tensor. The tensors lie one after the other: a row of `input` for each symbol, a row of
/// `recurrent` for each element of the state, the bias of the gates, a row of `output` for each symbol, and its bias.
pub(super) const TENSORS: [usize; 5] = [SYMBOLS * GATES, HIDDEN * GATES, GATES, SYMBOLS * HIDDEN, SYMBOLS];

pub(super) const PARAMETERS: usize = TENSORS[0] + TENSORS[1] + TENSORS[2] + TENSORS[3] + TENSORS[4];

/// The number of rows of `recurrent` that are used together.
const PART: usize = 8;
const _: () = assert!(HIDDEN.is_multiple_of(PART));

/// The number of lines that are computed side by side: a row of a matrix in the cache serves all of them.
const SIDE_BY_SIDE: usize = 8;

pub(super) fn initial(seed: u64) -> Vec<f32> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut weights = vec![0.0; PARAMETERS];
    let [input, recurrent, _, output, _] = split_mut(&mut weights);
    for (matrix, bound) in [(input, 0.3), (recurrent, 1.0 / (HIDDEN as f32).sqrt()), (output, 0.1)] {
        matrix.fill_with(|| rng.random_range(-bound..bound));
    }
    weights
}

fn split(weights: &[f32]) -> [&[f32]; 5] {
    let mut rest = weights;
    TENSORS.map(|length| rest.split_off(..length).unwrap_or_default())
}

fn split_mut(weights: &mut [f32]) -> [&mut [f32]; 5] {
    let mut rest = weights;
    TENSORS.map(|length| rest.split_off_mut(..length).unwrap_or_default())
}

/// How well next symbols are predicted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Predicted {
    /// The sum of cross-entropies, in nats.
    pub(super) loss: f64,
    pub(super) right: u64,
    pub(super) symbols: u64,
}

/// The rows of the lines that have a symbol at a time. Longer lines come first, so these are always the first lines.
#[derive(Clone, Copy, Debug)]
struct Time {
    first_row: usize,
    lines: usize,
}

/// What a forward pass over lines stores for the backward pass, with a row for each symbol.
#[derive(Debug, Default)]
pub(super) struct Gru {
    times: Vec<Time>,
    /// The values keep, reset and fresh.
    gates: Vec<f32>,
    /// The values that the reset gate scales.
    scaled: Vec<f32>,
    /// A row of zeros, and then the states.
    states: Vec<f32>,
    /// The probabilities of the next symbol. The backward pass overwrites them with slopes of the scores.
    scores: Vec<f32>,
    /// The products at the present time, a row for each line; in the backward pass their slopes.
    products: Vec<f32>,
    /// The slopes of the states at the present time, a row for each line.
    slopes: Vec<f32>,
}

impl Gru {
    /// Writes the mean gradient over all symbols of some lines, each of which ends with symbol 0.
    pub(super) fn gradient(&mut self, weights: &[f32], lines: &[&[u8]], into: &mut [f32]) {
        into.fill(0.0);
        let symbols: usize = lines.iter().map(|line| line.len()).sum();
        self.for_each_group(lines, |gru, group| {
            gru.forward(weights, group);
            gru.backward(weights, group, 1.0 / symbols as f32, into);
        });
    }

    pub(super) fn evaluate(&mut self, weights: &[f32], lines: &[&[u8]]) -> Predicted {
        let mut all = Predicted::default();
        self.for_each_group(lines, |gru, group| {
            gru.forward(weights, group);
            for (at, time) in gru.times.iter().enumerate() {
                for (line, symbols) in group[..time.lines].iter().enumerate() {
                    let probabilities = row(&gru.scores, SYMBOLS, time.first_row + line);
                    let next = usize::from(symbols[at]);
                    let best = (0..SYMBOLS).max_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b]));
                    all.loss -= f64::from(probabilities[next].max(1e-30)).ln();
                    all.right += u64::from(best == Some(next));
                    all.symbols += 1;
                }
            }
        });
        all
    }

    /// Visits lines of similar lengths side by side, the longest of them first.
    fn for_each_group(&mut self, lines: &[&[u8]], mut visit: impl FnMut(&mut Self, &[&[u8]])) {
        let mut lines = lines.to_vec();
        lines.sort_by_key(|line| std::cmp::Reverse(line.len()));
        lines.chunks(SIDE_BY_SIDE).for_each(|group| visit(self, group));
    }

    /// Allocates memory for lines, which must be sorted.
    fn lay_out(&mut self, lines: &[&[u8]]) {
        self.times.clear();
        let mut rows = 0;
        for at in 0..lines.first().map_or(0, |line| line.len()) {
            let going_on = lines.iter().take_while(|line| line.len() > at).count();
            self.times.push(Time { first_row: rows, lines: going_on });
            rows += going_on;
        }
        let grow = |numbers: &mut Vec<f32>, length: usize| numbers.resize(numbers.len().max(length), 0.0);
        grow(&mut self.gates, rows * GATES);
        grow(&mut self.scaled, rows * HIDDEN);
        grow(&mut self.states, (rows + 1) * HIDDEN);
        grow(&mut self.scores, rows * SYMBOLS);
        grow(&mut self.products, SIDE_BY_SIDE * GATES);
        grow(&mut self.slopes, SIDE_BY_SIDE * HIDDEN);
    }

    /// Returns the row of `states` that a line has before a time.
    fn before(&self, at: usize, line: usize) -> usize {
        if at == 0 { 0 } else { 1 + self.times[at - 1].first_row + line }
    }

    fn forward(&mut self, weights: &[f32], lines: &[&[u8]]) {
        self.lay_out(lines);
        let [input, recurrent, bias, output, output_bias] = split(weights);
        for at in 0..self.times.len() {
            let Time { first_row, lines: going_on } = self.times[at];
            self.products.chunks_exact_mut(GATES).for_each(|product| product.copy_from_slice(bias));
            // A part of the matrix stays in the cache while all lines use it.
            for part in (0..HIDDEN).step_by(PART) {
                for line in 0..going_on {
                    let state = row(&self.states, HIDDEN, self.before(at, line));
                    let product = row_mut(&mut self.products, GATES, line);
                    add_scaled(product, PART, |index| (state[part + index], row(recurrent, GATES, part + index)));
                }
            }
            for (line, symbols) in lines[..going_on].iter().enumerate() {
                let read = row(input, GATES, read(symbols, at));
                let product = row(&self.products, GATES, line);
                let before = self.before(at, line);
                let (past, now) = self.states.split_at_mut((1 + first_row + line) * HIDDEN);
                let before = row(past, HIDDEN, before);
                let (keep, rest) = row_mut(&mut self.gates, GATES, first_row + line).split_at_mut(HIDDEN);
                let (reset, fresh) = rest.split_at_mut(HIDDEN);
                let scaled = row_mut(&mut self.scaled, HIDDEN, first_row + line);
                scaled.copy_from_slice(&product[2 * HIDDEN..]);
                for index in 0..HIDDEN {
                    keep[index] = sigmoid(read[index] + product[index]);
                    reset[index] = sigmoid(read[HIDDEN + index] + product[HIDDEN + index]);
                    fresh[index] = (read[2 * HIDDEN + index] + reset[index] * scaled[index]).tanh();
                    now[index] = fresh[index] + keep[index] * (before[index] - fresh[index]);
                }
            }
            for line in first_row..first_row + going_on {
                let state = row(&self.states, HIDDEN, 1 + line);
                let scores = row_mut(&mut self.scores, SYMBOLS, line);
                for (symbol, score) in scores.iter_mut().enumerate() {
                    *score = dot(row(output, HIDDEN, symbol), state) + output_bias[symbol];
                }
                softmax(scores);
            }
        }
    }

    /// Adds `share` times the slopes of the loss, after a pass over the same lines.
    fn backward(&mut self, weights: &[f32], lines: &[&[u8]], share: f32, into: &mut [f32]) {
        let [_, recurrent, _, output, _] = split(weights);
        let [input_slope, recurrent_slope, bias_slope, output_slope, output_bias_slope] = split_mut(into);
        self.slopes.fill(0.0);
        for at in (0..self.times.len()).rev() {
            let Time { first_row, lines: going_on } = self.times[at];
            for (line, symbols) in lines[..going_on].iter().enumerate() {
                let errors = row_mut(&mut self.scores, SYMBOLS, first_row + line);
                errors[usize::from(symbols[at])] -= 1.0;
                errors.iter_mut().for_each(|error| *error *= share);
                let slope = row_mut(&mut self.slopes, HIDDEN, line);
                add_scaled(slope, SYMBOLS, |symbol| (errors[symbol], row(output, HIDDEN, symbol)));
                add_scaled(output_bias_slope, 1, |_| (1.0, errors));
            }
            for symbol in 0..SYMBOLS {
                add_scaled(row_mut(output_slope, HIDDEN, symbol), going_on, |line| {
                    let place = first_row + line;
                    (self.scores[place * SYMBOLS + symbol], row(&self.states, HIDDEN, 1 + place))
                });
            }
            for (line, symbols) in lines[..going_on].iter().enumerate() {
                let read_slope = row_mut(input_slope, GATES, read(symbols, at));
                self.backward_gates(at, line, read_slope);
            }
            for index in 0..HIDDEN {
                for line in 0..going_on {
                    let change = dot(row(recurrent, GATES, index), row(&self.products, GATES, line));
                    self.slopes[line * HIDDEN + index] += change;
                }
                add_scaled(row_mut(recurrent_slope, GATES, index), going_on, |line| {
                    (self.states[self.before(at, line) * HIDDEN + index], row(&self.products, GATES, line))
                });
            }
            add_scaled(bias_slope, going_on, |line| (1.0, row(&self.products, GATES, line)));
        }
    }

    /// Computes, from the slope of a state, those of its products and of the part of the previous state that the gate
    /// keeps.
    fn backward_gates(&mut self, at: usize, line: usize, read_slope: &mut [f32]) {
        let place = self.times[at].first_row + line;
        let before = row(&self.states, HIDDEN, self.before(at, line));
        let (keep, rest) = row(&self.gates, GATES, place).split_at(HIDDEN);
        let (reset, fresh) = rest.split_at(HIDDEN);
        let scaled = row(&self.scaled, HIDDEN, place);
        let slope = row_mut(&mut self.slopes, HIDDEN, line);
        let (keep_slope, rest) = row_mut(&mut self.products, GATES, line).split_at_mut(HIDDEN);
        let (reset_slope, scaled_slope) = rest.split_at_mut(HIDDEN);
        let (read_keep, rest) = read_slope.split_at_mut(HIDDEN);
        let (read_reset, read_fresh) = rest.split_at_mut(HIDDEN);
        for index in 0..HIDDEN {
            let (kept, open, new) = (keep[index], reset[index], fresh[index]);
            let new_slope = slope[index] * (1.0 - kept) * (1.0 - new * new);
            keep_slope[index] = slope[index] * (before[index] - new) * kept * (1.0 - kept);
            reset_slope[index] = new_slope * scaled[index] * open * (1.0 - open);
            scaled_slope[index] = new_slope * open;
            read_keep[index] += keep_slope[index];
            read_reset[index] += reset_slope[index];
            read_fresh[index] += new_slope;
            slope[index] *= kept;
        }
    }
}

/// Returns the symbol that the network reads at a time: the one that it had to predict before.
#[inline]
fn read(line: &[u8], at: usize) -> usize {
    usize::from(if at == 0 { END } else { line[at - 1] })
}

#[inline]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(scores: &mut [f32]) {
    let most = scores.iter().copied().fold(f32::MIN, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - most).exp());
    let total: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= total);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of different lengths, more than fit side by side, with repeated symbols.
    fn lines() -> Vec<Vec<u8>> {
        let line = |length: u8, step: u8| (0..length).map(|at| (at * step) % 60 + 1).chain([END]).collect();
        (0..11).map(|index| line(index, index + 2)).collect()
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_loss_in_every_tensor() {
        let lines = lines();
        let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        let mut gru = Gru::default();
        let mut weights = initial(3);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        let [_, _, bias, _, output_bias] = split_mut(&mut weights);
        bias.fill_with(|| rng.random_range(-0.5..0.5));
        output_bias.fill_with(|| rng.random_range(-0.5..0.5));
        let mut slope = vec![0.0; PARAMETERS];
        gru.gradient(&weights, &lines, &mut slope);
        let mut first = 0;
        for (tensor, length) in TENSORS.into_iter().enumerate() {
            let largest = |part: std::ops::Range<usize>| {
                part.max_by(|&a, &b| slope[a].abs().total_cmp(&slope[b].abs())).unwrap_or_default()
            };
            // The bias has a third for each gate.
            for third in 0..3 {
                let index = largest(first + third * length / 3..first + (third + 1) * length / 3);
                let mut at = |shift: f32| {
                    let mut weights = weights.clone();
                    weights[index] += shift;
                    let Predicted { loss, symbols, .. } = gru.evaluate(&weights, &lines);
                    loss / symbols as f64
                };
                let numeric = (at(1e-2) - at(-1e-2)) / 2e-2;
                let exact = f64::from(slope[index]);
                assert!((numeric / exact - 1.0).abs() < 0.01, "{tensor} {index}: {numeric} {exact}");
            }
            first += length;
        }
    }
}
