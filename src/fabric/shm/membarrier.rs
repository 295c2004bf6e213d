//! A fence that one process executes in all others, so that they need none on their fast path.
//!
//! A rank that is about to sleep announces that, and then polls once more what its peer stores. The peer stores, and
//! then polls the announcement. One of the two must see the other, which takes a full fence on both sides. The sleeper
//! is slow anyway, so it executes both: membarrier(2) with `MEMBARRIER_CMD_GLOBAL_EXPEDITED` interrupts every running
//! thread of the registered processes, and each passes a full fence before the call returns. Then the peer has either
//! stored before, which the sleeper sees, or it polls afterwards and sees the announcement.
#![forbid(unsafe_code)]

use rustix::thread::{MembarrierCommand, membarrier};

/// Registers this process for fences of other processes; returns whether the kernel supports that.
pub(super) fn register() -> bool {
    // Tries both calls, because a seccomp filter may allow one and not the other.
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// Executes a full fence in every thread of every registered process.
pub(super) fn everywhere() {
    let passed = membarrier(MembarrierCommand::GlobalExpedited);
    // The call worked when this process registered. If the kernel refuses it later, a sleeper polls again after a
    // heartbeat.
    debug_assert!(passed.is_ok(), "{passed:?}");
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::hint::spin_loop;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;

    use super::super::ShmFabric;
    use super::super::doorbell::{Doorbell, Rings};
    use super::*;
    use crate::fabric::{Fabric, RawAccess};
    use crate::skipped::{Need, skipped};

    const ROUNDS: u64 = 100_000;

    /// The number of rounds in which a rank would sleep for a tag that is there, and is not woken.
    /// The peer stores the tag and rings, without a fence; the sleeper announces, fences with
    /// `everywhere`, and looks.
    fn lost(everywhere: fn()) -> u64 {
        let (bell, tag) = (Doorbell::default(), AtomicU64::new(0));
        let (begun, met, rang) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let meet = |meeting: u64| {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < 2 * meeting {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while begun.load(Ordering::SeqCst) < round {
                        spin_loop();
                    }
                    (0..round % 61).for_each(|_| spin_loop());
                    tag.store(round, Ordering::Release);
                    let heard = bell.ring(1, &Rings::default());
                    rang.store(heard, Ordering::SeqCst);
                    meet(2 * round - 1);
                    meet(2 * round);
                }
            });
            let mut lost = 0;
            for round in 1..=ROUNDS {
                begun.store(round, Ordering::SeqCst);
                (0..round % 53).for_each(|_| spin_loop());
                bell.announce(1);
                everywhere();
                let sleeps = tag.load(Ordering::Acquire) != round;
                meet(2 * round - 1);
                lost += u64::from(sleeps && !rang.load(Ordering::SeqCst));
                bell.withdraw();
                meet(2 * round);
            }
            lost
        })
    }

    #[test]
    fn a_peer_without_a_fence_wakes_a_sleeper_that_fenced_for_it() {
        if !register() {
            return skipped(Need::Membarrier, "this kernel has none; ranks fence for themselves");
        }
        println!("lost without the fence: {} of {ROUNDS}", lost(|| {}));
        assert_eq!(lost(everywhere), 0);
    }

    #[test]
    fn only_of_two_ranks_does_the_sleeper_fence_for_both() {
        for (ranks, fences) in [(1, false), (2, register()), (3, false)] {
            let world = ShmFabric::in_this_process(ranks).expect("a world");
            let ends: Vec<_> = world.iter().map(|rank| rank.open(RawAccess::CRATE).expect("an endpoint")).collect();
            assert!(ends.iter().all(|end| end.waits_fence_peer() == fences), "{ranks} ranks");
        }
    }
}
