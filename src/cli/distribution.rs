//! Measured values, and what reports state about them.

/// Values in ascending order.
#[derive(Debug, Default)]
pub(super) struct Distribution(Vec<f64>);

impl Distribution {
    pub(super) fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        Distribution(values)
    }

    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the value at this fraction of the way from the smallest (0) to the largest (1), rounded to the nearest
    /// value; 0.5 gives a median. NaN if there are no values.
    pub(super) fn quantile(&self, fraction: f64) -> f64 {
        let index = (self.len().saturating_sub(1) as f64 * fraction).round() as usize;
        self.0.get(index).copied().unwrap_or(f64::NAN)
    }

    /// Returns the quantiles that reports of times state: p50, p90, p99, p99.9, the least and the greatest.
    pub(super) fn usual(&self) -> [f64; 6] {
        [0.5, 0.9, 0.99, 0.999, 0.0, 1.0].map(|at| self.quantile(at))
    }

    /// Returns the mean. NaN if there are no values.
    pub(super) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.len() as f64
    }

    /// Returns the square root of the mean square of the distances from the mean. NaN if there are no values.
    pub(super) fn deviation(&self) -> f64 {
        let mean = self.mean();
        (self.0.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / self.len() as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_values() {
        let hundred = Distribution::of((1..=100).rev().map(f64::from).collect());
        let quantiles = [0.0, 0.5, 0.99, 0.999, 1.0].map(|fraction| hundred.quantile(fraction));
        assert_eq!(quantiles, [1.0, 51.0, 99.0, 100.0, 100.0]);
        let three = Distribution::of(vec![2.0, 9.0, 4.0]);
        assert_eq!((three.quantile(0.5), three.mean(), three.len()), (4.0, 5.0, 3));
        assert_eq!(Distribution::of(vec![2.0, 4.0]).deviation(), 1.0);
    }

    #[test]
    fn of_no_values_there_is_nothing_to_say() {
        let none = Distribution::default();
        assert!(none.quantile(0.5).is_nan() && none.mean().is_nan() && none.deviation().is_nan());
    }
}
