//! The helper thread of a world: it carries on what owners leave, for each of them a turn at a time.
//!
//! The thread works, or sleeps for all of its tasks at once. It has no lock while it sleeps. An owner that leaves work
//! wakes it only if it sleeps: of the owner that marks its work as left and then looks at the thread, and the thread
//! that says that it sleeps and then looks at the marks, one sees the other.
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

/// How long an owner has to come back before the thread sets to work.
const HEAD_START: Duration = Duration::from_micros(50);

/// The operation that an error of the thread names.
const OPERATION: &str = "arrive";

/// Why a job fails whose thread does.
pub(super) const PANICKED: &str = "its thread executor panicked";

/// How a task stands.
pub(super) enum Stand {
    /// Nothing is left to the thread.
    Over,
    /// The same, because it was done just now.
    Done,
    /// The owner has it or wants it, or had it while the thread slept for it.
    Taken,
    /// The thread goes on with it, at the time of the timer at the latest.
    Awake { timer: Option<Instant> },
    /// The thread sleeps for it, until that time at most.
    Asleep { until: Option<Instant> },
}

/// What an owner shares with the thread. None of these calls waits for the owner.
pub(super) trait Task: Send + Sync + Debug {
    /// Whether the owner went away with work left.
    fn is_left(&self) -> bool;

    /// Whether the thread sleeps for it, and its owner has not come since.
    fn is_asleep(&self) -> bool;

    /// Works for a turn. It `begins` when the owner has just been away for the head start.
    fn work(&self, begins: bool, yields: bool) -> Stand;

    /// Announces a sleep for it, unless there is something to do.
    fn rest(&self) -> Stand;

    /// Ends the sleep for it, if that was ended by others or is `due` to end.
    fn stir(&self, due: bool) -> Stand;

    /// Does what can be done in place of dead ranks.
    fn outlive(&self, dead: &[u32]) -> Stand;

    /// Does nothing more for what is left now.
    fn forget(&self) -> Stand;
}

/// The thread, as the owners see it. It ends with the last of them.
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
    /// How often the tasks have changed.
    changes: AtomicU64,
    /// How the thread sleeps; [`AWAKE`] if it will look at its tasks again soon.
    sleep: AtomicU8,
    stop: AtomicBool,
}

const AWAKE: u8 = 0;
/// It has nothing to do.
const PARKED: u8 = 1;
/// It sleeps for some of its tasks.
const ASLEEP: u8 = 2;

impl Helper {
    /// Starts the thread of a world.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(crate) fn start(fabric: Arc<dyn Fabric>, spin: Spin) -> Result<Self> {
        let (rank, operation) = (fabric.rank(), "start the helper thread");
        let no_sleeper = || Error::transport(rank, None, operation, "it has no sleep for several collectives");
        let sleeper = fabric.sleeper().ok_or_else(no_sleeper)?;
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
            looked: Instant::now(),
            all_due: false,
            failure: None,
        };
        let run = move || {
            if catch_unwind(AssertUnwindSafe(|| shift.run())).is_err() {
                // What was left to it is not done: no rank may wait for that.
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

    /// The thread may still know of a task for some time.
    pub(super) fn remove(&self, task: &Arc<impl Task + 'static>) {
        let removed: *const () = Arc::as_ptr(task).cast();
        self.core.change(|tasks| tasks.retain(|each| Arc::as_ptr(each).cast() != removed));
    }

    /// Has the thread look at its tasks, one of which was marked before.
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
            // A thread that panicked has said so; there is nothing left to clean up.
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

/// What the thread knows of a task.
struct Charge {
    task: Arc<dyn Task>,
    stage: HelperStage,
}

#[derive(Clone, Copy)]
enum HelperStage {
    /// Nothing was left.
    Idle,
    /// Work was left. The owner has until then to come back.
    HeadStart { until: Instant },
    /// The thread works for it. It `begins` with the first turn.
    Awake { begins: bool, timer: Option<Instant> },
    /// The thread sleeps for it, until that time at most.
    Asleep { until: Option<Instant> },
}

/// The thread at work.
struct Shift {
    core: Arc<Core>,
    fabric: Arc<dyn Fabric>,
    sleeper: Box<dyn Sleeper>,
    spin: Spin,
    clock: Clock,
    /// Changes of the tasks that are in `charges`.
    changes: u64,
    charges: Vec<Charge>,
    /// Since when it sleeps and nothing has stirred.
    fell_asleep: Option<Instant>,
    /// When it last looked for dead peers.
    looked: Instant,
    /// It looks at all tasks again, whether something has stirred or not.
    all_due: bool,
    /// Why no round will be made any more, and how long those that had fired may take.
    failure: Option<(Error, Instant)>,
}

impl Shift {
    fn run(&mut self) {
        while !self.core.stop.load(Ordering::Acquire) {
            self.learn_of_changes();
            // A wake-up for a task that is looked at below, and was not seen, ends the next sleep.
            self.sleeper.prepare();
            self.take_turns();
            let is_any = |is: fn(&HelperStage) -> bool| self.charges.iter().any(|charge| is(&charge.stage));
            if is_any(|stage| matches!(stage, HelperStage::Awake { .. })) {
                self.spin_or_rest();
            } else if is_any(|stage| matches!(stage, HelperStage::Asleep { .. })) {
                self.sleep();
            } else if let Some(until) = self.head_start() {
                // An owner that means to wait is back by then, and does better without a rival.
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

    /// Gives each task that has something to do a turn.
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

    /// Spins for a while, and announces a sleep then.
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
        // Until a head start is over it can do without news.
        if head_start.is_none() {
            self.core.sleep.store(ASLEEP, Ordering::SeqCst);
        }
        if head_start.is_some() || !self.has_news() {
            self.sleeper.sleep(at_most);
        }
        self.core.sleep.store(AWAKE, Ordering::Relaxed);
        if self.looked.elapsed() >= HEARTBEAT {
            (self.looked, self.all_due) = (Instant::now(), true);
            if let Err(error) = self.fabric.look_for_dead(OPERATION) {
                self.fail(error);
            }
        }
    }

    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert_with(|| (error, Instant::now() + LAST_WORDS));
    }

    /// Whether there is something that the thread must not sleep for. It has said before that it sleeps.
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

    /// When the next head start is over.
    fn head_start(&self) -> Option<Instant> {
        let until = |charge: &Charge| match charge.stage {
            HelperStage::HeadStart { until } => Some(until),
            _ => None,
        };
        self.charges.iter().filter_map(until).min()
    }

    /// When the next task wants a turn although nothing happens.
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
            // It has a head start again once its owner goes away.
            Stand::Taken if task.is_left() => HelperStage::HeadStart { until: Instant::now() + HEAD_START },
            Stand::Over | Stand::Done | Stand::Taken => HelperStage::Idle,
            Stand::Awake { timer } => HelperStage::Awake { begins: false, timer },
            Stand::Asleep { until } => HelperStage::Asleep { until },
        }
    }
}
