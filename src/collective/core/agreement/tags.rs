//! Agreement by tags, where all ranks take part: the round has fired when every active rank has published its tag.

use super::super::context::Context;
use super::super::input::{Cells, Effort, FOREVER};
use super::super::movement::Movement;
use super::super::op::{Awaited, Counted, Op};
use super::super::plan::Plan;
use super::super::tag::Tag;
use super::arrival::Arrival;
use super::{Form, has_shown, insert_absent};
use crate::fault::Fault;
use crate::rank_set::RankSet;

/// How far this rank has come with reading tags.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tags {
    /// The first rank whose tag for the next round was not seen.
    unseen: u32,
    /// Set until the poll after publishing this rank's tag has ended: a rank that sees the round complete in this state
    /// wakes the others.
    must_wake: bool,
}

impl std::hash::Hash for Tags {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // The number of seen tags follows from the cells of the tags, which stay unchanged until the round fires.
        self.must_wake.hash(state);
    }
}

/// The arrival's tag was published to all ranks.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Shown;

impl Form for Tags {
    type Stage = Shown;

    const TAGS_BY_ROUND: bool = true;

    /// Returns whether this rank may arrive. All other ranks show by their own arrival that they have finished the
    /// round before; ranks that left with it will not arrive again.
    fn has_room(&self, target: u64, movement: &Movement, cx: &mut Context, cells: &impl Cells) -> bool {
        let Context { plan, ledger, .. } = &*cx;
        let is_done = |rank| cells.load(plan.released(rank)) == FOREVER;
        let overtakes = plan.fault(Fault::OvertakeLeavers);
        movement.has_settled(target, cx) && (overtakes || ledger.leavers().iter().all(is_done))
    }

    fn without_room(&self, _: u64, Context { plan, ledger, .. }: &Context, cells: &impl Cells, missing: &mut RankSet) {
        let holds = |rank: &u32| cells.load(plan.released(*rank)) < FOREVER;
        ledger.leavers().iter().filter(holds).for_each(|rank| missing.insert(rank));
    }

    fn enter(&mut self, arrival: &mut Arrival<Shown>, movement: &mut Movement, cx: &mut Context, _: &impl Cells) {
        movement.enter(arrival.target, cx);
        arrival.show(movement, cx);
        if cx.plan.ranks > 2 || !cx.waits_fence_peer {
            // Of several last arrivals at least one must see all the others and wake the sleeping ranks. With two
            // ranks, the one that goes to sleep can fence for both before it polls again.
            cx.outbox.push(Op::Fence);
        }
        self.must_wake = true;
        if movement.reducers().is_some_and(|reducers| reducers.has_reducer_beside(&cx.plan)) {
            cx.outbox.wake(u32::MAX, Awaited::Outcome);
        }
        arrival.enter(Shown, &mut cx.outbox);
    }

    #[inline]
    fn learn(
        &mut self,
        arrival: &mut Arrival<Shown>,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) -> bool {
        // A round beyond this rank's arrival cannot fire, and its tags would mean nothing yet.
        if arrival.stage().is_some() && arrival.target == cx.ledger.open() {
            self.poll_tags(movement, cx, cells);
        }
        false
    }

    #[inline]
    fn step(
        &mut self,
        _: Shown,
        arrival: &mut Arrival<Shown>,
        _: Effort,
        _: &mut Movement,
        cx: &mut Context,
        _: &impl Cells,
    ) {
        if cx.ledger.fired() >= arrival.target {
            arrival.entered(cx);
        }
    }

    fn rest(&mut self) {
        self.must_wake = false;
    }

    fn missing(
        &self,
        arrival: &Arrival<Shown>,
        movement: &Movement,
        cx: &Context,
        cells: &impl Cells,
        missing: &mut RankSet,
    ) {
        if arrival.target <= cx.ledger.fired() {
            return;
        }
        match movement.reducers().filter(|reducers| reducers.tells_cuts() && !reducers.reduces(cx.plan.me)) {
            Some(reducers) => insert_absent(|rank| !reducers.waits_for(rank, cx), cx, missing),
            None => insert_absent(|rank| has_shown(rank, arrival.target, &cx.plan, cells), cx, missing),
        }
    }

    fn awaits(&self, what: Counted, _: Shown, _: &Arrival<Shown>, _: &Context) -> bool {
        what == Counted::Outcome
    }
}

impl Tags {
    /// Reads the tags of the next round, or the cut that its reducer announces.
    #[inline(never)]
    fn poll_tags(&mut self, movement: &mut Movement, cx: &mut Context, cells: &impl Cells) {
        let round = cx.ledger.open();
        if let Some(reducers) = movement.reducers().filter(|reducers| reducers.tells_cuts()) {
            if !reducers.reduces(cx.plan.me) {
                if reducers.learn(round, cx, cells) {
                    cx.fire(round);
                }
                return;
            }
            if !reducers.may_hand_out(cx) {
                return;
            }
        }
        if self.has_all(round, cx, cells) {
            cx.fire(round);
            // Only the last arrivals wake others: one of them saw each rank that went to sleep earlier.
            if !movement.fired(round, cx) && self.must_wake {
                cx.outbox.wake(cx.plan.callees(), Awaited::Outcome);
            }
        }
    }

    /// Returns whether every active rank has published its tag for a round; if so, these ranks are its cut.
    fn has_all(&mut self, round: u64, cx: &mut Context, cells: &impl Cells) -> bool {
        let number = Plan::tag_of(round);
        let tag = |rank| Tag::from_cell(cells.load(cx.plan.tag(rank, number)));
        while let Some(rank) = cx.ledger.active().next(self.unseen) {
            if tag(rank).target != round {
                return false;
            }
            self.unseen = rank + 1;
        }
        self.unseen = 0;
        let (cut, active) = cx.ledger.cut_of_active(round);
        cut.begin(round, None);
        active.iter().for_each(|rank| cut.entries.push(tag(rank).entry(rank)));
        true
    }
}
