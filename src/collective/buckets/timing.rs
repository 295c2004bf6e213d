//! When tensors are ready, and what a message costs. Each rank measures it; then all ranks agree.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::collective::allreduce::Allreduce;
use crate::collective::options::Options;
use crate::error::Result;
use crate::merge::{Bucket, Cost, Gradient, Merging, Planner};
use crate::reduce::{Item, Reduce};
use crate::time::Deadline;
use crate::world::World;

/// The number of steps before the first plan by measurements, and the number between later plans. Where ranks make
/// different numbers of steps, rounds count instead.
pub(super) const FIRST: u32 = 10;
pub(super) const PERIOD: u32 = 100;

/// A new plan replaces the current one only if its steps take less than this fraction of the time: the exchange costs
/// some steps.
const WORTHWHILE: f64 = 0.99;

/// The largest message that is measured, in bytes. The times of larger ones are derived from it.
const LARGEST: usize = 8 << 20;
const ROUNDS: usize = 5;

/// The longest time, in seconds: a longer one that a rank told counts as this.
const LONGEST: f64 = 1e5;
const WARMUP: usize = 2;

/// The mean and the deviation of a time, over the steps since the last plan.
#[derive(Clone, Copy, Debug, Default)]
struct Spread {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Spread {
    /// Adds a measurement, by Welford's method.
    fn add(&mut self, time: f64) {
        self.count += 1.0;
        let before = time - self.mean;
        self.mean += before / self.count;
        self.squares += before * (time - self.mean);
    }

    /// Returns the mean plus one standard deviation: of ranks that differ from step to step, one is late.
    fn late(&self) -> f64 {
        self.mean + (self.squares / self.count.max(1.0)).sqrt()
    }
}

/// What a rank has measured since the last plan.
#[derive(Debug)]
pub(super) struct Timing {
    ready: Vec<Spread>,
    /// The total time that messages took for which this rank waited, and the time that they should have taken.
    took: f64,
    expected: f64,
    /// The number of steps since the last plan.
    steps: u64,
    until_plan: u64,
    /// The round after which the last plan was made.
    planned: u64,
    /// Whether this rank has told the others what it measured and has not yet taken what they told.
    asked: bool,
    cost: Cost,
    bytes: Vec<u64>,
    planner: Planner,
    /// When the current plan's last bucket ends, counted from the beginning of the step.
    predicted: Option<Duration>,
    exchange: Allreduce<f64>,
}

impl Timing {
    /// Measures messages of several sizes. All ranks call it.
    pub(super) fn new<T: Item>(world: &World, choices: &Options, lengths: &[usize], until: Deadline) -> Result<Self> {
        let (total, each) = (lengths.iter().sum::<usize>(), choices.dtype.size());
        let largest = total.min(LARGEST / each).max(1);
        let mut sizes: Vec<usize> = [1, 4, 16, 64].iter().map(|part| (largest / part).max(1)).collect();
        sizes.dedup();
        let mut points = Vec::new();
        for &size in &sizes {
            let mut sum = choices.synchronous::<T>(world, &[size], until)?;
            let mut times = Vec::new();
            for _ in 0..WARMUP + ROUNDS {
                sum.contribution()?;
                let begin = Instant::now();
                sum.arrive()?;
                drop(sum.wait(until)?);
                times.push(begin.elapsed().as_secs_f64());
            }
            sum.finish(until)?;
            let times = &mut times[WARMUP..];
            times.sort_by(f64::total_cmp);
            points.push(times[ROUNDS / 2]);
        }
        let agreed = {
            let mut exchange = world.allreduce::<f64>(&[points.len()]).reduce(Reduce::Max).by(until).build()?;
            let agreed = largest_of_all(&mut exchange, &points, until)?;
            exchange.finish(until)?;
            agreed
        };
        let points: Vec<(f64, f64)> = sizes.iter().map(|&size| (size * each) as f64).zip(agreed).collect();
        let exchange = world.allreduce::<f64>(&[lengths.len() + 1]).reduce(Reduce::Max).by(until).build()?;
        Ok(Timing {
            ready: vec![Spread::default(); lengths.len()],
            took: 0.0,
            expected: 0.0,
            steps: 0,
            until_plan: FIRST.into(),
            planned: 0,
            asked: false,
            cost: fit(&points),
            bytes: lengths.iter().map(|length| (length * each) as u64).collect(),
            planner: Planner::default(),
            predicted: None,
            exchange,
        })
    }

    pub(super) fn cost(&self) -> Cost {
        self.cost
    }

    pub(super) fn predicted(&self) -> Option<Duration> {
        self.predicted
    }

    /// Records how long after the step began a tensor was ready.
    pub(super) fn is_ready(&mut self, tensor: usize, after: Duration) {
        self.ready[tensor].add(after.as_secs_f64());
    }

    /// Records how long a message of `bytes` bytes took, as far as this rank can tell.
    pub(super) fn has_taken(&mut self, bytes: u64, time: Duration) {
        self.took += time.as_secs_f64();
        self.expected += self.cost.of(bytes).as_secs_f64();
    }

    /// Begins a step.
    pub(super) fn count_step(&mut self) {
        self.steps += 1;
    }

    /// Returns whether a plan is due now, where all ranks make the same steps.
    pub(super) fn is_due_after_steps(&self) -> bool {
        self.steps >= self.until_plan
    }

    /// Returns whether a plan is due after a round.
    pub(super) fn is_due_after(&self, round: u64) -> bool {
        round >= self.planned + self.until_plan
    }

    /// Returns the buckets for the next steps: the current ones, if no others are worth the exchange. All ranks call it
    /// at the same step and get the same result; `None` if one of them has left. After a timeout, call it again.
    pub(super) fn plan(
        &mut self,
        (current, merging): (&[Range<usize>], Merging),
        round: u64,
        until: Deadline,
    ) -> Result<Option<Vec<Range<usize>>>> {
        if !self.asked {
            // Of ranks that wait for each other, the last one sees how long a message takes. So the least of all times
            // counts.
            let ratio = if self.expected > 0.0 { self.took / self.expected } else { 1.0 };
            let mine = self.ready.iter().map(Spread::late).chain([-ratio]);
            self.exchange.contribution()?.iter_mut().zip(mine).for_each(|(to, from)| *to = from);
            self.exchange.arrive()?;
            self.asked = true;
        }
        let outcomes = self.exchange.wait(until)?;
        self.asked = false;
        if outcomes.newest().cut().leaving().next().is_some() {
            return Ok(None);
        }
        let agreed = outcomes.newest().to_vec();
        drop(outcomes);
        let (ready, ratio) = agreed.split_at(self.ready.len());
        // A rank may have told something that is not a number.
        let factor = if ratio[0].is_finite() { (-ratio[0]).clamp(0.25, 4.0) } else { 1.0 };
        self.cost = scaled(self.cost, factor);
        let gradients: Vec<Gradient> = ready
            .iter()
            .map(|&ready| time_of(ready))
            .zip(&self.bytes)
            .map(|(ready, &bytes)| Gradient { ready, bytes })
            .collect();
        let (predicted, changed) = choose(&mut self.planner, current, merging, &gradients, self.cost);
        self.predicted = Some(predicted);
        self.ready.fill(Spread::default());
        (self.took, self.expected) = (0.0, 0.0);
        (self.steps, self.until_plan, self.planned) = (0, PERIOD.into(), round);
        Ok(Some(changed.unwrap_or_else(|| current.to_vec())))
    }

    /// Makes this rank stop planning, and waits for no rank. [`finish`](Timing::finish) comes later.
    pub(super) fn leave(&mut self) {
        // The arrival is handed in at once; others need not arrive for that.
        _ = self.exchange.finish(Deadline::from(Instant::now()));
    }

    pub(super) fn finish(&mut self, until: Deadline) -> Result<()> {
        self.exchange.finish(until)
    }
}

/// Returns when the last bucket will end, and the new buckets if these are worth the exchange.
fn choose(
    planner: &mut Planner,
    current: &[Range<usize>],
    merging: Merging,
    gradients: &[Gradient],
    cost: Cost,
) -> (Duration, Option<Vec<Range<usize>>>) {
    let end = |buckets: &[Bucket]| buckets.last().map_or(Duration::ZERO, |bucket| bucket.end);
    let now = end(planner.schedule(current, gradients, cost));
    let best = planner.plan(merging, gradients, cost);
    let then = end(best);
    let ranges: Vec<Range<usize>> = best.iter().map(|bucket| bucket.gradients.clone()).collect();
    if ranges != current && then.as_secs_f64() < WORTHWHILE * now.as_secs_f64() {
        (then, Some(ranges))
    } else {
        (now, None)
    }
}

/// Returns the largest value of all ranks, element by element.
fn largest_of_all(exchange: &mut Allreduce<f64>, mine: &[f64], until: Deadline) -> Result<Vec<f64>> {
    exchange.contribution()?.copy_from_slice(mine);
    exchange.arrive()?;
    Ok(exchange.wait(until)?.newest().to_vec())
}

/// Returns the cost that is nearest to the measured times in seconds for numbers of bytes, relative to each time.
fn fit(points: &[(f64, f64)]) -> Cost {
    let weighted = |value: fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|&(bytes, time)| value(bytes, time) / (time * time).max(1e-18)).sum()
    };
    let (one, x, xx) = (weighted(|_, _| 1.0), weighted(|bytes, _| bytes), weighted(|bytes, _| bytes * bytes));
    let (y, xy) = (weighted(|_, time| time), weighted(|bytes, time| bytes * time));
    let spread = one * xx - x * x;
    let slope = if spread > 0.0 { ((one * xy - x * y) / spread).max(0.0) } else { 0.0 };
    let fixed = if one > 0.0 { ((y - slope * x) / one).max(0.0) } else { 0.0 };
    Cost { message: time_of(fixed), per_mib: time_of(slope * f64::from(1 << 20)) }
}

fn scaled(cost: Cost, factor: f64) -> Cost {
    let scaled = |time: Duration| time_of(time.as_secs_f64() * factor);
    Cost { message: scaled(cost.message), per_mib: scaled(cost.per_mib) }
}

/// Converts a time in seconds that ranks told; what is not a time becomes zero.
fn time_of(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.clamp(0.0, LONGEST)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again() {
        let time = |bytes: f64| 40e-6 + bytes * 1e-9;
        let cost = fit(&[1e3, 1e4, 1e6, 8e6].map(|bytes| (bytes, time(bytes))));
        assert!(cost.message.abs_diff(Duration::from_micros(40)) < Duration::from_nanos(50), "{cost:?}");
        assert!(cost.per_mib.abs_diff(Duration::from_nanos(1_048_576)) < Duration::from_micros(1), "{cost:?}");
        // Of one point the fixed cost is known.
        assert_eq!(fit(&[(8.0, 1e-3)]), Cost { message: Duration::from_millis(1), per_mib: Duration::ZERO });
        assert_eq!(fit(&[]), Cost { message: Duration::ZERO, per_mib: Duration::ZERO });
    }

    #[test]
    fn buckets_change_where_that_is_worth_it() {
        let ms = Duration::from_millis;
        let gradients = [1, 2, 3].map(|ready| Gradient { ready: ms(ready), bytes: 1 << 20 });
        let mut planner = Planner::default();
        let mut choose = |current: &[Range<usize>], per_mib| {
            let cost = Cost { message: Duration::from_micros(10), per_mib };
            choose(&mut planner, current, Merging::Optimal, &gradients, cost)
        };
        let (one, each) = (std::iter::once(0..3).collect::<Vec<_>>(), vec![0..1, 1..2, 2..3]);
        assert_eq!(choose(&one, ms(1)), (Duration::from_micros(4_030), Some(each.clone())));
        assert_eq!(choose(&each, ms(1)), (Duration::from_micros(4_030), None));
        // 14 of 3,031 microseconds are not worth it.
        let (predicted, changed) = choose(&one, Duration::from_micros(7));
        assert_eq!((predicted, changed), (Duration::from_micros(3_031), None));
    }

    #[test]
    fn what_is_no_time_counts_for_none() {
        for seconds in [f64::NAN, f64::NEG_INFINITY, -1.0] {
            assert_eq!(time_of(seconds), Duration::ZERO);
        }
        let longest = Cost { message: time_of(f64::INFINITY), per_mib: time_of(f64::MAX) };
        assert_eq!(scaled(longest, 4.0), longest);
        assert!(longest.of(u64::MAX) > Duration::ZERO);
    }

    #[test]
    fn lateness_is_the_mean_and_a_deviation() {
        let mut spread = Spread::default();
        assert_eq!(spread.late(), 0.0);
        [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter().for_each(|time| spread.add(time));
        assert!((spread.late() - 7.0).abs() < 1e-12, "{spread:?}");
    }
}
