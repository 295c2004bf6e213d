//! The parts that the tests under loom share: bounds of their searches, and planted mistakes.
//!
//! A planted mistake removes the ordering of one operation. A test that passes with it does not need that ordering, or
//! would not detect that it is missing.

use std::cell::RefCell;
use std::panic;
use std::sync::atomic::AtomicU64 as Count;
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use super::{AtomicU64, Ordering};

/// The most branches of one execution. A thread that waits for ever exceeds them.
const MOST_BRANCHES: usize = 10_000;

/// The longest time of a test. It leaves the remaining orders untried, and reports that.
const MOST_TIME: Duration = Duration::from_secs(60);

/// An operation on a cell, or between two cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Look,
    Announce,
    Raise,
    Swap,
    Add,
    Fence,
    /// The fence that a rank that goes to sleep puts into its peer, if it does that.
    FencePeer,
}

#[derive(Debug)]
struct Mistake {
    operation: Operation,
    /// Addresses of the cells where it is made; `None` stands for all cells.
    cells: Option<Vec<usize>>,
}

thread_local! {
    /// The mistake in the models that this thread runs: loom runs all threads of a model on the thread that started it.
    static PLANTED: RefCell<Option<Mistake>> = const { RefCell::new(None) };
}

/// Returns whether an operation, on a cell if it has one, lacks its ordering.
pub(crate) fn is_planted(operation: Operation, cell: Option<&AtomicU64>) -> bool {
    PLANTED.with_borrow(|planted| {
        let Some(mistake) = planted.as_ref().filter(|mistake| mistake.operation == operation) else { return false };
        match (&mistake.cells, cell) {
            (Some(cells), Some(cell)) => cells.contains(&address(cell)),
            _ => true,
        }
    })
}

pub(super) fn ordering(operation: Operation, cell: &AtomicU64, ordering: Ordering) -> Ordering {
    if is_planted(operation, Some(cell)) { Ordering::Relaxed } else { ordering }
}

fn address(cell: &AtomicU64) -> usize {
    std::ptr::from_ref(cell) as usize
}

/// Restricts the mistake, if there is one, to these cells from now on.
pub(crate) fn narrow<'a>(cells: impl Iterator<Item = &'a AtomicU64>) {
    let cells = cells.map(address).collect();
    PLANTED.with_borrow_mut(|planted| {
        if let Some(mistake) = planted {
            mistake.cells = Some(cells);
        }
    });
}

/// Tries a model in every order of effects, or in those with at most a given number of preemptions;
/// `LOOM_MAX_PREEMPTIONS` sets another bound. Prints the number of orders.
pub(crate) fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    builder.max_branches = builder.max_branches.max(MOST_BRANCHES);
    builder.max_duration = builder.max_duration.or(Some(MOST_TIME));
    // The clock is read at these intervals.
    builder.checkpoint_interval = 100;
    let (orders, started) = (Arc::new(Count::new(0)), Instant::now());
    let count = orders.clone();
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let (orders, time) = (orders.load(Ordering::Relaxed), started.elapsed());
    let rest = if Some(time) < builder.max_duration { "" } else { ", AND NOT ALL: the time was over" };
    println!("{orders} orders in {time:.1?}{rest}");
}

/// Runs a test with a mistake in it, and prints how the test found it.
///
/// # Panics
/// If the test did not find it.
pub(crate) fn find(operation: Operation, test: impl FnOnce() + Send + 'static) {
    keep_quiet();
    let run = move || {
        PLANTED.set(Some(Mistake { operation, cells: None }));
        test();
    };
    let Err(cause) = thread::spawn(run).join() else {
        panic!("the test passes although {operation:?} is without its ordering");
    };
    let text = cause.downcast_ref::<String>().map(String::as_str).or_else(|| cause.downcast_ref::<&str>().copied());
    println!("{operation:?} without its ordering: {}", text.unwrap_or_default().trim());
}

/// Keeps panics that find a planted mistake out of the output. Other panics are printed without a backtrace, which
/// takes more stack than loom gives to threads.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Loom's first run sets a hook, too.
        loom::model::Builder::new().check(|| {});
        panic::set_hook(Box::new(|info| {
            // Loom ends threads by panics without a text.
            let payload = info.payload();
            let has_text = payload.is::<String>() || payload.is::<&str>();
            let planted = PLANTED.try_with(|planted| planted.borrow().is_some()).unwrap_or(false);
            if has_text && !planted {
                eprintln!("thread {:?} {info}", thread::current().name().unwrap_or_default());
            }
        }));
    });
}
