//! Segments: waiting ranks claim segments of the oldest round that has not landed, reduce them and write them where
//! they are needed.
//!
//! Where ranks share memory, a caller may hand in a contribution first and fill it afterwards. A caller that keeps its
//! data elsewhere has to copy it, and large data that is copied as a whole has left the caches before it is reduced. So
//! the data follows the arrival in *pieces* of some segments each. A cell beside the buffer's tag counts the missing
//! pieces, and a segment is claimed when every rank has filled its piece. A rank that fills is inside a call and
//! depends on no other rank.
//!
//! Where ranks have registers, each moving group has its own set of segments, numbered group after group. The next
//! round may read a register on any host. So a rank counts the segments that it has moved when they have landed on all
//! hosts.

use super::super::context::Context;
use super::super::input::Cells;
use super::super::op::{Awaited, Counted, Op, PutData, Token};
use super::super::outbox::Outbox;
use super::super::plan::Plan;
use super::combine;
use super::registers::Registers;
use crate::fabric::{Atomic, Change};
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::reduce::Place;
use crate::rule::AgreementBy;

/// This rank's part in moving segments.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Segments {
    claims: Claims,
    /// The registers whose segments are moved, where ranks have registers.
    registers: Option<Box<Registers>>,
}

/// What this rank has claimed in a round.
#[derive(Clone, Debug, Default, Hash)]
struct Claims {
    round: u64,
    /// The value of this host's count of segments when the round has landed.
    expected: u64,
    /// The segments of the round: of all groups that move. An answer to a claim may come when the round has landed and
    /// other groups move.
    total: u64,
    /// The share that this rank claims from first.
    own: u64,
    /// The number of shares that are known to be fully claimed.
    exhausted: u64,
    /// Segments moved and not yet counted as landed.
    batch: u64,
    /// Every contribution is filled, to the last segment.
    filled: bool,
    /// The piece that a rank has to fill before there is more to claim.
    awaited: Option<u64>,
    /// Where no rank clears claims: the upper half of the cells of this round's claims.
    mark: u64,
    /// What a cell of claims on another host held when it was last read.
    found: u64,
    stage: ClaimStage,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum ClaimStage {
    #[default]
    Idle,
    Claiming {
        /// The value that this rank believes the cell to hold; `None` if it takes the next ticket, whichever that is.
        believed: Option<u64>,
        host: u32,
    },
    /// Some contributions to the segment are not here yet.
    Reading {
        segment: u64,
    },
    /// All contributions are here, but the memory from which the result is sent is in use.
    Waiting {
        segment: u64,
    },
    Counting,
}

/// The lower half of a marked cell of claims.
const TICKETS: u64 = u32::MAX as u64;

/// Returns the mark of a round's claims. Where cuts are given, each rank sees by itself that a round fires, so no rank
/// can clear the claims before. Claims are marked with the use of their slot, and claims of an older use do not count.
fn mark_of(round: u64, plan: &Plan) -> u64 {
    match plan.agreement {
        AgreementBy::Given => (plan.uses(round) % TICKETS + 1) << u32::BITS,
        _ => 0,
    }
}

impl Claims {
    /// Returns the number of tickets of this round that are taken, given the contents of a cell of its claims.
    fn tickets(&self, found: u64) -> u64 {
        match self.mark {
            0 => found,
            mark if found & !TICKETS == mark => found & TICKETS,
            _ => 0,
        }
    }
}

impl Segments {
    pub(super) fn new(plan: &Plan) -> Self {
        Segments { claims: Claims::default(), registers: Registers::new(plan) }
    }

    #[inline(never)]
    pub(super) fn step(&mut self, cx: &mut Context, cells: &impl Cells) {
        if let ClaimStage::Waiting { segment } = self.claims.stage {
            self.combine(segment, cx);
        }
        if cx.ledger.landed() >= cx.ledger.fired() || self.claims.stage != ClaimStage::Idle {
            return;
        }
        let round = cx.ledger.landed() + 1;
        if self.claims.round != round {
            debug_assert_eq!(self.claims.batch, 0);
            let expected = self.expected(round, &cx.plan);
            let (total, own) = (self.total(&cx.plan), self.own_share(&cx.plan));
            let mark = mark_of(round, &cx.plan);
            self.claims = Claims { round, expected, total, own, mark, ..Claims::default() };
        }
        if self.claims.exhausted < cx.plan.shares() {
            self.claims.filled = self.claims.filled || is_filled(round, cx, cells);
            if self.claims.filled {
                let believed = (self.claims.mark > 0).then(|| self.belief(cx, cells));
                self.claim(believed, cx);
            } else {
                self.claim_filled(cx, cells);
            }
        } else {
            self.count(cx);
        }
    }

    /// Returns whether all segments of the oldest round that has not landed have landed on this host.
    pub(super) fn has_landed(&mut self, round: u64, cx: &mut Context, cells: &impl Cells) -> bool {
        if let Some(registers) = &mut self.registers {
            registers.begin(round, cx);
        }
        cells.load(cx.plan.done(round)) >= self.expected(round, &cx.plan)
    }

    /// Returns the value of this host's count of segments when that round has landed.
    fn expected(&self, round: u64, plan: &Plan) -> u64 {
        match &self.registers {
            None => plan.segments_up_to(round),
            Some(registers) => registers.expected(plan),
        }
    }

    /// Notes that this round has landed.
    pub(super) fn land(&mut self, cx: &mut Context) {
        if let Some(registers) = &mut self.registers {
            registers.land(cx);
            if registers.groups() == 0 {
                // No rank moves a segment of it, so none wakes the waiting ranks.
                cx.outbox.wake(u32::MAX, Awaited::Outcome);
            }
        }
    }

    pub(in super::super) fn registers(&self) -> Option<&Registers> {
        self.registers.as_deref()
    }

    /// Returns the number of segments of the round that moves next.
    fn total(&self, plan: &Plan) -> u64 {
        plan.segments() * self.registers.as_ref().map_or(1, |registers| registers.groups())
    }

    /// Returns the group of a segment, and its index in that group.
    fn place_of(segment: u64, plan: &Plan) -> (usize, u64) {
        ((segment / plan.segments()) as usize, segment % plan.segments())
    }

    fn claim(&mut self, believed: Option<u64>, cx: &mut Context) {
        let cell = cx.plan.claim(self.claims.round, self.share(cx));
        let atomic = match believed {
            None => Atomic::FetchAdd(1),
            Some(expect) => Atomic::CompareSwap { expect, new: self.claims.mark + self.claims.tickets(expect) + 1 },
        };
        self.claims.awaited = None;
        let host = self.claim_host(cx);
        self.claims.stage = ClaimStage::Claiming { believed, host };
        cx.outbox.atomic(host, cell, atomic, Token::Claim);
    }

    /// Claims the next segment if every rank has filled it. No rank keeps a claim while it waits for another one,
    /// because it may have to leave the library.
    fn claim_filled(&mut self, cx: &mut Context, cells: &impl Cells) {
        let share = self.share(cx);
        let found = cells.load(cx.plan.claim(self.claims.round, share));
        let ticket = self.claims.tickets(found);
        let (from, to) = cx.plan.share(share, self.claims.total);
        if from.saturating_add(ticket) >= to {
            self.claims.exhausted += 1;
            self.claims.awaited = None;
            return cx.outbox.note();
        }
        let piece = cx.plan.piece_of(share, ticket);
        if lacking(self.claims.round, piece, cx, cells).next().is_some() {
            let already = self.claims.awaited.replace(piece) == Some(piece);
            cx.stats.awaited += u64::from(!already);
            self.count(cx);
        } else {
            self.claim(Some(found), cx);
        }
    }

    /// Returns the contents of the next claim's cell, as far as this rank knows.
    fn belief(&self, cx: &mut Context, cells: &impl Cells) -> u64 {
        if self.claim_host(cx) != cx.plan.host() {
            return self.claims.found;
        }
        cells.load(cx.plan.claim(self.claims.round, self.share(cx)))
    }

    /// Counts the segments that this rank has moved since it last counted them.
    pub(crate) fn count(&mut self, cx: &mut Context) {
        let Claims { round, batch, .. } = self.claims;
        if batch == 0 || self.claims.stage != ClaimStage::Idle {
            return;
        }
        let (plan, cell) = (&cx.plan, cx.plan.done(round));
        if self.registers.is_some() && plan.topology.has_elsewhere() {
            if cx.outbox.has(Counted::Push) && !plan.fault(Fault::CountBeforeLanding) {
                return;
            }
            for host in plan.hosts_elsewhere(cx.ledger.active_in(round)) {
                cx.outbox.signal(Counted::Notice, host, None, (cell, Change::Add(batch)));
            }
        }
        self.claims.stage = ClaimStage::Counting;
        cx.outbox.atomic(plan.host(), cell, Atomic::FetchAdd(batch), Token::Done);
    }

    /// Returns the share to claim from: first this rank's own share, so that the same rank touches the same memory
    /// round after round, then those of others.
    fn share(&self, Context { plan, .. }: &Context) -> u64 {
        (self.claims.own + self.claims.exhausted) % plan.shares()
    }

    /// Returns this rank's own share of the round that moves next.
    fn own_share(&self, plan: &Plan) -> u64 {
        let of_group = self.registers.as_ref().and_then(|registers| registers.own_segment(plan.me, plan.segments()));
        match of_group {
            Some(segment) => segment * plan.shares() / self.total(plan),
            None => u64::from(plan.me) * plan.shares() / u64::from(plan.ranks),
        }
    }

    fn claim_host(&self, cx: &Context) -> u32 {
        cx.ledger.home_host(self.claims.round, &cx.plan)
    }

    pub(super) fn complete(&mut self, token: Token, value: u64, cx: &mut Context) {
        match (token, &self.claims.stage) {
            (Token::Counted { .. }, ClaimStage::Reading { .. }) if cx.outbox.has(Counted::Read) => {}
            (Token::Counted { .. }, &ClaimStage::Reading { segment }) => self.combine(segment, cx),
            // Another rank was faster.
            (Token::Claim, &ClaimStage::Claiming { believed: Some(belief), .. }) if belief != value => {
                self.claims.found = value;
                self.claims.stage = ClaimStage::Idle;
            }
            (Token::Claim, ClaimStage::Claiming { .. }) => {
                let ticket = self.claims.tickets(value);
                self.claims.found = self.claims.mark + ticket + 1;
                self.claimed(ticket, cx);
            }
            (Token::Done, ClaimStage::Counting) => self.counted(value, cx),
            (token, stage) => debug_assert!(false, "{token:?} completed in stage {stage:?}"),
        }
    }

    fn claimed(&mut self, ticket: u64, cx: &mut Context) {
        let (from, to) = cx.plan.share(self.share(cx), self.claims.total);
        let segment = from.saturating_add(ticket);
        if segment >= to {
            self.claims.exhausted += 1;
            self.claims.stage = ClaimStage::Idle;
            return;
        }
        if self.read_from_elsewhere(segment, cx) {
            self.claims.stage = ClaimStage::Reading { segment };
        } else {
            self.combine(segment, cx);
        }
    }

    /// Reads what a segment needs from other hosts; returns whether there is anything to read.
    fn read_from_elsewhere(&self, segment: u64, cx: &mut Context) -> bool {
        let (group, place) = Self::place_of(segment, &cx.plan);
        let (span, cut) = (cx.plan.segment_span(place), cx.ledger.cut(self.claims.round));
        if cx.plan.topology.is_one_host() || span.1 == 0 {
            return false;
        }
        match &self.registers {
            None => cx.outbox.read_from_elsewhere(&cx.plan, cx.plan.contributions(cut), span),
            Some(registers) => {
                let (_, sources) = registers.sources(group, cut, &cx.plan);
                cx.outbox.read_from_elsewhere(&cx.plan, sources.map(|(rank, at, _)| (rank, at)), span)
            }
        }
    }

    fn combine(&mut self, segment: u64, cx: &mut Context) {
        let round = self.claims.round;
        let (group, place) = Self::place_of(segment, &cx.plan);
        if self.is_sent_on(group, cx) && cx.outbox.has(Counted::Push) {
            self.claims.stage = ClaimStage::Waiting { segment };
            return;
        }
        if !(cx.plan.fault(Fault::SkipSegment) && segment + 1 == self.claims.total) {
            let Context { plan, ledger, outbox, .. } = &mut *cx;
            let (span, cut) = (plan.segment_span(place), ledger.cut(round));
            let read = |number| Place::Staged(number * plan.staging_row());
            match &self.registers {
                None => {
                    combine(Some(round), (cut, plan.outcome(round)), span, |_, number| read(number), (plan, outbox));
                }
                Some(registers) => registers.average(group, cut, span, read, (plan, outbox)),
            }
        }
        if cx.plan.topology.has_elsewhere() {
            self.land_elsewhere(group, place, cx);
        }
        cx.stats.segments += 1;
        self.claims.batch += 1;
        self.claims.stage = ClaimStage::Idle;
    }

    /// Returns whether no member of a group is on this host.
    fn is_sent_on(&self, group: usize, Context { plan, .. }: &Context) -> bool {
        let registers = self.registers.as_ref();
        registers.is_some_and(|registers| registers.goals(group, plan.host(), plan).next().is_none())
    }

    /// Writes a segment of the outcome to every other host that needs it.
    fn land_elsewhere(&self, group: usize, place: u64, cx: &mut Context) {
        let (round, plan) = (self.claims.round, &cx.plan);
        let receivers = cx.ledger.active_in(round);
        let Some(registers) = &self.registers else {
            return cx.outbox.land_elsewhere(plan, round, place, receivers);
        };
        let (from, len) = plan.segment_span(place);
        let own = registers.goals(group, plan.host(), plan).next().map_or(plan.transit(), |at| at + from);
        for host in plan.hosts_elsewhere(receivers).filter(|_| len > 0) {
            for goal in registers.goals(group, host, plan) {
                let data = PutData::Bytes { from: own, to: goal + from, len };
                cx.outbox.put(Counted::Push, host, Some(data), None);
            }
        }
    }

    fn counted(&mut self, before: u64, cx: &mut Context) {
        let after = before + self.claims.batch;
        self.claims.batch = 0;
        self.claims.stage = ClaimStage::Idle;
        if after >= self.claims.expected {
            cx.outbox.wake(u32::MAX, Awaited::Outcome);
        }
    }

    /// Returns whether no rank waits for a segment of this rank, or to be woken by it.
    pub(crate) fn has_nothing_pending(&self) -> bool {
        self.claims.stage == ClaimStage::Idle && self.claims.batch == 0
    }

    /// Returns whether this rank has counted all segments that it moved.
    pub(crate) fn has_counted(&self) -> bool {
        self.claims.batch == 0
    }

    /// Returns the host that is asked for a segment.
    pub(crate) fn asked(&self) -> Option<u32> {
        match self.claims.stage {
            ClaimStage::Claiming { host, .. } => Some(host),
            _ => None,
        }
    }

    /// Returns the piece of the round that some rank has to fill before there is more to move.
    pub(crate) fn awaited(&self, cx: &Context) -> Option<u64> {
        self.claims.awaited.filter(|_| self.claims.round > cx.ledger.landed())
    }

    /// Adds the ranks that have to fill that piece.
    pub(crate) fn unfilled(&self, cx: &Context, cells: &impl Cells, missing: &mut RankSet) {
        if let Some(piece) = self.awaited(cx) {
            lacking(self.claims.round, piece, cx, cells).for_each(|rank| missing.insert(rank));
        }
    }
}

/// Synchronous: clears the claims of a round, if they lie in this rank's memory. All ranks took round `round - 1`, so
/// no rank reads what this slot held before; and no rank claims before it sees the tag that follows.
pub(super) fn clear_claims(round: u64, cx: &mut Context) {
    if cx.ledger.home(round, &cx.plan) == cx.plan.me {
        let host = cx.plan.host();
        let token = cx.outbox.count(Counted::Push, host);
        cx.outbox.clear(host, round, token, &cx.plan);
    }
}

/// Notes that `pieces` pieces of this rank's contribution in a buffer are not there. No rank reads that before it
/// learns of the arrival.
pub(crate) fn lack(buffer: u32, pieces: u64, plan: &Plan, outbox: &mut Outbox) {
    outbox.push(Op::Store { cell: plan.unfilled(plan.me, buffer), value: pieces });
}

/// Notes the same after a piece was filled, and wakes the ranks that wait for pieces.
pub(crate) fn fill(buffer: u32, missing: u64, plan: &Plan, outbox: &mut Outbox) {
    lack(buffer, missing, plan, outbox);
    if !plan.fault(Fault::ForgetWakeForPieces) {
        outbox.push(Op::Fence);
        outbox.wake(u32::MAX, Awaited::Piece);
    }
}

/// Returns the ranks whose contributions to a round lack a piece.
fn lacking<'a>(round: u64, piece: u64, cx: &'a Context, cells: &'a impl Cells) -> impl Iterator<Item = u32> + 'a {
    let Context { plan, ledger, .. } = cx;
    let there = plan.pieces() - piece;
    let waits = !plan.fault(Fault::ReadUnfilled);
    let missing = move |rank, buffer| cells.load(plan.unfilled(rank, buffer));
    let lacks = ledger.cut(round).contributions().filter(move |entry| missing(entry.rank, entry.buffer) >= there);
    lacks.filter(move |_| waits).map(|entry| entry.rank)
}

/// Returns whether every contribution to a round is filled.
fn is_filled(round: u64, cx: &Context, cells: &impl Cells) -> bool {
    let pieces = cx.plan.pieces();
    pieces == 1 || lacking(round, pieces - 1, cx, cells).next().is_none()
}
