//! What the initiator does between closing a cut and everybody knowing it.

use super::arrival::Stage;
use super::entry::{Entry, Part};
use super::machine::{Cells, Machine};
use super::op::{Counted, Interest, Op, Token};
use super::plan::{BUFFERS, Path};
use super::tag::Tag;
use super::word;
use crate::fabric::{Atomic, Change};
use crate::fault::Fault;

impl Machine {
    /// Writes the cut down once the tag of every member is here. Tags travel apart from bits, so
    /// some may be missing yet.
    pub(super) fn gather(&mut self, cells: &impl Cells) {
        let round = self.fired + 1;
        let slot = self.plan.slot(round);
        let mut cut = std::mem::take(&mut self.cuts[slot]);
        let lacking = self.fill(&mut cut, round, cells);
        self.missing = lacking.unwrap_or(0);
        let complete = lacking.is_none();
        if complete {
            self.next_active.clone_from(&self.active);
            cut.leaving().for_each(|rank| self.next_active.remove(rank));
        }
        self.cuts[slot] = cut;
        if complete {
            // Before anybody can learn that this round is over, the next one's words are zero. All
            // have released the round that used them last: this rank checked when it arrived.
            let home = self.plan.home(round + 1, &self.next_active);
            let host = self.plan.host_of(home);
            self.enter(Stage::Clearing);
            if self.plan.fault(Fault::SkipRearm) || self.plan.fault(Fault::LateRearm) {
                self.cleared();
            } else {
                self.ask_host(host, Op::Clear { host, round: round + 1, token: Token::Clear });
            }
            if self.plan.fault(Fault::LateRearm) {
                let token = self.count(Counted::Push, host);
                self.push(Op::Clear { host, round: round + 1, token });
            }
        }
    }

    /// Members of the cut that this rank has closed whose tags are not here.
    pub(super) fn untagged(&self, cells: &impl Cells) -> impl Iterator<Item = u32> {
        let round = self.fired + 1;
        (0..self.plan.ranks).filter(move |&rank| {
            let known = self.words[(rank / word::RANKS_PER_WORD) as usize];
            let has = |bits: u64| bits >> (rank % word::RANKS_PER_WORD) & 1 == 1;
            (has(word::carried(known)) && self.carried_tag(rank, round, cells).is_none())
                || (has(word::arrived(known)) && self.fresh_tag(rank, round, cells).is_none())
        })
    }

    /// Goes on with the cut from the first member on whose tag was not seen; who that is now, if there is one. A tag that
    /// was seen stays as it is until the round has fired.
    fn fill(&self, cut: &mut super::Cut, round: u64, cells: &impl Cells) -> Option<u32> {
        if self.missing == 0 {
            cut.entries.clear();
        }
        (cut.round, cut.initiator) = (round, Some(self.plan.me));
        (self.missing..self.plan.ranks).find(|&rank| {
            let known = self.words[(rank / word::RANKS_PER_WORD) as usize];
            let has = |bits: u64| bits >> (rank % word::RANKS_PER_WORD) & 1 == 1;
            let complete = cut.entries.len();
            if has(word::carried(known)) {
                let Some((buffer, tag)) = self.carried_tag(rank, round, cells) else { return true };
                let part = if self.plan.fault(Fault::CarriedAsFresh) { Part::Fresh } else { Part::Carried };
                let age = round - tag.target + u64::from(self.plan.fault(Fault::WrongAge));
                cut.entries.push(Entry::new(rank, part, (age, tag.weight), buffer));
            }
            if has(word::arrived(known)) {
                let Some((buffer, tag)) = self.fresh_tag(rank, round, cells) else {
                    cut.entries.truncate(complete);
                    return true;
                };
                let part = if tag.leaving { Part::Leaving } else { Part::Fresh };
                cut.entries.push(Entry::new(rank, part, (0, tag.weight), buffer));
            }
            false
        })
    }

    fn tags<'a>(&'a self, rank: u32, cells: &'a impl Cells) -> impl Iterator<Item = (u32, Tag)> + 'a {
        (0..BUFFERS).map(move |buffer| (buffer, Tag::from_cell(cells.load(self.plan.tag(rank, buffer)))))
    }

    fn fresh_tag(&self, rank: u32, round: u64, cells: &impl Cells) -> Option<(u32, Tag)> {
        self.tags(rank, cells).find(|(_, tag)| tag.target == round)
    }

    /// A rank's contributions enter in order, so of those made for earlier rounds the newest is
    /// the one that is carried.
    fn carried_tag(&self, rank: u32, round: u64, cells: &impl Cells) -> Option<(u32, Tag)> {
        let earlier = |tag: &Tag| tag.target > 0 && tag.target < round && !tag.leaving;
        self.tags(rank, cells).filter(|(_, tag)| earlier(tag)).max_by_key(|(_, tag)| tag.target)
    }

    /// The next round is ready. Small data is reduced now, and is in place before the record that
    /// wakes whoever waits for it.
    pub(super) fn cleared(&mut self) {
        if self.plan.path != Path::Eager {
            return self.publish();
        }
        let round = self.fired + 1;
        if !self.plan.fault(Fault::LandBeforeData) {
            self.push(Op::Combine { round, segment: 0 });
        }
        self.atomic(self.plan.host(), self.plan.done(round), Atomic::FetchAdd(1), Token::Land);
        self.land_segment_elsewhere(round, 0);
        if self.plan.fault(Fault::LandBeforeData) {
            self.push(Op::Combine { round, segment: 0 });
        }
        self.enter(Stage::Landing);
    }

    /// Hands out the record.
    pub(super) fn publish(&mut self) {
        let round = self.fired + 1;
        let own = self.plan.host();
        let token = self.count(Counted::Push, own);
        self.push(Op::Publish { host: own, round, token });
        self.for_receivers_elsewhere(|machine, host| {
            machine.stats.activations += 1;
            let token = machine.count(Counted::Push, host);
            machine.push(Op::Publish { host, round, token });
        });
        let most = if self.plan.path == Path::Segmented { self.plan.helpers } else { u32::MAX };
        if !self.plan.fault(Fault::ForgetWake) {
            self.wake(most, Interest::Outcome);
        }
        self.enter(Stage::Published);
    }

    /// Tells every other host on which somebody is active. Those who left look at nothing any more, and
    /// may be gone.
    pub(super) fn for_receivers_elsewhere(&mut self, mut tell: impl FnMut(&mut Self, u32)) {
        for host in self.plan.topology.hosts_but(self.plan.host()) {
            // Usually the first one is.
            if self.plan.topology.ranks_of(host).iter().any(|&rank| self.active.contains(rank)) {
                tell(self, host);
            }
        }
    }

    /// Writes a segment of the own host's outcome to every other host with a receiver.
    pub(super) fn land_segment_elsewhere(&mut self, round: u64, segment: u64) {
        let (from, len) = self.plan.segment_span(segment);
        let at = self.plan.outcome(round) + from;
        let cell = self.plan.done(round);
        self.for_receivers_elsewhere(|machine, host| {
            let (change, token) = (Change::Add(1), machine.count(Counted::Push, host));
            machine.push(Op::Signal { host, data: Some((at, at, len)), cell, change, token });
        });
    }
}
