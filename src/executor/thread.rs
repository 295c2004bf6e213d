//! Work that the helper thread of a world continues while its owner does something else.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, MappedMutexGuard, Mutex, MutexGuard};
use rustix::io::Errno;

use super::caller::{Clock, poll};
use super::helper::{Helper, PANICKED, Stand, Task};
use super::notice::Notice;
use super::work::{Outlived, Rest, Shared};
use crate::error::Result;
use crate::fabric::Fabric;

/// The number of steps that the thread does for one owner before the next one has its turn.
const TURN: u32 = 16;

/// Where owned work is kept.
#[derive(Debug)]
pub(crate) enum Lease<S: Shared> {
    /// Only the owner has it: no lock.
    Own(Box<RefCell<S>>),
    /// The owner shares it with a thread, which works while the owner computes.
    Shared(Helped<S>),
}

/// The work while it is in use.
pub(crate) enum InUse<'a, S> {
    Own(RefMut<'a, S>),
    Shared(MappedMutexGuard<'a, S>),
}

impl<S> Deref for InUse<'_, S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        match self {
            InUse::Own(work) => work,
            InUse::Shared(work) => work,
        }
    }
}

impl<S> DerefMut for InUse<'_, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut S {
        match self {
            InUse::Own(work) => work,
            InUse::Shared(work) => work,
        }
    }
}

impl<S: Shared> Lease<S> {
    /// Returns whether a helper thread works while the owner does something else.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Lease::Shared(_))
    }

    /// Returns the work. A thread that has it gives it up at its next step.
    #[inline]
    pub(crate) fn take(&self) -> InUse<'_, S> {
        match self {
            Lease::Own(work) => InUse::Own(work.borrow_mut()),
            Lease::Shared(helped) => InUse::Shared(helped.take()),
        }
    }

    /// Returns the notice that the thread has nothing left to do, if it was [asked for](Seat::make_notice).
    #[inline]
    pub(crate) fn notice(&self) -> Option<&Notice> {
        match self {
            Lease::Own(_) => None,
            Lease::Shared(helped) => helped.common.notice.get(),
        }
    }

    /// Makes the notice. `None` if no thread works for the owner.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn make_notice(&self) -> std::result::Result<Option<&Notice>, Errno> {
        let Lease::Shared(helped) = self else { return Ok(None) };
        let made = Notice::new()?;
        Ok(Some(helped.common.notice.get_or_init(|| made)))
    }

    /// Records that the owner has come to do the work itself.
    #[inline]
    pub(crate) fn claim_work(&self) {
        if let Lease::Shared(helped) = self {
            helped.common.left.store(false, Ordering::Relaxed);
        }
    }

    /// Records that the owner goes away with work left.
    #[inline]
    pub(crate) fn leave_work(&self) {
        if let Lease::Shared(helped) = self {
            helped.common.left.store(true, Ordering::SeqCst);
            helped.helper.notify();
        }
    }
}

/// Work that its owner shares with the helper thread of the world.
#[derive(Debug)]
pub(crate) struct Helped<S: Shared> {
    common: Arc<Common<S>>,
    helper: Arc<Helper>,
}

/// What both share. The thread never sleeps while it holds the lock.
#[derive(Debug)]
struct Common<S> {
    /// The work; `None` once the owner has dropped it.
    shared: Mutex<Option<S>>,
    fabric: Arc<dyn Fabric>,
    clock: Clock,
    /// Whether the owner waits for the lock.
    wanted: AtomicBool,
    /// Whether the owner went away with work left. The thread clears this when no work is left.
    left: AtomicBool,
    /// Whether the thread also sleeps for this work. Changed only under the lock.
    asleep: AtomicBool,
    /// Raised when there is something to take, or when the thread has nothing left to do.
    notice: OnceLock<Notice>,
}

impl<S: Shared> Helped<S> {
    /// Shares work whose time a clock counts.
    pub(crate) fn new(shared: S, clock: Clock, helper: Arc<Helper>) -> Self {
        prepare_to_sleep();
        let (wanted, left, asleep) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let (shared, fabric) = (Mutex::new(Some(shared)), helper.fabric().clone());
        let notice = OnceLock::new();
        let common = Arc::new(Common { shared, fabric, clock, wanted, left, asleep, notice });
        helper.add(common.clone());
        Helped { common, helper }
    }

    #[inline]
    fn take(&self) -> MappedMutexGuard<'_, S> {
        let Common { shared, wanted, asleep, .. } = &*self.common;
        let guard = shared.try_lock().unwrap_or_else(|| {
            wanted.store(true, Ordering::Relaxed);
            let guard = shared.lock();
            wanted.store(false, Ordering::Relaxed);
            guard
        });
        let mut work = MutexGuard::map(guard, |shared| shared.as_mut().expect("the owner has not dropped it"));
        if asleep.load(Ordering::Relaxed) {
            self.rouse(&mut work);
        }
        work
    }

    /// Wakes the thread, which sleeps for this work, because the owner is about to change it.
    #[cold]
    fn rouse(&self, work: &mut S) {
        self.common.asleep.store(false, Ordering::SeqCst);
        work.rouse();
        // It must check the work again, unless the owner has come to do the work itself.
        if self.common.left.load(Ordering::Relaxed) {
            self.helper.notify();
        }
    }
}

/// Makes the allocation of a thread's first sleep on a lock here, and not in the middle of a round.
fn prepare_to_sleep() {
    let lock = Mutex::new(());
    Condvar::new().wait_for(&mut lock.lock(), Duration::ZERO);
}

impl<S: Shared> Drop for Helped<S> {
    fn drop(&mut self) {
        self.helper.remove(&self.common);
        let Common { shared, wanted, left, .. } = &*self.common;
        left.store(false, Ordering::Relaxed);
        wanted.store(true, Ordering::Relaxed);
        // The thread may keep the rest for some time. The work itself ends here.
        let work = shared.lock().take();
        drop(work);
    }
}

impl<S: Shared> Common<S> {
    /// Does a step of work that the owner has left and does not want now.
    fn act(&self, act: impl FnOnce(&mut S) -> Result<Stand>) -> Stand {
        if !self.left.load(Ordering::Acquire) {
            return Stand::Over;
        }
        if self.wanted.load(Ordering::Relaxed) {
            return Stand::Taken;
        }
        let Some(mut shared) = self.shared.try_lock() else { return Stand::Taken };
        let acted = catch_unwind(AssertUnwindSafe(|| shared.as_mut().map_or(Ok(Stand::Over), act)));
        let stand = acted.unwrap_or_else(|_| {
            // What it had claimed is lost, so no rank may continue as if nothing had happened. This is still under the
            // lock, because the owner is next.
            self.fabric.abort(PANICKED);
            Ok(Stand::Over)
        });
        // The owner meets the error again, and can report it.
        let stand = stand.unwrap_or(Stand::Over);
        let is_over = matches!(stand, Stand::Over | Stand::Done);
        if is_over {
            // Still under the lock, so that what the owner leaves later stays left.
            self.left.store(false, Ordering::Relaxed);
        }
        if let Some(notice) = self.notice.get()
            && (is_over || shared.as_ref().is_some_and(S::has_result))
        {
            notice.raise();
        }
        stand
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    fn end_sleep(&self, shared: &mut S) {
        self.asleep.store(false, Ordering::Relaxed);
        shared.rouse();
    }
}

impl<S: Shared> Task for Common<S> {
    fn is_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }

    fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    fn work(&self, begins: bool, yields: bool) -> Stand {
        self.act(|shared| {
            let Some(work) = shared.left_undone() else { return Ok(Stand::Over) };
            if begins {
                work.begin();
            }
            let (now, steps) = (self.clock.now(), Cell::new(1));
            let leave = || self.is_wanted() || steps.replace(steps.get() + 1) == TURN;
            let polls = work.polls(yields);
            let done = poll(work, now, polls, &leave)?;
            if work.wants_time(now) {
                work.time(self.clock.now());
            }
            // If there is more to do, the next turn is due at once.
            let timer = if steps.get() > TURN { Some(now) } else { work.next_timer() };
            let timer = timer.and_then(|timer| self.clock.instant_of(timer));
            Ok(if done { Stand::Done } else { Stand::Awake { timer } })
        })
    }

    fn rest(&self) -> Stand {
        self.act(|shared| {
            let Some(work) = shared.left_undone() else { return Ok(Stand::Over) };
            let Rest::Asleep { until } = work.rest(self.clock.now())? else {
                return Ok(Stand::Awake { timer: None });
            };
            if !work.delegate() {
                work.rouse();
                return Ok(Stand::Awake { timer: None });
            }
            self.asleep.store(true, Ordering::Relaxed);
            Ok(Stand::Asleep { until: until.and_then(|until| self.clock.instant_of(until)) })
        })
    }

    fn stir(&self, due: bool) -> Stand {
        self.act(|shared| {
            if !self.asleep.load(Ordering::Relaxed) {
                return Ok(Stand::Taken);
            }
            if !due && shared.is_asleep() {
                return Ok(Stand::Asleep { until: None });
            }
            self.end_sleep(shared);
            Ok(Stand::Awake { timer: None })
        })
    }

    fn outlive(&self, dead: &[u32]) -> Stand {
        self.act(|shared| {
            if self.asleep.load(Ordering::Relaxed) {
                self.end_sleep(shared);
            }
            let Some(work) = shared.left_undone() else { return Ok(Stand::Over) };
            dead.iter().for_each(|&rank| work.hear_of(rank));
            let now = self.clock.now();
            loop {
                match work.outlive(now)? {
                    Outlived::Progress if self.is_wanted() => return Ok(Stand::Taken),
                    Outlived::Progress => {}
                    Outlived::Ready => return Ok(Stand::Done),
                    Outlived::Pending => return Ok(Stand::Awake { timer: None }),
                    Outlived::Lost => return Ok(Stand::Over),
                }
            }
        })
    }

    fn forget(&self) -> Stand {
        self.act(|_| Ok(Stand::Over))
    }
}
