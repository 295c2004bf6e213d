//! Which ranks take part in a round, and when it closes.
//!
//! A rank's arrival waits until there is room for it, and enters then: a form of agreement has it, and takes it through stages
//! of its own until it has its place in a round. Ranks agree by [`tags`] where all take part, by [`words`], by the [`gates`] of a
//! program, where ranks share no memory by [`relay`], or by a provider's [`cards`]. Or cuts are [`given`] to them. Each
//! implements [`Form`], and knows nothing of the others.

mod arrival;
mod bits;
mod cards;
mod gates;
mod given;
mod relay;
mod tags;
mod words;

use std::fmt::Debug;
use std::hash::Hash;

use super::context::Context;
use super::entry::Part;
use super::input::{Cells, Effort, Time};
use super::movement::Movement;
use super::op::{Counted, Token};
use super::plan::{BUFFERS, Plan};
use super::stats::Stats;
use super::tag::Tag;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::{AgreementBy, Condition, When};
use crate::trigger::Start;
use arrival::{Arrival, Phase};
use cards::Slots;
use gates::Gates;
use given::Given;
use relay::Relay;
use tags::Tags;
use words::Words;

/// How soon an arrived rank first looks whether the initiator forgot to close; it doubles.
const FIRST_PROBE: Time = 1_000_000;
const LAST_PROBE: Time = 64_000_000;

/// One way to agree: this rank's part in it.
///
/// [`learn`](Form::learn) and [`work`](Form::work) are called in each poll, [`step`](Form::step) while the form has an arrival.
/// What asks nothing of a form need not be implemented.
pub(crate) trait Form: Clone + Debug + Hash {
    /// How far an arrival is that has entered.
    type Stage: Copy + Debug + Hash;

    /// Whether an arrival may enter, for a round of which nothing is known yet.
    fn has_room(&self, target: u64, movement: &Movement, cx: &mut Context, cells: &impl Cells) -> bool {
        let _ = movement;
        // The slot of the target is free: no rank reads what it held before.
        let before = target.saturating_sub(cx.plan.depth);
        target <= cx.ledger.fired() || cx.ledger.is_released(before, &cx.plan, cells)
    }

    /// Ranks for which [`has_room`](Form::has_room) waits.
    fn without_room(&self, target: u64, cx: &Context, cells: &impl Cells, missing: &mut RankSet) {
        let least = target.saturating_sub(cx.plan.depth);
        let holds = |rank: &u32| cells.load(cx.plan.released(*rank)) < least;
        (0..cx.plan.ranks).filter(holds).for_each(|rank| missing.insert(rank));
    }

    /// Whether tags lie by round, and not by buffer: then no older one can land last.
    const TAGS_BY_ROUND: bool = false;

    /// Takes an arrival, for which there is room. If it is left blocked, it is asked again.
    fn enter(
        &mut self,
        arrival: &mut Arrival<Self::Stage>,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    );

    /// Fires the next round, if its cut can be learned from the cells of this host. Whether the one after it may be known, too.
    fn learn(
        &mut self,
        arrival: &mut Arrival<Self::Stage>,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) -> bool;

    /// Takes the arrival on from a stage.
    fn step(
        &mut self,
        stage: Self::Stage,
        arrival: &mut Arrival<Self::Stage>,
        effort: Effort,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    );

    /// Does what the agreement asks of this rank apart from its own arrival.
    fn work(&mut self, effort: Effort, arrival: &mut Arrival<Self::Stage>, cx: &mut Context, cells: &impl Cells) {
        let _ = (effort, arrival, cx, cells);
    }

    /// There is nothing to do now.
    fn rest(&mut self) {}

    /// Takes the result of an operation.
    fn answer(&mut self, token: Token, value: u64, arrival: &mut Arrival<Self::Stage>, cx: &mut Context) {
        let _ = (value, cx);
        debug_assert!(false, "{token:?} completed in {arrival:?}, and nothing had asked for it");
    }

    /// Ranks for which the target waits, as far as this one can know.
    fn missing(
        &self,
        arrival: &Arrival<Self::Stage>,
        movement: &Movement,
        cx: &Context,
        cells: &impl Cells,
        missing: &mut RankSet,
    );

    /// The host that has not answered the arrival's last atomic, or is clearing the next round's words.
    fn asked(&self) -> Option<u32> {
        None
    }

    /// Whether the arrival does not go on before what was counted has completed, although every rank is here.
    fn awaits(&self, what: Counted, stage: Self::Stage, arrival: &Arrival<Self::Stage>, cx: &Context) -> bool {
        let _ = (what, stage, arrival, cx);
        false
    }

    /// Whether a rank that has arrived for the target was there before this one, and so is none of those that close it.
    fn came_before(&self, rank: u32, arrival: &Arrival<Self::Stage>, cx: &Context) -> bool {
        let _ = (rank, arrival, cx);
        false
    }

    /// When there is something to do although nothing happened; at the end of time if never.
    fn next_timer(&self, arrival: &Arrival<Self::Stage>) -> Time {
        let _ = arrival;
        Time::MAX
    }

    /// Whether the next round waits for a release, and for nothing else.
    fn lacks_room(&self) -> bool {
        false
    }

    /// Whether no rank waits for something that this rank has claimed.
    fn has_nothing_pending(&self) -> bool {
        true
    }

    /// Whether other ranks need this one for their rounds, also while it has no arrival.
    fn serves(&self, cx: &Context) -> bool {
        let _ = cx;
        false
    }

    /// Of a rank that has left: whether no other one needs it any more, or writes to it.
    fn has_served(&self, cx: &Context) -> bool {
        let _ = cx;
        true
    }

    /// With what only this form counts.
    fn stats(&self, stats: Stats) -> Stats {
        stats
    }
}

/// This rank's arrivals, and its part in agreeing.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Participant<F: Form> {
    arrival: Arrival<F::Stage>,
    form: F,
}

impl<F: Form> Participant<F> {
    fn new(plan: &Plan, form: F) -> Self {
        Participant { arrival: Arrival::new(plan), form }
    }

    #[inline]
    pub(super) fn learn(&mut self, movement: &mut Movement, cx: &mut Context, cells: &impl Cells) {
        while self.form.learn(&mut self.arrival, movement, cx, cells) {}
    }

    /// Takes the arrival further.
    #[inline]
    pub(super) fn step(&mut self, effort: Effort, movement: &mut Movement, cx: &mut Context, cells: &impl Cells) {
        match self.arrival.phase() {
            Phase::Away | Phase::Over { .. } => {}
            Phase::Blocked => self.try_to_enter(movement, cx, cells),
            Phase::Entered(stage) => self.form.step(stage, &mut self.arrival, effort, movement, cx, cells),
        }
    }

    #[inline(never)]
    fn try_to_enter(&mut self, movement: &mut Movement, cx: &mut Context, cells: &impl Cells) {
        let Participant { arrival, form } = self;
        if !form.has_room(arrival.target, movement, cx, cells) {
            return arrival.wait_for_room(cx);
        }
        // Of two tags of a buffer, the older one must not land last.
        if F::TAGS_BY_ROUND || !cx.outbox.has_tag(arrival.buffer) {
            arrival.set_deadline(cx);
            form.enter(arrival, movement, cx, cells);
        }
    }

    #[inline]
    pub(super) fn work(&mut self, effort: Effort, cx: &mut Context, cells: &impl Cells) {
        self.form.work(effort, &mut self.arrival, cx, cells);
    }

    #[inline]
    pub(super) fn rest(&mut self) {
        self.form.rest();
    }

    fn missing(&self, movement: &Movement, cx: &Context, cells: &impl Cells, missing: &mut RankSet) {
        let Participant { arrival, form } = self;
        if arrival.is_blocked() {
            form.without_room(arrival.target, cx, cells, missing);
        } else {
            form.missing(arrival, movement, cx, cells, missing);
        }
        missing.remove(cx.plan.me);
    }

    /// Whether this rank does not go on before what was counted has completed, although every rank is here.
    fn awaits(&self, what: Counted, cx: &Context) -> bool {
        let Participant { arrival, form } = self;
        let by_tags = cx.plan.by_tags();
        match (what, arrival.phase()) {
            _ if cx.ledger.has_left() => true,
            (_, Phase::Away) => false,
            (Counted::Read, _) => true,
            (Counted::Outcome, Phase::Over { .. }) => true,
            (Counted::Tag { buffer }, Phase::Over { needs }) => {
                cx.ledger.landed() >= needs && arrival.writes_soon(buffer, &cx.plan)
            }
            (Counted::Tag { buffer }, Phase::Blocked) => buffer == arrival.buffer && !by_tags,
            (Counted::Push, Phase::Blocked) => by_tags || cx.ledger.releases_later(),
            (Counted::Outcome, Phase::Blocked) => by_tags,
            (_, Phase::Blocked | Phase::Over { .. }) => false,
            (what, Phase::Entered(stage)) => form.awaits(what, stage, arrival, cx),
        }
    }

    /// Where all are here: the ranks that may be closing the round or moving a piece of it.
    fn may_be_working<'a>(&'a self, cx: &'a Context) -> impl Iterator<Item = u32> + 'a {
        let came_before = |rank| self.form.came_before(rank, &self.arrival, cx);
        cx.ledger.active().iter().filter(move |&rank| rank != cx.plan.me && !came_before(rank))
    }
}

/// The form that the ranks have chosen.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Agreement {
    Tags(Participant<Tags>),
    Words(Participant<Words>),
    Given(Participant<Given>),
    Gates(Participant<Gates>),
    /// Large, and no poll in shared memory should go around it.
    Relay(Box<Participant<Relay>>),
    Cards(Participant<Slots>),
}

/// Does the same with the participant of any form.
macro_rules! of_any_form {
    ($agreement:expr, $participant:ident => $what:expr) => {
        match $agreement {
            Agreement::Tags($participant) => $what,
            Agreement::Words($participant) => $what,
            Agreement::Given($participant) => $what,
            Agreement::Gates($participant) => $what,
            Agreement::Relay($participant) => $what,
            Agreement::Cards($participant) => $what,
        }
    };
}
pub(super) use of_any_form;

impl Agreement {
    pub(super) fn new(plan: &Plan) -> Self {
        match plan.agreement {
            AgreementBy::Tags => Agreement::Tags(Participant::new(plan, Tags::default())),
            AgreementBy::Words => Agreement::Words(Participant::new(plan, Words::new(plan))),
            AgreementBy::Given => Agreement::Given(Participant::new(plan, Given::default())),
            AgreementBy::Gates => Agreement::Gates(Participant::new(plan, Gates::new(plan))),
            AgreementBy::Relays => Agreement::Relay(Box::new(Participant::new(plan, Relay::new(plan)))),
            AgreementBy::Cards => Agreement::Cards(Participant::new(plan, Slots::new(plan))),
        }
    }

    /// Begins with an arrival: part, buffer, weight. There must be no outstanding one.
    pub(super) fn start(&mut self, contribution: (Part, u32, u16), cx: &mut Context) {
        of_any_form!(self, it => it.arrival.start(contribution, cx));
    }

    /// The arrival is over, and the caller has what it waited for. Returns the buffer of a contribution that no rank will
    /// read.
    pub(super) fn end(&mut self) -> Option<u32> {
        of_any_form!(self, it => it.arrival.end())
    }

    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        of_any_form!(self, it => it.arrival.is_outstanding())
    }

    /// Whether there is all that the arrival waits for.
    #[inline]
    pub(super) fn is_served(&self, cx: &Context) -> bool {
        of_any_form!(self, it => it.arrival.is_served(cx))
    }

    /// Whether this rank waits for a slot of the ring.
    pub(super) fn waits_for_room(&self) -> bool {
        of_any_form!(self, it => it.arrival.is_blocked() || it.form.lacks_room())
    }

    /// Takes the result of an operation.
    pub(super) fn answer(&mut self, token: Token, value: u64, cx: &mut Context) {
        of_any_form!(self, it => it.form.answer(token, value, &mut it.arrival, cx));
    }

    /// A round that this rank closed, for which it was not yet said how long it took to land.
    #[inline]
    pub(super) fn unmeasured(&self) -> Option<u64> {
        of_any_form!(self, it => it.arrival.unmeasured)
    }

    /// Says how long it took from closing the round to its landing; nothing if that is not known.
    #[inline]
    pub(super) fn measured(&mut self, latency: Option<Time>) {
        of_any_form!(self, it => it.arrival.measured(latency));
    }

    /// When there is something to do although nothing happened.
    #[inline]
    pub(super) fn next_timer(&self) -> Option<Time> {
        Some(of_any_form!(self, it => it.form.next_timer(&it.arrival))).filter(|&at| at != Time::MAX)
    }

    /// Whether no rank waits for something that this rank has claimed.
    #[inline]
    pub(super) fn has_nothing_pending(&self) -> bool {
        of_any_form!(self, it => it.form.has_nothing_pending())
    }

    /// Whether other ranks need this one for their rounds, also while it has no arrival.
    #[inline]
    pub(super) fn serves(&self, cx: &Context) -> bool {
        of_any_form!(self, it => it.form.serves(cx))
    }

    /// Of a rank that has left: whether no other one needs it any more, or writes to it.
    pub(super) fn has_served(&self, cx: &Context) -> bool {
        of_any_form!(self, it => it.form.has_served(cx))
    }

    #[inline]
    pub(super) fn stats(&self, stats: Stats) -> Stats {
        of_any_form!(self, it => it.form.stats(stats))
    }

    /// Ranks that are waited for because they hold on to what a slot is needed for, because they did not arrive, or
    /// because their tags are not there yet.
    pub(super) fn missing(&self, movement: &Movement, cx: &Context, cells: &impl Cells, missing: &mut RankSet) {
        of_any_form!(self, it => it.missing(movement, cx, cells, missing));
    }

    /// The host that the arrival waits for an answer of.
    pub(super) fn asked(&self) -> Option<u32> {
        of_any_form!(self, it => it.form.asked().filter(|_| it.arrival.is_outstanding()))
    }

    /// Whether this rank does not go on before what was counted has completed, although every rank is here.
    pub(super) fn awaits(&self, what: Counted, cx: &Context) -> bool {
        of_any_form!(self, it => it.awaits(what, cx))
    }

    /// Where all are here: adds the ranks that may be closing the round or moving a piece of it.
    pub(super) fn may_be_working(&self, cx: &Context, ranks: &mut RankSet) {
        of_any_form!(self, it => it.may_be_working(cx).for_each(|rank| ranks.insert(rank)));
    }

    pub(super) fn summary(&self) -> String {
        of_any_form!(self, it => format!("{} {:?}", it.arrival.summary(), it.form))
    }

    // What only one form has.

    #[inline]
    pub(super) fn gates(&self) -> Option<&Gates> {
        if let Agreement::Gates(Participant { form, .. }) = self { Some(form) } else { None }
    }

    #[inline]
    pub(super) fn given(&self) -> Option<&Given> {
        if let Agreement::Given(Participant { form, .. }) = self { Some(form) } else { None }
    }

    pub(super) fn given_mut(&mut self) -> Option<&mut Given> {
        if let Agreement::Given(Participant { form, .. }) = self { Some(form) } else { None }
    }

    #[inline]
    pub(super) fn cards(&self) -> Option<&Slots> {
        if let Agreement::Cards(Participant { form, .. }) = self { Some(form) } else { None }
    }
}

/// Adds the active ranks that are not here.
fn insert_absent(here: impl Fn(u32) -> bool, cx: &Context, missing: &mut RankSet) {
    cx.ledger.active().iter().filter(|&rank| !here(rank)).for_each(|rank| missing.insert(rank));
}

/// Whether a rank has shown a tag for a round, or a later one.
fn has_shown(rank: u32, round: u64, plan: &Plan, cells: &impl Cells) -> bool {
    let tag = |number| Tag::from_cell(cells.load(plan.tag(rank, number)));
    (0..BUFFERS).any(|number| tag(number).target >= round)
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

/// Whether the next round starts with this rank's arrival, whichever others have arrived.
fn starts_alone(start: Start, cx: &Context) -> bool {
    match start {
        Start::First => true,
        Start::Designated => condition(cx) == Condition::Rank(cx.plan.me),
        Start::Everybody | Start::Count(_) => false,
    }
}
