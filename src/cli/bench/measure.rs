//! One row: a rule, a size and a skew.

use std::time::{Duration, Instant};

use crate::collective::Chosen;
use crate::{
    Absent, Allreduce, Element, Executor, Fire, Grace, Group, Mover, Outcome, Part, Reached, Result, Traffic, When,
    World,
};

use super::super::common::mean_over_ranks;
use super::super::distribution::Distribution;
use super::super::pattern::{Exact, Pattern};
use super::super::skew::Skew;
use super::PATIENCE;

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) fire: Fire,
    pub(super) grace: Grace,
    pub(super) absent: Absent,
    pub(super) depth: u32,
    pub(super) mover: Mover,
    pub(super) executor: Executor,
    /// Which ranks average models, if they do.
    pub(super) group: Option<Group>,
    pub(super) bytes: usize,
    pub(super) skew: Skew,
    pub(super) warmup: u32,
    pub(super) iters: u32,
    pub(super) private: bool,
    pub(super) seed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) bytes: usize,
    /// What the choices of the case resulted in.
    pub(super) mover: Mover,
    pub(super) grace: Grace,
    pub(super) depth: u64,
    pub(super) executor: Executor,
    pub(super) path: &'static str,
    /// The mean over ranks of each iteration, in microseconds.
    pub(super) latencies: Distribution,
    /// The time of an iteration with all that belongs to it, such as computing time, in seconds: the mean over ranks.
    pub(super) pace: f64,
    /// `None` if it is unknown.
    pub(super) ideal_us: Option<f64>,
    pub(super) fresh_mean: f64,
    pub(super) fresh_min: u64,
    pub(super) carried_mean: f64,
    pub(super) age_mean: f64,
    pub(super) age_max: u64,
    pub(super) wrong: u64,
    /// What this rank sent: to make the collective, in each round, and at the end.
    pub(super) sent: Sent,
}

/// What a rank sent in the parts of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) setup: Traffic,
    pub(super) end: Traffic,
    pub(super) reached: Reached,
    /// What this rank sent in a round, and what all ranks did, as [`COUNTED`] names it.
    pub(super) round: [f64; 6],
    pub(super) by_all: [f64; 6],
}

/// The names of what is counted.
pub(super) const COUNTED: [&str; 6] = ["messages", "control", "sent_bytes", "atomics", "reads", "read_bytes"];

/// Returns what was counted, as [`COUNTED`] names it.
pub(super) fn counts(of: Traffic) -> [u64; 6] {
    [of.messages, of.control, of.bytes, of.atomics, of.reads, of.read_bytes]
}

impl Sent {
    /// Takes over what this rank sent in a number of rounds, and adds up what the ranks sent in a round.
    fn add_up(&mut self, world: &World, (sent, rounds): (Traffic, u64)) -> Result<()> {
        self.round = counts(sent).map(|count| count as f64 / rounds.max(1) as f64);
        let means = mean_over_ranks(world, &self.round, PATIENCE)?;
        self.by_all.iter_mut().zip(means).for_each(|(all, mean)| *all = mean * f64::from(world.size()));
        Ok(())
    }
}

impl Case {
    /// Returns whether groups form by order of arrival, so that ranks have no rounds in common.
    fn is_by_arrival(&self) -> bool {
        matches!(self.group, Some(Group::Arrivals(_)))
    }
}

fn build<T: Exact>(world: &World, case: &Case) -> Result<Allreduce<T>> {
    let length = case.bytes / size_of::<T>();
    let sum = world.allreduce::<T>(&[length]).fire(case.fire).grace(case.grace).depth(case.depth);
    let sum = sum.absent(case.absent).mover(case.mover).executor(case.executor);
    match case.group {
        None => sum.build(),
        Some(group) => sum.group(group).memory(&vec![T::from_small(0); length]).build(),
    }
}

/// What ranks contribute, and what follows for the outcome.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Sums(Pattern),
    /// Models grow by 1 with each contribution of a member, divided by the number of members.
    Models {
        synchronous: bool,
    },
}

impl Expected {
    fn fill<T: Exact>(self, data: &mut [T], rank: u32, tag: u64) {
        match self {
            Expected::Sums(pattern) => pattern.fill(data, rank, tag),
            Expected::Models { .. } => data.fill(T::from_small(1)),
        }
    }

    /// Counts elements that cannot be right.
    fn wrong<T: Exact>(self, outcome: &Outcome<'_, T>, absent: Absent, tag: impl Fn(u64) -> u64, step: usize) -> u64 {
        let synchronous = match self {
            Expected::Sums(pattern) => return pattern.wrong(outcome, absent, tag, step),
            Expected::Models { synchronous } => synchronous,
        };
        let Some(&first) = outcome.data().first() else { return 0 };
        // A round may contain a fresh and a carried contribution of each rank. Ranks that leave contribute nothing.
        let (model, rounds) = (first.to_f64(), outcome.round() as f64);
        let whole = synchronous && rounds <= f64::from(T::MOST) && outcome.cut().leavers().is_empty();
        let possible = if whole { model == rounds } else { (0.0..=2.0 * rounds).contains(&model) };
        let others = outcome.data().iter().step_by(step).filter(|&&x| x != first).count() as u64;
        u64::from(!possible) + others
    }
}

/// The step of which a rank that fails slow takes a multiple: nothing else is computed here.
const STEP: Duration = Duration::from_millis(1);

/// The number of rounds that are checked in full, with data that changes from round to round.
const CHECKED: u64 = 12;

/// One element in this number of a large outcome is checked after each measured round: reading all of it would move it
/// into the wrong caches.
const SPARSE: usize = 4099;
const CHECK_ALL_UP_TO: usize = 256;

pub(super) fn run<T: Exact>(world: &World, case: &Case) -> Result<Measured> {
    let pattern = match case.group {
        None => Expected::Sums(Pattern::of::<T>(world.size())),
        Some(_) => Expected::Models { synchronous: case.fire.is_synchronous() && !case.is_by_arrival() },
    };
    let length = case.bytes / size_of::<T>();
    let mut input = vec![T::from_small(0); if case.private { length } else { 0 }];
    // It is first checked in full, on a collective of its own.
    let mut checked = build::<T>(world, case)?;
    let mut errors = 0;
    let mut newest = 0;
    for step in 0..CHECKED {
        if (step + u64::from(world.rank())) % 5 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
        if case.private {
            pattern.fill(&mut input, world.rank(), newest + 1);
            checked.arrive_with(&[&input])?;
        } else {
            pattern.fill(checked.contribution()?, world.rank(), newest + 1);
            checked.arrive()?;
        }
        for outcome in checked.wait(PATIENCE)? {
            errors += pattern.wrong(&outcome, case.absent, |target| target, 1);
            newest = outcome.round();
        }
    }
    checked.finish(PATIENCE)?;
    drop(checked);

    let mut sent = Sent::default();
    let before = world.traffic();
    let mut sum = build::<T>(world, case)?;
    sent.setup = world.traffic() - before;
    let Chosen { mover, grace, depth } = sum.resulting();
    let mut measured = Measured {
        bytes: case.bytes / size_of::<T>() * size_of::<T>(),
        mover,
        grace,
        depth,
        executor: sum.executor(),
        path: sum.path(),
        ..Measured::default()
    };
    let mut output = input.clone();
    pattern.fill(&mut input, world.rank(), 0);
    let mut written = Vec::with_capacity(4);
    let mut cuts = Cuts::default();
    let mut latencies = vec![0.0; case.iters as usize];
    let step = if length <= CHECK_ALL_UP_TO { 1 } else { SPARSE };
    let (warmup, end) = (u64::from(case.warmup), u64::from(case.warmup) + u64::from(case.iters));
    let mut all_are_done = if case.is_by_arrival() { Some(world.allreduce::<u32>(&[1]).build()?) } else { None };
    world.barrier(PATIENCE)?;
    // With a skew all ranks make the same rounds, otherwise the same number of calls.
    let same_rounds = !case.skew.is_none() && !case.is_by_arrival();
    let (mut calls, mut newest) = (0, 0);
    let mut from = (world.traffic(), 0);
    // What barriers between the rounds sent.
    let mut aside = Traffic::default();
    let begun = Instant::now();
    loop {
        let before = if same_rounds { newest } else { calls };
        if before >= end {
            break;
        }
        if before <= warmup {
            from = (world.traffic(), newest);
            aside = Traffic::default();
        }
        if !case.private {
            // Written once, because moving it is what is measured; a collective has several buffers.
            let contribution = sum.contribution()?;
            if !written.contains(&contribution.as_ptr()) {
                written.push(contribution.as_ptr());
                pattern.fill(contribution, world.rank(), 0);
            }
        }
        if !case.skew.is_none() {
            let delays = case.skew.delays(world.size(), before, case.seed, STEP);
            // A rank that was late for the round before a full one still waits for that one: it reaches no barrier
            // before the others have arrived.
            if same_rounds && !case.fire.is_full(newest + 1) {
                let before = world.traffic();
                world.barrier(PATIENCE)?;
                aside = aside + (world.traffic() - before);
            }
            std::thread::sleep(delays[world.rank() as usize]);
        }
        let start = Instant::now();
        if case.private {
            sum.arrive_with(&[&input])?;
        } else {
            sum.arrive()?;
        }
        let outcomes = sum.wait(PATIENCE)?;
        if case.private {
            output.copy_from_slice(&outcomes.newest());
        }
        let latency = start.elapsed().as_secs_f64() * 1e6;
        for outcome in outcomes {
            errors += pattern.wrong(&outcome, case.absent, |_| 0, step);
            if before >= warmup {
                cuts.count(&outcome);
            }
            newest = outcome.round();
        }
        calls += 1;
        let after = if same_rounds { newest } else { calls };
        // Several rounds that were returned at once took that long each.
        for index in before.max(warmup)..after.min(end) {
            latencies[(index - warmup) as usize] = latency;
        }
    }
    let in_rounds = (world.traffic() - from.0 - aside, newest - from.1);
    let pace = begun.elapsed().as_secs_f64() / end as f64;
    // Groups need partners: the last ranks would measure groups of one.
    if let Some(done) = &mut all_are_done {
        done.contribution()?[0] = 0;
        done.arrive()?;
        while done.try_wait()?.is_none() {
            sum.contribution()?;
            sum.arrive()?;
            sum.wait(PATIENCE)?;
        }
    }
    let before = world.traffic();
    sum.finish(PATIENCE)?;
    drop(sum);
    (sent.end, sent.reached) = (world.traffic() - before, world.reached());
    all_are_done.map_or(Ok(()), |mut done| done.finish(PATIENCE))?;
    sent.add_up(world, in_rounds)?;
    measured.sent = sent;
    measured.pace = mean_over_ranks(world, &[pace], PATIENCE)?[0];
    measured.latencies = Distribution::of(mean_over_ranks(world, &latencies, PATIENCE)?);
    measured.wrong = total(world, errors)?;
    let ideal = |iteration: u32| {
        let time = u64::from(case.warmup + iteration);
        case.skew.ideal((case.fire, case.grace), world.size(), (time, case.seed, STEP)).as_secs_f64() * 1e6
    };
    let mean = || (0..case.iters).map(ideal).sum::<f64>() / f64::from(case.iters);
    // Under `auto` the quorum of each round follows from the rounds before.
    let is_known = !case.is_by_arrival() && !matches!(case.fire.when(), When::Auto(_));
    measured.ideal_us = is_known.then(mean);
    cuts.summarise(&mut measured);
    Ok(measured)
}

/// The content of the cuts of the measured rounds, until the first rank left.
#[derive(Debug, Default)]
struct Cuts {
    rounds: u64,
    fresh: u64,
    fresh_min: Option<u64>,
    carried: u64,
    age_max: u64,
    ages: u64,
    over: bool,
}

impl Cuts {
    fn count<T: Element>(&mut self, outcome: &Outcome<'_, T>) {
        let cut = outcome.cut();
        self.over |= cut.entries().any(|entry| entry.part == Part::Leaving);
        if self.over {
            return;
        }
        let fresh = cut.entries().filter(|entry| entry.part == Part::Fresh).count() as u64;
        let carried = cut.entries().len() as u64 - fresh;
        self.rounds += 1;
        self.fresh += fresh;
        self.fresh_min = Some(self.fresh_min.unwrap_or(u64::MAX).min(fresh));
        self.carried += carried;
        self.ages += cut.entries().map(|entry| entry.age).sum::<u64>();
        self.age_max = cut.entries().map(|entry| entry.age).max().unwrap_or(0).max(self.age_max);
    }

    fn summarise(&self, into: &mut Measured) {
        let rounds = self.rounds.max(1) as f64;
        into.fresh_mean = self.fresh as f64 / rounds;
        into.fresh_min = self.fresh_min.unwrap_or(0);
        into.carried_mean = self.carried as f64 / rounds;
        into.age_mean = self.ages as f64 / (self.fresh + self.carried).max(1) as f64;
        into.age_max = self.age_max;
    }
}

fn total(world: &World, mine: u64) -> Result<u64> {
    let mut sum = world.allreduce::<u64>(&[1]).build()?;
    sum.contribution()?[0] = mine;
    sum.arrive()?;
    let all = sum.wait(PATIENCE)?.newest()[0];
    sum.finish(PATIENCE)?;
    Ok(all)
}
