//! How a round is carried out after it fires, and by which executor.

use serde::{Deserialize, Serialize};

use super::Fire;
use crate::named::named;
use crate::topology::Topology;

/// How data moves after a round fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mover {
    /// Chosen by the measurements of the hw-config.
    #[default]
    Auto,
    /// Ranks first agree on the cut, in one word; then waiting ranks move the data.
    Cut,
    /// A program of triggered operations activates, seals and reduces. The cut travels with the data.
    Tree,
}

/// The agent that carries out a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Executor {
    /// Chosen by the measurements of the hw-config.
    #[default]
    Auto,
    /// Ranks that are in `wait` or `try_wait`.
    Caller,
    /// A helper thread of each rank, while its application computes.
    Thread,
    /// Any rank that moves a counter to a threshold, also in `arrive`.
    Peer,
    /// A network card by itself, or a libfabric provider that acts like one; ranks only reduce.
    Provider,
}

named!(Mover, "mover", "auto, cut, tree", "auto" => Auto, "cut" => Cut, "tree" => Tree);
named!(
    Executor, "executor", "auto, caller, thread, peer, provider",
    "auto" => Auto, "caller" => Caller, "thread" => Thread, "peer" => Peer, "provider" => Provider
);

/// How ranks agree on the cut of a round, and on when it closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgreementBy {
    /// All active ranks take part: the round closes when the tag of every active rank is there.
    Tags,
    /// By atomics on one word, or on several words.
    Words,
    /// Ranks do not agree: each gets the cuts from outside.
    Given,
    /// By gates that a program closes.
    Gates,
    /// As `Gates`, among several hosts: an agent of each host runs its own table, and the agents relay activations and sums.
    Relays,
    /// As `Gates`, where a runner runs the program in place of the ranks: it sends contributions to all ranks, and each
    /// rank reduces.
    Runner,
}

impl AgreementBy {
    /// Returns how ranks agree under a rule if data moves in this way, no cuts are given and no provider runs programs.
    pub(crate) fn usual(fire: Fire, movement: MovementBy, topology: &Topology) -> Self {
        match movement {
            MovementBy::Program if topology.has_elsewhere() => AgreementBy::Relays,
            MovementBy::Program => AgreementBy::Gates,
            _ if fire.is_synchronous() => AgreementBy::Tags,
            _ => AgreementBy::Words,
        }
    }
}

/// How contributions become an outcome on the ranks that want it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MovementBy {
    /// Arrivals push their data to every host, and every rank reduces for itself. Synchronous rule only.
    Everyone,
    /// Arrivals push their data to every host. The rank that closed the round reduces, and sends the outcome to all
    /// hosts on which a rank wants it.
    Initiator,
    /// Arrivals push their data to the lowest active rank. It reduces and sends the outcome to all hosts. Synchronous
    /// rule only.
    Reducer,
    /// As `Reducer`, but the lowest rank of each host reduces, each a share of the data.
    Reducers,
    /// Data stays where it was written. Waiting ranks claim segments, read them and reduce them.
    Segments,
    /// The program that agrees also moves the data.
    Program,
}

named!(
    MovementBy, "path", "replicated, eager, gathered, scattered, segmented, tree",
    "replicated" => Everyone, "eager" => Initiator, "gathered" => Reducer, "scattered" => Reducers,
    "segmented" => Segments, "tree" => Program
);

impl MovementBy {
    /// Returns whether only some ranks reduce.
    pub(crate) fn has_reducers(self) -> bool {
        matches!(self, MovementBy::Reducer | MovementBy::Reducers)
    }
}

/// The most parts that meet at a level of an exchange, and the most ranks of a star. A sum lists all its sources.
pub const MOST_RADIX: u32 = 32;

/// How contributions become an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Ranks give each other all that they have, level by level: recursive doubling where two meet at a level. The order of
    /// the operands is fixed, so the bits are deterministic.
    Doubling,
    /// Reduce-scatter, then all-gather: each chunk is reduced once, from all contributions.
    Scatter,
    /// All ranks write to all ranks, and each rank reduces: the target of a write computes nothing.
    Gather,
    /// Reduce-scatter level by level, by recursive halving where two meet at a level, then all-gather on the way back. It
    /// moves the bytes of `Scatter`, and gives the bits of `Doubling`. In shared memory it is `Doubling`.
    Halving,
}

impl Schedule {
    /// All schedules.
    pub const EVERY: [Schedule; 4] = [Schedule::Doubling, Schedule::Scatter, Schedule::Gather, Schedule::Halving];

    /// Returns the name of the schedule on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Doubling => "doubling",
            Schedule::Scatter => "scatter",
            Schedule::Gather => "gather",
            Schedule::Halving => "halving",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_print_as_they_are_written() {
        for text in ["auto", "cut", "tree"] {
            assert_eq!(text.parse::<Mover>().unwrap().to_string(), text);
        }
        for text in ["auto", "caller", "thread", "peer", "provider"] {
            assert_eq!(text.parse::<Executor>().unwrap().to_string(), text);
        }
        assert_eq!(
            "twig".parse::<Mover>().unwrap_err().to_string(),
            "unknown mover \"twig\"; use one of auto, cut, tree"
        );
    }
}
