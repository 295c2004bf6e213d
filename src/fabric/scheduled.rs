//! A fabric whose ranks take turns: threads of one process, one of which runs at a time.
//!
//! A seed chooses which. So a test can play ranks that call the library as programs do, in an order that it can repeat.
//! The turn may pass to another rank before each operation and exchange, and in each call that waits. Threads that play no
//! rank, such as a helper thread, run as they like.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::turns::Turns;
use super::{
    Access, At, Atomic, Completion, Endpoint, Fabric, Interest, Key, MOST_EXCHANGED, Posted, RawAccess, Reached,
    Region, Signal, Sleeper, Traffic, Window, sealed,
};
use crate::error::{HostNames, Ranks, Result};

/// Turns of each rank in which no call returns, after which none ever will: the longest call makes some dozens of rounds.
const STUCK: u32 = 4_000;

/// The time that these take at least, for helper threads, which take no turns.
const LEAST: Duration = Duration::from_secs(2);

thread_local! {
    /// The rank that this thread plays.
    static PLAYS: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Which rank has its turn.
#[derive(Debug)]
pub struct Schedule {
    state: Mutex<State>,
    /// Of each rank, which waits here for its turn.
    turns: Vec<Condvar>,
}

#[derive(Debug)]
struct State {
    random: Xoshiro256PlusPlus,
    /// How likely each rank gets the next turn, relative to the others; 0 for one that has ended.
    weights: Vec<u32>,
    /// The chance, in 256, that the turn stays where it is.
    stays: u32,
    /// The rank that has its turn; none until all are there.
    turn: Option<u32>,
    absent: usize,
    /// The turns of each rank since a call returned.
    idle: Vec<u32>,
    returned: Instant,
    /// What ranks gave to exchanges, by their numbers.
    given: BTreeMap<u64, Vec<Option<Vec<u8>>>>,
}

impl Schedule {
    /// The schedule of a seed. Some ranks have a turn less often than others.
    #[must_use]
    pub fn new(ranks: u32, seed: u64) -> Arc<Self> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let slow: u32 = [1, 4, 64][random.random_range(0..3)];
        let weights = (0..ranks).map(|_| if random.random() { slow } else { 1 }).collect();
        let stays = [0, 128, 240][random.random_range(0..3)];
        let (turn, absent) = (None, ranks as usize);
        let (idle, returned, given) = (vec![0; ranks as usize], Instant::now(), BTreeMap::new());
        let state = State { random, weights, stays, turn, absent, idle, returned, given };
        Arc::new(Schedule { state: Mutex::new(state), turns: (0..ranks).map(|_| Condvar::new()).collect() })
    }

    /// Plays a rank in this thread. Begins when all ranks are there.
    pub fn play<R>(&self, rank: u32, play: impl FnOnce() -> R) -> R {
        struct Played<'a>(&'a Schedule, u32);
        impl Drop for Played<'_> {
            fn drop(&mut self) {
                PLAYS.set(None);
                self.0.end(self.1);
            }
        }
        PLAYS.set(Some(rank));
        let mut state = self.state.lock();
        state.absent -= 1;
        if state.absent == 0 {
            let first = state.draw(0);
            self.give(&mut state, first);
        }
        while state.turn != Some(rank) {
            self.turns[rank as usize].wait(&mut state);
        }
        drop(state);
        let _played = Played(self, rank);
        play()
    }

    /// A call of some rank has returned: they are not stuck.
    pub fn goes_on(&self) {
        let mut state = self.state.lock();
        state.idle.fill(0);
        state.returned = Instant::now();
    }

    /// Whether no rank can go on.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.state.lock().is_stuck()
    }

    /// Passes the turn on, and waits for the next one; whether that leads nowhere.
    fn pass(&self) -> bool {
        let Some(me) = PLAYS.get() else { return false };
        let mut state = self.state.lock();
        state.idle[me as usize] = state.idle[me as usize].saturating_add(1);
        let next = state.draw(me);
        if next != me {
            self.give(&mut state, next);
            while state.turn != Some(me) {
                self.turns[me as usize].wait(&mut state);
            }
        }
        state.is_stuck()
    }

    fn give(&self, state: &mut State, rank: u32) {
        state.turn = Some(rank);
        self.turns[rank as usize].notify_one();
    }

    fn end(&self, rank: u32) {
        let mut state = self.state.lock();
        state.weights[rank as usize] = 0;
        if state.weights.iter().any(|&weight| weight > 0) {
            let next = state.draw(rank);
            self.give(&mut state, next);
        }
    }

    fn post(&self, turn: u64, rank: u32, mine: &[u8]) {
        let given = &mut self.state.lock().given;
        let all = given.entry(turn).or_insert_with(|| vec![None; self.turns.len()]);
        all[rank as usize] = Some(mine.to_vec());
    }

    /// What all ranks gave, or the ranks that gave nothing yet.
    fn posted(&self, turn: u64) -> std::result::Result<Vec<Vec<u8>>, Vec<u32>> {
        let state = self.state.lock();
        let all = &state.given[&turn];
        let missing: Vec<u32> = (0..all.len() as u32).filter(|&rank| all[rank as usize].is_none()).collect();
        if missing.is_empty() { Ok(all.iter().flatten().cloned().collect()) } else { Err(missing) }
    }
}

impl State {
    fn is_stuck(&self) -> bool {
        let is_idle = |(&idle, &weight): (&u32, &u32)| idle >= STUCK || weight == 0;
        self.idle.iter().zip(&self.weights).all(is_idle) && self.returned.elapsed() >= LEAST
    }

    /// The rank that has the next turn, where `me` has this one.
    fn draw(&mut self, me: u32) -> u32 {
        if self.weights[me as usize] > 0 && self.random.random_range(0..256) < self.stays {
            return me;
        }
        let mut left = self.random.random_range(0..self.weights.iter().sum());
        let is_drawn = |&weight: &u32| {
            let drawn = left < weight;
            left = left.saturating_sub(weight);
            drawn
        };
        self.weights.iter().position(is_drawn).unwrap_or_default() as u32
    }
}

/// A fabric of a rank that takes turns with the others.
#[derive(Debug)]
pub struct Scheduled {
    inner: Arc<dyn Fabric>,
    schedule: Arc<Schedule>,
    exchanges: Turns,
}

impl Scheduled {
    /// The same fabric, by a schedule.
    #[must_use]
    pub fn new(inner: Arc<dyn Fabric>, schedule: Arc<Schedule>) -> Self {
        Scheduled { inner, schedule, exchanges: Turns::default() }
    }
}

impl sealed::Sealed for Scheduled {}

impl Fabric for Scheduled {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn provider(&self) -> Option<&str> {
        self.inner.provider()
    }

    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn reached(&self) -> Reached {
        self.inner.reached()
    }

    fn ranks(&self) -> u32 {
        self.inner.ranks()
    }

    fn neighbours(&self) -> Vec<u32> {
        self.inner.neighbours()
    }

    fn host_names(&self) -> HostNames {
        self.inner.host_names()
    }

    fn changes_by_processor(&self) -> bool {
        self.inner.changes_by_processor()
    }

    fn open(&self, access: RawAccess) -> Result<Box<dyn Endpoint>> {
        let inner = self.inner.open(access)?;
        Ok(Box::new(ScheduledEndpoint { inner, schedule: self.schedule.clone() }))
    }

    fn sleeper(&self) -> Option<Box<dyn Sleeper>> {
        self.inner.sleeper()
    }

    fn exchange(&self, operation: &'static str, mine: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let (rank, started) = (self.rank(), Instant::now());
        self.exchanges.take(self, (operation, deadline), (mine, MOST_EXCHANGED), |turn| {
            self.schedule.post(turn, rank, mine);
            loop {
                match self.schedule.posted(turn) {
                    Ok(all) => return Ok(all),
                    Err(missing) if Instant::now() >= deadline => {
                        let (missing, waited) = (Ranks(missing), started.elapsed());
                        return Err(crate::Error::timeout(rank, operation, waited, missing, true));
                    }
                    Err(_) => self.health(operation)?,
                }
            }
        })
    }

    fn secret_of(&self, told: &[u8]) -> Vec<u8> {
        self.inner.secret_of(told)
    }

    fn health(&self, operation: &'static str) -> Result<()> {
        if self.schedule.pass() {
            self.inner.abort("no rank can go on");
        }
        self.inner.health(operation)
    }

    fn check_peers(&self, operation: &'static str) -> Result<()> {
        self.inner.check_peers(operation)
    }

    fn dead(&self) -> Vec<u32> {
        self.inner.dead()
    }

    fn has_left(&self, peer: u32) -> bool {
        self.inner.has_left(peer)
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }

    fn leave(&self) {
        self.inner.leave();
    }
}

#[derive(Debug)]
struct ScheduledEndpoint {
    inner: Box<dyn Endpoint>,
    schedule: Arc<Schedule>,
}

impl Endpoint for ScheduledEndpoint {
    fn register(&mut self, bytes: usize, access: Access) -> Result<Region> {
        self.inner.register(bytes, access)
    }

    fn key(&self, region: Region) -> Key {
        self.inner.key(region)
    }

    fn import(&mut self, peer: u32, key: Key) -> Result<Region> {
        self.inner.import(peer, key)
    }

    fn window(&self, region: Region) -> Option<Window> {
        self.inner.window(region)
    }

    fn put(&mut self, from: At, to: At, len: usize, signal: Option<Signal>, token: u64) -> Result<Posted> {
        self.schedule.pass();
        self.inner.put(from, to, len, signal, token)
    }

    fn signal(&mut self, signal: Signal, token: u64) -> Result<Posted> {
        self.schedule.pass();
        self.inner.signal(signal, token)
    }

    fn read(&mut self, from: At, to: At, len: usize, token: u64) -> Result<Posted> {
        self.schedule.pass();
        self.inner.read(from, to, len, token)
    }

    fn atomic(&mut self, at: At, atomic: Atomic, token: u64) -> Result<Posted> {
        self.schedule.pass();
        self.inner.atomic(at, atomic, token)
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        self.inner.poll()
    }

    fn completion(&mut self) -> Result<Option<Completion>> {
        self.inner.completion()
    }

    fn prepare_wait(&mut self, interest: Interest) {
        self.inner.prepare_wait(interest);
    }

    fn waits_fence_peer(&self) -> bool {
        self.inner.waits_fence_peer()
    }

    fn cancel_wait(&mut self) {
        self.inner.cancel_wait();
    }

    /// The turn of another rank takes the place of sleep, where this thread plays a rank.
    fn wait(&mut self, at_most: Duration) {
        if PLAYS.get().is_none() {
            return self.inner.wait(at_most);
        }
        self.schedule.pass();
        self.inner.cancel_wait();
    }

    fn delegate_wait(&mut self) -> bool {
        self.inner.delegate_wait()
    }

    fn is_delegated(&self) -> bool {
        self.inner.is_delegated()
    }

    fn wake(&mut self, most: u32, interest: Interest) -> u32 {
        self.schedule.pass();
        self.inner.wake(most, interest)
    }
}
