//! Ranks over one array of cells, one step at a time, and the invariants that are checked after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use super::data::Data;
use crate::collective::core::Time;
use crate::collective::tickets::op::TicketOp;
use crate::collective::tickets::record::{GroupCut, Member};
use crate::collective::tickets::word::GroupSeat;
use crate::collective::tickets::{TicketMachine, TicketPlan, TicketTerms, claim, word};
use crate::fabric::Atomic;

/// Fails the run with a description of the broken invariant.
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(super) use ensure;

/// A description of the first problem, if there is one.
pub(super) type Checked<T = ()> = Result<T, String>;

#[derive(Clone, Hash)]
pub(super) struct Rank {
    pub(super) machine: TicketMachine,
    /// The number of contributions that it makes before it finishes.
    pub(super) steps: u64,
    /// The number of arrivals that it has made.
    pub(super) arrivals: u64,
    /// The segment of its group's data that it is moving.
    pub(super) moves: Option<u64>,
    /// Lenders whose claims it could not get, for the group that it closes.
    refused: Vec<u32>,
}

/// Counts of events in a world, in addition to its state.
#[derive(Clone, Default)]
pub(super) struct Log {
    pub(super) cuts: BTreeMap<u64, GroupCut>,
    /// The group of each arrival: rank and iteration.
    pub(super) entered: BTreeMap<(u32, u64), u64>,
    /// Groups whose records became free only after a member had its ticket.
    pub(super) full_ring: u64,
    /// Groups that moved while a later one had ended.
    pub(super) overtaken: u64,
    /// Registers that were borrowed.
    pub(super) borrowed: u64,
    /// Compare-swaps that failed to get a lender.
    pub(super) refusals: u64,
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) ranks: Vec<Rank>,
    pub(super) cells: Vec<u64>,
    /// Where registers are lent: the published group that is not over and uses a rank's register.
    holders: Vec<Option<u64>>,
    size: u32,
    lends: bool,
    has_deadline: bool,
    records: u64,
    /// `None` where states must be equal however they were reached; the same holds for the data.
    pub(super) log: Option<Log>,
    pub(super) data: Option<Data>,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.ranks, &self.cells, &self.holders).hash(state);
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Something,
    /// The rank took a group, and computes now.
    Took,
}

impl World {
    /// Returns ranks with `steps` contributions each. The terms of all machines differ only in the rank.
    pub(super) fn new(terms: &TicketTerms, records: Option<u64>, steps: &[u64]) -> Self {
        let plan = |me: u32| {
            let plan = TicketPlan::new(TicketTerms { me, ..terms.clone() });
            match records {
                Some(records) => plan.with_records(records),
                None => plan,
            }
        };
        let rank = |(me, &steps)| Rank {
            machine: TicketMachine::new(plan(me)),
            steps,
            arrivals: 0,
            moves: None,
            refused: Vec::new(),
        };
        World {
            ranks: (0..).zip(steps).map(rank).collect(),
            cells: vec![0; plan(0).cells()],
            holders: vec![None; steps.len()],
            size: terms.size,
            lends: terms.lends,
            has_deadline: terms.deadline.is_some(),
            records: plan(0).records(),
            log: Some(Log::default()),
            data: Some(Data::new(steps.len(), terms.segments)),
        }
    }

    fn plan(&self) -> &TicketPlan {
        self.ranks[0].machine.plan()
    }

    fn count(&self) -> u32 {
        self.ranks.len() as u32
    }

    pub(super) fn word(&self) -> u64 {
        self.cells[self.plan().tickets()]
    }

    pub(super) fn has_left(&self, me: u32) -> bool {
        self.ranks[me as usize].machine.has_left()
    }

    pub(super) fn all_left(&self) -> bool {
        self.ranks.iter().all(|rank| rank.machine.has_left())
    }

    /// Returns whether a rank acts at a time although nothing happens until then.
    pub(super) fn has_timer(&self, me: u32, now: Time) -> bool {
        self.ranks[me as usize].machine.next_timer().is_some_and(|at| at > now)
    }

    /// Checks that after a death no rank continues: each unfinished rank misses the dead one, or a rank that does.
    pub(super) fn check_bereaved(&self, dead: u32) -> Checked {
        let mut miss: BTreeSet<u32> = BTreeSet::from([dead]);
        loop {
            let misses = |rank: &u32| {
                let missing = self.ranks[*rank as usize].machine.missing(&|cell: usize| self.cells[cell]);
                missing.iter().any(|missed| miss.contains(missed))
            };
            let more: Vec<u32> = (0..self.count()).filter(|rank| !miss.contains(rank)).filter(misses).collect();
            if more.is_empty() {
                break;
            }
            miss.extend(more);
        }
        let stuck = (0..self.count()).find(|&rank| !self.has_left(rank) && !miss.contains(&rank));
        let stages = || self.ranks.iter().map(|rank| format!("\n{:?}", rank.machine)).collect::<String>();
        ensure!(stuck.is_none(), "rank {stuck:?} does not go on, and does not miss the dead rank {dead}:{}", stages());
        Ok(())
    }

    /// Returns the seat of a rank, with the iteration of its arrival.
    fn seat(&self, me: u32) -> Option<(GroupSeat, u64)> {
        let rank = &self.ranks[me as usize];
        Some((rank.machine.seat()?, rank.arrivals - 1))
    }

    /// Makes the next arrival of a rank that computes.
    pub(super) fn arrive(&mut self, me: u32, now: Time) {
        let Rank { machine, steps, arrivals, .. } = &mut self.ranks[me as usize];
        if arrivals < steps {
            machine.arrive(now, (*arrivals % 3) as u32, *arrivals, *arrivals as u16 + 1);
        } else {
            machine.finish(now, *arrivals);
        }
        *arrivals += 1;
    }

    /// Lets a rank that has arrived do one thing: an operation, the end of a movement, taking a group, or a poll.
    pub(super) fn step(&mut self, me: u32, now: Time) -> Checked<Step> {
        let rank = &mut self.ranks[me as usize];
        if let Some(segment) = rank.moves.take() {
            if let Some(data) = &mut self.data {
                data.end(me, rank.machine.cut(), segment);
            }
            rank.machine.complete(0);
        } else if let Some(op) = rank.machine.next_op() {
            self.execute(me, op)?;
        } else if rank.machine.is_ready() {
            self.take(me)?;
            return Ok(Step::Took);
        } else {
            return self.poll(me, now);
        }
        Ok(Step::Something)
    }

    fn take(&mut self, me: u32) -> Checked {
        let rank = &mut self.ranks[me as usize];
        rank.refused.clear();
        let iteration = rank.arrivals - 1;
        let cut = rank.machine.take();
        let own = Member {
            rank: me,
            buffer: if iteration < rank.steps { (iteration % 3) as u32 } else { 0 },
            iteration,
            weight: if iteration < rank.steps { iteration as u16 + 1 } else { 0 },
            leaving: iteration == rank.steps,
        };
        ensure!(cut.members.iter().filter(|member| **member == own).count() == 1, "{own:?} is not once in {cut:?}");
        if let Some(log) = &mut self.log {
            ensure!(log.cuts.get(&cut.group) == Some(cut), "rank {me} has another cut: {cut:?}");
            let before = log.entered.insert((me, iteration), cut.group);
            ensure!(before.is_none(), "rank {me} entered with arrival {iteration} twice");
        }
        if let Some(data) = &self.data {
            data.take(me, cut)?;
        }
        Ok(())
    }

    fn poll(&mut self, me: u32, now: Time) -> Checked<Step> {
        let before = self.ranks[me as usize].machine.stats();
        let cells = &self.cells;
        let machine = &mut self.ranks[me as usize].machine;
        let moved = machine.poll(now, &|cell: usize| cells[cell]);
        let after = machine.stats();
        if let Some(&op) = machine.peek_op() {
            let found_none = after.no_lender > before.no_lender;
            self.check_window(me, op, after.closed > before.closed, found_none)?;
        }
        Ok(if moved { Step::Something } else { Step::Nothing })
    }

    fn execute(&mut self, me: u32, op: TicketOp) -> Checked {
        ensure!(!self.plan().is_over(&|cell: usize| self.cells[cell]), "rank {me} uses cells that are over: {op:?}");
        match op {
            TicketOp::Atomic { cell, atomic } => {
                let found = self.cells[cell];
                self.cells[cell] = match atomic {
                    Atomic::FetchAdd(value) => found.wrapping_add(value),
                    Atomic::CompareSwap { expect, new } if found == expect => new,
                    Atomic::CompareSwap { .. } => found,
                };
                self.check_claim(me, cell, atomic, found)?;
                self.ranks[me as usize].machine.complete(found);
                self.note_full_ring(me, cell);
            }
            TicketOp::StorePair { cell, values, .. } => {
                self.check_pair(me, cell, values)?;
                self.cells[cell..cell + 2].copy_from_slice(&values);
                self.ranks[me as usize].machine.complete(0);
            }
            TicketOp::Combine { group, segment } => {
                let rank = &mut self.ranks[me as usize];
                let mut published = GroupCut::default();
                let is_published =
                    rank.machine.plan().record(group).learn(&mut published, &|cell: usize| self.cells[cell]);
                ensure!(is_published && published == *rank.machine.cut(), "rank {me} moves {:?}", rank.machine.cut());
                rank.moves = Some(segment);
                if let Some(data) = &mut self.data {
                    data.begin(me, rank.machine.cut(), segment)?;
                }
                if let Some(log) = &mut self.log {
                    let cells = &self.cells;
                    let plan = rank.machine.plan();
                    let newest = log.cuts.last_key_value().map_or(0, |(&newest, _)| newest);
                    let is_over = |group: u64| plan.record(group).is_over(&|cell: usize| cells[cell]);
                    log.overtaken += u64::from((group + 1..=newest).any(is_over));
                }
            }
        }
        Ok(())
    }

    /// Counts a rank that has drawn a ticket whose record is not free.
    fn note_full_ring(&mut self, me: u32, cell: usize) {
        let machine = &self.ranks[me as usize].machine;
        let drawn = machine.seat().filter(|_| cell == machine.plan().tickets());
        let is_full = |seat: GroupSeat| !machine.plan().record(seat.group).is_free(&|cell: usize| self.cells[cell]);
        let is_full = drawn.is_some_and(is_full);
        if let Some(log) = &mut self.log {
            log.full_ring += u64::from(is_full);
        }
    }

    /// Checks an atomic on the claim on a register.
    fn check_claim(&mut self, me: u32, cell: usize, atomic: Atomic, found: u64) -> Checked {
        let Some(of) = (0..self.count()).find(|&rank| self.plan().claim(rank) == cell) else { return Ok(()) };
        let Atomic::CompareSwap { expect, new } = atomic else { return Err("a claim is added to".into()) };
        if expect == claim::INSIDE {
            let named = self.seat(me).map(|(seat, _)| claim::of(seat.group));
            ensure!(me == of && found == expect && named == Some(new), "rank {me} names group {new} for rank {of}");
            return Ok(());
        }
        if expect != found {
            self.ranks[me as usize].refused.push(of);
            if let Some(log) = &mut self.log {
                log.refusals += u64::from(me != of);
            }
            return Ok(());
        }
        ensure!((me == of) == (new == claim::INSIDE), "rank {me} claims rank {of}'s register with {new}");
        let holder = claim::group(found).filter(|&group| self.holders[of as usize] == Some(group));
        ensure!(holder.is_none(), "rank {me} claims rank {of}'s register, which group {holder:?} has");
        ensure!(self.seat(of).is_none(), "rank {me} claims rank {of}'s register, which has a seat");
        if let Some(log) = &mut self.log {
            log.borrowed += u64::from(me != of);
        }
        Ok(())
    }

    /// Checks the write of an entry, a cut, or the end of a group.
    fn check_pair(&mut self, me: u32, cell: usize, values: [u64; 2]) -> Checked {
        let machine = &self.ranks[me as usize].machine;
        let cut = machine.cut().clone();
        let record = machine.plan().record(cut.group);
        if (cell, values) == record.clear() {
            return self.check_released(me, &cut);
        }
        if (cell, values) == record.end() {
            return self.check_end(me, &cut);
        }
        let Some((seat, _)) = self.seat(me) else { return Err(format!("rank {me} writes without a seat")) };
        if seat.group == cut.group && (cell, values) == record.cut(&cut) {
            return self.check_cut(me, &cut);
        }
        let record = machine.plan().record(seat.group);
        ensure!(record.entry(seat.index, Member::default()).0 == cell, "rank {me} writes outside of {seat:?}");
        let there = record.rank_at(seat.index, &|cell: usize| self.cells[cell]);
        ensure!(there.is_none(), "ranks {me} and {there:?} have the seat {seat:?}");
        if let Some(before) = seat.group.checked_sub(self.records) {
            let late = (0..self.count()).find(|&rank| self.seat(rank).is_some_and(|(seat, _)| seat.group == before));
            ensure!(late.is_none(), "rank {me} writes into the record of group {before}, which rank {late:?} needs");
        }
        Ok(())
    }

    fn check_cut(&mut self, me: u32, cut: &GroupCut) -> Checked {
        let GroupCut { group, members, lender } = cut;
        let what = || format!("rank {me} of {} publishes {cut:?}", self.count());
        let active = self.count() - word::leavers(self.word()).min(self.count());
        let before = self.plan().record(*group).published(&|cell: usize| self.cells[cell]);
        ensure!(before.is_none(), "{} again", what());
        ensure!(members.len() <= self.size as usize && members.iter().any(|member| member.rank == me), "{}", what());
        ensure!(
            members.len() == self.size as usize || self.has_deadline || active < self.size,
            "{} with {active} active ranks",
            what()
        );
        ensure!(members.is_sorted_by(|one, other| one.rank < other.rank), "{}", what());
        for member in members {
            let seat = self.seat(member.rank);
            let holds = seat.is_some_and(|(seat, iteration)| seat.group == *group && iteration == member.iteration);
            ensure!(holds, "{}; rank {} has {seat:?}", what(), member.rank);
        }
        if let Some(lender) = *lender {
            ensure!(self.lends, "{}", what());
            let seat = self.seat(lender);
            ensure!(seat.is_none() && !self.has_left(lender), "{}; the lender has {seat:?}", what());
        }
        if self.lends {
            for rank in members.iter().map(|member| member.rank).chain(*lender) {
                let before = self.holders[rank as usize].replace(*group);
                ensure!(before.is_none(), "rank {rank}'s register is in groups {group} and {before:?}");
            }
        }
        if let Some(log) = &mut self.log {
            ensure!(log.cuts.insert(*group, cut.clone()).is_none(), "group {group} is published twice");
        }
        if let Some(data) = &mut self.data {
            data.publish(cut);
        }
        Ok(())
    }

    /// Checks that no member needs the group any more.
    fn check_released(&self, me: u32, cut: &GroupCut) -> Checked {
        for member in &cut.members {
            let seat = self.seat(member.rank).filter(|(seat, _)| seat.group == cut.group);
            ensure!(seat.is_none(), "rank {me} ends a group that rank {} needs", member.rank);
        }
        Ok(())
    }

    fn check_end(&mut self, me: u32, cut: &GroupCut) -> Checked {
        self.check_released(me, cut)?;
        for holder in &mut self.holders {
            holder.take_if(|holder| *holder == cut.group);
        }
        Ok(())
    }

    /// Checks the window that a closer used before it publishes a cut or claims a lender's register.
    fn check_window(&self, me: u32, op: TicketOp, closes: bool, found_none: bool) -> Checked {
        let lender = match op {
            TicketOp::Atomic { cell, .. } => {
                (0..self.count()).find(|&rank| rank != me && cell == self.plan().claim(rank))
            }
            _ => None,
        };
        if !self.lends || !closes && lender.is_none() {
            return Ok(());
        }
        let cut = self.ranks[me as usize].machine.cut();
        let lender = lender.or(cut.lender);
        let cells = |cell: usize| self.cells[cell];
        // The ranks that have met, by group; the last group is the cut.
        let mut groups = Vec::new();
        for group in self.plan().window_before(cut.group)..cut.group {
            let record = self.plan().record(group);
            let Some(seats) = record.published(&cells) else { continue };
            let met: BTreeSet<u32> =
                (0..seats).filter_map(|seat| record.rank_at(seat, &cells)).chain(record.lender(&cells)).collect();
            if let Some(known) = self.log.as_ref().and_then(|log| log.cuts.get(&group)) {
                let is_known =
                    |rank| known.lender == Some(rank) || known.members.iter().any(|member| member.rank == rank);
                ensure!(met.iter().all(|&rank| is_known(rank)), "the window has {met:?} for {known:?}");
            }
            groups.push((group, met));
        }
        groups.push((cut.group, cut.members.iter().map(|member| member.rank).collect()));
        let is_gone = |rank: u32| self.is_gone(rank);
        for rank in 0..self.count() {
            let Rank { machine, arrivals, steps, .. } = &self.ranks[rank as usize];
            let leaves = machine.has_left() || arrivals > steps && machine.seat().is_some();
            ensure!(is_gone(rank) || !leaves, "rank {rank} leaves, and closers look for it");
            ensure!(!is_gone(rank) || arrivals > steps, "rank {rank} stays, and no closer looks for it");
        }
        let goes_on = cut.members.iter().find(|member| !member.leaving);
        let mut reached: BTreeSet<u32> = goes_on.iter().map(|member| member.rank).collect();
        while let Some((_, met)) = groups.iter().find(|(_, met)| !met.is_disjoint(&reached) && !met.is_subset(&reached))
        {
            reached.extend(met);
        }
        let others: Vec<u32> = (0..self.count()).filter(|&rank| !reached.contains(&rank) && !is_gone(rank)).collect();
        let is_apart = goes_on.is_some() && !others.is_empty();
        ensure!(is_apart == (lender.is_some() || found_none), "{others:?} are apart from {cut:?}: lender {lender:?}");
        let newest = |rank: u32| groups.iter().rev().find(|(_, met)| met.contains(&rank)).map(|&(group, _)| group);
        let could_lend = |rank: u32| {
            let is_free = claim::has_ended(self.cells[self.plan().claim(rank)], self.plan(), &cells);
            is_free && self.holders[rank as usize].is_none() && !self.ranks[me as usize].refused.contains(&rank)
        };
        let expected = others.into_iter().filter(|&rank| could_lend(rank)).min_by_key(|&rank| (newest(rank), rank));
        ensure!(!is_apart || lender == expected, "{cut:?}: lender {lender:?}, not {expected:?}");
        Ok(())
    }

    /// Returns whether a rank has announced that it leaves.
    fn is_gone(&self, rank: u32) -> bool {
        let (cell, bit) = self.plan().gone(rank);
        self.cells[cell] & bit != 0
    }

    /// Checks the invariants that hold when all ranks have left.
    pub(super) fn check_end_of_all(&self) -> Checked {
        ensure!(self.plan().is_over(&|cell: usize| self.cells[cell]), "all ranks have left, and cells are in use");
        ensure!(word::leavers(self.word()) == self.count(), "not all are counted as leavers");
        ensure!(self.holders.iter().all(Option::is_none), "registers are held: {:?}", self.holders);
        let claims = (0..self.count()).map(|rank| self.cells[self.plan().claim(rank)]);
        let last = if self.lends { claim::INSIDE } else { 0 };
        ensure!(claims.clone().all(|claim| claim == last), "claims: {:?}", claims.collect::<Vec<_>>());
        let sum = |count: fn(&crate::collective::tickets::Stats) -> u64| {
            self.ranks.iter().map(|rank| count(&rank.machine.stats())).sum::<u64>()
        };
        let arrivals: u64 = self.ranks.iter().map(|rank| rank.steps + 1).sum();
        ensure!(sum(|stats| stats.arrivals) == arrivals, "arrivals");
        let Some(log) = &self.log else { return Ok(()) };
        ensure!(log.entered.len() as u64 == arrivals, "{} of {arrivals} arrivals entered", log.entered.len());
        let seats: Vec<(u32, u64, u64)> = log
            .cuts
            .values()
            .flat_map(|cut| cut.members.iter().map(|member| (member.rank, member.iteration, cut.group)))
            .collect();
        ensure!(seats.len() as u64 == arrivals, "{} seats for {arrivals} arrivals", seats.len());
        for (rank, iteration, group) in seats {
            ensure!(log.entered.get(&(rank, iteration)) == Some(&group), "arrival {iteration} of rank {rank}");
        }
        let groups = word::groups(self.word(), self.size);
        ensure!(log.cuts.len() as u64 == groups && sum(|stats| stats.closed) == groups, "{groups} groups began");
        let bridges = log.cuts.values().filter(|cut| cut.lender.is_some()).count() as u64;
        ensure!(sum(|stats| stats.bridges) == bridges, "{bridges} cuts have a lender");
        ensure!(log.borrowed == bridges, "{} registers were borrowed for {bridges} bridges", log.borrowed);
        if let Some(data) = &self.data {
            data.check_end_of_all(&log.cuts)?;
            let contributing = log.cuts.values().filter(|cut| cut.contributors().next().is_some()).count() as u64;
            ensure!(sum(|stats| stats.segments) == contributing * data.segments, "segments of {contributing} groups");
        }
        let lent = sum(|stats| stats.lent);
        ensure!(lent <= bridges, "{bridges} registers were borrowed, and ranks noticed that {lent} times");
        Ok(())
    }
}
