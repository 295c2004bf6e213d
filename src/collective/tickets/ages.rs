//! Weights of models by their iterations: the dynamic weights of P-Reduce (Miao et al., SIGMOD 2021).
//!
//! The position of a member is its number of iterations. The newest members of a group share the largest weight, and
//! each iteration by which a member is older multiplies the weight by a factor *a*. With *r* = 1 for the oldest and *K*
//! for the newest, *r* has the weight (1 - a) a^(K - r) / (1 - a^K); all weights together are 1. The weight of an *r*
//! that no member has goes to the oldest. After the mean all members have the position of the newest.

use super::record::{GroupCut, ITERATIONS};
use crate::rule::power;

/// Returns how many iterations each member is ahead of the first one. Iterations are counted modulo [`ITERATIONS`].
fn leads(cut: &GroupCut) -> impl Iterator<Item = i64> + '_ {
    let first = cut.contributors().next().map_or(0, |member| member.iteration);
    cut.contributors().map(move |member| {
        let lead = member.iteration.wrapping_sub(first) % ITERATIONS;
        if lead < ITERATIONS / 2 { lead as i64 } else { lead as i64 - ITERATIONS as i64 }
    })
}

/// Returns the weight of each member's model, in the order of the cut.
pub(super) fn weights<'a>(cut: &'a GroupCut, factor: f32) -> impl Iterator<Item = f32> + 'a {
    let newest = leads(cut).max().unwrap_or(0);
    let oldest = leads(cut).min().unwrap_or(0);
    let factor = f64::from(factor);
    let count = (newest - oldest).unsigned_abs() + 1;
    let of =
        move |lead: i64| (1.0 - factor) * power(factor, (newest - lead).unsigned_abs()) / (1.0 - power(factor, count));
    let sharers = |lead: i64| leads(cut).filter(move |&other| other == lead).count();
    let taken: f64 = leads(cut).map(|lead| of(lead) / sharers(lead) as f64).sum();
    leads(cut).map(move |lead| {
        let missing = if lead == oldest { 1.0 - taken } else { 0.0 };
        ((of(lead) + missing) / sharers(lead) as f64) as f32
    })
}

/// Returns the iteration of a member after the mean, if its iteration was `own` before.
pub(super) fn after(cut: &GroupCut, rank: u32, own: u64) -> u64 {
    let newest = leads(cut).max().unwrap_or(0);
    let lead =
        cut.contributors().zip(leads(cut)).find(|(member, _)| member.rank == rank).map_or(newest, |(_, lead)| lead);
    own + (newest - lead).unsigned_abs()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::collective::tickets::record::Member;

    fn cut(iterations: &[u64]) -> GroupCut {
        let member =
            |(rank, &iteration): (u32, &u64)| Member { rank, iteration: iteration % ITERATIONS, ..Member::default() };
        GroupCut { members: (0..).zip(iterations).map(member).collect(), ..GroupCut::default() }
    }

    fn weighed(iterations: &[u64], factor: f32) -> Vec<f32> {
        weights(&cut(iterations), factor).collect()
    }

    #[test]
    fn the_newest_weigh_most_and_all_together_one() {
        assert_eq!(weighed(&[7], 0.5), [1.0]);
        assert_eq!(weighed(&[7, 7, 7, 7], 0.5), [0.25; 4]);
        let close = |found: Vec<f32>, expected: &[f64]| {
            let all = found.iter().zip(expected).all(|(&found, expected)| (f64::from(found) - expected).abs() < 1e-6);
            assert!(all && found.len() == expected.len(), "{found:?}, not {expected:?}");
        };
        close(weighed(&[3, 2], 0.5), &[2.0 / 3.0, 1.0 / 3.0]);
        // The weights are 4/7, 2/7 and 1/7; no member has the second one.
        close(weighed(&[1, 3], 0.5), &[3.0 / 7.0, 4.0 / 7.0]);
        close(weighed(&[1, 3, 1, 3], 0.5), &[1.5 / 7.0, 2.0 / 7.0, 1.5 / 7.0, 2.0 / 7.0]);
        // A rank that is far behind gets all missing weights, and its own weight is almost 0.
        close(weighed(&[0, 1_000_000], 0.5), &[0.5, 0.5]);
        for iterations in [&[5, 9, 6, 5, 11][..], &[ITERATIONS - 2, ITERATIONS + 1, ITERATIONS]] {
            let sum: f32 = weighed(iterations, 0.3).iter().sum();
            assert!((sum - 1.0).abs() < 1e-6, "{iterations:?}: {sum}");
        }
        assert_eq!(weighed(&[ITERATIONS - 1, ITERATIONS], 0.5), weighed(&[4, 5], 0.5), "the count begins again");
    }

    #[test]
    fn all_members_are_as_far_as_the_newest_then() {
        let cut = cut(&[4, 9, 9, 2]);
        assert_eq!([0, 1, 2, 3].map(|rank| after(&cut, rank, [4, 9, 9, 2][rank as usize])), [9; 4]);
    }
}
