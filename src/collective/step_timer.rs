//! Measures how long a rank computes its contributions, and how long it waits for others.
#![forbid(unsafe_code)]

use super::core::Durations;
use crate::time::Time;

/// Below this time, reading the clock in each step would cost noticeably.
const SHORT: Time = 1_000_000;

/// Of short steps, one in this number is measured: after the same rounds on all ranks, so that the times in a cut belong
/// together.
const EVERY: u64 = 16;

/// Measures steps: from the call that returned an outcome to the one that returned the next. The time is asked for only
/// while a step is measured.
#[derive(Clone, Debug, Hash)]
pub(crate) struct StepTimer {
    /// Whether contributions can tell durations.
    measures: bool,
    /// Steps below this time are not all measured.
    short: Time,
    /// The last measured step was short.
    is_short: bool,
    /// The newest round that was taken.
    newest: u64,
    /// When the measured step began.
    began: Option<Time>,
    /// When the first wait for its outcome began.
    waits: Option<Time>,
    /// How long the last measured step waited; its rank has not told that yet.
    waited: Option<Time>,
}

impl StepTimer {
    /// `measures`: contributions can tell durations.
    pub(crate) fn new(measures: bool) -> Self {
        StepTimer { measures, short: SHORT, is_short: false, newest: 0, began: None, waits: None, waited: None }
    }

    /// Measures short steps like all others.
    #[cfg(any(test, earlybird_tools))]
    pub(crate) fn measure_all(&mut self) {
        self.short = 0;
    }

    /// Returns whether this step is measured, so that the next call needs the time.
    #[inline]
    pub(crate) fn needs_time(&self) -> bool {
        self.began.is_some()
    }

    /// Notes that the rank begins to compute only now: what it did since its last outcome is no part of the step.
    pub(crate) fn computes(&mut self, now: impl FnOnce() -> Time) {
        if self.began.is_some() {
            self.began = Some(now());
        }
    }

    /// Notes that the rank hands in its contribution, and returns what it tells the others.
    #[inline]
    pub(crate) fn arrives(&mut self, now: Time) -> Durations {
        Durations::new(self.began.map(|began| now.saturating_sub(began)), self.waited.take())
    }

    /// Notes that the rank waits in a call.
    #[inline]
    pub(crate) fn waits(&mut self, now: impl FnOnce() -> Time) {
        if self.began.is_some() && self.waits.is_none() {
            self.waits = Some(now());
        }
    }

    /// Notes that the rank has the outcomes up to a round: a step ends, and the next one begins.
    #[inline]
    pub(crate) fn took(&mut self, newest: u64, now: impl FnOnce() -> Time) {
        let before = std::mem::replace(&mut self.newest, newest);
        let is_due = !self.is_short || newest / EVERY > before / EVERY;
        if self.began.is_some() || (self.measures && is_due) {
            self.begins_another(now());
        }
    }

    fn begins_another(&mut self, now: Time) {
        let waits = self.waits.take();
        let Some(began) = self.began.replace(now) else { return };
        self.waited = Some(waits.map_or(0, |since| now.saturating_sub(since)));
        self.is_short = now.saturating_sub(began) < self.short;
        if self.is_short {
            self.began = None;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A step: computes, waits, and gets its outcome. Returns what the rank told, and how often it read the clock.
    fn step(timer: &mut StepTimer, now: &mut Time, computes: Time, waits: Time) -> (Durations, u32) {
        let round = timer.newest + 1;
        let reads = std::cell::Cell::new(0);
        let read = |time: Time| {
            reads.set(reads.get() + 1);
            time
        };
        *now += computes;
        let told = if timer.needs_time() { timer.arrives(read(*now)) } else { timer.arrives(0) };
        timer.waits(|| read(*now));
        *now += waits;
        timer.took(round, || read(*now));
        (told, reads.get())
    }

    #[test]
    fn long_steps_are_all_measured() {
        let (timer, now) = (&mut StepTimer::new(true), &mut 77);
        assert_eq!(step(timer, now, 5_000_000, 0), (Durations::NONE, 1));
        assert_eq!(step(timer, now, 3_000_000, 1_000_000).0, Durations::new(Some(3_000_000), None));
        assert_eq!(step(timer, now, 2_000_000, 0), (Durations::new(Some(2_000_000), Some(1_000_000)), 3));
        assert_eq!(step(timer, now, 2_000_000, 0).0, Durations::new(Some(2_000_000), Some(0)));
    }

    #[test]
    fn of_short_steps_one_in_sixteen_reads_the_clock() {
        let (timer, now) = (&mut StepTimer::new(true), &mut 0);
        let told: Vec<(Durations, u32)> = (0..200).map(|_| step(timer, now, 900, 300)).collect();
        assert!(told.iter().map(|&(_, reads)| reads).sum::<u32>() < 200 / 16 * 5);
        let computed = told.iter().filter(|(told, _)| told.computed().is_some()).count();
        assert!((11..=13).contains(&computed), "{computed}");
        assert!(told.iter().filter_map(|(told, _)| told.waited()).all(|waited| waited == 256));
    }

    /// What a rank does with its outcome, such as applying it, is not counted.
    #[test]
    fn a_step_may_begin_after_its_outcome() {
        let timer = &mut StepTimer::new(true);
        timer.took(1, || 1_000_000);
        timer.computes(|| 9_000_000);
        assert_eq!(timer.arrives(14_000_000), Durations::new(Some(5_000_000), None));
        StepTimer::new(true).computes(|| panic!("no step is measured"));
    }

    #[test]
    fn a_timer_that_measures_nothing_reads_no_clock() {
        let (timer, now) = (&mut StepTimer::new(false), &mut 0);
        assert!((0..9).all(|_| step(timer, now, 5_000_000, 5_000_000) == (Durations::NONE, 0)));
    }
}
