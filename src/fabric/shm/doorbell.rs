//! Sleeps until another rank rings, without losing a ring.

use std::time::Duration;

use crate::sync::{AtomicU32, Ordering, full_fence};

/// The doorbell of one rank in one channel.
///
/// An event count: the sleeper announces what it waits for, looks at memory, and sleeps unless the
/// bell rang since. The rank that rings takes the announcement, so a sleeper is woken once.
#[repr(C, align(64))]
#[cfg_attr(any(loom, test), derive(Debug, Default))]
pub(in crate::fabric) struct Doorbell {
    interest: AtomicU32,
    rung: AtomicU32,
}

impl Doorbell {
    /// Announces a wait, before the last look at memory.
    pub(in crate::fabric) fn announce(&self, interest: u32) {
        self.interest.store(interest, Ordering::Relaxed);
        // Pairs with the fence in `ring`: either the look at memory that follows sees the change,
        // or the rank that made the change sees the announcement.
        full_fence();
    }

    pub(in crate::fabric) fn withdraw(&self) {
        self.interest.store(0, Ordering::Relaxed);
    }

    /// Sleeps until the bell rings, or for `at_most`. A ring since the announcement counts.
    pub(in crate::fabric) fn sleep(&self, at_most: Duration) {
        let rung = self.rung.load(Ordering::Acquire);
        if self.interest.load(Ordering::Acquire) == 0 {
            return;
        }
        wait(&self.rung, rung, at_most);
        self.withdraw();
    }

    /// Wakes the sleeper if it waits for `interest`. The caller has fenced after its changes.
    pub(super) fn ring(&self, interest: u32) -> bool {
        if self.interest.load(Ordering::Relaxed) != interest {
            return false;
        }
        let taken = self.interest.compare_exchange(interest, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if taken {
            self.rung.fetch_add(1, Ordering::Release);
            wake(&self.rung);
        }
        taken
    }

    /// Wakes the sleeper whatever it waits for. The caller has fenced after its changes.
    pub(super) fn ring_always(&self) {
        if self.interest.load(Ordering::Relaxed) != 0 && self.interest.swap(0, Ordering::AcqRel) != 0 {
            self.rung.fetch_add(1, Ordering::Release);
            wake(&self.rung);
        }
    }
}

/// Wakes the sleepers that wait for `interest` at these bells: all, or `most` of them. Returns how
/// many were woken.
pub(in crate::fabric) fn ring_all<'a>(bells: impl Iterator<Item = &'a Doorbell>, most: u32, interest: u32) -> u32 {
    // Pairs with the fence in `announce`: a sleeper whose announcement is not seen here sees what
    // was stored before this.
    full_fence();
    bells.filter(|bell| bell.ring(interest)).take(most as usize).count() as u32
}

/// Sleeps while the cell holds `expect`, at most for `at_most`.
#[cfg(not(loom))]
fn wait(cell: &AtomicU32, expect: u32, at_most: Duration) {
    use rustix::thread::futex;
    let timeout =
        rustix::time::Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
    // Every result (changed value, signal, timeout) means: look again.
    let _ = futex::wait(cell, futex::Flags::empty(), expect, Some(&timeout));
}

#[cfg(not(loom))]
fn wake(cell: &AtomicU32) {
    use rustix::thread::futex;
    let _ = futex::wake(cell, futex::Flags::empty(), 1);
}

/// As the futex, but without a timeout: loom finds a sleeper that is not woken.
#[cfg(loom)]
fn wait(cell: &AtomicU32, expect: u32, _: Duration) {
    // Not a load: the kernel compares with the current value, not with an old one.
    while cell.fetch_add(0, Ordering::Relaxed) == expect {
        loom::thread::yield_now();
    }
}

#[cfg(loom)]
fn wake(_: &AtomicU32) {}
