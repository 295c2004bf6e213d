//! One arrival, from being handed in to its place in a round.

use super::Time;
use super::entry::Part;
use super::machine::{Cells, FOREVER, Machine};
use super::op::{Counted, Interest, Op, Token};
use super::plan::{Path, Plan};
use super::tag::Tag;
use super::tree::Effort;
use super::word::{self, Closing};
use crate::fabric::{Atomic, Change};
use crate::fault::Fault;
use crate::rule::{Condition, When, drawn};

/// How soon an arrived rank first looks whether the initiator forgot to close; it doubles.
pub(super) const FIRST_PROBE: Time = 1_000_000;
const LAST_PROBE: Time = 64_000_000;

#[derive(Clone, Debug, Hash)]
pub(super) struct Arrival {
    /// The round that it enters, or tried to.
    pub(super) target: u64,
    /// The round that its contribution was made for.
    pub(super) made_for: u64,
    pub(super) part: Part,
    pub(super) buffer: u32,
    pub(super) weight: u16,
    pub(super) stage: Stage,
    /// When its round closes, whoever is missing.
    close_by: Time,
    waited_for_room: bool,
    /// The host that has not answered the arrival's last atomic, or is clearing the next round's words.
    asked: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Waits for the last receiver of the round that used the slot before.
    Blocked,
    /// By tags: shown to everybody.
    Tagged,
    /// By a program: on its way into the own gate of a round.
    Depositing { round: u64, found: u64 },
    /// In the gate, and about to be counted.
    Counting,
    /// Initiator: marks its gate.
    Initiating { found: u64 },
    /// Initiator: the activation is on its way.
    Starting,
    /// The arrived bit is on its way.
    Adding,
    /// The bit is in; which arrival this is, is being asked.
    Ticketing,
    /// In the word, and the round has not fired as far as is known.
    Open { close_at: Time, probe_at: Time, pause: Time },
    /// Looks whether the round should have been closed by now.
    Probing { pause: Time },
    /// Closes word `index`, believed to hold what [`Machine::words`] says.
    Closing { index: u32 },
    /// Initiator: the cut is closed; waits for the tags of its members.
    Gathering,
    /// Initiator: readies the words of the next round.
    Clearing,
    /// Initiator: the outcome of small data is on its way.
    Landing,
    /// Initiator: the record is on its way.
    Published,
    /// The target fired without it; not placed in any round up to `tried`.
    Late { tried: u64 },
    /// The carried bit is on its way into this round.
    Placing { round: u64 },
    /// Has its place; the caller may have it once round `needs` landed.
    Over { needs: u64 },
}

impl Arrival {
    pub(super) fn new(target: u64, part: Part, buffer: u32, weight: u16) -> Self {
        Arrival {
            target,
            made_for: target,
            part,
            buffer,
            weight,
            stage: Stage::Blocked,
            close_by: Time::MAX,
            waited_for_room: false,
            asked: None,
        }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.stage == Stage::Blocked
    }

    pub(super) fn is_tagged(&self, round: u64) -> bool {
        self.stage == Stage::Tagged && self.target == round
    }

    /// The host whose answer the arrival waits for.
    pub(super) fn asked(&self) -> Option<u32> {
        self.asked
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over { .. })
    }

    pub(super) fn needs(&self) -> u64 {
        match self.stage {
            Stage::Over { needs } => needs,
            _ => FOREVER,
        }
    }
}

impl Machine {
    /// Moves to another stage. Only called while there is an arrival.
    pub(super) fn enter(&mut self, stage: Stage) {
        if let Some(arrival) = &mut self.arrival {
            arrival.stage = stage;
        }
        self.transitions += 1;
    }

    /// An operation of the arrival on a host, which takes it further when it is answered.
    pub(super) fn ask_host(&mut self, host: u32, op: Op) {
        if let Some(arrival) = &mut self.arrival {
            arrival.asked = Some(host);
        }
        self.push(op);
    }

    /// An atomic of the arrival.
    pub(super) fn ask_atomic(&mut self, host: u32, cell: usize, atomic: Atomic, token: Token) {
        self.ask_host(host, Op::Atomic { host, cell, atomic, token });
    }

    pub(super) fn step_arrival(&mut self, now: Time, effort: Effort, cells: &impl Cells) {
        let Some(arrival) = &self.arrival else { return };
        let target = arrival.target;
        match arrival.stage {
            Stage::Blocked => self.try_to_enter(now, cells),
            Stage::Tagged | Stage::Published if self.fired >= target => self.entered(),
            Stage::Open { .. } | Stage::Counting if self.fired >= target => self.entered(),
            Stage::Counting => self.count_arrivals(now, None, cells),
            Stage::Starting => self.started(effort, cells),
            Stage::Open { close_at, .. } if now >= close_at => {
                if now >= arrival.close_by {
                    self.stats.deadlines_expired += 1;
                } else {
                    self.stats.graces_expired += 1;
                }
                match self.plan.path {
                    Path::Program => self.grace_is_over(cells),
                    _ => self.close(),
                }
            }
            Stage::Open { probe_at, pause, .. } if now >= probe_at && self.plan.path == Path::Program => {
                self.count_arrivals(now, Some((2 * pause).min(LAST_PROBE)), cells);
            }
            Stage::Open { probe_at, pause, .. } if now >= probe_at => {
                let cell = match self.condition() {
                    _ if self.one_word() => self.plan.word(target, 0),
                    Condition::Rank(rank) => self.plan.word(target, rank / word::RANKS_PER_WORD),
                    Condition::Count(_) | Condition::Full => self.plan.ticket(target),
                };
                self.ask_atomic(self.home_host(target), cell, Atomic::FetchAdd(0), Token::Probe);
                self.enter(Stage::Probing { pause });
            }
            Stage::Gathering => self.gather(cells),
            Stage::Late { tried } if self.by_deposit(tried + 1) => match self.plan.path {
                Path::Offloaded => self.take_token(tried + 1),
                _ => self.deposit_into(tried + 1, cells),
            },
            Stage::Late { tried } if self.fired >= tried => self.find_a_place(),
            _ => {}
        }
    }

    pub(super) fn one_word(&self) -> bool {
        self.plan.words() == 1
    }

    /// Host of the words of the round that is open next; only defined for `fired + 1`.
    pub(super) fn home_host(&self, round: u64) -> u32 {
        debug_assert_eq!(round, self.fired + 1);
        self.plan.host_of(self.plan.home(round, &self.active))
    }

    /// What the next round waits for.
    pub(super) fn condition(&self) -> Condition {
        let round = self.fired + 1;
        let condition = self.plan.fire.condition(round, &self.active, self.plan.ranks);
        match (condition, self.plan.fire.when()) {
            (Condition::Count(least), _) if self.plan.fault(Fault::MiscountQuorum) => {
                Condition::Count(least.saturating_sub(1).max(1))
            }
            (Condition::Full, _) if self.plan.fault(Fault::FullAsUsual) => Condition::Count(1),
            (Condition::Rank(_), When::Majority(seed)) if self.plan.fault(Fault::DrawnMayBeGone) => {
                Condition::Rank(drawn(seed, round, self.plan.ranks))
            }
            (condition, _) => condition,
        }
    }

    fn closing(&self) -> Closing {
        let at_once = self.pace.grace().is_none();
        Closing { active: self.active.group(0, word::RANKS_PER_WORD), condition: self.condition(), at_once }
    }

    /// The bits that the arrival adds to its round's word.
    fn own_bits(&self) -> u64 {
        let index = self.plan.me % word::RANKS_PER_WORD;
        let own = match self.arrival.as_ref().map(|arrival| arrival.part) {
            Some(Part::Carried) => word::carried_bit(index),
            _ => word::arrived_bit(index),
        };
        let again = self.plan.fault(Fault::RepeatAtomic) && self.fired % 4 == 3;
        (own | self.pending.map_or(0, |_| word::carried_bit(index))) << u32::from(again)
    }

    fn try_to_enter(&mut self, now: Time, cells: &impl Cells) {
        let Some(arrival) = &self.arrival else { return };
        let (target, part, buffer) = (arrival.target, arrival.part, arrival.buffer);
        let by_tags = self.plan.by_tags();
        let late = target <= self.fired;
        if !self.has_room(target, cells) {
            if let Some(arrival) = self.arrival.as_mut().filter(|arrival| !arrival.waited_for_room) {
                arrival.waited_for_room = true;
                self.stats.full_ring += 1;
            }
            return;
        }
        // Of two tags of a buffer, the older one must not land last. (By tags, each round has cells of its own.)
        if !by_tags && self.has_tags_under_way(buffer) {
            return;
        }
        let limit = self.plan.fire.limit().filter(|_| !self.plan.fire.is_full(target));
        let limit = limit.map(|limit| if self.plan.fault(Fault::HastyDeadline) { limit / 2 } else { limit });
        if let Some(arrival) = &mut self.arrival {
            arrival.close_by = limit.map_or(Time::MAX, |limit| now.saturating_add(limit.as_nanos() as Time));
        }
        if self.plan.path == Path::Offloaded {
            return self.take_token(target);
        }
        if self.plan.path == Path::Program {
            if self.plan.weighted && part == Part::Fresh {
                let (cell, value) = self.own_tag();
                self.push(Op::Store { cell, value });
            }
            return self.deposit_into(target, cells);
        }
        if by_tags && self.plan.path == Path::Segmented && self.plan.home(target, &self.active) == self.plan.me {
            // Everybody took round target - 1, so nobody looks at what this slot held before; and
            // nobody claims before seeing the tag that follows.
            let host = self.plan.host();
            let token = self.count(Counted::Push, host);
            self.push(Op::Clear { host, round: target, token });
        }
        if self.plan.path.has_homes() {
            self.settle_homes(target);
        }
        // What comes late to a full round has shown its tag before.
        if part != Part::Carried {
            self.show_tag();
        }
        if by_tags && (self.plan.ranks > 2 || !self.waits_fence_peer) {
            // Of several last arrivals at least one must see all the others, and wake those who
            // sleep. Of two, the one that goes to sleep can fence for both before it looks again.
            self.push(Op::Fence);
        }
        self.arriving = true;
        if self.plan.path == Path::Gathered && self.has_home_beside() {
            self.wake(u32::MAX, Interest::Outcome);
        }
        if by_tags {
            self.enter(Stage::Tagged);
        } else if late {
            self.is_late();
        } else {
            let cell = self.plan.word(target, self.plan.me / word::RANKS_PER_WORD);
            self.ask_atomic(self.home_host(target), cell, Atomic::FetchAdd(self.own_bits()), Token::Arrive);
            self.enter(Stage::Adding);
        }
    }

    /// The tag of the arrival's contribution: its cell and its value.
    fn own_tag(&self) -> (usize, u64) {
        let Some(arrival) = &self.arrival else { return (self.plan.tag(self.plan.me, 0), 0) };
        let leaving = arrival.part == Part::Leaving;
        let weight = if self.plan.fault(Fault::LoseWeight) { 1 } else { arrival.weight };
        let Arrival { target, buffer, .. } = *arrival;
        let number = if self.plan.by_tags() { Plan::tag_of(target) } else { buffer };
        (self.plan.tag(self.plan.me, number), Tag { target, buffer, weight, leaving }.cell())
    }

    /// Shows what a buffer holds to every host, or to the homes where there are some: the data, if it is
    /// pushed, lands before its tag.
    fn show_tag(&mut self) {
        let Some(arrival) = &self.arrival else { return };
        let (me, part, buffer, target) = (self.plan.me, arrival.part, arrival.buffer, arrival.target);
        let (cell, value) = self.own_tag();
        let has_data = part != Part::Leaving && self.plan.bytes > 0;
        self.push(Op::Store { cell, value });
        if self.plan.path.has_homes() {
            return self.show_to_homes(target, (cell, value), (buffer, has_data));
        }
        let data = (self.plan.path.pushes() && has_data).then(|| {
            let to = self.plan.pushed(me, buffer, target);
            (self.plan.contribution(me, buffer), to, self.plan.bytes)
        });
        self.for_receivers_elsewhere(|machine, host| {
            let token = machine.count(Counted::Tag { buffer }, host);
            machine.push(Op::Signal { host, data, cell, change: Change::Set(value), token });
        });
    }

    /// The target has fired with this arrival in it.
    fn entered(&mut self) {
        let Some(arrival) = &self.arrival else { return };
        let (target, made_for, part) = (arrival.target, arrival.made_for, arrival.part);
        debug_assert!(
            self.cut(target).holds(self.plan.me, part),
            "round {target} lacks {part:?} of rank {}",
            self.plan.me
        );
        match part {
            Part::Leaving => self.left = true,
            Part::Fresh => self.stats.fresh += 1,
            Part::Carried => self.stats.jumps += u64::from(target - made_for >= 2),
        }
        self.enter(Stage::Over { needs: target });
    }

    /// Whether a bit is in the cut of `round`, after an addition that returned `before`.
    fn is_in(&self, round: u64, before: u64, part: Part) -> bool {
        if before & word::CLOSED != 0 {
            false
        } else if !self.one_word() {
            true
        } else if self.fired >= round {
            self.cut(round).holds(self.plan.me, part)
        } else {
            !self.closing().closed(before)
        }
    }

    pub(super) fn complete_arrival(&mut self, token: Token, value: u64, now: Time) {
        let Some(arrival) = &mut self.arrival else {
            debug_assert!(false, "{token:?} completed without an arrival");
            return;
        };
        arrival.asked = None;
        let (target, part) = (arrival.target, arrival.part);
        match (token, arrival.stage.clone()) {
            (Token::Arrive, Stage::Adding) => {
                if !self.is_in(target, value, part) {
                    self.stats.late_while_closing += u64::from(part != Part::Leaving);
                    self.is_late();
                } else {
                    self.added(target, value, now);
                }
            }
            (Token::Ticket, Stage::Ticketing) => self.ticketed(target, value, now),
            (Token::Probe, Stage::Probing { pause }) => self.probed(target, value, now, pause),
            (Token::Close, Stage::Closing { index }) => self.close_answered(index, value),
            (Token::Clear, Stage::Clearing) => self.cleared(),
            (Token::Land, Stage::Landing) => self.publish(),
            (Token::Place, Stage::Placing { round }) => {
                if self.is_in(round, value, Part::Carried) {
                    self.stats.jumps += u64::from(round - target >= 2);
                    self.enter(Stage::Over { needs: round - 1 });
                } else {
                    self.enter(Stage::Late { tried: round });
                }
            }
            (token, stage) => debug_assert!(false, "{token:?} completed in stage {stage:?}"),
        }
    }

    /// The arrival's bits are in a word that was open.
    fn added(&mut self, target: u64, before: u64, now: Time) {
        let own = self.plan.me / word::RANKS_PER_WORD;
        let word = before | self.own_bits();
        self.pending = None;
        self.words.fill(0);
        self.words[own as usize] = word;
        if self.fired >= target {
            self.enter(Stage::Published);
        } else if !self.one_word() {
            self.ask_atomic(self.home_host(target), self.plan.ticket(target), Atomic::FetchAdd(1), Token::Ticket);
            self.enter(Stage::Ticketing);
        } else {
            let closing = self.closing();
            if closing.closed_by_arrivals(word) {
                self.closed(target);
            } else {
                self.stay_open(closing.fires(word), !closing.at_once, now, FIRST_PROBE);
            }
        }
    }

    fn ticketed(&mut self, target: u64, before: u64, now: Time) {
        if self.fired >= target {
            return self.enter(Stage::Published);
        }
        let arrivals = before + 1;
        let at_once = self.pace.grace().is_none();
        let last = arrivals >= u64::from(self.active.len());
        let (fires, is_the_one) = match self.condition() {
            Condition::Count(least) => (arrivals >= u64::from(least), arrivals == u64::from(least)),
            Condition::Rank(rank) => (rank == self.plan.me, rank == self.plan.me),
            Condition::Full => (last, last),
        };
        if last || (at_once && is_the_one) {
            self.close();
        } else {
            self.stay_open(fires && !at_once, true, now, FIRST_PROBE);
        }
    }

    /// Waits for the round: until the grace ends if the condition holds, or until the arrival's own
    /// time is over; and with an eye on an initiator that left the library before it closed.
    pub(super) fn stay_open(&mut self, fires: bool, probe: bool, now: Time, pause: Time) {
        let close_by = self.arrival.as_ref().map_or(Time::MAX, |arrival| arrival.close_by);
        let close_at = if fires { now + self.pace.grace().unwrap_or(0) } else { Time::MAX }.min(close_by);
        let probe_at = if probe && !fires { now + pause } else { Time::MAX };
        self.enter(Stage::Open { close_at, probe_at, pause });
    }

    fn probed(&mut self, target: u64, value: u64, now: Time, pause: Time) {
        if self.fired >= target {
            return self.enter(Stage::Published);
        }
        let closing = self.closing();
        let fires = match closing.condition {
            _ if self.one_word() => !closing.closed(value) && closing.fires(value),
            Condition::Rank(rank) => word::arrived(value) >> (rank % word::RANKS_PER_WORD) & 1 == 1,
            Condition::Count(least) => value >= u64::from(least),
            Condition::Full => value >= u64::from(self.active.len()),
        };
        self.stats.closed_for_others += u64::from(fires);
        self.stay_open(fires, true, now, (2 * pause).min(LAST_PROBE));
    }

    /// Closes the words of the target, the first of which decides who is the initiator.
    fn close(&mut self) {
        let Some(arrival) = &self.arrival else { return };
        let target = arrival.target;
        let unclosed = if self.one_word() { Fault::CloseWithoutWord } else { Fault::TrustTicket };
        if self.plan.fault(unclosed) {
            return self.closed(target);
        }
        self.close_word(0);
    }

    fn close_word(&mut self, index: u32) {
        let Some(arrival) = &self.arrival else { return };
        let target = arrival.target;
        let expect = self.words[index as usize];
        let atomic = Atomic::CompareSwap { expect, new: expect | word::CLOSED };
        self.ask_atomic(self.home_host(target), self.plan.word(target, index), atomic, Token::Close);
        self.enter(Stage::Closing { index });
    }

    fn close_answered(&mut self, index: u32, found: u64) {
        let Some(arrival) = &self.arrival else { return };
        let target = arrival.target;
        if self.fired >= target {
            return self.enter(Stage::Published);
        }
        if found == self.words[index as usize] {
            if index + 1 < self.plan.words() {
                self.close_word(index + 1);
            } else {
                self.closed(target);
            }
            return;
        }
        let already = if self.one_word() { self.closing().closed(found) } else { found & word::CLOSED != 0 };
        if already {
            debug_assert_eq!(index, 0, "only who closed the first word closes the others");
            return self.enter(Stage::Published);
        }
        self.words[index as usize] = found;
        self.close_word(index);
    }

    /// This rank is the initiator, and `words` is the cut.
    fn closed(&mut self, target: u64) {
        self.stats.initiated += 1;
        self.unmeasured = Some(target);
        self.enter(Stage::Gathering);
    }

    /// When the machine wants to be polled although nothing happened.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        match self.arrival.as_ref()?.stage {
            Stage::Open { close_at, probe_at, .. } => Some(close_at.min(probe_at)).filter(|&at| at != Time::MAX),
            _ => self.next_pull(),
        }
    }
}
