//! Knows every contribution, and judges every outcome.

use std::collections::{BTreeMap, HashMap};

use super::scenario::Scenario;
use crate::collective::core::{Cut, Part, RankSet};
use crate::collective::driver::Reduction;
use crate::collective::rule::{Fire, Scale};
use crate::reduce::Dtype;
use crate::trigger::Schedule;

/// What a guarantee says and what was seen instead.
pub(super) type Verdict = Result<(), String>;

#[derive(Clone, Debug)]
struct Contribution {
    number: u32,
    entered: Option<u64>,
}

#[derive(Clone, Debug)]
struct Round {
    cut: Cut,
    data: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Oracle {
    ranks: u32,
    fire: Fire,
    depth: u64,
    elements: usize,
    reduction: Reduction,
    /// Of a program: the order in which it sums.
    schedule: Option<Schedule>,
    /// By rank and by the round they were made for.
    made: HashMap<(u32, u64), Contribution>,
    rounds: BTreeMap<u64, Round>,
    /// Ranks that take part in the round after the newest known.
    active: RankSet,
    released: Vec<u64>,
    received: Vec<u64>,
    pub(super) carried_with_fresh: u64,
    pub(super) contributions: u64,
}

impl Oracle {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let Scenario { fire, depth, elements, reduction, schedule, .. } = *scenario;
        let ranks = scenario.hosts.len() as u32;
        Oracle {
            ranks,
            fire,
            depth,
            elements,
            reduction,
            schedule,
            made: HashMap::new(),
            rounds: BTreeMap::new(),
            active: RankSet::full(ranks),
            released: vec![0; ranks as usize],
            received: vec![0; ranks as usize],
            carried_with_fresh: 0,
            contributions: 0,
        }
    }

    /// The elements of a rank's contribution, as bytes: no two contributions are alike.
    pub(super) fn fill(&self, rank: u32, number: u32, into: &mut [u8]) {
        let size = self.reduction.dtype.size();
        for (index, element) in into.chunks_exact_mut(size).enumerate() {
            let bits = mix(u64::from(rank) << 40 | u64::from(number) << 20 | index as u64);
            match self.reduction.dtype {
                Dtype::F32 => element.copy_from_slice(&((bits >> 44) as f32 / 512.0 - 900.0).to_ne_bytes()),
                _ => element.copy_from_slice(&bits.to_ne_bytes()),
            }
        }
    }

    pub(super) fn arrives(&mut self, rank: u32, number: u32, target: u64) -> Verdict {
        self.contributions += 1;
        match self.made.insert((rank, target), Contribution { number, entered: None }) {
            None => Ok(()),
            Some(_) => Err(format!("steps: rank {rank} arrived twice for round {target}")),
        }
    }

    pub(super) fn released(&self, rank: u32) -> u64 {
        self.released[rank as usize]
    }

    pub(super) fn rounds(&self) -> u64 {
        self.rounds.len() as u64
    }

    pub(super) fn releases(&mut self, rank: u32, round: u64) {
        self.released[rank as usize] = round;
    }

    /// A rank was handed a round.
    pub(super) fn receives(&mut self, rank: u32, round: u64) -> Verdict {
        let last = std::mem::replace(&mut self.received[rank as usize], round);
        if round == last + 1 { Ok(()) } else { Err(format!("order: rank {rank} received round {round} after {last}")) }
    }

    /// The outcome of a round is complete where a rank can see it: it is right, and the same as
    /// everywhere.
    pub(super) fn lands(&mut self, rank: u32, cut: &Cut, data: &[u8]) -> Verdict {
        let round = cut.round();
        if let Some(known) = self.rounds.get(&round) {
            if known.cut != *cut {
                return Err(format!("G2: rank {rank} sees {cut:?} where others saw {:?}", known.cut));
            }
            return self.still(rank, round, data);
        }
        self.judge(cut)?;
        let expected = self.expected(cut);
        if data != expected {
            return Err(format!("data: round {round} has {data:?}, its cut {cut:?} makes {expected:?}"));
        }
        for entry in cut.entries().iter().filter(|entry| entry.part == Part::Leaving) {
            self.active.remove(entry.rank);
            self.released[entry.rank as usize] = u64::MAX;
        }
        self.rounds.insert(round, Round { cut: cut.clone(), data: data.to_vec() });
        Ok(())
    }

    fn judge(&mut self, cut: &Cut) -> Verdict {
        let round = cut.round();
        if self.rounds.last_key_value().map_or(0, |(&newest, _)| newest) + 1 != round {
            return Err(format!("order: round {round} appears out of turn"));
        }
        if let Some(slow) =
            (0..self.ranks).find(|&rank| self.released[rank as usize].saturating_add(self.depth) < round)
        {
            return Err(format!("G4: round {round} fired before rank {slow} released round {}", round - self.depth));
        }
        let key = |entry: &crate::collective::core::Entry| (entry.rank, entry.part != Part::Carried);
        if !cut.entries().is_sorted_by(|a, b| key(a) < key(b)) {
            return Err(format!("order: round {round} is not in canonical order: {cut:?}"));
        }
        for entry in cut.entries() {
            if !self.active.contains(entry.rank) {
                return Err(format!("G1: rank {} is in round {round} after it left", entry.rank));
            }
            let fits = match entry.part {
                Part::Fresh | Part::Leaving => entry.age == 0,
                Part::Carried => entry.age > 0 && entry.age < round,
            };
            if !fits {
                return Err(format!("G9: {entry:?} in round {round}"));
            }
            if entry.part == Part::Leaving {
                continue;
            }
            match self.made.get_mut(&(entry.rank, round - entry.age)) {
                None => return Err(format!("G1: round {round} has {entry:?}, which nobody made")),
                Some(Contribution { entered: Some(before), .. }) => {
                    return Err(format!("G1: {entry:?} entered rounds {before} and {round}"));
                }
                Some(contribution) => contribution.entered = Some(round),
            }
        }
        let arrived = cut.entries().iter().filter(|entry| entry.part != Part::Carried).count() as u32;
        let least = self.fire.threshold(self.active.len());
        if arrived < least {
            return Err(format!("G5: round {round} fired with {arrived} of {least} arrivals"));
        }
        let initiator = cut.initiator();
        if self.fire != Fire::All && !initiator.is_some_and(|rank| cut.entries().iter().any(|entry| entry.rank == rank))
        {
            return Err(format!("G9: round {round} names initiator {initiator:?}"));
        }
        let both = |rank| cut.holds(rank, Part::Carried) && cut.holds(rank, Part::Fresh);
        self.carried_with_fresh += u64::from((0..self.ranks).any(both));
        Ok(())
    }

    fn expected(&self, cut: &Cut) -> Vec<u8> {
        let bytes = self.elements * self.reduction.dtype.size();
        let sources: Vec<(u32, Vec<u8>)> = cut
            .contributions()
            .filter_map(|entry| {
                let contribution = self.made.get(&(entry.rank, cut.round() - entry.age))?;
                let mut source = vec![0; bytes];
                self.fill(entry.rank, contribution.number, &mut source);
                Some((entry.rank, source))
            })
            .collect();
        let divisor = match self.reduction.scale {
            Scale::Sum => 1,
            Scale::World => self.ranks,
            Scale::Contributions => sources.len().max(1) as u32,
        };
        match self.reduction.dtype {
            Dtype::F32 => {
                let value =
                    |source: &[u8], at: usize| f32::from_ne_bytes(source[at..at + 4].try_into().unwrap_or_default());
                let sum = |at: usize| {
                    let values: Vec<(u32, f32)> =
                        sources.iter().map(|(rank, source)| (*rank, value(source, at))).collect();
                    let sum = match self.schedule {
                        Some(Schedule::Doubling) => self.sum_by_tree(&values),
                        _ => left_to_right(values.iter().map(|&(_, value)| value)),
                    };
                    sum.map_or(0.0, |sum| sum / divisor as f32)
                };
                (0..self.elements).flat_map(|index| sum(4 * index).to_ne_bytes()).collect()
            }
            _ => {
                let value =
                    |source: &[u8], at: usize| u64::from_ne_bytes(source[at..at + 8].try_into().unwrap_or_default());
                let sum = |at: usize| sources.iter().fold(0u64, |sum, (_, source)| sum.wrapping_add(value(source, at)));
                (0..self.elements).flat_map(|index| sum(8 * index).to_ne_bytes()).collect()
            }
        }
    }

    /// The order of recursive doubling: of P ranks, P - 2^k neighbours are paired first; then
    /// halves of a power of two. Whatever an operation reads it sums from left to right.
    fn sum_by_tree(&self, values: &[(u32, f32)]) -> Option<f32> {
        let leaves = 1u32 << self.ranks.ilog2();
        let extra = self.ranks - leaves;
        let leaf = |rank: u32| if rank < 2 * extra { rank / 2 } else { rank - extra };
        let mut read: Vec<Vec<f32>> = (0..leaves)
            .map(|index| {
                let of_leaf = values.iter().filter(|&&(rank, _)| leaf(rank) == index).map(|&(_, value)| value);
                if index < extra { left_to_right(of_leaf).into_iter().collect() } else { of_leaf.collect() }
            })
            .collect();
        while read.len() > 1 {
            read = read.chunks(2).map(|pair| left_to_right(pair.concat()).into_iter().collect()).collect();
        }
        left_to_right(read.concat())
    }

    /// Whether an outcome reads as it did when it was first seen, wherever that was.
    pub(super) fn still(&self, rank: u32, round: u64, data: &[u8]) -> Verdict {
        match self.rounds.get(&round) {
            Some(known) if known.data != data => Err(format!("G2: rank {rank} sees other bits in round {round}")),
            _ => Ok(()),
        }
    }

    /// After the end: nothing was lost.
    pub(super) fn closes(&self) -> Verdict {
        let lost = self.made.iter().find(|(_, contribution)| contribution.entered.is_none());
        match lost {
            Some(((rank, target), _)) => Err(format!("G1: what rank {rank} made for round {target} entered no round")),
            None => Ok(()),
        }
    }
}

fn left_to_right(values: impl IntoIterator<Item = f32>) -> Option<f32> {
    values.into_iter().reduce(|sum, value| sum + value)
}

/// SplitMix64's finalizer: neighbours become unrelated.
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
