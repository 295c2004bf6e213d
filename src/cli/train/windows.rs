//! Whether groups by order of arrival connect all ranks in each window of groups.

use std::time::Duration;

use crate::group::Butterfly;
use crate::{RankSet, Reduce, Result, World};

/// The number of windows of groups, and of those that leave ranks apart from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Windows {
    pub(super) all: usize,
    pub(super) apart: usize,
}

/// Returns the number of groups of a window: those of two cycles of ceil(log N / log S) rounds, each of ceil(N / S)
/// groups. Groups of a fixed schedule connect all ranks in half of it.
fn length(ranks: u32, size: u32) -> usize {
    let cycle = Butterfly::new(size).map_or(1, |groups| groups.cycle(ranks));
    2 * cycle as usize * ranks.div_ceil(size) as usize
}

/// The groups of a training run that contained this rank: the number of each, from 1, and its ranks.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<(u64, RankSet)>);

impl Groups {
    pub(super) fn add(&mut self, number: u64, ranks: RankSet) {
        self.0.push((number, ranks));
    }

    /// Counts the windows of the groups of all ranks, up to the last group that contained any rank that continues.
    pub(super) fn windows(&self, world: &World, (size, last): (u32, u64), patience: Duration) -> Result<Windows> {
        let words = world.size().div_ceil(64) as usize;
        let mut all = world.allreduce::<u64>(&[last as usize * words]).reduce(Reduce::Max).build()?;
        let rows = all.contribution()?;
        rows.fill(0);
        for (number, ranks) in self.0.iter().filter(|(number, _)| *number <= last) {
            let at = (*number as usize - 1) * words;
            rows[at..at + ranks.words().len()].copy_from_slice(ranks.words());
        }
        all.arrive()?;
        let outcome = all.wait(patience)?.newest().to_vec();
        all.finish(patience)?;
        let groups: Vec<&[u64]> = outcome.chunks(words).collect();
        Ok(count(&groups, world.size(), length(world.size(), size)))
    }
}

/// Counts windows of `length` groups, each given by the bits of its ranks.
fn count(groups: &[&[u64]], ranks: u32, length: usize) -> Windows {
    let connected = |window: &&[&[u64]]| {
        let mut reached = window[0].to_vec();
        loop {
            let before: u32 = reached.iter().map(|word| word.count_ones()).sum();
            for group in *window {
                if group.iter().zip(&reached).any(|(&one, &other)| one & other != 0) {
                    reached.iter_mut().zip(*group).for_each(|(word, &more)| *word |= more);
                }
            }
            let after: u32 = reached.iter().map(|word| word.count_ones()).sum();
            if after == before {
                return after == ranks;
            }
        }
    };
    let windows = groups.windows(length);
    Windows { all: windows.len(), apart: windows.filter(|window| !connected(window)).count() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_apart_where_no_chain_connects_their_ranks() {
        assert_eq!((length(8, 4), length(16, 4), length(2, 2)), (8, 16, 2));
        let groups: [&[u64]; 6] = [&[0b0011], &[0b1100], &[0b0011], &[0b0110], &[0b1100], &[0b1100]];
        // The windows from 0 and 3 on lack a chain: only the ones with the fourth group and the first three ranks have one.
        assert_eq!(count(&groups, 4, 3), Windows { all: 4, apart: 2 });
        assert_eq!(count(&groups, 4, 6), Windows { all: 1, apart: 0 });
        assert_eq!(count(&groups, 4, 7), Windows { all: 0, apart: 0 });
    }
}
