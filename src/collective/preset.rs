//! Methods as sets of choices.
#![forbid(unsafe_code)]

use crate::group::Group;
use crate::named::named;
use crate::rule::{Absent, Fire, Scale};

/// A named method, published or our own, as a set of choices of a collective
/// ([`AllreduceBuilder::preset`](crate::AllreduceBuilder::preset)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preset {
    /// Synchronous SGD: the mean of the gradients of all ranks.
    Synchronous,
    /// Eager-SGD, *solo* (Li et al., PPoPP 2020): the first rank fires, and the sum is divided by the number of ranks.
    /// Unlike in the paper, no late gradient is lost.
    Solo,
    /// Eager-SGD, *majority*: a rank that is drawn fires.
    Majority,
    /// The mean of the gradients of at least half of the ranks, exactly counted: a method of this project.
    Quorum,
    /// WAGMA-SGD (Li et al., TPDS 2021): the first rank fires, and groups average models; their size is about the
    /// square root of the number of ranks. Every tenth round waits for all. Unlike in the paper, ranks have their
    /// models in registers and contribute updates of them: no stale model takes part, and no update is lost. Unlike in
    /// the paper, groups average also in a round that waits for all. It needs a
    /// [`memory`](crate::AllreduceBuilder::memory).
    Wagma,
    /// As [`Wagma`](Preset::Wagma), but as published, without registers: ranks contribute models, and the newest model
    /// of an absent rank takes part ([`Absent::Hold`]). A rank takes over an average with
    /// [`merge_into`](crate::Outcome::merge_into).
    WagmaPublished,
    /// Partial reduce, P-Reduce (Miao et al., SIGMOD 2021), without its controller: four ranks that arrive one after
    /// the other average models ([`Group::Arrivals`]). Unlike in the paper, ranks have their models in registers and
    /// contribute updates of them. So a computing rank can lend its register to a group that would otherwise be cut off
    /// from the others, and no group waits. It needs a [`memory`](crate::AllreduceBuilder::memory).
    PReduce,
    /// As [`PReduce`](Preset::PReduce), but without registers: ranks contribute models with constant weights, and
    /// groups form only in the order of arrival.
    PReducePublished,
    /// MG-WFBP (Shi et al., INFOCOM 2019): synchronous. Gradients that become ready one after the other share messages
    /// such that the last message ends as early as possible. It needs [`buckets`](crate::AllreduceBuilder::buckets)
    /// with [`Buckets::Measured`](crate::Buckets::Measured).
    MgWfbp,
}

named!(
    Preset, "preset", "synchronous, solo, majority, quorum, wagma, wagma-published, p-reduce, p-reduce-published, mg-wfbp",
    "synchronous" => Synchronous, "solo" => Solo, "majority" => Majority, "quorum" => Quorum, "wagma" => Wagma,
    "wagma-published" => WagmaPublished, "p-reduce" => PReduce, "p-reduce-published" => PReducePublished, "mg-wfbp" => MgWfbp
);

/// The maximum size of a group by order of arrival. In smaller worlds half of the ranks form a group, because a group
/// of all would wait for each rank.
const P_REDUCE_SIZE: u32 = 4;

/// The number of rounds from one that waits for all ranks to the next, as in the experiments of the paper.
const WAGMA_PERIOD: u32 = 10;

impl Preset {
    /// All presets.
    pub const EVERY: [Preset; 9] = [
        Preset::Synchronous,
        Preset::Solo,
        Preset::Majority,
        Preset::Quorum,
        Preset::Wagma,
        Preset::WagmaPublished,
        Preset::PReduce,
        Preset::PReducePublished,
        Preset::MgWfbp,
    ];

    /// Returns when rounds fire in a world of `ranks` ranks.
    #[must_use]
    pub fn fire(self, ranks: u32) -> Fire {
        match self {
            Preset::Synchronous | Preset::PReduce | Preset::PReducePublished | Preset::MgWfbp => Fire::ALL,
            Preset::Solo => Fire::SOLO,
            Preset::Majority => Fire::majority(0),
            Preset::Quorum => Fire::quorum(ranks.div_ceil(2)),
            Preset::Wagma | Preset::WagmaPublished => Fire::SOLO.full_every(WAGMA_PERIOD),
        }
    }

    /// Returns which ranks average models; `None` if the method does not average models.
    #[must_use]
    pub fn group(self, ranks: u32) -> Option<Group> {
        match self {
            Preset::Synchronous | Preset::Solo | Preset::Majority | Preset::Quorum | Preset::MgWfbp => None,
            Preset::Wagma | Preset::WagmaPublished => Some(Group::Butterfly(ranks.isqrt().max(2))),
            Preset::PReduce | Preset::PReducePublished => {
                Some(Group::Arrivals(ranks.div_ceil(2).clamp(2, P_REDUCE_SIZE)))
            }
        }
    }

    /// Returns what the sum of a round is divided by.
    #[must_use]
    pub fn scale(self) -> Scale {
        match self {
            Preset::Synchronous | Preset::Quorum | Preset::MgWfbp => Scale::Contributions,
            Preset::Solo | Preset::Majority => Scale::World,
            // The sum is divided by the members of the group anyway.
            Preset::Wagma | Preset::WagmaPublished | Preset::PReduce | Preset::PReducePublished => Scale::Sum,
        }
    }

    /// Returns what happens to late contributions.
    #[must_use]
    pub fn absent(self) -> Absent {
        match self {
            Preset::WagmaPublished | Preset::PReducePublished => Absent::Hold,
            _ => Absent::Carry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_print_as_they_are_written_and_are_valid_in_every_world() {
        for preset in Preset::EVERY {
            assert_eq!(preset.to_string().parse::<Preset>(), Ok(preset));
            for ranks in 1..200 {
                preset.fire(ranks).check(ranks).unwrap();
                assert!(preset.group(ranks).is_none_or(|group| group.schedule().is_ok()));
            }
        }
        assert_eq!(Preset::Wagma.group(64), Some(Group::Butterfly(8)));
        assert!("eager".parse::<Preset>().unwrap_err().to_string().ends_with("p-reduce-published, mg-wfbp"));
    }
}
