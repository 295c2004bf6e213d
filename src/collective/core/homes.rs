//! Synchronous rounds of ranks that do not share memory, reduced at homes: arrivals go there, and the
//! homes reduce and tell everybody.
//!
//! A *gathered* round has one home. That takes 2 (P - 1) messages, where everybody telling everybody takes
//! P (P - 1): right for small data. A *scattered* round has a home on every host, each for a share of the
//! data. Nothing is sent or reduced twice: right for larger data.
//!
//! A home has arrived like all others, and may be computing now: see [`super::pulling`].

use super::entry::{Entry, Part};
use super::machine::{Cells, Machine};
use super::op::{Counted, Interest, Op};
use super::plan::{Path, Plan, RECEIVING_ROWS};
use crate::fabric::Change;
use crate::fault::Fault;
use crate::rank_set::RankSet;

/// Who reduces the round that this rank arrived for last.
#[derive(Clone, Debug, Default)]
pub(super) struct Homes {
    /// The lowest active rank of each host that has one, by host.
    leads: Vec<u32>,
    /// Where this rank's host is among them.
    own: usize,
    /// Where the one home is; none where all of them are homes.
    only: Option<usize>,
    /// The first round with so many of them, and so with the same shares.
    pub(super) since: u64,
    /// Where shares are received for the round, and where they were for the round before.
    pub(super) rows: [u64; 2],
    /// The newest round that this rank, a home, has reduced.
    pub(super) handed: u64,
}

impl Homes {
    pub(super) fn new(plan: &Plan) -> Self {
        // Where they are of no use they take no memory: explorers clone machines by the million.
        let hosts = if plan.path.has_homes() { plan.topology.hosts() as usize } else { 0 };
        Homes { leads: Vec::with_capacity(hosts), own: 0, only: None, since: 1, rows: [0, 1], handed: 0 }
    }

    fn settle(&mut self, plan: &Plan, active: &RankSet, round: u64) {
        let before = self.leads.len();
        self.leads.clear();
        for rank in active.iter() {
            if let Err(place) = self.place_of(plan, plan.host_of(rank)) {
                self.leads.insert(place, rank);
            }
        }
        self.own = self.place_of(plan, plan.host()).unwrap_or(0);
        let lowest = || self.leads.iter().enumerate().min_by_key(|&(_, &lead)| lead).map(|(place, _)| place);
        self.only = if plan.path == Path::Gathered { lowest() } else { None };
        if self.leads.len() != before {
            self.since = round;
        }
    }

    /// Chooses where the shares for a round are received, alike on every rank.
    ///
    /// A sender's write may land once more until it completes. Who arrives for round r has seen every other
    /// rank arrive for r - 1, and a rank does that when its writes for r - 3 and earlier have completed. Its
    /// writes for r - 2 may still land: in its own place only, which nobody else writes to while shares
    /// stay as they are. When they have changed, that place may be another rank's, so the row is the one
    /// that neither r - 1 nor r - 2 used. Else two rows in turn will do, and stay in a cache.
    fn choose_row(&mut self, round: u64) {
        let [last, before] = self.rows;
        let rested = (0..RECEIVING_ROWS).find(|row| !self.rows.contains(row)).unwrap_or(before);
        self.rows = [if round >= self.since + 2 { before } else { rested }, last];
    }

    /// Where a host is among those that have somebody active, or would be.
    fn place_of(&self, plan: &Plan, host: u32) -> Result<usize, usize> {
        self.leads.binary_search_by_key(&host, |&lead| plan.host_of(lead))
    }

    /// The homes, each with its place among the hosts that have somebody active.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let places = self.only.map_or(0..self.leads.len(), |only| only..only + 1);
        places.map(|place| (place, self.leads[place]))
    }

    pub(super) fn contain(&self, rank: u32) -> bool {
        self.iter().any(|(_, home)| home == rank)
    }

    /// Bytes of a round that the home at a place reduces: offset and length.
    fn share(&self, plan: &Plan, place: usize) -> (usize, usize) {
        if self.only.is_some() { (0, plan.bytes) } else { plan.home_span(place, self.leads.len()) }
    }
}

/// What a home says when its share of a round's outcome is in place, and whether there is no more to know:
/// everybody who is active takes part, with weight 1.
fn word(round: u64, plain: bool) -> u64 {
    round << 1 | u64::from(plain)
}

impl Machine {
    /// Finds out who the homes are of the round that is being entered: the same for everybody, since all
    /// know who is active.
    pub(super) fn settle_homes(&mut self, round: u64) {
        if self.homes.leads.is_empty() || !self.leavers.is_empty() {
            let before = self.homes.since;
            self.homes.settle(&self.plan, &self.active, round);
            let moved = self.plan.path == Path::Scattered && self.homes.since > before;
            self.stats.moved_shares += u64::from(moved && self.in_flight.has_tags());
        }
        if !self.plan.fault(Fault::ReceiveAmongOldShares) {
            self.homes.choose_row(round);
        } else {
            self.homes.rows = [round % 2, (round + 1) % 2];
        }
    }

    /// Whether this rank may arrive for `round`: nothing that it handed out as a home may still be written
    /// where another home would write then. Shares stay where they are until a host has nobody left.
    pub(super) fn has_settled(&self, round: u64) -> bool {
        let steady = self.leavers.is_empty() && round > self.homes.since;
        steady || self.may_hand_out()
    }

    /// Whether what this rank has handed out has landed for the last time: the next goes to the same place. Those
    /// who arrive for the next round say that it has, unless they made it for themselves.
    fn may_hand_out(&self) -> bool {
        !self.in_flight.has(Counted::Outcome) || self.plan.fault(Fault::HandOutEarly)
    }

    pub(super) fn is_home(&self) -> bool {
        let homes = &self.homes;
        homes.leads.get(homes.only.unwrap_or(homes.own)) == Some(&self.plan.me)
    }

    /// Whether another rank of this host is a home.
    pub(super) fn has_home_beside(&self) -> bool {
        self.homes.iter().any(|(place, home)| place == self.homes.own && home != self.plan.me)
    }

    /// Bytes of a contribution that a reduction covers: offset and length. Of a scattered round that is this
    /// host's share.
    pub(crate) fn span(&self, segment: u64) -> (usize, usize) {
        match self.plan.path {
            Path::Scattered => self.homes.share(&self.plan, self.homes.own),
            _ => self.plan.segment_span(segment),
        }
    }

    /// Where a contribution lies, from byte `from` on, if its rank wrote it on this host.
    pub(crate) fn in_place(&self, entry: Entry, from: usize) -> Option<usize> {
        let near = self.plan.host_of(entry.rank) == self.plan.host();
        near.then(|| self.plan.contribution(entry.rank, entry.buffer) + from)
    }

    /// Where on this rank's host the part of a contribution to a round lies that begins at byte `from`; nothing if it
    /// has to be read first. Of a scattered round that is the one that this rank entered last.
    pub(crate) fn at_hand(&self, entry: Entry, round: u64, from: usize) -> Option<usize> {
        if let Some(here) = self.in_place(entry, from) {
            return Some(here);
        }
        if self.plan.path.pushes() {
            return Some(self.plan.pushed(entry.rank, entry.buffer, round) + from);
        }
        let host = self.plan.host_of(entry.rank);
        let sender = self.homes.place_of(&self.plan, host).ok().filter(|_| self.plan.path == Path::Scattered);
        sender.map(|place| self.plan.received(entry.rank, self.homes.rows[0], (place, self.homes.leads.len())))
    }

    /// Hands a contribution to the homes, each its part, and its tag after it.
    pub(super) fn show_to_homes(&mut self, round: u64, (cell, value): (usize, u64), (buffer, has_data): (u32, bool)) {
        let homes = std::mem::take(&mut self.homes);
        for (place, home) in homes.iter().filter(|&(place, _)| place != homes.own) {
            let ((from, len), me) = (homes.share(&self.plan, place), self.plan.me);
            let at = self.plan.contribution(me, buffer) + from;
            let to = match self.plan.path {
                Path::Scattered => self.plan.received(me, homes.rows[0], (homes.own, homes.leads.len())),
                _ => self.plan.pushed(me, buffer, round) + from,
            };
            let (host, data) = (self.plan.host_of(home), (has_data && len > 0).then_some((at, to, len)));
            let token = self.count(Counted::Tag { buffer }, host);
            self.push(Op::Signal { host, data, cell, change: Change::Set(value), token });
        }
        self.homes = homes;
    }

    /// The home of a gathered round: the round has fired when every tag is here. The others: when the home
    /// says so.
    pub(super) fn learn_gathered(&mut self, cells: &impl Cells) {
        let round = self.fired + 1;
        if !self.is_open() {
            return;
        }
        if self.is_home() {
            if self.may_hand_out() && self.cut_by_tags(round, cells) {
                self.hand_out(round);
                self.fire(round);
            }
            return;
        }
        let Some((_, home)) = self.homes.iter().next() else { return };
        let told = cells.load(self.plan.told(home, round));
        let slot = self.plan.slot(round);
        if told == word(round, true) {
            let cut = &mut self.cuts[slot];
            (cut.round, cut.initiator) = (round, None);
            cut.entries.clear();
            let entry = |rank| Entry::new(rank, Part::Fresh, (0, 1), 0);
            self.active.iter().for_each(|rank| cut.entries.push(entry(rank)));
        } else if told != word(round, false) || !self.read_record(round, cells) {
            return;
        }
        self.fire(round);
    }

    /// Whether this rank has arrived for the next round, which has not fired as far as it knows.
    pub(super) fn is_open(&self) -> bool {
        let round = self.fired + 1;
        !self.left && self.arrival.as_ref().is_some_and(|arrival| arrival.is_tagged(round))
    }

    /// Homes whose share of a scattered round that has fired is not here.
    pub(super) fn silent_homes(&self, round: u64, cells: &impl Cells) -> impl Iterator<Item = u32> {
        let silent = move |&(place, home): &(usize, u32)| {
            self.homes.share(&self.plan, place).1 > 0 && cells.load(self.plan.told(home, round)) != word(round, true)
        };
        self.homes.iter().filter(silent).map(|(_, home)| home)
    }

    /// Whether all of a scattered round's outcome is here.
    pub(super) fn has_every_share(&self, round: u64, cells: &impl Cells) -> bool {
        let mut silent = self.silent_homes(round, cells);
        let early = self.plan.fault(Fault::TakeIncomplete);
        silent.next().is_none_or(|_| early && silent.next().is_none())
    }

    /// Does what a home of scattered rounds owes the others, when this rank is one: with any effort, as nobody
    /// else does it before long.
    pub(super) fn step_home(&mut self) {
        // Also of a round that it has made for itself meanwhile: others may not have.
        let fired = self.fired;
        let owes = self.taken < fired && self.homes.handed < fired;
        if self.plan.path == Path::Scattered && owes && self.is_home() && self.may_hand_out() {
            self.hand_out(fired);
        }
    }

    /// Reduces, and tells everybody who takes part.
    fn hand_out(&mut self, round: u64) {
        self.homes.handed = round;
        let (from, len) = self.homes.share(&self.plan, self.homes.own);
        let scattered = self.plan.path == Path::Scattered;
        if len == 0 && scattered {
            return;
        }
        let plain = |entry: Entry| entry.part == Part::Fresh && entry.weight == 1;
        // Of a scattered round everybody has all tags.
        let plain = scattered || self.cut(round).entries.iter().all(plain);
        let (at, cell) = (self.plan.outcome(round) + from, self.plan.told(self.plan.me, round));
        let data = (len > 0).then_some((at, at, len));
        let (host, value) = (self.plan.host(), word(round, plain));
        self.push(Op::Combine { round, segment: 0 });
        if !plain {
            let token = self.count(Counted::Outcome, host);
            self.push(Op::Publish { host, round, token });
        }
        self.push(Op::Store { cell, value });
        let homes = std::mem::take(&mut self.homes);
        for (_, &lead) in homes.leads.iter().enumerate().filter(|&(place, _)| place != homes.own) {
            let host = self.plan.host_of(lead);
            self.stats.activations += 1;
            if !plain {
                let token = self.count(Counted::Outcome, host);
                self.push(Op::Publish { host, round, token });
            }
            let token = self.count(Counted::Outcome, host);
            self.push(Op::Signal { host, data, cell, change: Change::Set(value), token });
        }
        self.homes = homes;
        if self.plan.topology.is_shared(host) {
            self.wake(u32::MAX, Interest::Outcome);
        }
    }
}
