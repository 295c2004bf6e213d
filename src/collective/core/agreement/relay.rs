//! Agreement and movement between hosts: one agent for each host relays for all of its ranks.
//!
//! A rank that has arrived shows a tag to the agent of its host, which is its lowest rank. Activations flood the agents,
//! and each activation closes the [`Leaf`](leaf) of a host: the tags that are there at that time are the host's part in
//! the round. Partial sums go from host to host with a label that describes them, so the outcome arrives with its cut.
//! The rank then finds its fate in the cuts. A late contribution is in the next round that its agent closes, and its
//! rank need not do anything for that.

mod agent;
mod leaf;
#[cfg(all(test, loom))]
mod loom_tests;
mod sent;

use super::super::context::Context;
use super::super::entry::Part;
use super::super::input::{Cells, Effort, Time};
use super::super::movement::Movement;
use super::super::op::{Awaited, Op};
use super::super::plan::{OUTCOME, Plan};
use super::arrival::Arrival;
use super::{Form, has_shown};
use crate::fault::Fault;
use crate::rank_set::RankSet;
use agent::Agent;
use leaf::waits_for_full;
use sent::label_of;

/// A rank's part in rounds that agents relay.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Relay {
    /// Whether the tag of this rank's last arrival is there. It stays, even if the caller has to leave again.
    leaves: bool,
    /// Of the lowest rank of a host: what it does for all of them.
    agent: Option<Agent>,
}

/// How far an arrival has come.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum RelayStage {
    /// Its tag is there.
    Shown,
    /// It is in its target.
    Present,
    /// Its target was closed before it looked, and so was every round up to this one.
    Late { closed: u64 },
}

impl Form for Relay {
    type Stage = RelayStage;

    /// A rank arrives at any time: its round starts only when there is room for the outcome.
    fn has_room(&self, _: u64, _: &Movement, _: &mut Context, _: &impl Cells) -> bool {
        true
    }

    /// Shows the tag.
    fn enter(&mut self, arrival: &mut Arrival<RelayStage>, _: &mut Movement, cx: &mut Context, cells: &impl Cells) {
        if arrival.part == Part::Leaving {
            if cx.ledger.has_left() {
                // The round that the caller now gets took the tag that was shown before.
                return arrival.over(arrival.target, cx);
            }
            if std::mem::replace(&mut self.leaves, true) {
                return arrival.enter(RelayStage::Late { closed: arrival.target }, &mut cx.outbox);
            }
        }
        arrival.show_here(cx);
        if cx.plan.topology.is_shared(cx.plan.host()) {
            cx.outbox.push(Op::Fence);
            if !cx.plan.fault(Fault::ForgetToTellAgent) {
                cx.outbox.wake(u32::MAX, Awaited::Outcome);
            }
        }
        match cx.plan.fault(Fault::LookBeforeTag) {
            true => self.look(arrival, cx, cells),
            false => arrival.enter(RelayStage::Shown, &mut cx.outbox),
        }
    }

    /// Fires the next round if its outcome is on this host.
    #[inline(never)]
    fn learn(
        &mut self,
        arrival: &mut Arrival<RelayStage>,
        _: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) -> bool {
        let round = cx.ledger.open();
        let is_here = match &mut self.agent {
            Some(agent) => agent.has_outcome(cx, cells),
            None => !cx.ledger.has_left() && cells.load(cx.plan.landed()) >= round,
        };
        if !is_here {
            return false;
        }
        let plan = cx.plan.clone();
        let label = label_of(plan.area(OUTCOME, round), &plan, cells);
        let cut = cx.ledger.cut_mut(round);
        cut.decode(round, |index| label.record(index));
        // The parts of hosts came one after the other.
        cut.sort();
        arrival.fire(round, cx);
        if cx.ledger.leavers().contains(plan.me) {
            cx.ledger.leave(round);
        }
        if let Some(agent) = &mut self.agent {
            agent.fired(round, label.without_slot(), cx);
        }
        true
    }

    fn step(
        &mut self,
        stage: RelayStage,
        arrival: &mut Arrival<RelayStage>,
        _: Effort,
        _: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) {
        let fired = cx.ledger.fired();
        match stage {
            RelayStage::Shown => self.look(arrival, cx, cells),
            RelayStage::Present if fired >= arrival.target => arrival.entered(cx),
            // A rank learns of no round after the one with its last arrival.
            RelayStage::Late { closed } if fired >= closed || cx.ledger.has_left() => {
                settle(closed.min(fired), arrival, cx);
            }
            RelayStage::Present | RelayStage::Late { .. } => {}
        }
    }

    #[inline(never)]
    fn work(&mut self, effort: Effort, arrival: &mut Arrival<RelayStage>, cx: &mut Context, cells: &impl Cells) {
        if let Some(agent) = &mut self.agent
            && let Some(closed) = agent.work(effort, arrival.pace.grace().unwrap_or(0), cx, cells)
        {
            // From here on the round waits for no arrival.
            arrival.unmeasured = Some(closed);
        }
    }

    fn missing(
        &self,
        arrival: &Arrival<RelayStage>,
        _: &Movement,
        cx: &Context,
        cells: &impl Cells,
        missing: &mut RankSet,
    ) {
        match &self.agent {
            Some(agent) => agent.awaited(cx, cells, missing),
            None if arrival.target > cx.ledger.fired() => without_agent(arrival.target, cx, cells, missing),
            None => {}
        }
    }

    fn next_timer(&self, _: &Arrival<RelayStage>) -> Time {
        self.agent.as_ref().map_or(Time::MAX, Agent::next_timer)
    }

    fn lacks_room(&self) -> bool {
        self.agent.as_ref().is_some_and(Agent::lacks_room)
    }

    /// Returns whether the next round of the other ranks needs this agent.
    fn serves(&self, cx: &Context) -> bool {
        self.agent.as_ref().is_some_and(|_| Agent::is_needed(cx))
    }

    fn has_served(&self, cx: &Context) -> bool {
        self.agent.as_ref().is_none_or(|agent| agent.has_served(cx))
    }
}

impl Relay {
    pub(super) fn new(plan: &Plan) -> Self {
        Relay { leaves: false, agent: (plan.me == plan.agent()).then(|| Agent::new(plan)) }
    }

    /// Looks which round is closed. If that is an earlier one than the target, the target will take the tag.
    fn look(&self, arrival: &mut Arrival<RelayStage>, cx: &mut Context, cells: &impl Cells) {
        let closed = cells.load(cx.plan.closed());
        let is_open = closed < arrival.target;
        arrival.enter(if is_open { RelayStage::Present } else { RelayStage::Late { closed } }, &mut cx.outbox);
    }
}

/// Adds the ranks for which a rank may be waiting that is no agent: those of its host that an outcome needs and that are not
/// there, or else its agent, which knows of the other hosts.
fn without_agent(target: u64, Context { plan, ledger, .. }: &Context, cells: &impl Cells, missing: &mut RankSet) {
    let here = plan.topology.ranks_of(plan.host()).iter().copied();
    if plan.fire.is_synchronous() {
        let is_absent = |rank: &u32| ledger.active().contains(*rank) && !has_shown(*rank, target, plan, cells);
        here.filter(is_absent).for_each(|rank| missing.insert(rank));
    }
    if missing.is_empty() {
        missing.insert(plan.agent());
    }
}

/// Finds the fate of an arrival in the cuts up to this round. If it is in none, it is in the next one.
fn settle(closed: u64, arrival: &mut Arrival<RelayStage>, cx: &mut Context) {
    let (me, target, part) = (cx.plan.me, arrival.target, arrival.part);
    let holds = |&round: &u64| {
        cx.ledger.cut(round).of(me).any(|entry| match part {
            Part::Leaving => entry.part == Part::Leaving,
            Part::Fresh | Part::Carried => entry.part != Part::Leaving && entry.age == round - target,
        })
    };
    let found = (target..=closed).find(holds);
    match found {
        Some(round) if round == target || part == Part::Leaving => {
            arrival.target = round;
            return arrival.entered(cx);
        }
        Some(round) => {
            arrival.missed(cx);
            cx.stats.jumps += u64::from(round - target >= 2);
            return arrival.over(closed, cx);
        }
        None => arrival.missed(cx),
    }
    if !arrival.is_to_enter(cx) {
        return;
    }
    let next = closed + 1;
    match cx.plan.is_full(next) {
        true if waits_for_full(target, next, &cx.plan) => arrival.wait_for_full(next, RelayStage::Present, cx),
        true => {
            cx.stats.deferred += 1;
            arrival.over(closed, cx);
        }
        false => arrival.placed(next, cx),
    }
}
