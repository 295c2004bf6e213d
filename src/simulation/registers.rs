//! The registers of all ranks, recomputed from what was contributed.

use std::rc::Rc;

use super::oracle::array;
use crate::collective::core::{Cut, Entry};
use crate::collective::driver::Reduction;
use crate::group::Group;
use crate::rank_set::RankSet;
use crate::reduce::{Dtype, f16};
use crate::rule::Absent;

/// The model of each rank after a round.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    group: Group,
    models: Vec<Rc<[u8]>>,
    /// Under [`Absent::Hold`]: the newest contribution of each rank that has entered.
    held: Option<Vec<Rc<[u8]>>>,
}

impl Registers {
    pub(super) fn new(group: Group, absent: Absent, models: Vec<Rc<[u8]>>) -> Self {
        Registers { group, held: (absent == Absent::Hold).then(|| models.clone()), models }
    }

    pub(super) fn of(&self, rank: u32) -> &[u8] {
        &self.models[rank as usize]
    }

    /// Returns the registers after a round among these ranks, with these contributions in the order of reduction.
    /// `base` rounds came before the first one.
    pub(super) fn after(
        &self,
        (cut, base): (&Cut, u64),
        active: &RankSet,
        sources: &[(Entry, Vec<u8>)],
        reduction: Reduction,
    ) -> Result<Self, String> {
        let mut after = self.clone();
        if let Some(held) = &mut after.held {
            sources.iter().for_each(|(entry, source)| held[entry.rank as usize] = source.as_slice().into());
        }
        let groups = active.iter().map(|rank| (rank, self.group.members(active, base + cut.round(), rank)));
        for (lowest, members) in groups {
            let contributed = cut.contributions().any(|entry| members.contains(&entry.rank));
            if members.first() != Some(&lowest) || !contributed {
                continue;
            }
            let updates: Vec<&(Entry, Vec<u8>)> =
                sources.iter().filter(|(entry, _)| members.contains(&entry.rank)).collect();
            let model: Rc<[u8]> = match &after.held {
                Some(held) => Self::average(held, &members, &[], reduction).into(),
                None => Self::average(&self.models, &members, &updates, reduction).into(),
            };
            match self.group {
                // A rank that has left also sees this register.
                Group::World => after.models.fill(model),
                _ => members.iter().for_each(|&member| after.models[member as usize] = model.clone()),
            }
        }
        if self.held.is_none() {
            self.check_sum(&after, active, sources, reduction).map_err(|what| format!("{what} in {cut:?}"))?;
        }
        Ok(after)
    }

    fn average(models: &[Rc<[u8]>], members: &[u32], updates: &[&(Entry, Vec<u8>)], reduction: Reduction) -> Vec<u8> {
        let dtype = reduction.dtype;
        let first = &models[members[0] as usize];
        let one = |at: usize| {
            let base = read(dtype, first, at);
            let update = |(entry, source): &&(Entry, Vec<u8>)| match reduction.factor(*entry) {
                1.0 => read(dtype, source, at),
                factor => read(dtype, source, at) * factor,
            };
            let sum = updates.iter().map(update).reduce(|left, right| left + right).unwrap_or(0.0);
            let difference = |&member: &u32| read(dtype, &models[member as usize], at) - base;
            base + members[1..].iter().map(difference).fold(sum, |left, right| left + right) / members.len() as f32
        };
        let values = (0..first.len() / dtype.size()).map(one);
        match dtype {
            Dtype::F16 => values.flat_map(|value| f16::from_f32(value).to_ne_bytes()).collect(),
            _ => values.flat_map(f32::to_ne_bytes).collect(),
        }
    }

    /// Checks that the sum over all models grows by the updates: nothing is lost, and nothing enters twice.
    fn check_sum(
        &self,
        after: &Registers,
        active: &RankSet,
        sources: &[(Entry, Vec<u8>)],
        reduction: Reduction,
    ) -> Result<(), String> {
        let dtype = reduction.dtype;
        // Each model is rounded once; 32-bit sums are rounded before that for each summand.
        let (unit, most) = if dtype == Dtype::F16 { (1e-3, f64::from(f16::MAX)) } else { (1e-6, f64::MAX) };
        for at in 0..self.of(0).len() / dtype.size() {
            let total = |of: &Registers| active.iter().map(|rank| f64::from(read(dtype, of.of(rank), at))).sum::<f64>();
            let scaled =
                |(entry, source): &(Entry, Vec<u8>)| f64::from(read(dtype, source, at) * reduction.factor(*entry));
            let updates: f64 = sources.iter().map(scaled).sum();
            let size: f64 = active.iter().map(|rank| f64::from(read(dtype, self.of(rank), at).abs())).sum::<f64>()
                + sources.iter().map(|source| scaled(source).abs()).sum::<f64>();
            let (before, now) = (total(self), total(after));
            let bound = unit * f64::from(active.len() + 2) * (size + 1e-3);
            if (now - before - updates).abs() > bound && size < most {
                return Err(format!("conservation: the models add up to {now}, and should to {before} + {updates}"));
            }
        }
        Ok(())
    }
}

fn read(dtype: Dtype, from: &[u8], index: usize) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_ne_bytes(array(&from[2 * index..2 * index + 2])).to_f32(),
        _ => f32::from_ne_bytes(array(&from[4 * index..4 * index + 4])),
    }
}
