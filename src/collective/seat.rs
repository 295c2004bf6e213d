//! Who drives a collective: its caller, or its caller and a thread.
#![forbid(unsafe_code)]

use std::cell::{RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::core::Machine;
use super::driver::Driver;
use super::patience::Patience;
use crate::error::{Error, Result};
use crate::fabric::Waker;

/// How long a caller has to come back before its thread sets to work.
const HEAD_START: Duration = Duration::from_micros(50);

/// Where the driver sits.
#[derive(Debug)]
pub(super) enum Seat {
    /// With the caller alone: no lock.
    Own(Box<RefCell<Driver>>),
    /// Shared with a thread, which works while the caller computes.
    Shared(Helper),
}

/// The driver, while it is used.
pub(super) enum InUse<'a> {
    Own(RefMut<'a, Driver>),
    Shared(MutexGuard<'a, Driver>),
}

impl Deref for InUse<'_> {
    type Target = Driver;

    #[inline]
    fn deref(&self) -> &Driver {
        match self {
            InUse::Own(driver) => driver,
            InUse::Shared(driver) => driver,
        }
    }
}

impl DerefMut for InUse<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Driver {
        match self {
            InUse::Own(driver) => driver,
            InUse::Shared(driver) => driver,
        }
    }
}

impl Seat {
    /// The driver. A thread that has it gives it up at its next step.
    #[inline]
    pub(super) fn take(&self) -> InUse<'_> {
        match self {
            Seat::Own(driver) => InUse::Own(driver.borrow_mut()),
            Seat::Shared(helper) => InUse::Shared(helper.take()),
        }
    }

    /// The caller has come to do the work itself.
    #[inline]
    pub(super) fn claim_work(&self) {
        if let Seat::Shared(helper) = self {
            helper.common.work.store(false, Ordering::Relaxed);
        }
    }

    /// The caller goes away with work left.
    #[inline]
    pub(super) fn leave_work(&self) {
        if let Seat::Shared(helper) = self {
            helper.common.work.store(true, Ordering::Release);
            helper.thread.as_ref().inspect(|thread| thread.thread().unpark());
        }
    }
}

/// A thread that drives a collective while its caller does something else.
#[derive(Debug)]
pub(super) struct Helper {
    common: Arc<Common>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Common {
    driver: Mutex<Driver>,
    /// The caller wants the driver, or has it.
    wanted: AtomicBool,
    /// There is an arrival to be carried through.
    work: AtomicBool,
    stop: AtomicBool,
}

impl Helper {
    /// # Errors
    /// When there can be no thread.
    pub(super) fn start(driver: Driver, mut patience: Patience, rank: u32) -> Result<Self> {
        prepare_to_sleep();
        let waker = driver.waker();
        let (wanted, work, stop) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let common = Arc::new(Common { driver: Mutex::new(driver), wanted, work, stop });
        let shared = common.clone();
        let thread = thread::Builder::new()
            .name(format!("earlybird {rank}"))
            .spawn(move || shared.run(&mut patience))
            .map_err(|cause| Error::join(rank, format!("no thread for the thread executor: {cause}")))?;
        Ok(Helper { common, waker, thread: Some(thread) })
    }

    fn take(&self) -> MutexGuard<'_, Driver> {
        let Common { driver, wanted, .. } = &*self.common;
        // Sequentially consistent with the thread's announcement of a sleep: either it sees this,
        // or the waker finds it announced.
        wanted.store(true, Ordering::SeqCst);
        let guard = driver.try_lock().unwrap_or_else(|| {
            self.waker.wake();
            driver.lock()
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

impl Common {
    fn run(&self, patience: &mut Patience) {
        while !self.stop.load(Ordering::Acquire) {
            if !self.work.load(Ordering::Acquire) {
                thread::park();
                continue;
            }
            // A caller that means to wait is back by then, and does better without a rival.
            thread::sleep(HEAD_START);
            if !self.work.swap(false, Ordering::AcqRel) {
                continue;
            }
            let mut driver = self.driver.lock();
            let over = |machine: &Machine| !machine.ready().is_empty() || !machine.has_arrival();
            if over(driver.machine()) {
                // The caller waited meanwhile, and has what it wants or is on its way out: a claim made now would
                // be nobody's.
                continue;
            }
            let leave = || self.wanted.load(Ordering::SeqCst) || self.stop.load(Ordering::Relaxed);
            // An error is met again by the caller, who can be told.
            let worked = catch_unwind(AssertUnwindSafe(|| patience.work(&mut driver, over, leave)));
            let Ok(worked) = worked else {
                // What it had claimed is lost: nobody may go on as if nothing had happened.
                return patience.abort("its thread executor panicked");
            };
            if worked.is_ok() && !over(driver.machine()) {
                // The caller came in between; go on when it is gone.
                self.work.store(true, Ordering::Release);
            }
        }
    }
}

impl Drop for Helper {
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
