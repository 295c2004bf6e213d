//! When a round fires.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Grace, RuleError};
use crate::rank_set::RankSet;
use crate::time::parse_duration;

/// What a round waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum When {
    /// For all active ranks to arrive.
    All,
    /// For one rank to arrive (eager-SGD *solo*).
    Solo,
    /// For this number of ranks to arrive, exactly counted; for all active ranks if they are fewer.
    Quorum(u32),
    /// For one rank that is drawn for the round, from a seed that all ranks share (eager-SGD *majority*). On average
    /// half of the ranks arrive before it; no number is guaranteed.
    Majority(u64),
    /// For as many ranks as are worth waiting for: the largest number for which waiting costs at most this percentage
    /// of the ranks' time. All ranks choose the same number for the same round, from the times in the entries of the
    /// rounds before ([`Entry::computed`](crate::Entry::computed), [`Entry::waited`](crate::Entry::waited)). It begins
    /// with all active ranks, and stays there while they are balanced.
    Auto(u32),
}

/// The share of the ranks' time that [`When::Auto`] spends on waiting unless another one is chosen, and the largest one,
/// in percent.
const USUAL_SHARE: u32 = 10;
const MOST_SHARE: u32 = 50;

/// A firing rule: what a round waits for, how long at most, and which rounds wait for all.
///
/// On the command line: `auto`, `auto=SHARE%`, `all`, `solo`, `quorum=Q`, `majority`, `majority=SEED` or
/// `deadline=TIME`.
/// Append options to any of them, separated by commas: `deadline=TIME` and `full=K`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fire {
    when: When,
    deadline: Option<Duration>,
    full_every: Option<u32>,
}

/// What one round waits for, among its active ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// This number of fresh arrivals.
    Count(u32),
    /// The fresh arrival of this rank.
    Rank(u32),
    /// A contribution of every active rank, fresh or carried.
    Full,
}

impl Condition {
    /// Returns the condition with another number of arrivals, if it counts them and there is one.
    pub(crate) fn with_quorum(self, quorum: Option<u32>) -> Self {
        match (self, quorum) {
            (Condition::Count(_), Some(quorum)) => Condition::Count(quorum),
            (condition, _) => condition,
        }
    }
}

impl Fire {
    /// The round waits for every active rank: the ordinary, synchronous collective. No rank is ever late.
    pub const ALL: Fire = Fire::new(When::All);
    /// The round waits for one rank. The same as a quorum of 1.
    pub const SOLO: Fire = Fire::new(When::Solo);

    /// The round waits for as many ranks as are worth waiting for, at up to 10 % of the ranks' time.
    pub const AUTO: Fire = Fire::auto(USUAL_SHARE);

    const fn new(when: When) -> Self {
        Fire { when, deadline: None, full_every: None }
    }

    /// Returns the rule by which a round waits for `q` ranks, exactly counted.
    #[must_use]
    pub const fn quorum(q: u32) -> Self {
        Fire::new(When::Quorum(q))
    }

    /// Returns the rule by which a round waits for the rank that is drawn for it. See [`When::Majority`].
    #[must_use]
    pub const fn majority(seed: u64) -> Self {
        Fire::new(When::Majority(seed))
    }

    /// Returns the rule by which a round waits for as many ranks as are worth waiting for, at up to `percent` of the
    /// ranks' time. See [`When::Auto`].
    #[must_use]
    pub const fn auto(percent: u32) -> Self {
        Fire::new(When::Auto(percent))
    }

    /// Returns the rule by which a round waits for every active rank, or until `time` has passed since its first
    /// arrival.
    #[must_use]
    pub const fn deadline(time: Duration) -> Self {
        Fire::ALL.within(time)
    }

    /// Returns the same rule, but a round closes at most `time` after its first arrival, whichever ranks are missing.
    ///
    /// Every arrival measures from itself, so ranks compare no clocks: the first rank whose time is over closes the
    /// round. A waiting rank or the helper thread enforces the deadline; otherwise the next call does. An arrival that
    /// waits for a free slot measures from the time it gets one.
    #[must_use]
    pub const fn within(self, time: Duration) -> Self {
        Fire { deadline: Some(time), ..self }
    }

    /// Returns the same rule, but every `k`-th round waits for all active ranks (published as the limiter of
    /// eager-SGD). A rank that is late for such a round enters it with its carried contribution, and waits for it like
    /// the others.
    #[must_use]
    pub const fn full_every(self, k: u32) -> Self {
        Fire { full_every: Some(k), ..self }
    }

    /// Returns what a round waits for.
    #[must_use]
    pub fn when(self) -> When {
        self.when
    }

    /// Returns the time between the first arrival of a round and its close at the latest; `None` if there is no limit.
    #[must_use]
    pub fn limit(self) -> Option<Duration> {
        self.deadline
    }

    /// Returns whether every round waits for all active ranks, without a time limit.
    #[must_use]
    pub fn is_synchronous(self) -> bool {
        self.when == When::All && self.deadline.is_none()
    }

    /// Returns whether some rounds wait for all active ranks although the others do not.
    #[must_use]
    pub fn has_full_rounds(self) -> bool {
        self.full_every.is_some()
    }

    /// Returns whether `round` waits for all active ranks although other rounds do not.
    #[must_use]
    pub fn is_full(self, round: u64) -> bool {
        self.full_every.is_some_and(|k| round.is_multiple_of(u64::from(k.max(1))))
    }

    /// Returns how many fresh arrivals fire a round among `active` ranks; meaningful for rules that count arrivals. For
    /// [`When::Auto`], the number with which it begins.
    #[must_use]
    pub fn threshold(self, active: u32) -> u32 {
        match self.when {
            When::All | When::Auto(_) => active,
            When::Solo | When::Majority(_) => 1,
            When::Quorum(q) => q.min(active).max(1),
        }
    }

    /// Returns the rule for a world of fewer ranks.
    pub(crate) fn clamped(self, ranks: u32) -> Self {
        match self.when {
            When::Quorum(q) => Fire { when: When::Quorum(q.min(ranks)), ..self },
            When::All | When::Solo | When::Majority(_) | When::Auto(_) => self,
        }
    }

    /// Returns what a round waits for, given its active ranks and the size of the world.
    pub(crate) fn condition(self, round: u64, active: &RankSet, ranks: u32) -> Condition {
        match self.when {
            _ if self.is_full(round) => Condition::Full,
            When::Majority(seed) => {
                let drawn = drawn(seed, round, ranks);
                Condition::Rank(active.next(drawn).or_else(|| active.next(0)).unwrap_or(drawn))
            }
            _ => Condition::Count(self.threshold(active.len())),
        }
    }

    /// Checks that the rule can work in a world of `ranks`.
    ///
    /// # Errors
    /// A quorum of 0, or of more ranks than the world has. A share of 0, or of more than 50 percent. A deadline of 0, or of more than [`Grace::MAX`]. `full=0` or
    /// `full=1`. Full rounds in a synchronous rule.
    pub fn check(self, ranks: u32) -> Result<(), RuleError> {
        match self.when {
            When::Quorum(0) => return Err(RuleError::ZeroQuorum),
            When::Auto(percent) if percent == 0 || percent > MOST_SHARE => {
                return Err(RuleError::NotAShare { text: format!("{percent}%") });
            }
            When::Quorum(q) if q > ranks => return Err(RuleError::QuorumTooLarge { q, ranks }),
            _ => {}
        }
        match self.deadline {
            Some(time) if time.is_zero() => return Err(RuleError::ZeroDeadline),
            Some(time) if time > Grace::MAX => return Err(RuleError::DeadlineTooLong { time }),
            _ => {}
        }
        match self.full_every {
            Some(k) if k < 2 => Err(RuleError::FullTooOften { k }),
            Some(_) if self.is_synchronous() => Err(RuleError::FullAnyway),
            _ => Ok(()),
        }
    }
}

/// Returns the rank that is drawn for a round of the majority rule, the same on all ranks. If that rank has left, the
/// next active rank replaces it.
#[must_use]
pub fn drawn(seed: u64, round: u64, ranks: u32) -> u32 {
    // SplitMix64: the round's number is the state, and neighbouring rounds become unrelated.
    let mut z = round.wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    // The upper half decides: 2^32 is so much larger than the number of ranks that it favours no rank noticeably.
    (((z >> 32) * u64::from(ranks)) >> 32) as u32
}

impl fmt::Display for Fire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.when {
            When::All if self.deadline.is_some() => {}
            When::All => parts.push("all".to_owned()),
            When::Solo => parts.push("solo".to_owned()),
            When::Quorum(q) => parts.push(format!("quorum={q}")),
            When::Majority(0) => parts.push("majority".to_owned()),
            When::Majority(seed) => parts.push(format!("majority={seed}")),
            When::Auto(USUAL_SHARE) => parts.push("auto".to_owned()),
            When::Auto(percent) => parts.push(format!("auto={percent}%")),
        }
        parts.extend(self.deadline.map(|time| format!("deadline={time:?}")));
        parts.extend(self.full_every.map(|k| format!("full={k}")));
        f.pad(&parts.join(","))
    }
}

impl FromStr for Fire {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let unknown = || RuleError::UnknownFire { text: text.to_owned() };
        let count = |text: &str| text.parse::<u32>().map_err(|_| RuleError::NotACount { text: text.to_owned() });
        let mut fire = None;
        for part in text.split(',') {
            let rule = match part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value))) {
                ("all", None) => Fire::ALL,
                ("solo", None) => Fire::SOLO,
                ("majority", None) => Fire::majority(0),
                ("majority", Some(seed)) => {
                    Fire::majority(seed.parse().map_err(|_| RuleError::NotASeed { text: seed.to_owned() })?)
                }
                ("auto", None) => Fire::AUTO,
                ("auto", Some(share)) => {
                    let percent = share.strip_suffix('%').and_then(|percent| percent.parse().ok());
                    let percent = percent.filter(|percent| (1..=MOST_SHARE).contains(percent));
                    Fire::auto(percent.ok_or_else(|| RuleError::NotAShare { text: share.to_owned() })?)
                }
                ("quorum", Some(q)) => match count(q)? {
                    0 => return Err(RuleError::ZeroQuorum),
                    q => Fire::quorum(q),
                },
                ("deadline", Some(time)) => {
                    let before = fire.unwrap_or(Fire::ALL);
                    if before.deadline.is_some() {
                        return Err(unknown());
                    }
                    fire = Some(before.within(parse_duration(time)?));
                    continue;
                }
                ("full", Some(k)) => {
                    let before = fire.filter(|before| before.full_every.is_none()).ok_or_else(unknown)?;
                    fire = Some(before.full_every(count(k)?));
                    continue;
                }
                _ => return Err(unknown()),
            };
            if fire.replace(rule).is_some() {
                return Err(unknown());
            }
        }
        fire.ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_print_as_they_are_written() {
        for text in [
            "all",
            "solo",
            "quorum=16",
            "majority",
            "majority=7",
            "auto",
            "auto=5%",
            "auto,full=100",
            "deadline=5ms",
            "quorum=4,deadline=1.5ms",
            "solo,full=32",
            "majority,deadline=2s,full=10",
        ] {
            assert_eq!(text.parse::<Fire>().unwrap().to_string(), text);
        }
        assert_eq!("all,deadline=3ms".parse::<Fire>().unwrap(), Fire::deadline(Duration::from_millis(3)));
    }

    #[test]
    fn invalid_rules_are_errors() {
        assert_eq!("quorum=0".parse::<Fire>(), Err(RuleError::ZeroQuorum));
        for text in [
            "",
            "quorum",
            "quorum=x",
            "all,solo",
            "full=3",
            "solo,",
            "solo,full=x",
            "majority=x",
            "deadline=5",
            "deadline=1ms,deadline=2ms",
            "solo,full=2,full=3",
            "solo=1",
            "auto=5",
            "auto=-1%",
            "auto=x%",
            "auto=0%",
            "auto=51%",
        ] {
            assert!(text.parse::<Fire>().is_err(), "{text}");
        }
        for text in ["quorum=5", "deadline=0", "deadline=61min", "solo,full=1", "all,full=8", "solo,full=0"] {
            assert!(text.parse::<Fire>().unwrap().check(4).is_err(), "{text}");
        }
        for text in ["quorum=4", "deadline=1min,full=2", "majority,full=2"] {
            assert!(text.parse::<Fire>().unwrap().check(4).is_ok(), "{text}");
        }
        assert!([0, 51].iter().all(|&percent| Fire::auto(percent).check(4).is_err()));
    }

    #[test]
    fn a_quorum_shrinks_with_the_world_but_never_to_zero() {
        assert_eq!(Fire::quorum(5).threshold(3), 3);
        assert_eq!(Fire::quorum(5).threshold(0), 1);
        assert_eq!(Fire::ALL.threshold(7), 7);
    }

    #[test]
    fn every_rank_is_drawn_equally_often() {
        let mut times = [0; 5];
        (1..=10_000).for_each(|round| times[drawn(3, round, 5) as usize] += 1);
        assert!(times.iter().all(|&times| (1850..2150).contains(&times)), "{times:?}");
        assert!((0..64).any(|round| drawn(1, round, 5) != drawn(2, round, 5)));
    }

    #[test]
    fn the_next_rank_replaces_one_that_left() {
        let mut active = RankSet::full(5);
        let round = (1..).find(|&round| drawn(0, round, 5) == 4).unwrap();
        let fire = Fire::majority(0);
        assert_eq!(fire.condition(round, &active, 5), Condition::Rank(4));
        active.remove(4);
        active.remove(0);
        assert_eq!(fire.condition(round, &active, 5), Condition::Rank(1));
        assert_eq!(fire.full_every(round as u32).condition(round, &active, 5), Condition::Full);
    }
}
