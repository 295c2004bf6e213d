//! What is trained, as the training loop sees it.

use crate::Scale;

/// A model and its data, one rank's view.
pub(super) trait Learner {
    /// Returns the elements of the tensors of the model, which lie one after the other in its weights and in gradients.
    fn tensors(&self) -> Vec<usize> {
        vec![self.initial().len()]
    }

    /// Returns the weights with which training begins, before rank 0's are given to all.
    fn initial(&self) -> Vec<f32>;

    /// Writes the gradient over this rank's batch number `step`.
    fn gradient(&mut self, weights: &[f32], step: u64, into: &mut [f32]);

    /// Continues after this rank's first batches, whose gradients were computed before.
    fn skip(&mut self, _steps: u64) {}

    /// Returns the work of the last batch, relative to the mean over batches.
    fn share(&self) -> f64 {
        1.0
    }

    /// Returns the learning rate at a progress from 0 to 1.
    fn rate(&self, progress: f32) -> f32;

    /// Returns what the sum of gradients is divided by.
    fn scale(&self) -> Scale;

    /// Returns the number of samples in a contribution, as a mean over ranks.
    fn batch(&self) -> f64;

    /// Returns the number of contributions that training takes.
    fn wanted(&self) -> u64;

    fn evaluate(&self, weights: &[f32]) -> Quality;
}

/// The quality of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quality {
    pub(super) loss: f64,
    /// The fraction of unseen samples that is recognised, if that has a meaning.
    pub(super) accuracy: Option<f64>,
}
