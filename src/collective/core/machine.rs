//! One rank of one collective. The machine dispatches each event to the part responsible for it.

mod program;

use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::agreement::{Agreement, Form, Participant, of_any_form};
use super::auto_quorum::{AutoQuorum, SavedQuorum};
use super::buffers::Buffers;
use super::context::Context;
use super::cut::Cut;
use super::durations::Particulars;
use super::entry::Part;
use super::input::{Cells, Effort, FOREVER, Time};
use super::ledger::Ledger;
use super::movement::{Movement, Reducers, Segments, fill, lack};
use super::op::{Awaited, Counted, Op, Operands, Token};
use super::outbox::Outbox;
use super::plan::Plan;
use super::stats::Stats;
use crate::rank_set::RankSet;
use crate::rule::AgreementBy;
use crate::trigger::Start;

/// One rank's part of the protocol.
///
/// It has four kinds of methods:
///
/// - *Commands* come from the caller: [`arrive`](Machine::arrive), [`take`](Machine::take),
///   [`release`](Machine::release), [`leave`](Machine::leave). They only record what the caller wants.
/// - *Events* report what happened: [`poll`](Machine::poll) reads the cells of this host and proceeds as far as
///   possible, [`next_op`](Machine::next_op) hands out an operation, [`complete`](Machine::complete) takes the result
///   of one.
/// - *Questions* change nothing, such as [`is_ready`](Machine::is_ready) and [`missing`](Machine::missing).
/// - Questions that only a program or a provider asks go to the form of agreement that runs it.
///
/// The driver calls `poll` after each command and each completion. While `poll` returns true, the driver carries out
/// all operations that `next_op` returns, in their order, and calls `poll` again. An operation without a token has
/// taken effect when the driver asks for the next one. An operation with a token ends with `complete`, once, at any
/// later time. Once `poll` returns false, nothing happens before a cell of this host changes, an operation completes,
/// or the time reaches [`next_timer`](Machine::next_timer).
///
/// A caller writes into [`buffer`](Machine::buffer), calls `arrive`, and drives the machine until `is_ready`. Then
/// `take` returns the rounds, which belong to the caller until it calls `release`. The arrival is over, and the next
/// one may follow. `leave` is the last arrival: the caller repeats it, after a `take`, while
/// [`has_left`](Machine::has_left) is false. The caller then drives the machine until
/// [`is_finished`](Machine::is_finished), and after the last release until [`has_gone`](Machine::has_gone).
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    cx: Context,
    agreement: Agreement,
    movement: Movement,
    buffers: Buffers,
}

impl Machine {
    pub(crate) fn new(plan: Plan) -> Self {
        Machine {
            agreement: Agreement::new(&plan),
            movement: Movement::new(&plan),
            buffers: Buffers::new(&plan),
            cx: Context {
                ledger: Ledger::new(&plan),
                outbox: Outbox::new(&plan),
                stats: Stats::default(),
                now: 0,
                waits_fence_peer: false,
                problem: None,
                plan: Arc::new(plan),
            },
        }
    }

    /// Sets what the endpoint reports as `waits_fence_peer`. Without this call it is false, and the machine fences.
    pub(crate) fn with_waits_fence_peer(mut self, waits_fence_peer: bool) -> Self {
        self.cx.waits_fence_peer = waits_fence_peer;
        self
    }

    /// Reserves now the memory that rounds need, instead of when a round first needs it.
    pub(crate) fn reserve(&mut self) {
        self.cx.ledger.reserve();
        self.cx.outbox.reserve(&self.cx.plan);
        self.movement.reserve();
    }
}

/// Commands.
impl Machine {
    /// Returns the buffer of the contribution that the caller writes next.
    pub(crate) fn buffer(&self) -> u32 {
        self.buffers.next()
    }

    /// Hands in the contribution in [`Machine::buffer`]. There must be no outstanding arrival.
    pub(crate) fn arrive(&mut self, now: Time, particulars: Particulars) {
        self.cx.now = now;
        self.agreement.start((Part::Fresh, self.buffer(), particulars), &mut self.cx);
        self.buffers.hand_in(self.cx.ledger.taken() + 1);
    }

    /// Hands in the contribution in [`Machine::buffer`] before any of its data is there. The caller must call
    /// [`Machine::filled`] until no piece is missing, whatever happens.
    pub(crate) fn arrive_unfilled(&mut self, now: Time, particulars: Particulars) {
        lack(self.buffer(), self.cx.plan.pieces(), &self.cx.plan, &mut self.cx.outbox);
        self.arrive(now, particulars);
    }

    /// Notes that all pieces but the last `missing` ones of the contribution in a buffer are there.
    pub(crate) fn filled(&mut self, buffer: u32, missing: u64) {
        fill(buffer, missing, &self.cx.plan, &mut self.cx.outbox);
    }

    /// Hands in the last, empty arrival. The caller repeats it if the arrival's round has fired without it.
    pub(crate) fn leave(&mut self) {
        self.agreement.start((Part::Leaving, self.buffer(), Particulars::weighing(0)), &mut self.cx);
    }

    /// Takes the rounds that are ready, oldest first. The arrival is over, and the rounds belong to the caller until it
    /// releases them. `begun`: the caller may have begun to write into [`Machine::buffer`]; if it is false, that buffer
    /// may be another one from now on.
    pub(crate) fn take(&mut self, begun: bool) -> RangeInclusive<u64> {
        let first = self.cx.ledger.taken() + 1;
        if self.is_ready() {
            let counted = self.movement.segments().is_none_or(Segments::has_counted);
            debug_assert!(
                counted,
                "a rank goes away with segments that it has not counted, so others would wait for it"
            );
            match self.agreement.given_mut().and_then(|given| given.pass_end(&self.cx.plan)) {
                Some(end) => self.cx.ledger.take_up_to(end),
                None => self.cx.ledger.take(),
            }
            if let Some(unread) = self.agreement.end() {
                self.buffers.free(unread);
            }
            self.cx.outbox.note();
            if !begun {
                self.buffers.choose(&self.cx);
            }
        }
        first..=self.cx.ledger.taken()
    }

    /// Moves the cuts of taken rounds to `keepers`, in exchange for old cuts.
    #[inline]
    pub(crate) fn hand_cuts_to(&mut self, rounds: RangeInclusive<u64>, keepers: &mut [Cut]) {
        self.cx.ledger.hand_cuts_to(rounds, keepers);
    }

    /// Notes that no caller on this rank reads outcomes up to `round` any more.
    pub(crate) fn release(&mut self, round: u64) {
        self.cx.release(round);
    }

    /// Where cuts are given: gives the cut of the next round that has none yet.
    pub(crate) fn give(&mut self, cut: Cut) {
        if let Some(given) = self.agreement.given_mut() {
            given.give(cut);
            self.cx.outbox.note();
        }
    }

    /// Where cuts are given: gives the last round to be returned for an arrival, for the next arrival that has none
    /// yet.
    pub(crate) fn give_end(&mut self, round: u64) {
        if let Some(given) = self.agreement.given_mut() {
            given.give_end(round);
            self.cx.outbox.note();
        }
    }

    /// Before the first round: continues to choose quorums from what was saved, if the collective chooses them itself.
    pub(crate) fn resume_quorum(&mut self, saved: &SavedQuorum) {
        self.cx.ledger.resume_quorum(saved);
    }

    /// Records the cuts of the rounds that fire from now on.
    pub(crate) fn record(&mut self) {
        self.cx.ledger.record();
    }

    /// Returns the cuts that were recorded since the last call.
    pub(crate) fn recorded(&mut self) -> Vec<Cut> {
        self.cx.ledger.recorded()
    }

    /// Reports how long it took from closing the round to its landing; `None` if that is not known.
    pub(crate) fn measured(&mut self, latency: Option<Time>) {
        self.agreement.measured(latency);
    }
}

/// Events.
impl Machine {
    /// Does everything that can be done now, and returns whether it did anything. `effort` limits how much of the
    /// shared work this rank takes on.
    ///
    /// Most polls find nothing to do. So the functions that do the work are never inlined: otherwise every poll would
    /// pay for their preparations.
    pub(crate) fn poll(&mut self, now: Time, effort: Effort, cells: &impl Cells) -> bool {
        let Machine { cx, agreement, movement, .. } = self;
        cx.now = now;
        cx.stats.polls += 1;
        of_any_form!(agreement, it => poll(it, effort, movement, cx, cells))
    }

    #[inline]
    pub(crate) fn peek_op(&self) -> Option<&Op> {
        self.cx.outbox.peek()
    }

    /// Returns the next operation and fills `operands` with its lists.
    #[inline]
    pub(crate) fn next_op(&mut self, operands: &mut Operands) -> Option<Op> {
        self.cx.outbox.pop(operands)
    }

    /// Takes the result of an operation: for an atomic the value before, otherwise unused.
    pub(crate) fn complete(&mut self, token: Token, value: u64, now: Time) {
        let Machine { cx, agreement, movement, .. } = self;
        cx.now = now;
        cx.outbox.note();
        match token {
            Token::Counted { what, host } => {
                cx.outbox.completed(what, host);
                if what == Counted::Read {
                    movement.complete(token, value, cx);
                } else {
                    cx.ledger.release_what_waits(&cx.plan, &mut cx.outbox);
                }
            }
            Token::Look | Token::Claim | Token::Done => movement.complete(token, value, cx),
            _ => agreement.answer(token, value, cx),
        }
    }

    /// Counts the segments that this rank has moved since it last counted them.
    pub(crate) fn count_segments(&mut self) {
        if let Movement::Segments(segments) = &mut self.movement {
            segments.count(&mut self.cx);
        }
    }

    /// Notes that a rank died, so that what it had claimed is free again.
    pub(crate) fn inherit(&mut self, rank: u32) {
        self.cx.ledger.bury(rank);
    }
}

/// Questions.
impl Machine {
    /// Returns whether the machine uses the time.
    pub(crate) fn needs_time(&self) -> bool {
        let plan = self.plan();
        if plan.agreement == AgreementBy::Relays {
            return !plan.fire.is_synchronous();
        }
        let waits = !self.cx.plan.by_tags() || self.cx.plan.elects_reducers();
        waits && self.cx.plan.program.as_ref().is_none_or(|program| program.start != Start::Everybody)
    }

    /// Returns an impossible state that the machine has found: a rank has written where it must not.
    #[inline]
    pub(crate) fn problem(&self) -> Option<&'static str> {
        self.cx.problem
    }

    #[inline]
    pub(crate) fn plan(&self) -> &Arc<Plan> {
        &self.cx.plan
    }

    #[inline]
    pub(crate) fn stats(&self) -> Stats {
        let quorum = self.cx.ledger.quorum().unwrap_or(0);
        self.agreement.stats(Stats { quorum, ..self.cx.stats })
    }

    /// Leaves quorums to the collective that gives the cuts. To be called before the first round.
    pub(crate) fn choose_no_quorum(&mut self) {
        self.cx.ledger.choose_no_quorum();
    }

    /// Returns what chooses the quorum of the next round, if the collective chooses it itself.
    pub(crate) fn auto_quorum(&self) -> Option<&AutoQuorum> {
        self.cx.ledger.auto_quorum()
    }

    pub(crate) fn has_arrival(&self) -> bool {
        self.agreement.is_outstanding()
    }

    /// Returns the newest round that the caller has taken.
    pub(crate) fn taken(&self) -> u64 {
        self.cx.ledger.taken()
    }

    /// Returns the newest round whose cut this rank knows.
    pub(crate) fn fired(&self) -> u64 {
        self.cx.ledger.fired()
    }

    /// Returns the newest round whose outcome is complete on this host.
    pub(crate) fn landed(&self) -> u64 {
        self.cx.ledger.landed()
    }

    /// Returns the cut of a round that has fired and whose cut was not moved to its keeper.
    #[inline]
    pub(crate) fn cut(&self, round: u64) -> &Cut {
        self.cx.ledger.cut(round)
    }

    /// Returns the offset of the newest round's outcome in the data region of this rank's host.
    pub(crate) fn outcome_at(&self, round: u64) -> usize {
        self.movement.outcome_at(round, &self.cx.plan)
    }

    /// Returns whether `wait` would return rounds now.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        let ledger = &self.cx.ledger;
        let least = self.given_end().unwrap_or(ledger.taken() + 1);
        ledger.landed() >= least && self.is_served() && self.has_nothing_pending()
    }

    /// Returns the last round that the next `take` returns, if it was given.
    #[inline]
    fn given_end(&self) -> Option<u64> {
        self.agreement.given().map(|given| given.end())
    }

    /// Returns whether the arrival has all that it waits for.
    #[inline]
    pub(crate) fn is_served(&self) -> bool {
        self.agreement.is_served(&self.cx)
    }

    /// Returns whether no rank waits for something that this rank has claimed.
    fn has_nothing_pending(&self) -> bool {
        self.movement.has_nothing_pending() && self.agreement.has_nothing_pending()
    }

    /// Returns whether a round holds this rank's last arrival.
    pub(crate) fn has_left(&self) -> bool {
        self.cx.ledger.has_left()
    }

    /// Returns whether this rank has left and has nothing in flight.
    pub(crate) fn is_finished(&self) -> bool {
        let has_all = self.cx.ledger.has_left() && self.cx.ledger.landed() >= self.cx.ledger.fired();
        has_all && self.is_quiet() && self.has_nothing_pending() && self.agreement.has_served(&self.cx)
    }

    /// Returns whether all ranks know that this rank has released everything.
    pub(crate) fn has_gone(&self) -> bool {
        self.cx.ledger.released() == FOREVER && self.is_quiet()
    }

    fn is_quiet(&self) -> bool {
        self.cx.outbox.is_quiet() && self.movement.reducers().is_none_or(Reducers::is_idle)
    }

    /// Returns a round that this rank closed and whose time from closing to landing was not yet reported.
    pub(crate) fn unmeasured(&self) -> Option<u64> {
        self.agreement.unmeasured()
    }

    /// Returns what wakes this rank.
    pub(crate) fn interest(&self) -> Awaited {
        // A rank waits for pieces only of ranks that are inside a call, so the wait is short.
        if self.waits_for_pieces() {
            Awaited::Piece
        } else if self.agreement.waits_for_room() {
            Awaited::Room
        } else {
            Awaited::Outcome
        }
    }

    fn waits_for_pieces(&self) -> bool {
        matches!(&self.movement, Movement::Segments(segments) if segments.awaited(&self.cx).is_some())
    }

    /// Returns when the driver must poll the machine although nothing has happened.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        let reducers = || self.movement.reducers().filter(|_| self.has_arrival())?.next_timer(&self.cx);
        self.agreement.next_timer().or_else(reducers)
    }

    /// Returns whether other ranks need this one for their rounds, even while it has no arrival.
    #[inline]
    pub(crate) fn serves(&self) -> bool {
        self.agreement.serves(&self.cx)
    }

    /// Returns whether ranks may already read the outcome of a round.
    pub(crate) fn is_done(&self, round: u64, cells: &impl Cells) -> bool {
        self.cx.plan.is_done(round, cells)
    }

    /// Returns the ranks that this rank waits for: those that still use a slot that is needed, those that have not
    /// arrived, those whose hosts do not answer, those whose data is missing, or all ranks of which some close or move
    /// the round.
    pub(crate) fn missing(&self, cells: &impl Cells) -> RankSet {
        let Machine { cx, agreement, movement, .. } = self;
        let mut missing = RankSet::empty(cx.plan.ranks);
        if !agreement.is_outstanding() && !cx.ledger.has_left() {
            return missing;
        }
        if cx.ledger.has_left() && agreement.runner().is_some_and(|slots| !slots.has_served(cx)) {
            // This rank continues for the ranks that have not left.
            missing.clone_from(cx.ledger.active());
            return missing;
        }
        match movement.segments() {
            Some(segments) if self.waits_for_pieces() => segments.unfilled(cx, cells, &mut missing),
            _ => agreement.missing(movement, cx, cells, &mut missing),
        }
        if let Some(reducers) = movement.reducers() {
            reducers.missing(cx, cells, &mut missing);
        }
        // An answer usually takes no time. While one is outstanding, other ranks may seem to be missing because they
        // wait for the same host.
        let asked = agreement.asked().into_iter().chain(movement.segments().and_then(Segments::asked));
        self.name(asked, &mut missing);
        if missing.is_empty() {
            let awaited = Counted::ALL.into_iter().filter(|&what| agreement.awaits(what, cx));
            self.name(awaited.flat_map(|what| cx.outbox.hosts(what)), &mut missing);
        }
        if missing.is_empty() {
            agreement.may_be_working(cx, &mut missing);
        }
        missing
    }

    /// Adds the ranks that provide the memory of other hosts among `hosts`.
    fn name(&self, hosts: impl Iterator<Item = u32>, ranks: &mut RankSet) {
        let others = hosts.filter(|&host| host != self.cx.plan.host());
        others.for_each(|host| ranks.insert(self.cx.plan.topology.leader(host)));
    }

    /// Hashes everything that the machine's next steps depend on, apart from the time.
    pub(crate) fn fingerprint(&self, state: &mut impl Hasher) {
        let Machine { cx: Context { ledger, outbox, .. }, agreement, movement, buffers } = self;
        (ledger, outbox, agreement, movement, buffers).hash(state);
    }

    /// Returns the state of the machine in one line.
    pub(crate) fn summary(&self) -> String {
        let Machine { cx: Context { ledger, outbox, .. }, agreement, movement, .. } = self;
        let active: Vec<u32> = ledger.active().iter().collect();
        let (taken, fired, landed) = (ledger.taken(), ledger.fired(), ledger.landed());
        let (in_flight, agreement) = (outbox.in_flight(), agreement.summary());
        format!(
            "taken {taken} fired {fired} landed {landed} active {active:?} in flight {in_flight:?} {agreement} \
             {movement:?}"
        )
    }
}

/// Does everything that can be done now, and returns whether it did anything.
fn poll<F: Form>(
    participant: &mut Participant<F>,
    effort: Effort,
    movement: &mut Movement,
    cx: &mut Context,
    cells: &impl Cells,
) -> bool {
    let start = cx.outbox.transitions();
    loop {
        let before = cx.outbox.transitions();
        participant.learn(movement, cx, cells);
        while cx.ledger.landed() < cx.ledger.fired() && movement.has_landed(cx.ledger.landed() + 1, cx, cells) {
            cx.land(cx.ledger.landed() + 1);
            movement.land(cx);
        }
        participant.step(effort, movement, cx, cells);
        movement.step(effort, cx, cells);
        participant.work(effort, cx, cells);
        // Operations must take effect before the machine decides what follows them.
        if cx.outbox.transitions() == before || !cx.outbox.is_empty() {
            break;
        }
    }
    let progress = cx.outbox.transitions() != start || !cx.outbox.is_empty();
    if !progress {
        participant.rest();
    }
    progress
}
