//! Passes what happens on to the form of agreement that the ranks have chosen.

use super::super::context::{Context, View};
use super::super::entry::{Entry, Part};
use super::super::input::{Cells, Effort, FOREVER, Time};
use super::super::movement::Movement;
use super::super::op::{Counted, Token};
use super::super::plan::{AgreementBy, BUFFERS, Plan};
use super::super::tag::Tag;
use super::cards::Slots;
use super::gates::Gates;
use super::tags::{self, Tags};
use super::words::{self, Words};
use super::{Arrival, ArrivalStage};
use crate::fault::Fault;
use crate::rank_set::RankSet;

/// This rank's part in agreeing.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Agreement {
    arrival: Arrival,
    form: Form,
}

#[derive(Clone, Debug, Hash)]
enum Form {
    Tags(Tags),
    Words(Words),
    Gates(Gates),
    Cards(Slots),
}

impl Agreement {
    pub(crate) fn new(plan: &Plan) -> Self {
        let form = match (plan.agreement(), &plan.program) {
            (AgreementBy::Tags, _) => Form::Tags(Tags::default()),
            (AgreementBy::Words, _) => Form::Words(Words::new(plan)),
            (AgreementBy::Gates, Some(layout)) => Form::Gates(Gates::new(plan, layout)),
            (AgreementBy::Gates | AgreementBy::Cards, _) => Form::Cards(Slots::new(plan)),
        };
        Agreement { arrival: Arrival::new(plan), form }
    }

    /// What the endpoint says of itself: [`waits_fence_peer`](crate::fabric::Endpoint::waits_fence_peer).
    pub(crate) fn set_waits_fence_peer(&mut self, waits_fence_peer: bool) {
        if let Form::Tags(tags) = &mut self.form {
            tags.set_waits_fence_peer(waits_fence_peer);
        }
    }

    /// The caller handed something in, and comes back from its own work.
    pub(crate) fn note_step(&mut self, now: Time) {
        self.arrival.pace.arrived(now);
    }

    /// Begins with an arrival. There must be no outstanding one.
    pub(crate) fn start(&mut self, (part, buffer, weight): (Part, u32, u16), cx: &mut Context<'_>) {
        debug_assert!(!self.has_arrival() && !cx.ledger.has_left());
        let target = cx.ledger.taken() + 1;
        let arrival = &mut self.arrival;
        (arrival.target, arrival.made_for) = (target, target);
        (arrival.part, arrival.buffer, arrival.weight) = (part, buffer, weight);
        (arrival.close_by, arrival.waited_for_room, arrival.asked) = (Time::MAX, false, None);
        arrival.enter(ArrivalStage::Blocked, cx.outbox);
    }

    #[inline]
    pub(crate) fn has_arrival(&self) -> bool {
        self.arrival.stage != ArrivalStage::Away
    }

    /// Whether the arrival waits for room in the ring.
    pub(crate) fn is_blocked(&self) -> bool {
        self.arrival.stage == ArrivalStage::Blocked
    }

    /// The arrival's entry in the next round, where this rank has shown its tag for it and has not seen it fire.
    #[inline]
    pub(crate) fn own_entry(&self, View { plan, ledger, .. }: View<'_>) -> Option<Entry> {
        let Arrival { part, weight, buffer, .. } = self.arrival;
        let is_open = !ledger.has_left() && self.arrival.is_tagged(ledger.open());
        is_open.then(|| Entry::new(plan.me, part, (0, weight), buffer))
    }

    /// Whether there is all that the arrival waits for.
    #[inline]
    pub(crate) fn is_served(&self, view: View<'_>) -> bool {
        self.arrival.is_served(view)
    }

    /// The arrival is over, and the caller has what it waited for.
    pub(crate) fn end(&mut self) {
        self.arrival.stage = ArrivalStage::Away;
    }

    /// Learns cuts from the cells of this host.
    #[inline]
    pub(crate) fn learn(&mut self, movement: &mut Movement, cx: &mut Context<'_>, cells: &impl Cells) {
        let Agreement { arrival, form } = self;
        match form {
            Form::Tags(tags) => tags.learn(arrival, movement, cx, cells),
            Form::Words(_) => while words::learn(arrival, cx, cells) {},
            Form::Gates(gates) => while gates.learn(arrival, cx, cells) {},
            Form::Cards(slots) => while slots.learn(arrival, cx, cells) {},
        }
    }

    /// Takes the arrival further.
    pub(crate) fn step(&mut self, movement: &mut Movement, effort: Effort, cx: &mut Context<'_>, cells: &impl Cells) {
        let Agreement { arrival, form } = self;
        let (target, fired) = (arrival.target, cx.ledger.fired());
        match (&arrival.stage, form) {
            (ArrivalStage::Away | ArrivalStage::Over { .. }, _) => {}
            (ArrivalStage::Blocked, _) => self.try_to_enter(movement, cx, cells),
            (
                ArrivalStage::Tagged | ArrivalStage::Published | ArrivalStage::Open { .. } | ArrivalStage::Counting,
                _,
            ) if fired >= target => arrival.entered(cx),
            (&ArrivalStage::Open { close_at, .. }, form) if cx.now >= close_at => {
                if cx.now >= arrival.close_by {
                    cx.stats.deadlines_expired += 1;
                } else {
                    cx.stats.graces_expired += 1;
                }
                match form {
                    Form::Words(words) => words.close(arrival, cx),
                    Form::Gates(gates) => gates.initiate_now(arrival, cx, cells),
                    Form::Tags(_) | Form::Cards(_) => {}
                }
            }
            (&ArrivalStage::Late { tried }, Form::Gates(gates)) if arrival.fits_gate(tried + 1, cx.plan) => {
                gates.deposit_into(tried + 1, arrival, cx, cells);
            }
            (&ArrivalStage::Late { tried }, Form::Cards(slots)) if arrival.fits_gate(tried + 1, cx.plan) => {
                slots.revoke_token(tried + 1, arrival, cx);
            }
            (&ArrivalStage::Late { tried }, form) => {
                if fired >= tried {
                    let owes_nothing = form.owes_nothing() && movement.owes_nothing();
                    arrival.find_a_place(owes_nothing, cx);
                }
            }
            (_, Form::Words(words)) => words.step(arrival, movement, cx, cells),
            (_, Form::Gates(gates)) => gates.step(arrival, effort, cx, cells),
            (_, Form::Tags(_) | Form::Cards(_)) => {}
        }
    }

    fn try_to_enter(&mut self, movement: &mut Movement, cx: &mut Context<'_>, cells: &impl Cells) {
        let Agreement { arrival, form } = self;
        let (plan, target) = (cx.plan, arrival.target);
        let has_room = match form {
            Form::Tags(_) => tags::has_room(target, movement, cx.view(), cells),
            // The slot of the target is free: no rank reads what it held before.
            Form::Words(_) | Form::Gates(_) => {
                let before = target.saturating_sub(plan.depth);
                target <= cx.ledger.fired() || cx.ledger.is_released(before, plan, cells)
            }
            Form::Cards(slots) => slots.is_armed(target),
        };
        if !has_room {
            cx.stats.full_ring += u64::from(!arrival.waited_for_room);
            arrival.waited_for_room = true;
            return;
        }
        // Of two tags of a buffer, the older one must not land last. (By tags, each round has cells of its own.)
        if !matches!(form, Form::Tags(_)) && cx.outbox.has_tag(arrival.buffer) {
            return;
        }
        let limit = plan.fire.limit().filter(|_| !plan.fire.is_full(target));
        let limit = limit.map(|limit| if plan.fault(Fault::HastyDeadline) { limit / 2 } else { limit });
        arrival.close_by = limit.map_or(Time::MAX, |limit| cx.now.saturating_add(limit.as_nanos() as Time));
        match form {
            Form::Tags(tags) => tags.show(arrival, movement, cx),
            Form::Words(words) => words.arrive(arrival, movement, cx),
            Form::Gates(gates) => gates.arrive(arrival, cx, cells),
            Form::Cards(slots) => slots.revoke_token(target, arrival, cx),
        }
    }

    /// Does what the agreement asks of this rank apart from its own arrival.
    #[inline]
    pub(crate) fn work(&mut self, effort: Effort, cx: &mut Context<'_>, cells: &impl Cells) {
        let Agreement { arrival, form } = self;
        match form {
            Form::Gates(gates) if effort > Effort::Nothing && cx.outbox.is_empty() => {
                gates.work(effort, arrival, cx, cells);
            }
            Form::Cards(slots) => slots.work(cx, cells),
            _ => {}
        }
    }

    /// There is nothing to do now.
    #[inline]
    pub(crate) fn rest(&mut self) {
        if let Form::Tags(tags) = &mut self.form {
            tags.rest();
        }
    }

    /// Takes the result of an operation.
    pub(crate) fn complete(&mut self, token: Token, value: u64, movement: &mut Movement, cx: &mut Context<'_>) {
        let Agreement { arrival, form } = self;
        match (form, token) {
            (Form::Words(words), token) => words.complete(token, value, arrival, movement, cx),
            (Form::Gates(gates), Token::Deposit) => gates.answered(value, arrival, cx),
            (Form::Gates(gates), Token::Swap) => gates.swapped(value, cx),
            (Form::Cards(slots), Token::Deposit) => slots.answered(value, arrival, cx),
            (_, token) => debug_assert!(false, "{token:?} completed, and nothing had asked for it"),
        }
    }

    /// When the arrival has something to do although nothing happened.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        let ArrivalStage::Open { close_at, probe_at, .. } = self.arrival.stage else { return None };
        Some(close_at.min(probe_at)).filter(|&at| at != Time::MAX)
    }

    /// A round that this rank closed, for which it was not yet said how long it took to land.
    pub(crate) fn unmeasured(&self) -> Option<u64> {
        self.arrival.unmeasured
    }

    /// Says how long it took from closing the round to its landing; nothing if that is not known.
    pub(crate) fn measured(&mut self, latency: Option<Time>) {
        self.arrival.unmeasured = None;
        if let Some(latency) = latency {
            self.arrival.pace.handed_out(latency);
        }
    }

    /// Whether no rank waits for something that this rank has claimed.
    #[inline]
    pub(crate) fn owes_nothing(&self) -> bool {
        self.form.owes_nothing()
    }

    #[inline]
    pub(crate) fn gates(&self) -> Option<&Gates> {
        if let Form::Gates(gates) = &self.form { Some(gates) } else { None }
    }

    #[inline]
    pub(crate) fn cards(&self) -> Option<&Slots> {
        if let Form::Cards(slots) = &self.form { Some(slots) } else { None }
    }

    /// Ranks that are waited for because they hold on to what a slot is needed for, because they did not arrive, or
    /// because their tags are not there yet.
    pub(crate) fn missing(&self, movement: &Movement, view: View<'_>, cells: &impl Cells, missing: &mut RankSet) {
        let (View { plan, ledger, .. }, arrival) = (view, &self.arrival);
        let by_tags = matches!(self.form, Form::Tags(_));
        match (&self.form, &arrival.stage) {
            (_, ArrivalStage::Blocked) => {
                let least = if by_tags { FOREVER } else { arrival.target.saturating_sub(plan.depth) };
                let awaited = |rank: &u32| !by_tags || ledger.leavers().contains(*rank);
                let holds = |rank: &u32| awaited(rank) && cells.load(plan.released(*rank)) < least;
                (0..plan.ranks).filter(holds).for_each(|rank| missing.insert(rank));
            }
            (Form::Words(words), ArrivalStage::Gathering) => {
                words.untagged(view, cells).for_each(|rank| missing.insert(rank));
            }
            // Only the host is waited for that clears the words.
            (_, ArrivalStage::Clearing) => {}
            _ if arrival.target <= ledger.fired() => {}
            (Form::Gates(gates), _) if gates.has_fired(view, cells) => {
                gates.holders(view, cells).into_iter().for_each(|rank| missing.insert(rank));
            }
            (form, _) => {
                let shown = |rank| {
                    let tag = |number| Tag::from_cell(cells.load(plan.tag(rank, number)));
                    (0..BUFFERS).any(|number| tag(number).target >= arrival.target)
                };
                let reducers = movement.reducers().filter(|it| it.tells_cuts() && !it.reduces(plan.me));
                let here = |rank: u32| match form {
                    Form::Gates(gates) => gates.has_deposited(rank, arrival.target, plan, cells),
                    Form::Words(_) => words::is_here(rank, arrival.target, view, cells).unwrap_or_else(|| shown(rank)),
                    Form::Tags(_) | Form::Cards(_) => {
                        reducers.map_or_else(|| shown(rank), |it| !it.waits_for(rank, view))
                    }
                };
                ledger.active().iter().filter(|&rank| !here(rank)).for_each(|rank| missing.insert(rank));
            }
        }
        missing.remove(plan.me);
    }

    /// The host that the arrival waits for an answer of.
    pub(crate) fn asked(&self) -> Option<u32> {
        self.arrival.asked.filter(|_| self.has_arrival())
    }

    /// Whether this rank does not go on before what was counted has completed, although every rank is here.
    pub(crate) fn awaits(&self, what: Counted, View { plan, ledger, .. }: View<'_>) -> bool {
        let (arrival, by_tags) = (&self.arrival, matches!(self.form, Form::Tags(_)));
        match (what, &arrival.stage) {
            (_, ArrivalStage::Away) => false,
            _ if ledger.has_left() => true,
            (Counted::Read, _) => true,
            (Counted::Outcome, ArrivalStage::Tagged | ArrivalStage::Over { .. }) => true,
            (Counted::Tag { buffer }, &ArrivalStage::Over { needs }) => {
                ledger.landed() >= needs && arrival.writes_soon(buffer, plan)
            }
            (Counted::Tag { buffer }, ArrivalStage::Blocked) => buffer == arrival.buffer && !by_tags,
            (Counted::Tag { buffer }, &ArrivalStage::Late { tried }) => {
                buffer == arrival.buffer && ledger.fired() >= tried
            }
            (Counted::Push, ArrivalStage::Blocked) => by_tags || ledger.releases_later(),
            (Counted::Outcome, ArrivalStage::Blocked) => by_tags,
            _ => false,
        }
    }

    /// Where all are here: the ranks that may be closing the round or moving a piece of it. An arrival that fulfils
    /// the condition closes at once where there is no grace: it is none of those that were there before
    /// this rank came.
    pub(crate) fn may_be_working(&self, View { plan, ledger, .. }: View<'_>) -> impl Iterator<Item = u32> {
        let arrival = &self.arrival;
        let closing = arrival.target > ledger.fired()
            && !matches!(arrival.stage, ArrivalStage::Adding | ArrivalStage::Away)
            && arrival.pace.grace().is_none();
        let came_before = move |rank| matches!(&self.form, Form::Words(words) if closing && words.came_before(rank));
        ledger.active().iter().filter(move |&rank| rank != plan.me && !came_before(rank))
    }

    /// Where it stands, for a line about a machine.
    pub(crate) fn summary(&self) -> String {
        let Agreement { arrival, form } = self;
        let Arrival { stage, target, made_for, part, buffer, deferred, .. } = arrival;
        format!("{stage:?} {part:?} for {target} made for {made_for} in {buffer} deferred {deferred:?} {form:?}")
    }
}

impl Form {
    fn owes_nothing(&self) -> bool {
        if let Form::Gates(gates) = self { gates.owes_nothing() } else { true }
    }
}
