//! Shared memory: all ranks on one machine.
//!
//! One anonymous memory file (`memfd`) holds the world. It has no name. Rank 0 passes it to the others over a socket,
//! and it ends with the last process that has it open. So nothing is left behind, whichever process is killed and when.
//! Regions are ranges of that file, so a key is an offset.
//!
//! Every operation completes in the call: a put and a read are copies, an atomic is one of the processor. Processes
//! learn of each other's death by process descriptors.

mod channels;
pub(super) mod doorbell;
mod endpoint;
mod failure;
#[cfg(all(test, loom))]
mod loom_tests;
mod mailbox;
mod membarrier;
mod ranges;
mod segment;
mod sleeper;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::bell;
use super::failure::Failure;
use super::turns::Turns;
use super::watch::{ENDED, HEARTBEAT, Watch};
use super::{Endpoint, Fabric, RawAccess, Reached, Sleeper, Traffic, sealed};
use crate::error::{Error, Misuse, Ranks, Result};
use crate::fault::Fault;
use crate::interrupt;
use doorbell::Doorbell;
use endpoint::ShmEndpoint;
use mailbox::Mailbox;
use segment::Segment;
use sleeper::ShmSleeper;

#[cfg(all(test, not(loom)))]
pub(super) use segment::head_bytes;

/// A rank's view of a world in shared memory.
#[derive(Debug)]
pub struct ShmFabric {
    segment: Arc<Segment>,
    rank: u32,
    opened: AtomicU64,
    exchange: Turns,
    watch: Watch,
    fault: Option<Fault>,
}

impl ShmFabric {
    /// Creates what the ranks of a new world share: its memory, and a bell that rank 0 can hear.
    ///
    /// # Errors
    /// The system does not provide the memory.
    pub(crate) fn create(ranks: u32) -> Result<[OwnedFd; 2]> {
        Ok([Segment::create(ranks)?, bell::make(0)?])
    }

    /// Joins a world as `rank`. `pids` are the processes of all ranks, `None` for ranks in this process.
    ///
    /// # Errors
    /// The memory is not of such a world, or a peer has died already.
    pub(crate) fn join(shared: [OwnedFd; 2], rank: u32, ranks: u32, pids: &[Option<u32>]) -> Result<Self> {
        let segment = Arc::new(Segment::open(shared, rank, ranks)?);
        let watch = Watch::new(rank, pids)?;
        // In larger worlds each rank executes its own fences.
        if ranks == 2 && membarrier::register() {
            segment.reach(rank);
        }
        let (opened, exchange, fault) = (AtomicU64::new(0), Turns::default(), Fault::chosen());
        Ok(ShmFabric { segment, rank, opened, exchange, watch, fault })
    }

    /// Creates a world with all ranks in this process, for tests.
    ///
    /// # Errors
    /// The system does not provide the memory.
    pub fn in_this_process(ranks: u32) -> Result<Vec<ShmFabric>> {
        let shared = Self::create(ranks)?;
        let here = vec![None; ranks as usize];
        let copy = || {
            let [memory, bell] = &shared;
            let copies = memory.try_clone().and_then(|memory| Ok([memory, bell.try_clone()?]));
            copies.map_err(|cause| Error::os(0, "share memory", cause))
        };
        (0..ranks).map(|rank| Self::join(copy()?, rank, ranks, &here)).collect()
    }

    /// Returns a bell that the other ranks ring from now on when they end a delegated wait of this one, which is rank 0.
    ///
    /// # Errors
    /// This process has no descriptor left.
    pub(super) fn bell(&self) -> Result<OwnedFd> {
        debug_assert_eq!(self.rank, 0, "the bell is that of rank 0");
        self.segment.hear_bell().map_err(|cause| Error::os(self.rank, "share a bell", cause))
    }

    /// Returns why the world has failed, if it has.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.segment.failure()
    }

    /// Fails the world, unless it has failed, and wakes all ranks.
    pub(super) fn fail(&self, failure: &Failure) {
        self.segment.fail(failure);
        self.wake_all();
    }

    fn wake_all(&self) {
        crate::sync::full_fence();
        for channel in 0..=self.segment.channels().highest() {
            (0..self.segment.ranks()).for_each(|rank| self.segment.ring_always(channel, rank));
        }
    }

    fn doorbell(&self) -> &Doorbell {
        self.segment.doorbell(0, self.rank)
    }

    fn mailbox(&self, rank: u32, turn: u64) -> &Mailbox {
        self.segment.mailbox(rank, if Fault::OneMailbox.is(self.fault) { 0 } else { turn })
    }

    /// Returns the ranks that have not posted in this turn of an exchange.
    fn not_posted(&self, turn: u64) -> Vec<u32> {
        (0..self.segment.ranks()).filter(|&rank| self.mailbox(rank, turn).turn() < turn).collect()
    }
}

impl sealed::Sealed for ShmFabric {}

impl Fabric for ShmFabric {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks write each other's memory, and send nothing.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn reached(&self) -> Reached {
        Reached::default()
    }

    fn ranks(&self) -> u32 {
        self.segment.ranks()
    }

    fn neighbours(&self) -> Vec<u32> {
        (0..self.segment.ranks()).collect()
    }

    fn open(&self, _: RawAccess) -> Result<Box<dyn Endpoint>> {
        let number = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(channel) = self.segment.channels().open(number) else {
            let problem =
                Misuse::Exhausted("4095 collectives are open at once; keep and reuse them, or drop some on all ranks");
            return Err(Error::Usage { rank: self.rank, operation: "open", problem });
        };
        Ok(Box::new(ShmEndpoint::new(self.segment.clone(), self.rank, (number, channel), self.fault)))
    }

    fn sleeper(&self) -> Option<Box<dyn Sleeper>> {
        Some(Box::new(ShmSleeper::new(self.segment.clone(), self.rank, self.fault)))
    }

    fn exchange(&self, operation: &'static str, mine: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        self.exchange.take(self, (operation, deadline), (mine, mailbox::MAILBOX), |turn| {
            let started = Instant::now();
            self.mailbox(self.rank, turn).post(turn, mine);
            // At least one of the last ranks to post sees all posts, and wakes the others.
            if self.not_posted(turn).is_empty() {
                let ring = |rank| self.segment.doorbell(0, rank).ring(1, self.segment.sleeper(rank));
                (0..self.ranks()).for_each(|rank| _ = ring(rank));
            }
            loop {
                self.doorbell().announce(1);
                let missing = self.not_posted(turn);
                if missing.is_empty() {
                    self.doorbell().withdraw();
                    break;
                }
                self.doorbell().sleep(HEARTBEAT.min(deadline.saturating_duration_since(Instant::now())));
                let missing = self.not_posted(turn);
                if missing.is_empty() {
                    // A rank that posted and then died has still given its bytes.
                    break;
                }
                self.check_peers(operation)?;
                interrupt::check(self.rank, operation)?;
                if let Some(&peer) = missing.iter().find(|&&peer| self.has_left(peer))
                    && self.not_posted(turn).contains(&peer)
                {
                    return Err(Error::left(self.rank, operation, peer));
                }
                if Instant::now() >= deadline {
                    let missing = Ranks(missing);
                    let waited = started.elapsed();
                    return Err(Error::timeout(self.rank, operation, waited, missing, true));
                }
            }
            let turn = turn - u64::from(Fault::StaleExchange.is(self.fault));
            Ok((0..self.ranks()).map(|rank| self.mailbox(rank, turn).read()).collect())
        })
    }

    fn health(&self, operation: &'static str) -> Result<()> {
        let failure = self.segment.failure().filter(|_| !Fault::IgnoreFailure.is(self.fault));
        failure.map_or(Ok(()), |failure| Err(failure.error(self.rank, operation)))
    }

    fn check_peers(&self, operation: &'static str) -> Result<()> {
        self.health(operation)?;
        if let Some(&peer) = self.dead().first() {
            let failure = Failure::Died { peer, how: ENDED.to_owned() };
            tracing::debug!(rank = self.rank, peer, "found dead");
            self.fail(&failure);
            // The first reason is not replaced, unless the rank that wrote it died while writing.
            self.health(operation)?;
            return Err(failure.error(self.rank, operation));
        }
        self.health(operation)
    }

    fn dead(&self) -> Vec<u32> {
        self.watch.ended(|peer| self.segment.has_left(peer))
    }

    fn has_left(&self, peer: u32) -> bool {
        self.segment.has_left(peer)
    }

    fn abort(&self, reason: &str) {
        self.fail(&Failure::Aborted { by: self.rank, reason: reason.to_owned() });
    }

    fn leave(&self) {
        self.segment.leave(self.rank);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::fabric::Access;

    /// The file would be used up by 16 TiB of regions.
    #[test]
    fn regions_that_all_ranks_have_closed_leave_their_place_to_others() {
        const BYTES: usize = 1 << 20;
        let fabrics = ShmFabric::in_this_process(2).unwrap();
        let mut ends = Vec::new();
        for turn in 0..50u64 {
            let mut endpoints: Vec<_> = fabrics.iter().map(|fabric| fabric.open(RawAccess::CRATE).unwrap()).collect();
            let region = endpoints[0].register(BYTES, Access::ReadWrite).unwrap();
            let key = endpoints[0].key(region);
            let seen = endpoints[1].import(0, key).unwrap();
            let window = endpoints[1].window(seen).unwrap();
            let cells = || (0..BYTES / 8).step_by(511).map(|at| window.cell(at));
            assert!(cells().all(|cell| cell.load(Ordering::Relaxed) == 0), "memory is zeroed");
            cells().for_each(|cell| cell.store(turn + 1, Ordering::Relaxed));
            drop(window);
            // The owner may be the first or the last to close.
            endpoints.swap(0, (turn % 2) as usize);
            endpoints.into_iter().for_each(drop);
            ends.push(fabrics[0].segment.end());
        }
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    }
}
