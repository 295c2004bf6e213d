//! One collective's operations in shared memory.

use std::sync::Arc;
use std::time::Duration;

use super::doorbell::{self, Doorbell};
use super::membarrier;
use super::segment::Segment;
use crate::error::{Error, Misuse, Result};
use crate::fabric::{
    Access, At, Atomic, Completion, Endpoint, Interest, Key, NOT_ALLOWED, Posted, Region, Signal, Window,
};
use crate::fault::Fault;
use crate::sync::{self, full_fence};

/// A key holds an offset in the world's file, a length with the owner in its upper bits, the access that the owner
/// allows, and the number of the endpoint.
const OWNER: u32 = 48;

#[derive(Debug)]
pub(super) struct ShmEndpoint {
    segment: Arc<Segment>,
    rank: u32,
    /// The number of the endpoint among all that the world has opened, and its channel.
    number: u64,
    channel: u32,
    regions: Vec<Mapped>,
    fault: Option<Fault>,
}

#[derive(Debug)]
struct Mapped {
    owner: u32,
    access: Access,
    offset: u64,
    bytes: usize,
    window: Window,
}

impl ShmEndpoint {
    pub(super) fn new(segment: Arc<Segment>, rank: u32, (number, channel): (u64, u32), fault: Option<Fault>) -> Self {
        ShmEndpoint { segment, rank, number, channel, regions: Vec::new(), fault }
    }

    fn bell(&self) -> &Doorbell {
        self.segment.doorbell(self.channel, self.rank)
    }

    fn usage(&self, operation: &'static str, problem: Misuse) -> Error {
        Error::Usage { rank: self.rank, operation, problem }
    }

    fn mapped(&self, operation: &'static str, at: At, len: usize) -> Result<&Mapped> {
        let mapped = self.regions.get(at.region.0 as usize);
        let inside = |mapped: &&Mapped| at.offset <= mapped.bytes && len <= mapped.bytes - at.offset;
        mapped.filter(inside).ok_or_else(|| self.usage(operation, Misuse::Argument("a place outside its region")))
    }

    /// As [`ShmEndpoint::mapped`], for the remote side of an operation, which the owner must allow.
    fn far(&self, operation: &'static str, at: At, len: usize, allows: fn(Access) -> bool) -> Result<&Mapped> {
        let mapped = self.mapped(operation, at, len)?;
        match mapped.owner == self.rank || allows(mapped.access) {
            true => Ok(mapped),
            false => Err(self.usage(operation, NOT_ALLOWED)),
        }
    }

    fn add(&mut self, (owner, access): (u32, Access), offset: u64, bytes: usize) -> Result<Region> {
        let window = self.segment.window(offset, bytes)?;
        self.regions.push(Mapped { owner, access, offset, bytes: window.len(), window });
        Ok(Region(self.regions.len() as u32 - 1))
    }

    fn change(&self, signal: Signal) -> Result<()> {
        let mapped = self.far("signal", signal.at, size_of::<u64>(), Access::allows_writing)?;
        if !signal.at.offset.is_multiple_of(size_of::<u64>()) {
            return Err(self.usage("signal", Misuse::Argument("a cell that is not aligned to 8 bytes")));
        }
        let cell = mapped.window.cell(signal.at.offset / size_of::<u64>());
        // A rank that sees the signal sees the data that was copied before.
        signal.change.apply(cell);
        full_fence();
        if !Fault::ForgetRing.is(self.fault) {
            self.segment.ring_always(self.channel, mapped.owner);
        }
        Ok(())
    }
}

impl Endpoint for ShmEndpoint {
    fn register(&mut self, bytes: usize, access: Access) -> Result<Region> {
        let offset = self.segment.allocate(bytes)?;
        self.add((self.rank, access), offset, bytes)
    }

    fn key(&self, region: Region) -> Key {
        let shared = self.regions.get(region.0 as usize).filter(|mapped| mapped.access.is_shared());
        shared.map_or(Key::NONE, |&Mapped { owner, access, offset, bytes, .. }| {
            Key([offset, bytes as u64 | u64::from(owner) << OWNER, access.code(), self.number])
        })
    }

    fn import(&mut self, peer: u32, key: Key) -> Result<Region> {
        let bad = || self.usage("import", Misuse::Argument("not a key of that peer"));
        let Key([offset, what, access, number]) = key;
        if number != self.number {
            // The memory would be freed when the others have closed the regions that they import for this collective.
            let problem = Misuse::Order(
                "a key of another collective; threads of a rank must make theirs in the same order on all ranks",
            );
            return Err(self.usage("import", problem));
        }
        let bytes = usize::try_from(what & ((1 << OWNER) - 1)).map_err(|_| bad())?;
        if offset == 0 || what >> OWNER != u64::from(peer) {
            return Err(bad());
        }
        let access = Access::of_key(access).ok_or_else(bad)?;
        self.add((peer, access), offset, bytes)
    }

    fn window(&self, region: Region) -> Option<Window> {
        self.regions.get(region.0 as usize).map(|mapped| mapped.window.clone())
    }

    fn put(&mut self, from: At, to: At, len: usize, signal: Option<Signal>, _token: u64) -> Result<Posted> {
        if let Some(signal) = signal {
            self.far("put", signal.at, size_of::<u64>(), Access::allows_writing)?;
        }
        let (source, target) = (self.mapped("put", from, len)?, self.far("put", to, len, Access::allows_writing)?);
        if let Some(signal) = signal.filter(|_| Fault::SignalBeforeCopy.is(self.fault)) {
            self.change(signal)?;
            Window::copy((&source.window, from.offset), (&target.window, to.offset), len);
            return Ok(Posted::Done(0));
        }
        let len = if Fault::ForgetTail.is(self.fault) { len / size_of::<u64>() * size_of::<u64>() } else { len };
        Window::copy((&source.window, from.offset), (&target.window, to.offset), len);
        match signal {
            Some(signal) => self.change(signal)?,
            None => sync::fence(sync::Ordering::Release),
        }
        Ok(Posted::Done(0))
    }

    fn signal(&mut self, signal: Signal, _token: u64) -> Result<Posted> {
        self.change(signal)?;
        Ok(Posted::Done(0))
    }

    fn read(&mut self, from: At, to: At, len: usize, _token: u64) -> Result<Posted> {
        let (source, target) = (self.far("read", from, len, Access::allows_reading)?, self.mapped("read", to, len)?);
        Window::copy((&source.window, from.offset), (&target.window, to.offset), len);
        Ok(Posted::Done(0))
    }

    fn atomic(&mut self, at: At, atomic: Atomic, _token: u64) -> Result<Posted> {
        let mapped = self.far("atomic", at, size_of::<u64>(), Access::allows_writing)?;
        if !at.offset.is_multiple_of(size_of::<u64>()) {
            return Err(self.usage("atomic", Misuse::Argument("a cell that is not aligned to 8 bytes")));
        }
        let cell = mapped.window.cell(at.offset / size_of::<u64>());
        Ok(Posted::Done(atomic.apply(cell)))
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        Ok(None)
    }

    fn completion(&mut self) -> Result<Option<Completion>> {
        Ok(None)
    }

    fn prepare_wait(&mut self, interest: Interest) {
        self.bell().announce(interest);
        if self.waits_fence_peer() {
            membarrier::everywhere();
        }
    }

    fn waits_fence_peer(&self) -> bool {
        self.segment.is_fenced_pair()
    }

    fn cancel_wait(&mut self) {
        self.bell().withdraw();
    }

    fn wait(&mut self, at_most: Duration) {
        self.bell().sleep(at_most);
    }

    fn delegate_wait(&mut self) -> bool {
        self.bell().delegate()
    }

    fn is_delegated(&self) -> bool {
        self.bell().is_delegated()
    }

    fn wake(&mut self, most: u32, interest: Interest) -> u32 {
        let ranks = self.segment.ranks();
        let most = if Fault::WakeOne.is(self.fault) { most.min(1) } else { most };
        let others = (1..ranks).map(|next| (self.rank + next) % ranks);
        let bells = others.map(|rank| (self.segment.doorbell(self.channel, rank), self.segment.sleeper(rank)));
        match self.waits_fence_peer() {
            true => doorbell::ring_fenced(bells, most, interest),
            false => doorbell::ring_all(bells, most, interest),
        }
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        self.bell().withdraw();
        self.segment.channels().close(self.channel, self.segment.ranks(), |is_last| {
            // The last rank to close frees the memory, because others may still read it before.
            if is_last || Fault::FreeEarly.is(self.fault) {
                self.regions.iter().for_each(|region| self.segment.free(region.offset, region.bytes));
            }
        });
        let user = (self.number, self.channel);
        let own = self.regions.drain(..).filter(|region| region.owner == self.rank);
        own.for_each(|region| self.segment.give_back(user, region.offset, region.bytes));
    }
}
