//! How far ranks are from their mean when they average in groups while new noise arrives.
//!
//! Each rank holds a number. In a round each rank adds noise of its own, with mean 0 and variance 1, and then takes the
//! mean of its group. The disagreement is the mean, over ranks, of the expected square of the distance to the mean of
//! all.

/// The sum over cycles ends when a cycle changes it by less than this fraction.
const PRECISION: f64 = 1e-9;

/// A value below this fraction of a unit of noise is rounding.
const LEAST: f64 = 1e-6;

/// The covariances of the ranks' numbers. Members of a group hold the same number, so groups suffice.
#[derive(Debug)]
struct Covariance {
    /// The group of each rank in the last round.
    group_of: Vec<usize>,
    /// A row for each group of the last round. The common part of all entries is omitted, because it moves all ranks
    /// alike.
    rows: Vec<Vec<f64>>,
}

impl Covariance {
    /// Creates the state in which all ranks hold the same number.
    fn new(ranks: u32) -> Self {
        Covariance { group_of: vec![0; ranks as usize], rows: vec![vec![0.0]] }
    }

    /// Adds noise, averages in these groups, and returns the disagreement.
    fn round(&mut self, groups: &[Vec<u32>]) -> f64 {
        let before = std::mem::take(&mut self.rows);
        let mut group_of = vec![0; self.group_of.len()];
        for (group, members) in groups.iter().enumerate() {
            members.iter().for_each(|&rank| group_of[rank as usize] = group);
        }
        let size = |group: usize| groups[group].len() as f64;
        for (group, members) in groups.iter().enumerate() {
            let mut half = vec![0.0; before.len()];
            for &rank in members {
                let row = &before[self.group_of[rank as usize]];
                half.iter_mut().zip(row).for_each(|(half, of)| *half += of / size(group));
            }
            let mut row = vec![0.0; groups.len()];
            self.group_of.iter().zip(&group_of).for_each(|(&from, &to)| row[to] += half[from]);
            row.iter_mut().enumerate().for_each(|(other, of)| *of /= size(other));
            row[group] += 1.0 / size(group);
            self.rows.push(row);
        }
        self.group_of = group_of;
        self.center(&size)
    }

    /// Removes the common part of all entries, and returns the mean of the remaining variances.
    fn center(&mut self, size: &impl Fn(usize) -> f64) -> f64 {
        let ranks = self.group_of.len() as f64;
        let sum = |(group, row): (usize, &Vec<f64>)| {
            size(group) * row.iter().enumerate().map(|(other, of)| size(other) * of).sum::<f64>()
        };
        let common = self.rows.iter().enumerate().map(sum).sum::<f64>() / (ranks * ranks);
        self.rows.iter_mut().flatten().for_each(|of| *of -= common);
        let variances = self.rows.iter().enumerate().map(|(group, row)| size(group) * row[group]);
        // Rounding may leave less than zero.
        (variances.sum::<f64>() / ranks).max(0.0)
    }
}

/// Returns the disagreement after many cycles of these rounds: the mean over a cycle.
pub(super) fn stationary(cycle: &[Vec<Vec<u32>>], ranks: u32) -> f64 {
    let mut covariance = Covariance::new(ranks);
    let mut last = 0.0;
    // It grows from cycle to cycle, less each time.
    loop {
        let mean = cycle.iter().map(|groups| covariance.round(groups)).sum::<f64>() / cycle.len() as f64;
        if mean - last <= PRECISION * mean.max(LEAST) {
            return mean;
        }
        last = mean;
    }
}

/// Returns a lower bound of the disagreement for any schedule with groups of at most `size`. After *k* rounds the noise
/// of a rank lies on at most `size`^*k* ranks. So at least 1 / `size`^*k* of its variance is left, of which 1 / `ranks`
/// is in the mean.
pub(super) fn lower_bound(size: u32, ranks: u32) -> f64 {
    let left = std::iter::successors(Some(1.0), |left| Some(left / f64::from(size))).skip(1);
    let apart = left.map(|left| left - 1.0 / f64::from(ranks));
    // The sum of an empty sequence would be -0.
    apart.take_while(|&apart| apart > 0.0).fold(0.0, |sum, apart| sum + apart)
}

/// Returns the disagreement with the same number of balanced groups whose members are drawn anew in every round. A
/// round leaves (*G* - 1) / (*P* - 1) of the disagreement, because the averaging has a trace of *G*, of which 1 is the
/// mean.
pub(super) fn of_random_groups(groups: u32, ranks: u32) -> f64 {
    if groups <= 1 {
        return 0.0;
    }
    let (groups, ranks) = (f64::from(groups), f64::from(ranks));
    (groups - 1.0) / (ranks - groups) * (ranks - 1.0) / ranks
}

#[cfg(test)]
mod tests {
    use super::super::groups::{cycle, groups};
    use super::*;
    use crate::group::Butterfly;
    use rand::SeedableRng;
    use rand::seq::SliceRandom;
    use rand_xoshiro::Xoshiro256PlusPlus;

    /// With a matrix of all ranks, as the definition has it.
    fn by_definition(rounds: &[Vec<Vec<u32>>], ranks: usize) -> Vec<f64> {
        let mut covariance = vec![vec![0.0; ranks]; ranks];
        let averaged = |matrix: &Vec<Vec<f64>>, groups: &[Vec<u32>]| {
            let mut after = matrix.clone();
            for members in groups {
                for column in 0..ranks {
                    let sum: f64 = members.iter().map(|&rank| matrix[rank as usize][column]).sum();
                    members.iter().for_each(|&rank| after[rank as usize][column] = sum / members.len() as f64);
                }
            }
            // Transposed, so that the second time averages columns.
            (0..ranks).map(|row| (0..ranks).map(|column| after[column][row]).collect()).collect::<Vec<Vec<f64>>>()
        };
        let disagreements = rounds.iter().map(|groups| {
            (0..ranks).for_each(|rank| covariance[rank][rank] += 1.0);
            covariance = averaged(&averaged(&covariance, groups), groups);
            let of_mean = covariance.iter().flatten().sum::<f64>() / (ranks * ranks) as f64;
            (0..ranks).map(|rank| covariance[rank][rank] - of_mean).sum::<f64>() / ranks as f64
        });
        disagreements.collect()
    }

    #[test]
    fn covariances_of_groups_are_those_of_all_ranks() {
        for (ranks, size) in [(1, 2), (2, 2), (5, 2), (7, 4), (12, 4), (13, 3), (16, 4), (17, 8)] {
            let schedule = Butterfly::new(size).unwrap();
            let rounds: Vec<_> = (0..12).map(|round| groups(schedule.partition(ranks, round))).collect();
            let mut covariance = Covariance::new(ranks);
            for (groups, expected) in rounds.iter().zip(by_definition(&rounds, ranks as usize)) {
                let found = covariance.round(groups);
                assert!((found - expected).abs() < 1e-12, "{ranks} ranks by {size}: {found}, expected {expected}");
            }
        }
    }

    /// The mean of many rounds agrees with the formula within 2 %, whose standard error is a fifth of that.
    #[test]
    fn random_groups_disagree_as_their_formula_says() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        for (ranks, size) in [(5, 2), (16, 4), (13, 4), (31, 8)] {
            let partition = Butterfly::new(size).unwrap().partition(ranks, 0);
            let mut places: Vec<u32> = (0..ranks).collect();
            let mut covariance = Covariance::new(ranks);
            let mut round = || {
                places.shuffle(&mut rng);
                let place = |&rank: &u32| places[rank as usize];
                let groups: Vec<Vec<u32>> =
                    groups(partition).iter().map(|group| group.iter().map(place).collect()).collect();
                covariance.round(&groups)
            };
            (0..100).for_each(|_| _ = round());
            let mean = (0..20_000).map(|_| round()).sum::<f64>() / 20_000.0;
            let expected = of_random_groups(partition.groups(), ranks);
            assert!((mean / expected - 1.0).abs() < 0.02, "{ranks} ranks by {size}: {mean}, expected {expected}");
        }
    }

    #[test]
    fn no_schedule_is_below_the_lower_bound_and_powers_of_the_size_reach_it() {
        for size in [2, 3, 4, 8, 16] {
            for ranks in 1..=130 {
                let found = stationary(&cycle(Butterfly::new(size).unwrap(), ranks), ranks);
                let bound = lower_bound(size, ranks);
                assert!(found > bound - 1e-9, "{ranks} ranks by {size}: {found}, at least {bound}");
                if (0..8).any(|power| size.pow(power) == ranks) {
                    assert!(found < bound + 1e-9, "{ranks} ranks by {size}: {found}, the bound is {bound}");
                }
            }
        }
    }
}
