//! Movers: whoever waits claims segments of the oldest round that has not landed, reduces them
//! and writes them where they are wanted.

use super::cut::Cut;
use super::machine::{Cells, Machine};
use super::op::{Counted, Interest, Op, Token};
use crate::fabric::Atomic;
use crate::fault::Fault;

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Mover {
    round: u64,
    /// Shares that are known to be claimed to the end.
    exhausted: u64,
    /// Segments moved and not yet counted as landed.
    batch: u64,
    /// Every contribution is there, to the last segment.
    filled: bool,
    /// The piece that somebody has to fill before there is more to claim.
    awaited: Option<u64>,
    stage: Stage,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Stage {
    #[default]
    Idle,
    Claiming {
        /// The ticket that it wants; nothing if it takes the next one.
        wanted: Option<u64>,
        host: u32,
    },
    /// So many pieces of the segment are not here yet.
    Reading {
        segment: u64,
        missing: u32,
    },
    Counting,
}

impl Mover {
    /// The host that is asked for a segment.
    pub(super) fn asked(&self) -> Option<u32> {
        match self.stage {
            Stage::Claiming { host, .. } => Some(host),
            _ => None,
        }
    }

    /// Whether nobody waits for a segment of this rank, or to be woken by it.
    pub(super) fn owes_nothing(&self) -> bool {
        self.stage == Stage::Idle && self.batch == 0
    }
}

impl Machine {
    /// The round and the piece of it without which there is nothing to move.
    pub(super) fn awaited(&self) -> Option<(u64, u64)> {
        let Mover { round, awaited, .. } = self.mover;
        awaited.map(|piece| (round, piece)).filter(|_| round > self.landed)
    }

    pub(super) fn step_mover(&mut self, cells: &impl Cells) {
        if self.landed >= self.fired || self.mover.stage != Stage::Idle {
            return;
        }
        let round = self.landed + 1;
        if self.mover.round != round {
            debug_assert_eq!(self.mover.batch, 0);
            self.mover = Mover { round, ..Mover::default() };
        }
        if self.mover.exhausted < self.plan.shares() {
            self.mover.filled = self.mover.filled || self.is_filled(round, cells);
            if self.mover.filled {
                self.claim(None);
            } else {
                self.claim_filled(cells);
            }
        } else {
            self.count_segments();
        }
    }

    fn claim(&mut self, wanted: Option<u64>) {
        let cell = self.plan.claim(self.mover.round, self.share());
        let atomic = match wanted {
            None => Atomic::FetchAdd(1),
            Some(ticket) => Atomic::CompareSwap { expect: ticket, new: ticket + 1 },
        };
        self.mover.awaited = None;
        let host = self.claim_host();
        self.mover.stage = Stage::Claiming { wanted, host };
        self.atomic(host, cell, atomic, Token::Claim);
    }

    /// Claims the next segment if everybody has filled it. Nobody keeps a claim while it waits for
    /// somebody else: it may have to leave the library.
    fn claim_filled(&mut self, cells: &impl Cells) {
        let (round, share) = (self.mover.round, self.share());
        let ticket = cells.load(self.plan.claim(round, share));
        let (from, to) = self.plan.share(share);
        if from.saturating_add(ticket) >= to {
            self.mover.exhausted += 1;
            self.mover.awaited = None;
            self.transitions += 1;
            return;
        }
        let piece = self.plan.piece_of(share, ticket);
        if self.lacking(round, piece, cells).next().is_some() {
            let already = self.mover.awaited.replace(piece) == Some(piece);
            self.stats.awaited += u64::from(!already);
            self.count_segments();
        } else {
            self.claim(Some(ticket));
        }
    }

    /// Says how many segments it moved since it last did.
    pub(crate) fn count_segments(&mut self) {
        if self.mover.batch > 0 && self.mover.stage == Stage::Idle {
            self.mover.stage = Stage::Counting;
            let cell = self.plan.done(self.mover.round);
            self.atomic(self.plan.host(), cell, Atomic::FetchAdd(self.mover.batch), Token::Done);
        }
    }

    /// The share to claim from: the own one first, so that the same rank touches the same memory
    /// round after round, then those of others.
    fn share(&self) -> u64 {
        let own = u64::from(self.plan.me) * self.plan.shares() / u64::from(self.plan.ranks);
        (own + self.mover.exhausted) % self.plan.shares()
    }

    /// Who was active in the round decides where its claims lie, and that is known from its cut:
    /// those active now and those who left since.
    fn claim_host(&mut self) -> u32 {
        if self.plan.topology.hosts() == 1 {
            return self.plan.host();
        }
        let round = self.mover.round;
        self.next_active.clone_from(&self.active);
        for later in round..=self.fired {
            let slot = self.plan.slot(later);
            self.cuts[slot].leaving().for_each(|rank| self.next_active.insert(rank));
        }
        self.plan.host_of(self.plan.home(round, &self.next_active))
    }

    pub(super) fn complete_move(&mut self, token: Token, value: u64) {
        match (token, self.mover.stage.clone()) {
            // Somebody else was faster.
            (Token::Claim, Stage::Claiming { wanted: Some(ticket), .. }) if ticket != value => {
                self.mover.stage = Stage::Idle;
            }
            (Token::Claim, Stage::Claiming { .. }) => self.claimed(value),
            (Token::Done, Stage::Counting) => self.counted(value),
            (token, stage) => debug_assert!(false, "{token:?} completed in stage {stage:?}"),
        }
    }

    /// One of the pieces that a segment is reduced from.
    pub(super) fn piece_is_here(&mut self) {
        match self.mover.stage {
            Stage::Reading { segment, missing: 1 } => self.combine(segment),
            Stage::Reading { segment, missing } => {
                self.mover.stage = Stage::Reading { segment, missing: missing - 1 };
            }
            ref stage => debug_assert!(false, "a piece arrived in stage {stage:?}"),
        }
    }

    fn claimed(&mut self, ticket: u64) {
        let (from, to) = self.plan.share(self.share());
        let segment = from.saturating_add(ticket);
        if segment >= to {
            self.mover.exhausted += 1;
            self.mover.stage = Stage::Idle;
            return;
        }
        let missing = self.read_remote_pieces(segment);
        if missing > 0 {
            self.mover.stage = Stage::Reading { segment, missing };
        } else {
            self.combine(segment);
        }
    }

    /// Starts reading the pieces of a segment that lie on other hosts; says how many.
    fn read_remote_pieces(&mut self, segment: u64) -> u32 {
        let (from, len) = self.plan.segment_span(segment);
        if self.plan.topology.hosts() == 1 || len == 0 {
            return 0;
        }
        let slot = self.plan.slot(self.mover.round);
        let cut = std::mem::take(&mut self.cuts[slot]);
        let missing = self.read_from_elsewhere(&cut, (from, len));
        self.cuts[slot] = cut;
        missing
    }

    /// Starts reading so many bytes, from an offset on, of the contributions that lie on other hosts; says of
    /// how many.
    pub(super) fn read_from_elsewhere(&mut self, cut: &Cut, (from, len): (usize, usize)) -> u32 {
        let mut missing = 0;
        for (row, entry) in cut.contributions().enumerate() {
            let host = self.plan.host_of(entry.rank);
            if host != self.plan.host() {
                let from = self.plan.contribution(entry.rank, entry.buffer) + from;
                let token = self.count(Counted::Read, host);
                self.push(Op::Read { host, from, len, row, token });
                missing += 1;
            }
        }
        missing
    }

    fn combine(&mut self, segment: u64) {
        let round = self.mover.round;
        if !(self.plan.fault(Fault::SkipSegment) && segment + 1 == self.plan.segments()) {
            self.push(Op::Combine { round, segment });
        }
        if self.plan.topology.hosts() > 1 {
            self.land_round_elsewhere(round, segment);
        }
        self.stats.segments += 1;
        self.mover.batch += 1;
        self.mover.stage = Stage::Idle;
    }

    /// As [`Machine::land_segment_elsewhere`], for a round that already fired: its receivers are
    /// those active now and those who left since.
    fn land_round_elsewhere(&mut self, round: u64, segment: u64) {
        self.claim_host();
        std::mem::swap(&mut self.active, &mut self.next_active);
        self.land_segment_elsewhere(round, segment);
        std::mem::swap(&mut self.active, &mut self.next_active);
    }

    fn counted(&mut self, before: u64) {
        let round = self.mover.round;
        let after = before + self.mover.batch;
        self.mover.batch = 0;
        self.mover.stage = Stage::Idle;
        if after >= self.plan.uses(round) * self.plan.segments() {
            self.wake(u32::MAX, Interest::Outcome);
        }
    }
}
