//! What is trained, as the training loop sees it.

use crate::Scale;

/// A model and its data, one rank's view.
pub(super) trait Learner {
    /// Elements of the tensors of the model, which lie one after the other in its weights and in gradients.
    fn tensors(&self) -> Vec<usize> {
        vec![self.initial().len()]
    }

    /// The weights that training begins with, before rank 0's are given to all.
    fn initial(&self) -> Vec<f32>;

    /// Writes the gradient over this rank's batch number `step`.
    fn gradient(&mut self, weights: &[f32], step: u64, into: &mut [f32]);

    /// Goes on behind this rank's first batches, whose gradients were computed before.
    fn skip(&mut self, _steps: u64) {}

    /// The work of the last batch, relative to the mean over batches.
    fn share(&self) -> f64 {
        1.0
    }

    /// The learning rate at a progress from 0 to 1.
    fn rate(&self, progress: f32) -> f32;

    /// What the sum of gradients is divided by.
    fn scale(&self) -> Scale;

    /// Samples in a contribution, as a mean over ranks.
    fn batch(&self) -> f64;

    /// The contributions that training takes.
    fn wanted(&self) -> u64;

    fn evaluate(&self, weights: &[f32]) -> Quality;
}

/// How good a model is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quality {
    pub(super) loss: f64,
    /// The fraction of unseen samples that is recognised, where that has a meaning.
    pub(super) accuracy: Option<f64>,
}
