//! The rounds of a collective as a rank sees them, judged by what every rank must have contributed.

use std::collections::HashSet;

use crate::{Absent, Executor, Fire, Outcome, Part};

use super::super::pattern::{Exact, Pattern};

/// The rounds of one collective, as one rank has received them.
#[derive(Debug)]
pub(super) struct Witness {
    ranks: u32,
    fire: Fire,
    executor: Executor,
    pattern: Pattern,
    pub(super) newest: u64,
    /// The contributions that have entered: the rank, and the round that they were made for.
    entered: HashSet<(u32, u64)>,
    /// The rounds for which this rank has made contributions.
    made: Vec<u64>,
    /// A digest of every bit and every cut.
    digest: u64,
    pub(super) fresh: u64,
    pub(super) carried: u64,
    pub(super) age_max: u64,
    /// The maximum number of rounds that one wait returned.
    pub(super) most_at_once: usize,
    /// The first error, with the guarantee that it violates.
    pub(super) problem: Option<String>,
}

impl Witness {
    pub(super) fn new<T: Exact>(ranks: u32, fire: Fire, executor: Executor) -> Self {
        Witness {
            ranks,
            fire,
            executor,
            pattern: Pattern::of::<T>(ranks),
            newest: 0,
            entered: HashSet::new(),
            made: Vec::new(),
            digest: 0,
            fresh: 0,
            carried: 0,
            age_max: 0,
            most_at_once: 0,
            problem: None,
        }
    }

    /// Fills the contribution for the next round.
    pub(super) fn contribute<T: Exact>(&mut self, data: &mut [T], rank: u32) {
        self.pattern.fill(data, rank, self.newest + 1);
        self.made.push(self.newest + 1);
    }

    /// Returns the number of contributions that entered, of all ranks.
    pub(super) fn contributions(&self) -> usize {
        self.entered.len()
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    fn mind(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds && self.problem.is_none() {
            self.problem = Some(problem());
        }
    }

    fn mix(&mut self, value: u64) {
        self.digest = (self.digest.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    /// Judges the outcomes that one wait has returned.
    pub(super) fn look<'a, T: Exact>(&mut self, outcomes: impl IntoIterator<Item = Outcome<'a, T>>, depth: u32) {
        let mut count = 0;
        for outcome in outcomes {
            count += 1;
            self.judge(&outcome);
        }
        self.most_at_once = self.most_at_once.max(count);
        self.mind(count <= depth as usize, || format!("G4: a rank was {count} rounds behind, the depth is {depth}"));
    }

    fn judge<T: Exact>(&mut self, outcome: &Outcome<'_, T>) {
        let (round, cut, fire) = (outcome.round(), outcome.cut(), self.fire);
        let expected = self.newest + 1;
        self.mind(round == expected, || format!("G4: round {round} came where round {expected} was due"));
        self.newest = round;
        let wrong = self.pattern.wrong(outcome, Absent::Carry, |target| target, 1);
        self.mind(wrong == 0, || format!("G1: round {round} has {wrong} elements that are not the sum of {cut:?}"));
        // A last arrival counts, but has no data.
        let arrived = cut.entries().filter(|entry| entry.part != Part::Carried).count();
        let leaves = cut.entries().any(|entry| entry.part == Part::Leaving);
        let needed = if fire.limit().is_some() { 1 } else { fire.threshold(self.ranks) };
        let is_enough = leaves || fire.is_full(round) || arrived >= needed as usize;
        self.mind(is_enough, || format!("G5: round {round} fired with {arrived} arrivals, {fire} needs {needed}"));
        for rank in (0..self.ranks).filter(|_| fire.is_full(round) && !leaves) {
            let is_in = cut.entries().any(|entry| entry.rank == rank);
            self.mind(is_in, || format!("G5: round {round} is full and has nothing of rank {rank}"));
        }
        let has_initiator = cut.initiator().is_some_and(|rank| rank < self.ranks);
        let is_counted = fire.is_synchronous() || fire.is_full(round);
        let tells = self.executor == Executor::Provider || is_counted || has_initiator;
        self.mind(tells, || format!("G9: round {round} does not tell which rank closed it"));
        for entry in cut.contributions() {
            let (rank, age) = (entry.rank, entry.age);
            self.mind(age < round, || format!("G9: round {round} has an entry of rank {rank} with age {age}"));
            let is_new = self.entered.insert((rank, round.saturating_sub(age)));
            self.mind(is_new, || {
                format!("G1: a contribution of rank {rank} entered twice, the second time in {round}")
            });
            self.age_max = self.age_max.max(age);
            let is_fresh = entry.part == Part::Fresh;
            (self.fresh, self.carried) = (self.fresh + u64::from(is_fresh), self.carried + u64::from(!is_fresh));
            self.mix(u64::from(rank) << 32 | age << 1 | u64::from(is_fresh));
        }
        self.mix(round);
        outcome.data().iter().for_each(|x| self.mix(x.to_f64().to_bits()));
    }

    /// Checks that all contributions of this rank have entered after a full round, and all but the last after any other
    /// round.
    pub(super) fn account(&mut self, rank: u32) {
        let is_full = self.fire.is_synchronous() || self.fire.is_full(self.newest);
        let settled = if is_full { self.made.len() } else { self.made.len().saturating_sub(1) };
        let is_lost = |target: &&u64| !self.entered.contains(&(rank, **target));
        let lost = self.made[..settled].iter().find(is_lost).copied();
        self.mind(lost.is_none(), || {
            format!("G1: the contribution of rank {rank} for round {} was lost", lost.unwrap_or_default())
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{Config, World};

    use super::*;

    /// Two rounds of one rank, which are judged with these changes.
    fn judged(data: u64, twice: bool) -> Witness {
        let world = World::in_this_process(1, &Config::default()).unwrap().remove(0);
        let mut sum = world.allreduce::<u64>(&[3]).fire(Fire::SOLO).build().unwrap();
        let mut witness = Witness::new::<u64>(1, Fire::SOLO, sum.executor());
        for _ in 0..2 {
            let mine = sum.contribution().unwrap();
            witness.contribute(mine, 0);
            mine[1] += data;
            if twice {
                witness.entered.insert((0, witness.newest + 1));
            }
            sum.arrive().unwrap();
            witness.look(sum.wait(Duration::from_secs(20)).unwrap(), 8);
        }
        sum.finish(Duration::from_secs(20)).unwrap();
        witness.account(0);
        witness
    }

    #[test]
    fn what_is_wrong_is_named_with_its_guarantee() {
        let right = judged(0, false);
        assert_eq!((right.problem.clone(), right.newest, right.contributions()), (None, 2, 2));
        assert_ne!(right.digest(), judged(1, false).digest());
        let problem = |witness: Witness| witness.problem.unwrap_or_default();
        assert!(problem(judged(1, false)).starts_with("G1: round 1 has 1 elements that are not the sum"));
        assert!(problem(judged(0, true)).starts_with("G1: a contribution of rank 0 entered twice"));
        let mut lost = judged(0, false);
        lost.made.insert(0, 9);
        lost.account(0);
        assert_eq!(problem(lost), "G1: the contribution of rank 0 for round 9 was lost");
    }
}
