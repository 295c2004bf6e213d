//! The helper thread of a world: it continues the work that owners leave, for each owner a turn at a time.
//!
//! The thread works, or sleeps for all of its tasks at once. It holds no lock while it sleeps. An owner that leaves
//! work wakes the thread only if it sleeps. The owner marks its work as left and then reads the thread's state; the
//! thread announces that it sleeps and then reads the marks. So one of the two sees the other.
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::caller::{Clock, LAST_WORDS, dead};
use super::spin::Spin;
use crate::error::{Error, Result};
use crate::fabric::watch::HEARTBEAT;
use crate::fabric::{Fabric, Sleeper, Waker};

/// The time that an owner has to come back before the thread begins its work.
const HEAD_START: Duration = Duration::from_micros(50);

/// The operation that errors of the thread name.
const OPERATION: &str = "arrive";

/// The reason for aborting the job if the thread panics.
pub(super) const PANICKED: &str = "its thread executor panicked";

/// The state of a task.
pub(super) enum Stand {
    /// Nothing is left to the thread.
    Over,
    /// As `Over`, because the work was completed just now.
    Done,
    /// The owner has or wants the work, or had it while the thread slept for it.
    Taken,
    /// The thread continues with it, at the latest at the time of the timer.
    Awake { timer: Option<Instant> },
    /// The thread sleeps for it, at most until that time.
    Asleep { until: Option<Instant> },
}

/// What an owner shares with the thread. None of these calls waits for the owner.
pub(super) trait Task: Send + Sync + Debug {
    /// Returns whether the owner went away with work left.
    fn is_left(&self) -> bool;

    /// Returns whether the thread sleeps for it, and its owner has not come since.
    fn is_asleep(&self) -> bool;

    /// Works for a turn. `begins` says that the owner has just been away for the head start.
    fn work(&self, begins: bool, yields: bool) -> Stand;

    /// Announces a sleep for it, unless there is something to do.
    fn rest(&self) -> Stand;

    /// Ends the sleep for it, if others ended it or it is `due` to end.
    fn stir(&self, due: bool) -> Stand;

    /// Does what can be done in place of dead ranks.
    fn outlive(&self, dead: &[u32]) -> Stand;

    /// Gives up what is left now.
    fn forget(&self) -> Stand;
}

/// The thread as its owners see it. It ends with the last of them.
#[derive(Debug)]
pub(crate) struct Helper {
    fabric: Arc<dyn Fabric>,
    core: Arc<Core>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Core {
    tasks: Mutex<Vec<Arc<dyn Task>>>,
    /// The number of changes of the list of tasks.
    changes: AtomicU64,
    /// The thread's sleep; [`AWAKE`] if it will check its tasks again soon.
    sleep: AtomicU8,
    stop: AtomicBool,
}

const AWAKE: u8 = 0;
/// The thread has nothing to do.
const PARKED: u8 = 1;
/// The thread sleeps for some of its tasks.
const ASLEEP: u8 = 2;

impl Helper {
    /// Starts the thread of a world.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(fabric: Arc<dyn Fabric>, sleeper: Box<dyn Sleeper>, spin: Spin) -> Result<Self> {
        let (rank, operation) = (fabric.rank(), "start the helper thread");
        let (core, waker) = (Arc::new(Core::default()), sleeper.waker());
        let mut shift = Shift {
            core: core.clone(),
            fabric: fabric.clone(),
            sleeper,
            spin,
            clock: Clock::start(),
            changes: 0,
            charges: Vec::new(),
            fell_asleep: None,
            checked: Instant::now(),
            all_due: false,
            failure: None,
        };
        let run = move || {
            if catch_unwind(AssertUnwindSafe(|| shift.run())).is_err() {
                // The work left to it is not done, so no rank may wait for it.
                shift.fabric.abort(PANICKED);
            }
        };
        let thread = thread::Builder::new().name(format!("earlybird {rank}")).spawn(run);
        let thread = thread.map_err(|cause| Error::os(rank, operation, cause))?;
        Ok(Helper { fabric, core, waker, thread: Some(thread) })
    }

    pub(super) fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.fabric
    }

    pub(super) fn add(&self, task: Arc<dyn Task>) {
        self.core.change(|tasks| tasks.push(task));
    }

    /// Removes a task. The thread may still know of it for some time.
    pub(super) fn remove(&self, task: &Arc<impl Task + 'static>) {
        let removed: *const () = Arc::as_ptr(task).cast();
        self.core.change(|tasks| tasks.retain(|each| Arc::as_ptr(each).cast() != removed));
    }

    /// Makes the thread check its tasks, one of which was marked before.
    #[inline]
    pub(super) fn notify(&self) {
        match self.core.sleep.load(Ordering::SeqCst) {
            PARKED => _ = self.thread.as_ref().inspect(|thread| thread.thread().unpark()),
            ASLEEP => self.waker.wake(),
            _ => {}
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.core.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has reported it; there is nothing left to clean up.
            let _ = thread.join();
        }
    }
}

impl Core {
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<dyn Task>>)) {
        let mut tasks = self.tasks.lock();
        change(&mut tasks);
        self.changes.fetch_add(1, Ordering::SeqCst);
    }
}

/// What the thread knows about a task.
struct Charge {
    task: Arc<dyn Task>,
    stage: HelperStage,
}

#[derive(Clone, Copy)]
enum HelperStage {
    /// No work is left.
    Idle,
    /// Work is left. The owner has until then to come back.
    HeadStart { until: Instant },
    /// The thread works for it. `begins` is true for the first turn.
    Awake { begins: bool, timer: Option<Instant> },
    /// The thread sleeps for it, at most until that time.
    Asleep { until: Option<Instant> },
}

/// The state of the running thread.
struct Shift {
    core: Arc<Core>,
    fabric: Arc<dyn Fabric>,
    sleeper: Box<dyn Sleeper>,
    spin: Spin,
    clock: Clock,
    /// The value of `changes` that `charges` reflects.
    changes: u64,
    charges: Vec<Charge>,
    /// Since when it has slept without an event.
    fell_asleep: Option<Instant>,
    /// When it last checked for dead peers.
    checked: Instant,
    /// Whether it must check all tasks again, even without an event.
    all_due: bool,
    /// Why no further round will fire, and until when fired rounds may still complete.
    failure: Option<(Error, Instant)>,
}

impl Shift {
    fn run(&mut self) {
        while !self.core.stop.load(Ordering::Acquire) {
            self.learn_of_changes();
            // A wake-up for a task that is checked below, and that was not seen, ends the next sleep.
            self.sleeper.prepare();
            self.take_turns();
            let is_any = |is: fn(&HelperStage) -> bool| self.charges.iter().any(|charge| is(&charge.stage));
            if is_any(|stage| matches!(stage, HelperStage::Awake { .. })) {
                self.spin_or_rest();
            } else if is_any(|stage| matches!(stage, HelperStage::Asleep { .. })) {
                self.sleep();
            } else if let Some(until) = self.head_start() {
                // An owner that is about to wait is back by then, and works better without a rival.
                thread::sleep(until.saturating_duration_since(Instant::now()));
            } else {
                self.core.sleep.store(PARKED, Ordering::SeqCst);
                if !self.has_news() {
                    thread::park();
                }
                self.core.sleep.store(AWAKE, Ordering::Relaxed);
            }
        }
    }

    fn learn_of_changes(&mut self) {
        if self.core.changes.load(Ordering::Acquire) == self.changes {
            return;
        }
        let tasks = self.core.tasks.lock();
        self.changes = self.core.changes.load(Ordering::Relaxed);
        let is = |charge: &Charge, task: &Arc<dyn Task>| Arc::ptr_eq(&charge.task, task);
        self.charges.retain(|charge| tasks.iter().any(|task| is(charge, task)));
        for task in &*tasks {
            if !self.charges.iter().any(|charge| is(charge, task)) {
                self.charges.push(Charge { task: task.clone(), stage: HelperStage::Idle });
            }
        }
    }

    /// Gives a turn to each task that has something to do.
    fn take_turns(&mut self) {
        let (started, all_due) = (Instant::now(), std::mem::take(&mut self.all_due));
        let now = self.clock.time_of(started);
        let dead = self.failure.as_ref().map_or_else(Vec::new, |(failure, _)| dead(&*self.fabric, failure));
        let Shift { charges, spin, failure, fell_asleep, .. } = self;
        for Charge { task, stage } in charges {
            if let HelperStage::HeadStart { until } = *stage
                && started >= until
            {
                *stage = HelperStage::Idle;
                if task.is_left() {
                    *stage = HelperStage::Awake { begins: true, timer: None };
                    spin.begin(now);
                }
            }
            let stand = match (&failure, *stage) {
                (_, HelperStage::Idle) if task.is_left() => Stand::Taken,
                (_, HelperStage::Idle | HelperStage::HeadStart { .. }) => continue,
                (Some((_, until)), _) => {
                    let stand = if dead.is_empty() { Stand::Awake { timer: None } } else { task.outlive(&dead) };
                    let gives_up = dead.is_empty() || started >= *until;
                    if gives_up && matches!(stand, Stand::Awake { .. }) { task.forget() } else { stand }
                }
                (None, HelperStage::Awake { begins, .. }) => task.work(begins, spin.yields()),
                (None, HelperStage::Asleep { until }) => {
                    let stand = task.stir(all_due || until.is_some_and(|until| until <= started));
                    if matches!(stand, Stand::Asleep { .. }) {
                        continue;
                    }
                    if let Some(since) = fell_asleep.take() {
                        spin.slept(self.clock.time_of(since), now);
                    }
                    stand
                }
            };
            if matches!(stand, Stand::Done) {
                spin.paid(self.clock.now());
            }
            *stage = HelperStage::after(stand, &**task);
        }
    }

    /// Spins for a while, and then announces a sleep.
    fn spin_or_rest(&mut self) {
        if self.spin.yields() || self.failure.is_some() {
            rustix::thread::sched_yield();
        }
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = self.fabric.health(OPERATION) {
            return self.fail(error);
        }
        let timer = self.timer().map(|timer| self.clock.time_of(timer));
        if self.spin.goes_on(self.clock.now(), timer) {
            return;
        }
        for Charge { task, stage } in &mut self.charges {
            if let HelperStage::Awake { .. } = stage {
                *stage = HelperStage::after(task.rest(), &**task);
            }
        }
    }

    /// Sleeps for all tasks that are not idle.
    fn sleep(&mut self) {
        let (now, head_start) = (Instant::now(), self.head_start());
        let until = [head_start, self.timer()].into_iter().flatten().min();
        let at_most = until.map_or(HEARTBEAT, |until| until.saturating_duration_since(now).min(HEARTBEAT));
        self.fell_asleep.get_or_insert(now);
        // Until a head start is over it needs no news.
        if head_start.is_none() {
            self.core.sleep.store(ASLEEP, Ordering::SeqCst);
        }
        if head_start.is_some() || !self.has_news() {
            self.sleeper.sleep(at_most);
        }
        self.core.sleep.store(AWAKE, Ordering::Relaxed);
        if self.checked.elapsed() >= HEARTBEAT {
            (self.checked, self.all_due) = (Instant::now(), true);
            if let Err(error) = self.fabric.check_peers(OPERATION) {
                self.fail(error);
            }
        }
    }

    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert_with(|| (error, Instant::now() + LAST_WORDS));
    }

    /// Returns whether there is an event for which the thread must not sleep. It has announced its sleep before.
    fn has_news(&self) -> bool {
        let is_new = |charge: &Charge| match charge.stage {
            HelperStage::Idle => charge.task.is_left(),
            HelperStage::Asleep { .. } => !charge.task.is_asleep(),
            HelperStage::HeadStart { .. } | HelperStage::Awake { .. } => true,
        };
        self.core.stop.load(Ordering::SeqCst)
            || self.core.changes.load(Ordering::SeqCst) != self.changes
            || self.charges.iter().any(is_new)
    }

    /// Returns when the next head start is over.
    fn head_start(&self) -> Option<Instant> {
        let until = |charge: &Charge| match charge.stage {
            HelperStage::HeadStart { until } => Some(until),
            _ => None,
        };
        self.charges.iter().filter_map(until).min()
    }

    /// Returns when the next task wants a turn even without an event.
    fn timer(&self) -> Option<Instant> {
        let timer = |charge: &Charge| match charge.stage {
            HelperStage::Awake { timer: at, .. } | HelperStage::Asleep { until: at } => at,
            HelperStage::Idle | HelperStage::HeadStart { .. } => None,
        };
        self.charges.iter().filter_map(timer).min()
    }
}

impl HelperStage {
    fn after(stand: Stand, task: &dyn Task) -> Self {
        match stand {
            // It gets a head start again once its owner goes away.
            Stand::Taken if task.is_left() => HelperStage::HeadStart { until: Instant::now() + HEAD_START },
            Stand::Over | Stand::Done | Stand::Taken => HelperStage::Idle,
            Stand::Awake { timer } => HelperStage::Awake { begins: false, timer },
            Stand::Asleep { until } => HelperStage::Asleep { until },
        }
    }
}
