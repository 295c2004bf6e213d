//! What the threads of a rank share: the engine behind its lock, and how to wait for it.
//!
//! Callers make progress themselves while they are inside the library. A thread does when they are
//! not, so that a rank that computes or sleeps still answers (G3, G7): it looks every now and then
//! whether a caller has been here, and if none has, it takes over and sleeps on the descriptors of
//! the completion queue.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use earlybird_ffi::ofi::Watched;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::channel::{clear_bell, ring};
use super::engine::Engine;
use super::suspects::{Evidence, STEP};
use crate::error::{Error, Result};
use crate::fabric::watch::Watch;

/// How long the thread keeps away from callers that are at work, at first and in the end: each look
/// takes a core from somebody.
const NAP: Duration = Duration::from_micros(500);
const LONGEST_NAP: Duration = Duration::from_millis(4);

/// How long a sleep lasts where the provider has nothing to sleep on.
const DOZE: Duration = Duration::from_micros(50);

/// How long a sleeper keeps to itself what it has dealt with.
const ACK_DELAY: Duration = Duration::from_micros(200);

/// How often peers are looked after.
const BEAT: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Shared {
    engine: Mutex<Engine>,
    rank: u32,
    failed: Arc<AtomicBool>,
    /// Times that a caller made progress.
    visits: AtomicU64,
    /// Callers that sleep in the library: they wake by themselves.
    sleepers: AtomicU32,
    stop: AtomicBool,
    bell: OwnedFd,
    watch: Watch,
    /// Beats without a word from a peer after which it counts as dead.
    silence: u32,
}

fn bell(rank: u32) -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|cause| Error::os(rank, "make a bell", cause))
}

impl Shared {
    pub(super) fn new(engine: Engine, failed: Arc<AtomicBool>, watch: Watch, silence: Duration) -> Result<Arc<Self>> {
        Ok(Arc::new(Shared {
            rank: engine.rank,
            bell: bell(engine.rank)?,
            engine: Mutex::new(engine),
            failed,
            visits: AtomicU64::new(0),
            sleepers: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            watch,
            silence: silence.as_millis().div_ceil(BEAT.as_millis()).max(2) as u32,
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    /// The engine, for a caller that makes progress and will come back soon.
    pub(super) fn visit(&self) -> MutexGuard<'_, Engine> {
        self.visits.fetch_add(1, Ordering::Relaxed);
        self.lock()
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    pub(super) fn new_bell(&self) -> Result<Arc<OwnedFd>> {
        bell(self.rank).map(Arc::new)
    }

    pub(super) fn health(&self, operation: &'static str) -> Result<()> {
        match self.failed.load(Ordering::Acquire) {
            false => Ok(()),
            true => self.lock().health(operation),
        }
    }

    /// Looks for processes on this machine that have ended. What they sent before is dealt with before that is
    /// believed, so it may take a few calls.
    pub(super) fn look_for_dead(&self, operation: &'static str) -> Result<()> {
        self.health(operation)?;
        let known = |peer| self.lock().knows_end_of(peer);
        if let Some(&peer) = self.watch.ended(known).first() {
            self.lock().suspect(peer, Evidence::Ended);
        }
        self.lock().check_suspects();
        self.health(operation)
    }

    /// Sleeps until something happens on the network or the bell rings.
    fn sleep(&self, bell: BorrowedFd<'_>, network: Option<&[Watched]>, at_most: Duration) {
        let at_most = if network.is_some_and(<[_]>::is_empty) { at_most.min(DOZE) } else { at_most };
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        let mut polled = vec![PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        let watched = network.into_iter().flatten();
        polled.extend(watched.map(|Watched { descriptor, events }| {
            PollFd::new(descriptor, PollFlags::from_bits_retain(events.cast_unsigned()))
        }));
        // Interrupted is as good as over: whoever sleeps looks again.
        let _ = poll(&mut polled, Some(&timeout));
        if !polled[0].revents().is_empty() {
            clear_bell(bell);
        }
    }

    /// Waits on a channel until its wait is over, making progress.
    pub(super) fn wait(&self, channel: u16, bell: &Arc<OwnedFd>, at_most: Duration) {
        let begun = Instant::now();
        let until = begun + at_most;
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        loop {
            let mut engine = self.visit();
            engine.progress();
            let now = Instant::now();
            // Usually the next message says it; whoever has nothing to send for so long says it now.
            let mut sleep = until.saturating_duration_since(now);
            if now >= begun + ACK_DELAY {
                engine.ack_all();
            } else if engine.has_acks_pending() {
                sleep = sleep.min(ACK_DELAY);
            }
            if engine.channel(channel).is_woken() || now >= until {
                engine.channel(channel).announce(false);
                break;
            }
            let may_sleep = engine.wire.may_sleep();
            engine.channel(channel).sleeps_on(Some(bell.clone()));
            drop(engine);
            if let Some(network) = may_sleep {
                self.sleep(bell.as_fd(), Some(&network), sleep);
            }
            self.lock().channel(channel).sleeps_on(None);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits until something holds of the engine; whether it does.
    pub(super) fn wait_until(
        &self,
        channel: u16,
        bell: &Arc<OwnedFd>,
        until: Instant,
        holds: impl Fn(&Engine) -> bool,
    ) -> bool {
        loop {
            {
                let mut engine = self.visit();
                engine.progress();
                if holds(&engine) {
                    return true;
                }
                engine.channel(channel).announce(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.wait(channel, bell, left.min(crate::fabric::shm::HEARTBEAT));
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        ring(&self.bell);
    }

    /// What the thread does.
    pub(super) fn run_helper(&self) {
        let (mut seen, mut nap) = (0, NAP);
        let mut beat = Instant::now() + BEAT;
        let mut silent = vec![0; self.lock().ranks() as usize];
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            if now >= beat {
                // By own beats, not by the clock: a process that was stopped for a while has not
                // listened meanwhile, and blames nobody.
                beat = now + BEAT;
                self.check_peers(&mut silent);
            }
            let visits = self.visits.load(Ordering::Relaxed);
            if visits != seen || self.sleepers.load(Ordering::Relaxed) > 0 {
                seen = visits;
                self.sleep(self.bell.as_fd(), None, nap);
                let mut engine = self.lock();
                engine.ack_if_due();
                engine.check_suspects();
                nap = (2 * nap).min(LONGEST_NAP);
                continue;
            }
            nap = NAP;
            let mut engine = self.lock();
            // Asking whether it may sleep can take the sign from a caller that sleeps already: what it
            // meant is dealt with here then.
            let may_sleep = (0..4).find_map(|_| {
                while engine.progress() {}
                engine.ack_all();
                engine.wire.may_sleep()
            });
            let at_most = beat.saturating_duration_since(Instant::now());
            let at_most = if engine.has_suspects() { at_most.min(STEP) } else { at_most };
            drop(engine);
            if let Some(network) = may_sleep {
                self.sleep(self.bell.as_fd(), Some(&network), at_most);
            }
        }
    }

    /// Asks those who are far away for a sign of life, and looks whether those who are near live.
    fn check_peers(&self, silent: &mut [u32]) {
        let _ = self.look_for_dead("heartbeat");
        let mut engine = self.lock();
        // Who has said something is not silent, also if that was while this process was stopped.
        engine.catch_up();
        engine.reassure_senders(|peer| !self.watch.watches(peer));
        let ranks = engine.ranks();
        for step in 1..ranks {
            let peer = (self.rank + step) % ranks;
            // Each looks after a few, so that somebody is left to look when several die; after one that has left, as
            // long as it needs something of it.
            let is_mine = if engine.has_left(peer) { engine.needs(peer) } else { step.is_power_of_two() };
            if self.watch.watches(peer) || !is_mine {
                continue;
            }
            let count = &mut silent[peer as usize];
            *count = if engine.was_heard(peer) { 0 } else { *count + 1 };
            if *count >= self.silence {
                engine.suspect(peer, Evidence::Silent(BEAT * self.silence));
            } else if *count > 0 {
                engine.ping(peer);
            }
        }
    }
}
