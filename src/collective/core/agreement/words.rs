//! Agreement by words: each arrival adds its bit to the words of its round, on the round's home. The returned value
//! tells the rank whether its contribution is in the cut, and whether it is the initiator.

mod initiating;

use super::super::context::Context;
use super::super::entry::Part;
use super::super::input::{Cells, Effort, Time};
use super::super::movement::Movement;
use super::super::op::{Counted, Op, Token};
use super::super::plan::{Plan, RANKS_PER_WORD};
use super::arrival::Arrival;
use super::bits::{self, Closing};
use super::{FIRST_PROBE, Form, LAST_PROBE, condition, has_shown, insert_absent};
use crate::fabric::Atomic;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::Condition;

/// What this rank knows of the words of the round that it enters.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Words {
    words: Vec<u64>,
    /// Initiator: the first rank whose tags were not read, or are not all there.
    unseen: u32,
    /// The arrival was published only on this host: no other rank needs to see it unless it is late.
    is_hidden: bool,
    /// The host that has not answered the arrival's last atomic, or is clearing the next round's words.
    asked: Option<u32>,
}

/// How far an arrival has come.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum WordStage {
    /// The addition of the arrived bit is in flight.
    Adding,
    /// The bit is in. The rank has asked for its ticket.
    Ticketing,
    /// The bit is in the word, and the round has not fired as far as this rank knows. At `probe_at` the rank checks
    /// whether the initiator left the library before it closed, and then again after twice the pause.
    Open { close_at: Time, probe_at: Time, pause: Time },
    /// The rank reads whether the round should have been closed by now.
    Probing { pause: Time },
    /// The rank closes word `index`, which it believes to hold the value that it saw last.
    Closing { index: u32 },
    /// Initiator: the cut is closed; the rank waits for the tags of its members.
    Gathering,
    /// Initiator: the rank clears the words of the next round.
    Clearing,
    /// The arrival is in a round that others close, or whose record has not arrived.
    Published,
    /// The target fired without it; it is not placed in any round up to `tried`.
    Late { tried: u64 },
    /// The addition of the carried bit to this round is in flight.
    Placing { round: u64 },
}

/// Returns the host of the words of the next round.
fn home_host(Context { plan, ledger, .. }: &Context) -> u32 {
    ledger.home_host(ledger.open(), plan)
}

fn is_one_word(plan: &Plan) -> bool {
    plan.words() == 1
}

/// Returns the index of a rank's word, and that of its bits there.
fn place_of(rank: u32) -> (u32, u32) {
    (rank / RANKS_PER_WORD, rank % RANKS_PER_WORD)
}

/// Returns whether the next round, the target, need not wait for a rank; `None` if its words are on another host.
fn is_here(rank: u32, target: u64, cx: &Context, cells: &impl Cells) -> Option<bool> {
    let (index, bit) = place_of(rank);
    let is_present = || bits::is_present(cells.load(cx.plan.word(target, index)), bit, condition(cx));
    (home_host(cx) == cx.plan.host()).then(is_present)
}

impl Form for Words {
    type Stage = WordStage;

    /// Publishes the arrival's tag and adds its bit.
    fn enter(&mut self, arrival: &mut Arrival<WordStage>, movement: &mut Movement, cx: &mut Context, _: &impl Cells) {
        let is_late = arrival.target <= cx.ledger.fired();
        // A contribution that comes late to a full round has published its tag before.
        if arrival.part != Part::Carried {
            self.is_hidden = !is_late && Self::closes_alone(arrival, cx);
            if self.is_hidden {
                arrival.show_here(cx);
            } else {
                arrival.show(movement, cx);
            }
        }
        if is_late {
            return arrival.refused(arrival.target, WordStage::Late { tried: arrival.target }, cx);
        }
        let cell = cx.plan.word(arrival.target, place_of(cx.plan.me).0);
        let atomic = Atomic::FetchAdd(Self::own_bits(arrival, cx));
        self.ask_home((cell, atomic), Token::Arrive, WordStage::Adding, arrival, cx);
    }

    /// Fires the next round if its record is here.
    #[inline(never)]
    fn learn(
        &mut self,
        arrival: &mut Arrival<WordStage>,
        _: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) -> bool {
        let round = cx.ledger.open();
        let known = cx.ledger.wants_next(&cx.plan) && cx.read_record(round, cells);
        if known {
            arrival.fire(round, cx);
        }
        known
    }

    fn step(
        &mut self,
        stage: WordStage,
        arrival: &mut Arrival<WordStage>,
        _: Effort,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) {
        match stage {
            WordStage::Open { .. } | WordStage::Published if cx.ledger.fired() >= arrival.target => {
                self.is_hidden = false;
                arrival.entered(cx);
            }
            WordStage::Open { close_at, .. } if cx.now >= close_at => {
                arrival.expired(cx);
                self.close(arrival, cx);
            }
            WordStage::Open { probe_at, pause, .. } if cx.now >= probe_at => self.probe(pause, arrival, cx),
            WordStage::Gathering => self.gather(arrival, cx, cells),
            WordStage::Late { tried } => self.find_a_place(tried, arrival, movement, cx),
            _ => {}
        }
    }

    fn answer(&mut self, token: Token, value: u64, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        self.asked = None;
        let (target, part) = (arrival.target, arrival.part);
        let Some(stage) = arrival.stage() else {
            debug_assert!(false, "{token:?} completed without an arrival");
            return;
        };
        match (token, stage) {
            (Token::Arrive, WordStage::Adding) => {
                if Self::is_in(target, value, part, arrival, cx) {
                    self.added(value, arrival, cx);
                } else {
                    cx.stats.late_while_closing += u64::from(part != Part::Leaving);
                    arrival.refused(target, WordStage::Late { tried: target }, cx);
                }
            }
            (Token::Place, WordStage::Placing { round }) => {
                if Self::is_in(round, value, Part::Carried, arrival, cx) {
                    arrival.placed(round, cx);
                } else {
                    arrival.refused(round, WordStage::Late { tried: round }, cx);
                }
            }
            // The answer is not needed any more.
            (Token::Ticket | Token::Probe | Token::Close, _) if cx.ledger.fired() >= target => {
                arrival.enter(WordStage::Published, &mut cx.outbox);
            }
            (Token::Ticket, WordStage::Ticketing) => self.ticketed(value, arrival, cx),
            (Token::Probe, WordStage::Probing { pause }) => self.probed(value, pause, arrival, cx),
            (Token::Close, WordStage::Closing { index }) => self.close_answered(index, value, arrival, cx),
            (Token::Clear, WordStage::Clearing) => self.cleared(arrival, cx),
            (token, stage) => debug_assert!(false, "{token:?} completed in stage {stage:?}"),
        }
    }

    fn missing(
        &self,
        arrival: &Arrival<WordStage>,
        _: &Movement,
        cx: &Context,
        cells: &impl Cells,
        missing: &mut RankSet,
    ) {
        let target = arrival.target;
        match arrival.stage() {
            Some(WordStage::Gathering) => self.untagged(cx, cells).for_each(|rank| missing.insert(rank)),
            // The rank waits only for the host that clears the words.
            Some(WordStage::Clearing) => {}
            _ if target <= cx.ledger.fired() => {}
            _ => {
                let shown = |rank| has_shown(rank, target, &cx.plan, cells);
                insert_absent(|rank| is_here(rank, target, cx, cells).unwrap_or_else(|| shown(rank)), cx, missing);
            }
        }
    }

    fn asked(&self) -> Option<u32> {
        self.asked
    }

    /// Returns whether the late arrival waits for its tag: it enters no round before the tag has landed.
    fn awaits(&self, what: Counted, stage: WordStage, arrival: &Arrival<WordStage>, cx: &Context) -> bool {
        let WordStage::Late { tried } = stage else { return false };
        what == Counted::Tag { buffer: arrival.buffer } && cx.ledger.fired() >= tried
    }

    /// Returns whether the rank's bit was in the word before. Without a grace, an arrival that fulfils the condition
    /// closes the round at once.
    fn came_before(&self, rank: u32, arrival: &Arrival<WordStage>, cx: &Context) -> bool {
        let has_answer = arrival.is_outstanding() && !matches!(arrival.stage(), Some(WordStage::Adding));
        let closing = arrival.target > cx.ledger.fired() && has_answer && arrival.pace.grace().is_none();
        let (index, bit) = place_of(rank);
        closing && bits::arrived(self.words[index as usize]) >> bit & 1 == 1
    }

    fn next_timer(&self, arrival: &Arrival<WordStage>) -> Time {
        let Some(WordStage::Open { close_at, probe_at, .. }) = arrival.stage() else { return Time::MAX };
        close_at.min(probe_at)
    }
}

impl Words {
    pub(super) fn new(plan: &Plan) -> Self {
        Words { words: vec![0; plan.words() as usize], unseen: 0, is_hidden: false, asked: None }
    }

    /// Queues an atomic on the home of the next round. Its answer takes the arrival out of `stage`.
    fn ask_home(
        &mut self,
        (cell, atomic): (usize, Atomic),
        token: Token,
        stage: WordStage,
        arrival: &mut Arrival<WordStage>,
        cx: &mut Context,
    ) {
        let host = home_host(cx);
        self.asked = Some(host);
        cx.outbox.push(Op::Atomic { host, cell, atomic, token });
        arrival.enter(stage, &mut cx.outbox);
    }

    /// Waits for the round: until the grace ends if the condition holds, or until the arrival's own time is over.
    fn stay_open(fires: bool, probe: bool, pause: Time, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        let probe_at = if probe && !fires { cx.now + pause } else { Time::MAX };
        let close_at = arrival.closes_at(fires, cx);
        arrival.enter(WordStage::Open { close_at, probe_at, pause }, &mut cx.outbox);
    }

    /// Returns the rule that closes the next round, where its cut is one word.
    fn closing(arrival: &Arrival<WordStage>, cx: &Context) -> Closing {
        let at_once = arrival.pace.grace().is_none();
        Closing::new(cx.ledger.active().group(0, RANKS_PER_WORD), condition(cx), at_once)
    }

    /// Returns whether the arrival closes its round unless another one has: then only this rank reads its tag.
    fn closes_alone(arrival: &Arrival<WordStage>, cx: &Context) -> bool {
        let at_once = arrival.pace.grace().is_none() && is_one_word(&cx.plan);
        at_once
            && match condition(cx) {
                Condition::Count(least) => least <= 1,
                Condition::Rank(rank) => rank == cx.plan.me,
                Condition::Full => false,
            }
    }

    /// Returns the bits that the arrival adds to its round's word.
    fn own_bits(arrival: &Arrival<WordStage>, Context { plan, ledger, .. }: &Context) -> u64 {
        let (_, bit) = place_of(plan.me);
        let own = if arrival.part == Part::Carried { bits::carried_bit(bit) } else { bits::arrived_bit(bit) };
        let again = plan.fault(Fault::RepeatAtomic) && ledger.fired() % 4 == 3;
        (own | if arrival.has_deferred() { bits::carried_bit(bit) } else { 0 }) << u32::from(again)
    }

    /// Reads whether the round should have been closed by now.
    fn probe(&mut self, pause: Time, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        let (plan, target) = (&cx.plan, arrival.target);
        let cell = match condition(cx) {
            _ if is_one_word(plan) => plan.word(target, 0),
            Condition::Rank(rank) => plan.word(target, place_of(rank).0),
            Condition::Count(_) | Condition::Full => plan.ticket(target),
        };
        self.ask_home((cell, Atomic::FetchAdd(0)), Token::Probe, WordStage::Probing { pause }, arrival, cx);
    }

    /// Puts a late contribution into the open round, once every round up to the last attempt has fired.
    fn find_a_place(
        &mut self,
        tried: u64,
        arrival: &mut Arrival<WordStage>,
        movement: &mut Movement,
        cx: &mut Context,
    ) {
        // This includes a contribution that is not carried: its tag shows the others that this rank has arrived.
        if std::mem::take(&mut self.is_hidden) {
            arrival.show_elsewhere(true, movement, cx);
        }
        if cx.ledger.fired() < tried || !arrival.is_to_enter(cx) {
            return;
        }
        let (plan, open) = (&cx.plan, cx.ledger.open());
        if cx.outbox.has_tag(arrival.buffer) && !plan.fault(Fault::PlaceBeforeTag) {
            // Once the bit is in, the initiator must find the tag, so the tag must land first.
        } else if plan.is_full(open) {
            arrival.enter_full_round(cx);
        } else {
            let (index, bit) = place_of(plan.me);
            let question = (plan.word(open, index), Atomic::FetchAdd(bits::carried_bit(bit)));
            self.ask_home(question, Token::Place, WordStage::Placing { round: open }, arrival, cx);
        }
    }

    /// Returns whether a bit is in the cut of `round`, after an addition that returned `before`.
    fn is_in(round: u64, before: u64, part: Part, arrival: &Arrival<WordStage>, cx: &Context) -> bool {
        let Context { plan, ledger, .. } = cx;
        if before & bits::CLOSED != 0 {
            false
        } else if !is_one_word(plan) {
            true
        } else if ledger.fired() >= round {
            ledger.cut(round).holds(plan.me, part)
        } else {
            !Self::closing(arrival, cx).closed(before)
        }
    }

    /// Continues after the arrival's bits were added to an open word.
    fn added(&mut self, before: u64, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        let (plan, target) = (&cx.plan, arrival.target);
        let word = before | Self::own_bits(arrival, cx);
        arrival.took_deferred();
        self.words.fill(0);
        self.words[place_of(plan.me).0 as usize] = word;
        if cx.ledger.fired() >= target {
            arrival.enter(WordStage::Published, &mut cx.outbox);
        } else if !is_one_word(plan) {
            let question = (plan.ticket(target), Atomic::FetchAdd(1));
            self.ask_home(question, Token::Ticket, WordStage::Ticketing, arrival, cx);
        } else {
            let closing = Self::closing(arrival, cx);
            if closing.closed_by_arrivals(word) {
                self.closed(arrival, cx);
            } else {
                Self::stay_open(closing.fires(word), arrival.pace.grace().is_some(), FIRST_PROBE, arrival, cx);
            }
        }
    }

    fn ticketed(&mut self, before: u64, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        let arrivals = before + 1;
        let at_once = arrival.pace.grace().is_none();
        let last = arrivals >= u64::from(cx.ledger.active().len());
        let (fires, is_the_one) = match condition(cx) {
            Condition::Count(least) => (arrivals >= u64::from(least), arrivals == u64::from(least)),
            Condition::Rank(rank) => (rank == cx.plan.me, rank == cx.plan.me),
            Condition::Full => (last, last),
        };
        if last || (at_once && is_the_one) {
            self.close(arrival, cx);
        } else {
            Self::stay_open(fires && !at_once, true, FIRST_PROBE, arrival, cx);
        }
    }

    fn probed(&mut self, value: u64, pause: u64, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        let closing = Self::closing(arrival, cx);
        let fires = match condition(cx) {
            _ if is_one_word(&cx.plan) => !closing.closed(value) && closing.fires(value),
            Condition::Rank(rank) => bits::arrived(value) >> place_of(rank).1 & 1 == 1,
            Condition::Count(least) => value >= u64::from(least),
            Condition::Full => value >= u64::from(cx.ledger.active().len()),
        };
        cx.stats.closed_for_others += u64::from(fires);
        Self::stay_open(fires, true, (2 * pause).min(LAST_PROBE), arrival, cx);
    }

    /// Closes the words of the target. The first word decides which rank is the initiator.
    pub(super) fn close(&mut self, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        let unclosed = if is_one_word(&cx.plan) { Fault::CloseWithoutWord } else { Fault::TrustTicket };
        if cx.plan.fault(unclosed) {
            return self.closed(arrival, cx);
        }
        self.close_word(0, arrival, cx);
    }

    fn close_word(&mut self, index: u32, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        let expect = self.words[index as usize];
        let atomic = Atomic::CompareSwap { expect, new: expect | bits::CLOSED };
        let cell = cx.plan.word(arrival.target, index);
        self.ask_home((cell, atomic), Token::Close, WordStage::Closing { index }, arrival, cx);
    }

    fn close_answered(&mut self, index: u32, found: u64, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        if found == self.words[index as usize] {
            if index + 1 < cx.plan.words() {
                self.close_word(index + 1, arrival, cx);
            } else {
                self.closed(arrival, cx);
            }
            return;
        }
        let one_word = is_one_word(&cx.plan);
        let closed = || Self::closing(arrival, cx).closed(found);
        if if one_word { closed() } else { found & bits::CLOSED != 0 } {
            debug_assert_eq!(index, 0, "only the rank that closed the first word closes the others");
            return arrival.enter(WordStage::Published, &mut cx.outbox);
        }
        self.words[index as usize] = found;
        self.close_word(index, arrival, cx);
    }

    /// Makes this rank the initiator; `words` is the cut.
    fn closed(&mut self, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        cx.stats.initiated += 1;
        arrival.unmeasured = Some(arrival.target);
        arrival.enter(WordStage::Gathering, &mut cx.outbox);
    }
}
