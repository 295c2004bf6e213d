//! Models that move. Each rank has a *register*, which holds its model; a contribution is an update of it.
//!
//! In a round, the groups of a [`Group`](crate::group::Group) average the registers of their members and add the
//! updates of those that contributed. Then every member, even an absent one, has the result in its register. So no
//! model is ever stale, and every update enters once: the sum over all registers after a round is the sum before it
//! plus the updates of its cut. A group to which no member contributed leaves its registers unchanged.
//!
//! The cut of a round and the ranks that are active in it determine its groups and which of them move. All ranks know
//! these, so they know where each register lies: the number of times that it was written determines its offset
//! (`Plan::register`). A round has landed when all its groups have landed, because any rank may have to read any
//! register for the next one.
//!
//! Under [`Absent::Hold`] contributions are models. A group averages the newest contribution of each member, from the
//! round in which it entered until the next one enters; the registers are not read. Three buffers are enough: once a
//! contribution has entered a round that landed, no later round reads the one before.

use std::fmt;

use super::super::context::Context;
use super::super::cut::Cut;
use super::super::entry::{Entry, Part};
use super::super::op::{Addend, Op};
use super::super::outbox::Outbox;
use super::super::plan::{FIRST_HELD, Plan};
use crate::fault::Fault;
use crate::group::Butterfly;
use crate::rank_set::RankSet;
use crate::reduce::Place;
use crate::rule::Absent;

/// What a rank knows about the registers of all ranks.
#[derive(Clone, Hash)]
pub(crate) struct Registers {
    /// How ranks are divided; `None` if all average.
    butterfly: Option<Butterfly>,
    /// The round whose groups these are: the oldest round that has not landed, or the one that landed last.
    round: u64,
    /// The members of the groups that move in it, ascending in each group, and where each group ends.
    members: Vec<u32>,
    ends: Vec<usize>,
    /// How often the register of each rank was written, up to the round that landed last. Where all ranks average, all
    /// have one count.
    written: Vec<u64>,
    /// By slot: the value of this host's count of segments when all rounds that used the slot have landed.
    counts: Vec<u64>,
    /// By slot: the offset of this rank's register after a round that landed.
    offsets: Vec<usize>,
    /// The ranks that contributed to the round.
    contributors: RankSet,
    /// Under [`Absent::Hold`]: the buffer of the newest contribution of each rank, up to the round that landed last.
    held: Vec<u32>,
}

impl fmt::Debug for Registers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Registers { round, members, ends, written, .. } = self;
        write!(f, "round {round}: {members:?} to {ends:?}, written {written:?}")
    }
}

impl Registers {
    /// Returns `None` if ranks have no registers.
    pub(super) fn new(plan: &Plan) -> Option<Box<Self>> {
        let (butterfly, slots) = (plan.butterfly(), plan.slots() as usize);
        let ranks = plan.ranks as usize;
        let registers = || {
            Box::new(Registers {
                butterfly,
                round: 0,
                members: Vec::with_capacity(ranks),
                ends: Vec::with_capacity(ranks),
                written: vec![0; if butterfly.is_some() { ranks } else { 1 }],
                counts: vec![0; slots],
                offsets: vec![0; slots],
                contributors: RankSet::empty(plan.ranks),
                held: if plan.absent == Absent::Hold { vec![FIRST_HELD; ranks] } else { Vec::new() },
            })
        };
        plan.has_memory().then(registers)
    }

    /// Finds the groups that move in a round, the next one to land.
    pub(super) fn begin(&mut self, round: u64, cx: &mut Context) {
        if self.round == round {
            return;
        }
        let Registers { members, ends, contributors, .. } = self;
        self.round = round;
        members.clear();
        ends.clear();
        contributors.clear();
        cx.ledger.cut(round).contributions().for_each(|entry| contributors.insert(entry.rank));
        let (plan, active) = (&cx.plan, cx.ledger.active_in(round));
        let moves =
            |group: &[u32]| group.iter().any(|&rank| contributors.contains(rank)) || plan.fault(Fault::MoveIdleGroup);
        let by_rank = plan.fault(Fault::ScheduleByRank);
        let partition = plan.partition(round, if by_rank { plan.ranks } else { active.len() });
        for group in 0..partition.map_or(1, |partition| partition.groups()) {
            let first = members.len();
            match partition {
                None => members.extend(active.iter()),
                Some(partition) => {
                    members.extend(partition.members(group));
                    members[first..].sort_unstable();
                    if by_rank {
                        let left = |rank: &u32| active.contains(*rank);
                        let kept: Vec<u32> = members.drain(first..).filter(left).collect();
                        members.extend(kept);
                    } else {
                        active.replace_positions(&mut members[first..]);
                    }
                }
            }
            if moves(&members[first..]) {
                ends.push(members.len());
            } else {
                members.truncate(first);
            }
        }
    }

    /// Returns the number of groups that move in the round.
    pub(super) fn groups(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Returns where a group begins among all members.
    fn first(&self, group: usize) -> usize {
        group.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Returns the members of a group, ascending.
    fn members(&self, group: usize) -> &[u32] {
        &self.members[self.first(group)..self.ends[group]]
    }

    /// Returns the first segment that a rank should move, where each group has `segments` segments: one of its own
    /// group, if that group moves, and not the same as that of other members.
    pub(super) fn own_segment(&self, rank: u32, segments: u64) -> Option<u64> {
        let at = self.members.iter().position(|&member| member == rank)?;
        let group = self.ends.partition_point(|&end| end <= at);
        let place = (at - self.first(group)) as u64 * segments / self.members(group).len() as u64;
        Some(group as u64 * segments + place)
    }

    fn count(&self, rank: u32) -> u64 {
        self.written[if self.butterfly.is_some() { rank as usize } else { 0 }]
    }

    /// Returns the offsets of a group's new registers on a host.
    pub(super) fn goals(&self, group: usize, host: u32, plan: &Plan) -> impl Iterator<Item = usize> {
        let most = if self.butterfly.is_some() { usize::MAX } else { 1 };
        let here = self.members(group).iter().filter(move |&&rank| plan.host_of(rank) == host);
        here.take(most).map(|&rank| plan.register(rank, self.count(rank) + 1))
    }

    /// Returns the number of registers to average, and the sources: first these registers, each with its rank and its
    /// offset on that rank's host, then the updates.
    pub(super) fn sources<'a>(
        &'a self,
        group: usize,
        cut: &'a Cut,
        plan: &'a Plan,
    ) -> (usize, impl Iterator<Item = (u32, usize, Option<Entry>)> + 'a) {
        // Where all ranks average, the register of this host serves all ranks.
        let alone = [plan.me];
        let (members, holds) = (self.members(group), !self.held.is_empty());
        let all = self.butterfly.is_none();
        let models = if all && !holds { alone.len() } else { members.len() };
        let own = alone.into_iter().filter(move |_| all && !holds);
        let each = members.iter().copied().filter(move |_| !all || holds);
        let registers = own.chain(each).map(move |rank| match self.held.get(rank as usize) {
            Some(&held) => (rank, plan.contribution(rank, newest(rank, cut).unwrap_or(held)), None),
            None => (rank, plan.register(rank, self.count(rank)), None),
        });
        let of_members = members.iter().filter(move |_| !all).flat_map(move |&rank| cut.of(rank));
        let updates = cut.contributions().filter(move |_| all).chain(of_members);
        let updates = updates.filter(move |entry| entry.part != Part::Leaving && !holds);
        let updates = updates.map(move |entry| (entry.rank, plan.contribution(entry.rank, entry.buffer), Some(entry)));
        (models, registers.chain(updates))
    }

    /// Averages `len` bytes of a group's registers, from byte `from` on, and adds the updates of its members. `read`
    /// returns the location of a source that was read from another host, given its number among all sources.
    pub(super) fn average(
        &self,
        group: usize,
        cut: &Cut,
        (from, len): (usize, usize),
        read: impl Fn(usize) -> Place,
        (plan, outbox): (&Plan, &mut Outbox),
    ) {
        let (models, sources) = self.sources(group, cut, plan);
        let inputs = sources.enumerate().map(|(number, (rank, at, entry))| {
            let here = plan.host_of(rank) == plan.host();
            Addend { at: if here { Place::Here(at + from) } else { read(number) }, entry }
        });
        let mut goals = self.goals(group, plan.host(), plan);
        let to = goals.next().map_or(plan.transit(), |goal| goal + from);
        outbox.average((models, inputs), self.divisor(group, plan), (to, len));
        for goal in goals {
            outbox.push(Op::Copy { from: to, to: goal + from, len });
        }
    }

    /// Returns the number of ranks that share the sum of a group.
    fn divisor(&self, group: usize, plan: &Plan) -> u32 {
        let members = self.members(group);
        match plan.fault(Fault::WrongDivisor) {
            true => members.iter().filter(|&&rank| self.contributors.contains(rank)).count() as u32,
            false => members.len() as u32,
        }
    }

    /// Returns the value of this host's count of segments when the round has landed.
    pub(super) fn expected(&self, plan: &Plan) -> u64 {
        self.counts[plan.slot(self.round)] + self.groups() * plan.segments()
    }

    /// Notes that the round has landed: the registers of the groups that moved are new.
    pub(super) fn land(&mut self, cx: &mut Context) {
        let plan = &cx.plan;
        let slot = plan.slot(self.round);
        self.counts[slot] = self.expected(plan);
        if !self.held.is_empty() && !plan.fault(Fault::HoldOldTag) {
            let cut = cx.ledger.cut(self.round);
            cut.contributions().for_each(|entry| self.held[entry.rank as usize] = entry.buffer);
        }
        match self.butterfly {
            None => self.written[0] += self.groups(),
            Some(_) => {
                for &rank in &self.members {
                    let forgotten = plan.fault(Fault::ForgetRegister) && !self.contributors.contains(rank);
                    self.written[rank as usize] += u64::from(!forgotten);
                }
            }
        }
        self.offsets[slot] = plan.register(plan.me, self.count(plan.me));
        cx.stats.groups += self.groups();
        cx.stats.idle += u64::from(!self.members.contains(&plan.me));
    }

    /// Returns the offset of this rank's register after a round that has landed.
    pub(super) fn offset(&self, round: u64, plan: &Plan) -> usize {
        self.offsets[plan.slot(round)]
    }
}

/// Returns the buffer of the newest contribution of a rank in a cut.
fn newest(rank: u32, cut: &Cut) -> Option<u32> {
    cut.of(rank).filter(|entry| entry.part != Part::Leaving).last().map(|entry| entry.buffer)
}
