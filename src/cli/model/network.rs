//! What a message costs on a network, depending on the number of GPUs.

use std::time::Duration;

use crate::merge::Cost;
use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Algorithm {
    /// 2 (n - 1) steps
    Ring,
    /// 2 ceil(log2 n) steps: a double binary tree
    Tree,
    /// α and β are of a whole allreduce, measured with this number of GPUs
    Measured,
}

impl Algorithm {
    pub(super) fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            Algorithm::Measured => "measured",
        }
    }
}

/// An allreduce between any number of GPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    pub(super) algorithm: Algorithm,
    /// The time of a step, or of a whole allreduce if that is measured.
    pub(super) alpha_us: f64,
    /// The time of a byte on a link, or in a whole allreduce.
    pub(super) beta_ns: f64,
    /// The time to sum a byte.
    pub(super) gamma_ns: f64,
}

impl Network {
    /// 10 Gb/s Ethernet between machines with a K80, as in the simulator of the MG-WFBP authors (`scripts/gmwfbp.py` of
    /// shyhuai/B-Caffe). There β is 1.2 s for 9 × 2^30 bits.
    pub(super) const PUBLISHED: Network = Network {
        algorithm: Algorithm::Ring,
        alpha_us: 45.25,
        beta_ns: 1.2e9 * 8.0 / (9_u64 << 30) as f64,
        gamma_ns: 2.5,
    };

    /// Returns the cost of a message between this number of GPUs, at least 1. Both algorithms move each byte 2 (n - 1)
    /// / n times over a link, and sum it (n - 1) / n times.
    pub(super) fn cost(self, gpus: u32) -> Cost {
        let share = f64::from(gpus - 1) / f64::from(gpus);
        let steps = match self.algorithm {
            Algorithm::Ring => 2.0 * f64::from(gpus - 1),
            Algorithm::Tree => 2.0 * f64::from(gpus).log2().ceil(),
            Algorithm::Measured => 1.0,
        };
        let byte_ns = match self.algorithm {
            Algorithm::Measured => self.beta_ns,
            Algorithm::Ring | Algorithm::Tree => share * (2.0 * self.beta_ns + self.gamma_ns),
        };
        Cost {
            message: Duration::from_nanos((steps * self.alpha_us * 1e3).round() as u64),
            per_mib: Duration::from_nanos((byte_ns * f64::from(1 << 20)).round() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(algorithm: Algorithm, gpus: u32) -> (u128, u128) {
        let cost = Network { algorithm, ..Network::PUBLISHED }.cost(gpus);
        (cost.message.as_nanos(), cost.per_mib.as_nanos())
    }

    #[test]
    fn costs_grow_with_the_number_of_gpus_as_the_algorithm_says() {
        // β = 0.99341 ns, so 2 β + γ is 4.48682 ns a byte, of which two GPUs pay a half.
        assert_eq!(message(Algorithm::Ring, 2), (90_500, 2_352_387));
        assert_eq!(message(Algorithm::Ring, 4), (271_500, 3_528_580));
        assert_eq!(message(Algorithm::Tree, 4), (181_000, 3_528_580));
        assert_eq!(message(Algorithm::Tree, 5).0, 271_500);
        assert_eq!(message(Algorithm::Tree, 2048).0, 995_500);
        for gpus in [2, 4] {
            assert_eq!(message(Algorithm::Measured, gpus), (45_250, 1_041_667));
        }
        assert_eq!(message(Algorithm::Ring, 1), (0, 0));
        assert_eq!(message(Algorithm::Tree, 1), (0, 0));
    }
}
