//! The choices that make a collective partial: when a round fires, how long it stays open after
//! that, and what its sum is divided by.
//!
//! Every type here parses from and prints to the form used on the command line, so a rule read
//! back from a report is the rule that was given.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// When a round fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fire {
    /// Every active rank arrived: the ordinary, synchronous collective. Nobody is ever late.
    All,
    /// One rank arrived (eager-SGD *solo*). The same as `Quorum(1)`.
    Solo,
    /// Exactly counted: `q` ranks arrived. When fewer than `q` ranks are still active, all of them.
    Quorum(u32),
}

impl Fire {
    /// `Fire::Quorum(q)`.
    #[must_use]
    pub fn quorum(q: u32) -> Self {
        Fire::Quorum(q)
    }

    /// Fresh arrivals that fire a round among `active` ranks.
    #[must_use]
    pub fn threshold(self, active: u32) -> u32 {
        match self {
            Fire::All => active,
            Fire::Solo => 1,
            Fire::Quorum(q) => q.min(active).max(1),
        }
    }

    /// Whether the rule makes sense in a world of `ranks`.
    ///
    /// # Errors
    /// A quorum of nobody, or of more ranks than there are.
    pub fn check(self, ranks: u32) -> Result<(), RuleError> {
        match self {
            Fire::Quorum(0) => Err(RuleError::ZeroQuorum),
            Fire::Quorum(q) if q > ranks => Err(RuleError::QuorumTooLarge { q, ranks }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Fire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fire::All => f.pad("all"),
            Fire::Solo => f.pad("solo"),
            Fire::Quorum(q) => f.pad(&format!("quorum={q}")),
        }
    }
}

impl FromStr for Fire {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        match text.split_once('=') {
            None if text == "all" => Ok(Fire::All),
            None if text == "solo" => Ok(Fire::Solo),
            Some(("quorum", q)) => match q.parse() {
                Ok(0) => Err(RuleError::ZeroQuorum),
                Ok(q) => Ok(Fire::Quorum(q)),
                Err(_) => Err(RuleError::NotACount { text: q.to_owned() }),
            },
            _ => Err(RuleError::UnknownFire { text: text.to_owned() }),
        }
    }
}

/// How long a round stays open after its firing condition holds, or until every active rank arrived.
///
/// Without it a balanced solo round would contain one fresh contribution and all the others would
/// be stale by microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Grace {
    /// From the collective's own measurements: its latency, plus half a percent of the
    /// caller's own step (see `docs/semantics.md`).
    #[default]
    Auto,
    /// A fixed time; zero closes the round with the arrival that fires it.
    Fixed(Duration),
}

impl Grace {
    /// No grace at all: the arrival that fires a round also closes it.
    pub const NONE: Grace = Grace::Fixed(Duration::ZERO);

    /// Longest grace that is accepted. A longer one is a synchronous collective in disguise.
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

/// What the sum of a round is divided by before it is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Scale {
    /// Nothing.
    #[default]
    Sum,
    /// The number of ranks in the world, as the published eager-SGD does.
    World,
    /// The number of contributions in the round's cut.
    Contributions,
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scale::Sum => "sum",
            Scale::World => "world",
            Scale::Contributions => "contributions",
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
            _ => Err(RuleError::UnknownScale { text: text.to_owned() }),
        }
    }
}

/// A rule that cannot be used, and what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Not one of the firing rules.
    #[error("unknown firing rule {text:?}; use all, solo or quorum=Q")]
    UnknownFire {
        /// What was given.
        text: String,
    },
    /// Not one of the scales.
    #[error("unknown scale {text:?}; use sum, world or contributions")]
    UnknownScale {
        /// What was given.
        text: String,
    },
    /// A count that is not one.
    #[error("{text:?} is not a number of ranks")]
    NotACount {
        /// What was given.
        text: String,
    },
    /// `quorum=0`.
    #[error("a quorum of 0 would fire with nobody there; the least is quorum=1 (the same as solo)")]
    ZeroQuorum,
    /// More ranks demanded than exist.
    #[error("quorum={q} can never be reached by {ranks} rank(s); the most is quorum={ranks}")]
    QuorumTooLarge {
        /// Ranks demanded.
        q: u32,
        /// Ranks in the world.
        ranks: u32,
    },
    /// Not a time.
    #[error("{text:?} is not a time; write for example 0, 300us, 1.5ms or 2s")]
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

/// Reads `0`, `250ns`, `300us`, `1.5ms`, `2s` or `1min`.
///
/// # Errors
/// [`RuleError::NotATime`] for anything else, a negative or an overflowing value included.
pub fn parse_duration(text: &str) -> Result<Duration, RuleError> {
    let bad = || RuleError::NotATime { text: text.to_owned() };
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let value: f64 = number.parse().map_err(|_| bad())?;
    let seconds = match unit {
        "" if value == 0.0 => 0.0,
        "ns" => value * 1e-9,
        "us" | "µs" => value * 1e-6,
        "ms" => value * 1e-3,
        "s" => value,
        "min" => value * 60.0,
        _ => return Err(bad()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_print_as_they_are_written() {
        for text in ["all", "solo", "quorum=16"] {
            assert_eq!(text.parse::<Fire>().unwrap().to_string(), text);
        }
        for text in ["auto", "0", "300µs", "1.5ms", "2s"] {
            assert_eq!(text.parse::<Grace>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_named() {
        assert_eq!("quorum=0".parse::<Fire>(), Err(RuleError::ZeroQuorum));
        assert!("quorum=x".parse::<Fire>().is_err());
        assert!("quorum".parse::<Fire>().is_err());
        assert!(Fire::quorum(5).check(4).is_err());
        assert!(Fire::quorum(4).check(4).is_ok());
        for text in ["", "5", "-1ms", "1h", "ms", "1e400s", "1..2s", "99999999s"] {
            assert!(text.parse::<Grace>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_quorum_shrinks_with_the_world_but_never_to_nothing() {
        assert_eq!(Fire::quorum(5).threshold(3), 3);
        assert_eq!(Fire::quorum(5).threshold(0), 1);
        assert_eq!(Fire::All.threshold(7), 7);
    }
}
