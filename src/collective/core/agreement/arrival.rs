//! This rank's arrivals, in the form that all forms of agreement share.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use super::super::context::Context;
use super::super::durations::Particulars;
use super::super::entry::Part;
use super::super::input::Time;
use super::super::movement::Movement;
use super::super::op::Op;
use super::super::outbox::Outbox;
use super::super::pace::Pace;
use super::super::plan::{BUFFERS, Plan};
use super::super::tag::Tag;
use crate::fault::Fault;
use crate::rule::{Absent, MovementBy, When};
use crate::trigger::Deposit;

/// The outstanding arrival, and what earlier arrivals left pending. `S` is its stage once it has entered a form of
/// agreement.
#[derive(Clone, Debug)]
pub(crate) struct Arrival<S> {
    phase: Phase<S>,
    /// The round that it enters, or has tried to enter.
    pub(super) target: u64,
    /// The round that its contribution was made for.
    pub(super) made_for: u64,
    pub(super) part: Part,
    pub(super) buffer: u32,
    pub(super) particulars: Particulars,
    /// When its round closes, even if ranks are missing.
    pub(super) close_by: Time,
    waited_for_room: bool,
    /// A late contribution that could not be placed yet.
    deferred: Option<Deferred>,
    /// The buffer of a late contribution that enters no round, because the rank's next contribution replaces it.
    superseded: Option<u32>,
    pub(super) pace: Pace,
    /// The newest round that this rank closed, until the time that it took to land is reported.
    pub(super) unmeasured: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase<S> {
    /// There is no arrival.
    Away,
    /// The arrival waits for the last receiver of the round that used the slot before.
    Blocked,
    /// The form of agreement has it.
    Entered(S),
    /// The arrival has a place in a round, or will get none. The caller may take it once round `needs` has landed.
    Over { needs: u64 },
}

/// A late contribution that enters together with the rank's next arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Deferred {
    made_for: u64,
    buffer: u32,
}

impl<S: Hash> Hash for Arrival<S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // What the arrival has waited for is only counted and reported to people. Of a completed arrival, only the
        // buffer is read.
        let Arrival { phase, target, made_for, part, buffer, particulars, close_by, .. } = self;
        phase.hash(state);
        match phase {
            Phase::Away => {}
            Phase::Over { .. } => buffer.hash(state),
            Phase::Blocked | Phase::Entered(_) => (target, made_for, part, buffer, particulars, close_by).hash(state),
        }
        (self.deferred, self.superseded).hash(state);
    }
}

impl<S: Copy + Debug> Arrival<S> {
    pub(super) fn new(plan: &Plan) -> Self {
        Arrival {
            phase: Phase::Away,
            target: 0,
            made_for: 0,
            part: Part::Fresh,
            buffer: 0,
            particulars: Particulars::PLAIN,
            close_by: Time::MAX,
            waited_for_room: false,
            deferred: None,
            superseded: None,
            pace: Pace::new(plan.grace),
            unmeasured: None,
        }
    }

    /// Begins an arrival. No arrival may be outstanding.
    pub(super) fn start(&mut self, (part, buffer, particulars): (Part, u32, Particulars), cx: &mut Context) {
        // A last arrival may be in a round although its caller did not know.
        debug_assert!(!self.is_outstanding() && (part == Part::Leaving || !cx.ledger.has_left()));
        let target = cx.ledger.taken() + 1;
        (self.target, self.made_for) = (target, target);
        (self.part, self.buffer, self.particulars) = (part, buffer, particulars);
        (self.close_by, self.waited_for_room) = (Time::MAX, false);
        if part == Part::Fresh {
            // The caller returns from its own work.
            self.pace.arrived(cx.now);
        }
        self.go_on(Phase::Blocked, &mut cx.outbox);
    }

    /// Ends the arrival: the caller has what it waited for. Returns the buffer of a contribution that no rank will
    /// read.
    pub(super) fn end(&mut self) -> Option<u32> {
        self.phase = Phase::Away;
        self.superseded.take()
    }

    #[inline]
    pub(super) fn phase(&self) -> Phase<S> {
        self.phase
    }

    /// Returns its stage, if the form has it.
    #[inline]
    pub(super) fn stage(&self) -> Option<S> {
        if let Phase::Entered(stage) = self.phase { Some(stage) } else { None }
    }

    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        !matches!(self.phase, Phase::Away)
    }

    /// Returns whether the arrival waits for a slot of the ring.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.phase, Phase::Blocked)
    }

    #[inline]
    fn go_on(&mut self, phase: Phase<S>, outbox: &mut Outbox) {
        self.phase = phase;
        outbox.note();
    }

    /// Moves to another stage of the form.
    #[inline]
    pub(super) fn enter(&mut self, stage: S, outbox: &mut Outbox) {
        self.go_on(Phase::Entered(stage), outbox);
    }

    /// Waits because no slot is free, and counts that.
    pub(super) fn wait_for_room(&mut self, cx: &mut Context) {
        cx.stats.full_ring += u64::from(!self.waited_for_room);
        self.waited_for_room = true;
    }

    /// Starts the time after which the target closes even if ranks are missing. A slot is free.
    pub(super) fn set_deadline(&mut self, Context { plan, now, .. }: &Context) {
        let limit = plan.fire.limit().filter(|_| !plan.is_full(self.target));
        let limit = limit.map(|limit| if plan.fault(Fault::HastyDeadline) { limit / 2 } else { limit });
        self.close_by = limit.map_or(Time::MAX, |limit| now.saturating_add(limit.as_nanos() as Time));
    }

    /// Returns when the arrival closes its round: when the grace ends, if the condition holds, or when its own time is
    /// over.
    pub(super) fn closes_at(&self, fires: bool, cx: &Context) -> Time {
        if fires { cx.now + self.pace.grace().unwrap_or(0) } else { Time::MAX }.min(self.close_by)
    }

    /// Counts that its round closes because the time is over.
    pub(super) fn expired(&self, cx: &mut Context) {
        if cx.now >= self.close_by {
            cx.stats.deadlines_expired += 1;
        } else {
            cx.stats.graces_expired += 1;
        }
    }

    // The arrival publishes its contribution.

    /// Returns the tag of the arrival's contribution: its cell and its value.
    fn tag(&self, plan: &Plan) -> (usize, u64) {
        let Arrival { target, buffer, .. } = *self;
        let leaving = self.part == Part::Leaving;
        let particulars = if plan.fault(Fault::LoseWeight) { Particulars::PLAIN } else { self.particulars };
        let number = if plan.by_tags() { Plan::tag_of(target) } else { buffer };
        (plan.tag(plan.me, number), Tag { target, buffer, particulars, leaving }.cell())
    }

    /// Where ranks have gates: publishes what the contribution says about itself.
    pub(super) fn show_particulars(&self, cx: &mut Context) {
        if self.part == Part::Fresh {
            self.show_here(cx);
        }
    }

    /// Adds its contribution to the gate of a round: fresh if the round is its target, otherwise carried.
    pub(super) fn put_into(&self, deposit: &mut Deposit, round: u64) {
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

    /// Publishes the tag of its buffer.
    pub(super) fn show(&self, movement: &mut Movement, cx: &mut Context) {
        self.show_here(cx);
        self.show_elsewhere(self.target <= cx.ledger.fired(), movement, cx);
    }

    /// Publishes the tag to the ranks of this host.
    pub(super) fn show_here(&self, cx: &mut Context) {
        let (cell, value) = self.tag(&cx.plan);
        cx.outbox.push(Op::Store { cell, value });
    }

    /// Publishes the tag to all other hosts. If the contribution is late and dropped, it sends no data.
    pub(super) fn show_elsewhere(&self, is_late: bool, movement: &mut Movement, cx: &mut Context) {
        let is_dropped = is_late && self.part == Part::Fresh && !self.is_carried(&cx.plan);
        let has_data = !is_dropped && self.part != Part::Leaving && cx.plan.bytes > 0;
        movement.show_elsewhere(self.target, self.tag(&cx.plan), (self.buffer, has_data), cx);
    }

    // Where the contribution enters.

    /// Fires the next round, whose cut is known.
    pub(super) fn fire(&mut self, round: u64, cx: &mut Context) {
        if matches!(cx.plan.fire.when(), When::Majority(_)) && !cx.plan.is_full(round) {
            let cut = cx.ledger.cut(round);
            let arrived = cut.entries.iter().filter(|entry| entry.part != Part::Carried).count();
            self.pace.saw(arrived as u32 >= cx.ledger.active().len());
        }
        cx.fire(round);
    }

    /// Notes that the target has fired with this arrival in it.
    pub(super) fn entered(&mut self, cx: &mut Context) {
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
        self.over(target, cx);
    }

    /// Notes that the arrival has a place in a round or will get none. The caller may take it once round `needs` has
    /// landed.
    pub(super) fn over(&mut self, needs: u64, cx: &mut Context) {
        self.go_on(Phase::Over { needs }, &mut cx.outbox);
    }

    /// Notes that the deferred contribution entered together with this arrival.
    pub(super) fn took_deferred(&mut self) {
        self.deferred = None;
    }

    pub(super) fn has_deferred(&self) -> bool {
        self.deferred.is_some()
    }

    // The target fires without the arrival.

    /// Counts that the target fired without it.
    pub(super) fn missed(&self, cx: &mut Context) {
        cx.stats.late += u64::from(self.part != Part::Leaving);
    }

    /// Notes that a round no longer accepts the arrival, and counts that if the round is the target. `late`: the form's
    /// stage of an arrival that is in no round up to this one.
    pub(super) fn refused(&mut self, round: u64, late: S, cx: &mut Context) {
        if round == self.target {
            self.missed(cx);
        }
        self.enter(late, &mut cx.outbox);
    }

    /// Returns whether it is a contribution that enters a later round if it is late.
    pub(super) fn is_carried(&self, plan: &Plan) -> bool {
        self.part == Part::Fresh && plan.absent != Absent::Drop
    }

    /// Returns whether a late contribution goes into the gate of `round` without waiting for anything.
    pub(super) fn fits_gate(&self, round: u64, plan: &Plan) -> bool {
        self.is_carried(plan) && !plan.is_full(round)
    }

    /// Notes that a late contribution has its place in a round.
    pub(super) fn placed(&mut self, round: u64, cx: &mut Context) {
        cx.stats.jumps += u64::from(round - self.target >= 2);
        self.over(round - 1, cx);
    }

    /// Notes that its contribution no longer stands for this rank: no two contributions of a rank do so in one round.
    pub(super) fn superseded(&mut self) {
        self.superseded = Some(self.buffer);
    }

    /// Ends a last arrival that has missed its target: the caller takes the rounds that it missed, and leaves again.
    pub(super) fn leave_again(&mut self, cx: &mut Context) {
        cx.stats.finish_retries += 1;
        self.over(cx.ledger.fired(), cx);
    }

    /// Returns whether a late arrival must enter another round; if not, the arrival is over. Every round up to the last
    /// attempt has fired.
    pub(super) fn is_to_enter(&mut self, cx: &mut Context) -> bool {
        if self.part == Part::Leaving {
            self.leave_again(cx);
            return false;
        }
        if cx.plan.absent == Absent::Drop {
            cx.stats.dropped += u64::from(!cx.plan.fault(Fault::DropUncounted));
        } else if !cx.plan.fault(Fault::ForgetCarriedBit) {
            return true;
        }
        self.over(cx.ledger.fired(), cx);
        false
    }

    /// Where the closing of a round takes all tags: waits for the round that takes this late contribution, a full one
    /// that does not wait for this rank's next arrival. `stage`: the form's stage of an arrival that is in its round.
    pub(super) fn wait_for_full(&mut self, round: u64, stage: S, cx: &mut Context) {
        (self.target, self.part) = (round, Part::Carried);
        self.enter(stage, &mut cx.outbox);
    }

    /// Makes the late contribution the rank's arrival for the open round, a full one that does not fire without this
    /// rank.
    pub(super) fn enter_full_round(&mut self, cx: &mut Context) {
        let (plan, open) = (&cx.plan, cx.ledger.open());
        if cx.ledger.is_within_depth(open, plan) {
            (self.target, self.part) = (open, Part::Carried);
            return self.go_on(Phase::Blocked, &mut cx.outbox);
        }
        // The rank cannot wait for that round before the caller has released the rounds that it missed, and the round
        // does not fire without this rank's next arrival.
        if plan.absent == Absent::Hold {
            // The rank's next contribution is newer.
            cx.stats.dropped += 1;
            self.superseded();
        } else {
            cx.stats.deferred += 1;
            let forgotten = plan.fault(Fault::ForgetDeferred);
            let deferred = Deferred { made_for: self.made_for, buffer: self.buffer };
            self.deferred = Some(deferred).filter(|_| !forgotten);
        }
        self.over(cx.ledger.fired(), cx);
    }

    // Its caller waits.

    /// Returns whether the arrival is over and has all that it waits for.
    #[inline]
    pub(super) fn is_served(&self, Context { plan, ledger, outbox, .. }: &Context) -> bool {
        let Phase::Over { needs } = self.phase else { return false };
        let sent = |buffer| outbox.has_tag(buffer) && self.writes_soon(buffer, plan);
        ledger.landed() >= needs && !(0..BUFFERS).any(sent)
    }

    /// Returns whether a buffer may be written as soon as an arrival is over, so that everything sent from it must have
    /// landed. If only a tag was sent, the data is free without that: a host that does not answer delays this rank only
    /// when the same buffer needs another tag.
    pub(super) fn writes_soon(&self, buffer: u32, plan: &Plan) -> bool {
        let sends_tags_alone = plan.movement == MovementBy::Segments && !plan.by_tags();
        buffer != self.buffer && !sends_tags_alone
    }

    /// Reports how long it took from closing the newest round to its landing; `None` if that is not known.
    #[inline]
    pub(super) fn measured(&mut self, latency: Option<Time>) {
        self.unmeasured = None;
        if let Some(latency) = latency {
            self.pace.handed_out(latency);
        }
    }

    /// Returns its state, for a line about a machine.
    pub(super) fn summary(&self) -> String {
        let Arrival { phase, target, made_for, part, buffer, deferred, .. } = self;
        format!("{phase:?} {part:?} for {target} made for {made_for} in {buffer} deferred {deferred:?}")
    }
}
