//! One rank of one collective: passes what happens on to the part that it is for.

use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;

use super::agreement::dispatch::Agreement;
use super::buffers::Buffers;
use super::context::{Context, View};
use super::cut::Cut;
use super::entry::Part;
use super::input::{Cells, Effort, FOREVER, Time};
use super::ledger::Ledger;
use super::movement::{Inputs, Movement, Reducers, Segments, fill, lack};
use super::op::{Counted, Interest, Op, Token};
use super::outbox::Outbox;
use super::plan::Plan;
use super::stats::Stats;
use crate::rank_set::RankSet;
use crate::trigger::{Start, Task};

/// One rank's part of the protocol. See the module.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    plan: Plan,
    ledger: Ledger,
    outbox: Outbox,
    agreement: Agreement,
    movement: Movement,
    buffers: Buffers,
    stats: Stats,
}

/// Lends the parts of a machine: those that act, and what all of them share.
macro_rules! lend {
    ($machine:expr, $now:expr) => {{
        let Machine { plan, ledger, outbox, agreement, movement, stats, .. } = $machine;
        (agreement, movement, Context { plan, ledger, outbox, stats, now: $now })
    }};
}

impl Machine {
    pub(crate) fn new(plan: Plan) -> Self {
        Machine {
            ledger: Ledger::new(&plan),
            outbox: Outbox::new(&plan),
            agreement: Agreement::new(&plan),
            movement: Movement::new(&plan),
            buffers: Buffers::new(&plan),
            stats: Stats::default(),
            plan,
        }
    }

    /// The same machine on an endpoint that says this of itself. Without, it fences.
    pub(crate) fn with_waits_fence_peer(mut self, waits_fence_peer: bool) -> Self {
        self.agreement.set_waits_fence_peer(waits_fence_peer);
        self
    }

    /// Whether it makes use of the time.
    pub(crate) fn needs_time(&self) -> bool {
        let waits = !self.plan.by_tags() || self.plan.elects_reducers();
        waits && self.plan.program.as_ref().is_none_or(|program| program.start != Start::Everybody)
    }

    #[inline]
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    #[inline]
    fn view(&self) -> View<'_> {
        View { plan: &self.plan, ledger: &self.ledger, outbox: &self.outbox }
    }

    #[inline]
    pub(crate) fn stats(&self) -> Stats {
        self.agreement.gates().map_or(self.stats, |gates| gates.stats(self.stats))
    }

    pub(crate) fn has_arrival(&self) -> bool {
        self.agreement.has_arrival()
    }

    /// Newest round returned to the caller.
    pub(crate) fn taken(&self) -> u64 {
        self.ledger.taken()
    }

    /// Newest round whose outcome is complete on this host.
    pub(crate) fn landed(&self) -> u64 {
        self.ledger.landed()
    }

    /// The cut of a round that has fired and was not handed to its keeper.
    #[inline]
    pub(crate) fn cut(&self, round: u64) -> &Cut {
        self.ledger.cut(round)
    }

    /// What a reduction of a round reads; without a round, of what a fallback read has brought.
    #[inline]
    pub(crate) fn inputs(&self, round: Option<u64>) -> Inputs<'_> {
        self.movement.inputs(self.view(), round)
    }

    /// Where the outcome of the newest round lies in the data region of this rank's host.
    pub(crate) fn outcome_at(&self, round: u64) -> usize {
        self.movement.outcome_at(round, &self.plan)
    }

    /// Gives the cuts of rounds that were taken to their keeper, for old ones.
    #[inline]
    pub(crate) fn hand_cuts_to(&mut self, rounds: RangeInclusive<u64>, keepers: &mut [Cut]) {
        self.ledger.hand_cuts_to(rounds, keepers);
    }

    #[inline]
    pub(crate) fn peek_op(&self) -> Option<&Op> {
        self.outbox.peek()
    }

    #[inline]
    pub(crate) fn next_op(&mut self) -> Option<Op> {
        self.outbox.pop()
    }

    /// The buffer of the contribution that is being written.
    pub(crate) fn buffer(&self) -> u32 {
        self.buffers.next()
    }

    /// Hands in the contribution in [`Machine::buffer`]. There must be no outstanding arrival.
    pub(crate) fn arrive(&mut self, now: Time, weight: u16) {
        self.agreement.note_step(now);
        self.start(Part::Fresh, weight, now);
        self.buffers.hand_in(self.ledger.taken() + 1);
    }

    /// Hands in the last, empty arrival.
    pub(crate) fn leave(&mut self) {
        self.start(Part::Leaving, 0, 0);
    }

    fn start(&mut self, part: Part, weight: u16, now: Time) {
        let buffer = self.buffer();
        let (agreement, _, mut cx) = lend!(self, now);
        agreement.start((part, buffer, weight), &mut cx);
    }

    /// Hands in the contribution in [`Machine::buffer`], of which nothing is there yet. The caller
    /// says [`Machine::filled`] until nothing is missing, whatever happens.
    pub(crate) fn arrive_unfilled(&mut self, now: Time, weight: u16) {
        lack(self.buffer(), self.plan.pieces(), &self.plan, &mut self.outbox);
        self.arrive(now, weight);
    }

    /// Of the contribution in a buffer, all but the last `missing` pieces are there.
    pub(crate) fn filled(&mut self, buffer: u32, missing: u64) {
        fill(buffer, missing, &self.plan, &mut self.outbox);
    }

    /// Says how many segments this rank moved since it last did.
    pub(crate) fn count_segments(&mut self) {
        let (_, movement, mut cx) = lend!(self, 0);
        if let Some(segments) = movement.segments_mut() {
            segments.count(&mut cx);
        }
    }

    /// Does everything that can be done now; says whether that was anything. `effort` says how much
    /// of the work of all it takes on.
    pub(crate) fn poll(&mut self, now: Time, effort: Effort, cells: &impl Cells) -> bool {
        let (agreement, movement, mut cx) = lend!(self, now);
        let cx = &mut cx;
        let start = cx.outbox.transitions();
        cx.stats.polls += 1;
        loop {
            let before = cx.outbox.transitions();
            agreement.learn(movement, cx, cells);
            while cx.ledger.landed() < cx.ledger.fired() {
                let round = cx.ledger.landed() + 1;
                if !movement.has_landed(round, cx.view(), cells) {
                    break;
                }
                cx.land(round);
            }
            agreement.step(movement, effort, cx, cells);
            movement.step(effort, agreement.own_entry(cx.view()), cx, cells);
            agreement.work(effort, cx, cells);
            // Operations take effect before anything that follows them is decided.
            if cx.outbox.transitions() == before || !cx.outbox.is_empty() {
                break;
            }
        }
        let progress = cx.outbox.transitions() != start || !cx.outbox.is_empty();
        if !progress {
            agreement.rest();
        }
        progress
    }

    /// Takes the result of an operation: for an atomic the value before, else nothing of meaning.
    pub(crate) fn complete(&mut self, token: Token, value: u64, now: Time) {
        let (agreement, movement, mut cx) = lend!(self, now);
        let cx = &mut cx;
        cx.outbox.note();
        match token {
            Token::Counted { what: Counted::Read, host } => {
                cx.outbox.completed(Counted::Read, host);
                movement.complete(token, value, agreement.own_entry(cx.view()), cx);
            }
            Token::Counted { what, host } => {
                cx.outbox.completed(what, host);
                cx.ledger.release_what_waits(cx.plan, cx.outbox);
            }
            Token::Look | Token::Claim | Token::Done => {
                movement.complete(token, value, agreement.own_entry(cx.view()), cx);
            }
            _ => agreement.complete(token, value, movement, cx),
        }
    }

    /// The rounds that `wait` would return now, oldest first; empty while it has to wait.
    #[inline]
    pub(crate) fn ready(&self) -> RangeInclusive<u64> {
        let (taken, landed) = (self.ledger.taken(), self.ledger.landed());
        let satisfied = self.is_served() && self.owes_nothing();
        taken + 1..=if satisfied { landed } else { taken }
    }

    /// Whether there is all that the arrival waits for.
    #[inline]
    pub(crate) fn is_served(&self) -> bool {
        self.agreement.is_served(self.view())
    }

    /// Whether no rank waits for something that this rank has claimed.
    fn owes_nothing(&self) -> bool {
        self.movement.owes_nothing() && self.agreement.owes_nothing()
    }

    /// Takes what is ready: the arrival is over, and the rounds are the caller's until released. `begun`: the
    /// caller may have begun to write into [`Machine::buffer`]; if not, that may be another one from now on.
    pub(crate) fn take(&mut self, begun: bool) -> RangeInclusive<u64> {
        let rounds = self.ready();
        if !rounds.is_empty() {
            self.ledger.take();
            self.agreement.end();
            self.outbox.note();
            if !begun {
                let Machine { plan, ledger, outbox, buffers, .. } = self;
                buffers.choose(View { plan, ledger, outbox });
            }
        }
        rounds
    }

    /// Says that no rank here reads outcomes up to `round` any more.
    pub(crate) fn release(&mut self, round: u64) {
        self.ledger.release(round, &self.plan, &mut self.outbox);
    }

    /// Whether this rank left and nothing of it is under way.
    pub(crate) fn is_finished(&self) -> bool {
        let has_all = self.ledger.has_left() && self.ledger.landed() >= self.ledger.fired();
        has_all && self.is_quiet() && self.owes_nothing() && self.has_served()
    }

    /// Whether no rank needs this rank's provider any more.
    fn has_served(&self) -> bool {
        self.agreement.cards().is_none_or(|cards| cards.has_served(&self.ledger))
    }

    /// Whether all ranks know that this rank has let everything go.
    pub(crate) fn has_gone(&self) -> bool {
        self.ledger.released() == FOREVER && self.is_quiet()
    }

    fn is_quiet(&self) -> bool {
        self.outbox.is_quiet() && self.movement.reducers().is_none_or(Reducers::is_idle)
    }

    /// A round that this rank closed and that has landed: how long that took was not yet said.
    pub(crate) fn unmeasured(&self) -> Option<u64> {
        self.agreement.unmeasured()
    }

    /// Says how long it took from closing the round to its landing; nothing if that is not known.
    pub(crate) fn measured(&mut self, latency: Option<Time>) {
        self.agreement.measured(latency);
    }

    /// What this rank would be woken for.
    pub(crate) fn interest(&self) -> Interest {
        // Only ranks that are in the library are waited for here, so it cannot take long.
        if self.waits_for_pieces() {
            Interest::Piece
        } else if self.agreement.is_blocked() {
            Interest::Room
        } else {
            Interest::Outcome
        }
    }

    fn waits_for_pieces(&self) -> bool {
        self.movement.segments().is_some_and(|segments| segments.awaited(self.view()).is_some())
    }

    /// When the machine wants to be polled although nothing happened.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        let view = self.view();
        self.agreement.next_timer().or_else(|| {
            let reducers = self.movement.reducers().filter(|_| self.has_arrival())?;
            reducers.next_timer(self.agreement.own_entry(view).is_some(), view)
        })
    }

    /// The next round whose outcome a provider may have, and whether its data is wanted.
    pub(crate) fn expected(&self) -> Option<(u64, bool)> {
        self.agreement.cards()?.expected(&self.plan, &self.ledger)
    }

    /// The next round of which a provider may have run everything.
    pub(crate) fn nearly_over(&self) -> Option<u64> {
        self.agreement.cards()?.nearly_over(&self.ledger)
    }

    /// A rank died: what it had claimed is free again.
    pub(crate) fn inherit(&mut self, rank: u32) {
        self.ledger.bury(rank);
    }

    /// Whether an operation of a program's next round is under way, or an own one of any round.
    pub(crate) fn is_pending(&self, cells: &impl Cells) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.is_pending(self.view(), cells))
    }

    /// Whether the next round of a program has fired: any rank that is alive can complete it.
    pub(crate) fn has_fired(&self, cells: &impl Cells) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.has_fired(self.view(), cells))
    }

    /// Whether a task has given any of its signals.
    pub(crate) fn is_announced(&self, task: Task, cells: &impl Cells) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.is_announced(task, self.view(), cells))
    }

    /// Whether any rank may read the outcome of a round already.
    pub(crate) fn is_done(&self, round: u64, cells: &impl Cells) -> bool {
        self.plan.is_done(round, cells)
    }

    /// Whether a cell says which rank claimed an operation.
    pub(crate) fn is_claim(&self, cell: usize) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.is_claim(cell, &self.plan))
    }

    /// Cells that say which ranks claimed operations, all of whose effects have happened.
    pub(crate) fn spent_claims(&self, load: impl Fn(usize) -> u64) -> Vec<usize> {
        self.agreement.gates().map_or_else(Vec::new, |gates| gates.spent_claims(&self.plan, load))
    }

    /// Ranks that are waited for: those that hold on to what a slot is needed for, those that did not arrive, those whose
    /// hosts do not answer, those whose data is not there yet, or all those of which some close or move the round.
    pub(crate) fn missing(&self, cells: &impl Cells) -> RankSet {
        let Machine { plan, agreement, movement, .. } = self;
        let (view, mut missing) = (self.view(), RankSet::empty(plan.ranks));
        if !agreement.has_arrival() {
            return missing;
        }
        if view.ledger.has_left() && !self.has_served() {
            // It goes on for those that have not.
            missing.clone_from(view.ledger.active());
            return missing;
        }
        match movement.segments() {
            Some(segments) if self.waits_for_pieces() => segments.unfilled(view, cells, &mut missing),
            _ => agreement.missing(movement, view, cells, &mut missing),
        }
        if let Some(reducers) = movement.reducers() {
            reducers.missing(view, cells, &mut missing);
        }
        // Usually an answer takes no time; while there is none, others may seem to be missing because they wait for the
        // same host.
        let asked = agreement.asked().into_iter().chain(movement.segments().and_then(Segments::asked));
        self.name(asked, &mut missing);
        if missing.is_empty() {
            let awaited = Counted::ALL.into_iter().filter(|&what| agreement.awaits(what, view));
            self.name(awaited.flat_map(|what| self.outbox.hosts(what)), &mut missing);
        }
        if missing.is_empty() {
            agreement.may_be_working(view).for_each(|rank| missing.insert(rank));
        }
        missing
    }

    /// Other hosts, by the ranks that provide their memory.
    fn name(&self, hosts: impl Iterator<Item = u32>, ranks: &mut RankSet) {
        let others = hosts.filter(|&host| host != self.plan.host());
        others.for_each(|host| ranks.insert(self.plan.topology.leader(host)));
    }

    /// What its next steps depend on, apart from time.
    pub(crate) fn fingerprint(&self, state: &mut impl Hasher) {
        let Machine { ledger, outbox, agreement, movement, buffers, .. } = self;
        (ledger, outbox, agreement, movement, buffers).hash(state);
    }

    /// Where it stands, in a line.
    pub(crate) fn summary(&self) -> String {
        let Machine { ledger, outbox, agreement, movement, .. } = self;
        let active: Vec<u32> = ledger.active().iter().collect();
        let (taken, fired, landed) = (ledger.taken(), ledger.fired(), ledger.landed());
        let (in_flight, agreement) = (outbox.in_flight(), agreement.summary());
        format!(
            "taken {taken} fired {fired} landed {landed} active {active:?} in flight {in_flight:?} {agreement} {movement:?}"
        )
    }
}
