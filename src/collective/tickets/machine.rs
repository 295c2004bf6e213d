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

/// The stage of an arrival. A poll ends a stage that waits for other ranks; the completion of its operation ends any
/// other stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TicketStage {
    /// There is no arrival.
    Idle,
    /// Waits until the group that used this rank's register last is over.
    AwaitRegister,
    /// Claims this rank's register.
    Claiming,
    /// Announces that this rank leaves.
    Departing,
    /// Draws a ticket.
    Drawing,
    /// Names the group in the claim on this rank's register.
    Naming,
    /// Waits until the record is free for the group.
    AwaitRecord,
    /// Writes the entry.
    Showing,
    /// Closes a group that cannot fill.
    ClosingEarly,
    /// Waits for the cut, or for the deadline.
    Open,
    /// Closes a group whose deadline has passed, if the tickets are unchanged.
    Expiring { word: u64 },
    /// Closer: waits for the entries.
    Gathering { seats: u32 },
    /// Closer: claims the register of a lender.
    Borrowing { seats: u32, lender: u32, claim: u64 },
    /// Closer: publishes the cut.
    Publishing,
    /// Takes a segment that no member has begun to move.
    Taking,
    /// Moves that segment.
    Moving,
    /// Counts that segment.
    Counting,
    /// Waits for the segments that other members move.
    AwaitMoved,
    /// Counts the release.
    Releasing,
    /// After the last release: clears the counts of segments for the record's next turn.
    Clearing,
    /// Begins the record's next turn.
    Ending,
    /// The caller may take the cut.
    Over,
    /// This rank has left.
    Left,
}

/// An event of a group for which ranks wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) group: u64,
    /// Whether it is the arrival of an entry, which the group's closer waits for.
    pub(super) is_entry: bool,
}

/// One rank's part of the protocol. See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct TicketMachine {
    plan: Arc<TicketPlan>,
    stage: TicketStage,
    /// The operation that the driver must carry out.
    op: Option<TicketOp>,
    /// This rank's entry.
    member: Member,
    ticket: Ticket,
    /// When this rank closes its group, if it has a deadline.
    expires_at: Option<Time>,
    /// The value of the claim on this rank's register, as this rank knows it.
    claim: u64,
    /// Closer: the number of entries seen.
    seen: u32,
    /// Closer: ranks whose registers it could not claim.
    refused: Vec<u32>,
    window: IsolationWindow,
    cut: GroupCut,
    stats: Stats,
}

impl Hash for TicketMachine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The plan never changes, counters do not affect the next steps, and the window is rebuilt for each use.
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

    /// Hands in the contribution in a buffer. No arrival may be outstanding.
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

    /// Takes the operation that the driver must carry out. [`TicketMachine::complete`] follows.
    pub(crate) fn next_op(&mut self) -> Option<TicketOp> {
        self.op.take()
    }

    /// Returns the operation that the driver must carry out.
    #[cfg(all(test, not(loom)))]
    pub(super) fn peek_op(&self) -> Option<&TicketOp> {
        self.op.as_ref()
    }

    /// Does the work that waits for other ranks, as far as the cells allow it; returns whether it did anything. The
    /// driver must first complete any operation that is queued or in flight.
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

    /// Takes the completion of the operation; `found` is the value before, for an atomic.
    pub(crate) fn complete(&mut self, found: u64) {
        match self.stage {
            TicketStage::Claiming if found == self.claim => self.enter(),
            TicketStage::Claiming => {
                // Another group has borrowed it meanwhile.
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
                // The rank has arrived, or another group has its register.
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

    /// Returns whether the group of the outstanding arrival has moved and this rank has released it.
    pub(crate) fn is_ready(&self) -> bool {
        self.stage == TicketStage::Over
    }

    /// Ends an arrival that is ready, and returns its group.
    pub(crate) fn take(&mut self) -> &GroupCut {
        debug_assert!(self.is_ready());
        self.stage = if self.member.leaving { TicketStage::Left } else { TicketStage::Idle };
        &self.cut
    }

    /// Returns the cut of the group that is moving, or was moved last.
    pub(crate) fn cut(&self) -> &GroupCut {
        &self.cut
    }

    /// Returns the seat that this rank holds: from its ticket until it has released the group.
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

    /// Returns whether the next operation begins to move a segment.
    pub(super) fn is_to_move(&self) -> bool {
        self.op.is_some() && self.stage == TicketStage::Taking
    }

    /// Returns whether the cut of the outstanding arrival is known, so that the group needs no more ranks.
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

    /// Returns whether there is no arrival, or nothing left to do for it.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.stage, TicketStage::Idle | TicketStage::Over | TicketStage::Left)
    }

    /// Returns the event that the machine waits for, when a poll has found nothing to do.
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

    /// Returns the cells that a poll reads.
    pub(super) fn watches(&self) -> Range<usize> {
        let record = |group: u64| self.plan.record(group).cells(self.plan.size());
        match self.stage {
            _ if self.op.is_some() => 0..0,
            TicketStage::AwaitRegister => claim::group(self.claim).map_or(0..0, record),
            // A closer searches for a lender.
            TicketStage::Gathering { .. } if self.plan.lends() => 0..self.plan.cells(),
            TicketStage::AwaitRecord | TicketStage::Open | TicketStage::Gathering { .. } | TicketStage::AwaitMoved => {
                record(self.ticket.seat.group)
            }
            _ => 0..0,
        }
    }

    /// Returns the event that an operation causes, if ranks may wait for it.
    pub(super) fn changes(&self, op: &TicketOp) -> Option<Event> {
        let group = self.ticket.seat.group;
        match (op, self.stage) {
            (TicketOp::StorePair { .. }, TicketStage::Showing) => Some(Event { group, is_entry: true }),
            (TicketOp::StorePair { .. }, TicketStage::Publishing | TicketStage::Ending)
            | (TicketOp::Atomic { .. }, TicketStage::Counting) => Some(Event { group, is_entry: false }),
            _ => None,
        }
    }

    /// Returns the ranks without which this one cannot continue.
    pub(super) fn missing(&self, cells: &impl Cells) -> Vec<u32> {
        let seated = |group: u64| {
            let record = self.plan.record(group);
            (0..self.plan.size()).filter_map(move |index| record.rank_at(index, cells))
        };
        let group = self.awaits().group;
        match self.stage {
            // The ranks that have not released it yet are among its members.
            TicketStage::AwaitRegister => seated(group).collect(),
            // The members of that group may be waiting for the record themselves.
            TicketStage::AwaitRecord => {
                let before = std::iter::successors(Some(group), |group| group.checked_sub(self.plan.records()));
                // Each rank has at most one ticket that is not over.
                let mut recent = before.take(self.plan.ranks() as usize + 1);
                let has_record = recent.find(|&group| seated(group).next().is_some());
                has_record.into_iter().flat_map(seated).collect()
            }
            TicketStage::AwaitMoved => self.cut.members.iter().map(|member| member.rank).collect(),
            TicketStage::Idle | TicketStage::Over => Vec::new(),
            // This rank stays until all others have left, too.
            TicketStage::Left => self.away(&[], cells).0,
            stage => {
                let here: Vec<u32> = seated(group).collect();
                let (word, size) = (cells.load(self.plan.tickets()), self.plan.size());
                let is_whole = here.len() == size as usize;
                let (active, gone) = if is_whole { Default::default() } else { self.away(&here, cells) };
                let closes = stage == TicketStage::Open && (is_whole || word::groups(word, size) > group);
                // A rank announces that it leaves before it draws its last ticket, and draws that before it publishes
                // its entry.
                let has_ticket = closes || matches!(stage, TicketStage::Gathering { .. });
                let leaves = has_ticket || gone.len() > word::leavers(word) as usize;
                // If a group takes no more members, one that is here may have to close it.
                let closers = here.into_iter().filter(|&rank| closes && rank != self.plan.me());
                closers.chain(active).chain(gone.into_iter().filter(|_| leaves)).collect()
            }
        }
    }

    /// Returns the ranks that are not `here`: those that have not announced that they leave, and the others.
    fn away(&self, here: &[u32], cells: &impl Cells) -> (Vec<u32>, Vec<u32>) {
        let is_active = |&rank: &u32| {
            let (cell, bit) = self.plan.gone(rank);
            cells.load(cell) & bit == 0
        };
        (0..self.plan.ranks()).filter(|rank| !here.contains(rank)).partition(is_active)
    }

    /// Returns when the driver must poll the machine although nothing has happened.
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

    /// Continues once this rank has its own register, if registers are lent.
    fn enter(&mut self) {
        if self.member.leaving {
            // Closers stop looking for this rank once its last group has formed; none of them still needs it.
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
        // If not, a later arrival closes the group.
        self.stage =
            if is_closer { TicketStage::Gathering { seats: self.ticket.seat.index + 1 } } else { TicketStage::Open };
    }

    /// Reads the cut, and closes the group at the deadline.
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

    /// Begins to move the data of a group whose cut is known. Each member takes the next segment that no member has
    /// taken. So none waits for a member that arrived and computes, or that has less processor time.
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

    /// Returns whether all segments are moved.
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
            // The operations that follow must find the cleared counts.
            self.write(self.plan.record(self.cut.group).clear(), true, TicketStage::Clearing);
        } else {
            self.stage = TicketStage::Over;
        }
    }
}
