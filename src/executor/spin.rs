//! How long to spin before sleeping.
#![forbid(unsafe_code)]

use std::time::Duration;

use crate::time::Time;

/// A spin time that follows what was enough before, within bounds.
#[derive(Clone, Debug)]
pub(crate) struct Spin {
    most: Time,
    budget: Time,
    /// Whether there are more ranks than cores: the rank that is waited for may need this very core.
    yields: bool,
    idle_since: Time,
}

const LEAST: Time = 1_000;

impl Spin {
    /// Creates it. `most` is the longest time to spin; `yields` offers the core to others meanwhile.
    pub(crate) fn new(most: Duration, yields: bool) -> Self {
        let most = most.as_nanos() as Time;
        Spin { most, budget: most, yields, idle_since: 0 }
    }

    /// Returns whether the core is offered to others between two polls.
    pub(crate) fn yields(&self) -> bool {
        self.yields
    }

    /// Starts to spin at `now`.
    pub(crate) fn begin(&mut self, now: Time) {
        self.idle_since = now;
    }

    /// Returns whether to continue spinning. Spinning meets a timer that is nearer than the longest spin more exactly.
    pub(crate) fn goes_on(&self, now: Time, timer: Option<Time>) -> bool {
        let near = timer.is_some_and(|at| at.saturating_sub(now) < self.most);
        near || now.saturating_sub(self.idle_since) < self.budget
    }

    /// Records that the spin was successful.
    pub(crate) fn paid(&mut self, now: Time) {
        self.grow(now.saturating_sub(self.idle_since));
    }

    /// Records a sleep: a short one should have been a short spin; a long one was worth it. Then spins from `now`.
    pub(crate) fn slept(&mut self, asleep: Time, now: Time) {
        let time = now.saturating_sub(asleep);
        if time < self.most {
            self.grow(time);
        } else {
            self.budget = (self.budget / 2).max(LEAST.min(self.most));
        }
        self.idle_since = now;
    }

    fn grow(&mut self, enough: Time) {
        self.budget = self.budget.max(4 * enough).clamp(LEAST.min(self.most), self.most);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const MOST: Time = 20_000;

    fn spin() -> Spin {
        let mut spin = Spin::new(Duration::from_nanos(MOST), false);
        spin.begin(1_000_000);
        spin
    }

    /// How long it spins if nothing comes.
    fn budget(spin: &mut Spin) -> Time {
        spin.begin(0);
        (0..=MOST).find(|&now| !spin.goes_on(now, None)).unwrap()
    }

    #[test]
    fn it_spins_for_as_long_as_was_enough_before() {
        let mut spin = spin();
        assert!(spin.goes_on(1_000_000 + MOST - 1, None) && !spin.goes_on(1_000_000 + MOST, None));
        for _ in 0..10 {
            spin.slept(0, MOST);
        }
        assert_eq!(budget(&mut spin), LEAST, "sleeps were long");
        spin.begin(0);
        spin.paid(900);
        assert_eq!(budget(&mut spin), 3_600);
        spin.slept(0, 2_000);
        assert_eq!(budget(&mut spin), 8_000, "the sleep was short");
        spin.begin(0);
        spin.paid(MOST);
        assert_eq!(budget(&mut spin), MOST);
    }

    #[test]
    fn it_spins_towards_a_timer_that_is_near() {
        let mut spin = spin();
        (0..10).for_each(|_| spin.slept(0, MOST));
        spin.begin(0);
        let now = LEAST;
        assert!(!spin.goes_on(now, None) && !spin.goes_on(now, Some(now + MOST)));
        assert!(spin.goes_on(now, Some(now + MOST - 1)) && spin.goes_on(now, Some(0)), "or is over");
    }

    #[test]
    fn without_a_budget_it_sleeps_at_once() {
        let mut spin = Spin::new(Duration::ZERO, true);
        spin.paid(1_000);
        spin.slept(0, 1_000);
        assert_eq!(budget(&mut spin), 0);
    }
}
