//! Which ranks take part in a round, and when it closes.
//!
//! A rank's arrival waits until there is a free slot, unless its agent waits for it, and then enters a form of
//! agreement. The form takes it through its own stages until the arrival has its place in a round. Ranks agree by
//! [`tags`] where all take part, by [`words`], by the [`gates`] of a program, by [`relay`] among several hosts, or by a
//! [`runner`] of programs. Or cuts are [`given`] to them. Each implements [`Form`], and knows nothing of the others.

mod arrival;
mod bits;
mod gates;
mod given;
mod relay;
mod runner;
mod tags;
mod words;

use std::fmt::Debug;
use std::hash::Hash;

use super::context::Context;
use super::durations::Particulars;
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
use gates::Gates;
use given::Given;
use relay::Relay;
use runner::Slots;
use tags::Tags;
use words::Words;

/// The first interval after which an arrived rank checks whether the initiator failed to close; it doubles each time.
const FIRST_PROBE: Time = 1_000_000;
const LAST_PROBE: Time = 64_000_000;

/// One form of agreement: this rank's part in it.
///
/// Each poll calls [`learn`](Form::learn) and [`work`](Form::work), and calls [`step`](Form::step) while the form has
/// an arrival. A form need not implement a method that has nothing to do for it.
pub(crate) trait Form: Clone + Debug + Hash {
    /// The stage of an arrival that has entered.
    type Stage: Copy + Debug + Hash;

    /// Returns whether an arrival may enter, for a round of which nothing is known yet.
    fn has_room(&self, target: u64, movement: &Movement, cx: &mut Context, cells: &impl Cells) -> bool {
        let _ = movement;
        // The slot of the target is free: no rank reads what it held before.
        let before = target.saturating_sub(cx.plan.depth);
        target <= cx.ledger.fired() || cx.ledger.is_released(before, &cx.plan, cells)
    }

    /// Adds the ranks for which [`has_room`](Form::has_room) waits.
    fn without_room(&self, target: u64, cx: &Context, cells: &impl Cells, missing: &mut RankSet) {
        let least = target.saturating_sub(cx.plan.depth);
        let holds = |rank: &u32| cells.load(cx.plan.released(*rank)) < least;
        (0..cx.plan.ranks).filter(holds).for_each(|rank| missing.insert(rank));
    }

    /// Whether tags lie by round instead of by buffer: then no older tag can land last.
    const TAGS_BY_ROUND: bool = false;

    /// Takes an arrival for which there is a free slot. The machine calls this again if the arrival is left blocked.
    fn enter(
        &mut self,
        arrival: &mut Arrival<Self::Stage>,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    );

    /// Fires the next round, if its cut can be learned from the cells of this host. Returns whether the round after it
    /// may be known, too.
    fn learn(
        &mut self,
        arrival: &mut Arrival<Self::Stage>,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) -> bool;

    /// Advances the arrival from a stage.
    fn step(
        &mut self,
        stage: Self::Stage,
        arrival: &mut Arrival<Self::Stage>,
        effort: Effort,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    );

    /// Does this rank's work for the agreement apart from its own arrival.
    fn work(&mut self, effort: Effort, arrival: &mut Arrival<Self::Stage>, cx: &mut Context, cells: &impl Cells) {
        let _ = (effort, arrival, cx, cells);
    }

    /// Notes that nothing is left to do now.
    fn rest(&mut self) {}

    /// Takes the result of an operation.
    fn answer(&mut self, token: Token, value: u64, arrival: &mut Arrival<Self::Stage>, cx: &mut Context) {
        let _ = (value, cx);
        debug_assert!(false, "{token:?} completed in {arrival:?}, and nothing had asked for it");
    }

    /// Adds the ranks for which the target waits, as far as this rank can know.
    fn missing(
        &self,
        arrival: &Arrival<Self::Stage>,
        movement: &Movement,
        cx: &Context,
        cells: &impl Cells,
        missing: &mut RankSet,
    );

    /// Returns the host that has not answered the arrival's last atomic, or is clearing the next round's words.
    fn asked(&self) -> Option<u32> {
        None
    }

    /// Returns whether the arrival cannot proceed before counted operations have completed, although every rank is
    /// here.
    fn awaits(&self, what: Counted, stage: Self::Stage, arrival: &Arrival<Self::Stage>, cx: &Context) -> bool {
        let _ = (what, stage, arrival, cx);
        false
    }

    /// Returns whether a rank that has arrived for the target came before this one, and so does not close it.
    fn came_before(&self, rank: u32, arrival: &Arrival<Self::Stage>, cx: &Context) -> bool {
        let _ = (rank, arrival, cx);
        false
    }

    /// Returns when there is something to do even if nothing happens; the maximum time if never.
    fn next_timer(&self, arrival: &Arrival<Self::Stage>) -> Time {
        let _ = arrival;
        Time::MAX
    }

    /// Returns whether the next round waits for a release, and for nothing else.
    fn lacks_room(&self) -> bool {
        false
    }

    /// Returns whether no rank waits for something that this rank has claimed.
    fn has_nothing_pending(&self) -> bool {
        true
    }

    /// Returns whether other ranks need this one for their rounds, even while it has no arrival.
    fn serves(&self, cx: &Context) -> bool {
        let _ = cx;
        false
    }

    /// Returns whether no other rank needs this rank, which has left, or writes to it any more.
    fn has_served(&self, cx: &Context) -> bool {
        let _ = cx;
        true
    }

    /// Adds the counts that only this form has.
    fn stats(&self, stats: Stats) -> Stats {
        stats
    }
}

/// This rank's arrivals, and its part in the agreement.
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

    /// Advances the arrival.
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
        // The older of two tags of a buffer must not land last.
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

    /// Returns whether this rank cannot proceed before counted operations have completed, although every rank is here.
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

    /// Where all ranks are here: returns the ranks that may be closing the round or moving a piece of it.
    fn may_be_working<'a>(&'a self, cx: &'a Context) -> impl Iterator<Item = u32> + 'a {
        let came_before = |rank| self.form.came_before(rank, &self.arrival, cx);
        cx.ledger.active().iter().filter(move |&rank| rank != cx.plan.me && !came_before(rank))
    }
}

/// The form of agreement that the ranks have chosen.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Agreement {
    Tags(Participant<Tags>),
    Words(Participant<Words>),
    Given(Participant<Given>),
    Gates(Participant<Gates>),
    /// Boxed, because it is large, and polls in shared memory should not have to skip its memory.
    Relay(Box<Participant<Relay>>),
    Runner(Participant<Slots>),
}

/// Evaluates an expression with the participant of any form.
macro_rules! of_any_form {
    ($agreement:expr, $participant:ident => $what:expr) => {
        match $agreement {
            Agreement::Tags($participant) => $what,
            Agreement::Words($participant) => $what,
            Agreement::Given($participant) => $what,
            Agreement::Gates($participant) => $what,
            Agreement::Relay($participant) => $what,
            Agreement::Runner($participant) => $what,
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
            AgreementBy::Runner => Agreement::Runner(Participant::new(plan, Slots::new(plan))),
        }
    }

    /// Begins an arrival: part, buffer, and what the contribution says about itself. No arrival may be outstanding.
    pub(super) fn start(&mut self, contribution: (Part, u32, Particulars), cx: &mut Context) {
        of_any_form!(self, it => it.arrival.start(contribution, cx));
    }

    /// Ends the arrival: the caller has what it waited for. Returns the buffer of a contribution that no rank will
    /// read.
    pub(super) fn end(&mut self) -> Option<u32> {
        of_any_form!(self, it => it.arrival.end())
    }

    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        of_any_form!(self, it => it.arrival.is_outstanding())
    }

    /// Returns whether the arrival has all that it waits for.
    #[inline]
    pub(super) fn is_served(&self, cx: &Context) -> bool {
        of_any_form!(self, it => it.arrival.is_served(cx))
    }

    /// Returns whether this rank waits for a slot of the ring.
    pub(super) fn waits_for_room(&self) -> bool {
        of_any_form!(self, it => it.arrival.is_blocked() || it.form.lacks_room())
    }

    /// Takes the result of an operation.
    pub(super) fn answer(&mut self, token: Token, value: u64, cx: &mut Context) {
        of_any_form!(self, it => it.form.answer(token, value, &mut it.arrival, cx));
    }

    /// Returns a round that this rank closed and whose time from closing to landing was not yet reported.
    #[inline]
    pub(super) fn unmeasured(&self) -> Option<u64> {
        of_any_form!(self, it => it.arrival.unmeasured)
    }

    /// Reports how long it took from closing the round to its landing; `None` if that is not known.
    #[inline]
    pub(super) fn measured(&mut self, latency: Option<Time>) {
        of_any_form!(self, it => it.arrival.measured(latency));
    }

    /// Returns when there is something to do even if nothing happens.
    #[inline]
    pub(super) fn next_timer(&self) -> Option<Time> {
        Some(of_any_form!(self, it => it.form.next_timer(&it.arrival))).filter(|&at| at != Time::MAX)
    }

    /// Returns whether no rank waits for something that this rank has claimed.
    #[inline]
    pub(super) fn has_nothing_pending(&self) -> bool {
        of_any_form!(self, it => it.form.has_nothing_pending())
    }

    /// Returns whether other ranks need this one for their rounds, even while it has no arrival.
    #[inline]
    pub(super) fn serves(&self, cx: &Context) -> bool {
        of_any_form!(self, it => it.form.serves(cx))
    }

    /// Returns whether no other rank needs this rank, which has left, or writes to it any more.
    pub(super) fn has_served(&self, cx: &Context) -> bool {
        of_any_form!(self, it => it.form.has_served(cx))
    }

    #[inline]
    pub(super) fn stats(&self, stats: Stats) -> Stats {
        of_any_form!(self, it => it.form.stats(stats))
    }

    /// Adds the ranks that this rank waits for because they still use a slot that is needed, because they have not
    /// arrived, or because their tags are not there yet.
    pub(super) fn missing(&self, movement: &Movement, cx: &Context, cells: &impl Cells, missing: &mut RankSet) {
        of_any_form!(self, it => it.missing(movement, cx, cells, missing));
    }

    /// Returns the host whose answer the arrival waits for.
    pub(super) fn asked(&self) -> Option<u32> {
        of_any_form!(self, it => it.form.asked().filter(|_| it.arrival.is_outstanding()))
    }

    /// Returns whether this rank cannot proceed before counted operations have completed, although every rank is here.
    pub(super) fn awaits(&self, what: Counted, cx: &Context) -> bool {
        of_any_form!(self, it => it.awaits(what, cx))
    }

    /// Where all ranks are here: adds the ranks that may be closing the round or moving a piece of it.
    pub(super) fn may_be_working(&self, cx: &Context, ranks: &mut RankSet) {
        of_any_form!(self, it => it.may_be_working(cx).for_each(|rank| ranks.insert(rank)));
    }

    pub(super) fn summary(&self) -> String {
        of_any_form!(self, it => format!("{} {:?}", it.arrival.summary(), it.form))
    }

    // Access to parts that only one form has.

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
    pub(super) fn runner(&self) -> Option<&Slots> {
        if let Agreement::Runner(Participant { form, .. }) = self { Some(form) } else { None }
    }
}

/// Adds the active ranks for which `here` returns false.
fn insert_absent(here: impl Fn(u32) -> bool, cx: &Context, missing: &mut RankSet) {
    cx.ledger.active().iter().filter(|&rank| !here(rank)).for_each(|rank| missing.insert(rank));
}

/// Returns whether a rank has published a tag for a round or a later one.
fn has_shown(rank: u32, round: u64, plan: &Plan, cells: &impl Cells) -> bool {
    let tag = |number| Tag::from_cell(cells.load(plan.tag(rank, number)));
    (0..BUFFERS).any(|number| tag(number).target >= round)
}

/// Returns the condition of the next round.
fn condition(Context { plan, ledger, .. }: &Context) -> Condition {
    let round = ledger.open();
    let condition = plan.condition(round, ledger.active()).with_quorum(ledger.quorum());
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

/// Returns whether the next round starts with this rank's arrival, independently of the arrivals of others.
fn starts_alone(start: Start, cx: &Context) -> bool {
    match start {
        Start::First => true,
        Start::Designated => condition(cx) == Condition::Rank(cx.plan.me),
        Start::Everybody | Start::Count(_) => false,
    }
}
