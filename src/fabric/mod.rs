//! One-sided transports.
//!
//! A [`Fabric`] joins the processes of a world. An [`Endpoint`] of it carries the operations of one collective. The
//! semantics below hold for every implementation, and [`conformance`] tests each of them.
//!
//! # Memory
//! [`register`](Endpoint::register) makes zeroed memory. Its owner states what peers may do with it once they hold its
//! key ([`Access`]). The endpoint refuses an operation that the access does not allow; on networks the owner's provider
//! refuses it, too. The memory exists until all ranks have dropped their endpoints. Offsets of cells are multiples of
//! 8. No Rust reference exists to memory while a peer may write it: a [`Window`] gives atomics and raw copies. No
//! operation checks that; opening an endpoint takes a [`RawAccess`], whose contract covers all use of the endpoint.
//!
//! # Completion
//! Each operation has a token. It completes in the call ([`Posted::Done`]) or later, once, through
//! [`poll`](Endpoint::poll) with the same token. Completion means:
//! - of a *put*: data and signal are visible at the target, and the source may be written again;
//! - of a *read*: the data is in the local window;
//! - of an *atomic*: it took effect, and the value is the old value of the cell.
//!
//! An operation that fails makes `poll` return an error, and the endpoint is unusable from then on. The effect of the
//! operation is unknown, and it is never tried again.
//!
//! # Ordering
//! Two operations are not ordered, even to the same peer, unless the second was posted after the first completed.
//! Within one put, the signal takes effect after all of the data is visible: a peer that sees the signal with an
//! acquire load sees the data. Atomics of different origins on one cell take effect in one total order. They are atomic
//! against other fabric atomics, not against plain stores through a window.
//!
//! # Waiting
//! A put with a signal, or [`wake`](Endpoint::wake), ends a wait of the target if the target announced it with the same
//! interest ([`prepare_wait`](Endpoint::prepare_wait)) before it polled its memory for the last time. Waits may end
//! without a cause. Where no peer wakes this rank, all waits end soon after they began.
//!
//! One thread of a rank can wait for several endpoints at once: it [delegates](Endpoint::delegate_wait) each announced
//! wait to the rank's [`Sleeper`].

mod access;
mod alarm;
mod bell;
mod cache_line;
#[cfg(earlybird_tools)]
pub mod conformance;
pub(crate) mod failure;
#[cfg(all(test, not(loom)))]
mod footprint_tests;
mod host_memory;
pub(crate) mod levels;
mod locked_memory;
pub(crate) mod memory;
#[cfg(all(test, loom))]
pub(crate) mod modelled;
pub(crate) mod net;
mod network;
pub mod ofi;
#[cfg(earlybird_tools)]
pub mod scheduled;
mod scope;
pub mod shm;
#[cfg(earlybird_tools)]
pub mod sim;
mod traffic;
pub(crate) mod turns;
pub mod verbs;
pub(crate) mod watch;
mod window;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use access::RawAccess;
pub(crate) use cache_line::{CACHE_LINE, cell_behind};
pub(crate) use host_memory::HostMemory;
pub(crate) use network::{Attendant, Candidate, NetworkEndpoint, NetworkFabric};
pub use scope::Scope;
pub use traffic::{Reached, Traffic};
pub use window::Window;

use crate::error::{HostNames, Misuse, Result};
use crate::sync::{self, AtomicU64};
use crate::time::Deadline;

/// A region that an endpoint can name: its own, or imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region(pub(crate) u32);

impl Region {
    /// Memory that an endpoint cannot reach: each operation on it fails.
    pub(crate) const UNREACHED: Region = Region(u32::MAX);
}

/// What peers may do with a region by operations. Its owner may do everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Peers cannot name the region. For memory that is only the local side of this rank's operations.
    Local,
    /// Peers may read it.
    Read,
    /// Peers may write it, and change its cells by signals and atomics.
    Write,
    /// Peers may read and write it.
    ReadWrite,
}

impl Access {
    /// Returns whether peers may read the region.
    #[must_use]
    pub fn allows_reading(self) -> bool {
        matches!(self, Access::Read | Access::ReadWrite)
    }

    /// Returns whether peers may write the region and change its cells.
    #[must_use]
    pub fn allows_writing(self) -> bool {
        matches!(self, Access::Write | Access::ReadWrite)
    }

    /// Returns whether peers can name the region at all.
    #[must_use]
    pub fn is_shared(self) -> bool {
        self != Access::Local
    }

    /// Returns the access as a number, for a key.
    pub(crate) fn code(self) -> u64 {
        self as u64
    }

    /// Returns the access of a key; `None` for a number that no key has.
    pub(crate) fn of_key(code: u64) -> Option<Self> {
        [Access::Read, Access::Write, Access::ReadWrite].into_iter().find(|access| access.code() == code)
    }
}

/// The problem of an operation that the owner of a region does not allow.
pub(crate) const NOT_ALLOWED: Misuse = Misuse::Argument("the owner of the region does not allow that");

/// What a peer needs to name a region; its content is private to the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub(crate) [u64; 4]);

impl Key {
    /// The bytes of an encoded key.
    pub const BYTES: usize = 32;

    /// A key that no peer can import.
    pub(crate) const NONE: Key = Key([u64::MAX; 4]);

    /// Encodes the key for a peer.
    #[must_use]
    pub fn encode(self) -> [u8; Key::BYTES] {
        let mut bytes = [0; Key::BYTES];
        for (place, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(self.0) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a key; `None` for bytes that are not a key.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: [[u8; 8]; 4] = words.try_into().ok()?;
        rest.is_empty().then(|| Key(words.map(u64::from_le_bytes)))
    }
}

/// An offset in a region, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// The region.
    pub region: Region,
    /// The bytes from its start.
    pub offset: usize,
}

/// The result of posting an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It has completed. For an atomic, the value is what the cell held before.
    Done(u64),
    /// It will complete through [`Endpoint::poll`].
    Pending,
}

/// An operation that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The token that the operation was posted with.
    pub token: u64,
    /// The value before an atomic; 0 otherwise.
    pub value: u64,
}

/// What a put does to a cell after its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The cell, at the same peer as the data.
    pub at: At,
    /// How it changes.
    pub change: Change,
    /// Whether the writer waits for the completion: a hint that matters if the data is large. Otherwise the writer
    /// learns of the completion with the next message from that peer, or when the peer is idle, which saves the peer a
    /// message.
    pub awaited: bool,
}

/// How a cell changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// The cell becomes this value.
    Set(u64),
    /// The cell grows by this value, wrapping; atomic against other fabric atomics.
    Add(u64),
    /// The cell grows by `by` to `to`, and only this rank changes it. Several such changes may be in flight. See
    /// [`Change::advance`].
    Advance {
        /// The value by which the cell grows.
        by: u32,
        /// The value that it reaches.
        to: u64,
    },
}

// Operations carry a change, in memory that is copied.
const _: () = assert!(size_of::<Change>() <= 16);

impl Change {
    /// Changes a cell that this process can reach. A thread that sees the change sees what this thread wrote before.
    #[inline]
    pub(crate) fn apply(self, cell: &AtomicU64) {
        match self {
            Change::Set(value) => sync::announce(cell, value),
            Change::Add(_) | Change::Advance { .. } => _ = sync::add(cell, self.value()),
        }
    }

    /// Returns the change of a cell from its value to a greater one, if only this rank changes the cell. Several may be
    /// in flight: the cell grows with each, and reaches the last value when all have landed. Nothing else may change it
    /// meanwhile. A network that keeps the order of operations sets the cell, which costs less than adding. A step of
    /// more than 32 bits is added there, too, and must be the last one.
    #[must_use]
    pub fn advance(from: u64, to: u64) -> Self {
        let by = to.wrapping_sub(from);
        u32::try_from(by).map_or(Change::Add(by), |by| Change::Advance { by, to })
    }

    /// Returns the new value of the cell, or what is added to it where operations may overtake each other.
    #[inline]
    pub(crate) fn value(self) -> u64 {
        match self {
            Change::Set(value) | Change::Add(value) => value,
            Change::Advance { by, .. } => by.into(),
        }
    }
}

/// An atomic operation on a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Atomic {
    /// Adds, wrapping.
    FetchAdd(u64),
    /// Stores `new` if the cell holds `expect`.
    CompareSwap {
        /// The value that the cell must hold.
        expect: u64,
        /// The value that replaces it.
        new: u64,
    },
}

impl Atomic {
    /// Performs the operation on a cell that this process can reach, and returns the old value of the cell.
    #[inline]
    pub(crate) fn apply(self, cell: &AtomicU64) -> u64 {
        match self {
            Atomic::FetchAdd(value) => sync::add(cell, value),
            Atomic::CompareSwap { expect, new } => sync::swap(cell, expect, new),
        }
    }
}

/// What a rank waits for: not 0, and less than 2^31. A wake-up names one interest and reaches the ranks that wait for
/// it.
pub type Interest = u32;

/// Ends the sleep of a [`Sleeper`], from any thread.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Waker(Arc::new(wake))
    }

    /// Ends the sleep, or the next one if none has begun.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waker")
    }
}

/// The maximum number of bytes that a rank gives to an exchange.
pub const MOST_EXCHANGED: usize = 1000;

/// The maximum number of bytes that a rank gives to a long exchange, which takes several exchanges.
const MOST_EXCHANGED_LONG: usize = 1 << 27;

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The transport of a world: processes that can reach each other's memory. The trait is sealed, because the unsafe code
/// of this crate relies on its implementations, and gives them its own [`RawAccess`].
pub trait Fabric: sealed::Sealed + Send + Sync + Debug {
    /// Returns the name of the fabric: `shm`, `sim`, …
    fn name(&self) -> &'static str;

    /// Returns the provider, if the fabric has several.
    fn provider(&self) -> Option<&str> {
        None
    }

    /// Returns this rank.
    fn rank(&self) -> u32;

    /// Returns the number of ranks in the world.
    fn ranks(&self) -> u32;

    /// Returns the known ranks on this machine, which share its cores: ascending, including this one.
    fn neighbours(&self) -> Vec<u32>;

    /// Returns the names of the ranks' hosts, for messages to people.
    fn host_names(&self) -> HostNames {
        HostNames::default()
    }

    /// Returns whether a rank's processor changes the rank's cells for peers that cannot map them. If so, a rank that
    /// computes delays these peers until one of its threads answers.
    fn changes_by_processor(&self) -> bool {
        true
    }

    /// Returns what this rank has sent to peers so far.
    fn traffic(&self) -> Traffic;

    /// Returns how many peers this rank has reached so far.
    fn reached(&self) -> Reached;

    /// Makes sure that this rank can open endpoints, by an instant. Collective: all ranks call it before they open their first
    /// endpoints.
    ///
    /// # Errors
    /// A rank did not come, or cannot be reached.
    fn reach_all(&self, _operation: &'static str, _deadline: Instant) -> Result<()> {
        Ok(())
    }

    /// Opens a new endpoint. Collective: all ranks open their endpoints in the same order, and the n-th ones belong
    /// together. Use of the endpoint can break memory; `access` promises that it does not.
    ///
    /// # Errors
    /// The resources are not available.
    fn open(&self, access: RawAccess) -> Result<Box<dyn Endpoint>>;

    /// Returns a sleeper for several endpoints of this rank, which has only one at a time. `None` where time is
    /// simulated.
    fn sleeper(&self) -> Option<Box<dyn Sleeper>> {
        None
    }

    /// Gives every rank's bytes to every rank, in rank order. Collective: all ranks call it in the same order. For
    /// set-up only; a rank gives at most [`MOST_EXCHANGED`] bytes.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) with the ranks that did not come; a dead peer.
    /// After a failure the ranks are out of step, and every later call fails.
    fn exchange(&self, operation: &'static str, mine: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>>;

    /// As [`Fabric::exchange`], for longer data: it takes several exchanges.
    ///
    /// # Errors
    /// As [`Fabric::exchange`].
    fn exchange_long(&self, operation: &'static str, mine: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        const FIRST: usize = MOST_EXCHANGED - size_of::<u32>();
        // The first part follows the length, so short data takes one exchange.
        let length = u32::try_from(mine.len()).unwrap_or(u32::MAX).to_le_bytes();
        let told = self.exchange(operation, &[&length[..], &mine[..mine.len().min(FIRST)]].concat(), deadline)?;
        let (mut longest, mut all) = (0, Vec::with_capacity(told.len()));
        for (rank, told) in (0..).zip(told) {
            let length = told.first_chunk().map_or(u32::MAX, |length| u32::from_le_bytes(*length)) as usize;
            if length > MOST_EXCHANGED_LONG {
                let cause = format!("it wants to tell more than {MOST_EXCHANGED_LONG} bytes");
                return Err(crate::Error::transport(self.rank(), rank, operation, cause));
            }
            longest = longest.max(length);
            all.push(told[size_of::<u32>()..].to_vec());
        }
        for from in (FIRST..longest).step_by(MOST_EXCHANGED) {
            let part = mine.get(from..mine.len().min(from + MOST_EXCHANGED)).unwrap_or_default();
            let parts = self.exchange(operation, part, deadline)?;
            all.iter_mut().zip(parts).for_each(|(whole, part)| whole.extend(part));
        }
        Ok(all)
    }

    /// Fails if the job was aborted or a peer is known to be dead. It is cheap enough for every call.
    ///
    /// # Errors
    /// The reason, in this and every later call.
    fn health(&self, operation: &'static str) -> Result<()>;

    /// Returns what processes outside this world have sent so far, as text that continues a sentence; empty if they
    /// sent nothing.
    fn strangers(&self) -> String {
        String::new()
    }

    /// Returns a secret derived from what ranks have told each other through this world. A process that overheard them
    /// does not know the secret.
    fn secret_of(&self, told: &[u8]) -> Vec<u8> {
        // Over shared memory no other process can listen.
        told.to_vec()
    }

    /// Sets when this thread's call must end; `None` if it has ended. After that a provider that does not return is
    /// given up. Returns the previous setting: that of the enclosing call.
    fn expect_by(&self, _due: Option<Deadline>) -> Option<Deadline> {
        None
    }

    /// Checks for dead peers, which takes system calls; then as [`Fabric::health`].
    ///
    /// # Errors
    /// As [`Fabric::health`].
    fn check_peers(&self, operation: &'static str) -> Result<()>;

    /// Returns the ranks that share memory with this one and have ended without leaving, which takes system calls. The
    /// other ranks can complete the operations that these had claimed.
    fn dead(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Returns whether a rank is known to have left. All that it did before is visible from then on.
    fn has_left(&self, peer: u32) -> bool;

    /// Fails every later call of every rank. Later reasons do not replace the first one. Any thread may call it.
    fn abort(&self, reason: &str);

    /// Announces that this process ends in good order, so that the others do not miss it.
    fn leave(&self);
}

/// One rank's access to the operations of one collective. See the [module](self) for their
/// semantics, and [`RawAccess::promise`] for what the caller has promised.
pub trait Endpoint: Send + Debug {
    /// Makes zeroed memory, aligned to a page and at least `bytes` long. Operations of peers can do with it only what
    /// `access` allows. Ranks that share the memory have a window on it, whatever `access` is, unless it is local.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) with the need, before any memory was taken.
    fn register(&mut self, bytes: usize, access: Access) -> Result<Region>;

    /// Returns what a peer needs to [`import`](Endpoint::import) a region of this endpoint. No peer can use the key of
    /// a local region.
    fn key(&self, region: Region) -> Key;

    /// Returns what a peer on another host needs, if that is another key.
    fn key_elsewhere(&self, _region: Region) -> Option<Key> {
        None
    }

    /// Names a peer's region.
    ///
    /// # Errors
    /// The key is not one of that peer's, its region is local to that peer, or its memory cannot be mapped.
    fn import(&mut self, peer: u32, key: Key) -> Result<Region>;

    /// Returns direct access to a region: always for its own regions, and for those of peers on the same host.
    fn window(&self, region: Region) -> Option<Window>;

    /// Writes `len` bytes and then changes a cell. The source must stay unchanged until completion.
    ///
    /// # Errors
    /// A location outside its region; an operation that the owner of a region does not allow; a broken endpoint.
    fn put(&mut self, from: At, to: At, len: usize, signal: Option<Signal>, token: u64) -> Result<Posted>;

    /// Changes a cell: a put without data.
    ///
    /// # Errors
    /// As [`Endpoint::put`].
    fn signal(&mut self, signal: Signal, token: u64) -> Result<Posted>;

    /// Reads `len` bytes into a region of this endpoint.
    ///
    /// # Errors
    /// As [`Endpoint::put`].
    fn read(&mut self, from: At, to: At, len: usize, token: u64) -> Result<Posted>;

    /// Changes a cell and fetches its old value.
    ///
    /// # Errors
    /// As [`Endpoint::put`].
    fn atomic(&mut self, at: At, atomic: Atomic, token: u64) -> Result<Posted>;

    /// Returns the next completion, if there is one. Makes progress on the network.
    ///
    /// # Errors
    /// An operation failed.
    fn poll(&mut self) -> Result<Option<Completion>>;

    /// Returns the next completion, if an earlier call has seen one.
    ///
    /// # Errors
    /// As [`Endpoint::poll`].
    fn completion(&mut self) -> Result<Option<Completion>>;

    /// Announces a wait. The caller must poll its memory once more before [`Endpoint::wait`].
    fn prepare_wait(&mut self, interest: Interest);

    /// Returns whether [`prepare_wait`](Endpoint::prepare_wait) also puts a fence between the stores and the later
    /// loads of the other rank of this host, if there is exactly one other. That rank's stores before
    /// [`wake`](Endpoint::wake) then need no fence of their own. Known once all ranks have opened this endpoint.
    fn waits_fence_peer(&self) -> bool {
        true
    }

    /// Withdraws the announcement.
    fn cancel_wait(&mut self);

    /// Sleeps until a wake-up for the announced interest, or for `at_most`. A wake-up since the announcement counts.
    /// Ends the announcement.
    fn wait(&mut self, at_most: Duration);

    /// Delegates the announced wait to the rank's [`Sleeper`], whose sleep ends when the wait does. Returns false if
    /// the wait has ended already, or if the rank has no sleeper.
    fn delegate_wait(&mut self) -> bool {
        false
    }

    /// Returns whether a delegated wait is still in progress: it has not ended, and was neither withdrawn nor announced
    /// anew.
    fn is_delegated(&self) -> bool {
        false
    }

    /// Wakes ranks of this host that wait for `interest`: all, or at most `most` of them. They see the caller's earlier
    /// stores. Returns how many were woken.
    fn wake(&mut self, most: u32, interest: Interest) -> u32;
}

/// Sleeps for several endpoints of a rank at once.
pub trait Sleeper: Send + Debug {
    /// Prepares a sleep. From now on, the end of a delegated wait ends the next sleep, and so does the waker.
    fn prepare(&mut self);

    /// Sleeps until a delegated wait ends, until the waker is used, or for `at_most`.
    fn sleep(&mut self, at_most: Duration);

    /// Returns a handle by which other threads end the sleep.
    fn waker(&self) -> Waker;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_the_way() {
        let key = Key([1, u64::MAX, 1 << 63, 0]);
        let bytes = key.encode();
        assert_eq!(Key::decode(&bytes), Some(key));
        assert_eq!(Key::decode(&bytes[1..]), None);
        assert_eq!(Key::decode(&[&bytes[..], &[0]].concat()), None);
    }
}
