//! Which ranks are late, and by how much. `bench` and `train` use the same grammar.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::rule::drawn;
use crate::time::parse_duration;
use crate::{Fire, Grace, When};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_distr::{Distribution, LogNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The delays of the ranks.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Skew {
    None,
    /// Rank r is late by r times this time.
    Linear(Duration),
    /// One rank is late.
    One {
        rank: u32,
        by: Duration,
    },
    /// The upper half of the ranks is late.
    Half(Duration),
    /// A number of ranks that are drawn anew each time are late.
    Random {
        ranks: u32,
        by: Duration,
    },
    /// Every rank is late, by a time that is drawn anew each time.
    Lognormal {
        mean: Duration,
        sigma: Duration,
    },
}

const GRAMMAR: &str = "use none, linear:1ms, half:10ms, one:RANK:200ms, random:K:200ms or lognormal:MEAN:SIGMA";

impl FromStr for Skew {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let time = |text: &str| parse_duration(text).map_err(|error| format!("{error} (in {text:?}); {GRAMMAR}"));
        let count =
            |text: &str| text.parse::<u32>().map_err(|_| format!("{text:?} is not a number of ranks; {GRAMMAR}"));
        match parts[..] {
            ["none"] => Ok(Skew::None),
            ["linear", step] => Ok(Skew::Linear(time(step)?)),
            ["half", by] => Ok(Skew::Half(time(by)?)),
            ["one", rank, by] => Ok(Skew::One { rank: count(rank)?, by: time(by)? }),
            ["random", ranks, by] => Ok(Skew::Random { ranks: count(ranks)?, by: time(by)? }),
            ["lognormal", mean, sigma] => {
                let (mean, sigma) = (time(mean)?, time(sigma)?);
                if mean.is_zero() {
                    return Err("the mean of a lognormal delay must be more than 0".to_owned());
                }
                Ok(Skew::Lognormal { mean, sigma })
            }
            _ => Err(format!("unknown skew {text:?}; {GRAMMAR}")),
        }
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skew::None => f.write_str("none"),
            Skew::Linear(step) => write!(f, "linear:{step:?}"),
            Skew::Half(by) => write!(f, "half:{by:?}"),
            Skew::One { rank, by } => write!(f, "one:{rank}:{by:?}"),
            Skew::Random { ranks, by } => write!(f, "random:{ranks}:{by:?}"),
            Skew::Lognormal { mean, sigma } => write!(f, "lognormal:{mean:?}:{sigma:?}"),
        }
    }
}

impl Skew {
    /// Checks the skew for a world of `ranks` ranks.
    pub(super) fn check(&self, ranks: u32) -> Result<(), String> {
        match *self {
            Skew::One { rank, .. } if rank >= ranks => Err(format!("skew {self}: there is no rank {rank} of {ranks}")),
            Skew::Random { ranks: late, .. } if late > ranks => {
                Err(format!("skew {self}: there are only {ranks} ranks"))
            }
            Skew::Linear(step) if step.checked_mul(ranks).is_none() => Err(format!("skew {self} is too long")),
            _ => Ok(()),
        }
    }

    pub(super) fn is_none(&self) -> bool {
        *self == Skew::None
    }

    /// Returns how late each rank is at a time. It is a pure function: every rank computes the same.
    pub(super) fn delays(&self, ranks: u32, time: u64, seed: u64) -> Vec<Duration> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ time.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut delays = vec![Duration::ZERO; ranks as usize];
        match *self {
            Skew::None => {}
            Skew::Linear(step) => (0..ranks).for_each(|rank| delays[rank as usize] = step * rank),
            Skew::Half(by) => delays[ranks.div_ceil(2) as usize..].fill(by),
            Skew::One { rank, by } => delays[rank as usize] = by,
            Skew::Random { ranks: late, by } => {
                delays[..late as usize].fill(by);
                delays.shuffle(&mut rng);
            }
            Skew::Lognormal { mean, sigma } => {
                let cv = sigma.as_secs_f64() / mean.as_secs_f64();
                if let Ok(distribution) = LogNormal::from_mean_cv(mean.as_secs_f64(), cv) {
                    delays.fill_with(|| Duration::try_from_secs_f64(distribution.sample(&mut rng)).unwrap_or(mean));
                }
            }
        }
        delays
    }

    /// Returns the mean over ranks of an arrival's wait if communication took no time, all ranks start at once, and
    /// round `time + 1` is the next one. A fixed grace counts.
    pub(super) fn ideal(&self, (fire, grace): (Fire, Grace), ranks: u32, time: u64, seed: u64) -> Duration {
        let delays = self.delays(ranks, time, seed);
        let mut sorted = delays.clone();
        sorted.sort_unstable();
        let (first, last) = (sorted[0], sorted[sorted.len() - 1]);
        let grace = match grace {
            Grace::Fixed(grace) => grace,
            Grace::Auto => Duration::ZERO,
        };
        let closes = match fire.when() {
            _ if fire.is_full(time + 1) => last,
            When::Majority(seed) => delays[drawn(seed, time + 1, ranks) as usize] + grace,
            When::All | When::Solo | When::Quorum(_) => sorted[fire.threshold(ranks) as usize - 1] + grace,
        };
        let limit = fire.limit().filter(|_| !fire.is_full(time + 1)).map_or(last, |limit| first + limit);
        let closes = closes.min(limit).min(last);
        delays.iter().map(|&delay| closes.saturating_sub(delay)).sum::<Duration>() / ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closed_forms_of_linear_skew() {
        let skew: Skew = "linear:1ms".parse().unwrap();
        let graced = |fire, grace| skew.ideal((fire, grace), 32, 0, 0).as_secs_f64() * 1e3;
        let ideal = |fire| graced(fire, Grace::Auto);
        assert!((ideal(Fire::ALL) - 15.5).abs() < 1e-9);
        assert!((ideal(Fire::quorum(16)) - 3.75).abs() < 1e-9);
        assert_eq!(ideal(Fire::SOLO), 0.0);
        // Of 32 ranks those up to t wait: t, t - 1, ... 1 ms.
        assert!((ideal(Fire::deadline(Duration::from_millis(8))) - 36.0 / 32.0).abs() < 1e-9);
        let grace = Grace::Fixed(Duration::from_millis(8));
        assert!((graced(Fire::SOLO, grace) - 36.0 / 32.0).abs() < 1e-9);
        assert!((graced(Fire::quorum(16), grace) - 23.0 * 24.0 / 2.0 / 32.0).abs() < 1e-9);
        let d = f64::from(drawn(0, 1, 32));
        assert!((ideal(Fire::majority(0)) - d * (d + 1.0) / 64.0).abs() < 1e-9);
    }

    #[test]
    fn random_skews_draw_anew_and_alike_everywhere() {
        let skew: Skew = "random:2:5ms".parse().unwrap();
        let late = |time| skew.delays(8, time, 1);
        assert_eq!(late(3), late(3));
        assert!((0..9).any(|time| late(time) != late(time + 1)));
        assert!((0..9).all(|time| late(time).iter().filter(|delay| !delay.is_zero()).count() == 2));
        let skew: Skew = "lognormal:10ms:2ms".parse().unwrap();
        let mean: f64 = (0..4000).map(|t| skew.delays(4, t, 2)[1].as_secs_f64()).sum::<f64>() / 4000.0;
        assert!((mean - 0.010).abs() < 0.0002, "{mean}");
    }

    #[test]
    fn half_of_the_ranks_are_the_upper_ones() {
        let skew: Skew = "half:2ms".parse().unwrap();
        let late: Vec<bool> = skew.delays(5, 0, 0).iter().map(|delay| !delay.is_zero()).collect();
        assert_eq!((late, skew.to_string()), (vec![false, false, false, true, true], "half:2ms".to_owned()));
    }

    #[test]
    fn nonsense_is_named() {
        for text in ["", "linear", "linear:1", "one:x:1ms", "random:1:1h", "lognormal:0:1ms", "linear:1ms:2"] {
            assert!(text.parse::<Skew>().is_err(), "{text}");
        }
        assert!("one:4:1ms".parse::<Skew>().unwrap().check(4).is_err());
        assert!("random:5:1ms".parse::<Skew>().unwrap().check(4).is_err());
    }
}
