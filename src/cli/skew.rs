//! Which ranks are late, and by how much. `bench` and `train` use the same grammar.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::files::text;
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
    /// Ranks take a multiple of their step from one step until another one; the last rank if none are listed.
    FailSlow {
        factor: f64,
        from: u64,
        until: u64,
        ranks: Vec<u32>,
    },
    /// The delays of a file, which begin again after the last step.
    Trace(Arc<Trace>),
}

/// Delays by step and rank, from a file.
#[derive(Debug, PartialEq)]
pub(super) struct Trace {
    file: String,
    /// The number of steps.
    steps: u64,
    delays: BTreeMap<(u64, u32), Duration>,
}

impl Trace {
    /// Reads a file of lines `step,rank,seconds`, which may have a head. Ranks without a line in a step are in time.
    fn read(file: &str) -> Result<Self, String> {
        const MOST_BYTES: u64 = 64 << 20;
        let text = text(Path::new(file), MOST_BYTES).map_err(|cause| format!("{file}: {cause}"))?;
        let (mut delays, mut steps) = (BTreeMap::new(), 0);
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || (number == 1 && line.starts_with("step")) {
                continue;
            }
            let wrong = |what: &str| format!("{file}, line {number}: {what}; use step,rank,seconds");
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            let [step, rank, seconds] = cells[..] else { return Err(wrong("not three values")) };
            let step: u64 = step.parse().map_err(|_| wrong("the step is not a whole number"))?;
            let rank: u32 = rank.parse().map_err(|_| wrong("the rank is not a whole number"))?;
            let seconds: f64 = seconds.parse().map_err(|_| wrong("the seconds are not a number"))?;
            let delay = Duration::try_from_secs_f64(seconds).ok().filter(|&delay| delay <= Grace::MAX);
            let delay = delay.ok_or_else(|| wrong("the seconds are not between 0 and 3600"))?;
            if delays.insert((step, rank), delay).is_some() {
                return Err(wrong("this rank has a delay in this step already"));
            }
            steps = steps.max(step.checked_add(1).ok_or_else(|| wrong("too large a step"))?);
        }
        if delays.is_empty() {
            return Err(format!("{file}: it has no delays; use lines of step,rank,seconds"));
        }
        Ok(Trace { file: file.to_owned(), steps, delays })
    }
}

const GRAMMAR: &str = "use none, linear:1ms, half:10ms, one:RANK:200ms, random:K:200ms, lognormal:MEAN:SIGMA, \
                       failslow:FACTOR:START:END[:RANKS] or trace:FILE";

impl FromStr for Skew {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(file) = text.strip_prefix("trace:") {
            return Ok(Skew::Trace(Arc::new(Trace::read(file)?)));
        }
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
            ["failslow", factor, from, until, ref ranks @ ..] if ranks.len() <= 1 => {
                let step = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a step; {GRAMMAR}"));
                let factor: f64 =
                    factor.parse().map_err(|_| format!("{factor:?} is not a factor, such as 2 or 1.5; {GRAMMAR}"))?;
                if !(1.0..=1000.0).contains(&factor) {
                    return Err(format!("a rank is slower by a factor of 1 to 1000, not {factor}"));
                }
                let (from, until) = (step(from)?, step(until)?);
                if from >= until {
                    return Err(format!("failslow ends at step {until}, which is not after its start {from}"));
                }
                let ranks = ranks.iter().flat_map(|list| list.split(',')).map(count).collect::<Result<_, _>>()?;
                Ok(Skew::FailSlow { factor, from, until, ranks })
            }
            _ => Err(format!("unknown skew {text:?}; {GRAMMAR}")),
        }
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skew::FailSlow { factor, from, until, ranks } => {
                write!(f, "failslow:{factor}:{from}:{until}")?;
                let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
                if ranks.is_empty() { Ok(()) } else { write!(f, ":{}", ranks.join(",")) }
            }
            Skew::Trace(trace) => write!(f, "trace:{}", trace.file),
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
        let beyond = |rank: Option<&u32>| rank.copied().filter(|&rank| rank >= ranks);
        let listed = match self {
            Skew::FailSlow { ranks, .. } => beyond(ranks.iter().max()),
            Skew::Trace(trace) => beyond(trace.delays.keys().map(|(_, rank)| rank).max()),
            _ => None,
        };
        if let Some(rank) = listed {
            return Err(format!("skew {self}: there is no rank {rank} of {ranks}"));
        }
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

    /// Returns how late each rank is at a time, where each would take `step` to compute. It is a pure function: every rank
    /// computes the same.
    pub(super) fn delays(&self, ranks: u32, time: u64, seed: u64, step: Duration) -> Vec<Duration> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ time.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut delays = vec![Duration::ZERO; ranks as usize];
        match *self {
            Skew::None => {}
            Skew::FailSlow { factor, from, until, ranks: ref slow } => {
                let last = [ranks - 1];
                let slow = if slow.is_empty() { &last[..] } else { slow };
                let by = if (from..until).contains(&time) { step.mul_f64(factor - 1.0) } else { Duration::ZERO };
                slow.iter().for_each(|&rank| delays[rank as usize] = by);
            }
            Skew::Trace(ref trace) => {
                let step = time % trace.steps;
                let of_step = trace.delays.range((step, 0)..=(step, u32::MAX));
                of_step.for_each(|(&(_, rank), &delay)| delays[rank as usize] = delay);
            }
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
    pub(super) fn ideal(
        &self,
        (fire, grace): (Fire, Grace),
        ranks: u32,
        (time, seed, step): (u64, u64, Duration),
    ) -> Duration {
        let delays = self.delays(ranks, time, seed, step);
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
            When::All | When::Solo | When::Quorum(_) | When::Auto(_) => {
                sorted[fire.threshold(ranks) as usize - 1] + grace
            }
        };
        let limit = fire.limit().filter(|_| !fire.is_full(time + 1)).map_or(last, |limit| first + limit);
        let closes = closes.min(limit).min(last);
        delays.iter().map(|&delay| closes.saturating_sub(delay)).sum::<Duration>() / ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(2);

    #[test]
    fn a_rank_fails_slow_for_a_time() {
        let skew: Skew = "failslow:5:300:700:2,0".parse().unwrap();
        assert_eq!(skew.to_string(), "failslow:5:300:700:2,0");
        let late = |time| skew.delays(4, time, 0, STEP).iter().map(Duration::as_millis).collect::<Vec<_>>();
        assert_eq!([299, 300, 699, 700].map(late), [[0; 4], [8, 0, 8, 0], [8, 0, 8, 0], [0; 4]].map(Vec::from));
        assert!(skew.check(4).is_ok() && skew.check(2).is_err());
        let last: Skew = "failslow:2:0:1".parse().unwrap();
        assert_eq!(last.delays(3, 0, 0, STEP), [Duration::ZERO, Duration::ZERO, STEP]);
    }

    #[test]
    fn a_trace_begins_again_after_its_last_step() {
        let file = std::env::temp_dir().join(format!("earlybird-skew-{}.csv", std::process::id()));
        std::fs::write(&file, "step,rank,seconds\n# a comment\n0, 1, 0.002\n2,0,1.5e-3\n").unwrap();
        let name = file.display().to_string();
        let read = format!("trace:{name}").parse::<Skew>();
        let late =
            |skew: &Skew, time| skew.delays(2, time, 0, STEP).iter().map(Duration::as_micros).collect::<Vec<_>>();
        let skew = read.unwrap();
        for turn in [0, 3, 6] {
            assert_eq!([0, 1, 2].map(|step| late(&skew, turn + step)), [[0, 2000], [0, 0], [1500, 0]].map(Vec::from));
        }
        assert!(skew.check(1).is_err() && skew.check(2).is_ok());
        for wrong in ["0,1", "x,0,1", "0,0,-1", "0,0,1\n0,0,2", "", "0,0,1e9"] {
            std::fs::write(&file, wrong).unwrap();
            let error = format!("trace:{name}").parse::<Skew>().unwrap_err();
            assert!(error.contains("step,rank,seconds"), "{wrong:?}: {error}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(format!("trace:{name}").parse::<Skew>().is_err());
    }

    /// What was drawn has the mean that was published, less the least time.
    #[test]
    fn the_bundled_trace_is_as_late_as_what_it_was_drawn_from() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/data/late_ranks.csv");
        let skew: Skew = format!("trace:{file}").parse().unwrap();
        assert!(skew.check(7).is_err() && skew.check(8).is_ok());
        let mean = |steps: std::ops::Range<u64>| {
            let delays: Vec<f64> =
                steps.flat_map(|step| skew.delays(8, step, 0, STEP)).map(|delay| delay.as_secs_f64() * 1e5).collect();
            delays.iter().sum::<f64>() / delays.len() as f64
        };
        for (steps, published) in [(0..100, 1235.0 - 201.0), (100..200, 475.0 - 179.0), (200..300, 454.0 - 399.0)] {
            let drawn = mean(steps.clone());
            assert!((drawn / published - 1.0).abs() < 0.06, "{steps:?}: {drawn} and not {published}");
        }
        assert_eq!(mean(300..325), 0.0);
        assert!((mean(325..375) - 0.34 * 454.0 / 8.0).abs() < 0.1);
    }

    #[test]
    fn the_closed_forms_of_linear_skew() {
        let skew: Skew = "linear:1ms".parse().unwrap();
        let graced = |fire, grace| skew.ideal((fire, grace), 32, (0, 0, STEP)).as_secs_f64() * 1e3;
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
        let late = |time| skew.delays(8, time, 1, STEP);
        assert_eq!(late(3), late(3));
        assert!((0..9).any(|time| late(time) != late(time + 1)));
        assert!((0..9).all(|time| late(time).iter().filter(|delay| !delay.is_zero()).count() == 2));
        let skew: Skew = "lognormal:10ms:2ms".parse().unwrap();
        let mean: f64 = (0..4000).map(|t| skew.delays(4, t, 2, STEP)[1].as_secs_f64()).sum::<f64>() / 4000.0;
        assert!((mean - 0.010).abs() < 0.0002, "{mean}");
    }

    #[test]
    fn half_of_the_ranks_are_the_upper_ones() {
        let skew: Skew = "half:2ms".parse().unwrap();
        let late: Vec<bool> = skew.delays(5, 0, 0, STEP).iter().map(|delay| !delay.is_zero()).collect();
        assert_eq!((late, skew.to_string()), (vec![false, false, false, true, true], "half:2ms".to_owned()));
    }

    #[test]
    fn nonsense_is_named() {
        for text in [
            "",
            "linear",
            "linear:1",
            "one:x:1ms",
            "random:1:1h",
            "failslow:2:5:5",
            "failslow:0.5:1:2",
            "failslow:2:1",
            "failslow:2:1:2:x",
            "lognormal:0:1ms",
            "linear:1ms:2",
        ] {
            assert!(text.parse::<Skew>().is_err(), "{text}");
        }
        assert!("one:4:1ms".parse::<Skew>().unwrap().check(4).is_err());
        assert!("random:5:1ms".parse::<Skew>().unwrap().check(4).is_err());
    }
}
