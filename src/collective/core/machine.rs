//! The state of one rank in one collective, and how it learns what happened.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::Time;
use super::arrival::Arrival;
use super::buffers::Buffers;
use super::cut::Cut;
use super::entry::Part;
use super::homes::Homes;
use super::in_flight::InFlight;
use super::late::Pending;
use super::moving::Mover;
use super::offloaded::Offloaded;
use super::op::{Counted, Interest, Op, Token};
use super::pace::Pace;
use super::plan::{BUFFERS, Path, Plan};
use super::pulling::Pull;
use super::releases::Releases;
use super::stats::Stats;
use super::tree::Effort;
use crate::fabric::{Atomic, Change};
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::trigger::{Layout, Start, Worker};

/// The control cells of the own host, as they are now. Loads have acquire order.
pub(crate) trait Cells {
    fn load(&self, cell: usize) -> u64;
}

/// Released by a rank that left: nothing will ever wait for it.
pub(crate) const FOREVER: u64 = u64::MAX;

/// One rank's part of the protocol. See the module.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(super) plan: Plan,
    /// Newest round returned to the caller.
    pub(super) taken: u64,
    /// Newest round whose cut is known here.
    pub(super) fired: u64,
    /// Newest round whose outcome is complete on this host.
    pub(super) landed: u64,
    /// Ranks that take part in round `fired + 1`.
    pub(super) active: RankSet,
    /// Cuts of the rounds after `taken`, by slot.
    pub(super) cuts: Vec<Cut>,
    pub(super) arrival: Option<Arrival>,
    /// A late contribution that could not be placed yet.
    pub(super) pending: Option<Pending>,
    pub(super) buffers: Buffers,
    pub(super) mover: Mover,
    /// On the path that has a program.
    pub(super) worker: Option<Worker>,
    /// Who they are, where homes reduce.
    pub(super) homes: Homes,
    /// How far this rank is with doing so itself.
    pub(super) pull: Pull,
    /// Where a provider runs it.
    pub(super) offloaded: Offloaded,
    /// Ranks that died.
    pub(super) dead: RankSet,
    /// Newest round whose work this rank, on its way out, has called somebody else to.
    pub(super) passed_on: u64,
    pub(super) pace: Pace,
    pub(super) stats: Stats,
    /// Left: this rank's last arrival is in a cut.
    pub(super) left: bool,
    /// What is known of the releases of all.
    pub(super) releases: Releases,
    /// Ranks that left with round `fired`.
    pub(super) leavers: RankSet,
    /// By tags, and by an initiator: the first rank whose tag for round `fired + 1` was not seen.
    pub(super) missing: u32,
    /// The tag was shown and its consequences are not worked off: whoever sees a synchronous round
    /// complete in this state wakes the others.
    pub(super) arriving: bool,
    /// What the endpoint says of itself: [`waits_fence_peer`](crate::fabric::Endpoint::waits_fence_peer).
    pub(super) waits_fence_peer: bool,
    /// The newest round that this rank closed, until it was measured how long it took to land.
    pub(super) unmeasured: Option<u64>,
    /// What was begun towards hosts and is not known to be over for the last time, whoever has seen its effect.
    pub(super) in_flight: InFlight,
    /// A release that waits for pushes.
    pub(super) release_later: u64,
    /// Newest round that was released.
    pub(super) released: u64,
    /// What is known of the words of the round that is being entered.
    pub(super) words: Vec<u64>,
    /// Ranks that will take part in the round after the one being fired.
    pub(super) next_active: RankSet,
    pub(super) ops: VecDeque<Op>,
    /// Counts transitions, to know when there is nothing left to do.
    pub(super) transitions: u64,
}

impl Machine {
    pub(crate) fn new(plan: Plan) -> Self {
        let slots = plan.slots() as usize;
        Machine {
            taken: 0,
            fired: 0,
            landed: 0,
            active: RankSet::full(plan.ranks),
            cuts: (0..slots).map(|_| Cut::with_room_for(plan.ranks)).collect(),
            arrival: None,
            pending: None,
            buffers: Buffers::new(&plan),
            mover: Mover::default(),
            worker: plan.program.as_deref().map(|layout| Worker::new(plan.me, layout, plan.fault)),
            homes: Homes::new(&plan),
            pull: Pull::new(&plan),
            offloaded: Offloaded::new(&plan),
            dead: RankSet::empty(plan.ranks),
            passed_on: 0,
            pace: Pace::new(plan.grace),
            stats: Stats::default(),
            left: false,
            releases: Releases::default(),
            leavers: RankSet::empty(plan.ranks),
            missing: 0,
            arriving: false,
            waits_fence_peer: false,
            unmeasured: None,
            in_flight: InFlight::new(plan.topology.hosts()),
            release_later: 0,
            released: 0,
            words: vec![0; plan.words() as usize],
            next_active: RankSet::empty(plan.ranks),
            ops: VecDeque::with_capacity(plan.usual_ops()),
            transitions: 0,
            plan,
        }
    }

    /// The same machine on an endpoint that says this of itself. Without, it fences.
    pub(crate) fn with_waits_fence_peer(self, waits_fence_peer: bool) -> Self {
        Machine { waits_fence_peer, ..self }
    }

    /// Whether it makes use of the time.
    pub(crate) fn needs_time(&self) -> bool {
        let synchronous = |program: &Arc<Layout>| program.start == Start::Everybody;
        let waits = !self.plan.by_tags() || self.plan.path.has_homes();
        waits && !self.plan.program.as_ref().is_some_and(synchronous)
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    #[inline]
    pub(crate) fn stats(&self) -> Stats {
        let Some(worker) = &self.worker else { return self.stats };
        let (operations, inherited) = (worker.tasks, worker.inherited);
        Stats { operations, inherited, activations: worker.activations, ..self.stats }
    }

    pub(crate) fn has_arrival(&self) -> bool {
        self.arrival.is_some()
    }

    /// Newest round returned to the caller.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Newest round whose outcome is complete on this host.
    pub(crate) fn landed(&self) -> u64 {
        self.landed
    }

    /// The cut of a round that has fired and was not handed to its keeper.
    pub(crate) fn cut(&self, round: u64) -> &Cut {
        &self.cuts[self.plan.slot(round)]
    }

    /// Gives the cuts of rounds that were taken to who keeps them from now on, for old ones.
    #[inline]
    pub(crate) fn hand_cuts_to(&mut self, rounds: RangeInclusive<u64>, keepers: &mut [Cut]) {
        for slot in rounds.map(|round| self.plan.slot(round)) {
            std::mem::swap(&mut self.cuts[slot], &mut keepers[slot]);
        }
    }

    pub(crate) fn peek_op(&self) -> Option<&Op> {
        self.ops.front()
    }

    pub(crate) fn next_op(&mut self) -> Option<Op> {
        let op = self.ops.pop_front();
        if self.ops.is_empty() {
            // It begins anew, in memory that is in a cache.
            self.ops.clear();
        }
        op
    }

    /// Hands in the contribution in [`Machine::buffer`]. There must be no outstanding arrival.
    pub(crate) fn arrive(&mut self, now: Time, weight: u16) {
        self.pace.arrived(now);
        self.start(Part::Fresh, weight);
        self.buffers.hand_in(self.taken + 1);
    }

    /// Hands in the last, empty arrival.
    pub(crate) fn leave(&mut self) {
        self.start(Part::Leaving, 0);
    }

    fn start(&mut self, part: Part, weight: u16) {
        debug_assert!(self.arrival.is_none() && !self.left);
        self.arrival = Some(Arrival::new(self.taken + 1, part, self.buffer(), weight));
        self.transitions += 1;
    }

    /// Does everything that can be done now; says whether that was anything. `effort` says how much
    /// of the work of all it takes on.
    pub(crate) fn poll(&mut self, now: Time, effort: Effort, cells: &impl Cells) -> bool {
        let start = self.transitions;
        self.stats.polls += 1;
        loop {
            let before = self.transitions;
            self.learn(cells);
            self.step_arrival(now, effort, cells);
            self.step_home();
            if effort > Effort::Nothing && self.ops.is_empty() {
                match self.plan.path {
                    Path::Segmented => self.step_mover(cells),
                    Path::Program => self.step_worker(effort, cells),
                    Path::Gathered | Path::Scattered => self.step_pull(now),
                    Path::Replicated | Path::Eager | Path::Offloaded => {}
                }
            }
            if self.plan.path == Path::Offloaded {
                self.step_offloaded(cells);
            }
            // Operations take effect before anything that follows them is decided.
            if self.transitions == before || !self.ops.is_empty() {
                break;
            }
        }
        let progress = self.transitions != start || !self.ops.is_empty();
        if !progress {
            self.arriving = false;
        }
        progress
    }

    /// A round that this rank closed and that has landed: how long that took was not yet said.
    pub(crate) fn unmeasured(&self) -> Option<u64> {
        self.unmeasured
    }

    /// Says how long it took from closing the round to its landing; nothing if that is not known.
    pub(crate) fn measured(&mut self, latency: Option<Time>) {
        self.unmeasured = None;
        if let Some(latency) = latency {
            self.pace.handed_out(latency);
        }
    }

    /// Whether the slot of `target` is free: nobody reads what it held before.
    pub(super) fn has_room(&mut self, target: u64, cells: &impl Cells) -> bool {
        if self.plan.path == Path::Offloaded {
            self.offloaded.is_armed(target)
        } else if self.plan.by_tags() {
            // All others show by their own arrival that they are done with the round before; those
            // who left with it will not arrive again.
            // And what it moved itself has landed for the last time, or is where nobody else writes.
            let settled = !self.in_flight.has(Counted::Push) || self.plan.topology.hosts() == 1;
            let settled = settled && (!self.plan.path.has_homes() || self.has_settled(target));
            let is_done = |rank| cells.load(self.plan.released(rank)) == FOREVER;
            settled && (self.plan.fault(Fault::OvertakeLeavers) || self.leavers.iter().all(is_done))
        } else {
            target <= self.fired || self.is_released(target.saturating_sub(self.plan.depth), cells)
        }
    }

    /// Whether every rank has released `round`, so what it used may be used again.
    fn is_released(&mut self, round: u64, cells: &impl Cells) -> bool {
        let round = if self.plan.fault(Fault::ReuseSlotEarly) { round.saturating_sub(1) } else { round };
        let released = |rank| cells.load(self.plan.released(rank));
        self.releases.reach(round, self.plan.ranks, released)
    }

    /// The rounds that `wait` would return now, oldest first; empty while it has to wait.
    pub(crate) fn ready(&self) -> RangeInclusive<u64> {
        let satisfied = self.is_served() && self.owes_nothing();
        self.taken + 1..=if satisfied { self.landed } else { self.taken }
    }

    /// Whether there is all that the arrival waits for.
    pub(crate) fn is_served(&self) -> bool {
        self.arrival.as_ref().is_some_and(|arrival| {
            let sent = |buffer| self.writes_soon(arrival, buffer) && self.has_tags_under_way(buffer);
            arrival.is_over() && self.landed >= arrival.needs() && !(0..BUFFERS).any(sent)
        })
    }

    /// Whether a buffer may be written as soon as an arrival is over, so that what was sent from it has to have landed.
    /// Where nothing but a tag was, the data is free without that: a host that does not answer holds this rank up only
    /// when the same buffer is to get another tag.
    pub(super) fn writes_soon(&self, arrival: &Arrival, buffer: u32) -> bool {
        let sends_tags_alone = self.plan.path == Path::Segmented && !self.plan.by_tags();
        buffer != arrival.buffer && !sends_tags_alone
    }

    /// Whether a tag of a buffer is not known to have landed on every host.
    pub(super) fn has_tags_under_way(&self, buffer: u32) -> bool {
        self.in_flight.has(Counted::Tag { buffer })
    }

    /// Whether this rank left and nothing of it is under way.
    pub(crate) fn is_finished(&self) -> bool {
        self.left && self.landed >= self.fired && self.is_quiet() && self.owes_nothing() && self.has_served()
    }

    /// Whether everybody knows that this rank has let everything go.
    pub(crate) fn has_gone(&self) -> bool {
        self.released == FOREVER && self.is_quiet()
    }

    fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && self.ops.is_empty() && self.pull.is_idle()
    }

    /// Whether nobody waits for something that this rank has claimed.
    pub(super) fn owes_nothing(&self) -> bool {
        self.mover.owes_nothing() && self.worker.as_ref().is_none_or(Worker::owes_nothing)
    }

    /// Takes what is ready: the arrival is over, and the rounds are the caller's until released. `begun`: the
    /// caller may have begun to write into [`Machine::buffer`]; if not, that may be another one from now on.
    pub(crate) fn take(&mut self, begun: bool) -> RangeInclusive<u64> {
        let rounds = self.ready();
        if !rounds.is_empty() {
            self.taken = self.landed;
            self.arrival = None;
            self.transitions += 1;
            if !begun {
                self.choose_buffer();
            }
        }
        rounds
    }

    /// Says that nobody here reads outcomes up to `round` any more.
    pub(crate) fn release(&mut self, round: u64) {
        // A synchronous arrival says by itself that everything before it was released.
        if (self.plan.by_tags() && round != FOREVER) || self.plan.fault(Fault::SkipRelease) {
            return;
        }
        if round <= self.released {
            return;
        }
        if self.plan.path == Path::Offloaded {
            // Outcomes are private: the others learn of it when the slot is armed again.
            self.released = round;
            self.transitions += 1;
            return;
        }
        if self.in_flight.has(Counted::Push)
            && self.plan.topology.hosts() > 1
            && !self.plan.fault(Fault::ReleaseBeforeLanding)
        {
            self.release_later = self.release_later.max(round);
            return;
        }
        let cell = self.plan.released(self.plan.me);
        let before = std::mem::replace(&mut self.released, round);
        self.push(Op::Store { cell, value: round });
        self.for_receivers_elsewhere(|machine, host| {
            // Added, not set: two of these may overtake each other.
            let change = Change::Add(round - before);
            let token = machine.count(Counted::Notice, host);
            machine.push(Op::Signal { host, data: None, cell, change, token });
        });
        if !self.plan.fault(Fault::ForgetWakeForRoom) {
            self.wake(u32::MAX, Interest::Room);
        }
    }

    /// What this rank would be woken for.
    pub(crate) fn interest(&self) -> Interest {
        match &self.arrival {
            // Only those who are in the library are waited for here, so it cannot take long.
            _ if self.awaited().is_some() => Interest::Piece,
            Some(arrival) if arrival.is_blocked() => Interest::Room,
            _ => Interest::Outcome,
        }
    }

    pub(super) fn push(&mut self, op: Op) {
        self.ops.push_back(op);
        self.transitions += 1;
    }

    /// Counts an operation towards a host until it completes, which the token says.
    pub(super) fn count(&mut self, what: Counted, host: u32) -> Token {
        self.in_flight.begin(what, host);
        Token::Counted { what, host }
    }

    pub(super) fn wake(&mut self, most: u32, interest: Interest) {
        self.push(Op::Wake { most, interest });
    }

    pub(super) fn atomic(&mut self, host: u32, cell: usize, atomic: Atomic, token: Token) {
        self.push(Op::Atomic { host, cell, atomic, token });
    }

    /// Takes the result of an operation: for an atomic the value before, else nothing of meaning.
    pub(crate) fn complete(&mut self, token: Token, value: u64, now: Time) {
        self.transitions += 1;
        match token {
            Token::Counted { what: Counted::Read, host } => {
                self.in_flight.end(Counted::Read, host);
                if self.plan.path.has_homes() { self.pull_answered(value, now) } else { self.piece_is_here() }
            }
            Token::Counted { what, host } => {
                self.in_flight.end(what, host);
                if self.release_later > 0 && !self.in_flight.has(Counted::Push) {
                    let round = std::mem::take(&mut self.release_later);
                    self.release(round);
                }
            }
            Token::Probe if self.plan.path.has_homes() => self.pull_answered(value, now),
            Token::Arrive | Token::Ticket | Token::Probe | Token::Close | Token::Place | Token::Clear | Token::Land => {
                self.complete_arrival(token, value, now);
            }
            Token::Claim | Token::Done => self.complete_move(token, value),
            Token::Deposit if self.plan.path == Path::Offloaded => self.token_answered(value),
            Token::Deposit => self.gate_answered(value),
            Token::Swap => self.swapped(value),
        }
    }
}
