//! A simulated network: virtual time, a seed, and every order of delivery that the rules allow.
//!
//! Operations take random times, independent of each other, so any two that are not ordered by a
//! completion overtake each other. The data of a put is read from its source as late as possible
//! and lands in two pieces at different times; its signal lands after both; its completion comes
//! later still. Even on the own host an atomic may complete late. Nothing here looks at a clock.

mod net;
mod timeline;
mod weather;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use net::{Net, Snapshot};
use parking_lot::{Mutex, MutexGuard};
pub(crate) use timeline::Timeline;
pub(crate) use weather::{Kind, Met, Stall, Weather};

use super::{
    Access, At, Atomic, Completion, Endpoint, Fabric, Interest, Key, NOT_ALLOWED, Posted, RawAccess, Reached, Region,
    Signal, Traffic, Window, sealed,
};
use crate::error::{Error, HostNames, Misuse, Result};

/// A rank's view of a simulated world. Clones of the network are shared by all ranks of a world.
#[derive(Clone, Debug)]
pub struct SimFabric {
    rank: u32,
    net: SimShared,
}

#[derive(Clone, Debug)]
pub(crate) struct SimShared(Arc<Mutex<Net>>);

impl SimShared {
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Net> {
        self.0.lock()
    }
}

impl SimFabric {
    /// A world whose ranks lie on `hosts` (dense numbers), with delays drawn from `seed`.
    #[must_use]
    pub fn world(hosts: &[u32], seed: u64) -> Vec<SimFabric> {
        let net = SimShared(Arc::new(Mutex::new(Net::new(hosts.to_vec(), seed))));
        (0..hosts.len() as u32).map(|rank| SimFabric { rank, net: net.clone() }).collect()
    }

    pub(crate) fn net(&self) -> SimShared {
        self.net.clone()
    }
}

impl sealed::Sealed for SimFabric {}

impl Fabric for SimFabric {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn rank(&self) -> u32 {
        self.rank
    }

    /// The network counts for all ranks together.
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn reached(&self) -> Reached {
        Reached::default()
    }

    fn ranks(&self) -> u32 {
        self.net.lock().hosts().len() as u32
    }

    fn neighbours(&self) -> Vec<u32> {
        let net = self.net.lock();
        let here = net.hosts()[self.rank as usize];
        (0..).zip(net.hosts()).filter(|&(_, &host)| host == here).map(|(rank, _)| rank).collect()
    }

    fn open(&self, _: RawAccess) -> Result<Box<dyn Endpoint>> {
        let id = self.net.lock().open(self.rank);
        Ok(Box::new(SimEndpoint { id, rank: self.rank, net: self.net.clone() }))
    }

    fn exchange(&self, operation: &'static str, _mine: &[u8], _deadline: Instant) -> Result<Vec<Vec<u8>>> {
        // All ranks of a simulated world are built by one hand, which knows every key.
        let problem = Misuse::Unavailable("simulated ranks share one thread and cannot wait for each other");
        Err(Error::Usage { rank: self.rank, operation, problem })
    }

    fn health(&self, operation: &'static str) -> Result<()> {
        match self.net.lock().aborted() {
            Some((by, reason)) => Err(Error::Aborted {
                rank: self.rank,
                operation,
                by: *by,
                reason: reason.clone(),
                hosts: HostNames::default(),
            }),
            None => Ok(()),
        }
    }

    fn check_peers(&self, operation: &'static str) -> Result<()> {
        self.health(operation)
    }

    fn has_left(&self, _peer: u32) -> bool {
        false
    }

    fn abort(&self, reason: &str) {
        self.net.lock().abort(self.rank, reason);
    }

    fn leave(&self) {}
}

#[derive(Debug)]
struct SimEndpoint {
    id: usize,
    rank: u32,
    net: SimShared,
}

impl SimEndpoint {
    fn checked(&self, operation: &'static str, inside: bool, allowed: bool) -> Result<()> {
        let problem = match (inside, allowed) {
            (true, true) => return Ok(()),
            (true, false) => NOT_ALLOWED,
            (false, _) => Misuse::Argument("a place outside its region"),
        };
        Err(Error::Usage { rank: self.rank, operation, problem })
    }
}

impl Endpoint for SimEndpoint {
    fn register(&mut self, bytes: usize, access: Access) -> Result<Region> {
        if bytes > net::MOST_BYTES {
            let problem = Misuse::Argument("a simulated region has less than 4 GiB");
            return Err(Error::Usage { rank: self.rank, operation: "register", problem });
        }
        Ok(self.net.lock().register(self.rank, bytes, access))
    }

    fn key(&self, region: Region) -> Key {
        let shared = self.net.lock().owner(region).is_some_and(|(_, access)| access.is_shared());
        if shared { Key([u64::from(region.0), u64::from(self.rank), 0, 0]) } else { Key::NONE }
    }

    fn import(&mut self, peer: u32, key: Key) -> Result<Region> {
        let Key([number, rank, ..]) = key;
        let known = u32::try_from(number).ok().map(Region);
        let owned = known.and_then(|region| self.net.lock().owner(region));
        let theirs = owned.is_some_and(|(owner, access)| owner == peer && access.is_shared());
        match known.filter(|_| theirs && rank == u64::from(peer)) {
            Some(region) => Ok(region),
            None => Err(Error::Usage {
                rank: self.rank,
                operation: "import",
                problem: Misuse::Argument("not a key of that peer"),
            }),
        }
    }

    fn window(&self, region: Region) -> Option<Window> {
        self.net.lock().window(region, self.rank)
    }

    fn put(&mut self, from: At, to: At, len: usize, signal: Option<Signal>, token: u64) -> Result<Posted> {
        let mut net = self.net.lock();
        let inside = net.holds(from, len) && net.holds(to, len) && signal.is_none_or(|signal| net.holds(signal.at, 8));
        let writes = |at: At| net.may(self.rank, at.region, Access::allows_writing);
        let allowed = writes(to) && signal.is_none_or(|signal| writes(signal.at));
        self.checked("put", inside, allowed && net.may(self.rank, from.region, Access::is_shared))?;
        Ok(net.put(self.id, from, to, len, signal, token))
    }

    fn signal(&mut self, signal: Signal, token: u64) -> Result<Posted> {
        let mut net = self.net.lock();
        let allowed = net.may(self.rank, signal.at.region, Access::allows_writing);
        self.checked("signal", net.holds(signal.at, 8), allowed)?;
        Ok(net.put(self.id, signal.at, signal.at, 0, Some(signal), token))
    }

    fn read(&mut self, from: At, to: At, len: usize, token: u64) -> Result<Posted> {
        let mut net = self.net.lock();
        let allowed = net.may(self.rank, from.region, Access::allows_reading);
        let allowed = allowed && net.may(self.rank, to.region, Access::is_shared);
        self.checked("read", net.holds(from, len) && net.holds(to, len), allowed)?;
        Ok(net.read(self.id, from, to, len, token))
    }

    fn atomic(&mut self, at: At, atomic: Atomic, token: u64) -> Result<Posted> {
        let mut net = self.net.lock();
        let allowed = net.may(self.rank, at.region, Access::allows_writing);
        self.checked("atomic", net.holds(at, 8) && at.offset.is_multiple_of(8), allowed)?;
        Ok(net.atomic(self.id, at, atomic, token))
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        let mut net = self.net.lock();
        if net.drives_itself() && !net.has_completion(self.id) {
            net.advance();
        }
        net.completion(self.id)
    }

    fn completion(&mut self) -> Result<Option<Completion>> {
        self.net.lock().completion(self.id)
    }

    fn prepare_wait(&mut self, interest: Interest) {
        self.net.lock().prepare_wait(self.id, interest);
    }

    fn cancel_wait(&mut self) {
        self.net.lock().prepare_wait(self.id, 0);
    }

    fn wait(&mut self, at_most: Duration) {
        let mut net = self.net.lock();
        let until = net.now() + at_most.as_nanos() as u64;
        while net.is_waiting(self.id) && net.next_time().is_some_and(|next| next <= until) {
            net.advance();
        }
        net.prepare_wait(self.id, 0);
    }

    fn wake(&mut self, most: u32, interest: Interest) -> u32 {
        self.net.lock().wake_host(self.id, most, interest)
    }
}
