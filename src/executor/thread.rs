//! Carries work on in a thread of its own, while its owner does something else.
#![forbid(unsafe_code)]

use std::cell::{RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::caller::Waiter;
use super::work::Shared;
use crate::error::{Error, Result};
use crate::fabric::Waker;

/// How long an owner has to come back before its thread sets to work.
const HEAD_START: Duration = Duration::from_micros(50);

/// Where work lies that has an owner.
#[derive(Debug)]
pub(crate) enum Seat<S: Shared> {
    /// With the owner alone: no lock.
    Own(Box<RefCell<S>>),
    /// Shared with a thread, which works while the owner computes.
    Shared(Helper<S>),
}

/// The work, while it is used.
pub(crate) enum InUse<'a, S> {
    Own(RefMut<'a, S>),
    Shared(MutexGuard<'a, S>),
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

impl<S: Shared> Seat<S> {
    /// The work. A thread that has it gives it up at its next step.
    #[inline]
    pub(crate) fn take(&self) -> InUse<'_, S> {
        match self {
            Seat::Own(work) => InUse::Own(work.borrow_mut()),
            Seat::Shared(helper) => InUse::Shared(helper.take()),
        }
    }

    /// The owner has come to do the work itself.
    #[inline]
    pub(crate) fn claim_work(&self) {
        if let Seat::Shared(helper) = self {
            helper.common.work.store(false, Ordering::Relaxed);
        }
    }

    /// The owner goes away with work left.
    #[inline]
    pub(crate) fn leave_work(&self) {
        if let Seat::Shared(helper) = self {
            helper.common.work.store(true, Ordering::Release);
            helper.thread.as_ref().inspect(|thread| thread.thread().unpark());
        }
    }
}

/// A thread that works while the owner does something else.
#[derive(Debug)]
pub(crate) struct Helper<S: Shared> {
    common: Arc<Common<S>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Common<S> {
    shared: Mutex<S>,
    /// The owner wants the work, or has it.
    wanted: AtomicBool,
    /// The owner went away with work left.
    work: AtomicBool,
    stop: AtomicBool,
}

impl<S: Shared> Helper<S> {
    /// # Errors
    /// When there can be no thread.
    pub(crate) fn start(shared: S, mut waiter: Waiter, rank: u32) -> Result<Self> {
        prepare_to_sleep();
        let waker = shared.waker();
        let (wanted, work, stop) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let common = Arc::new(Common { shared: Mutex::new(shared), wanted, work, stop });
        let its = common.clone();
        let thread = thread::Builder::new()
            .name(format!("earlybird {rank}"))
            .spawn(move || its.run(&mut waiter))
            .map_err(|cause| Error::os(rank, "start the helper thread", cause))?;
        Ok(Helper { common, waker, thread: Some(thread) })
    }

    fn take(&self) -> MutexGuard<'_, S> {
        let Common { shared, wanted, .. } = &*self.common;
        // Sequentially consistent with the thread's announcement of a sleep: either it sees this,
        // or the waker finds it announced.
        wanted.store(true, Ordering::SeqCst);
        let guard = shared.try_lock().unwrap_or_else(|| {
            self.waker.wake();
            shared.lock()
        });
        wanted.store(false, Ordering::Relaxed);
        guard
    }
}

/// The first sleep of a thread on a lock allocates: here, and not in the middle of a round.
fn prepare_to_sleep() {
    let lock = Mutex::new(());
    Condvar::new().wait_for(&mut lock.lock(), Duration::ZERO);
}

impl<S: Shared> Common<S> {
    fn run(&self, waiter: &mut Waiter) {
        while !self.stop.load(Ordering::Acquire) {
            if !self.work.load(Ordering::Acquire) {
                thread::park();
                continue;
            }
            // An owner that means to wait is back by then, and does better without a rival.
            thread::sleep(HEAD_START);
            if !self.work.swap(false, Ordering::AcqRel) {
                continue;
            }
            let mut shared = self.shared.lock();
            let leave = || self.wanted.load(Ordering::SeqCst) || self.stop.load(Ordering::Relaxed);
            // An error is met again by the owner, who can be told.
            let worked = catch_unwind(AssertUnwindSafe(|| match shared.left_undone() {
                Some(mut work) => waiter.help(&mut work, leave),
                None => Ok(()),
            }));
            let Ok(worked) = worked else {
                // What it had claimed is lost: no rank may go on as if nothing had happened.
                return waiter.abort("its thread executor panicked");
            };
            if worked.is_ok() && shared.left_undone().is_some() {
                // The owner came in between; go on when it is gone.
                self.work.store(true, Ordering::Release);
            }
        }
    }
}

impl<S: Shared> Drop for Helper<S> {
    fn drop(&mut self) {
        self.common.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has said so; there is nothing left to clean up.
            let _ = thread.join();
        }
    }
}
