//! Making a round for oneself when its homes take too long: they have arrived, and may be computing now.
//!
//! Of a gathered round only its home knows who has arrived. So whoever has waited for a while asks for
//! every rank's tag, where that rank keeps it, until all are there; of a scattered round everybody has
//! the tags. Then it reads the contributions, a part at a time, and reduces them for itself, in the same
//! order, so to the same bits. It does so into memory of its own, because the homes may write to the
//! other at any time.

use super::Time;
use super::cut::Cut;
use super::entry::{Entry, Part};
use super::machine::Machine;
use super::op::{Counted, Op, Token};
use super::plan::{Path, Plan};
use super::tag::Tag;
use crate::fabric::Atomic;
use crate::fault::Fault;

/// How much longer the home is waited for in the end than at first.
const MOST_PAUSE: Time = 64;

/// How far a rank is with making a round for itself.
#[derive(Clone, Debug, Hash)]
pub(super) struct Pull {
    stage: Stage,
    /// The round whose homes have until `next_at`.
    awaited: u64,
    /// When it asks next.
    next_at: Time,
    pause: Time,
    /// The cut of the round, as far as it knows.
    cut: Cut,
    /// Who had not arrived when it asked last, and is asked first.
    lacking: Option<u32>,
    /// The newest round that it made for itself.
    pulled: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    /// Of this rank the tag was asked for.
    Asking {
        round: u64,
        rank: u32,
    },
    /// Of a part of the data, so many contributions are not here yet.
    Reading {
        round: u64,
        part: usize,
        missing: u32,
    },
}

impl Pull {
    pub(super) fn new(plan: &Plan) -> Self {
        // Where it is of no use it takes no memory: explorers clone machines by the million.
        let cut = if plan.path.has_homes() { Cut::with_room_for(plan.ranks) } else { Cut::default() };
        Pull { stage: Stage::Idle, awaited: 0, next_at: Time::MAX, pause: 0, cut, lacking: None, pulled: 0 }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    fn give_up(&mut self, now: Time, first: Time) {
        self.stage = Stage::Idle;
        self.next_at = now + self.pause;
        self.pause = (2 * self.pause).min(MOST_PAUSE * first);
    }
}

impl Machine {
    /// Where the outcome of the newest round lies in the data region of this rank's host.
    pub(crate) fn outcome_at(&self, round: u64) -> usize {
        if self.is_pulled(round) { self.plan.pulled_outcome() } else { self.plan.outcome(round) }
    }

    /// Whether this rank made a round for itself, from what it read.
    pub(crate) fn is_pulled(&self, round: u64) -> bool {
        self.plan.path.has_homes() && self.pull.pulled == round
    }

    /// The cut of a round that this rank makes for itself.
    pub(crate) fn pulled_cut(&self) -> &Cut {
        &self.pull.cut
    }

    /// The round for which this rank depends on homes.
    fn depends_on_homes(&self) -> Option<u64> {
        match self.plan.path {
            Path::Gathered => (self.is_open() && !self.is_home()).then_some(self.fired + 1),
            Path::Scattered => (self.landed < self.fired && !self.is_pulled(self.fired)).then_some(self.fired),
            _ => None,
        }
    }

    /// Does the homes' work for itself if that takes too long.
    pub(super) fn step_pull(&mut self, now: Time) {
        if self.pull.stage != Stage::Idle {
            return;
        }
        let Some(round) = self.depends_on_homes() else { return };
        if self.pull.awaited != round {
            let pause = self.plan.pull_after;
            (self.pull.awaited, self.pull.lacking) = (round, None);
            (self.pull.next_at, self.pull.pause) = (now + pause, pause);
        }
        if now < self.pull.next_at {
            return;
        }
        match self.pull.lacking {
            _ if self.plan.path == Path::Scattered => {
                let cut = &self.cuts[self.plan.slot(round)];
                self.pull.cut.entries.clone_from(&cut.entries);
                self.read_part(round, 0);
            }
            Some(rank) => self.ask(rank),
            None => self.ask_all(),
        }
    }

    /// When it would.
    pub(super) fn next_pull(&self) -> Option<Time> {
        let waits = self.pull.is_idle() && self.depends_on_homes() == Some(self.pull.awaited);
        waits.then_some(self.pull.next_at)
    }

    fn ask_all(&mut self) {
        self.pull.cut.entries.clear();
        self.ask_from(0);
    }

    fn ask(&mut self, rank: u32) {
        let round = self.fired + 1;
        self.pull.stage = Stage::Asking { round, rank };
        let (host, cell) = (self.plan.host_of(rank), self.plan.tag(rank, Plan::tag_of(round)));
        self.atomic(host, cell, Atomic::FetchAdd(0), Token::Probe);
    }

    /// Whom a rank that is not the home of a gathered round waits for, as far as it knows: whoever owes it
    /// an answer, had not arrived when it last asked, or is the home.
    pub(super) fn pull_waits_for(&self, rank: u32) -> bool {
        match self.pull.stage {
            Stage::Asking { rank: asked, .. } => rank == asked,
            Stage::Reading { .. } => self.in_flight.has_towards(Counted::Read, self.plan.host_of(rank)),
            Stage::Idle => self.pull.lacking.map_or_else(|| self.homes.contain(rank), |lacking| rank == lacking),
        }
    }

    /// Asks for the tag of the next rank; behind the last one reads what they all contributed.
    fn ask_from(&mut self, first: u32) {
        let me = self.plan.me;
        let Some(arrival) = &self.arrival else { return };
        let (part, weight, buffer) = (arrival.part, arrival.weight, arrival.buffer);
        let mut next = self.active.next(first);
        if next == Some(me) {
            self.pull.cut.entries.push(Entry::new(me, part, (0, weight), buffer));
            next = self.active.next(me + 1);
        }
        match next {
            Some(rank) => self.ask(rank),
            None => self.read_part(self.fired + 1, 0),
        }
    }

    /// Reads a part of all contributions; behind the last one the round is made.
    fn read_part(&mut self, round: u64, first: usize) {
        for part in first..self.plan.parts() {
            let cut = std::mem::take(&mut self.pull.cut);
            let missing = self.read_from_elsewhere(&cut, self.plan.part_span(part));
            self.pull.cut = cut;
            if missing > 0 {
                self.pull.stage = Stage::Reading { round, part, missing };
                return;
            }
            self.push(Op::Pull { part });
        }
        self.pulled(round);
    }

    /// A tag that was asked for, or a contribution that was read.
    pub(super) fn pull_answered(&mut self, value: u64, now: Time) {
        match self.pull.stage {
            // The home has told of it meanwhile.
            Stage::Asking { round, .. } if round != self.fired + 1 => self.pull.stage = Stage::Idle,
            Stage::Asking { round, rank } => {
                let tag = Tag::from_cell(value);
                if tag.target != round && !self.plan.fault(Fault::PullUnasked) {
                    self.pull.lacking = Some(rank);
                    return self.pull.give_up(now, self.plan.pull_after);
                }
                if self.pull.lacking.take().is_some() {
                    return self.ask_all();
                }
                let part = if tag.leaving { Part::Leaving } else { Part::Fresh };
                self.pull.cut.entries.push(Entry::new(rank, part, (0, tag.weight), tag.buffer));
                self.ask_from(rank + 1);
            }
            Stage::Reading { round, part, missing } if missing > 1 => {
                self.pull.stage = Stage::Reading { round, part, missing: missing - 1 };
            }
            Stage::Reading { round, part, .. } => self.have_read(round, part),
            Stage::Idle => debug_assert!(false, "an answer to no question"),
        }
    }

    /// A part of all contributions is here. Meanwhile the homes may have told of the round.
    fn have_read(&mut self, round: u64, part: usize) {
        self.pull.stage = Stage::Idle;
        if self.depends_on_homes() == Some(round) {
            self.push(Op::Pull { part });
            self.read_part(round, part + 1);
        }
    }

    fn pulled(&mut self, round: u64) {
        self.pull.stage = Stage::Idle;
        self.pull.pulled = round;
        self.stats.pulled += 1;
        self.transitions += 1;
        if self.plan.path == Path::Gathered {
            let cut = &mut self.cuts[self.plan.slot(round)];
            (cut.round, cut.initiator) = (round, None);
            cut.entries.clone_from(&self.pull.cut.entries);
            self.fire(round);
        }
    }
}
