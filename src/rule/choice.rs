//! How a round is carried out once it fires, and by which executor.

use serde::{Deserialize, Serialize};

use crate::named::named;

/// How data moves once a round fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mover {
    /// By the hw-config's measurements.
    #[default]
    Auto,
    /// Ranks first agree on the cut, in a word; then waiting ranks move the data.
    Cut,
    /// A program of triggered operations activates, seals and reduces; the cut travels with the data.
    Tree,
}

/// The agent that carries a round out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Executor {
    /// By the hw-config's measurements.
    #[default]
    Auto,
    /// Ranks that are in `wait` or `test`.
    Caller,
    /// A helper thread of each rank, while its application computes.
    Thread,
    /// Any rank that moves a counter to a threshold, in `arrive` too.
    Peer,
    /// A network card by itself, or a libfabric provider that acts as one; ranks only reduce.
    Provider,
}

named!(Mover, "mover", "auto, cut, tree", "auto" => Auto, "cut" => Cut, "tree" => Tree);
named!(
    Executor, "executor", "auto, caller, thread, peer, provider",
    "auto" => Auto, "caller" => Caller, "thread" => Thread, "peer" => Peer, "provider" => Provider
);

/// How the data of a round moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Path {
    /// Arrivals push their data to every host; each rank reduces for itself. Synchronous rule only.
    Replicated,
    /// Arrivals push their data to the round's reducer, which pushes the outcome to all hosts.
    /// Synchronous rule only.
    Gathered,
    /// The same with a reducer on every host, each for a share of the data.
    Scattered,
    /// Arrivals push their data to every host; the initiator reduces and sends the outcome.
    Eager,
    /// Data stays where it was written; waiting ranks claim segments, read and reduce them.
    Segmented,
    /// Data stays where it was written; a program activates, seals and reduces.
    #[serde(rename = "tree")]
    Program,
    /// The same where ranks share no memory: each runs its own table, and they relay activations and sums.
    Relayed,
    /// A provider runs the program: it sends contributions to all ranks, and each rank reduces.
    Offloaded,
}

impl Path {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Path::Replicated => "replicated",
            Path::Gathered => "gathered",
            Path::Scattered => "scattered",
            Path::Eager => "eager",
            Path::Segmented => "segmented",
            Path::Program => "tree",
            Path::Relayed => "relayed",
            Path::Offloaded => "offloaded",
        }
    }

    /// Whether only some ranks reduce.
    pub(crate) fn has_reducers(self) -> bool {
        matches!(self, Path::Gathered | Path::Scattered)
    }
}

/// How contributions become an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Recursive doubling: ⌈log2 P⌉ steps of two operands each, so deterministic bits.
    Doubling,
    /// Reduce-scatter, then all-gather: each chunk is reduced once, from all contributions.
    Scatter,
    /// All ranks write to all ranks, and each one sums: no arithmetic at the target.
    Gather,
    /// Reduce-scatter by recursive halving, then all-gather by doubling: as many bytes as for scatter in 2⌈log2 P⌉
    /// steps, with the bits of doubling. In shared memory it is doubling.
    Halving,
}

impl Schedule {
    /// All schedules.
    pub const EVERY: [Schedule; 4] = [Schedule::Doubling, Schedule::Scatter, Schedule::Gather, Schedule::Halving];

    /// Its name on the command line.
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
