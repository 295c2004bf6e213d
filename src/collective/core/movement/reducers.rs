//! Elected reducers: the lowest active rank of all sums a round, or the lowest active rank of each host sums its host's
//! share. Each reducer hands its sums to every host with an active rank (`docs/how-a-round-runs.md` compares the ways).
//!
//! A reducer has arrived like all other ranks, and may be computing now: see [`super::fallback`].

use std::hash::{Hash, Hasher};

use super::super::context::Context;
use super::super::durations::Particulars;
use super::super::entry::{Entry, Part};
use super::super::input::{Cells, Effort, Time};
use super::super::op::{Awaited, Counted, Op};
use super::super::plan::{Plan, RECEIVING_ROWS};
use super::super::tag::Tag;
use super::combine;
use super::fallback::Fallback;
use crate::fabric::Change;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::reduce::Place;
use crate::rule::MovementBy;

/// The ranks that reduce the round for which this rank arrived last.
#[derive(Clone, Debug)]
pub(crate) struct Reducers {
    /// Each host has a reducer for its share of the data; otherwise one rank reduces all of it.
    has_shares: bool,
    /// The lowest active rank of each host that has one, by host.
    leads: Vec<u32>,
    /// The index of this rank's host among them.
    own: usize,
    /// The index of the only reducer; `None` where each of them is one.
    only: Option<usize>,
    /// The first round with this number of hosts, and so with the same shares.
    since: u64,
    /// The row that receives the shares of the round, and the row of the round before.
    rows: [u64; 2],
    /// The newest round that this rank has reduced as an elected reducer.
    handed: u64,
    /// The tag that this rank published last: that of its arrival.
    shown: Tag,
    fallback: Fallback,
}

impl Hash for Reducers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The published tag matters while its round is open, and then the arrival's own state contains it.
        (self.since, self.rows, self.handed, &self.fallback).hash(state);
    }
}

/// Returns the value by which a reducer announces its share of a round's outcome. `plain`: there is nothing else to
/// know, because every active rank takes part with weight 1, and none tells durations.
fn reported(round: u64, plain: bool) -> u64 {
    round << 1 | u64::from(plain)
}

impl Reducers {
    pub(super) fn new(plan: &Plan) -> Self {
        Reducers {
            has_shares: plan.movement == MovementBy::Reducers,
            leads: Vec::with_capacity(plan.topology.hosts() as usize),
            own: 0,
            only: None,
            since: 1,
            rows: [0, 1],
            handed: 0,
            shown: Tag::from_cell(0),
            fallback: Fallback::new(plan),
        }
    }

    /// Returns whether only the reducer sees which ranks have arrived, and announces the cut to the others.
    pub(crate) fn tells_cuts(&self) -> bool {
        !self.has_shares
    }

    /// Determines the ranks that reduce the round that this rank enters. All ranks find the same reducers, since all
    /// know which ranks are active.
    pub(super) fn enter(&mut self, round: u64, cx: &mut Context) {
        if self.leads.is_empty() || !cx.ledger.leavers().is_empty() {
            let before = self.since;
            self.elect(&cx.plan, cx.ledger.active(), round);
            let moved = self.has_shares && self.since > before;
            cx.stats.moved_shares += u64::from(moved && cx.outbox.has_tags());
        }
        if !cx.plan.fault(Fault::ReceiveAmongOldShares) {
            self.choose_row(round);
        } else {
            self.rows = [round % 2, (round + 1) % 2];
        }
    }

    fn elect(&mut self, plan: &Plan, active: &RankSet, round: u64) {
        let before = self.leads.len();
        self.leads.clear();
        for rank in active.iter() {
            if let Err(index) = self.index_of(plan, plan.host_of(rank)) {
                self.leads.insert(index, rank);
            }
        }
        self.own = self.index_of(plan, plan.host()).unwrap_or(0);
        let lowest = || self.leads.iter().enumerate().min_by_key(|&(_, &lead)| lead).map(|(index, _)| index);
        self.only = if self.has_shares { None } else { lowest() };
        if self.leads.len() != before {
            self.since = round;
        }
    }

    /// Chooses the row that receives the shares of a round, alike on every rank.
    ///
    /// A sender's write may land once more until it completes. A rank that arrives for round r has seen every other
    /// rank arrive for r - 1, and a rank does that when its writes for r - 3 and earlier have completed. Its writes for
    /// r - 2 may still land, but only in its own part of a row, which no other rank writes to while shares stay the
    /// same. After shares have changed, that part may be another rank's, so the row is the one that neither r - 1 nor r
    /// - 2 used. Otherwise two rows in turn are enough, and stay in a cache.
    fn choose_row(&mut self, round: u64) {
        let [last, before] = self.rows;
        let rested = (0..RECEIVING_ROWS).find(|row| !self.rows.contains(row)).unwrap_or(before);
        self.rows = [if round >= self.since + 2 { before } else { rested }, last];
    }

    /// Returns the index of a host among those that have an active rank, or the index where it would be inserted.
    fn index_of(&self, plan: &Plan, host: u32) -> Result<usize, usize> {
        self.leads.binary_search_by_key(&host, |&lead| plan.host_of(lead))
    }

    /// Returns the elected ranks, each with its index among the hosts that have an active rank.
    fn iter(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let indices = self.only.map_or(0..self.leads.len(), |only| only..only + 1);
        indices.map(|index| (index, self.leads[index]))
    }

    /// Returns whether this rank was elected.
    pub(crate) fn reduces(&self, me: u32) -> bool {
        self.leads.get(self.only.unwrap_or(self.own)) == Some(&me)
    }

    /// Returns whether another rank of this host is the only reducer.
    pub(crate) fn has_reducer_beside(&self, plan: &Plan) -> bool {
        self.tells_cuts() && self.iter().any(|(index, reducer)| index == self.own && reducer != plan.me)
    }

    /// Returns the bytes of a round that the reducer at an index reduces: offset and length.
    fn span(&self, plan: &Plan, index: usize) -> (usize, usize) {
        if self.has_shares { plan.share_span(index, self.leads.len()) } else { (0, plan.bytes) }
    }

    /// Returns whether this rank may arrive for `round`: nothing that it handed out may still be written where another
    /// reducer would write then. Shares stay the same until a host has no active rank left.
    pub(super) fn has_settled(&self, round: u64, cx: &Context) -> bool {
        let steady = cx.ledger.leavers().is_empty() && round > self.since;
        steady || self.may_hand_out(cx)
    }

    /// Returns whether the writes of what this rank has handed out have completed: the next outcome goes to the same
    /// memory. Arrivals for the next round show that, unless a fallback read brought the outcome to them.
    pub(crate) fn may_hand_out(&self, cx: &Context) -> bool {
        !cx.outbox.has(Counted::Outcome) || cx.plan.fault(Fault::HandOutEarly)
    }

    /// Returns the offset, on this rank's host, of the part of another host's contribution that begins at byte `from`.
    /// With shares, the round is the one that this rank entered last.
    pub(super) fn pushed(&self, plan: &Plan, entry: Entry, round: u64, from: usize) -> usize {
        if !self.has_shares {
            return plan.pushed(entry.rank, entry.buffer, round) + from;
        }
        let (Ok(index) | Err(index)) = self.index_of(plan, plan.host_of(entry.rank));
        plan.received(entry.rank, self.rows[0], (index, self.leads.len()))
    }

    /// Hands each elected rank its part of a contribution, and the tag after it.
    pub(super) fn show(
        &mut self,
        round: u64,
        (cell, value): (usize, u64),
        (buffer, has_data): (u32, bool),
        cx: &mut Context,
    ) {
        self.shown = Tag::from_cell(value);
        let (plan, me) = (&cx.plan, cx.plan.me);
        for (index, reducer) in self.iter().filter(|&(index, _)| index != self.own) {
            let (from, len) = self.span(plan, index);
            let at = plan.contribution(me, buffer) + from;
            let to = match self.has_shares {
                true => plan.received(me, self.rows[0], (self.own, self.leads.len())),
                false => plan.pushed(me, buffer, round) + from,
            };
            let data = (has_data && len > 0).then_some((at, to, len));
            cx.outbox.signal(Counted::Tag { buffer }, plan.host_of(reducer), data, (cell, Change::Set(value)));
        }
    }

    /// Learns the cut of a round from its reducer; returns whether the reducer has announced it.
    pub(crate) fn learn(&self, round: u64, cx: &mut Context, cells: &impl Cells) -> bool {
        let Some((_, reducer)) = self.iter().next() else { return false };
        let found = cells.load(cx.plan.reported(reducer, round));
        if found != reported(round, true) {
            return found == reported(round, false) && cx.read_record(round, cells);
        }
        let (cut, active) = cx.ledger.cut_of_active(round);
        cut.begin(round, None);
        active.iter().for_each(|rank| cut.entries.push(Entry::new(rank, Part::Fresh, (0, Particulars::PLAIN), 0)));
        true
    }

    /// Returns whether a fired round is complete here, after all operations have been carried out.
    pub(super) fn has_landed(&self, round: u64, plan: &Plan, cells: &impl Cells) -> bool {
        !self.has_shares || self.has_read(round) || self.has_every_share(round, plan, cells)
    }

    /// Returns the reducers whose share of a fired round is not here.
    fn silent(&self, round: u64, plan: &Plan, cells: &impl Cells) -> impl Iterator<Item = u32> {
        let silent = move |&(index, reducer): &(usize, u32)| {
            self.span(plan, index).1 > 0 && cells.load(plan.reported(reducer, round)) != reported(round, true)
        };
        self.iter().filter(silent).map(|(_, reducer)| reducer)
    }

    /// Returns whether all of a round's outcome is here.
    fn has_every_share(&self, round: u64, plan: &Plan, cells: &impl Cells) -> bool {
        let mut silent = self.silent(round, plan, cells);
        let early = plan.fault(Fault::TakeIncomplete);
        silent.next().is_none_or(|_| early && silent.next().is_none())
    }

    /// Reduces this rank's share when it is due, with any effort, because no other rank does that soon. With some
    /// effort, reads the contributions if the reducers take too long.
    #[inline(never)]
    pub(super) fn step(&mut self, effort: Effort, cx: &mut Context) {
        // This rank hands out even a round that it has read meanwhile, because others may not have read it.
        let fired = cx.ledger.fired();
        let is_due = self.has_shares && cx.ledger.taken() < fired && self.handed < fired;
        if is_due && self.reduces(cx.plan.me) && self.may_hand_out(cx) {
            self.hand_out(fired, cx);
        }
        if effort > Effort::Nothing && cx.outbox.is_empty() {
            self.fallback.step(self.needed(cx), self.own_entry(cx), cx);
        }
    }

    /// Reduces a round, and notifies all ranks that take part.
    pub(super) fn hand_out(&mut self, round: u64, cx: &mut Context) {
        self.handed = round;
        let Context { plan, ledger, outbox, stats, .. } = cx;
        let (host, cut) = (plan.host(), ledger.cut(round));
        let (from, len) = self.span(plan, self.own);
        if len == 0 && self.has_shares {
            return;
        }
        let plain = |entry: Entry| entry.part == Part::Fresh && entry.particulars() == Particulars::PLAIN;
        // With shares, every rank has all tags.
        let plain = self.has_shares || cut.entries.iter().all(plain);
        let (at, cell, value) = (plan.outcome(round) + from, plan.reported(plan.me, round), reported(round, plain));
        let data = (len > 0).then_some((at, at, len));
        let pushed = |entry: Entry, _| Place::Here(self.pushed(plan, entry, round, from));
        combine(Some(round), (cut, plan.outcome(round)), (from, len), pushed, (plan, outbox));
        if !plain {
            outbox.record(cut, plan);
        }
        outbox.push(Op::Store { cell, value });
        for (_, &lead) in self.leads.iter().enumerate().filter(|&(index, _)| index != self.own) {
            stats.activations += 1;
            if !plain {
                outbox.publish(Counted::Outcome, plan.host_of(lead), cut, plan);
            }
            outbox.signal(Counted::Outcome, plan.host_of(lead), data, (cell, Change::Set(value)));
        }
        if plan.topology.is_shared(host) {
            outbox.wake(u32::MAX, Awaited::Outcome);
        }
    }

    /// Returns the round for which this rank depends on elected reducers.
    fn needed(&self, cx: &Context) -> Option<u64> {
        let fired = cx.ledger.fired();
        if self.has_shares {
            return (cx.ledger.landed() < fired && !self.has_read(fired)).then_some(fired);
        }
        (self.own_entry(cx).is_some() && !self.reduces(cx.plan.me)).then_some(cx.ledger.open())
    }

    /// Takes a tag that was asked for, or a contribution that was read.
    pub(super) fn answered(&mut self, value: u64, cx: &mut Context) {
        self.fallback.answered(value, self.needed(cx), self.own_entry(cx), cx);
    }

    /// Returns this rank's entry in the next round, if it has arrived for that round.
    fn own_entry(&self, Context { plan, ledger, .. }: &Context) -> Option<Entry> {
        (self.shown.target == ledger.open()).then(|| self.shown.entry(plan.me))
    }

    /// Reserves now the memory that a fallback read needs.
    pub(super) fn reserve(&mut self) {
        self.fallback.reserve();
    }

    /// Returns when a fallback read continues.
    pub(crate) fn next_timer(&self, cx: &Context) -> Option<Time> {
        self.fallback.next_timer(self.needed(cx))
    }

    /// Returns whether no fallback read is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.fallback.is_idle()
    }

    /// Returns whether a fallback read brought a round.
    pub(super) fn has_read(&self, round: u64) -> bool {
        self.fallback.has_read(round)
    }

    /// Returns whether this rank, which learns cuts from the reducer, waits for `rank`: for a rank that must answer a
    /// fallback read or had not arrived when it was last asked, otherwise for the reducer.
    pub(crate) fn waits_for(&self, rank: u32, cx: &Context) -> bool {
        self.fallback.waits_for(rank, cx).unwrap_or_else(|| self.iter().any(|(_, reducer)| reducer == rank))
    }

    /// Adds the reducers without whose shares the newest round cannot land.
    pub(crate) fn missing(&self, Context { plan, ledger, .. }: &Context, cells: &impl Cells, missing: &mut RankSet) {
        let fired = ledger.fired();
        if self.has_shares && fired > ledger.landed() {
            let silent = self.silent(fired, plan, cells);
            silent.filter(|&reducer| reducer != plan.me).for_each(|rank| missing.insert(rank));
        }
    }
}
