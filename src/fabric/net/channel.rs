//! The state of one collective: its regions, its completions, and the wait of its caller.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::message::Location;
use super::registration::Registered;
use crate::fabric::bell::ring;
use crate::fabric::{Access, At, Atomic, Change, Completion, Endpoint, Region, Window};
use crate::sync;

/// A region that an endpoint can name.
#[derive(Debug)]
pub(super) enum RegionEntry<M> {
    /// Memory of this rank.
    Own(M, usize),
    /// Memory of a peer.
    Peer(PeerRegion),
}

/// A peer's region.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerRegion {
    pub(super) owner: u32,
    /// What the owner allows.
    pub(super) access: Access,
    /// The owner's number of the region.
    pub(super) region: u16,
    pub(super) bytes: usize,
    /// The key of the registration.
    pub(super) key: u64,
    pub(super) base: u64,
}

impl<M> RegionEntry<M> {
    pub(super) fn bytes(&self) -> usize {
        match self {
            RegionEntry::Own(_, bytes) => *bytes,
            RegionEntry::Peer(remote) => remote.bytes,
        }
    }
}

/// One collective on this rank.
#[derive(Debug)]
pub(super) struct Channel<M> {
    pub(super) entries: Vec<RegionEntry<M>>,
    pub(super) completions: VecDeque<Completion>,
    /// Whether this rank has an open endpoint.
    pub(super) is_open: bool,
    /// The number of ranks that have closed their endpoint.
    pub(super) closed: u32,
    /// The first operation that failed because a peer had left, and that peer.
    pub(super) broken: Option<(&'static str, u32)>,
    /// What owns the memory of this rank's regions, where ranks of its host share it.
    owner: Option<Box<dyn Endpoint>>,
    wait: Wait,
}

/// The announced wait of a caller, if there is one.
#[derive(Debug, Default)]
struct Wait {
    announced: bool,
    woken: bool,
    /// The bell on which the caller sleeps.
    asleep: Option<Arc<OwnedFd>>,
}

impl<M> Default for Channel<M> {
    fn default() -> Self {
        Channel {
            entries: Vec::new(),
            completions: VecDeque::new(),
            is_open: false,
            closed: 0,
            broken: None,
            owner: None,
            wait: Wait::default(),
        }
    }
}

impl<M: Registered> Channel<M> {
    /// Returns the region at `at`, if `len` bytes from there lie in it.
    pub(super) fn entry(&self, at: At, len: usize) -> Option<&RegionEntry<M>> {
        let entry = self.entries.get(at.region.0 as usize)?;
        (at.offset <= entry.bytes() && len <= entry.bytes() - at.offset).then_some(entry)
    }

    /// Returns memory of this rank.
    pub(super) fn own(&self, region: Region) -> Option<&M> {
        match self.entries.get(region.0 as usize)? {
            RegionEntry::Own(registered, _) => Some(registered),
            RegionEntry::Peer(_) => None,
        }
    }

    /// Returns this channel if peers may write the region and change its cells.
    pub(super) fn writable(&self, location: Location) -> Option<&Self> {
        let own = self.own(Region(u32::from(location.region)))?;
        own.access().allows_writing().then_some(self)
    }

    /// Returns a window on memory of this rank if the location lies in it.
    fn target(&self, location: Location, len: usize) -> Option<(&Window, usize)> {
        let (region, offset) = (Region(u32::from(location.region)), usize::try_from(location.offset).ok()?);
        self.entry(At { region, offset }, len)?;
        Some((self.own(region)?.window(), offset))
    }

    fn cell(&self, location: Location) -> Option<&sync::AtomicU64> {
        let (window, offset) = self.target(location, size_of::<u64>())?;
        offset.is_multiple_of(size_of::<u64>()).then(|| window.cell(offset / size_of::<u64>()))
    }

    /// Copies data in; `None` if the location is not in a region of this rank.
    #[must_use]
    pub(super) fn write(&self, location: Location, data: &[u8]) -> Option<()> {
        let (window, offset) = self.target(location, data.len())?;
        window.write(offset, data);
        Some(())
    }

    /// Changes a cell, with release ordering: a thread that sees the change sees the earlier data.
    #[must_use]
    pub(super) fn change(&self, location: Location, change: Change) -> Option<()> {
        change.apply(self.cell(location)?);
        Some(())
    }

    /// Changes a cell and returns its old value.
    #[must_use]
    pub(super) fn atomic(&self, location: Location, atomic: Atomic) -> Option<u64> {
        Some(atomic.apply(self.cell(location)?))
    }

    /// Frees the memory of this rank's regions.
    pub(super) fn free(&mut self) {
        // A registration ends before its memory.
        self.entries = Vec::new();
        self.owner = None;
    }

    pub(super) fn complete(&mut self, token: u64, value: u64) {
        if self.is_open && self.broken.is_none() {
            self.completions.push_back(Completion { token, value });
            self.wake();
        }
    }

    /// Breaks the channel: an operation to a peer that has left failed. The channel completes nothing from now on.
    pub(super) fn break_off(&mut self, operation: &'static str, peer: u32) {
        self.broken.get_or_insert((operation, peer));
        self.wake();
    }

    /// Keeps the owner of the regions' memory until they are freed.
    pub(super) fn keep(&mut self, owner: Box<dyn Endpoint>) {
        self.owner = Some(owner);
    }

    pub(super) fn announce(&mut self, announced: bool) {
        self.wait = Wait { announced, woken: false, asleep: None };
    }

    /// Returns whether the announced wait is over; true if there is none.
    pub(super) fn is_woken(&self) -> bool {
        self.wait.woken || !self.wait.announced
    }

    /// Ends the announced wait of a caller that is awake.
    pub(super) fn end_wait(&mut self) {
        self.wait.woken |= self.wait.announced;
        self.wait.asleep = None;
    }

    pub(super) fn sleeps_on(&mut self, bell: Option<Arc<OwnedFd>>) {
        self.wait.asleep = bell;
    }

    pub(super) fn is_asleep_on(&self, bell: &Arc<OwnedFd>) -> bool {
        self.wait.asleep.as_ref().is_some_and(|asleep| Arc::ptr_eq(asleep, bell))
    }

    /// Ends the announced wait, if there is one.
    pub(super) fn wake(&mut self) {
        let asleep = self.wait.asleep.take();
        self.end_wait();
        if let Some(bell) = asleep {
            ring(&*bell);
        }
    }
}
