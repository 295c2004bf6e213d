//! How a round is carried out once it fires, and by whom.

use crate::named::named;

pub use crate::named::UnknownName;

/// How data moves once a round fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mover {
    /// By the hw-config's measurements.
    #[default]
    Auto,
    /// The cut is agreed on first, in a word; then whoever is there moves the data.
    Cut,
    /// A program of triggered operations activates, seals and reduces; the cut comes with the data.
    Tree,
}

/// Who carries a round out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Executor {
    /// By the hw-config's measurements.
    #[default]
    Auto,
    /// Ranks that are in `wait` or `test`.
    Caller,
    /// A thread of each rank, while its application computes.
    Thread,
    /// Whoever moves a counter past a threshold, in `arrive` too.
    Peer,
    /// A network card by itself, or a provider of libfabric that acts as one; ranks only reduce.
    Provider,
}

named!(Mover, "mover", "auto, cut, tree", "auto" => Auto, "cut" => Cut, "tree" => Tree);
named!(
    Executor, "executor", "auto, caller, thread, peer, provider",
    "auto" => Auto, "caller" => Caller, "thread" => Thread, "peer" => Peer, "provider" => Provider
);

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
