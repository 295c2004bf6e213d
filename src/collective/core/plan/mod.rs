//! The plan that all ranks of a collective agree on before its first round.

mod areas;
#[cfg(any(test, earlybird_tools))]
mod cell_names;
mod control;
mod data;
#[cfg(any(test, feature = "cli"))]
mod map;
mod rows;
mod spans;
#[cfg(all(test, not(loom)))]
mod tests;

use std::ops::Deref;
use std::sync::Arc;

use super::auto_quorum::AutoQuorum;
use super::durations::Particulars;
use super::input::{Cells, Time};
use super::tag::Tag;
use crate::fabric::cell_behind;
use crate::fault::Fault;
use crate::group::{Butterfly, Group, Partition};
use crate::rank_set::RankSet;
use crate::rule::{Absent, AgreementBy, Condition, Fire, Grace, MovementBy, Schedule, When, drawn};
use crate::topology::Topology;
use crate::trigger::{Layout, Request, Start};
pub(crate) use areas::OUTCOME;
use control::{ControlMap, Counts};
use data::DataMap;
#[cfg(any(test, feature = "cli"))]
pub(crate) use map::MapRegion;
pub(crate) use rows::slot_of;

/// One round in this number has a home that does not depend on the round before.
const ANY_HOME: u64 = 8;

/// The number of buffers of a rank: one in use by a round, one carried, one being written.
pub(crate) const BUFFERS: u32 = 3;

/// The buffer that stands for a rank before its first contribution enters, under [`Absent::Hold`]. It is the third
/// buffer that the rank writes into.
pub(crate) const FIRST_HELD: u32 = BUFFERS - 1;

/// Rows for the shares that reducers receive: two for rounds in turn, and one unused row for when shares change.
pub(crate) const RECEIVING_ROWS: u64 = 3;

/// The number of rounds whose relayed data lies in separate areas. An agent closes its leaf for a round when its
/// writes for the round before the last have completed, so in the next round no late repetition of them can hit what
/// others write.
pub(crate) const RELAYED_ROUNDS: u64 = 3;

/// The number of rounds whose activations are counted separately while they are in flight.
pub(crate) const SIGNALLED_ROUNDS: u64 = 8;

/// The number of ranks in one word of a cut: two bits for each, and one closed bit.
pub(crate) const RANKS_PER_WORD: u32 = 31;

/// The terms that all ranks of a collective agree on, and the number of this rank.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ranks: u32,
    pub(crate) me: u32,
    pub(crate) topology: Topology,
    pub(crate) fire: Fire,
    pub(crate) grace: Grace,
    pub(crate) absent: Absent,
    /// Whether contributions have weights.
    pub(crate) weighted: bool,
    /// The number of rounds that may be unreleased anywhere.
    pub(crate) depth: u64,
    pub(crate) agreement: AgreementBy,
    pub(crate) movement: MovementBy,
    /// The round from whose checkpoint this collective resumes; 0 if it does not resume. The machine counts rounds from
    /// 1, and callers also count the rounds before.
    pub(crate) base: u64,
    /// The group whose members average their registers; `None` if ranks have no registers.
    pub(crate) memory: Option<Group>,
    /// Bytes of a contribution.
    pub(crate) bytes: usize,
    /// Bytes of a partial sum of contributions.
    pub(crate) wide_bytes: usize,
    /// Bytes of a segment, except for the last one; a multiple of the element size.
    pub(crate) segment: usize,
    /// The number of segments in a piece.
    pub(crate) run: u64,
    /// The number of ranks worth waking to move a round.
    pub(crate) helpers: u32,
    /// The first interval during which a rank waits for the reducers of a round.
    pub(crate) pull_after: Time,
    /// The schedule by which a program reduces, where there is one.
    pub(crate) schedule: Schedule,
    /// How many parts meet at a level, where ranks relay; 1 is a star.
    pub(crate) radix: u32,
    /// The tables, where agreement is by gates.
    pub(crate) program: Option<Arc<Layout>>,
    pub(crate) fault: Option<Fault>,
}

/// The agreed form of a collective, as one rank sees it: the terms, and the numbers and maps that follow from them.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    terms: Terms,
    counts: Counts,
    control: ControlMap,
    data: DataMap,
}

impl Deref for Plan {
    type Target = Terms;

    #[inline]
    fn deref(&self) -> &Terms {
        &self.terms
    }
}

/// Returns the tables of a collective whose ranks share memory.
pub(crate) fn program(
    ranks: u32,
    (fire, grace): (Fire, Grace),
    schedule: Schedule,
    (bytes, chunk): (usize, usize),
    depth: u64,
) -> Arc<Layout> {
    let start = Start::of(fire, grace, ranks);
    let (bytes, chunk) = (bytes as u64, chunk as u64);
    Arc::new(Layout::new(&Request { ranks, start, schedule, radix: 2, bytes, chunk, slots: depth }))
}

#[cfg(test)]
impl Terms {
    /// Returns the terms of a small world on these hosts, with default choices. A test changes the terms that it
    /// examines.
    pub(crate) fn sample(me: u32, hosts: Vec<u32>, fire: Fire, movement: MovementBy) -> Self {
        let (word, ranks, topology) = (size_of::<u64>(), hosts.len() as u32, Topology::new(hosts));
        Terms {
            ranks,
            me,
            agreement: AgreementBy::usual(fire, movement, &topology),
            movement,
            topology,
            fire,
            grace: Grace::NONE,
            absent: Absent::Carry,
            weighted: false,
            depth: 1,
            base: 0,
            memory: None,
            bytes: word,
            wide_bytes: word,
            segment: word,
            run: 1,
            helpers: 1,
            pull_after: 1,
            schedule: Schedule::Doubling,
            radix: 2,
            program: None,
            fault: None,
        }
    }
}

impl Plan {
    pub(crate) fn new(terms: Terms) -> Self {
        let (counts, control, data) = (Counts::default(), ControlMap::default(), DataMap::default());
        let mut plan = Plan { terms, counts, control, data };
        plan.counts = Counts::of(&plan);
        plan.data = DataMap::of(&plan);
        plan.control = ControlMap::of(&plan);
        plan
    }

    /// Returns the same plan, as another rank sees it.
    pub(crate) fn seen_by(&self, me: u32) -> Self {
        Plan { terms: Terms { me, ..self.terms.clone() }, data: self.data.clone(), ..*self }
    }

    /// Returns the name that people know for its agreement and its movement.
    pub(crate) fn path_name(&self) -> &'static str {
        match (self.agreement, self.movement) {
            (AgreementBy::Relays, _) => "relayed",
            (AgreementBy::Runner, _) => "offloaded",
            (_, movement) => movement.word(),
        }
    }

    /// Returns whether rounds are closed by tags.
    #[inline]
    pub(crate) fn by_tags(&self) -> bool {
        self.agreement == AgreementBy::Tags
    }

    /// Returns whether arrivals push all of their data into slot tables.
    #[inline]
    pub(super) fn pushes(&self) -> bool {
        matches!(self.movement, MovementBy::Everyone | MovementBy::Initiator | MovementBy::Reducer)
    }

    /// Returns the bytes from a contribution to its tag, if the tag lies right after the data and both are in one cache
    /// line: a network writes them at once. On one host, a rank that waits for a tag would take the line away from the
    /// rank that writes the data.
    #[inline]
    pub(super) fn packed_tag(&self) -> Option<usize> {
        if self.topology.has_elsewhere() && self.pushes() { cell_behind(0, self.bytes) } else { None }
    }

    /// Returns whether ranks have registers.
    #[inline]
    pub(crate) fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Returns how the ranks are divided, if they are. A meaningless group size was refused before.
    pub(crate) fn butterfly(&self) -> Option<Butterfly> {
        self.memory.and_then(|group| group.schedule().ok().flatten())
    }

    /// Returns the number of a round as callers, rules and schedules of groups know it.
    #[inline]
    pub(crate) fn number(&self, round: u64) -> u64 {
        self.base + round
    }

    /// Returns the same number for decisions about a round, unless a fault makes this rank forget earlier rounds.
    #[inline]
    fn deciding_number(&self, round: u64) -> u64 {
        if self.fault(Fault::ForgetBase) { round } else { self.number(round) }
    }

    /// Returns whether a round waits for all active ranks although other rounds do not.
    #[inline]
    pub(crate) fn is_full(&self, round: u64) -> bool {
        self.fire.is_full(self.deciding_number(round))
    }

    /// Returns the condition of a round, given its active ranks.
    pub(super) fn condition(&self, round: u64, active: &RankSet) -> Condition {
        self.fire.condition(self.deciding_number(round), active, self.ranks)
    }

    /// Returns what chooses the quorum before the first round, if the collective chooses it itself.
    pub(crate) fn auto_quorum(&self) -> Option<AutoQuorum> {
        let When::Auto(percent) = self.fire.when() else { return None };
        Some(AutoQuorum::new(self.ranks, percent, self.base))
    }

    /// Returns the rank that a seed draws for a round. It may have left.
    pub(super) fn drawn(&self, seed: u64, round: u64) -> u32 {
        drawn(seed, self.deciding_number(round), self.ranks)
    }

    /// Returns the groups of a round among `active` active ranks, if ranks are divided.
    pub(super) fn partition(&self, round: u64, active: u32) -> Option<Partition> {
        self.butterfly().map(|butterfly| butterfly.partition(active, self.deciding_number(round)))
    }

    /// Returns whether tags lie right after the data that they announce.
    #[inline]
    pub(super) fn packs_tags(&self) -> bool {
        self.packed_tag().is_some()
    }

    /// Returns whether all ranks know, before a round begins, which ranks reduce it.
    #[inline]
    pub(super) fn elects_reducers(&self) -> bool {
        self.movement.has_reducers()
    }

    /// Returns whether ranks read contributions of other hosts into their own memory.
    pub(crate) fn reads_from_elsewhere(&self) -> bool {
        self.topology.has_elsewhere() && (self.movement == MovementBy::Segments || self.elects_reducers())
    }

    #[inline]
    pub(crate) fn host(&self) -> u32 {
        self.topology.host_of(self.me)
    }

    /// Where ranks relay: returns the rank that relays for this host, its agent.
    #[inline]
    pub(crate) fn agent(&self) -> u32 {
        self.topology.leader(self.host())
    }

    /// Returns the most entries that a host seals in a round.
    pub(super) fn most_sealed(&self) -> usize {
        if self.agreement == AgreementBy::Relays { 2 * self.topology.widest() as usize } else { 0 }
    }

    #[inline]
    pub(crate) fn host_of(&self, rank: u32) -> u32 {
        self.topology.host_of(rank)
    }

    /// Returns every other host that has one of these ranks.
    pub(super) fn hosts_elsewhere(&self, ranks: &RankSet) -> impl Iterator<Item = u32> {
        // Usually the first rank of a host is in the set.
        let has_one = |&host: &u32| self.topology.ranks_of(host).iter().any(|&rank| ranks.contains(rank));
        self.topology.hosts_but(self.host()).filter(has_one)
    }

    /// Returns the rank whose memory holds the words and claims of a round, given its active ranks and the rank that
    /// closed the round before, if one did. All ranks compute the same rank without asking, and its processor takes no
    /// part. The rank that closed a round clears the words of the next one, and is likely to be the first again. Now
    /// and then the home is any rank: the others arrive later than the home, which needs no network, and a home that
    /// makes rounds without a pause would keep them out.
    pub(crate) fn home(&self, round: u64, active: &RankSet, closed_before: Option<u32>) -> u32 {
        // Multiples of the golden ratio of 2^64 fill the range evenly, and so do the ranks that their upper halves
        // choose.
        let upper = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let any = |number| (upper(number) * u64::from(self.ranks)) >> 32;
        let start = match closed_before {
            Some(initiator) if !round.is_multiple_of(ANY_HOME) => initiator,
            Some(_) => any(round / ANY_HOME) as u32,
            None => any(round) as u32,
        };
        active.next(start).or_else(|| active.next(0)).unwrap_or(self.me)
    }

    /// Returns the number of ranks worth waking when a round has fired.
    #[inline]
    pub(super) fn callees(&self) -> u32 {
        if self.movement == MovementBy::Segments { self.helpers } else { u32::MAX }
    }

    /// Returns whether all segments of a round have landed on this host, or its record where that is written after the
    /// outcome.
    pub(super) fn is_done(&self, round: u64, cells: &impl Cells) -> bool {
        match self.movement {
            MovementBy::Initiator => cells.load(self.record(round)) == round,
            _ => cells.load(self.done(round)) >= self.segments_up_to(round),
        }
    }

    /// Returns the number of segments of all rounds that used the slot of a round, up to this one.
    pub(super) fn segments_up_to(&self, round: u64) -> u64 {
        self.uses(round) * self.segments()
    }

    /// Returns what the contribution in a buffer says about itself, while the buffer may not be written.
    pub(crate) fn particulars(&self, rank: u32, buffer: u32, cells: &impl Cells) -> Particulars {
        Tag::from_cell(cells.load(self.tag(rank, buffer))).particulars
    }

    /// Returns the number of operations that a rank queues at once in an ordinary round. For more, the queue grows
    /// once.
    pub(super) fn usual_ops(&self) -> usize {
        let (hosts, ranks) = (self.topology.hosts() as usize, self.ranks as usize);
        20 + match self.movement {
            MovementBy::Everyone | MovementBy::Initiator => hosts,
            // A reducer sends the cut and the outcome to every other host, and another rank may read all contributions.
            MovementBy::Reducer | MovementBy::Reducers => 2 * hosts + ranks,
            MovementBy::Segments if hosts > 1 => 2 * hosts + 2 * ranks,
            MovementBy::Segments => 0,
            // A worker may contact all ranks at once, and a host announces a free slot to all others.
            MovementBy::Program => 2 * ranks,
        }
    }

    #[inline]
    pub(crate) fn fault(&self, fault: Fault) -> bool {
        fault.is(self.fault)
    }
}
