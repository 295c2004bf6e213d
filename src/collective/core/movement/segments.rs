//! Segments: ranks that wait claim those of the oldest round that has not landed, reduce them and write them where they
//! are wanted.
//!
//! Where ranks share memory, a contribution may be handed in first and filled then. A caller that keeps its data
//! elsewhere has to copy it, and large data that is copied whole has left the caches before it is reduced. So the data
//! follows the arrival in *pieces* of some segments each. A cell beside the buffer's tag says how many are missing, and a
//! segment is claimed when every rank has filled its piece. A rank that fills is inside a call and depends on no other.
//!
//! Where ranks have registers, each group that moves has all segments, and they are numbered group after group. The next
//! round may read a register on any host. So a rank counts what it has moved when that has landed on all hosts.

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
    /// What they are segments of, where ranks have registers.
    registers: Option<Box<Registers>>,
}

/// What this rank has claimed of a round.
#[derive(Clone, Debug, Default, Hash)]
struct Claims {
    round: u64,
    /// What the count of segments on this host shows when the round has landed.
    expected: u64,
    /// Segments of the round: of all groups that move. A claim may be answered when the round has landed and other groups
    /// move.
    total: u64,
    /// The share that this rank claims from first.
    own: u64,
    /// Shares that are known to be claimed to the end.
    exhausted: u64,
    /// Segments moved and not yet counted as landed.
    batch: u64,
    /// Every contribution is there, to the last segment.
    filled: bool,
    /// The piece that a rank has to fill before there is more to claim.
    awaited: Option<u64>,
    /// Where no rank clears claims: what the cells of this round's claims have in their upper half.
    mark: u64,
    /// What a cell of claims on another host held when it was asked last.
    found: u64,
    stage: ClaimStage,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum ClaimStage {
    #[default]
    Idle,
    Claiming {
        /// What it believes the cell to hold; nothing if it takes the next ticket, whichever that is.
        believed: Option<u64>,
        host: u32,
    },
    /// Some contributions to the segment are not here yet.
    Reading {
        segment: u64,
    },
    /// All is here, and the memory from which the result is sent is in use.
    Waiting {
        segment: u64,
    },
    Counting,
}

/// The lower half of a cell of claims that are marked.
const TICKETS: u64 = u32::MAX as u64;

/// Where cuts are given, each rank sees by itself that a round fires, so no rank can clear the claims before. They are marked
/// with the use of their slot, and claims of an older one count as none.
fn mark_of(round: u64, plan: &Plan) -> u64 {
    match plan.agreement {
        AgreementBy::Given => (plan.uses(round) % TICKETS + 1) << u32::BITS,
        _ => 0,
    }
}

impl Claims {
    /// How many tickets of this round are gone, by what a cell of its claims holds.
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

    /// Whether all segments of the oldest round that has not landed have landed on this host.
    pub(super) fn has_landed(&mut self, round: u64, cx: &mut Context, cells: &impl Cells) -> bool {
        if let Some(registers) = &mut self.registers {
            registers.begin(round, cx);
        }
        cells.load(cx.plan.done(round)) >= self.expected(round, &cx.plan)
    }

    /// What the count of segments on this host shows when that round has landed.
    fn expected(&self, round: u64, plan: &Plan) -> u64 {
        match &self.registers {
            None => plan.segments_up_to(round),
            Some(registers) => registers.expected(plan),
        }
    }

    /// That round has landed.
    pub(super) fn land(&mut self, cx: &mut Context) {
        if let Some(registers) = &mut self.registers {
            registers.land(cx);
            if registers.groups() == 0 {
                // No rank moves a segment of it and wakes those that wait.
                cx.outbox.wake(u32::MAX, Awaited::Outcome);
            }
        }
    }

    pub(in super::super) fn registers(&self) -> Option<&Registers> {
        self.registers.as_deref()
    }

    /// Segments of the round that moves next.
    fn total(&self, plan: &Plan) -> u64 {
        plan.segments() * self.registers.as_ref().map_or(1, |registers| registers.groups())
    }

    /// The group of a segment, and its place in that.
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

    /// Claims the next segment if every rank has filled it. No rank keeps a claim while it waits for
    /// another one: it may have to leave the library.
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

    /// What the cell of the next claim holds, as far as this rank knows.
    fn belief(&self, cx: &mut Context, cells: &impl Cells) -> u64 {
        if self.claim_host(cx) != cx.plan.host() {
            return self.claims.found;
        }
        cells.load(cx.plan.claim(self.claims.round, self.share(cx)))
    }

    /// Says how many segments it moved since it last did.
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

    /// The share to claim from: the own one first, so that the same rank touches the same memory
    /// round after round, then those of others.
    fn share(&self, Context { plan, .. }: &Context) -> u64 {
        (self.claims.own + self.claims.exhausted) % plan.shares()
    }

    /// Of the round that moves next.
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

    /// Reads what a segment needs from other hosts; whether there is anything to read.
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

    /// Whether no member of a group is on this host.
    fn is_sent_on(&self, group: usize, Context { plan, .. }: &Context) -> bool {
        let registers = self.registers.as_ref();
        registers.is_some_and(|registers| registers.goals(group, plan.host(), plan).next().is_none())
    }

    /// Writes a segment of the outcome to every other host that wants it.
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

    /// Whether no rank waits for a segment of this rank, or to be woken by it.
    pub(crate) fn has_nothing_pending(&self) -> bool {
        self.claims.stage == ClaimStage::Idle && self.claims.batch == 0
    }

    /// Whether it has said how many segments it moved.
    pub(crate) fn has_counted(&self) -> bool {
        self.claims.batch == 0
    }

    /// The host that is asked for a segment.
    pub(crate) fn asked(&self) -> Option<u32> {
        match self.claims.stage {
            ClaimStage::Claiming { host, .. } => Some(host),
            _ => None,
        }
    }

    /// The piece of the round that some rank has to fill before there is more to move.
    pub(crate) fn awaited(&self, cx: &Context) -> Option<u64> {
        self.claims.awaited.filter(|_| self.claims.round > cx.ledger.landed())
    }

    /// The ranks that have to fill it.
    pub(crate) fn unfilled(&self, cx: &Context, cells: &impl Cells, missing: &mut RankSet) {
        if let Some(piece) = self.awaited(cx) {
            lacking(self.claims.round, piece, cx, cells).for_each(|rank| missing.insert(rank));
        }
    }
}

/// Synchronous: clears the claims of a round, if they lie in this rank's memory. All took round `round - 1`, so no rank
/// looks at what this slot held before; and none claims before it sees the tag that follows.
pub(super) fn clear_claims(round: u64, cx: &mut Context) {
    if cx.ledger.home(round, &cx.plan) == cx.plan.me {
        let host = cx.plan.host();
        let token = cx.outbox.count(Counted::Push, host);
        cx.outbox.clear(host, round, token, &cx.plan);
    }
}

/// Of this rank's contribution in a buffer, `pieces` pieces are not there. No rank looks at that before it learns of the
/// arrival.
pub(crate) fn lack(buffer: u32, pieces: u64, plan: &Plan, outbox: &mut Outbox) {
    outbox.push(Op::Store { cell: plan.unfilled(plan.me, buffer), value: pieces });
}

/// The same after a piece was filled.
pub(crate) fn fill(buffer: u32, missing: u64, plan: &Plan, outbox: &mut Outbox) {
    lack(buffer, missing, plan, outbox);
    if !plan.fault(Fault::ForgetWakeForPieces) {
        outbox.push(Op::Fence);
        outbox.wake(u32::MAX, Awaited::Piece);
    }
}

/// The ranks whose contributions to a round lack a piece.
fn lacking<'a>(round: u64, piece: u64, cx: &'a Context, cells: &'a impl Cells) -> impl Iterator<Item = u32> + 'a {
    let Context { plan, ledger, .. } = cx;
    let there = plan.pieces() - piece;
    let waits = !plan.fault(Fault::ReadUnfilled);
    let missing = move |rank, buffer| cells.load(plan.unfilled(rank, buffer));
    let lacks = ledger.cut(round).contributions().filter(move |entry| missing(entry.rank, entry.buffer) >= there);
    lacks.filter(move |_| waits).map(|entry| entry.rank)
}

/// Whether every contribution to a round is there.
fn is_filled(round: u64, cx: &Context, cells: &impl Cells) -> bool {
    let pieces = cx.plan.pieces();
    pieces == 1 || lacking(round, pieces - 1, cx, cells).next().is_none()
}
