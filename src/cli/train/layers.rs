//! Gradients that are handed in layer by layer, in the order in which a backward pass computes them.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::{BucketOutcomes, BucketedAllreduce, Buckets, Executor, Lateness, Mover, Result, Scale, World};

/// The fraction of a step that is over when the backward pass begins.
const FORWARD: f64 = 1.0 / 3.0;

/// A collective over the tensors of a model, from the last one to the first.
pub(super) struct Layers {
    sum: BucketedAllreduce<f32>,
    /// The range of each tensor in the model, in the order in which it is handed in.
    ranges: Vec<Range<usize>>,
    elements: usize,
}

impl Layers {
    pub(super) fn new(
        world: &World,
        tensors: &[usize],
        scale: Scale,
        (mover, executor): (Mover, Executor),
    ) -> Result<Self> {
        let mut elements = 0;
        let mut ranges = Vec::new();
        for length in tensors {
            ranges.push(elements..elements + length);
            elements += length;
        }
        ranges.reverse();
        let lengths: Vec<usize> = ranges.iter().map(Range::len).collect();
        let all = world.allreduce::<f32>(&lengths).scale(scale).mover(mover).executor(executor);
        Ok(Layers { sum: all.buckets(Buckets::Measured).build()?, ranges, elements })
    }

    /// Hands in a gradient: each tensor when a step that began at `begun`, and takes `whole`, has computed it.
    pub(super) fn hand_in(&mut self, gradient: &[f32], (begun, whole): (Instant, Duration)) -> Result<()> {
        self.sum.begin()?;
        let mut computed = 0;
        for (tensor, range) in self.ranges.iter().enumerate() {
            computed += range.len();
            let backward = computed as f64 / self.elements.max(1) as f64;
            let ready = whole.mul_f64(FORWARD + (1.0 - FORWARD) * backward);
            std::thread::sleep(ready.saturating_sub(begun.elapsed()));
            self.sum.tensor(tensor)?.copy_from_slice(&gradient[range.clone()]);
            self.sum.filled(tensor)?;
        }
        Ok(())
    }

    /// Waits for the mean of all gradients.
    pub(super) fn wait(&mut self, patience: Duration) -> Result<(BucketOutcomes<'_, f32>, &[Range<usize>])> {
        let Layers { sum, ranges, .. } = self;
        Ok((sum.wait(patience)?, ranges))
    }

    /// Returns which ranks were late, by the first bucket.
    pub(super) fn lateness(&self) -> Lateness {
        self.sum.lateness()
    }

    pub(super) fn finish(&mut self, patience: Duration) -> Result<()> {
        self.sum.finish(patience)
    }
}
