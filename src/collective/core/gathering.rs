//! Small synchronous rounds of ranks that do not share memory: arrivals go to the round's home, which
//! reduces and tells everybody. That takes 2 (P - 1) messages, where everybody telling everybody takes
//! P (P - 1).
//!
//! The home has arrived like all others, and may be computing now. Whoever has waited for a while asks
//! for every rank's tag, where that rank keeps it; when all are there it reads the contributions and
//! reduces them for itself, in the same order, so to the same bits. It does so into memory of its
//! own, because the home may write to the other at any time.

use super::Time;
use super::cut::{Cut, Entry, Part};
use super::machine::{Cells, Machine};
use super::op::{Interest, Op, Token};
use super::plan::{Path, Plan, buffer_of};
use super::tag::Tag;
use crate::fabric::{Atomic, Change};
use crate::fault::Fault;

/// How much longer the home is waited for in the end than at first.
const MOST_PAUSE: Time = 64;

/// How far a rank is with making a round for itself.
#[derive(Clone, Debug, Hash)]
pub(super) struct Pull {
    stage: Stage,
    /// When it asks next.
    next_at: Time,
    pause: Time,
    /// What it knows of the round's parts.
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
    /// So many contributions are not here yet.
    Reading {
        round: u64,
        missing: u32,
    },
}

impl Pull {
    pub(super) fn new(plan: &Plan) -> Self {
        // Where it is of no use it takes no memory: explorers clone machines by the million.
        let cut = if plan.path == Path::Gathered { Cut::with_room_for(plan.ranks) } else { Cut::default() };
        Pull { stage: Stage::Idle, next_at: Time::MAX, pause: 0, cut, lacking: None, pulled: 0 }
    }

    /// An arrival was shown: the home has so long.
    pub(super) fn wait(&mut self, now: Time, pause: Time) {
        (self.next_at, self.pause, self.lacking) = (now + pause, pause, None);
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

/// What a home says when a round's outcome is in place, and whether there is no more to know: everybody
/// who is active takes part, with weight 1.
fn word(round: u64, plain: bool) -> u64 {
    round << 1 | u64::from(plain)
}

impl Machine {
    /// Where the outcome of the newest round lies in the data region of this rank's host.
    pub(crate) fn outcome_at(&self, round: u64) -> usize {
        if self.is_pulled(round) { self.plan.pulled_outcome() } else { self.plan.outcome(round) }
    }

    /// Whether this rank made a round for itself, from what it read.
    pub(crate) fn is_pulled(&self, round: u64) -> bool {
        self.plan.path == Path::Gathered && self.pull.pulled == round
    }

    pub(super) fn is_home(&self) -> bool {
        self.plan.gathering_home(&self.active) == self.plan.me
    }

    fn is_open(&self) -> bool {
        let round = self.fired + 1;
        !self.left && self.arrival.as_ref().is_some_and(|arrival| arrival.is_tagged(round))
    }

    /// The home: the round has fired when every tag is here. The others: when the home says so.
    pub(super) fn learn_gathered(&mut self, cells: &impl Cells) {
        let round = self.fired + 1;
        if !self.is_open() {
            return;
        }
        if self.is_home() {
            if self.cut_by_tags(round, cells) {
                self.hand_out(round);
                self.fire(round);
            }
            return;
        }
        let told = cells.load(self.plan.done(round));
        let slot = self.plan.slot(round);
        if told == word(round, true) {
            let (cut, buffer) = (&mut self.cuts[slot], buffer_of(round));
            (cut.round, cut.initiator) = (round, None);
            cut.entries.clear();
            let entry = |rank| Entry { rank, part: Part::Fresh, age: 0, weight: 1, buffer };
            cut.entries.extend(self.active.iter().map(entry));
        } else if told != word(round, false) || !self.read_record(round, cells) {
            return;
        }
        self.fire(round);
    }

    /// Reduces, and tells everybody who takes part.
    fn hand_out(&mut self, round: u64) {
        let cut = self.cut(round);
        let plain = cut.entries.iter().all(|entry| entry.part == Part::Fresh && entry.weight == 1);
        let (at, len, cell) = (self.plan.outcome(round), self.plan.bytes, self.plan.done(round));
        let data = (len > 0).then_some((at, at, len));
        let (host, value) = (self.plan.host(), word(round, plain));
        let slot = self.plan.slot(round) as u32;
        let token = Token::Outcome { slot };
        self.push(Op::Combine { round, segment: 0 });
        if !plain {
            self.outcomes_under_way[slot as usize] += 1;
            self.push(Op::Publish { host, round, token });
        }
        self.push(Op::Store { cell, value });
        self.for_receivers_elsewhere(|machine, host| {
            machine.outcomes_under_way[slot as usize] += 1 + u32::from(!plain);
            machine.stats.activations += 1;
            if !plain {
                machine.push(Op::Publish { host, round, token });
            }
            machine.push(Op::Signal { host, data, cell, change: Change::Set(value), token });
        });
        if self.plan.topology.is_shared(host) {
            self.wake(u32::MAX, Interest::Outcome);
        }
    }

    /// Does the home's work for itself if that takes too long.
    pub(super) fn step_gathered(&mut self, now: Time) {
        if self.pull.stage == Stage::Idle && now >= self.pull.next_at && self.is_open() && !self.is_home() {
            match self.pull.lacking {
                Some(rank) => self.ask(rank),
                None => self.ask_all(),
            }
        }
    }

    fn ask_all(&mut self) {
        self.pull.cut.entries.clear();
        self.ask_from(0);
    }

    fn ask(&mut self, rank: u32) {
        let (round, buffer) = (self.fired + 1, buffer_of(self.fired + 1));
        self.pull.stage = Stage::Asking { round, rank };
        let (host, cell) = (self.plan.host_of(rank), self.plan.tag(rank, buffer));
        self.atomic(host, cell, Atomic::FetchAdd(0), Token::Probe);
    }

    /// When it would.
    pub(super) fn next_pull(&self) -> Option<Time> {
        let waits = self.plan.path == Path::Gathered && self.pull.stage == Stage::Idle && self.is_open();
        (waits && !self.is_home()).then_some(self.pull.next_at)
    }

    /// Whom a rank that is not the home waits for, as far as it knows: whoever owes it an answer, had not
    /// arrived when it last asked, or is the home.
    pub(super) fn pull_waits_for(&self, rank: u32) -> bool {
        match self.pull.stage {
            Stage::Asking { rank: asked, .. } => rank == asked,
            Stage::Reading { .. } => self.pull.cut.contributions().any(|entry| entry.rank == rank),
            Stage::Idle => rank == self.pull.lacking.unwrap_or(self.plan.gathering_home(&self.active)),
        }
    }

    /// Asks for the tag of the next rank; behind the last one reads what they all contributed.
    fn ask_from(&mut self, first: u32) {
        let (round, me) = (self.fired + 1, self.plan.me);
        let Some(arrival) = &self.arrival else { return };
        let (part, weight, buffer) = (arrival.part, arrival.weight, arrival.buffer);
        let mut next = self.active.next(first);
        if next == Some(me) {
            self.pull.cut.entries.push(Entry { rank: me, part, age: 0, weight, buffer });
            next = self.active.next(me + 1);
        }
        if let Some(rank) = next {
            return self.ask(rank);
        }
        let mut missing = 0;
        let cut = std::mem::take(&mut self.pull.cut);
        for (row, entry) in cut.contributions().enumerate() {
            let host = self.plan.host_of(entry.rank);
            if host != self.plan.host() && self.plan.bytes > 0 {
                let from = self.plan.contribution(entry.rank, entry.buffer);
                self.push(Op::Read { host, from, len: self.plan.bytes, row, token: Token::Read });
                missing += 1;
            }
        }
        self.pull.cut = cut;
        self.pull.stage = Stage::Reading { round, missing };
        if missing == 0 {
            self.have_read(round);
        }
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
                let buffer = self.arrival.as_ref().map_or(0, |arrival| arrival.buffer);
                self.pull.cut.entries.push(Entry { rank, part, age: 0, weight: tag.weight, buffer });
                self.ask_from(rank + 1);
            }
            Stage::Reading { round, missing } if missing > 1 => {
                self.pull.stage = Stage::Reading { round, missing: missing - 1 };
            }
            Stage::Reading { round, .. } => self.have_read(round),
            Stage::Idle => debug_assert!(false, "an answer to no question"),
        }
    }

    /// Everything of a round was read. Meanwhile the home may have told of it.
    fn have_read(&mut self, round: u64) {
        self.pull.stage = Stage::Idle;
        if round != self.fired + 1 {
            return;
        }
        let slot = self.plan.slot(round);
        self.pull.cut.round = round;
        std::mem::swap(&mut self.cuts[slot], &mut self.pull.cut);
        self.pull.pulled = round;
        self.stats.pulled += 1;
        self.push(Op::Combine { round, segment: 0 });
        self.fire(round);
    }
}
