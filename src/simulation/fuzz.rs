//! Runs many schedules, and shrinks one that fails.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;

use super::case::{Case, Edit};
use super::{Coverage, Failure, Options, Pairs, run, run_and_log};

/// The result of many schedules.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The number of schedules that were run.
    pub runs: u64,
    /// The cases that they met.
    pub coverage: Coverage,
    /// The conditions that they met together.
    pub pairs: Pairs,
    /// The first failures, by seed.
    pub failures: Vec<Failure>,
}

/// Runs the schedules that `case` makes from numbers, on as many threads as there are cores, until `most` have failed.
/// Calls `progress` from time to time with the number of finished schedules.
pub fn fuzz(
    numbers: Range<u64>,
    case: impl Fn(u64) -> Case + Sync,
    options: &Options,
    most: usize,
    progress: impl Fn(u64) + Sync,
) -> Found {
    let next = AtomicU64::new(numbers.start);
    let found = Mutex::new(Found::default());
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut own = Found::default();
                let give = |own: &mut Found| {
                    let own = std::mem::take(own);
                    let mut found = found.lock();
                    found.runs += own.runs;
                    found.coverage.add(&own.coverage);
                    found.pairs.merge(own.pairs);
                    found.failures.extend(own.failures);
                    if found.failures.len() >= most {
                        next.store(numbers.end, Ordering::Relaxed);
                    }
                    progress(found.runs);
                };
                loop {
                    let taken = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |number| {
                        (number < numbers.end).then(|| number + 1)
                    });
                    let Ok(number) = taken else { break };
                    own.runs += 1;
                    match run_and_log(&case(number), options, &mut None) {
                        Ok((coverage, conditions)) => {
                            own.coverage.add(&coverage);
                            own.pairs.add(&conditions);
                        }
                        Err(failure) => own.failures.push(failure),
                    }
                    if own.runs == 256 || !own.failures.is_empty() {
                        give(&mut own);
                    }
                }
                give(&mut own);
            });
        }
    });
    let mut found = found.into_inner();
    found.failures.sort_by_key(|failure| (failure.case.seed(), failure.case.order));
    found
}

/// The number of orders of events tried for each change. A smaller world fails in fewer of its orders.
const ORDERS: u64 = 200;

/// Makes a failing schedule smaller while the smaller one also fails. Uses at most `budget` runs.
#[must_use]
pub fn shrink(failure: Failure, options: &Options, budget: u64) -> Failure {
    let mut smallest = failure;
    let mut left = budget;
    'smaller: loop {
        let scenario = smallest.case.scenario(options);
        for edit in Edit::candidates(&scenario) {
            let mut case = smallest.case.clone();
            case.edits.push(edit);
            // Tries the same order first: an irrelevant change does not affect it.
            let same = case.order;
            for order in std::iter::once(same).chain((0..ORDERS).filter(|&order| order != same)) {
                if left == 0 {
                    return smallest;
                }
                left -= 1;
                if let Err(failure) = run(&case.clone().in_order(order), options) {
                    // A schedule that never ends takes as long as thousands that do.
                    left = left.saturating_sub(if failure.what.contains("no end") { 1_000 } else { 0 });
                    smallest = failure;
                    continue 'smaller;
                }
            }
        }
        return smallest;
    }
}
