//! Groups against their definition, and what a cycle of them does.

use super::*;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const SIZES: std::ops::RangeInclusive<u32> = 2..=16;
const MOST_RANKS: u32 = 1024;

fn butterfly(size: u32) -> Butterfly {
    Butterfly::new(size).unwrap()
}

/// The groups of a partition.
fn groups(partition: Partition) -> Vec<Vec<u32>> {
    (0..partition.groups()).map(|group| partition.members(group).collect()).collect()
}

/// With a list of all ranks, as the definition has it.
fn by_definition(ranks: u32, size: u32, step: u32) -> Vec<Vec<u32>> {
    let count = ranks.div_ceil(size);
    let base = ranks.div_ceil(count);
    let mut cycle = 1;
    while size.pow(cycle) < ranks {
        cycle += 1;
    }
    let stride = base.pow(step);
    let mut list: Vec<u32> = (0..stride).flat_map(|column| (column..ranks).step_by(stride as usize)).collect();
    if !ranks.is_multiple_of(base.pow(cycle - 1)) {
        list.rotate_left(step as usize);
    }
    let cut = |group| (ranks * group / count) as usize;
    (0..count).map(|group| list[cut(group)..cut(group + 1)].to_vec()).collect()
}

/// A representative of a rank's component.
fn root(parents: &mut [u32], mut rank: u32) -> u32 {
    while parents[rank as usize] != rank {
        parents[rank as usize] = parents[parents[rank as usize] as usize];
        rank = parents[rank as usize];
    }
    rank
}

/// Every round of every cycle: a partition into balanced groups, as defined.
#[test]
fn rounds_are_balanced_partitions() {
    for size in SIZES {
        for ranks in 1..=MOST_RANKS {
            for round in 0..butterfly(size).cycle(ranks) {
                let partition = butterfly(size).partition(ranks, round.into());
                let groups = groups(partition);
                let what = || format!("{ranks} ranks in groups of {size}, round {round}: {groups:?}");
                assert_eq!(groups, by_definition(ranks, size, round), "{}", what());
                let sizes = || groups.iter().map(Vec::len);
                let (least, most) = (sizes().min().unwrap(), sizes().max().unwrap());
                assert!(least >= 1 && most <= size as usize && most - least <= 1, "{}", what());
                let mut group_of = vec![None; ranks as usize];
                for (group, &member) in
                    groups.iter().zip(0..).flat_map(|(group, at)| group.iter().map(move |m| (at, m)))
                {
                    assert_eq!(group_of[member as usize].replace(group), None, "{member} is twice: {}", what());
                    assert_eq!(partition.group_of(member), group, "{member}: {}", what());
                }
                assert!(group_of.iter().all(Option::is_some), "{}", what());
            }
        }
    }
}

#[test]
fn any_rounds_of_a_cycle_connect_all_ranks() {
    for size in SIZES {
        for ranks in 1..=MOST_RANKS {
            let schedule = butterfly(size);
            let cycle = schedule.cycle(ranks);
            let reached = |rounds| u64::from(size).pow(rounds);
            assert!(reached(cycle) >= ranks.into() && (cycle == 1 || reached(cycle - 1) < ranks.into()));
            // From wherever it begins, a cycle has the same rounds.
            let first = u64::from(ranks);
            let mut parents: Vec<u32> = (0..ranks).collect();
            for round in first..first + u64::from(cycle) {
                let partition = schedule.partition(ranks, round);
                assert_eq!(partition, schedule.partition(ranks, round + u64::from(cycle)));
                for group in 0..partition.groups() {
                    let mut members = partition.members(group);
                    let first = members.next().unwrap();
                    for member in members {
                        let (from, to) = (root(&mut parents, first), root(&mut parents, member));
                        parents[from as usize] = to;
                    }
                }
            }
            let last = root(&mut parents, 0);
            assert!((0..ranks).all(|rank| root(&mut parents, rank) == last), "{ranks} ranks in groups of {size}");
        }
    }
}

#[test]
fn what_a_rank_has_reaches_all_within_two_cycles() {
    // Every seventh of the larger worlds, because the time grows with the square of the ranks.
    let worlds = || (1..=256).chain((257..=MOST_RANKS).step_by(7));
    for (size, ranks) in SIZES.flat_map(|size| worlds().map(move |ranks| (size, ranks))) {
        let schedule = butterfly(size);
        let cycle: Vec<_> =
            (0..schedule.cycle(ranks)).map(|round| groups(schedule.partition(ranks, round.into()))).collect();
        let words = ranks.div_ceil(64) as usize;
        let row = |member: u32| member as usize * words..(member as usize + 1) * words;
        for first in 0..cycle.len() {
            // A row for each rank, with a bit for each that it has heard of.
            let mut heard = vec![0_u64; ranks as usize * words];
            (0..ranks).for_each(|rank| heard[row(rank)][rank as usize / 64] |= 1 << (rank % 64));
            for members in cycle.iter().cycle().skip(first).take(2 * cycle.len()).flatten() {
                let mut all = [0; MOST_RANKS as usize / 64];
                for &member in members {
                    all.iter_mut().zip(&heard[row(member)]).for_each(|(all, of)| *all |= of);
                }
                members.iter().for_each(|&member| heard[row(member)].copy_from_slice(&all[..words]));
            }
            let count = heard.iter().map(|word| word.count_ones()).sum::<u32>();
            assert_eq!(count, ranks * ranks, "{ranks} ranks in groups of {size} from {first} on");
        }
    }
}

/// In whole numbers: at P = S^R, values that P divides have sums that S divides in every round.
#[test]
fn powers_of_the_size_reach_the_exact_mean() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    for size in SIZES {
        for cycle in (1..).take_while(|&cycle| size.pow(cycle) <= 4096) {
            let ranks = size.pow(cycle);
            assert_eq!(butterfly(size).cycle(ranks), cycle);
            for first in 0..u64::from(cycle) {
                let mut values: Vec<u64> =
                    (0..ranks).map(|_| u64::from(ranks) * rng.random_range(0..1_u64 << 40)).collect();
                let mean = values.iter().sum::<u64>() / u64::from(ranks);
                for round in first..first + u64::from(cycle) {
                    assert!(values.iter().any(|&value| value != mean), "too early, in round {round}");
                    let partition = butterfly(size).partition(ranks, round);
                    for group in 0..partition.groups() {
                        let sum: u64 = partition.members(group).map(|at| values[at as usize]).sum();
                        assert_eq!(sum % u64::from(size), 0);
                        partition.members(group).for_each(|at| values[at as usize] = sum / u64::from(size));
                    }
                }
                assert!(values.iter().all(|&value| value == mean), "{ranks} ranks in groups of {size} from {first} on");
            }
        }
    }
}

/// Ranks that have left take no part, and those behind them move up.
#[test]
fn a_rank_finds_its_group_among_the_active_ones() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
    let mut members = Vec::new();
    for instance in 0..2_000 {
        let (world, size, round) = (rng.random_range(1..=200), rng.random_range(2..=20), rng.random());
        let mut active = RankSet::empty(world);
        let share = rng.random_range(0..=4);
        (0..world).filter(|_| rng.random_range(0..4) < share).for_each(|rank| active.insert(rank));
        let list: Vec<u32> = active.iter().collect();
        let partition = butterfly(size).partition(active.len(), round);
        let mut seen = 0;
        for positions in groups(partition) {
            let mut group: Vec<u32> = positions.iter().map(|&at| list[at as usize]).collect();
            group.sort_unstable();
            for &rank in &group {
                butterfly(size).group(&active, round, rank, &mut members);
                assert_eq!(members, group, "instance {instance}: {rank} of {list:?}, size {size}, round {round}");
                seen += 1;
            }
        }
        assert_eq!(seen, list.len());
        for absent in (0..world + 70).filter(|&rank| !active.contains(rank)) {
            butterfly(size).group(&active, round, absent, &mut members);
            assert_eq!(members, [0; 0], "{absent} is not among {list:?}");
        }
    }
}

/// Worked out by hand. Seven ranks in groups of four are in two groups. Round 1 lists them as 0 4, 1 5, 2 6, 3 and begins
/// with the second, because 4 does not divide 7.
#[test]
fn seven_ranks_in_groups_of_four() {
    let round = |round| groups(butterfly(4).partition(7, round));
    assert_eq!(round(0), [vec![0, 1, 2], vec![3, 4, 5, 6]]);
    assert_eq!(round(1), [vec![4, 1, 5], vec![2, 6, 3, 0]]);
    assert_eq!(round(u64::MAX), round(1));
}

#[test]
fn extremes_neither_panic_nor_overflow() {
    for size in [0, 1] {
        let error = Butterfly::new(size).unwrap_err();
        assert_eq!(error.to_string(), format!("groups of {size} average nothing; use 2 ranks or more"));
    }
    for size in [2, 3, 65_535, 65_536, u32::MAX] {
        let schedule = butterfly(size);
        assert_eq!((schedule.size(), schedule.cycle(0), schedule.partition(0, u64::MAX).groups()), (size, 1, 0));
        assert_eq!(groups(schedule.partition(1, u64::MAX)), [[0]]);
        for ranks in [u32::MAX - 1, u32::MAX] {
            for round in 0..schedule.cycle(ranks).into() {
                let partition = schedule.partition(ranks, round);
                for rank in [0, 1, ranks / 2, ranks - 1] {
                    let mut members = partition.members(partition.group_of(rank)).take(1 << 20);
                    assert!(members.any(|member| member == rank) || size > 1 << 20, "{rank} of {ranks} by {size}");
                }
            }
        }
    }
}
