//! Agreement by words: each arrival adds its bit to the words of its round, on the round's home, and learns from the
//! returned value whether it is in, and whether it is the initiator.

mod initiating;

use super::super::context::Context;
use super::super::entry::Part;
use super::super::input::Cells;
use super::super::movement::Movement;
use super::super::op::Token;
use super::super::plan::{Plan, RANKS_PER_WORD};
use super::bits::{self, Closing};
use super::{Arrival, ArrivalStage, FIRST_PROBE, LAST_PROBE, condition};
use crate::fabric::Atomic;
use crate::fault::Fault;
use crate::rule::Condition;

/// What this rank knows of the words of the round that it enters.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Words {
    words: Vec<u64>,
    /// Initiator: the first rank whose tags were not looked at, or not all there.
    unseen: u32,
}

/// The host of the words of the next round.
pub(super) fn home_host(Context { plan, ledger, .. }: &Context) -> u32 {
    ledger.home_host(ledger.open(), plan)
}

fn is_one_word(plan: &Plan) -> bool {
    plan.words() == 1
}

/// The index of a rank's word, and that of its bits there.
pub(super) fn place_of(rank: u32) -> (u32, u32) {
    (rank / RANKS_PER_WORD, rank % RANKS_PER_WORD)
}

/// The next round, if its record is here.
#[inline(never)]
pub(super) fn learn(arrival: &mut Arrival, cx: &mut Context, cells: &impl Cells) -> bool {
    let round = cx.ledger.open();
    let known = cx.ledger.wants_next(&cx.plan) && cx.read_record(round, cells);
    if known {
        arrival.fire(round, cx);
    }
    known
}

/// Whether the next round, the target, need not wait for a rank; nothing where its words are elsewhere.
pub(super) fn is_here(rank: u32, target: u64, cx: &Context, cells: &impl Cells) -> Option<bool> {
    let (index, bit) = place_of(rank);
    let is_present = || bits::is_present(cells.load(cx.plan.word(target, index)), bit, condition(cx));
    (home_host(cx) == cx.plan.host()).then(is_present)
}

impl Words {
    pub(super) fn new(plan: &Plan) -> Self {
        Words { words: vec![0; plan.words() as usize], unseen: 0 }
    }

    /// Whether a rank's bit was in a word before this rank's.
    pub(super) fn came_before(&self, rank: u32) -> bool {
        let (index, bit) = place_of(rank);
        bits::arrived(self.words[index as usize]) >> bit & 1 == 1
    }

    /// What closes the next round, where its cut is one word.
    fn closing(arrival: &Arrival, cx: &Context) -> Closing {
        let at_once = arrival.pace.grace().is_none();
        Closing::new(cx.ledger.active().group(0, RANKS_PER_WORD), condition(cx), at_once)
    }

    /// Whether the arrival closes its round unless another one has: then the rank that looks for its tag is this one.
    fn closes_alone(arrival: &Arrival, cx: &Context) -> bool {
        let at_once = arrival.pace.grace().is_none() && is_one_word(&cx.plan);
        at_once
            && match condition(cx) {
                Condition::Count(least) => least <= 1,
                Condition::Rank(rank) => rank == cx.plan.me,
                Condition::Full => false,
            }
    }

    /// The bits that the arrival adds to its round's word.
    fn own_bits(arrival: &Arrival, Context { plan, ledger, .. }: &Context) -> u64 {
        let (_, bit) = place_of(plan.me);
        let own = if arrival.part == Part::Carried { bits::carried_bit(bit) } else { bits::arrived_bit(bit) };
        let again = plan.fault(Fault::RepeatAtomic) && ledger.fired() % 4 == 3;
        (own | arrival.deferred.map_or(0, |_| bits::carried_bit(bit))) << u32::from(again)
    }

    /// Shows the arrival's tag and adds its bit.
    pub(super) fn arrive(&mut self, arrival: &mut Arrival, movement: &mut Movement, cx: &mut Context) {
        let is_late = arrival.target <= cx.ledger.fired();
        // What comes late to a full round has shown its tag before.
        if arrival.part != Part::Carried {
            if is_late || !Self::closes_alone(arrival, cx) {
                arrival.show(movement, cx);
            } else {
                arrival.show_here(cx);
            }
        }
        if is_late {
            return arrival.is_late(cx);
        }
        let cell = cx.plan.word(arrival.target, place_of(cx.plan.me).0);
        let atomic = Atomic::FetchAdd(Self::own_bits(arrival, cx));
        arrival.ask_home((cell, atomic), Token::Arrive, ArrivalStage::Adding, cx);
    }

    /// Takes the arrival further.
    pub(super) fn step(&mut self, arrival: &mut Arrival, cx: &mut Context, cells: &impl Cells) {
        match arrival.stage {
            ArrivalStage::Open { probe_at, pause, .. } if cx.now >= probe_at => {
                let (plan, target) = (&cx.plan, arrival.target);
                let cell = match condition(cx) {
                    _ if is_one_word(plan) => plan.word(target, 0),
                    Condition::Rank(rank) => plan.word(target, place_of(rank).0),
                    Condition::Count(_) | Condition::Full => plan.ticket(target),
                };
                arrival.ask_home((cell, Atomic::FetchAdd(0)), Token::Probe, ArrivalStage::Probing { pause }, cx);
            }
            ArrivalStage::Gathering => self.gather(arrival, cx, cells),
            _ => {}
        }
    }

    /// Takes what an operation of the arrival answered.
    pub(super) fn complete(&mut self, token: Token, value: u64, arrival: &mut Arrival, cx: &mut Context) {
        arrival.asked = None;
        let (target, part) = (arrival.target, arrival.part);
        match (token, &arrival.stage) {
            (Token::Arrive, ArrivalStage::Adding) => {
                if Self::is_in(target, value, part, arrival, cx) {
                    self.added(value, arrival, cx);
                } else {
                    cx.stats.late_while_closing += u64::from(part != Part::Leaving);
                    arrival.is_late(cx);
                }
            }
            (Token::Place, &ArrivalStage::Placing { round }) => {
                if Self::is_in(round, value, Part::Carried, arrival, cx) {
                    arrival.placed(round, cx);
                } else {
                    arrival.enter(ArrivalStage::Late { tried: round }, &mut cx.outbox);
                }
            }
            // What was asked is of no interest any more.
            (Token::Ticket | Token::Probe | Token::Close, _) if cx.ledger.fired() >= target => {
                arrival.enter(ArrivalStage::Published, &mut cx.outbox);
            }
            (Token::Ticket, ArrivalStage::Ticketing) => self.ticketed(value, arrival, cx),
            (Token::Probe, &ArrivalStage::Probing { pause }) => self.probed(value, pause, arrival, cx),
            (Token::Close, &ArrivalStage::Closing { index }) => self.close_answered(index, value, arrival, cx),
            (Token::Clear, ArrivalStage::Clearing) => self.cleared(arrival, cx),
            (token, stage) => debug_assert!(false, "{token:?} completed in stage {stage:?}"),
        }
    }

    /// Whether a bit is in the cut of `round`, after an addition that returned `before`.
    fn is_in(round: u64, before: u64, part: Part, arrival: &Arrival, cx: &Context) -> bool {
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

    /// The arrival's bits are in a word that was open.
    fn added(&mut self, before: u64, arrival: &mut Arrival, cx: &mut Context) {
        let (plan, target) = (&cx.plan, arrival.target);
        let word = before | Self::own_bits(arrival, cx);
        arrival.deferred = None;
        self.words.fill(0);
        self.words[place_of(plan.me).0 as usize] = word;
        if cx.ledger.fired() >= target {
            arrival.enter(ArrivalStage::Published, &mut cx.outbox);
        } else if !is_one_word(plan) {
            let question = (plan.ticket(target), Atomic::FetchAdd(1));
            arrival.ask_home(question, Token::Ticket, ArrivalStage::Ticketing, cx);
        } else {
            let closing = Self::closing(arrival, cx);
            if closing.closed_by_arrivals(word) {
                self.closed(arrival, cx);
            } else {
                arrival.stay_open(closing.fires(word), arrival.pace.grace().is_some(), FIRST_PROBE, cx);
            }
        }
    }

    fn ticketed(&mut self, before: u64, arrival: &mut Arrival, cx: &mut Context) {
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
            arrival.stay_open(fires && !at_once, true, FIRST_PROBE, cx);
        }
    }

    fn probed(&mut self, value: u64, pause: u64, arrival: &mut Arrival, cx: &mut Context) {
        let closing = Self::closing(arrival, cx);
        let fires = match condition(cx) {
            _ if is_one_word(&cx.plan) => !closing.closed(value) && closing.fires(value),
            Condition::Rank(rank) => bits::arrived(value) >> place_of(rank).1 & 1 == 1,
            Condition::Count(least) => value >= u64::from(least),
            Condition::Full => value >= u64::from(cx.ledger.active().len()),
        };
        cx.stats.closed_for_others += u64::from(fires);
        arrival.stay_open(fires, true, (2 * pause).min(LAST_PROBE), cx);
    }

    /// Closes the words of the target, the first of which decides which rank is the initiator.
    pub(super) fn close(&mut self, arrival: &mut Arrival, cx: &mut Context) {
        let unclosed = if is_one_word(&cx.plan) { Fault::CloseWithoutWord } else { Fault::TrustTicket };
        if cx.plan.fault(unclosed) {
            return self.closed(arrival, cx);
        }
        self.close_word(0, arrival, cx);
    }

    fn close_word(&mut self, index: u32, arrival: &mut Arrival, cx: &mut Context) {
        let expect = self.words[index as usize];
        let atomic = Atomic::CompareSwap { expect, new: expect | bits::CLOSED };
        let cell = cx.plan.word(arrival.target, index);
        arrival.ask_home((cell, atomic), Token::Close, ArrivalStage::Closing { index }, cx);
    }

    fn close_answered(&mut self, index: u32, found: u64, arrival: &mut Arrival, cx: &mut Context) {
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
            return arrival.enter(ArrivalStage::Published, &mut cx.outbox);
        }
        self.words[index as usize] = found;
        self.close_word(index, arrival, cx);
    }

    /// This rank is the initiator, and `words` is the cut.
    fn closed(&mut self, arrival: &mut Arrival, cx: &mut Context) {
        cx.stats.initiated += 1;
        arrival.unmeasured = Some(arrival.target);
        arrival.enter(ArrivalStage::Gathering, &mut cx.outbox);
    }
}
