//! State that the threads of a rank share: the engine behind its lock, and how to wait for it.
//!
//! Callers make progress themselves while they are in the library. At other times the helper thread does, so that a
//! rank that computes or sleeps still answers (G3, G7). It checks at intervals whether a caller has been here. If none
//! has, it takes over and sleeps on the descriptors of the completion queue.
#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::engine::NetEngine;
use super::suspects::{Evidence, STEP};
use super::wire::{Watched, Wire};
use crate::error::Result;
use crate::fabric::Attendant;
use crate::fabric::bell;
use crate::fabric::watch::{HEARTBEAT, Watch};

/// The shortest and longest sleep of the helper thread while callers are active: each check takes a core from another
/// thread.
const PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(4);

/// The longest sleep where nothing announces what a rank waits for: the provider has no descriptor to sleep on, or this
/// rank polls its memory. The kernel adds its timer slack.
pub(super) const BACK_OFF: Duration = Duration::from_micros(50);

/// The maximum number of polls of the network during which the helper thread keeps callers waiting.
const MOST_POLLS: u32 = 64;

/// How long a sleeping caller delays its acks.
const ACK_DELAY: Duration = Duration::from_micros(200);

/// The interval of the checks whether peers live.
const BEAT: Duration = Duration::from_millis(200);

pub(in crate::internals::fabric) struct NetShared<W: Wire> {
    engine: Mutex<NetEngine<W>>,
    rank: u32,
    failed: Arc<AtomicBool>,
    /// Whether nothing ends a sleep for what devices change in this rank's memory.
    polls_memory: bool,
    /// The number of times that a caller made progress.
    visits: AtomicU64,
    /// The number of callers that sleep in the library and wake by themselves.
    sleepers: AtomicU32,
    stop: AtomicBool,
    bell: OwnedFd,
    /// The bell of a thread that sleeps for several channels.
    sleeper_bell: Arc<OwnedFd>,
    /// The bell that other processes of this host ring for any wait of this rank, if they can.
    host_bell: OnceLock<OwnedFd>,
    watch: Watch,
    /// The number of silent beats after which a peer counts as dead.
    silence: u32,
    /// Called by the helper thread.
    attendant: OnceLock<Attendant>,
}

impl<W: Wire> fmt::Debug for NetShared<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetShared").field("engine", &self.engine).field("watch", &self.watch).finish_non_exhaustive()
    }
}

impl<W: Wire> NetShared<W> {
    pub(super) fn new(
        engine: NetEngine<W>,
        failed: Arc<AtomicBool>,
        watch: Watch,
        silence: Duration,
    ) -> Result<Arc<Self>> {
        Ok(Arc::new(NetShared {
            rank: engine.rank,
            bell: bell::make(engine.rank)?,
            sleeper_bell: Arc::new(bell::make(engine.rank)?),
            host_bell: OnceLock::new(),
            polls_memory: engine.link.polls_memory(),
            engine: Mutex::new(engine),
            failed,
            visits: AtomicU64::new(0),
            sleepers: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            watch,
            silence: u32::try_from(silence.as_millis().div_ceil(BEAT.as_millis())).unwrap_or(u32::MAX).max(2),
            attendant: OnceLock::new(),
        }))
    }

    pub(in crate::internals::fabric) fn lock(&self) -> MutexGuard<'_, NetEngine<W>> {
        self.engine.lock()
    }

    /// Locks the engine for a caller that makes progress and will come back soon.
    pub(super) fn visit(&self) -> MutexGuard<'_, NetEngine<W>> {
        let engine = self.lock();
        // Only the holder of the lock counts, so this needs no atomic addition.
        self.visits.store(self.visits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        engine
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    pub(super) fn new_bell(&self) -> Result<Arc<OwnedFd>> {
        bell::make(self.rank).map(Arc::new)
    }

    pub(super) fn sleeper_bell(&self) -> &Arc<OwnedFd> {
        &self.sleeper_bell
    }

    pub(super) fn health(&self, operation: &'static str) -> Result<()> {
        match self.failed.load(Ordering::Acquire) {
            false => Ok(()),
            true => self.lock().health(operation),
        }
    }

    /// Checks for processes on this machine that have ended, and for trouble that the device reports. What such a
    /// process sent before is processed before its end counts, so that may take a few calls.
    pub(super) fn check_peers(&self, operation: &'static str) -> Result<()> {
        self.health(operation)?;
        self.lock().hear_alarm();
        let known = |peer| self.lock().knows_end_of(peer);
        for peer in self.watch.ended(known) {
            self.lock().suspect(peer, Evidence::Ended);
        }
        {
            let mut engine = self.lock();
            engine.poll_device();
            engine.check_suspects();
        }
        self.health(operation)
    }

    /// Ends the waits of this rank from now on when another process of its host rings this bell.
    pub(super) fn hear(&self, bell: OwnedFd) {
        let _ = self.host_bell.set(bell);
    }

    /// As [`NetShared::sleep`], in a wait, which the bell of the host ends, too. Which wait that bell means is not known
    /// here, so it ends all. Delegated waits end in the memory of the host alone, where their sleeper looks for that. Returns
    /// whether a bell rang.
    fn sleep_in_wait(&self, bell: &Arc<OwnedFd>, network: Option<&[Watched]>, at_most: Duration) -> bool {
        let host_bell = self.host_bell.get().map(AsFd::as_fd);
        let [rang, of_host] = self.sleep(&[Some(bell.as_fd()), host_bell], network, at_most);
        if of_host && self.lock().end_waits(bell, &self.sleeper_bell) && !Arc::ptr_eq(bell, &self.sleeper_bell) {
            bell::ring(&*self.sleeper_bell);
        }
        rang || of_host
    }

    /// Sleeps until the network or one of the bells wakes the thread. Returns which bells did.
    fn sleep<const BELLS: usize>(
        &self,
        bells: &[Option<BorrowedFd<'_>>; BELLS],
        network: Option<&[Watched]>,
        at_most: Duration,
    ) -> [bool; BELLS] {
        let at_most = if network.is_some_and(<[_]>::is_empty) { at_most.min(BACK_OFF) } else { at_most };
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        let mut polled: Vec<_> =
            bells.iter().flatten().map(|&bell| PollFd::from_borrowed_fd(bell, PollFlags::IN)).collect();
        let watched = network.into_iter().flatten();
        polled.extend(watched.map(|Watched { descriptor, events }| {
            PollFd::new(descriptor, PollFlags::from_bits_retain(events.cast_unsigned()))
        }));
        // An interrupted sleep needs no handling: the sleeper checks its condition again.
        let _ = poll(&mut polled, Some(&timeout));
        let mut polled = polled.iter();
        bells.map(|bell| {
            let rang = bell.filter(|_| polled.next().is_some_and(|polled| !polled.revents().is_empty()));
            rang.inspect(|bell| bell::silence(bell)).is_some()
        })
    }

    /// Makes progress until the wait of a channel is over.
    pub(super) fn wait(&self, channel: u16, bell: &Arc<OwnedFd>, at_most: Duration) {
        let begun = Instant::now();
        let until = begun + at_most;
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        loop {
            let (mut engine, sleep) = self.progress_in_wait(begun, until);
            if engine.channel(channel).is_woken() || sleep.is_zero() {
                engine.channel(channel).announce(false);
                break;
            }
            let may_sleep = engine.link.wire.may_sleep();
            engine.channel(channel).sleeps_on(Some(bell.clone()));
            drop(engine);
            if let Some(network) = may_sleep {
                self.sleep_in_wait(bell, Some(&network), self.before_a_poll(sleep));
            }
            let mut engine = self.lock();
            engine.channel(channel).sleeps_on(None);
            if self.polls_memory {
                engine.channel(channel).end_wait();
            }
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether no peer wakes this rank for what changes in its memory.
    pub(super) fn polls_memory(&self) -> bool {
        self.polls_memory
    }

    /// Ends the waits that were delegated to the sleeper, so that it polls memory.
    pub(super) fn end_delegated_waits(&self) {
        self.lock().end_delegated_waits(&self.sleeper_bell);
    }

    /// Returns how long to sleep before this rank must poll its memory.
    fn before_a_poll(&self, sleep: Duration) -> Duration {
        if self.polls_memory { sleep.min(BACK_OFF) } else { sleep }
    }

    /// Makes progress until the sleeper's bell rings.
    pub(super) fn wait_for_bell(&self, at_most: Duration) {
        let begun = Instant::now();
        let mut rang = false;
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        loop {
            let (mut engine, sleep) = self.progress_in_wait(begun, begun + at_most);
            if rang || sleep.is_zero() {
                break;
            }
            let may_sleep = engine.link.wire.may_sleep();
            drop(engine);
            let at_most = if may_sleep.is_some() { self.before_a_poll(sleep) } else { Duration::ZERO };
            rang = self.sleep_in_wait(&self.sleeper_bell, may_sleep.as_deref(), at_most);
            if self.polls_memory {
                self.end_delegated_waits();
                rang = true;
            }
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes progress in a wait, and returns how long it may sleep then. After some time of waiting it acknowledges
    /// what it has received; usually the next message of this rank carries the ack.
    fn progress_in_wait(&self, begun: Instant, until: Instant) -> (MutexGuard<'_, NetEngine<W>>, Duration) {
        let mut engine = self.visit();
        engine.progress();
        let now = Instant::now();
        let sleep = until.saturating_duration_since(now);
        if now >= begun + ACK_DELAY {
            engine.ack_all();
        } else if engine.has_acks_pending() {
            return (engine, sleep.min(ACK_DELAY));
        }
        (engine, sleep)
    }

    /// Waits until `holds`; returns whether it does.
    pub(super) fn wait_until(
        &self,
        channel: u16,
        bell: &Arc<OwnedFd>,
        until: Instant,
        holds: impl Fn(&NetEngine<W>) -> bool,
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
            self.wait(channel, bell, left.min(HEARTBEAT));
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        bell::ring(&self.bell);
    }

    /// Lets the helper thread call this from now on.
    pub(super) fn attend(&self, attendant: Attendant) {
        let _ = self.attendant.set(attendant);
    }

    fn call_attendant(&self) {
        if let Some(attendant) = self.attendant.get() {
            let own = self.lock().life.failure().cloned();
            attendant(own).into_iter().for_each(|failure| self.lock().fail(failure));
        }
    }

    /// Runs the loop of the helper thread.
    pub(super) fn run_helper(&self) {
        let (mut seen, mut pause) = (0, PAUSE);
        let mut has_failed = false;
        let mut beat = Instant::now() + BEAT;
        let mut silent = vec![0; self.lock().ranks() as usize];
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            if now >= beat {
                // Count beats of this thread, not time: a process that was stopped for a while received nothing
                // meanwhile and must not blame its peers.
                beat = now + BEAT;
                self.ask_peers(&mut silent);
                self.call_attendant();
            }
            if !has_failed && self.failed.load(Ordering::Acquire) {
                has_failed = true;
                self.call_attendant();
            }
            let visits = self.visits.load(Ordering::Relaxed);
            if visits != seen || self.sleepers.load(Ordering::Relaxed) > 0 {
                seen = visits;
                self.sleep(&[Some(self.bell.as_fd())], None, pause);
                let mut engine = self.lock();
                engine.ack_if_due();
                engine.check_suspects();
                pause = (2 * pause).min(LONGEST_PAUSE);
                continue;
            }
            pause = PAUSE;
            let mut engine = self.lock();
            // `may_sleep` can consume the event that a sleeping caller waits for; what that event announced is then
            // processed here. Callers get their turn even if messages never end.
            let may_sleep = (0..4).find_map(|_| {
                let _ = (0..MOST_POLLS).find(|_| !engine.progress());
                engine.ack_all();
                engine.link.wire.may_sleep()
            });
            let at_most = beat.saturating_duration_since(Instant::now());
            let at_most = if engine.life.has_suspects() { at_most.min(STEP) } else { at_most };
            drop(engine);
            if let Some(network) = may_sleep {
                self.sleep(&[Some(self.bell.as_fd())], Some(&network), at_most);
            }
        }
    }

    /// Asks remote peers for a sign of life, and checks that local processes live.
    fn ask_peers(&self, silent: &mut [u32]) {
        let _ = self.check_peers("heartbeat");
        let mut engine = self.lock();
        engine.answer_questions(|rank| self.watch.watches(rank));
        // A peer whose message lies here unread is not silent, even if the message came while this process was stopped.
        engine.catch_up();
        engine.reassure_senders(|peer| !self.watch.watches(peer));
        let ranks = engine.ranks();
        for step in 1..ranks {
            let peer = (self.rank + step) % ranks;
            // Each rank watches a few peers, so that some rank still watches when several die. It watches a peer that
            // has left as long as it needs something from that peer.
            let is_mine = if engine.life.has_left(peer) { engine.needs(peer) } else { step.is_power_of_two() };
            if self.watch.watches(peer) || !is_mine {
                continue;
            }
            let count = &mut silent[peer as usize];
            *count = if engine.life.was_heard(peer) { 0 } else { *count + 1 };
            if *count >= self.silence {
                engine.suspect(peer, Evidence::Silent(BEAT * self.silence));
            } else if *count > 0 {
                engine.ping(peer);
            }
        }
    }
}
