//! Methods as sets of choices.
#![forbid(unsafe_code)]

use crate::group::Group;
use crate::named::named;
use crate::rule::{Absent, Fire, Scale};

/// A method by name, published or our own: a set of the choices of a collective ([`AllreduceBuilder::preset`](crate::AllreduceBuilder::preset)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preset {
    /// Synchronous SGD: the mean of the gradients of all ranks.
    Synchronous,
    /// Eager-SGD, *solo* (Li et al., PPoPP 2020): the first rank fires; the sum is divided by the number of ranks. Unlike
    /// there, no late gradient is lost.
    Solo,
    /// Eager-SGD, *majority*: a rank that is drawn fires.
    Majority,
    /// The mean of the gradients of half of the ranks or more, exactly counted: a method of this project.
    Quorum,
    /// WAGMA-SGD (Li et al., TPDS 2021): the first rank fires, and groups of about the square root of the number of ranks
    /// average models; every tenth round waits for all. Unlike there, contributions are updates of models that ranks
    /// have in registers: no stale model takes part, and no update is lost. Unlike there, groups average in a round
    /// that waits for all, too. It needs a [`memory`](crate::AllreduceBuilder::memory).
    Wagma,
    /// The same with what was published in place of registers: ranks contribute models, and the newest model of an absent
    /// rank takes part ([`Absent::Hold`]). A rank takes an average over with
    /// [`merge_into`](crate::Outcome::merge_into).
    WagmaPublished,
    /// Partial reduce, P-Reduce (Miao et al., SIGMOD 2021), without its controller: four ranks that arrive one after the
    /// other average models ([`Group::Arrivals`]). Unlike there, contributions are updates of models that ranks have in
    /// registers, so a rank that computes can lend its register to a group that would be apart from the others, and no
    /// group waits. It needs a [`memory`](crate::AllreduceBuilder::memory).
    PReduce,
    /// The same without registers: ranks contribute models, with constant weights, and groups form in the order of arrival
    /// alone.
    PReducePublished,
    /// MG-WFBP (Shi et al., INFOCOM 2019): synchronous, and gradients that become ready one after the other share messages
    /// so that the last one ends as early as it can. It needs [`buckets`](crate::AllreduceBuilder::buckets), with
    /// [`Buckets::Measured`](crate::Buckets::Measured).
    MgWfbp,
}

named!(
    Preset, "preset", "synchronous, solo, majority, quorum, wagma, wagma-published, p-reduce, p-reduce-published, mg-wfbp",
    "synchronous" => Synchronous, "solo" => Solo, "majority" => Majority, "quorum" => Quorum, "wagma" => Wagma,
    "wagma-published" => WagmaPublished, "p-reduce" => PReduce, "p-reduce-published" => PReducePublished, "mg-wfbp" => MgWfbp
);

/// The most ranks of a group by order of arrival. In smaller worlds half of the ranks are one: a group of all would wait for
/// each.
const P_REDUCE_SIZE: u32 = 4;

/// How often a round waits for all ranks, as in the experiments of the paper.
const WAGMA_PERIOD: u32 = 10;

impl Preset {
    /// All of them.
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

    /// When rounds fire in a world of `ranks` ranks.
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

    /// Which ranks average models, if it is models that they average.
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

    /// What the sum of a round is divided by.
    #[must_use]
    pub fn scale(self) -> Scale {
        match self {
            Preset::Synchronous | Preset::Quorum | Preset::MgWfbp => Scale::Contributions,
            Preset::Solo | Preset::Majority => Scale::World,
            // The members of a group.
            Preset::Wagma | Preset::WagmaPublished | Preset::PReduce | Preset::PReducePublished => Scale::Sum,
        }
    }

    /// What happens to late contributions.
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
