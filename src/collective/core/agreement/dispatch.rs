//! Passes what happens on to the form of agreement that the ranks have chosen.

use super::super::context::Context;
use super::super::input::{Cells, Effort, FOREVER, Time};
use super::super::movement::Movement;
use super::super::op::Token;
use super::super::plan::{AgreementBy, BUFFERS, Plan};
use super::super::tag::Tag;
use super::cards::Slots;
use super::gates::Gates;
use super::given::Given;
use super::relay::Relay;
use super::tags::{self, Tags};
use super::words::{self, Words};
use super::{Arrival, ArrivalStage};
use crate::fault::Fault;
use crate::rank_set::RankSet;

/// This rank's part in agreeing.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Agreement {
    Tags(Tags),
    Words(Words),
    Given(Given),
    Gates(Gates),
    /// Large, and no poll in shared memory should go around it.
    Relay(Box<Relay>),
    Cards(Slots),
}

impl Agreement {
    pub(crate) fn new(plan: &Plan) -> Self {
        match (plan.agreement(), &plan.program) {
            (AgreementBy::Tags, _) => Agreement::Tags(Tags::default()),
            (AgreementBy::Words, _) => Agreement::Words(Words::new(plan)),
            (AgreementBy::Given, _) => Agreement::Given(Given::default()),
            (AgreementBy::Gates, Some(layout)) => Agreement::Gates(Gates::new(plan, layout)),
            (AgreementBy::Relays, _) => Agreement::Relay(Box::new(Relay::new(plan))),
            (AgreementBy::Gates | AgreementBy::Cards, _) => Agreement::Cards(Slots::new(plan)),
        }
    }

    /// Learns cuts from the cells of this host.
    #[inline]
    pub(crate) fn learn(
        &mut self,
        arrival: &mut Arrival,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) {
        match self {
            Agreement::Tags(tags) => tags.learn(arrival, movement, cx, cells),
            Agreement::Words(_) => while words::learn(arrival, cx, cells) {},
            Agreement::Given(given) => while given.learn(movement, cx, cells) {},
            Agreement::Gates(gates) => while gates.learn(arrival, cx, cells) {},
            Agreement::Relay(relay) => while relay.learn(arrival, cx, cells) {},
            Agreement::Cards(slots) => while slots.learn(arrival, cx, cells) {},
        }
    }

    /// Takes the arrival further, which is not over.
    #[inline(never)]
    pub(crate) fn step(
        &mut self,
        effort: Effort,
        arrival: &mut Arrival,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) {
        let (target, fired) = (arrival.target, cx.ledger.fired());
        match (&arrival.stage, self) {
            (ArrivalStage::Blocked, form) => form.try_to_enter(arrival, movement, cx, cells),
            (ArrivalStage::Tagged, Agreement::Given(given)) => given.step(arrival, cx),
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
                    Agreement::Words(words) => words.close(arrival, cx),
                    Agreement::Gates(gates) => gates.initiate_now(arrival, cx, cells),
                    Agreement::Relay(relay) => relay.initiate(arrival, cx),
                    Agreement::Tags(_) | Agreement::Given(_) | Agreement::Cards(_) => {}
                }
            }
            (&ArrivalStage::Late { tried }, Agreement::Gates(gates)) if arrival.fits_gate(tried + 1, &cx.plan) => {
                gates.deposit_into(tried + 1, arrival, cx, cells);
            }
            (&ArrivalStage::Late { .. }, Agreement::Relay(relay))
                if arrival.fits_gate(relay.open_gate(cx), &cx.plan) =>
            {
                relay.deposit(relay.open_gate(cx), arrival, cx);
            }
            // The round after the next one is a full one: what is to enter it waits until that is the next.
            (ArrivalStage::Late { .. }, Agreement::Relay(relay))
                if arrival.is_carried(&cx.plan) && relay.open_gate(cx) > cx.ledger.open() => {}
            (&ArrivalStage::Late { tried }, Agreement::Cards(slots)) if arrival.fits_gate(tried + 1, &cx.plan) => {
                slots.revoke_token(tried + 1, arrival, cx);
            }
            (&ArrivalStage::Late { tried }, _) => {
                // Also what is not carried: its tag tells the others that this rank has arrived.
                if arrival.hidden {
                    arrival.show_elsewhere(movement, cx);
                }
                if fired >= tried {
                    arrival.find_a_place(cx);
                }
            }
            (_, Agreement::Words(words)) => words.step(arrival, cx, cells),
            (_, Agreement::Gates(gates)) => gates.step(arrival, effort, cx, cells),
            (_, Agreement::Tags(_) | Agreement::Given(_) | Agreement::Relay(_) | Agreement::Cards(_)) => {}
        }
    }

    fn try_to_enter(&mut self, arrival: &mut Arrival, movement: &mut Movement, cx: &mut Context, cells: &impl Cells) {
        let (plan, target) = (&cx.plan, arrival.target);
        let has_room = match self {
            Agreement::Tags(_) => tags::has_room(target, movement, cx, cells),
            // The slot of the target is free: no rank reads what it held before.
            Agreement::Words(_) | Agreement::Given(_) | Agreement::Gates(_) => {
                let before = target.saturating_sub(plan.depth);
                target <= cx.ledger.fired() || cx.ledger.is_released(before, plan, cells)
            }
            Agreement::Relay(relay) => relay.has_room(target, cx, cells),
            Agreement::Cards(slots) => slots.is_armed(target),
        };
        if !has_room {
            cx.stats.full_ring += u64::from(!arrival.waited_for_room);
            arrival.waited_for_room = true;
            return;
        }
        // Of two tags of a buffer, the older one must not land last. (By tags, each round has cells of its own.)
        if !matches!(self, Agreement::Tags(_)) && cx.outbox.has_tag(arrival.buffer) {
            return;
        }
        let limit = plan.fire.limit().filter(|_| !plan.is_full(target));
        let limit = limit.map(|limit| if plan.fault(Fault::HastyDeadline) { limit / 2 } else { limit });
        arrival.close_by = limit.map_or(Time::MAX, |limit| cx.now.saturating_add(limit.as_nanos() as Time));
        match self {
            Agreement::Tags(tags) => tags.show(arrival, movement, cx),
            Agreement::Words(words) => words.arrive(arrival, movement, cx),
            Agreement::Given(given) => given.arrive(arrival, movement, cx),
            Agreement::Gates(gates) => gates.arrive(arrival, cx, cells),
            Agreement::Relay(relay) => relay.arrive(arrival, cx),
            Agreement::Cards(slots) => slots.revoke_token(target, arrival, cx),
        }
    }

    /// Does what the agreement asks of this rank apart from its own arrival.
    #[inline]
    pub(crate) fn work(&mut self, effort: Effort, arrival: &mut Arrival, cx: &mut Context, cells: &impl Cells) {
        match self {
            Agreement::Gates(gates) if effort > Effort::Nothing && cx.outbox.is_empty() => {
                gates.work(effort, arrival, cx, cells);
            }
            Agreement::Relay(relay) => relay.work(effort, arrival, cx, cells),
            Agreement::Cards(slots) => slots.work(cx, cells),
            _ => {}
        }
    }

    /// There is nothing to do now.
    #[inline]
    pub(crate) fn rest(&mut self) {
        if let Agreement::Tags(tags) = self {
            tags.rest();
        }
    }

    /// Takes the result of an operation.
    pub(crate) fn complete(&mut self, token: Token, value: u64, arrival: &mut Arrival, cx: &mut Context) {
        match (self, token) {
            (Agreement::Words(words), token) => words.complete(token, value, arrival, cx),
            (Agreement::Gates(gates), Token::Deposit) => gates.answered(value, arrival, cx),
            (Agreement::Gates(gates), Token::Swap) => gates.swapped(value, cx),
            (Agreement::Cards(slots), Token::Deposit) => slots.answered(value, arrival, cx),
            (_, token) => debug_assert!(false, "{token:?} completed, and nothing had asked for it"),
        }
    }

    /// Whether no rank waits for something that this rank has claimed.
    #[inline]
    pub(crate) fn owes_nothing(&self) -> bool {
        if let Agreement::Gates(gates) = self { gates.owes_nothing() } else { true }
    }

    #[inline]
    pub(crate) fn gates(&self) -> Option<&Gates> {
        if let Agreement::Gates(gates) = self { Some(gates) } else { None }
    }

    #[inline]
    pub(crate) fn given(&self) -> Option<&Given> {
        if let Agreement::Given(given) = self { Some(given) } else { None }
    }

    pub(crate) fn given_mut(&mut self) -> Option<&mut Given> {
        if let Agreement::Given(given) = self { Some(given) } else { None }
    }

    #[inline]
    pub(crate) fn relay(&self) -> Option<&Relay> {
        if let Agreement::Relay(relay) = self { Some(relay) } else { None }
    }

    #[inline]
    pub(crate) fn cards(&self) -> Option<&Slots> {
        if let Agreement::Cards(slots) = self { Some(slots) } else { None }
    }

    /// Ranks that are waited for because they hold on to what a slot is needed for, because they did not arrive, or
    /// because their tags are not there yet.
    pub(crate) fn missing(
        &self,
        arrival: &Arrival,
        movement: &Movement,
        cx: &Context,
        cells: &impl Cells,
        missing: &mut RankSet,
    ) {
        let Context { plan, ledger, .. } = cx;
        let by_tags = plan.by_tags();
        match (self, &arrival.stage) {
            (Agreement::Relay(relay), ArrivalStage::Blocked) => {
                relay.without_room(arrival.target, cx, cells).for_each(|rank| missing.insert(rank));
            }
            (_, ArrivalStage::Blocked) => {
                let least = if by_tags { FOREVER } else { arrival.target.saturating_sub(plan.depth) };
                let awaited = |rank: &u32| !by_tags || ledger.leavers().contains(*rank);
                let holds = |rank: &u32| awaited(rank) && cells.load(plan.released(*rank)) < least;
                (0..plan.ranks).filter(holds).for_each(|rank| missing.insert(rank));
            }
            (Agreement::Words(words), ArrivalStage::Gathering) => {
                words.untagged(cx, cells).for_each(|rank| missing.insert(rank));
            }
            // Only the host is waited for that clears the words.
            (_, ArrivalStage::Clearing) => {}
            _ if arrival.target <= ledger.fired() => {}
            (Agreement::Relay(relay), _) => {
                relay.missing(cx, cells).into_iter().for_each(|rank| missing.insert(rank));
            }
            (Agreement::Given(given), _) => given.missing(cx, cells).for_each(|rank| missing.insert(rank)),
            (Agreement::Gates(gates), _) if gates.has_fired(cx, cells) => {
                gates.holders(cx, cells).into_iter().for_each(|rank| missing.insert(rank));
            }
            _ => {
                let shown = |rank| {
                    let tag = |number| Tag::from_cell(cells.load(plan.tag(rank, number)));
                    (0..BUFFERS).any(|number| tag(number).target >= arrival.target)
                };
                let reducers = movement.reducers().filter(|it| it.tells_cuts() && !it.reduces(plan.me));
                let here = |rank: u32| match self {
                    Agreement::Gates(gates) => gates.has_deposited(rank, arrival.target, plan, cells),
                    Agreement::Words(_) => {
                        words::is_here(rank, arrival.target, cx, cells).unwrap_or_else(|| shown(rank))
                    }
                    Agreement::Tags(_) | Agreement::Given(_) | Agreement::Relay(_) | Agreement::Cards(_) => {
                        reducers.map_or_else(|| shown(rank), |it| !it.waits_for(rank, cx))
                    }
                };
                ledger.active().iter().filter(|&rank| !here(rank)).for_each(|rank| missing.insert(rank));
            }
        }
        missing.remove(plan.me);
    }

    /// Where all are here: the ranks that may be closing the round or moving a piece of it. An arrival that fulfils
    /// the condition closes at once where there is no grace: it is none of those that were there before
    /// this rank came.
    pub(crate) fn may_be_working<'a>(
        &'a self,
        arrival: &Arrival,
        Context { plan, ledger, .. }: &'a Context,
    ) -> impl Iterator<Item = u32> + 'a {
        let closing = arrival.target > ledger.fired()
            && !matches!(arrival.stage, ArrivalStage::Adding | ArrivalStage::Away)
            && arrival.pace.grace().is_none();
        let came_before = move |rank| matches!(self, Agreement::Words(words) if closing && words.came_before(rank));
        ledger.active().iter().filter(move |&rank| rank != plan.me && !came_before(rank))
    }
}
