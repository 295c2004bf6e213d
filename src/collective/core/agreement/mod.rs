//! Which ranks take part in a round, and when it closes.
//!
//! A rank's arrival goes through stages until it has its place in a round. Which ones depends on how ranks agree: by
//! [`tags`] where all take part, by [`words`], by the [`gates`] of a program, where ranks share no memory
//! by [`relay`], or by a provider's [`cards`]. Or cuts are [`given`] to them.

mod bits;
mod cards;
#[cfg(all(test, not(loom)))]
mod cards_tests;
mod dispatch;
mod gates;
mod given;
mod late;
mod relay;
mod tags;
mod words;

use std::hash::{Hash, Hasher};

use super::context::Context;
use super::entry::Part;
use super::input::Time;
use super::movement::Movement;
use super::op::{Counted, Op, Token};
use super::outbox::Outbox;
use super::pace::Pace;
use super::plan::{BUFFERS, MovementBy, Plan};
use super::tag::Tag;
use crate::fabric::Atomic;
use crate::fault::Fault;
use crate::rule::{Condition, When};
use crate::trigger::Deposit;
pub(super) use dispatch::Agreement;
pub(super) use given::Given;
pub(super) use relay::Relay;

/// How soon an arrived rank first looks whether the initiator forgot to close; it doubles.
const FIRST_PROBE: Time = 1_000_000;
const LAST_PROBE: Time = 64_000_000;

/// This rank's arrivals: the outstanding one, and what earlier ones left behind.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    stage: ArrivalStage,
    /// The round that it enters, or tried to.
    target: u64,
    /// The round that its contribution was made for.
    made_for: u64,
    part: Part,
    buffer: u32,
    weight: u16,
    /// When its round closes, with or without those that are missing.
    close_by: Time,
    waited_for_room: bool,
    /// Shown to the ranks of this host only: no other rank needs to see it unless it comes late.
    hidden: bool,
    /// The host that has not answered the arrival's last atomic, or is clearing the next round's words.
    asked: Option<u32>,
    /// A late contribution that could not be placed yet.
    deferred: Option<Deferred>,
    /// The buffer of a late contribution that enters no round, because the next one takes its place.
    superseded: Option<u32>,
    pace: Pace,
    /// The newest round that this rank closed, until it was measured how long it took to land.
    unmeasured: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ArrivalStage {
    /// There is no arrival.
    Away,
    /// Waits for the last receiver of the round that used the slot before.
    Blocked,
    /// By tags, or where cuts are given: shown to all.
    Tagged,
    /// By gates: on its way into the own gate of a round.
    Depositing { round: u64, found: u64 },
    /// In the gate, and about to be counted.
    Counting,
    /// Initiator: marks its gate.
    Initiating { found: u64 },
    /// Initiator: the activation is on its way.
    Starting,
    /// By words: the arrived bit is on its way.
    Adding,
    /// The bit is in; which arrival this is, is being asked.
    Ticketing,
    /// In the word, and the round has not fired as far as is known.
    Open { close_at: Time, probe_at: Time, pause: Time },
    /// Looks whether the round should have been closed by now.
    Probing { pause: Time },
    /// Closes word `index`, believed to hold what was last seen of it.
    Closing { index: u32 },
    /// Initiator: the cut is closed; waits for the tags of its members.
    Gathering,
    /// Initiator: readies the words of the next round.
    Clearing,
    /// In a round that others close, or whose record is on its way.
    Published,
    /// The target fired without it; not placed in any round up to `tried`.
    Late { tried: u64 },
    /// The carried bit is on its way into this round.
    Placing { round: u64 },
    /// Has its place; the caller may have it once round `needs` landed.
    Over { needs: u64 },
}

/// A late contribution that enters together with the rank's next arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Deferred {
    made_for: u64,
    buffer: u32,
}

impl Hash for Arrival {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // What it has waited for is only counted, or told to people. Of an arrival that is over only the buffer is read.
        let Arrival { stage, target, made_for, part, buffer, weight, close_by, hidden, .. } = self;
        stage.hash(state);
        match stage {
            ArrivalStage::Away => {}
            ArrivalStage::Over { .. } => buffer.hash(state),
            _ => (target, made_for, part, buffer, weight, close_by, hidden).hash(state),
        }
        (self.deferred, self.superseded).hash(state);
    }
}

impl Arrival {
    pub(super) fn new(plan: &Plan) -> Self {
        Arrival {
            stage: ArrivalStage::Away,
            target: 0,
            made_for: 0,
            part: Part::Fresh,
            buffer: 0,
            weight: 1,
            close_by: Time::MAX,
            waited_for_room: false,
            hidden: false,
            asked: None,
            deferred: None,
            superseded: None,
            pace: Pace::new(plan.grace),
            unmeasured: None,
        }
    }

    /// Begins with an arrival. There must be no outstanding one.
    pub(super) fn start(&mut self, (part, buffer, weight): (Part, u32, u16), cx: &mut Context) {
        debug_assert!(!self.is_outstanding() && !cx.ledger.has_left());
        let target = cx.ledger.taken() + 1;
        (self.target, self.made_for) = (target, target);
        (self.part, self.buffer, self.weight) = (part, buffer, weight);
        (self.close_by, self.waited_for_room, self.hidden, self.asked) = (Time::MAX, false, false, None);
        if part == Part::Fresh {
            // The caller comes back from its own work.
            self.pace.arrived(cx.now);
        }
        self.enter(ArrivalStage::Blocked, &mut cx.outbox);
    }

    /// The arrival is over, and the caller has what it waited for. Returns the buffer of a contribution that no rank will
    /// read.
    pub(super) fn end(&mut self) -> Option<u32> {
        self.stage = ArrivalStage::Away;
        self.superseded.take()
    }

    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        self.stage != ArrivalStage::Away
    }

    /// Whether there is nothing left to do for it.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, ArrivalStage::Away | ArrivalStage::Over { .. })
    }

    /// Whether the arrival waits for a slot of the ring.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.stage == ArrivalStage::Blocked
    }

    #[inline]
    fn is_tagged(&self, round: u64) -> bool {
        self.stage == ArrivalStage::Tagged && self.target == round
    }

    /// Moves to another stage.
    #[inline]
    fn enter(&mut self, stage: ArrivalStage, outbox: &mut Outbox) {
        self.stage = stage;
        outbox.note();
    }

    /// An operation of the arrival on a host, which takes it further when it is answered.
    #[inline]
    fn ask(&mut self, host: u32, op: Op, outbox: &mut Outbox) {
        self.asked = Some(host);
        outbox.push(op);
    }

    /// An atomic on the home of the next round, whose answer takes the arrival out of `stage`.
    fn ask_home(&mut self, (cell, atomic): (usize, Atomic), token: Token, stage: ArrivalStage, cx: &mut Context) {
        let host = words::home_host(cx);
        self.ask(host, Op::Atomic { host, cell, atomic, token }, &mut cx.outbox);
        self.enter(stage, &mut cx.outbox);
    }

    /// The tag of the arrival's contribution: its cell and its value.
    fn tag(&self, plan: &Plan) -> (usize, u64) {
        let Arrival { target, buffer, .. } = *self;
        let leaving = self.part == Part::Leaving;
        let weight = if plan.fault(Fault::LoseWeight) { 1 } else { self.weight };
        let number = if plan.by_tags() { Plan::tag_of(target) } else { buffer };
        (plan.tag(plan.me, number), Tag { target, buffer, weight, leaving }.cell())
    }

    /// Where ranks have gates: shows the weight of the contribution, if contributions have weights.
    fn show_weight(&self, cx: &mut Context) {
        if cx.plan.weighted && self.part == Part::Fresh {
            let (cell, value) = self.tag(&cx.plan);
            cx.outbox.push(Op::Store { cell, value });
        }
    }

    /// Adds what it brings to what is in the gate of a round: fresh in the round that it is for, in others carried.
    fn put_into(&self, deposit: &mut Deposit, round: u64) {
        let Arrival { target, made_for, part, buffer, deferred, .. } = self;
        match part {
            Part::Leaving => deposit.leaving = true,
            Part::Fresh if round == *target => deposit.fresh = Some(*buffer),
            Part::Fresh | Part::Carried => deposit.carried = Some((*buffer, round - made_for)),
        }
        if let Some(Deferred { made_for, buffer }) = deferred.as_ref().filter(|_| round == *target) {
            deposit.carried = Some((*buffer, round - made_for));
        }
    }

    /// Shows what its buffer holds.
    fn show(&mut self, movement: &mut Movement, cx: &mut Context) {
        self.show_here(cx);
        self.show_elsewhere(movement, cx);
    }

    /// Shows it to the ranks of this host.
    fn show_here(&mut self, cx: &mut Context) {
        let (cell, value) = self.tag(&cx.plan);
        cx.outbox.push(Op::Store { cell, value });
        self.hidden = true;
    }

    /// Shows it to all others: without data if it is late and dropped, so that they want none.
    fn show_elsewhere(&mut self, movement: &mut Movement, cx: &mut Context) {
        let is_late = matches!(self.stage, ArrivalStage::Late { .. }) || self.target <= cx.ledger.fired();
        let is_dropped = is_late && self.part == Part::Fresh && !self.is_carried(&cx.plan);
        let has_data = !is_dropped && self.part != Part::Leaving && cx.plan.bytes > 0;
        movement.show_elsewhere(self.target, self.tag(&cx.plan), (self.buffer, has_data), cx);
        self.hidden = false;
    }

    /// Waits for the round: until the grace ends if the condition holds, or until the arrival's own
    /// time is over; and with an eye on an initiator that left the library before it closed.
    fn stay_open(&mut self, fires: bool, probe: bool, pause: Time, cx: &mut Context) {
        let close_at = if fires { cx.now + self.pace.grace().unwrap_or(0) } else { Time::MAX }.min(self.close_by);
        let probe_at = if probe && !fires { cx.now + pause } else { Time::MAX };
        self.enter(ArrivalStage::Open { close_at, probe_at, pause }, &mut cx.outbox);
    }

    /// The cut of the next round is known.
    fn fire(&mut self, round: u64, cx: &mut Context) {
        if matches!(cx.plan.fire.when(), When::Majority(_)) && !cx.plan.is_full(round) {
            let cut = cx.ledger.cut(round);
            let arrived = cut.entries.iter().filter(|entry| entry.part != Part::Carried).count();
            self.pace.saw(arrived as u32 >= cx.ledger.active().len());
        }
        cx.fire(round);
    }

    /// The target has fired with this arrival in it.
    fn entered(&mut self, cx: &mut Context) {
        let Arrival { target, made_for, part, .. } = *self;
        let me = cx.plan.me;
        if !cx.ledger.cut(target).holds(me, part) {
            cx.problem = Some("a round that this rank has entered lacks its contribution");
        }
        match part {
            Part::Leaving => cx.ledger.leave(target),
            Part::Fresh => cx.stats.fresh += 1,
            Part::Carried => cx.stats.jumps += u64::from(target - made_for >= 2),
        }
        self.enter(ArrivalStage::Over { needs: target }, &mut cx.outbox);
    }

    /// A late contribution has its place in a round.
    fn placed(&mut self, round: u64, cx: &mut Context) {
        cx.stats.jumps += u64::from(round - self.target >= 2);
        self.enter(ArrivalStage::Over { needs: round - 1 }, &mut cx.outbox);
    }

    /// Whether there is all that it waits for.
    #[inline]
    pub(super) fn is_served(&self, Context { plan, ledger, outbox, .. }: &Context) -> bool {
        let ArrivalStage::Over { needs } = self.stage else { return false };
        let sent = |buffer| outbox.has_tag(buffer) && self.writes_soon(buffer, plan);
        ledger.landed() >= needs && !(0..BUFFERS).any(sent)
    }

    /// Whether a buffer may be written as soon as an arrival is over, so that what was sent from it has to have landed.
    /// Where nothing but a tag was, the data is free without that: a host that does not answer holds this rank up only
    /// when the same buffer is to get another tag.
    fn writes_soon(&self, buffer: u32, plan: &Plan) -> bool {
        let sends_tags_alone = plan.movement() == MovementBy::Segments && !plan.by_tags();
        buffer != self.buffer && !sends_tags_alone
    }

    /// When the arrival has something to do although nothing happened.
    #[inline]
    pub(super) fn next_timer(&self) -> Option<Time> {
        let ArrivalStage::Open { close_at, probe_at, .. } = self.stage else { return None };
        Some(close_at.min(probe_at)).filter(|&at| at != Time::MAX)
    }

    /// A round that this rank closed, for which it was not yet said how long it took to land.
    #[inline]
    pub(super) fn unmeasured(&self) -> Option<u64> {
        self.unmeasured
    }

    /// Says how long it took from closing the round to its landing; nothing if that is not known.
    #[inline]
    pub(super) fn measured(&mut self, latency: Option<Time>) {
        self.unmeasured = None;
        if let Some(latency) = latency {
            self.pace.handed_out(latency);
        }
    }

    /// The host that the arrival waits for an answer of.
    pub(super) fn asked(&self) -> Option<u32> {
        self.asked.filter(|_| self.is_outstanding())
    }

    /// Whether this rank does not go on before what was counted has completed, although every rank is here.
    pub(super) fn awaits(&self, what: Counted, Context { plan, ledger, .. }: &Context) -> bool {
        let by_tags = plan.by_tags();
        match (what, &self.stage) {
            _ if ledger.has_left() => true,
            (_, ArrivalStage::Away) => false,
            (Counted::Read, _) => true,
            (Counted::Outcome, ArrivalStage::Tagged | ArrivalStage::Over { .. }) => true,
            (Counted::Tag { buffer }, &ArrivalStage::Over { needs }) => {
                ledger.landed() >= needs && self.writes_soon(buffer, plan)
            }
            (Counted::Tag { buffer }, ArrivalStage::Blocked) => buffer == self.buffer && !by_tags,
            (Counted::Tag { buffer }, &ArrivalStage::Late { tried }) => {
                buffer == self.buffer && ledger.fired() >= tried
            }
            (Counted::Push, ArrivalStage::Blocked) => by_tags || ledger.releases_later(),
            (Counted::Outcome, ArrivalStage::Blocked) => by_tags,
            _ => false,
        }
    }

    /// Where it stands, for a line about a machine.
    pub(super) fn summary(&self) -> String {
        let Arrival { stage, target, made_for, part, buffer, deferred, .. } = self;
        format!("{stage:?} {part:?} for {target} made for {made_for} in {buffer} deferred {deferred:?}")
    }
}

/// What the next round waits for.
fn condition(Context { plan, ledger, .. }: &Context) -> Condition {
    let round = ledger.open();
    let condition = plan.condition(round, ledger.active());
    match (condition, plan.fire.when()) {
        (Condition::Count(least), _) if plan.fault(Fault::MiscountQuorum) => {
            Condition::Count(least.saturating_sub(1).max(1))
        }
        (Condition::Full, _) if plan.fault(Fault::FullAsUsual) => Condition::Count(1),
        (Condition::Rank(_), When::Majority(seed)) if plan.fault(Fault::DrawnMayBeGone) => {
            Condition::Rank(plan.drawn(seed, round))
        }
        (condition, _) => condition,
    }
}
