//! What rounds have come to, as far as this rank knows.

use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;

use super::cut::Cut;
use super::input::{Cells, FOREVER};
use super::op::{Awaited, Counted, Op};
use super::outbox::Outbox;
use super::plan::{Plan, slot_of};
use super::releases::Releases;
use crate::fabric::Change;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::AgreementBy;

/// How far this rank is with its rounds, and which ranks take part in the next one.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    /// Newest round returned to the caller.
    taken: u64,
    /// Newest round whose cut is known here.
    fired: u64,
    /// Newest round whose outcome is complete on this host.
    landed: u64,
    /// Newest round that was released.
    released: u64,
    /// A release that waits for pushes.
    release_later: u64,
    /// What is known of the releases of all.
    releases: Releases,
    /// Cuts of the rounds after `taken`, by slot.
    cuts: Vec<Cut>,
    /// Where ranks are on several hosts: the homes of the rounds that have not landed and of the next one, by slot.
    homes: Vec<u32>,
    /// The round whose record was looked for last, and the cell of its round.
    record: (u64, usize),
    /// Ranks that take part in round `fired + 1`.
    active: RankSet,
    /// Ranks that left with round `fired`.
    leavers: RankSet,
    /// Ranks that took part in another round: made when it is asked for, and kept for its memory.
    others: RankSet,
    /// Ranks that died.
    dead: RankSet,
    /// The round that has this rank's last arrival.
    left: Option<u64>,
    /// The cuts of rounds that fired and were not fetched, if they are recorded.
    log: Option<Vec<Cut>>,
}

impl Hash for Ledger {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // What the other slots hold is never read.
        for cut in self.cuts.iter().filter(|cut| cut.round > self.taken) {
            // With where contributions lie, which is no part of what was agreed.
            cut.round.hash(state);
            cut.encode().for_each(|cell| cell.hash(state));
        }
        // What is known of the releases of others says no more than their cells.
        let Ledger { taken, fired, landed, released, release_later, active, leavers, dead, left, .. } = self;
        (taken, fired, landed, released, release_later, active, leavers, dead, left).hash(state);
        if !self.homes.is_empty() {
            (landed + 1..=fired + 1).for_each(|round| self.homes[self.slot(round)].hash(state));
        }
    }
}

impl Ledger {
    /// Makes the memory of its cuts now.
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

    /// The round that fires next.
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

    /// Whether this rank has left, and its caller has released all that it had.
    pub(super) fn reads_no_more(&self) -> bool {
        self.left.is_some_and(|round| self.released >= round)
    }

    /// Ranks that take part in the round that fires next.
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

    /// Whether the caller may have a round before it takes others, by the depth of the ring.
    #[inline]
    pub(super) fn is_within_depth(&self, round: u64, plan: &Plan) -> bool {
        round - self.taken <= plan.depth
    }

    /// Whether this rank has a use for the next round, and the ring a slot for it.
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

    /// The cut of a round that is about to fire, to be filled in.
    #[inline]
    pub(super) fn cut_mut(&mut self, round: u64) -> &mut Cut {
        let slot = self.slot(round);
        &mut self.cuts[slot]
    }

    /// The host whose memory holds the words and claims of a round, which is the next one or has not landed.
    #[inline]
    pub(super) fn home_host(&self, round: u64, plan: &Plan) -> u32 {
        self.homes.get(self.slot(round)).map_or_else(|| plan.host(), |&home| plan.host_of(home))
    }

    /// The rank there that looks after them.
    pub(super) fn home(&self, round: u64, plan: &Plan) -> u32 {
        match self.homes.get(self.slot(round)) {
            Some(&home) => home,
            None => plan.home(round, &self.active, None),
        }
    }

    /// The same host for the round after the one whose cut is known and is about to fire.
    pub(super) fn home_host_after(&mut self, round: u64, plan: &Plan) -> u32 {
        if self.homes.is_empty() {
            return plan.host();
        }
        let initiator = self.cut(round).initiator;
        plan.host_of(plan.home(round + 1, self.active_after(round), initiator))
    }

    /// The same, beside the ranks that take part in the round.
    #[inline]
    pub(super) fn cut_of_active(&mut self, round: u64) -> (&mut Cut, &RankSet) {
        let slot = self.slot(round);
        (&mut self.cuts[slot], &self.active)
    }

    /// Reads the cut of a round from its record on this host; whether it is there.
    pub(super) fn read_record(&mut self, round: u64, plan: &Plan, cells: &impl Cells) -> bool {
        // Every poll of a rank that waits looks there.
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

    /// Ranks that take part in the round after the one whose cut is known and is about to fire.
    pub(super) fn active_after(&mut self, round: u64) -> &RankSet {
        self.others.clone_from(&self.active);
        let slot = self.slot(round);
        self.cuts[slot].leaving().for_each(|rank| self.others.remove(rank));
        &self.others
    }

    /// Ranks that took part in a round that fired: those active now and those who left since.
    pub(super) fn active_in(&mut self, round: u64) -> &RankSet {
        self.others.clone_from(&self.active);
        for later in round..=self.fired {
            let slot = self.slot(later);
            self.cuts[slot].leaving().for_each(|rank| self.others.insert(rank));
        }
        &self.others
    }

    /// The next round has fired, with the cut that was filled in.
    pub(super) fn fire(&mut self, round: u64, plan: &Plan) {
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
        if let Some(log) = &mut self.log {
            log.push(self.cuts[slot].clone());
        }
    }

    /// Records cuts from now on.
    pub(super) fn record(&mut self) {
        self.log = Some(Vec::new());
    }

    /// The cuts that were recorded since this was asked last.
    pub(super) fn recorded(&mut self) -> Vec<Cut> {
        self.log.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// The outcome of the next round is complete.
    #[inline]
    pub(super) fn land(&mut self, round: u64) {
        debug_assert_eq!(round, self.landed + 1);
        self.landed = round;
    }

    /// The caller has what has landed, up to the round in which it leaves.
    #[inline]
    pub(super) fn take(&mut self) {
        self.taken = self.left.map_or(self.landed, |last| self.landed.min(last));
    }

    /// The caller has the rounds up to this one, which have landed.
    #[inline]
    pub(super) fn take_up_to(&mut self, round: u64) {
        debug_assert!(self.taken < round && round <= self.landed);
        self.taken = round;
    }

    /// This rank passes a round over, which has fired and whose outcome it does not want.
    pub(super) fn pass_over(&mut self, round: u64) {
        (self.taken, self.landed) = (round, round);
    }

    /// This rank's last arrival is in a round.
    pub(super) fn leave(&mut self, round: u64) {
        self.left = Some(round);
    }

    /// A rank died.
    pub(super) fn bury(&mut self, rank: u32) {
        self.dead.insert(rank);
    }

    /// Gives the cuts of rounds that were taken to their keeper, for old ones.
    #[inline]
    pub(super) fn hand_cuts_to(&mut self, rounds: RangeInclusive<u64>, keepers: &mut [Cut]) {
        for round in rounds {
            let slot = self.slot(round);
            std::mem::swap(&mut self.cuts[slot], &mut keepers[slot]);
        }
    }

    /// Whether all ranks have released `round`, so what it used may be used again.
    pub(super) fn is_released(&mut self, round: u64, plan: &Plan, cells: &impl Cells) -> bool {
        let round = if plan.fault(Fault::ReuseSlotEarly) { round.saturating_sub(1) } else { round };
        self.releases.reach(round, plan.ranks, |rank| cells.load(plan.released(rank)))
    }

    /// Says that no rank here reads outcomes up to `round` any more.
    pub(super) fn release(&mut self, round: u64, plan: &Plan, outbox: &mut Outbox) {
        let agreement = plan.agreement;
        // A synchronous arrival says by itself that everything before it was released.
        let by_arrival = agreement == AgreementBy::Tags && round != FOREVER;
        if by_arrival || plan.fault(Fault::SkipRelease) || round <= self.released {
            return;
        }
        if matches!(agreement, AgreementBy::Relays | AgreementBy::Cards) {
            // Outcomes are private: the others learn of it if they wait for it, or when the slot is armed again.
            self.released = round;
            if agreement == AgreementBy::Relays && round == FOREVER {
                // Nothing of this rank is in flight any more: what it wrote to will be written by others.
                for host in plan.hosts_elsewhere(&self.active) {
                    outbox.signal(Counted::Notice, host, None, (plan.released(plan.me), Change::Set(FOREVER)));
                }
            }
            return outbox.note();
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

    /// Whether a release waits for pushes.
    pub(super) fn releases_later(&self) -> bool {
        self.release_later > 0
    }

    /// Releases what waits for pushes, once there are none.
    pub(super) fn release_what_waits(&mut self, plan: &Plan, outbox: &mut Outbox) {
        if self.release_later > 0 && !outbox.has(Counted::Push) {
            let round = std::mem::take(&mut self.release_later);
            self.release(round, plan, outbox);
        }
    }
}
