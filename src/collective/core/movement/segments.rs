//! Segments: ranks that wait claim those of the oldest round that has not landed, reduce them and write them where they
//! are wanted.
//!
//! Where ranks share memory, a contribution may be handed in first and filled then. A caller that keeps its data
//! elsewhere has to copy it, and large data that is copied whole has left the caches before it is reduced. So the data
//! follows the arrival in *pieces* of some segments each. A cell beside the buffer's tag says how many are missing, and a
//! segment is claimed when every rank has filled its piece. A rank that fills is inside a call and depends on no other.

use super::super::context::Context;
use super::super::input::Cells;
use super::super::op::{Counted, Interest, Op, Token};
use super::super::outbox::Outbox;
use super::super::plan::Plan;
use crate::fabric::Atomic;
use crate::fault::Fault;
use crate::rank_set::RankSet;

/// What this rank has claimed of a round.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Segments {
    round: u64,
    /// Shares that are known to be claimed to the end.
    exhausted: u64,
    /// Segments moved and not yet counted as landed.
    batch: u64,
    /// Every contribution is there, to the last segment.
    filled: bool,
    /// The piece that a rank has to fill before there is more to claim.
    awaited: Option<u64>,
    stage: ClaimStage,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum ClaimStage {
    #[default]
    Idle,
    Claiming {
        /// The ticket that it wants; nothing if it takes the next one.
        wanted: Option<u64>,
        host: u32,
    },
    /// Some contributions to the segment are not here yet.
    Reading {
        segment: u64,
    },
    Counting,
}

impl Segments {
    #[inline(never)]
    pub(super) fn step(&mut self, cx: &mut Context, cells: &impl Cells) {
        if cx.ledger.landed() >= cx.ledger.fired() || self.stage != ClaimStage::Idle {
            return;
        }
        let round = cx.ledger.landed() + 1;
        if self.round != round {
            debug_assert_eq!(self.batch, 0);
            *self = Segments { round, ..Segments::default() };
        }
        if self.exhausted < cx.plan.shares() {
            self.filled = self.filled || is_filled(round, cx, cells);
            if self.filled {
                self.claim(None, cx);
            } else {
                self.claim_filled(cx, cells);
            }
        } else {
            self.count(cx);
        }
    }

    fn claim(&mut self, wanted: Option<u64>, cx: &mut Context) {
        let cell = cx.plan.claim(self.round, self.share(cx));
        let atomic = match wanted {
            None => Atomic::FetchAdd(1),
            Some(ticket) => Atomic::CompareSwap { expect: ticket, new: ticket + 1 },
        };
        self.awaited = None;
        let host = self.claim_host(cx);
        self.stage = ClaimStage::Claiming { wanted, host };
        cx.outbox.atomic(host, cell, atomic, Token::Claim);
    }

    /// Claims the next segment if every rank has filled it. No rank keeps a claim while it waits for
    /// another one: it may have to leave the library.
    fn claim_filled(&mut self, cx: &mut Context, cells: &impl Cells) {
        let share = self.share(cx);
        let ticket = cells.load(cx.plan.claim(self.round, share));
        let (from, to) = cx.plan.share(share);
        if from.saturating_add(ticket) >= to {
            self.exhausted += 1;
            self.awaited = None;
            return cx.outbox.note();
        }
        let piece = cx.plan.piece_of(share, ticket);
        if lacking(self.round, piece, cx, cells).next().is_some() {
            let already = self.awaited.replace(piece) == Some(piece);
            cx.stats.awaited += u64::from(!already);
            self.count(cx);
        } else {
            self.claim(Some(ticket), cx);
        }
    }

    /// Says how many segments it moved since it last did.
    pub(crate) fn count(&mut self, cx: &mut Context) {
        if self.batch > 0 && self.stage == ClaimStage::Idle {
            self.stage = ClaimStage::Counting;
            let cell = cx.plan.done(self.round);
            cx.outbox.atomic(cx.plan.host(), cell, Atomic::FetchAdd(self.batch), Token::Done);
        }
    }

    /// The share to claim from: the own one first, so that the same rank touches the same memory
    /// round after round, then those of others.
    fn share(&self, Context { plan, .. }: &Context) -> u64 {
        let own = u64::from(plan.me) * plan.shares() / u64::from(plan.ranks);
        (own + self.exhausted) % plan.shares()
    }

    /// The ranks that were active in the round decide where its claims lie, and its cut names them.
    fn claim_host(&self, cx: &mut Context) -> u32 {
        if cx.plan.topology.hosts() == 1 {
            return cx.plan.host();
        }
        cx.plan.host_of(cx.plan.home(self.round, cx.ledger.active_in(self.round)))
    }

    pub(super) fn complete(&mut self, token: Token, value: u64, cx: &mut Context) {
        match (token, &self.stage) {
            (Token::Counted { .. }, ClaimStage::Reading { .. }) if cx.outbox.has(Counted::Read) => {}
            (Token::Counted { .. }, &ClaimStage::Reading { segment }) => self.combine(segment, cx),
            // Another rank was faster.
            (Token::Claim, &ClaimStage::Claiming { wanted: Some(ticket), .. }) if ticket != value => {
                self.stage = ClaimStage::Idle;
            }
            (Token::Claim, ClaimStage::Claiming { .. }) => self.claimed(value, cx),
            (Token::Done, ClaimStage::Counting) => self.counted(value, cx),
            (token, stage) => debug_assert!(false, "{token:?} completed in stage {stage:?}"),
        }
    }

    fn claimed(&mut self, ticket: u64, cx: &mut Context) {
        let (from, to) = cx.plan.share(self.share(cx));
        let segment = from.saturating_add(ticket);
        if segment >= to {
            self.exhausted += 1;
            self.stage = ClaimStage::Idle;
            return;
        }
        let span = cx.plan.segment_span(segment);
        let elsewhere = cx.plan.topology.hosts() > 1 && span.1 > 0;
        if elsewhere && cx.outbox.read_from_elsewhere(&cx.plan, cx.ledger.cut(self.round), span) {
            self.stage = ClaimStage::Reading { segment };
        } else {
            self.combine(segment, cx);
        }
    }

    fn combine(&mut self, segment: u64, cx: &mut Context) {
        let round = self.round;
        if !(cx.plan.fault(Fault::SkipSegment) && segment + 1 == cx.plan.segments()) {
            let (from, len) = cx.plan.segment_span(segment);
            cx.outbox.push(Op::Combine { round, from, len });
        }
        if cx.plan.topology.hosts() > 1 {
            cx.outbox.land_elsewhere(&cx.plan, round, segment, cx.ledger.active_in(round));
        }
        cx.stats.segments += 1;
        self.batch += 1;
        self.stage = ClaimStage::Idle;
    }

    fn counted(&mut self, before: u64, cx: &mut Context) {
        let after = before + self.batch;
        self.batch = 0;
        self.stage = ClaimStage::Idle;
        if after >= cx.plan.uses(self.round) * cx.plan.segments() {
            cx.outbox.wake(u32::MAX, Interest::Outcome);
        }
    }

    /// Whether no rank waits for a segment of this rank, or to be woken by it.
    pub(crate) fn owes_nothing(&self) -> bool {
        self.stage == ClaimStage::Idle && self.batch == 0
    }

    /// The host that is asked for a segment.
    pub(crate) fn asked(&self) -> Option<u32> {
        match self.stage {
            ClaimStage::Claiming { host, .. } => Some(host),
            _ => None,
        }
    }

    /// The piece of the round that some rank has to fill before there is more to move.
    pub(crate) fn awaited(&self, cx: &Context) -> Option<u64> {
        self.awaited.filter(|_| self.round > cx.ledger.landed())
    }

    /// The ranks that have to fill it.
    pub(crate) fn unfilled(&self, cx: &Context, cells: &impl Cells, missing: &mut RankSet) {
        if let Some(piece) = self.awaited(cx) {
            lacking(self.round, piece, cx, cells).for_each(|rank| missing.insert(rank));
        }
    }
}

/// Synchronous: clears the claims of a round, if they lie in this rank's memory. All took round `round - 1`, so no rank
/// looks at what this slot held before; and none claims before it sees the tag that follows.
pub(super) fn clear_claims(round: u64, cx: &mut Context) {
    if cx.plan.home(round, cx.ledger.active()) == cx.plan.me {
        let host = cx.plan.host();
        let token = cx.outbox.count(Counted::Push, host);
        cx.outbox.push(Op::Clear { host, round, token });
    }
}

/// Of this rank's contribution in a buffer, so many pieces are not there. No rank looks at that before it learns of the
/// arrival.
pub(crate) fn lack(buffer: u32, pieces: u64, plan: &Plan, outbox: &mut Outbox) {
    outbox.push(Op::Store { cell: plan.unfilled(plan.me, buffer), value: pieces });
}

/// The same after a piece was filled.
pub(crate) fn fill(buffer: u32, missing: u64, plan: &Plan, outbox: &mut Outbox) {
    lack(buffer, missing, plan, outbox);
    if !plan.fault(Fault::ForgetWakeForPieces) {
        outbox.push(Op::Fence);
        outbox.wake(u32::MAX, Interest::Piece);
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
