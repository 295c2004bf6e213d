//! Sleeps until another rank rings, without losing a ring.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::fabric::bell;
use crate::sync::{AtomicU32, Ordering, full_fence};

/// The bit of an announcement that was delegated to the rank's sleeper. No interest has it.
const DELEGATED: u32 = 1 << 31;

/// Counts rings, for one thread that sleeps until the next one.
#[repr(transparent)]
#[cfg_attr(any(loom, test), derive(Debug, Default))]
pub(in crate::internals::fabric) struct Rings(AtomicU32);

impl Rings {
    /// Returns the number of rings so far.
    pub(super) fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Counts a ring, and wakes the thread.
    pub(super) fn ring(&self) {
        self.0.fetch_add(1, Ordering::Release);
        wake(&self.0);
    }

    /// Sleeps until there are more than `seen` rings, or for `at_most`.
    pub(super) fn sleep(&self, seen: u32, at_most: Duration) {
        wait(&self.0, seen, at_most);
    }
}

/// What wakes the thread of a rank that sleeps for several channels.
#[derive(Clone, Copy)]
pub(in crate::internals::fabric) struct RankSleeper<'a> {
    pub(super) rings: &'a Rings,
    /// The bell for a rank that sleeps on descriptors, for a network, too; and whether it does.
    pub(super) bell: Option<(&'a AtomicU32, &'a OwnedFd)>,
}

impl RankSleeper<'_> {
    /// Counts a ring, and wakes the thread.
    pub(super) fn ring(self) {
        self.rings.ring();
        // Acquire: pairs with `Segment::hear_bell`, which comes before the rank delegates its first wait.
        if let Some((hears, bell)) = self.bell
            && hears.load(Ordering::Acquire) != 0
        {
            bell::ring(bell);
        }
    }
}

impl<'a> From<&'a Rings> for RankSleeper<'a> {
    fn from(rings: &'a Rings) -> Self {
        RankSleeper { rings, bell: None }
    }
}

/// The doorbell of one rank in one channel.
///
/// It is an event count: the sleeper announces what it waits for, polls memory, and sleeps unless the bell rang since.
/// The rank that rings takes the announcement, so a sleeper is woken once.
///
/// One thread of a rank can sleep for many channels. It delegates each announcement to the rank's own count of rings,
/// and sleeps unless that count grew since before it delegated the first.
#[repr(C, align(64))]
#[cfg_attr(any(loom, test), derive(Debug, Default))]
pub(in crate::internals::fabric) struct Doorbell {
    interest: AtomicU32,
    rung: Rings,
}

impl Doorbell {
    /// Announces a wait, before the last poll of memory.
    pub(in crate::internals::fabric) fn announce(&self, interest: u32) {
        self.interest.store(interest, Ordering::Relaxed);
        // Pairs with the fence in `ring_all`: either the following poll of memory sees the change, or the rank that
        // made the change sees the announcement.
        full_fence();
    }

    pub(in crate::internals::fabric) fn withdraw(&self) {
        self.interest.store(0, Ordering::Relaxed);
    }

    /// Sleeps until the bell rings, or for `at_most`. A ring since the announcement counts.
    pub(in crate::internals::fabric) fn sleep(&self, at_most: Duration) {
        let rung = self.rung.count();
        if self.interest.load(Ordering::Acquire) == 0 {
            return;
        }
        self.rung.sleep(rung, at_most);
        self.withdraw();
    }

    /// Lets the next ring count for the rank's sleeper. Returns false if the bell rang since the announcement.
    pub(super) fn delegate(&self) -> bool {
        let interest = self.interest.load(Ordering::Relaxed);
        let delegated = interest | DELEGATED;
        interest != 0
            && self.interest.compare_exchange(interest, delegated, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns whether an announcement was delegated and the bell has not rung since.
    pub(super) fn is_delegated(&self) -> bool {
        self.interest.load(Ordering::Acquire) & DELEGATED != 0
    }

    /// Wakes the thread that waits for `interest` here, or the rank's `sleeper`. The caller has fenced after its
    /// changes, or the sleeper does that for both.
    pub(super) fn ring<'a>(&self, interest: u32, sleeper: impl Into<RankSleeper<'a>>) -> bool {
        let mut announced = self.interest.load(Ordering::Relaxed);
        // The announcement may be delegated in between.
        while announced & !DELEGATED == interest {
            match self.interest.compare_exchange(announced, 0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.wake(announced, sleeper.into());
                    return true;
                }
                Err(found) => announced = found,
            }
        }
        false
    }

    /// As [`Doorbell::ring`], whatever the thread waits for.
    pub(super) fn ring_always<'a>(&self, sleeper: impl Into<RankSleeper<'a>>) {
        if self.interest.load(Ordering::Relaxed) != 0 {
            match self.interest.swap(0, Ordering::AcqRel) {
                0 => {}
                taken => self.wake(taken, sleeper.into()),
            }
        }
    }

    fn wake(&self, taken: u32, sleeper: RankSleeper<'_>) {
        if taken & DELEGATED == 0 { self.rung.ring() } else { sleeper.ring() }
    }
}

/// Wakes the threads that wait for `interest` at these bells, each with its rank's sleeper: all, or at most `most` of
/// them. Returns how many were woken.
pub(in crate::internals::fabric) fn ring_all<'a>(
    bells: impl Iterator<Item = (&'a Doorbell, impl Into<RankSleeper<'a>>)>,
    most: u32,
    interest: u32,
) -> u32 {
    // Pairs with the fence in `announce`: a sleeper whose announcement is not visible here sees what was stored before
    // this.
    full_fence();
    ring_fenced(bells, most, interest)
}

/// As [`ring_all`], where sleepers fence for the rank that rings, between their announcement and their last poll.
pub(in crate::internals::fabric) fn ring_fenced<'a>(
    bells: impl Iterator<Item = (&'a Doorbell, impl Into<RankSleeper<'a>>)>,
    most: u32,
    interest: u32,
) -> u32 {
    // A fence of the sleeper acts between these instructions, so the compiler must not exchange them.
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    bells.filter_map(|(bell, sleeper)| bell.ring(interest, sleeper).then_some(())).take(most as usize).count() as u32
}

/// Sleeps while the cell holds `expect`, at most for `at_most`.
#[cfg(not(loom))]
fn wait(cell: &AtomicU32, expect: u32, at_most: Duration) {
    use rustix::thread::futex;
    let timeout =
        rustix::time::Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
    // Every result (changed value, signal, timeout) means: poll again.
    let _ = futex::wait(cell, futex::Flags::empty(), expect, Some(&timeout));
}

#[cfg(not(loom))]
fn wake(cell: &AtomicU32) {
    use rustix::thread::futex;
    let _ = futex::wake(cell, futex::Flags::empty(), 1);
}

/// As the futex, but without a timeout, so that loom finds a sleeper that is not woken.
#[cfg(loom)]
fn wait(cell: &AtomicU32, expect: u32, _: Duration) {
    // Not a load, because the kernel compares with the current value, not with an old one.
    while cell.fetch_add(0, Ordering::Relaxed) == expect {
        loom::thread::yield_now();
    }
}

#[cfg(loom)]
fn wake(_: &AtomicU32) {}
