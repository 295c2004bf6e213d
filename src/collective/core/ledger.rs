//! The state of rounds, as far as this rank knows it.

use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;

use super::auto_quorum::{AutoQuorum, SavedQuorum};
use super::cut::Cut;
use super::input::{Cells, FOREVER, Time};
use super::op::{Awaited, Counted, Op};
use super::outbox::Outbox;
use super::plan::{Plan, slot_of};
use super::releases::Releases;
use crate::fabric::Change;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::AgreementBy;

/// How far this rank has come with its rounds, and which ranks take part in the next one.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    /// Newest round returned to the caller.
    taken: u64,
    /// Newest round whose cut is known here.
    fired: u64,
    /// Newest round whose outcome is complete on this host.
    landed: u64,
    /// Newest round that this rank has released.
    released: u64,
    /// A release that waits until pushes have landed.
    release_later: u64,
    /// What this rank knows of the releases of all ranks.
    releases: Releases,
    /// Cuts of the rounds after `taken`, by slot.
    cuts: Vec<Cut>,
    /// Where ranks are on several hosts: the homes of the rounds that have not landed and of the next one, by slot.
    homes: Vec<u32>,
    /// The round whose record this rank read last, and the cell of that record's round.
    record: (u64, usize),
    /// Ranks that take part in round `fired + 1`.
    active: RankSet,
    /// Ranks that left with round `fired`.
    leavers: RankSet,
    /// Ranks that took part in another round. It is computed on demand and kept for its memory.
    others: RankSet,
    /// Ranks that died.
    dead: RankSet,
    /// The round that holds this rank's last arrival.
    left: Option<u64>,
    /// The quorum, where it follows from the cuts.
    auto: Option<Box<AutoQuorum>>,
    /// The cuts of fired rounds that were not fetched, if cuts are recorded.
    log: Option<Vec<Cut>>,
}

impl Hash for Ledger {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Other slots are never read.
        for cut in self.cuts.iter().filter(|cut| cut.round > self.taken) {
            // The encoded cut includes the buffers of the contributions, which are not part of what was agreed.
            cut.round.hash(state);
            cut.encode().for_each(|cell| cell.hash(state));
        }
        // What this rank knows of other ranks' releases follows from their cells.
        let Ledger { taken, fired, landed, released, release_later, active, leavers, dead, left, auto, .. } = self;
        (taken, fired, landed, released, release_later, active, leavers, dead, left, auto).hash(state);
        if !self.homes.is_empty() {
            (landed + 1..=fired + 1).for_each(|round| self.homes[self.slot(round)].hash(state));
        }
    }
}

impl Ledger {
    /// Reserves the memory of the cuts now.
    pub(super) fn reserve(&mut self) {
        self.cuts.iter_mut().for_each(Cut::reserve);
    }

    pub(super) fn new(plan: &Plan) -> Self {
        let (slots, several) = (plan.slots() as usize, plan.topology.has_elsewhere());
        let active = RankSet::full(plan.ranks);
        let first_home = plan.home(1, &active, None);
        Ledger {
            taken: 0,
            fired: 0,
            landed: 0,
            released: 0,
            release_later: 0,
            releases: Releases::default(),
            cuts: (0..plan.slots()).map(|_| Cut::with_room_for(plan.ranks)).collect(),
            homes: vec![first_home; if several { slots } else { 0 }],
            record: (0, 0),
            active,
            leavers: RankSet::empty(plan.ranks),
            others: RankSet::empty(plan.ranks),
            dead: RankSet::empty(plan.ranks),
            left: None,
            auto: plan.auto_quorum().map(Box::new),
            log: None,
        }
    }

    #[inline]
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    #[inline]
    pub(super) fn fired(&self) -> u64 {
        self.fired
    }

    /// Returns the round that fires next.
    #[inline]
    pub(super) fn open(&self) -> u64 {
        self.fired + 1
    }

    #[inline]
    pub(super) fn landed(&self) -> u64 {
        self.landed
    }

    pub(super) fn released(&self) -> u64 {
        self.released
    }

    #[inline]
    pub(super) fn has_left(&self) -> bool {
        self.left.is_some()
    }

    /// Returns whether this rank has left and its caller has released every round.
    pub(super) fn reads_no_more(&self) -> bool {
        self.left.is_some_and(|round| self.released >= round)
    }

    /// Returns the ranks that take part in the round that fires next.
    #[inline]
    pub(super) fn active(&self) -> &RankSet {
        &self.active
    }

    #[inline]
    pub(super) fn leavers(&self) -> &RankSet {
        &self.leavers
    }

    pub(super) fn is_dead(&self, rank: u32) -> bool {
        self.dead.contains(rank)
    }

    /// Returns whether the depth of the ring allows the caller to get a round before it takes others.
    #[inline]
    pub(super) fn is_within_depth(&self, round: u64, plan: &Plan) -> bool {
        round - self.taken <= plan.depth
    }

    /// Returns whether this rank can use the next round and the ring has a slot for it.
    #[inline]
    pub(super) fn wants_next(&self, plan: &Plan) -> bool {
        !self.has_left() && self.is_within_depth(self.open(), plan)
    }

    #[inline]
    fn slot(&self, round: u64) -> usize {
        slot_of(round, self.cuts.len() as u64)
    }

    #[inline]
    pub(super) fn cut(&self, round: u64) -> &Cut {
        &self.cuts[self.slot(round)]
    }

    /// Returns the cut of a round that is about to fire, for the caller to fill in.
    #[inline]
    pub(super) fn cut_mut(&mut self, round: u64) -> &mut Cut {
        let slot = self.slot(round);
        &mut self.cuts[slot]
    }

    /// Returns the host whose memory holds the words and claims of a round: the next round or one that has not landed.
    #[inline]
    pub(super) fn home_host(&self, round: u64, plan: &Plan) -> u32 {
        self.homes.get(self.slot(round)).map_or_else(|| plan.host(), |&home| plan.host_of(home))
    }

    /// Returns the rank whose memory holds them.
    pub(super) fn home(&self, round: u64, plan: &Plan) -> u32 {
        match self.homes.get(self.slot(round)) {
            Some(&home) => home,
            None => plan.home(round, &self.active, None),
        }
    }

    /// Returns the home host of the round after `round`, whose cut is known and which is about to fire.
    pub(super) fn home_host_after(&mut self, round: u64, plan: &Plan) -> u32 {
        if self.homes.is_empty() {
            return plan.host();
        }
        let initiator = self.cut(round).initiator;
        plan.host_of(plan.home(round + 1, self.active_after(round), initiator))
    }

    /// Returns the cut of a round that is about to fire, and the ranks that take part in that round.
    #[inline]
    pub(super) fn cut_of_active(&mut self, round: u64) -> (&mut Cut, &RankSet) {
        let slot = self.slot(round);
        (&mut self.cuts[slot], &self.active)
    }

    /// Reads the cut of a round from its record on this host, and returns whether the record is there.
    pub(super) fn read_record(&mut self, round: u64, plan: &Plan, cells: &impl Cells) -> bool {
        // Every poll of a waiting rank reads this cell.
        if self.record.0 != round {
            self.record = (round, plan.record(round));
        }
        let record = self.record.1;
        let known = cells.load(record) == round;
        if known {
            let first = plan.recorded(record);
            self.cut_mut(round).decode(round, |index| cells.load(first - index));
        }
        known
    }

    /// Returns the ranks that take part in the round after `round`, whose cut is known and which is about to fire.
    pub(super) fn active_after(&mut self, round: u64) -> &RankSet {
        self.others.clone_from(&self.active);
        let slot = self.slot(round);
        self.cuts[slot].leaving().for_each(|rank| self.others.remove(rank));
        &self.others
    }

    /// Returns the ranks that took part in a fired round: the active ranks and those that left since.
    pub(super) fn active_in(&mut self, round: u64) -> &RankSet {
        self.others.clone_from(&self.active);
        for later in round..=self.fired {
            let slot = self.slot(later);
            self.cuts[slot].leaving().for_each(|rank| self.others.insert(rank));
        }
        &self.others
    }

    /// Notes that the next round has fired with the cut that was filled in.
    pub(super) fn fire(&mut self, round: u64, plan: &Plan, now: Time) {
        debug_assert_eq!(round, self.fired + 1);
        self.fired = round;
        let slot = self.slot(round);
        self.leavers.clear();
        for rank in self.cuts[slot].leaving() {
            if !plan.fault(Fault::ForgetLeavers) {
                self.active.remove(rank);
            }
            self.leavers.insert(rank);
        }
        if !self.homes.is_empty() {
            let next = self.slot(round + 1);
            self.homes[next] = plan.home(round + 1, &self.active, self.cuts[slot].initiator);
        }
        if let Some(auto) = &mut self.auto {
            auto.learn(plan.number(round), &self.cuts[slot], &self.active);
            if plan.fault(Fault::LearnFromOwnClock) && now.is_multiple_of(3) {
                auto.forget();
            }
        }
        if let Some(log) = &mut self.log {
            log.push(self.cuts[slot].clone());
        }
    }

    /// Returns what chooses the quorum of the next round, if the collective chooses it itself.
    pub(super) fn auto_quorum(&self) -> Option<&AutoQuorum> {
        self.auto.as_deref()
    }

    /// Continues to choose quorums from what was saved.
    pub(super) fn resume_quorum(&mut self, saved: &SavedQuorum) {
        self.auto.iter_mut().for_each(|auto| auto.resume(saved));
    }

    /// Chooses no quorum: another collective does.
    pub(super) fn choose_no_quorum(&mut self) {
        self.auto = None;
    }

    /// Returns how many arrivals the next round waits for, where that follows from the cuts before it.
    pub(super) fn quorum(&self) -> Option<u32> {
        self.auto.as_ref().map(|auto| auto.quorum(self.active.len()))
    }

    /// Records cuts from now on.
    pub(super) fn record(&mut self) {
        self.log = Some(Vec::new());
    }

    /// Returns the cuts that were recorded since the last call.
    pub(super) fn recorded(&mut self) -> Vec<Cut> {
        self.log.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// Notes that the outcome of the next round is complete.
    #[inline]
    pub(super) fn land(&mut self, round: u64) {
        debug_assert_eq!(round, self.landed + 1);
        self.landed = round;
    }

    /// Notes that the caller takes all landed rounds, up to the round in which it leaves.
    #[inline]
    pub(super) fn take(&mut self) {
        self.taken = self.left.map_or(self.landed, |last| self.landed.min(last));
    }

    /// Notes that the caller takes the rounds up to this one, which have landed.
    #[inline]
    pub(super) fn take_up_to(&mut self, round: u64) {
        debug_assert!(self.taken < round && round <= self.landed);
        self.taken = round;
    }

    /// Skips a fired round whose outcome this rank does not need.
    pub(super) fn pass_over(&mut self, round: u64) {
        (self.taken, self.landed) = (round, round);
    }

    /// Notes that a round holds this rank's last arrival.
    pub(super) fn leave(&mut self, round: u64) {
        self.left = Some(round);
    }

    /// Notes that a rank died.
    pub(super) fn bury(&mut self, rank: u32) {
        self.dead.insert(rank);
    }

    /// Moves the cuts of taken rounds to `keepers`, in exchange for old cuts.
    #[inline]
    pub(super) fn hand_cuts_to(&mut self, rounds: RangeInclusive<u64>, keepers: &mut [Cut]) {
        for round in rounds {
            let slot = self.slot(round);
            std::mem::swap(&mut self.cuts[slot], &mut keepers[slot]);
        }
    }

    /// Returns whether all ranks have released `round`, so that its memory can be reused.
    pub(super) fn is_released(&mut self, round: u64, plan: &Plan, cells: &impl Cells) -> bool {
        let round = if plan.fault(Fault::ReuseSlotEarly) { round.saturating_sub(1) } else { round };
        self.releases.reach(round, plan.ranks, |rank| cells.load(plan.released(rank)))
    }

    /// Notes that no caller on this rank reads outcomes up to `round` any more.
    pub(super) fn release(&mut self, round: u64, plan: &Plan, outbox: &mut Outbox) {
        let agreement = plan.agreement;
        // A synchronous arrival implies that this rank has released everything before it.
        let by_arrival = agreement == AgreementBy::Tags && round != FOREVER;
        if by_arrival || plan.fault(Fault::SkipRelease) || round <= self.released {
            return;
        }
        if agreement == AgreementBy::Runner {
            // Outcomes are private. Other ranks learn of the release when the slot is armed again.
            self.released = round;
            return outbox.note();
        }
        if agreement == AgreementBy::Relays {
            return self.release_to_agent(round, plan, outbox);
        }
        let hasty = plan.fault(Fault::ReleaseBeforeLanding);
        if outbox.has(Counted::Push) && plan.topology.has_elsewhere() && !hasty {
            self.release_later = self.release_later.max(round);
            return;
        }
        let cell = plan.released(plan.me);
        let before = std::mem::replace(&mut self.released, round);
        outbox.push(Op::Store { cell, value: round });
        for host in plan.hosts_elsewhere(&self.active) {
            outbox.signal(Counted::Notice, host, None, (cell, Change::advance(before, round)));
        }
        if !plan.fault(Fault::ForgetWakeForRoom) {
            outbox.wake(u32::MAX, Awaited::Room);
        }
    }

    /// Where ranks relay: tells the agent of this host, which tells others if they wait for it.
    fn release_to_agent(&mut self, round: u64, plan: &Plan, outbox: &mut Outbox) {
        self.released = round;
        let cell = plan.released(plan.me);
        outbox.push(Op::Store { cell, value: round });
        if plan.topology.is_shared(plan.host()) && !plan.fault(Fault::ForgetWakeForRoom) {
            outbox.wake(u32::MAX, Awaited::Room);
        }
        if round == FOREVER && plan.me == plan.agent() {
            // This host has nothing in flight any more, so others may write to the memory that it wrote to.
            for host in plan.hosts_elsewhere(&self.active) {
                outbox.signal(Counted::Notice, host, None, (cell, Change::Set(FOREVER)));
            }
        }
    }

    /// Returns whether a release waits for pushes.
    pub(super) fn releases_later(&self) -> bool {
        self.release_later > 0
    }

    /// Carries out the release that waits for pushes, once no push is in flight.
    pub(super) fn release_what_waits(&mut self, plan: &Plan, outbox: &mut Outbox) {
        if self.release_later > 0 && !outbox.has(Counted::Push) {
            let round = std::mem::take(&mut self.release_later);
            self.release(round, plan, outbox);
        }
    }
}
