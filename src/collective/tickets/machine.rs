//! One rank: the stages of an arrival, from the ticket to the release.

mod closer;

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use super::isolation::IsolationWindow;
use super::op::TicketOp;
use super::plan::TicketPlan;
use super::record::{GroupCut, Member, Record};
#[cfg(all(test, not(loom)))]
use super::word::GroupSeat;
use super::word::{self, Duty, Ticket};
use super::{Stats, claim};
use crate::collective::core::{Cells, Time};
use crate::fabric::Atomic;
use crate::fault::Fault;

/// How far an arrival is. Stages that wait for other ranks are left by a poll, the others when their operation is
/// complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TicketStage {
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
pub(crate) struct TicketMachine {
    plan: Arc<TicketPlan>,
    stage: TicketStage,
    /// What the driver is to carry out.
    op: Option<TicketOp>,
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
    window: IsolationWindow,
    cut: GroupCut,
    stats: Stats,
}

impl Hash for TicketMachine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The plan is the same for ever, what was counted changes nothing, and the window is made anew for each use.
        let TicketMachine { stage, op, member, ticket, expires_at, claim, seen, refused, cut, .. } = self;
        (stage, op, member, ticket, expires_at, claim, seen, refused, cut).hash(state);
    }
}

impl TicketMachine {
    pub(crate) fn new(plan: TicketPlan) -> Self {
        let window = IsolationWindow::new(if plan.lends() { plan.ranks() } else { 0 });
        TicketMachine {
            plan: Arc::new(plan),
            stage: TicketStage::Idle,
            op: None,
            member: Member::default(),
            ticket: Ticket::default(),
            expires_at: None,
            claim: 0,
            seen: 0,
            refused: Vec::new(),
            window,
            cut: GroupCut::default(),
            stats: Stats::default(),
        }
    }

    pub(crate) fn plan(&self) -> &TicketPlan {
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
        debug_assert_eq!(self.stage, TicketStage::Idle);
        self.member = member;
        self.expires_at = self.plan.deadline().map(|limit| now.saturating_add(limit));
        self.seen = 0;
        self.refused.clear();
        self.stats.arrivals += 1;
        if self.plan.lends() {
            self.stage = TicketStage::AwaitRegister;
        } else {
            self.enter();
        }
    }

    /// Takes the operation that is to be carried out. [`TicketMachine::complete`] follows.
    pub(crate) fn next_op(&mut self) -> Option<TicketOp> {
        self.op.take()
    }

    /// The operation that is to be carried out.
    #[cfg(all(test, not(loom)))]
    pub(super) fn peek_op(&self) -> Option<&TicketOp> {
        self.op.as_ref()
    }

    /// Does what waits for other ranks, as far as the cells say that it can be done; whether that was anything. An
    /// operation that is to be carried out, or in flight, goes first.
    pub(crate) fn poll(&mut self, now: Time, cells: &impl Cells) -> bool {
        let (stage, seen) = (self.stage, self.seen);
        match stage {
            TicketStage::AwaitRegister if claim::has_ended(self.claim, &self.plan, cells) => {
                let atomic = Atomic::CompareSwap { expect: self.claim, new: claim::INSIDE };
                self.change_own_claim(atomic, TicketStage::Claiming);
            }
            TicketStage::AwaitRecord => self.show(cells),
            TicketStage::Open => self.poll_open(now, cells),
            TicketStage::Gathering { seats } => self.gather(seats, cells),
            TicketStage::AwaitMoved if self.has_moved(cells) => self.release(),
            _ => {}
        }
        (self.stage, self.seen) != (stage, seen)
    }

    /// The operation is complete; `found` is the value before, for an atomic.
    pub(crate) fn complete(&mut self, found: u64) {
        match self.stage {
            TicketStage::Claiming if found == self.claim => self.enter(),
            TicketStage::Claiming => {
                // Another group has borrowed it since.
                self.stats.lent += 1;
                self.claim = found;
                self.stage = TicketStage::AwaitRegister;
            }
            TicketStage::Departing => self.draw(),
            TicketStage::Drawing => self.drawn(found),
            TicketStage::Naming => self.stage = TicketStage::AwaitRecord,
            TicketStage::Showing => self.entry_is_there(),
            TicketStage::ClosingEarly => self.closing_answered(found),
            TicketStage::Expiring { word } => self.expiry_answered(word, found),
            TicketStage::Borrowing { lender, claim, .. } if found == claim => self.borrow(lender),
            TicketStage::Borrowing { seats, lender, .. } => {
                // It has arrived, or another group has its register.
                self.refused.push(lender);
                self.stage = TicketStage::Gathering { seats };
            }
            TicketStage::Publishing => self.formed(),
            TicketStage::Taking if found < self.plan.segments() => {
                self.ask(TicketOp::Combine { group: self.cut.group, segment: found }, TicketStage::Moving);
            }
            TicketStage::Taking => self.stage = TicketStage::AwaitMoved,
            TicketStage::Moving => self.count_in_record(Record::moved, TicketStage::Counting),
            TicketStage::Counting => {
                self.stats.segments += 1;
                self.count_in_record(Record::taken, TicketStage::Taking);
            }
            TicketStage::Releasing => self.released(found),
            TicketStage::Clearing => self.write(self.plan.record(self.cut.group).end(), false, TicketStage::Ending),
            TicketStage::Ending => self.stage = TicketStage::Over,
            _ => debug_assert!(false, "no operation was in flight"),
        }
    }

    /// Whether the group that the outstanding arrival is in has moved, and this rank has released it.
    pub(crate) fn is_ready(&self) -> bool {
        self.stage == TicketStage::Over
    }

    /// Ends an arrival that is ready: its group.
    pub(crate) fn take(&mut self) -> &GroupCut {
        debug_assert!(self.is_ready());
        self.stage = if self.member.leaving { TicketStage::Left } else { TicketStage::Idle };
        &self.cut
    }

    /// The group that is moving, or was moved last.
    pub(crate) fn cut(&self) -> &GroupCut {
        &self.cut
    }

    /// The seat that this rank holds: from its ticket until it has released the group.
    #[cfg(all(test, not(loom)))]
    pub(super) fn seat(&self) -> Option<GroupSeat> {
        let has_none = matches!(
            self.stage,
            TicketStage::Idle
                | TicketStage::AwaitRegister
                | TicketStage::Claiming
                | TicketStage::Departing
                | TicketStage::Drawing
                | TicketStage::Clearing
                | TicketStage::Ending
                | TicketStage::Over
                | TicketStage::Left
        );
        (!has_none).then_some(self.ticket.seat)
    }

    pub(crate) fn has_left(&self) -> bool {
        self.stage == TicketStage::Left
    }

    /// Whether the next operation begins to move a segment.
    pub(super) fn is_to_move(&self) -> bool {
        self.op.is_some() && self.stage == TicketStage::Taking
    }

    /// Whether the cut of the outstanding arrival is known, so that the group needs no more ranks.
    pub(super) fn has_formed(&self) -> bool {
        matches!(
            self.stage,
            TicketStage::Taking
                | TicketStage::Moving
                | TicketStage::Counting
                | TicketStage::AwaitMoved
                | TicketStage::Releasing
                | TicketStage::Clearing
                | TicketStage::Ending
        )
    }

    /// Whether there is no arrival, or nothing left to do for it.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.stage, TicketStage::Idle | TicketStage::Over | TicketStage::Left)
    }

    /// What the machine waits for, when a poll has found nothing to do.
    pub(super) fn awaits(&self) -> Event {
        let of = |group: Option<u64>| Event { group: group.unwrap_or_default(), is_entry: false };
        let group = self.ticket.seat.group;
        match self.stage {
            TicketStage::AwaitRegister => of(claim::group(self.claim)),
            TicketStage::AwaitRecord => of(group.checked_sub(self.plan.records())),
            TicketStage::Gathering { .. } => Event { group, is_entry: true },
            _ => of(Some(group)),
        }
    }

    /// The cells that a poll looks at.
    pub(super) fn watches(&self) -> Range<usize> {
        let record = |group: u64| self.plan.record(group).cells(self.plan.size());
        match self.stage {
            _ if self.op.is_some() => 0..0,
            TicketStage::AwaitRegister => claim::group(self.claim).map_or(0..0, record),
            // It looks for a lender.
            TicketStage::Gathering { .. } if self.plan.lends() => 0..self.plan.cells(),
            TicketStage::AwaitRecord | TicketStage::Open | TicketStage::Gathering { .. } | TicketStage::AwaitMoved => {
                record(self.ticket.seat.group)
            }
            _ => 0..0,
        }
    }

    /// What an operation changes that ranks may wait for.
    pub(super) fn changes(&self, op: &TicketOp) -> Option<Event> {
        let group = self.ticket.seat.group;
        match (op, self.stage) {
            (TicketOp::StorePair { .. }, TicketStage::Showing) => Some(Event { group, is_entry: true }),
            (TicketOp::StorePair { .. }, TicketStage::Publishing | TicketStage::Ending)
            | (TicketOp::Atomic { .. }, TicketStage::Counting) => Some(Event { group, is_entry: false }),
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
            TicketStage::AwaitRegister => seated(group).collect(),
            // Its members may wait for the record themselves.
            TicketStage::AwaitRecord => {
                let before = std::iter::successors(Some(group), |group| group.checked_sub(self.plan.records()));
                // Each rank has one ticket at most that is not over.
                let mut recent = before.take(self.plan.ranks() as usize + 1);
                let has_record = recent.find(|&group| seated(group).next().is_some());
                has_record.into_iter().flat_map(seated).collect()
            }
            TicketStage::AwaitMoved => self.cut.members.iter().map(|member| member.rank).collect(),
            TicketStage::Idle | TicketStage::Over => Vec::new(),
            // It stays until all others have left, too.
            TicketStage::Left => self.away(&[], cells).0,
            stage => {
                let here: Vec<u32> = seated(group).collect();
                let (word, size) = (cells.load(self.plan.tickets()), self.plan.size());
                let is_whole = here.len() == size as usize;
                let (active, gone) = if is_whole { Default::default() } else { self.away(&here, cells) };
                let closes = stage == TicketStage::Open && (is_whole || word::groups(word, size) > group);
                // A rank says that it leaves before it draws its last ticket, and that before it shows its entry.
                let has_ticket = closes || matches!(stage, TicketStage::Gathering { .. });
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
        self.expires_at.filter(|_| self.stage == TicketStage::Open)
    }

    fn ask(&mut self, op: TicketOp, stage: TicketStage) {
        debug_assert!(self.op.is_none());
        self.op = Some(op);
        self.stage = stage;
    }

    fn change(&mut self, cell: usize, atomic: Atomic, stage: TicketStage) {
        self.ask(TicketOp::Atomic { cell, atomic }, stage);
    }

    fn write(&mut self, (cell, values): (usize, [u64; 2]), seen: bool, stage: TicketStage) {
        self.ask(TicketOp::StorePair { cell, values, seen }, stage);
    }

    fn change_own_claim(&mut self, atomic: Atomic, stage: TicketStage) {
        let rank = self.plan.me();
        self.ask(TicketOp::Atomic { cell: self.plan.claim(rank), atomic }, stage);
    }

    /// This rank has its own register, if registers are lent.
    fn enter(&mut self) {
        if self.member.leaving {
            // Closers stop to look for this rank, at the latest when its last group has formed, and none misses it.
            let (cell, bit) = self.plan.gone(self.plan.me());
            self.change(cell, Atomic::FetchAdd(bit), TicketStage::Departing);
        } else {
            self.draw();
        }
    }

    fn draw(&mut self) {
        let atomic = Atomic::FetchAdd(word::addend(self.member.leaving));
        self.change(self.plan.tickets(), atomic, TicketStage::Drawing);
    }

    fn drawn(&mut self, before: u64) {
        self.ticket = Ticket::of(before, self.member.leaving, self.plan.ranks(), self.plan.size());
        if self.plan.lends() && !self.member.leaving {
            self.claim = claim::of(self.ticket.seat.group);
            self.change_own_claim(Atomic::CompareSwap { expect: claim::INSIDE, new: self.claim }, TicketStage::Naming);
        } else {
            self.stage = TicketStage::AwaitRecord;
        }
    }

    /// Writes the entry, if the record is free for the group.
    fn show(&mut self, cells: &impl Cells) {
        let record = self.plan.record(self.ticket.seat.group);
        if record.is_free(cells) || self.plan.fault(Fault::ReuseRecord) {
            self.write(record.entry(self.ticket.seat.index, self.member), false, TicketStage::Showing);
        }
    }

    fn entry_is_there(&mut self) {
        let (taken, size) = (self.ticket.seat.index + 1, self.plan.size());
        match self.ticket.duty {
            Duty::Close => self.stage = TicketStage::Gathering { seats: size },
            Duty::CloseEarly if !self.plan.fault(Fault::NoTail) => {
                let free = u64::from(size - taken);
                let atomic = Atomic::CompareSwap { expect: self.ticket.word, new: self.ticket.word.wrapping_add(free) };
                let careless = self.plan.fault(Fault::CloseByAdd);
                let atomic = if careless { Atomic::FetchAdd(free) } else { atomic };
                self.change(self.plan.tickets(), atomic, TicketStage::ClosingEarly);
            }
            Duty::Wait | Duty::CloseEarly => self.stage = TicketStage::Open,
        }
    }

    fn closing_answered(&mut self, found: u64) {
        let is_closer = found == self.ticket.word || self.plan.fault(Fault::CloseByAdd);
        self.stats.closed_early += u64::from(is_closer);
        // If not, a later arrival closes.
        self.stage =
            if is_closer { TicketStage::Gathering { seats: self.ticket.seat.index + 1 } } else { TicketStage::Open };
    }

    /// Looks for the cut, and at the deadline.
    fn poll_open(&mut self, now: Time, cells: &impl Cells) {
        if self.plan.record(self.ticket.seat.group).learn(&mut self.cut, cells) {
            self.formed();
        } else if self.expires_at.is_some_and(|at| at <= now) {
            self.expire(self.ticket.word);
        }
    }

    /// Closes the group at its deadline, if the tickets are still `word`.
    fn expire(&mut self, word: u64) {
        if let Some((atomic, _)) = word::closing(word, self.ticket.seat.group, self.plan.size()) {
            self.change(self.plan.tickets(), atomic, TicketStage::Expiring { word });
        } else {
            // Another rank closes it.
            self.expires_at = None;
            self.stage = TicketStage::Open;
        }
    }

    fn expiry_answered(&mut self, expected: u64, found: u64) {
        match word::closing(expected, self.ticket.seat.group, self.plan.size()) {
            Some((_, seats)) if found == expected => {
                self.stats.expired += 1;
                self.stage = TicketStage::Gathering { seats };
            }
            _ => self.expire(found),
        }
    }

    /// The cut is known. Members move its data by segments, each the next one that no member has taken. So none waits for
    /// a member that came and computes, or that has less of a processor.
    fn formed(&mut self) {
        if self.cut.contributors().next().is_some() {
            self.count_in_record(Record::taken, TicketStage::Taking);
        } else {
            self.release();
        }
    }

    /// Adds one to a cell of the group's record.
    fn count_in_record(&mut self, cell: impl Fn(Record) -> usize, stage: TicketStage) {
        self.change(cell(self.plan.record(self.cut.group)), Atomic::FetchAdd(1), stage);
    }

    /// Whether all segments are moved.
    fn has_moved(&self, cells: &impl Cells) -> bool {
        let all = self.plan.segments();
        let wanted = if self.plan.fault(Fault::ReleaseUnmoved) { 1 } else { all };
        self.plan.record(self.cut.group).count_moved(cells) >= wanted
    }

    fn release(&mut self) {
        self.count_in_record(Record::releases, TicketStage::Releasing);
    }

    fn released(&mut self, before: u64) {
        if before.wrapping_add(1) == self.cut.members.len() as u64 {
            // What follows has to find the counts.
            self.write(self.plan.record(self.cut.group).clear(), true, TicketStage::Clearing);
        } else {
            self.stage = TicketStage::Over;
        }
    }
}
