//! Detects ranks that are apart: no chain of recent groups leads from one to the other.
//!
//! Ranks of fixed speeds arrive in the same order again and again, so fast ranks meet only fast ones. The graph of a
//! *window* shows that: it has an edge between any two members of a group, and between a group and its lender. The
//! window holds the latest groups, 2 ceil(log N / log S) ceil(N / S) of them: twice the number that the groups of a
//! schedule need to connect all ranks. The bound of the P-Reduce paper, ceil((N - 1) / (S - 1)) groups, is the smallest
//! for which a connected graph is possible at all. From 16 ranks on, even random groups nearly always fail it.
//!
//! All of this is a function of the records. It takes time linear in the ranks and in the seats of the window, except
//! for the logarithm of a union-find that halves paths.

use crate::group::cycle;
use crate::rank_set::RankSet;

/// Returns the number of groups in a window: those of two cycles.
pub(super) fn window(ranks: u32, size: u32) -> u64 {
    2 * u64::from(cycle(ranks, size)) * u64::from(ranks.div_ceil(size))
}

/// Returns the number of groups that closers look back on. Some ranks may have no lender at first, and each group has
/// at most one lender, so closers begin a quarter of a window before ranks are apart.
pub(super) fn horizon(ranks: u32, size: u32) -> u64 {
    window(ranks, size).div_ceil(4) * 3
}

/// The graph of a window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct IsolationWindow {
    parents: Vec<u32>,
    /// For each rank, one more than the newest group that has it; 0 if none has.
    newest: Vec<u64>,
    active: RankSet,
}

impl IsolationWindow {
    /// Returns an empty window.
    pub(super) fn new(ranks: u32) -> Self {
        IsolationWindow { parents: (0..ranks).collect(), newest: vec![0; ranks as usize], active: RankSet::full(ranks) }
    }

    /// Empties the window: every rank is active and apart from all others.
    pub(super) fn clear(&mut self) {
        self.parents.iter_mut().zip(0..).for_each(|(parent, rank)| *parent = rank);
        self.newest.fill(0);
        (0..self.parents.len() as u32).for_each(|rank| self.active.insert(rank));
    }

    /// Removes a rank from those that should be connected. Chains that it has made remain.
    pub(super) fn leave(&mut self, rank: u32) {
        self.active.remove(rank);
    }

    /// Adds ranks that met in a group, or some of them.
    pub(super) fn add(&mut self, group: u64, ranks: impl IntoIterator<Item = u32>) {
        let mut first = None;
        for rank in ranks {
            let newest = &mut self.newest[rank as usize];
            *newest = (*newest).max(group + 1);
            let root = self.root(rank);
            let first = *first.get_or_insert(root);
            let to = self.root(first);
            self.parents[root as usize] = to;
        }
    }

    fn root(&mut self, mut rank: u32) -> u32 {
        loop {
            let parent = self.parents[rank as usize];
            if parent == rank {
                return rank;
            }
            let above = self.parents[parent as usize];
            self.parents[rank as usize] = above;
            rank = above;
        }
    }

    /// Returns whether some active rank is apart from this one.
    pub(super) fn is_apart(&mut self, rank: u32) -> bool {
        let own = self.root(rank);
        (0..self.parents.len() as u32).any(|other| self.active.contains(other) && self.root(other) != own)
    }

    /// Returns the active rank that is apart from this one and met others the longest time ago, among those that
    /// `permit` accepts, with the value that `permit` returned. `permit` is given a rank and the newest group that
    /// includes it.
    pub(super) fn lender<T>(
        &mut self,
        rank: u32,
        mut permit: impl FnMut(u32, Option<u64>) -> Option<T>,
    ) -> Option<(u32, T)> {
        let own = self.root(rank);
        let mut best = None;
        for other in 0..self.parents.len() as u32 {
            let newest = self.newest[other as usize];
            let is_better = best.as_ref().is_none_or(|&(than, _)| newest < than);
            if is_better && self.active.contains(other) && self.root(other) != own {
                let permitted = permit(other, newest.checked_sub(1));
                best = permitted.map(|permitted| (newest, (other, permitted))).or(best);
            }
        }
        best.map(|(_, lender)| lender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    #[test]
    fn windows_grow_with_the_cycle_and_the_groups() {
        // Two cycles of ceil(log N / log S) rounds.
        for (ranks, size, groups) in
            [(1, 2, 2), (2, 2, 2), (8, 4, 8), (16, 4, 16), (17, 4, 30), (32, 8, 16), (64, 8, 32)]
        {
            assert_eq!(window(ranks, size), groups, "{ranks} ranks in groups of {size}");
        }
    }

    /// Returns the ranks that chains of groups lead to, by repeated search.
    fn reached(from: u32, groups: &[Vec<u32>]) -> Vec<u32> {
        let mut reached = vec![from];
        loop {
            let before = reached.len();
            for group in groups {
                if group.iter().any(|rank| reached.contains(rank)) {
                    reached.extend(group);
                }
            }
            reached.sort_unstable();
            reached.dedup();
            if reached.len() == before {
                return reached;
            }
        }
    }

    #[test]
    fn windows_agree_with_a_search() {
        let (mut apart, mut lent) = (0, 0);
        for seed in 0..5_000 {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let ranks = rng.random_range(1..=12);
            let mut window = IsolationWindow::new(ranks);
            // Earlier contents do not matter.
            window.add(3, 0..ranks);
            window.clear();
            let mut groups: Vec<Vec<u32>> = Vec::new();
            for group in 0..rng.random_range(1..8) {
                let members: Vec<u32> = (0..ranks).filter(|_| rng.random_bool(0.25)).collect();
                window.add(group, members.iter().copied());
                groups.push(members);
            }
            let gone: Vec<u32> = (0..ranks).filter(|_| rng.random_bool(0.2)).collect();
            gone.iter().for_each(|&rank| window.leave(rank));
            let busy: Vec<u32> = (0..ranks).filter(|_| rng.random_bool(0.3)).collect();
            let rank = rng.random_range(0..ranks);
            let with = reached(rank, &groups);
            let others: Vec<u32> = (0..ranks).filter(|rank| !with.contains(rank) && !gone.contains(rank)).collect();
            assert_eq!(window.is_apart(rank), !others.is_empty(), "seed {seed}");
            let newest = |rank: u32| groups.iter().rposition(|group| group.contains(&rank)).map(|group| group as u64);
            let expected =
                others.iter().copied().filter(|rank| !busy.contains(rank)).min_by_key(|&rank| (newest(rank), rank));
            let found = window.lender(rank, |rank, last| {
                assert_eq!(last, newest(rank), "seed {seed}: {rank}");
                (!busy.contains(&rank)).then_some(rank)
            });
            assert_eq!(found, expected.map(|rank| (rank, rank)), "seed {seed}");
            apart += u32::from(!others.is_empty());
            lent += u32::from(found.is_some());
        }
        assert!(apart > 1_000 && lent > 500 && lent < apart && apart < 5_000, "{apart} apart, {lent} lent");
    }
}
