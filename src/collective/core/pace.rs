//! The length of a grace that the collective chooses itself.
//!
//! A grace must outlast the differences between balanced ranks. These have two sources: the time that this collective
//! takes to hand an outcome to all ranks (they leave it one after the other), and the variation of the ranks' own
//! steps. The rank that closes a round measures the first source alone: the time from closing to its own outcome, which
//! contains no wait for other ranks. The second source counts as half a percent of the shortest of the last steps, so a
//! pause between epochs does not count. Neither contains the grace itself, so the grace cannot reinforce itself.
//!
//! A drawn rank (majority) fires while other ranks have not arrived. So where ranks differ by more than a grace, all
//! waiting ranks lose that time and the grace catches no rank. Cuts show this: round after round lacks a rank. Then the
//! grace shrinks to a small remainder, with a longer one at ever greater intervals: during these, balanced ranks that
//! fell out of step get back into step. (Solo and quorum keep their grace: nothing else holds balanced ranks in step.)

use super::input::Time;
use crate::rule::Grace;

const KEPT: usize = 8;

/// Below this time, waiting costs less than the clock reading that would end it.
const LEAST: Time = 5_000;

/// The upper limit of a grace that catches no rank. In short rounds, the latency still limits it.
const MODEST: Time = 50_000;

#[derive(Clone, Debug)]
pub(crate) struct Pace {
    grace: Grace,
    latencies: Recent,
    steps: Recent,
    last_arrival: Option<Time>,
    /// The number of consecutive rounds whose grace, as far as their cuts show, caught no rank.
    fruitless: u32,
}

/// This number of consecutive fruitless rounds is not a coincidence.
const PATIENCE: u32 = 16;

impl Pace {
    pub(crate) fn new(grace: Grace) -> Self {
        Pace { grace, latencies: Recent::default(), steps: Recent::default(), last_arrival: None, fruitless: 0 }
    }

    pub(crate) fn arrived(&mut self, now: Time) {
        if let Some(last) = self.last_arrival.replace(now) {
            self.steps.push(now.saturating_sub(last));
        }
    }

    /// Notes the cut of a round that a drawn rank fired; `all` says whether all ranks arrived.
    pub(crate) fn saw(&mut self, all: bool) {
        self.fruitless = match all {
            // If all ranks keep arriving, the next rounds confirm that.
            true => self.fruitless / 2,
            false => self.fruitless.saturating_add(1),
        };
    }

    pub(crate) fn handed_out(&mut self, latency: Time) {
        self.latencies.push(latency);
    }

    /// Returns the nanoseconds to stay open; `None` when the arrival that fires also closes.
    pub(crate) fn grace(&self) -> Option<Time> {
        match self.grace {
            Grace::Fixed(time) if time.is_zero() => None,
            Grace::Fixed(time) => Some(time.as_nanos() as Time),
            Grace::Auto => {
                let (latency, step) = (self.latencies.median(), self.steps.least());
                Some(LEAST.max(match self.fruitless {
                    0..PATIENCE => latency + step / 200,
                    rounds if rounds.is_power_of_two() => 2 * latency + step / 50,
                    _ => latency.min(MODEST),
                }))
            }
        }
    }
}

/// The last few values of a series.
#[derive(Clone, Debug, Default)]
struct Recent {
    values: [Time; KEPT],
    seen: usize,
}

impl Recent {
    fn push(&mut self, value: Time) {
        self.values[self.seen % KEPT] = value;
        self.seen += 1;
    }

    fn kept(&self) -> &[Time] {
        &self.values[..self.seen.min(KEPT)]
    }

    fn least(&self) -> Time {
        self.kept().iter().copied().min().unwrap_or(0)
    }

    fn median(&self) -> Time {
        let mut sorted = self.values;
        let kept = &mut sorted[..self.seen.min(KEPT)];
        kept.sort_unstable();
        kept.get(kept.len() / 2).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_pause_does_not_stretch_the_grace() {
        let mut pace = Pace::new(Grace::Auto);
        assert_eq!(pace.grace(), Some(LEAST));
        for arrival in [0, 10_000_000, 20_000_000, 60_000_000_000] {
            pace.arrived(arrival);
        }
        assert_eq!(pace.grace(), Some(50_000));
        (0..8).for_each(|_| pace.handed_out(50_000));
        pace.handed_out(900_000_000);
        assert_eq!(pace.grace(), Some(100_000));
    }

    #[test]
    fn a_grace_that_catches_no_rank_shrinks_until_one_does() {
        let mut pace = Pace::new(Grace::Auto);
        (0..4).for_each(|step| pace.arrived(step * 10_000_000));
        (0..8).for_each(|_| pace.handed_out(300_000));
        assert_eq!(pace.grace(), Some(350_000));
        let mut missed = |rounds: usize| -> Vec<Time> {
            let mut grace = || {
                pace.saw(false);
                pace.grace().unwrap()
            };
            (0..rounds).map(|_| grace()).collect()
        };
        let seen = missed(40);
        assert!(seen[..15].iter().all(|&grace| grace == 350_000));
        let tries: Vec<usize> = (15..40).filter(|&round| seen[round] != MODEST).collect();
        assert_eq!(tries, [15, 31]);
        assert!(tries.iter().all(|&round| seen[round] == 800_000));
        pace.saw(true);
        assert_eq!(pace.grace(), Some(MODEST), "one is no rule");
        pace.saw(true);
        assert_eq!(pace.grace(), Some(350_000));
    }

    #[test]
    fn zero_closes_at_once() {
        assert_eq!(Pace::new(Grace::NONE).grace(), None);
    }
}
