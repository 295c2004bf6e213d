//! One arrival, from being handed in to its place in a round.

use super::Time;
use super::cut::Part;
use super::machine::{Cells, FOREVER, Machine};
use super::op::{Op, Token};
use super::plan::Path;
use super::tag::Tag;
use super::tree::Effort;
use super::word::{self, Closing};
use crate::fabric::{Atomic, Change};
use crate::fault::Fault;

/// How soon an arrived rank first looks whether the initiator forgot to close; it doubles.
pub(super) const FIRST_PROBE: Time = 1_000_000;
const LAST_PROBE: Time = 64_000_000;

#[derive(Clone, Debug, Hash)]
pub(super) struct Arrival {
    pub(super) target: u64,
    pub(super) part: Part,
    pub(super) buffer: u32,
    pub(super) stage: Stage,
    waited_for_room: bool,
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
    pub(super) fn new(target: u64, part: Part, buffer: u32) -> Self {
        Arrival { target, part, buffer, stage: Stage::Blocked, waited_for_room: false }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.stage == Stage::Blocked
    }

    pub(super) fn is_tagged(&self, round: u64) -> bool {
        self.stage == Stage::Tagged && self.target == round
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

    pub(super) fn step_arrival(&mut self, now: Time, effort: Effort, cells: &impl Cells) {
        let Some(arrival) = &self.arrival else { return };
        let target = arrival.target;
        match arrival.stage {
            Stage::Blocked => self.try_to_enter(cells),
            Stage::Tagged | Stage::Published if self.fired >= target => self.entered(),
            Stage::Open { .. } | Stage::Counting if self.fired >= target => self.entered(),
            Stage::Counting => self.count_arrivals(now, None, cells),
            Stage::Starting => self.started(effort, cells),
            Stage::Open { close_at, .. } if now >= close_at => {
                self.stats.graces_expired += 1;
                match self.plan.path {
                    Path::Program => self.grace_is_over(cells),
                    _ => self.close(),
                }
            }
            Stage::Open { probe_at, pause, .. } if now >= probe_at && self.plan.path == Path::Program => {
                self.count_arrivals(now, Some((2 * pause).min(LAST_PROBE)), cells);
            }
            Stage::Open { probe_at, pause, .. } if now >= probe_at => {
                let cell = if self.one_word() { self.plan.word(target, 0) } else { self.plan.ticket(target) };
                self.atomic(self.home_host(target), cell, Atomic::FetchAdd(0), Token::Probe);
                self.enter(Stage::Probing { pause });
            }
            Stage::Gathering => self.gather(cells),
            Stage::Late { tried } if self.plan.path == Path::Program && arrival.part != Part::Leaving => {
                self.deposit_into(tried + 1, cells);
            }
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

    fn closing(&self) -> Closing {
        let active = self.active.len();
        let threshold = self.plan.fire.threshold(active);
        Closing { active: self.active.group(0), threshold, at_once: self.pace.grace().is_none() }
    }

    fn try_to_enter(&mut self, cells: &impl Cells) {
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
        if self.plan.path == Path::Program {
            return self.deposit_into(target, cells);
        }
        if by_tags && self.plan.path == Path::Segmented && self.plan.home(target, &self.active) == self.plan.me {
            // Everybody took round target - 1, so nobody looks at what this slot held before; and
            // nobody claims before seeing the tag that follows.
            self.push(Op::Clear { host: self.plan.host(), round: target, token: Token::Push });
            self.pushes += 1;
        }
        self.show_tag(target, part, buffer);
        if by_tags && self.plan.ranks > 2 {
            // Of several last arrivals at least one must see all the others, and wake those who
            // sleep. Of two ranks one sleeps only after it has looked for the other's tag again.
            self.push(Op::Fence);
        }
        self.arriving = true;
        if by_tags {
            self.enter(Stage::Tagged);
        } else if late {
            self.is_late();
        } else {
            let bit = word::arrived_bit(self.plan.me % word::RANKS_PER_WORD);
            let cell = self.plan.word(target, self.plan.me / word::RANKS_PER_WORD);
            self.atomic(self.home_host(target), cell, Atomic::FetchAdd(bit), Token::Arrive);
            self.enter(Stage::Adding);
        }
    }

    /// Shows what a buffer holds to every host: the data, if it is pushed, lands before its tag.
    fn show_tag(&mut self, target: u64, part: Part, buffer: u32) {
        let me = self.plan.me;
        let cell = self.plan.tag(me, buffer);
        let leaving = part == Part::Leaving;
        let value = Tag { target, leaving }.cell();
        let data = (self.plan.path.pushes() && !leaving && self.plan.bytes > 0).then(|| {
            let at = self.plan.contribution(me, buffer);
            (at, at, self.plan.bytes)
        });
        self.push(Op::Store { cell, value });
        for host in self.plan.topology.hosts_but(self.plan.host()) {
            self.tags_under_way[buffer as usize] += 1;
            self.push(Op::Signal { host, data, cell, change: Change::Set(value), token: Token::Tag { buffer } });
        }
    }

    /// The target has fired with this arrival in it.
    fn entered(&mut self) {
        let Some(arrival) = &self.arrival else { return };
        let (target, part) = (arrival.target, arrival.part);
        debug_assert!(
            self.cut(target).holds(self.plan.me, part),
            "round {target} lacks {part:?} of rank {}",
            self.plan.me
        );
        match part {
            Part::Leaving => self.left = true,
            _ => self.stats.fresh += 1,
        }
        self.enter(Stage::Over { needs: target });
    }

    pub(super) fn is_late(&mut self) {
        let Some(arrival) = &self.arrival else { return };
        let (target, part) = (arrival.target, arrival.part);
        if part != Part::Leaving {
            self.stats.late += 1;
        }
        self.enter(Stage::Late { tried: target });
    }

    /// Late, and every round up to the last attempt has fired: try the one that is open now.
    fn find_a_place(&mut self) {
        let Some(arrival) = &self.arrival else { return };
        let open = self.fired + 1;
        if arrival.part == Part::Leaving {
            // What was missed is not wanted any more, but must be complete before this rank goes;
            // and the tag it shows next must not be overtaken by the one before.
            let complete = self.landed == self.fired && self.owes_nothing();
            if complete && self.tags_under_way[arrival.buffer as usize] == 0 {
                self.stats.finish_retries += 1;
                self.taken = self.fired;
                self.release(self.fired);
                if let Some(arrival) = &mut self.arrival {
                    arrival.target = open;
                }
                self.enter(Stage::Blocked);
            }
        } else if self.plan.fault(Fault::ForgetCarriedBit) {
            self.enter(Stage::Over { needs: self.fired });
        } else if self.tags_under_way[arrival.buffer as usize] == 0 {
            // Once the bit is in, the initiator must find the tag; so it had to land first.
            let bit = word::carried_bit(self.plan.me % word::RANKS_PER_WORD);
            let cell = self.plan.word(open, self.plan.me / word::RANKS_PER_WORD);
            self.atomic(self.home_host(open), cell, Atomic::FetchAdd(bit), Token::Place);
            self.enter(Stage::Placing { round: open });
        }
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
        let Some(arrival) = &self.arrival else {
            debug_assert!(false, "{token:?} completed without an arrival");
            return;
        };
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

    /// The arrived bit is in a word that was open.
    fn added(&mut self, target: u64, before: u64, now: Time) {
        let own = self.plan.me / word::RANKS_PER_WORD;
        let bit = word::arrived_bit(self.plan.me % word::RANKS_PER_WORD);
        self.words.fill(0);
        self.words[own as usize] = before | bit;
        if self.fired >= target {
            self.enter(Stage::Published);
        } else if !self.one_word() {
            self.atomic(self.home_host(target), self.plan.ticket(target), Atomic::FetchAdd(1), Token::Ticket);
            self.enter(Stage::Ticketing);
        } else {
            let closing = self.closing();
            if closing.closed_by_arrivals(before | bit) {
                self.closed(target);
            } else {
                self.stay_open(closing.fires(before | bit), !closing.at_once, now, FIRST_PROBE);
            }
        }
    }

    fn ticketed(&mut self, target: u64, before: u64, now: Time) {
        if self.fired >= target {
            return self.enter(Stage::Published);
        }
        let arrivals = before + 1;
        let closing = self.closing();
        let fires = arrivals >= u64::from(closing.threshold);
        let last = arrivals >= u64::from(self.active.len());
        if last || (closing.at_once && arrivals == u64::from(closing.threshold)) {
            self.close();
        } else {
            self.stay_open(fires && !closing.at_once, true, now, FIRST_PROBE);
        }
    }

    /// Waits for the round: until the grace ends if the condition holds, and with an eye on an
    /// initiator that may have left the library before it closed.
    pub(super) fn stay_open(&mut self, fires: bool, probe: bool, now: Time, pause: Time) {
        let close_at = if fires { now + self.pace.grace().unwrap_or(0) } else { Time::MAX };
        let probe_at = if probe && !fires { now + pause } else { Time::MAX };
        self.enter(Stage::Open { close_at, probe_at, pause });
    }

    fn probed(&mut self, target: u64, value: u64, now: Time, pause: Time) {
        if self.fired >= target {
            return self.enter(Stage::Published);
        }
        let closing = self.closing();
        let fires = if self.one_word() {
            !closing.closed(value) && closing.fires(value)
        } else {
            value >= u64::from(closing.threshold)
        };
        self.stats.closed_for_others += u64::from(fires);
        self.stay_open(fires, true, now, (2 * pause).min(LAST_PROBE));
    }

    /// Closes the words of the target, the first of which decides who is the initiator.
    fn close(&mut self) {
        let Some(arrival) = &self.arrival else { return };
        let target = arrival.target;
        if self.plan.fault(Fault::CloseWithoutWord) {
            return self.closed(target);
        }
        self.close_word(0);
    }

    fn close_word(&mut self, index: u32) {
        let Some(arrival) = &self.arrival else { return };
        let target = arrival.target;
        let expect = self.words[index as usize];
        let atomic = Atomic::CompareSwap { expect, new: expect | word::CLOSED };
        self.atomic(self.home_host(target), self.plan.word(target, index), atomic, Token::Close);
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
            _ => None,
        }
    }
}
