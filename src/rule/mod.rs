//! The choices that define a collective, as plain values. They say when a round fires, how long it stays open after
//! that, what happens to late contributions, what the sum is divided by, how the data moves, and which executor carries
//! out a round.
//!
//! Users' choices parse from the form used on the command line and print to it. So a rule that is read back from a
//! report is the rule that was given.
#![forbid(unsafe_code)]

mod choice;
mod fire;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub(crate) use choice::{AgreementBy, MovementBy};
pub use choice::{Executor, MOST_RADIX, Mover, Schedule};
pub(crate) use fire::Condition;
pub use fire::{Fire, When, drawn};

use crate::time::{NotATime, parse_duration};
use crate::units::Number;

/// How long a round stays open after its firing condition holds. It closes earlier if every active rank has arrived.
///
/// Without a grace a balanced solo round would contain one fresh contribution, and all the others would be late by
/// microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Grace {
    /// Computed from measurements: the collective's latency, plus half a percent of the caller's own step. Under
    /// majority it shrinks, because most rounds lack a rank (see `docs/semantics.md`).
    #[default]
    Auto,
    /// A fixed time; zero closes the round with the arrival that fires it.
    Fixed(Duration),
}

impl Grace {
    /// No grace: the arrival that fires a round also closes it.
    pub const NONE: Grace = Grace::Fixed(Duration::ZERO);

    /// The longest grace. With a longer one the collective would in effect be synchronous.
    pub const MAX: Duration = Duration::from_secs(3600);

    pub(crate) fn check(self) -> Result<(), RuleError> {
        match self {
            Grace::Fixed(time) if time > Self::MAX => Err(RuleError::GraceTooLong { time }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Grace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grace::Auto => f.pad("auto"),
            Grace::Fixed(time) if time.is_zero() => f.pad("0"),
            Grace::Fixed(time) => f.pad(&format!("{time:?}")),
        }
    }
}

impl FromStr for Grace {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let grace = match text {
            "auto" => Grace::Auto,
            _ => Grace::Fixed(parse_duration(text)?),
        };
        grace.check()?;
        Ok(grace)
    }
}

/// What happens to a contribution whose round fired without it.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
#[non_exhaustive]
pub enum Absent {
    /// It enters the next round that fires.
    #[default]
    Carry,
    /// It is dropped, and counted ([`Stats::dropped`](crate::Stats::dropped)).
    Drop,
    /// It enters the next round that fires, multiplied by this factor once for every round of its age. For
    /// floating-point sums only.
    Decay(f32),
    /// It enters the next round that fires, and represents its rank in all rounds until the rank's next contribution
    /// enters. Contributions are models then, and a round averages the newest model of each member of a group. A
    /// contribution that would enter a full round together with the next one of its rank is dropped and counted. Needs
    /// a [`memory`](crate::AllreduceBuilder::memory).
    Hold,
}

impl Absent {
    /// Returns the factor of a contribution of this age, in rounds.
    pub(crate) fn factor(self, age: u64) -> f32 {
        match self {
            Absent::Carry | Absent::Drop | Absent::Hold => 1.0,
            Absent::Decay(factor) => power(f64::from(factor), age) as f32,
        }
    }

    /// Checks the factor.
    ///
    /// # Errors
    /// A decay that is not greater than 0 and at most 1.
    pub fn check(self) -> Result<(), RuleError> {
        match self {
            Absent::Decay(factor) if !(factor > 0.0 && factor <= 1.0) => Err(RuleError::NotADecay { factor }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::Carry => f.pad("carry"),
            Absent::Drop => f.pad("drop"),
            Absent::Decay(factor) => f.pad(&format!("decay={}", Number(*factor))),
            Absent::Hold => f.pad("hold"),
        }
    }
}

impl FromStr for Absent {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let unknown = || RuleError::UnknownAbsent { text: text.to_owned() };
        let absent = match text.split_once('=') {
            None if text == "carry" => Absent::Carry,
            None if text == "drop" => Absent::Drop,
            None if text == "hold" => Absent::Hold,
            Some(("decay", factor)) => Absent::Decay(factor.parse().map_err(|_| unknown())?),
            _ => return Err(unknown()),
        };
        absent.check()?;
        Ok(absent)
    }
}

/// Raises `base` to a power by squaring, with the same result on every machine. A library function may round
/// differently elsewhere, and all ranks must compute the same bits.
pub(crate) fn power(base: f64, exponent: u64) -> f64 {
    let (mut power, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left % 2 == 1 {
            power *= square;
        }
        square *= square;
        left /= 2;
    }
    power
}

/// What the sum of a round is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
#[non_exhaustive]
pub enum Scale {
    /// Nothing.
    #[default]
    Sum,
    /// The number of ranks in the world, as in the published eager-SGD.
    World,
    /// The number of contributions in the round's cut.
    Contributions,
    /// The sum of the weights in the round's cut, so that the result is a weighted mean. Every contribution is
    /// multiplied by its weight ([`Allreduce::weigh`](crate::Allreduce::weigh), 1 unless given) and by its decay, if
    /// there is one.
    Weights,
    /// A mean in which a model weighs less the further its rank is behind: by this factor, between 0 and 1, for each
    /// iteration. After the mean all ranks count as far along as the newest was. For models in groups by order of
    /// arrival ([`Group::Arrivals`](crate::Group::Arrivals) with [`Absent::Hold`]): the dynamic weights of P-Reduce
    /// (Miao et al., SIGMOD 2021).
    Ages(f32),
}

impl Scale {
    /// Checks the factor.
    ///
    /// # Errors
    /// A factor for ages that is not between 0 and 1.
    pub fn check(self) -> Result<(), RuleError> {
        match self {
            Scale::Ages(factor) if !(factor > 0.0 && factor < 1.0) => Err(RuleError::NotAFactor { factor }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scale::Sum => "sum",
            Scale::World => "world",
            Scale::Contributions => "contributions",
            Scale::Weights => "weights",
            Scale::Ages(factor) => return f.pad(&format!("ages={}", Number(*factor))),
        })
    }
}

impl FromStr for Scale {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        match text {
            "sum" => Ok(Scale::Sum),
            "world" => Ok(Scale::World),
            "contributions" => Ok(Scale::Contributions),
            "weights" => Ok(Scale::Weights),
            _ => {
                let factor = text.strip_prefix("ages=").and_then(|factor| factor.parse().ok());
                let scale = factor.map(Scale::Ages).ok_or_else(|| RuleError::UnknownScale { text: text.to_owned() })?;
                scale.check()?;
                Ok(scale)
            }
        }
    }
}

/// An invalid rule. Its text says what would be accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// Not one of the firing rules.
    #[error(
        "unknown firing rule {text:?}; use auto, auto=SHARE%, all, solo, quorum=Q, majority, majority=SEED or deadline=TIME, \
         and behind it ,deadline=TIME and ,full=K"
    )]
    UnknownFire {
        /// What was given.
        text: String,
    },
    /// Not one of the scales.
    #[error("unknown scale {text:?}; use sum, world, contributions, weights or ages=FACTOR")]
    UnknownScale {
        /// What was given.
        text: String,
    },
    /// Not a choice for late contributions.
    #[error("unknown fate of late contributions {text:?}; use carry, drop, decay=FACTOR or hold")]
    UnknownAbsent {
        /// What was given.
        text: String,
    },
    /// A decay that is not more than 0 and at most 1: it would erase, invert or inflate late contributions.
    #[error("a decay of {} a round; use more than 0 and at most 1", Number(*factor))]
    NotADecay {
        /// What was given.
        factor: f32,
    },
    /// A factor for ages that is not between 0 and 1: old models would count like new ones, or not at all.
    #[error("a factor of {} an iteration; use more than 0 and less than 1", Number(*factor))]
    NotAFactor {
        /// What was given.
        factor: f32,
    },
    /// Not a whole number.
    #[error("{text:?} is not a whole number of ranks or rounds")]
    NotACount {
        /// What was given.
        text: String,
    },
    /// Not a share of the ranks' time.
    #[error("{text:?} is not a share of the ranks' time; use a whole percentage from 1% to 50%, such as auto=5%")]
    NotAShare {
        /// What was given.
        text: String,
    },
    /// A seed that is not a number.
    #[error("{text:?} is not a seed; use a whole number")]
    NotASeed {
        /// What was given.
        text: String,
    },
    /// `deadline=0`.
    #[error("a deadline of 0 closes a round with its first arrival; that is the rule solo with a grace of 0")]
    ZeroDeadline,
    /// A deadline beyond [`Grace::MAX`].
    #[error("a deadline of {time:?} is longer than the {max:?} allowed", max = Grace::MAX)]
    DeadlineTooLong {
        /// What was given.
        time: Duration,
    },
    /// `full=0` or `full=1`: no other rounds would lie between the full ones.
    #[error("full={k} would make every round a full one; the least is full=2, and all rounds are full in the rule all")]
    FullTooOften {
        /// What was given.
        k: u32,
    },
    /// Full rounds in a synchronous rule.
    #[error("every round of the rule all is full; omit full=K")]
    FullAnyway,
    /// `quorum=0`.
    #[error("a quorum of 0 would fire without an arrival; the least is quorum=1 (the same as solo)")]
    ZeroQuorum,
    /// A quorum of more ranks than exist.
    #[error("quorum={q} can never be reached by {ranks} rank(s); the most is quorum={ranks}")]
    QuorumTooLarge {
        /// The ranks demanded.
        q: u32,
        /// The ranks in the world.
        ranks: u32,
    },
    /// Not a time.
    #[error("{}", NotATime(.text.clone()))]
    NotATime {
        /// What was given.
        text: String,
    },
    /// A grace beyond [`Grace::MAX`].
    #[error("a grace of {time:?} is longer than the {max:?} allowed", max = Grace::MAX)]
    GraceTooLong {
        /// What was given.
        time: Duration,
    },
}

impl From<NotATime> for RuleError {
    fn from(NotATime(text): NotATime) -> Self {
        RuleError::NotATime { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_print_as_they_are_written() {
        for text in ["auto", "0", "300µs", "1.5ms", "2s"] {
            assert_eq!(text.parse::<Grace>().unwrap().to_string(), text);
        }
        for text in ["carry", "drop", "decay=0.5", "hold"] {
            assert_eq!(text.parse::<Absent>().unwrap().to_string(), text);
        }
        for text in ["sum", "world", "contributions", "weights", "ages=0.5"] {
            assert_eq!(text.parse::<Scale>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_choices_are_errors() {
        for text in ["", "5", "-1ms", "1h", "ms", "1e400s", "1..2s", "99999999s"] {
            assert!(text.parse::<Grace>().is_err(), "{text}");
        }
        for text in ["", "decay", "decay=0", "decay=1.5", "decay=NaN", "decay=-1", "drop=1"] {
            assert!(text.parse::<Absent>().is_err(), "{text}");
        }
        for text in ["", "ages", "ages=0", "ages=1", "ages=NaN", "ages=-1", "weights=1"] {
            assert!(text.parse::<Scale>().is_err(), "{text}");
        }
    }

    #[test]
    fn late_contributions_decay_by_round() {
        assert_eq!(Absent::Decay(0.5).factor(3), 0.125);
        assert_eq!(Absent::Decay(0.5).factor(u64::MAX), 0.0);
        assert_eq!(Absent::Carry.factor(3), 1.0);
    }
}
