//! What the lowest rank of a host does for all of its ranks: it closes their leaf, and relays.
//!
//! An outcome contains a part of every host with active ranks. So an agent that has it knows that all have closed their
//! leaf of that round, and that all have the outcome of the round before. No agent has to ask whether it may write to
//! another host: the data of three rounds lies apart, and when an agent closes its leaf, its writes for the round before
//! the last have completed, and so have all writes of the hosts that left with that round. A host that leaves announces
//! when that is so. Activations go out before the leaf closes, so there are cells for one round more, and for every slot
//! of the ring: their acks may come late.
//!
//! Under a partial rule a round starts only if every host has a slot for its outcome, and no rank there reads what the
//! slot held, not even one that has left. A host without a free slot reports that in the label of the round before, and
//! notifies all hosts when it has one, before it closes its leaf again.
//!
//! Where arrivals must be counted, a host tells the round's counter how many of its ranks are there. The hosts count in
//! turn. One report at a time is under way to a host, so an older one cannot land last.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::super::super::context::Context;
use super::super::super::input::{Cells, Effort, FOREVER, Time};
use super::super::super::op::{Awaited, Counted, Op, ProgramOp};
use super::super::super::outbox::Outbox;
use super::super::super::plan::Plan;
use super::super::{condition, has_shown, insert_absent};
use super::leaf::{Leaf, Present};
use super::sent::{Report, gathered, relayed, relayed_in, signalled_in};
use crate::fabric::Change;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::{Condition, Grace};
use crate::trigger::{Act, Buffer, Progress, Request, Start, Table};

/// The agent of a host: its leaf, its table, and its progress in the next round.
#[derive(Clone)]
pub(super) struct Agent {
    start: Start,
    leaf: Leaf,
    /// The hosts with active ranks, in the order of the table.
    members: Vec<u32>,
    table: Table,
    progress: Progress,
    /// The leaf is announced as closed, and its tags are not taken yet.
    closing: bool,
    /// Hosts that had no free slot for the next round when they closed their last leaf.
    without_slot: Vec<u32>,
    /// Hosts that left and have not announced that they have nothing in flight, with the round in which they left.
    departed: Vec<(u32, u64)>,
    /// The round for which this host still has to announce a free slot.
    unsaid: Option<u64>,
    /// The newest round for which it has announced one.
    said: u64,
    /// Ranks are here, and this host has no free slot.
    lacks_room: bool,
    /// Ranks have waited for the next round because a host has no free slot.
    waited: bool,
    /// The rank whose arrival starts the next round, if this host starts it.
    initiator: Option<u32>,
    /// What the counter of the next round was told last.
    reported: u64,
    /// When the next round closes even if ranks are missing.
    close_by: Option<Time>,
    /// Where this host counts: when the grace ends.
    close_at: Option<Time>,
}

impl Hash for Agent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The table follows from the members.
        let Agent { leaf, members, progress, closing, without_slot, departed, unsaid, said, .. } = self;
        (leaf, members, progress, closing, without_slot, departed).hash(state);
        (unsaid, said, self.lacks_room, self.initiator, self.reported, self.close_by, self.close_at).hash(state);
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Agent { members, progress, leaf, without_slot, unsaid, initiator, .. } = self;
        let waits = (progress, leaf, without_slot, unsaid, initiator);
        f.debug_tuple("Agent").field(members).field(&waits).finish()
    }
}

/// Returns the table of this host among those with active ranks.
fn table(plan: &Plan, start: Start, members: &[u32]) -> Table {
    let request = Request {
        ranks: members.len() as u32,
        start,
        schedule: plan.schedule,
        radix: plan.radix,
        bytes: plan.bytes as u64,
        chunk: 0,
        slots: plan.slots(),
    };
    let number = members.iter().position(|&host| host == plan.host()).expect("a host with active ranks is a member");
    Table::new(&request, number as u32, plan.inputs())
}

/// Returns whether a rank of a host is active.
fn is_active(host: u32, Context { plan, ledger, .. }: &Context) -> bool {
    if plan.fault(Fault::LeaveWithAgent) {
        return ledger.active().contains(plan.topology.leader(host));
    }
    plan.topology.ranks_of(host).iter().any(|&rank| ledger.active().contains(rank))
}

impl Agent {
    pub(super) fn new(plan: &Plan) -> Self {
        let start = Start::of(plan.fire, plan.grace, plan.ranks);
        let members: Vec<u32> = (0..plan.topology.hosts()).collect();
        let table = table(plan, start, &members);
        Agent {
            start,
            leaf: Leaf::new(plan),
            without_slot: Vec::with_capacity(members.len()),
            members,
            progress: table.begin(),
            table,
            closing: false,
            departed: Vec::new(),
            unsaid: None,
            said: 0,
            lacks_room: false,
            waited: false,
            initiator: None,
            reported: 0,
            close_by: None,
            close_at: None,
        }
    }

    /// Returns whether other ranks need this agent: a rank of its host is active.
    pub(super) fn is_needed(cx: &Context) -> bool {
        is_active(cx.plan.host(), cx)
    }

    /// Returns whether no other rank needs this agent, and no host that left will write to this one any more, or notify
    /// it.
    pub(super) fn has_served(&self, cx: &Context) -> bool {
        self.departed.is_empty() && (!Agent::is_needed(cx) || cx.plan.fault(Fault::LeaveHostAlone))
    }

    pub(super) fn lacks_room(&self) -> bool {
        self.lacks_room
    }

    pub(super) fn next_timer(&self) -> Time {
        let times = [self.close_by, self.close_at].into_iter().flatten();
        times.min().filter(|_| !self.is_activated()).unwrap_or(Time::MAX)
    }

    fn is_activated(&self) -> bool {
        self.table.is_activated(&self.progress)
    }

    /// Returns whether the outcome of the next round is complete.
    pub(super) fn has_outcome(&mut self, cx: &Context, cells: &impl Cells) -> bool {
        let early = cx.plan.fault(Fault::CompleteEarly) && self.table.has_run(&self.progress);
        early || self.table.is_complete(&mut self.progress, is_given(cx.ledger.open(), cx, cells))
    }

    /// Notes that a round has fired, and which hosts had no free slot for the next one.
    pub(super) fn fired(&mut self, round: u64, without_slot: impl Iterator<Item = u32>, cx: &mut Context) {
        self.without_slot.clear();
        // Cells that another host writes may hold anything.
        self.without_slot.extend(without_slot.filter(|&host| host < cx.plan.topology.hosts()));
        if cx.ledger.leavers().iter().next().is_some() {
            let departed = self.departed.len();
            let Agent { members, departed: gone, .. } = self;
            members.retain(|&host| {
                let stays = is_active(host, cx);
                gone.extend((!stays).then_some((host, round)));
                stays
            });
            match members.contains(&cx.plan.host()) {
                true if self.departed.len() > departed && !cx.plan.fault(Fault::KeepOldTable) => {
                    self.table = table(&cx.plan, self.start, &self.members);
                }
                true => {}
                // Hosts that leave together send each other nothing.
                false => self.departed.truncate(departed),
            }
        }
        self.table.begin_again(&mut self.progress);
        self.leaf.begin();
        (self.initiator, self.reported, self.close_by, self.close_at, self.waited) = (None, 0, None, None, false);
        let plan = &cx.plan;
        if plan.topology.is_shared(plan.host()) {
            cx.outbox.push(Op::Store { cell: plan.landed(), value: round });
            if !plan.fault(Fault::ForgetToTellHost) {
                cx.outbox.wake(u32::MAX, Awaited::Outcome);
            }
        }
    }

    /// Does all that is due; returns the round whose leaf it has closed, if it has closed one. `grace`: how long a round
    /// stays open after it could have closed.
    pub(super) fn work(&mut self, effort: Effort, grace: Time, cx: &mut Context, cells: &impl Cells) -> Option<u64> {
        let is_here = |&(host, _): &(u32, u64)| cells.load(cx.plan.released(cx.plan.topology.leader(host))) != FOREVER;
        let before = self.departed.len();
        self.departed.retain(|departed| is_here(departed) && !cx.plan.fault(Fault::ForgetDeparted));
        if self.departed.len() < before {
            cx.outbox.note();
        }
        if !Agent::is_needed(cx) {
            self.lacks_room = false;
            return None;
        }
        let round = cx.ledger.open();
        self.say_room(cx, cells);
        if !self.is_activated() {
            self.consider(round, grace, cx, cells);
        }
        let mut closed = None;
        while !changes_memory(&cx.outbox) {
            let Some(row) = self.table.next(&mut self.progress, is_given(round, cx, cells)) else { break };
            if !self.run(row, round, effort, cx, cells) {
                break;
            }
            if matches!(self.table.row(row).act, Act::Seal { .. }) {
                closed = Some(round);
            }
        }
        closed
    }

    // The start of a round.

    /// Starts the round if this host may, or tells its counter which ranks are here.
    fn consider(&mut self, round: u64, grace: Time, cx: &mut Context, cells: &impl Cells) {
        let condition = condition(cx);
        let here = self.leaf.count(round, (cx.ledger.active(), condition), &cx.plan, cells);
        let counts = matches!(self.start, Start::Count(_)) && self.counter(round, &cx.plan) == cx.plan.host();
        if here.count == 0 && !counts {
            return;
        }
        if !self.has_room(round, cx, cells) {
            cx.stats.full_ring += u64::from(here.count > 0 && !std::mem::replace(&mut self.waited, here.count > 0));
            return;
        }
        if here.count > 0 && self.has_expired(round, cx) {
            cx.stats.deadlines_expired += 1;
            return self.initiate(here.last, cx);
        }
        match self.start {
            Start::Everybody if here.count == active_here(cx).count() as u32 => {
                self.table.activate(&mut self.progress);
                cx.outbox.note();
            }
            Start::First => self.initiate(here.last, cx),
            Start::Designated if condition == Condition::Rank(here.last) => self.initiate(here.last, cx),
            Start::Everybody | Start::Designated => {}
            Start::Count(_) if counts => self.count(round, (here, condition), grace, cx, cells),
            Start::Count(_) => self.report(round, here, cx),
        }
    }

    /// Starts the round.
    fn initiate(&mut self, initiator: u32, cx: &mut Context) {
        self.initiator = Some(initiator);
        self.table.activate(&mut self.progress);
        cx.stats.initiated += 1;
        cx.outbox.note();
    }

    /// Returns whether the time is over after which the round closes although ranks are missing. It begins when a rank
    /// is here and all hosts have a free slot.
    fn has_expired(&mut self, round: u64, Context { plan, now, .. }: &Context) -> bool {
        let limit = plan.fire.limit().filter(|_| !plan.is_full(round));
        let Some(limit) = limit else { return false };
        let limit = limit.as_nanos() as Time;
        let limit = if plan.fault(Fault::HastyDeadline) { limit / 2 } else { limit };
        *now >= *self.close_by.get_or_insert(now.saturating_add(limit))
    }

    /// Returns the host that counts the arrivals for a round.
    fn counter(&self, round: u64, plan: &Plan) -> u32 {
        let round = if plan.fault(Fault::CountForItself) { round + u64::from(plan.host()) } else { round };
        self.members[(round % self.members.len() as u64) as usize]
    }

    /// Tells the counter how many ranks are here, if it does not know and no earlier report is under way to it.
    fn report(&mut self, round: u64, Present { count, last }: Present, cx: &mut Context) {
        let (counter, plan) = (self.counter(round, &cx.plan), &cx.plan);
        let count = if plan.fault(Fault::CountBeforeTag) { count + 1 } else { count };
        let value = Report { round, count, last: plan.topology.index_on_host(last) }.cell();
        let is_under_way = cx.outbox.has_towards(Counted::Report, counter);
        if value == self.reported || (is_under_way && !plan.fault(Fault::SendReportsTogether)) {
            return;
        }
        self.reported = value;
        cx.stats.relayed += 1;
        cx.outbox.signal(Counted::Report, counter, None, (plan.report(round, plan.host()), Change::Set(value)));
    }

    /// Starts the round if enough ranks have arrived.
    fn count(
        &mut self,
        round: u64,
        (here, condition): (Present, Condition),
        grace: Time,
        cx: &mut Context,
        cells: &impl Cells,
    ) {
        let (plan, all) = (&cx.plan, cx.ledger.active().len());
        let (mut total, mut completes) = (0, None);
        for &host in &self.members {
            let Some(Present { count, last }) = self.present(round, host, here, plan, cells) else { continue };
            total += count;
            let fires = match condition {
                Condition::Count(least) => total >= least.min(all),
                Condition::Rank(drawn) => last == drawn,
                Condition::Full => total == all,
            };
            completes = completes.or(fires.then_some(last));
        }
        let Some(initiator) = completes else { return };
        if self.close_at.is_none() {
            self.initiator = Some(initiator);
            self.close_at = Some(cx.now.saturating_add(grace));
            cx.outbox.note();
        }
        if total == all || self.close_at.is_some_and(|close_at| cx.now >= close_at) {
            cx.stats.graces_expired += u64::from(total < all && plan.grace != Grace::NONE);
            self.close_at = None;
            self.table.activate(&mut self.progress);
            cx.outbox.note();
        }
    }

    /// Returns the ranks of a host that are there for a round, as far as this host knows; `None` if there are none.
    fn present(&self, round: u64, host: u32, here: Present, plan: &Plan, cells: &impl Cells) -> Option<Present> {
        if host == plan.host() {
            return Some(here).filter(|here| here.count > 0);
        }
        let round = if plan.fault(Fault::CountOldReports) { round.max(2) - 1 } else { round };
        let Report { count, last, .. } = Report::of_round(round, cells.load(plan.report(round, host)))?;
        // A cell that another host writes may hold anything.
        let last = plan.topology.ranks_of(host).get(last as usize).copied()?;
        Some(Present { count, last })
    }

    // Room for the outcome of a round.

    /// Returns the newest round that all ranks of this host have released, also those that have left.
    fn released_here(&self, cx: &Context, cells: &impl Cells) -> u64 {
        let Context { plan, ledger, .. } = cx;
        let own = if ledger.reads_no_more() { FOREVER } else { ledger.released() };
        let ranks = plan.topology.ranks_of(plan.host()).iter();
        let counts = |rank: &&u32| !plan.fault(Fault::ForgetReadersThatLeft) || ledger.active().contains(**rank);
        let released = |&rank: &u32| if rank == plan.me { own } else { cells.load(plan.released(rank)) };
        ranks.filter(counts).map(released).min().unwrap_or(FOREVER)
    }

    /// Returns whether every host has a free slot for a round, which is the next one.
    fn has_room(&mut self, round: u64, cx: &mut Context, cells: &impl Cells) -> bool {
        if cx.plan.fault(Fault::StartWithoutRoom) {
            return true;
        }
        let here = self.released_here(cx, cells) >= round.saturating_sub(cx.plan.depth);
        self.note_room(here, cx);
        // Other hosts take part in a synchronous round when they have room.
        here && (self.start == Start::Everybody || self.hosts_without_room(round, cx, cells).next().is_none())
    }

    /// Notes whether this host has a free slot for what it has to do.
    fn note_room(&mut self, has_room: bool, cx: &mut Context) {
        if self.lacks_room == has_room {
            self.lacks_room = !has_room;
            // Otherwise this rank may be about to sleep until something else happens.
            cx.outbox.note();
        }
    }

    /// Returns the other hosts without a free slot for a round, as far as this host knows.
    fn hosts_without_room<'a>(
        &'a self,
        round: u64,
        cx: &'a Context,
        cells: &'a impl Cells,
    ) -> impl Iterator<Item = u32> + 'a {
        let plan = &cx.plan;
        let others = self.without_slot.iter().copied().filter(|&host| host != plan.host() && is_active(host, cx));
        others.filter(move |&host| cells.load(plan.released(plan.topology.leader(host))) < round)
    }

    /// Announces a free slot to all hosts, for the round that they may be waiting to start.
    fn say_room(&mut self, cx: &mut Context, cells: &impl Cells) {
        let Some(round) = self.unsaid else { return };
        let has_room = self.released_here(cx, cells) >= round.saturating_sub(cx.plan.depth);
        self.note_room(has_room, cx);
        if !has_room {
            return;
        }
        if cx.plan.fault(Fault::SayRoomLate) && !self.table.is_sealed(&self.progress) {
            return;
        }
        self.unsaid = None;
        if cx.plan.fault(Fault::ForgetRoom) {
            return;
        }
        let change = Change::advance(std::mem::replace(&mut self.said, round), round);
        let cell = cx.plan.released(cx.plan.me);
        for &host in self.members.iter().filter(|&&host| host != cx.plan.host()) {
            cx.outbox.signal(Counted::Notice, host, None, (cell, change));
        }
    }

    // The rows of the table.

    /// Runs a row; returns whether that was possible.
    fn run(&mut self, row: usize, round: u64, effort: Effort, cx: &mut Context, cells: &impl Cells) -> bool {
        match self.table.row(row).act {
            Act::Signal | Act::Put { .. } => {}
            Act::Seal { parts } => {
                if !self.is_closed(round, cx, cells) {
                    return false;
                }
                self.seal(round, parts, cx, cells);
            }
            Act::Sum { .. } if effort == Effort::Nothing => return false,
            Act::Sum { from, to, parts } => {
                cx.outbox.program(ProgramOp::Sum { round, from, to, parts });
            }
        }
        let signals = self.table.row(row).signals.len();
        for index in 0..signals {
            let table = self.table.row(row);
            let (number, cell) = table.signals[index];
            let is_active = |number| self.table.takes_part(number, is_given(round, cx, cells));
            if table.activates && (is_active(number) || cx.plan.fault(Fault::ForgetForward)) {
                continue;
            }
            let data = match table.act {
                Act::Put { from, .. } if from.buffer == Buffer::Outcome && !from.chunk.is_whole() => {
                    gathered(from.chunk, round, &cx.plan)
                }
                Act::Put { from, to } => Some(relayed(from, to, round, &cx.plan, cells)),
                _ => None,
            };
            cx.stats.activations += u64::from(table.activates);
            cx.stats.relayed += 1;
            let counted = if data.is_some() { relayed_in(round) } else { signalled_in(round) };
            let cell = cx.plan.input_cell(round, cell);
            cx.outbox.signal(counted, self.members[number as usize], data, (cell, Change::Set(round)));
        }
        cx.stats.operations += 1;
        self.table.ran(row, &mut self.progress);
        cx.outbox.note();
        true
    }

    /// Returns whether the writes for the round before the last have completed, so that the leaf may close.
    fn has_settled(&self, round: u64, cx: &Context) -> bool {
        let is_under_way = |before: u64, counted: fn(u64) -> Counted| {
            round > before && cx.outbox.has(counted(round - before)) && !cx.plan.fault(Fault::SealEarly)
        };
        // Acks of activations take longest: a host may have nothing else to send to the host that activated it.
        let own = is_under_way(2, relayed_in) || is_under_way(cx.plan.signalled_rounds(), signalled_in);
        !own && self.departed.iter().all(|&(_, left)| left + 2 > round)
    }

    /// Announces the leaf as closed, if it may close, and returns whether that has taken effect.
    fn is_closed(&mut self, round: u64, cx: &mut Context, cells: &impl Cells) -> bool {
        if self.closing {
            return true;
        }
        if !self.has_settled(round, cx) {
            return false;
        }
        // Its label may say that there is no room for the next round, and what is unsaid would be forgotten.
        self.say_room(cx, cells);
        cx.outbox.push(Op::Store { cell: cx.plan.closed(), value: round });
        if !cx.plan.topology.is_shared(cx.plan.host()) {
            // This rank alone shows tags here, and it looks after this.
            return true;
        }
        cx.outbox.push(Op::Fence);
        self.closing = true;
        cx.plan.fault(Fault::TakeBeforeClosing)
    }

    /// Takes the tags of the closed leaf as this host's part in the round.
    fn seal(&mut self, round: u64, parts: u8, cx: &mut Context, cells: &impl Cells) {
        self.closing = false;
        let needed = (round + 1).saturating_sub(cx.plan.depth);
        // A synchronous round waits for this host, which takes part when it has a free slot.
        let without_slot = self.start != Start::Everybody && self.released_here(cx, cells) < needed;
        self.unsaid = without_slot.then_some(round + 1);
        let (initiator, pieces) = (self.initiator, self.table.whole().of);
        let Context { plan, ledger, outbox, .. } = cx;
        if plan.fault(Fault::CloseTwice) {
            self.leaf.take(round, ledger.active(), plan, cells, |_| {});
        }
        if plan.fault(Fault::LandOnSealing) {
            outbox.push(Op::Store { cell: plan.landed(), value: round });
        }
        outbox.seal(
            |entries| self.leaf.take(round, ledger.active(), plan, cells, |entry| entries.push(entry)),
            |entries| ProgramOp::Seal { round, entries, initiator, without_slot, pieces, parts },
        );
    }

    /// Adds the ranks that the next round waits for, as far as this agent can know.
    pub(super) fn awaited(&self, cx: &Context, cells: &impl Cells, missing: &mut RankSet) {
        let (plan, round) = (&cx.plan, cx.ledger.open());
        let leader = |host: u32| plan.topology.leader(host);
        if self.table.is_sealed(&self.progress) {
            let numbers = self.table.awaited(&self.progress);
            return numbers.for_each(|number| missing.insert(leader(self.members[number as usize])));
        }
        if self.is_activated() {
            let settling = self.departed.iter().filter(|&&(_, left)| left + 2 <= round);
            return settling.for_each(|&(host, _)| missing.insert(leader(host)));
        }
        if !Agent::is_needed(cx) {
            return self.departed.iter().for_each(|&(host, _)| missing.insert(leader(host)));
        }
        let needed = round.saturating_sub(plan.depth);
        let holds = |rank: &u32| *rank != plan.me && cells.load(plan.released(*rank)) < needed;
        let here = plan.topology.ranks_of(plan.host()).iter().copied();
        here.filter(holds).for_each(|rank| missing.insert(rank));
        self.hosts_without_room(round, cx, cells).for_each(|host| missing.insert(leader(host)));
        if !missing.is_empty() {
            return;
        }
        match (condition(cx), self.start) {
            (_, Start::Everybody) => active_here(cx)
                .filter(|&rank| !has_shown(rank, round, plan, cells))
                .for_each(|rank| missing.insert(rank)),
            (_, Start::Count(_)) if self.counter(round, plan) == plan.host() => {
                let count = |host: u32| {
                    Report::of_round(round, cells.load(plan.report(round, host))).map_or(0, |report| report.count)
                };
                let active = |host: u32| {
                    plan.topology.ranks_of(host).iter().filter(|&&rank| cx.ledger.active().contains(rank)).count()
                };
                // Which ranks of another host are missing, its agent knows.
                let is_here = |rank: u32| match plan.host_of(rank) {
                    host if host == plan.host() => self.leaf.has_counted(rank, plan),
                    host => rank != leader(host) || count(host) as usize >= active(host),
                };
                insert_absent(is_here, cx, missing);
            }
            (_, Start::Count(_)) => missing.insert(leader(self.counter(round, plan))),
            (Condition::Rank(rank), _) => missing.insert(rank),
            _ => {}
        }
    }
}

/// Returns the active ranks of this host.
fn active_here(Context { plan, ledger, .. }: &Context) -> impl Iterator<Item = u32> {
    plan.topology.ranks_of(plan.host()).iter().copied().filter(|&rank| ledger.active().contains(rank))
}

/// Returns whether an operation is about to change what the next row reads.
fn changes_memory(outbox: &Outbox) -> bool {
    outbox.newest().is_some_and(|op| matches!(op, Op::Program(ProgramOp::Seal { .. } | ProgramOp::Sum { .. })))
}

/// Returns a function that reports whether another host has given an input for a round.
fn is_given(round: u64, cx: &Context, cells: &impl Cells) -> impl Fn(usize) -> bool {
    move |input| cells.load(cx.plan.input_cell(round, input)) >= round
}
