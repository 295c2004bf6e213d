//! Counts the cases that runs met, and the conditions that they met together.

use crate::collective::core::{Counted, Op, Stats, Token};
use crate::fabric::sim::Met;
use crate::group::Group;
use crate::rule::{Absent, Grace, Scale, When};

use super::scenario::Scenario;

macro_rules! coverage {
    ($($(#[$doc:meta])* $case:ident),* $(,)?) => {
        /// How often each hard case occurred. A run in which one of them never did has shown little.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[$doc])* pub $case: u64,)*
        }

        impl Coverage {
            /// Name and count of each case.
            #[must_use]
            pub fn counters(&self) -> [(&'static str, u64); [$(stringify!($case)),*].len()] {
                [$((stringify!($case), self.$case)),*]
            }

            /// Adds what another run met.
            pub fn add(&mut self, other: &Coverage) {
                $(self.$case += other.$case;)*
            }
        }
    };
}

coverage! {
    /// Contributions made.
    contributions,
    /// Rounds after which a quorum that the collective chooses is less than all.
    lowered,
    /// Entered contributions that say how long they took.
    measured,
    /// Rounds seen.
    rounds,
    /// Contributions that found their round open at first, and closed when they added their bit.
    late_while_closing,
    /// Rounds with a carried and a fresh contribution of one rank.
    carried_with_fresh,
    /// Contributions that were carried over two rounds or more.
    jumps,
    /// Arrivals that waited for a free slot.
    full_ring,
    /// Last arrivals that were late.
    finish_races,
    /// Graces that ended by time.
    graces_expired,
    /// Rounds that a deadline closed.
    deadlines_expired,
    /// Late contributions that were dropped.
    dropped,
    /// Late contributions that entered a full round with the rank's next arrival.
    deferred,
    /// Full rounds with a carried contribution.
    full_with_carried,
    /// Rounds closed for an initiator that had returned to its computation.
    closed_for_others,
    /// Segments moved.
    segments,
    /// Segments that a member had not filled yet.
    awaited,
    /// Groups of registers that moved, as each rank saw them.
    groups,
    /// Rounds in which no member of a rank's group contributed.
    idle,
    /// Fallback reads of a round, because its reducer took too long.
    pulled,
    /// Arrivals that found reducers with other shares while data for earlier reducers was in flight.
    moved_shares,
    /// Operations of programs run.
    operations,
    /// Activations sent.
    activations,
    /// Messages by which ranks without shared memory run their tables.
    messages_relayed,
    /// Ranks that died.
    deaths,
    /// Ranks that died while others handled an earlier death.
    deaths_together,
    /// Ranks that died between their last arrival and their leaving.
    deaths_while_leaving,
    /// Ranks that died after they had taken over an operation of a dead one.
    successors_died,
    /// Operations of a dead rank that another rank repeated.
    inherited,
    /// Calls of `try_wait` that found nothing.
    tests,
    /// Deadlines of a wait that passed.
    timeouts,
    /// Arrivals that a helper thread carried through while its caller was away.
    helped,
    /// Helper threads that stopped their work because the caller came back.
    interrupted,
    /// Pieces of data that landed more than once.
    repeats,
    /// Operations that found their receiver not ready.
    not_ready,
    /// Operations that waited for a link.
    stalled,
    /// Operations that completed with an error.
    broken,
    /// Ranks that froze for a time.
    freezes,
}

impl Coverage {
    pub(super) fn weather(&mut self, met: Met) {
        let Met { repeats, not_ready, stalled, broken } = met;
        (self.repeats, self.not_ready, self.stalled, self.broken) = (repeats, not_ready, stalled, broken);
    }

    pub(super) fn count(&mut self, stats: Stats, calls: super::actor::Met) {
        self.tests += calls.tests;
        self.timeouts += calls.timeouts;
        self.helped += calls.helped;
        self.interrupted += calls.interrupted;
        self.late_while_closing += stats.late_while_closing;
        self.jumps += stats.jumps;
        self.full_ring += stats.full_ring;
        self.finish_races += stats.finish_retries;
        self.graces_expired += stats.graces_expired;
        self.deadlines_expired += stats.deadlines_expired;
        self.dropped += stats.dropped;
        self.deferred += stats.deferred;
        self.closed_for_others += stats.closed_for_others;
        self.segments += stats.segments;
        self.awaited += stats.awaited;
        self.groups += stats.groups;
        self.idle += stats.idle;
        self.pulled += stats.pulled;
        self.moved_shares += stats.moved_shares;
        self.operations += stats.operations;
        self.activations += stats.activations;
        self.messages_relayed += stats.relayed;
        self.inherited += stats.inherited;
    }
}

/// Operations that only some schedules make, by name.
const OPERATIONS: [&str; 12] = [
    "pushes",
    "asks for a ticket",
    "looks at a word",
    "closes a word",
    "places what is late",
    "clears words elsewhere",
    "claims a segment",
    "reads",
    "counts segments",
    "deposits",
    "swaps",
    "pulls",
];

/// Returns the bit of an operation among [`OPERATIONS`].
#[inline]
pub(super) fn operation(op: &Op) -> u32 {
    let index = match op {
        Op::Combine { round: None, .. } => Some(11),
        Op::Clear { token, .. } | Op::Put { token, .. } | Op::Atomic { token, .. } | Op::Read { token, .. } => {
            match token {
                Token::Counted { what: Counted::Push, .. } => Some(0),
                Token::Counted { what: Counted::Read, .. } => Some(7),
                Token::Ticket => Some(1),
                Token::Probe | Token::Look => Some(2),
                Token::Close => Some(3),
                Token::Place => Some(4),
                Token::Clear => Some(5),
                Token::Claim => Some(6),
                Token::Done => Some(8),
                Token::Deposit => Some(9),
                Token::Swap => Some(10),
                Token::Counted { .. } | Token::Arrive => None,
            }
        }
        _ => None,
    };
    index.map_or(0, |index| 1 << index)
}

/// The conditions of one run: its world, what its ranks did, and the cases that occurred.
#[derive(Clone, Debug)]
pub(super) struct Conditions(Vec<(&'static str, bool)>);

impl Conditions {
    pub(super) fn of(scenario: &Scenario, coverage: &Coverage, performed: u32) -> Self {
        let Scenario { hosts, fire, reduction, ranks, weather, .. } = scenario;
        let several = hosts.iter().any(|&host| host != 0);
        let together = hosts.iter().enumerate().any(|(rank, host)| hosts[..rank].contains(host));
        let paths = ["segmented", "replicated", "gathered", "scattered", "eager", "tree", "relayed"];
        let path = scenario.plan().path_name();
        let mut all: Vec<(&'static str, bool)> = paths.into_iter().map(|other| (other, path == other)).collect();
        all.extend([
            ("solo", fire.when() == When::Solo),
            ("quorum", matches!(fire.when(), When::Quorum(_))),
            ("majority", matches!(fire.when(), When::Majority(_))),
            ("auto", matches!(fire.when(), When::Auto(_))),
            ("all", fire.is_synchronous()),
            ("deadline", fire.limit().is_some()),
            ("full rounds", fire.has_full_rounds()),
            ("no grace", scenario.grace == Grace::NONE),
            ("hosts", several),
            ("hosts with several ranks", several && together),
            ("several words", hosts.len() > 31),
            ("drop", reduction.absent == Absent::Drop),
            ("registers", scenario.memory.is_some()),
            ("groups of registers", scenario.memory.is_some_and(|group| group != Group::World)),
            ("goes on", scenario.base > 0),
            ("own models", scenario.own_models),
            ("hold", reduction.absent == Absent::Hold),
            ("decay", matches!(reduction.absent, Absent::Decay(_))),
            ("weights", reduction.scale == Scale::Weights),
            ("16-bit", reduction.dtype.size() == 2),
            ("fills", ranks.iter().any(|habits| habits.fills)),
            ("leaves earlier", ranks.iter().any(|habits| habits.steps != ranks[0].steps)),
            ("clogged links", !weather.stalls.is_empty()),
        ]);
        let performed = (0..).zip(OPERATIONS).map(|(bit, name)| (name, performed >> bit & 1 == 1));
        all.extend(performed);
        all.extend(coverage.counters().into_iter().skip(2).map(|(name, count)| (name, count > 0)));
        Conditions(all)
    }
}

/// In how many runs two conditions were met together.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    names: Vec<&'static str>,
    runs: u64,
    /// Indexed by the first and the second condition; the first is not the greater index.
    met: Vec<u64>,
}

/// Two conditions, and in how many runs they were met together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// One of them.
    pub first: &'static str,
    /// The other one.
    pub second: &'static str,
    /// Runs that met both.
    pub met: u64,
    /// The expected number of such runs if the two were independent.
    pub expected: u64,
}

impl Pairs {
    pub(super) fn add(&mut self, Conditions(run): &Conditions) {
        if self.names.is_empty() {
            self.names = run.iter().map(|&(name, _)| name).collect();
            self.met = vec![0; run.len() * run.len()];
        }
        self.runs += 1;
        let held = || (0..run.len()).filter(|&index| run[index].1);
        for first in held() {
            for second in held().skip_while(|&second| second < first) {
                self.met[first * run.len() + second] += 1;
            }
        }
    }

    pub(super) fn merge(&mut self, other: Pairs) {
        if self.names.is_empty() {
            *self = other;
        } else if !other.names.is_empty() {
            self.runs += other.runs;
            self.met.iter_mut().zip(other.met).for_each(|(met, more)| *met += more);
        }
    }

    /// Conditions that fewer than one of ten thousand runs met.
    #[must_use]
    pub fn rare(&self) -> Vec<(&'static str, u64)> {
        let alone =
            self.names.iter().enumerate().map(|(index, &name)| (name, self.met[index * (self.names.len() + 1)]));
        alone.filter(|&(_, met)| met < self.runs.div_ceil(10_000)).collect()
    }

    /// Pairs that occurred, ordered by how far they fall short of the expected number. Pairs that
    /// never occurred come last, because most of them exclude each other.
    #[must_use]
    pub fn hardly_met(&self) -> Vec<Pair> {
        let names = self.names.len();
        let alone = |index: usize| self.met[index * (names + 1)];
        let mut pairs: Vec<Pair> = (0..names)
            .flat_map(|first| (first + 1..names).map(move |second| (first, second)))
            .map(|(first, second)| Pair {
                first: self.names[first],
                second: self.names[second],
                met: self.met[first * names + second],
                expected: (u128::from(alone(first)) * u128::from(alone(second)) / u128::from(self.runs.max(1))) as u64,
            })
            .filter(|pair| pair.expected > 10 * pair.met)
            .collect();
        pairs
            .sort_by_key(|pair| (pair.met == 0, pair.met * 1_000_000 / pair.expected.max(1), u64::MAX - pair.expected));
        pairs
    }
}
