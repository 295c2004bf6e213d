//! One rank: the stages of an arrival, from the ticket to the release.

mod closer;

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use super::isolation::Window;
use super::op::Op;
use super::plan::Plan;
use super::record::{Cut, Member, Record};
#[cfg(all(test, not(loom)))]
use super::word::Seat;
use super::word::{self, Duty, Ticket};
use super::{Stats, claim};
use crate::collective::core::{Cells, Time};
use crate::fabric::Atomic;
use crate::fault::Fault;

/// How far an arrival is. Stages that wait for other ranks are left by a poll, the others when their operation is
/// complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// There is none.
    Idle,
    /// Waits until the group that had the own register last is over.
    AwaitRegister,
    /// Claims the own register.
    Claiming,
    /// Says that this rank leaves.
    Departing,
    /// Draws a ticket.
    Drawing,
    /// Names the group in the claim on the own register.
    Naming,
    /// Waits until the record is free for the group.
    AwaitRecord,
    /// Writes the entry.
    Showing,
    /// Closes a group that cannot fill.
    ClosingEarly,
    /// Waits for the cut, or for the deadline.
    Open,
    /// Closes a group whose deadline is over, if the tickets are still these.
    Expiring { word: u64 },
    /// Closer: waits for the entries.
    Gathering { seats: u32 },
    /// Closer: claims the register of a lender.
    Borrowing { seats: u32, lender: u32, claim: u64 },
    /// Closer: publishes the cut.
    Publishing,
    /// Takes a segment that no member has begun to move.
    Taking,
    /// Moves it.
    Moving,
    /// Counts it.
    Counting,
    /// Waits for the segments that other members move.
    AwaitMoved,
    /// Counts the release.
    Releasing,
    /// The last release: readies the counts of segments for the record's next turn.
    Clearing,
    /// Begins the record's next turn.
    Ending,
    /// The caller may take the cut.
    Over,
    /// This rank left.
    Left,
}

/// What happens to a group, and ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) group: u64,
    /// One of its entries is there, which its closer waits for.
    pub(super) is_entry: bool,
}

/// One rank's part of the protocol. See the module.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    plan: Arc<Plan>,
    stage: Stage,
    /// What the driver is to carry out.
    op: Option<Op>,
    /// The own entry.
    member: Member,
    ticket: Ticket,
    /// When this rank closes its group.
    expires_at: Option<Time>,
    /// What the claim on the own register held when this rank last knew it.
    claim: u64,
    /// Closer: how many entries have been seen.
    seen: u32,
    /// Closer: ranks whose registers could not be had.
    refused: Vec<u32>,
    window: Window,
    cut: Cut,
    stats: Stats,
}

impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The plan is the same for ever, what was counted changes nothing, and the window is made anew for each use.
        let Machine { stage, op, member, ticket, expires_at, claim, seen, refused, cut, .. } = self;
        (stage, op, member, ticket, expires_at, claim, seen, refused, cut).hash(state);
    }
}

impl Machine {
    pub(crate) fn new(plan: Plan) -> Self {
        let window = Window::new(if plan.lends() { plan.ranks() } else { 0 });
        Machine {
            plan: Arc::new(plan),
            stage: Stage::Idle,
            op: None,
            member: Member::default(),
            ticket: Ticket::default(),
            expires_at: None,
            claim: 0,
            seen: 0,
            refused: Vec::new(),
            window,
            cut: Cut::default(),
            stats: Stats::default(),
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stats
    }

    /// Hands in a contribution that lies in a buffer. There must be no outstanding arrival.
    pub(crate) fn arrive(&mut self, now: Time, buffer: u32, iteration: u64, weight: u16) {
        self.begin(now, Member { rank: self.plan.me(), buffer, iteration, weight, leaving: false });
    }

    /// Hands in the last, empty arrival.
    pub(crate) fn finish(&mut self, now: Time, iteration: u64) {
        self.begin(now, Member { rank: self.plan.me(), buffer: 0, iteration, weight: 0, leaving: true });
    }

    fn begin(&mut self, now: Time, member: Member) {
        debug_assert_eq!(self.stage, Stage::Idle);
        self.member = member;
        self.expires_at = self.plan.deadline().map(|limit| now.saturating_add(limit));
        self.seen = 0;
        self.refused.clear();
        self.stats.arrivals += 1;
        if self.plan.lends() {
            self.stage = Stage::AwaitRegister;
        } else {
            self.enter();
        }
    }

    /// Takes the operation that is to be carried out. [`Machine::complete`] follows.
    pub(crate) fn next_op(&mut self) -> Option<Op> {
        self.op.take()
    }

    /// The operation that is to be carried out.
    #[cfg(all(test, not(loom)))]
    pub(super) fn peek_op(&self) -> Option<&Op> {
        self.op.as_ref()
    }

    /// Does what waits for other ranks, as far as the cells say that it can be done; whether that was anything. An
    /// operation that is to be carried out, or in flight, goes first.
    pub(crate) fn poll(&mut self, now: Time, cells: &impl Cells) -> bool {
        let (stage, seen) = (self.stage, self.seen);
        match stage {
            Stage::AwaitRegister if claim::has_ended(self.claim, &self.plan, cells) => {
                let atomic = Atomic::CompareSwap { expect: self.claim, new: claim::INSIDE };
                self.change_own_claim(atomic, Stage::Claiming);
            }
            Stage::AwaitRecord => self.show(cells),
            Stage::Open => self.look(now, cells),
            Stage::Gathering { seats } => self.gather(seats, cells),
            Stage::AwaitMoved if self.has_moved(cells) => self.release(),
            _ => {}
        }
        (self.stage, self.seen) != (stage, seen)
    }

    /// The operation is complete; `found` is the value before, for an atomic.
    pub(crate) fn complete(&mut self, found: u64) {
        match self.stage {
            Stage::Claiming if found == self.claim => self.enter(),
            Stage::Claiming => {
                // Another group has borrowed it since.
                self.stats.lent += 1;
                self.claim = found;
                self.stage = Stage::AwaitRegister;
            }
            Stage::Departing => self.draw(),
            Stage::Drawing => self.drawn(found),
            Stage::Naming => self.stage = Stage::AwaitRecord,
            Stage::Showing => self.entry_is_there(),
            Stage::ClosingEarly => self.closing_answered(found),
            Stage::Expiring { word } => self.expiry_answered(word, found),
            Stage::Borrowing { lender, claim, .. } if found == claim => self.borrow(lender),
            Stage::Borrowing { seats, lender, .. } => {
                // It has arrived, or another group has its register.
                self.refused.push(lender);
                self.stage = Stage::Gathering { seats };
            }
            Stage::Publishing => self.formed(),
            Stage::Taking if found < self.plan.segments() => {
                self.ask(Op::Combine { group: self.cut.group, segment: found }, Stage::Moving);
            }
            Stage::Taking => self.stage = Stage::AwaitMoved,
            Stage::Moving => self.count_in_record(Record::moved, Stage::Counting),
            Stage::Counting => {
                self.stats.segments += 1;
                self.count_in_record(Record::taken, Stage::Taking);
            }
            Stage::Releasing => self.released(found),
            Stage::Clearing => self.write(self.plan.record(self.cut.group).end(), false, Stage::Ending),
            Stage::Ending => self.stage = Stage::Over,
            _ => debug_assert!(false, "no operation was in flight"),
        }
    }

    /// Whether the group that the outstanding arrival is in has moved, and this rank has released it.
    pub(crate) fn is_ready(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Ends an arrival that is ready: its group.
    pub(crate) fn take(&mut self) -> &Cut {
        debug_assert!(self.is_ready());
        self.stage = if self.member.leaving { Stage::Left } else { Stage::Idle };
        &self.cut
    }

    /// The group that is moving, or was moved last.
    pub(crate) fn cut(&self) -> &Cut {
        &self.cut
    }

    /// The seat that this rank holds: from its ticket until it has released the group.
    #[cfg(all(test, not(loom)))]
    pub(super) fn seat(&self) -> Option<Seat> {
        let has_none = matches!(
            self.stage,
            Stage::Idle
                | Stage::AwaitRegister
                | Stage::Claiming
                | Stage::Departing
                | Stage::Drawing
                | Stage::Clearing
                | Stage::Ending
                | Stage::Over
                | Stage::Left
        );
        (!has_none).then_some(self.ticket.seat)
    }

    pub(crate) fn has_left(&self) -> bool {
        self.stage == Stage::Left
    }

    /// Whether the next operation begins to move a segment.
    pub(super) fn is_to_move(&self) -> bool {
        self.op.is_some() && self.stage == Stage::Taking
    }

    /// Whether the cut of the outstanding arrival is known, so that the group needs no more ranks.
    pub(super) fn has_formed(&self) -> bool {
        matches!(
            self.stage,
            Stage::Taking
                | Stage::Moving
                | Stage::Counting
                | Stage::AwaitMoved
                | Stage::Releasing
                | Stage::Clearing
                | Stage::Ending
        )
    }

    /// Whether there is no arrival, or nothing left to do for it.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Over | Stage::Left)
    }

    /// What the machine waits for, when a poll has found nothing to do.
    pub(super) fn awaits(&self) -> Event {
        let of = |group: Option<u64>| Event { group: group.unwrap_or_default(), is_entry: false };
        let group = self.ticket.seat.group;
        match self.stage {
            Stage::AwaitRegister => of(claim::group(self.claim)),
            Stage::AwaitRecord => of(group.checked_sub(self.plan.records())),
            Stage::Gathering { .. } => Event { group, is_entry: true },
            _ => of(Some(group)),
        }
    }

    /// The cells that a poll looks at.
    pub(super) fn watches(&self) -> Range<usize> {
        let record = |group: u64| self.plan.record(group).cells(self.plan.size());
        match self.stage {
            _ if self.op.is_some() => 0..0,
            Stage::AwaitRegister => claim::group(self.claim).map_or(0..0, record),
            // It looks for a lender.
            Stage::Gathering { .. } if self.plan.lends() => 0..self.plan.cells(),
            Stage::AwaitRecord | Stage::Open | Stage::Gathering { .. } | Stage::AwaitMoved => {
                record(self.ticket.seat.group)
            }
            _ => 0..0,
        }
    }

    /// What an operation changes that ranks may wait for.
    pub(super) fn changes(&self, op: &Op) -> Option<Event> {
        let group = self.ticket.seat.group;
        match (op, self.stage) {
            (Op::StorePair { .. }, Stage::Showing) => Some(Event { group, is_entry: true }),
            (Op::StorePair { .. }, Stage::Publishing | Stage::Ending) | (Op::Atomic { .. }, Stage::Counting) => {
                Some(Event { group, is_entry: false })
            }
            _ => None,
        }
    }

    /// Ranks without which this one does not go on.
    pub(super) fn missing(&self, cells: &impl Cells) -> Vec<u32> {
        let seated = |group: u64| {
            let record = self.plan.record(group);
            (0..self.plan.size()).filter_map(move |index| record.rank_at(index, cells))
        };
        let group = self.awaits().group;
        match self.stage {
            // Those that have not released it yet are among its members.
            Stage::AwaitRegister => seated(group).collect(),
            // Its members may wait for the record themselves.
            Stage::AwaitRecord => {
                let before = std::iter::successors(Some(group), |group| group.checked_sub(self.plan.records()));
                // Each rank has one ticket at most that is not over.
                let mut recent = before.take(self.plan.ranks() as usize + 1);
                let has_record = recent.find(|&group| seated(group).next().is_some());
                has_record.into_iter().flat_map(seated).collect()
            }
            Stage::AwaitMoved => self.cut.members.iter().map(|member| member.rank).collect(),
            Stage::Idle | Stage::Over => Vec::new(),
            // It stays until all others have left, too.
            Stage::Left => self.away(&[], cells).0,
            stage => {
                let here: Vec<u32> = seated(group).collect();
                let (word, size) = (cells.load(self.plan.tickets()), self.plan.size());
                let is_whole = here.len() == size as usize;
                let (active, gone) = if is_whole { Default::default() } else { self.away(&here, cells) };
                let closes = stage == Stage::Open && (is_whole || word::groups(word, size) > group);
                // A rank says that it leaves before it draws its last ticket, and that before it shows its entry.
                let has_ticket = closes || matches!(stage, Stage::Gathering { .. });
                let leaves = has_ticket || gone.len() > word::leavers(word) as usize;
                // Of a group that takes no more members, one that is here may have to close it.
                let closers = here.into_iter().filter(|&rank| closes && rank != self.plan.me());
                closers.chain(active).chain(gone.into_iter().filter(|_| leaves)).collect()
            }
        }
    }

    /// The ranks that are not `here`: those that have not said that they leave, and the others.
    fn away(&self, here: &[u32], cells: &impl Cells) -> (Vec<u32>, Vec<u32>) {
        let is_active = |&rank: &u32| {
            let (cell, bit) = self.plan.gone(rank);
            cells.load(cell) & bit == 0
        };
        (0..self.plan.ranks()).filter(|rank| !here.contains(rank)).partition(is_active)
    }

    /// When the machine wants to be polled although nothing happened.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.expires_at.filter(|_| self.stage == Stage::Open)
    }

    fn ask(&mut self, op: Op, stage: Stage) {
        debug_assert!(self.op.is_none());
        self.op = Some(op);
        self.stage = stage;
    }

    fn change(&mut self, cell: usize, atomic: Atomic, stage: Stage) {
        self.ask(Op::Atomic { cell, atomic }, stage);
    }

    fn write(&mut self, (cell, values): (usize, [u64; 2]), seen: bool, stage: Stage) {
        self.ask(Op::StorePair { cell, values, seen }, stage);
    }

    fn change_own_claim(&mut self, atomic: Atomic, stage: Stage) {
        let rank = self.plan.me();
        self.ask(Op::Atomic { cell: self.plan.claim(rank), atomic }, stage);
    }

    /// This rank has its own register, if registers are lent.
    fn enter(&mut self) {
        if self.member.leaving {
            // Closers stop to look for this rank, at the latest when its last group has formed, and none misses it.
            let (cell, bit) = self.plan.gone(self.plan.me());
            self.change(cell, Atomic::FetchAdd(bit), Stage::Departing);
        } else {
            self.draw();
        }
    }

    fn draw(&mut self) {
        let atomic = Atomic::FetchAdd(word::addend(self.member.leaving));
        self.change(self.plan.tickets(), atomic, Stage::Drawing);
    }

    fn drawn(&mut self, before: u64) {
        self.ticket = Ticket::of(before, self.member.leaving, self.plan.ranks(), self.plan.size());
        if self.plan.lends() && !self.member.leaving {
            self.claim = claim::of(self.ticket.seat.group);
            self.change_own_claim(Atomic::CompareSwap { expect: claim::INSIDE, new: self.claim }, Stage::Naming);
        } else {
            self.stage = Stage::AwaitRecord;
        }
    }

    /// Writes the entry, if the record is free for the group.
    fn show(&mut self, cells: &impl Cells) {
        let record = self.plan.record(self.ticket.seat.group);
        if record.is_free(cells) || self.plan.fault(Fault::ReuseRecord) {
            self.write(record.entry(self.ticket.seat.index, self.member), false, Stage::Showing);
        }
    }

    fn entry_is_there(&mut self) {
        let (taken, size) = (self.ticket.seat.index + 1, self.plan.size());
        match self.ticket.duty {
            Duty::Close => self.stage = Stage::Gathering { seats: size },
            Duty::CloseEarly if !self.plan.fault(Fault::NoTail) => {
                let free = u64::from(size - taken);
                let atomic = Atomic::CompareSwap { expect: self.ticket.word, new: self.ticket.word.wrapping_add(free) };
                let careless = self.plan.fault(Fault::CloseByAdd);
                let atomic = if careless { Atomic::FetchAdd(free) } else { atomic };
                self.change(self.plan.tickets(), atomic, Stage::ClosingEarly);
            }
            Duty::Wait | Duty::CloseEarly => self.stage = Stage::Open,
        }
    }

    fn closing_answered(&mut self, found: u64) {
        let is_closer = found == self.ticket.word || self.plan.fault(Fault::CloseByAdd);
        self.stats.closed_early += u64::from(is_closer);
        // If not, a later arrival closes.
        self.stage = if is_closer { Stage::Gathering { seats: self.ticket.seat.index + 1 } } else { Stage::Open };
    }

    /// Looks for the cut, and at the deadline.
    fn look(&mut self, now: Time, cells: &impl Cells) {
        if self.plan.record(self.ticket.seat.group).learn(&mut self.cut, cells) {
            self.formed();
        } else if self.expires_at.is_some_and(|at| at <= now) {
            self.expire(self.ticket.word);
        }
    }

    /// Closes the group at its deadline, if the tickets are still `word`.
    fn expire(&mut self, word: u64) {
        if let Some((atomic, _)) = word::closing(word, self.ticket.seat.group, self.plan.size()) {
            self.change(self.plan.tickets(), atomic, Stage::Expiring { word });
        } else {
            // Another rank closes it.
            self.expires_at = None;
            self.stage = Stage::Open;
        }
    }

    fn expiry_answered(&mut self, expected: u64, found: u64) {
        match word::closing(expected, self.ticket.seat.group, self.plan.size()) {
            Some((_, seats)) if found == expected => {
                self.stats.expired += 1;
                self.stage = Stage::Gathering { seats };
            }
            _ => self.expire(found),
        }
    }

    /// The cut is known. Members move its data by segments, each the next one that no member has taken. So none waits for
    /// a member that came and computes, or that has less of a processor.
    fn formed(&mut self) {
        if self.cut.contributors().next().is_some() {
            self.count_in_record(Record::taken, Stage::Taking);
        } else {
            self.release();
        }
    }

    /// Adds one to a cell of the group's record.
    fn count_in_record(&mut self, cell: impl Fn(Record) -> usize, stage: Stage) {
        self.change(cell(self.plan.record(self.cut.group)), Atomic::FetchAdd(1), stage);
    }

    /// Whether all segments are moved.
    fn has_moved(&self, cells: &impl Cells) -> bool {
        let all = self.plan.segments();
        let wanted = if self.plan.fault(Fault::ReleaseUnmoved) { 1 } else { all };
        self.plan.record(self.cut.group).count_moved(cells) >= wanted
    }

    fn release(&mut self) {
        self.count_in_record(Record::releases, Stage::Releasing);
    }

    fn released(&mut self, before: u64) {
        if before.wrapping_add(1) == self.cut.members.len() as u64 {
            // What follows has to find the counts.
            self.write(self.plan.record(self.cut.group).clear(), true, Stage::Clearing);
        } else {
            self.stage = Stage::Over;
        }
    }
}
