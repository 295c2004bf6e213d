//! What the provider of a network does: it posts operations, reports what has completed, registers memory, and names
//! the descriptors to sleep on.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::registration::{Failed, Purpose, Registered};
use super::secret::JobSecret;
use crate::error::Ranks;
use crate::fabric::{Access, Atomic, Window};
use crate::time::Deadline;

/// A range of this rank's registered memory.
#[derive(Debug)]
pub(in crate::internals::fabric) struct Local<'a, M> {
    pub(in crate::internals::fabric) memory: &'a M,
    pub(in crate::internals::fabric) offset: usize,
    pub(in crate::internals::fabric) len: usize,
}

/// A location in a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::internals::fabric) struct Remote {
    /// The address or offset, depending on the provider.
    pub(in crate::internals::fabric) address: u64,
    /// The key of the registration, or the keys of all rails, as the wire packs them.
    pub(in crate::internals::fabric) key: u64,
}

/// Both ends of data that moves.
pub(in crate::internals::fabric) type Ends<'a, M> = (Local<'a, M>, Remote);

/// An entry of the completion queue.
#[derive(Clone, Debug)]
pub(in crate::internals::fabric) enum QueueEntry {
    /// The operation of this number has completed. For a receive, `len` is the length of the message in bytes.
    Done { number: usize, len: usize },
    /// The operation of this number has failed, for this reason.
    Failed { number: usize, reason: String },
    /// A message without an entry of its own could not reach this peer, for this reason.
    Unreachable { peer: u32, reason: String },
    /// A peer's write with this immediate data landed here.
    Landed(u64),
    /// An irrelevant entry.
    Nothing,
}

/// How a device changes a cell of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::internals::fabric) enum CellChange {
    /// The cell becomes this value.
    Set(u64),
    /// An atomic, which also fetches the old value.
    Atomic(Atomic),
}

/// The agent that changes cells, so that no change is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::internals::fabric) enum Atomicity {
    /// The processor of the cell's home, which peers ask by messages.
    Processor,
    /// The device of the home; the home's own changes go through it, too.
    Device,
    /// The device and the processor: their changes are atomic against each other.
    Both,
}

/// A descriptor to sleep on, and the events to wait for, as for poll(2).
#[derive(Debug)]
pub(in crate::internals::fabric) struct Watched {
    pub(in crate::internals::fabric) descriptor: OwnedFd,
    pub(in crate::internals::fabric) events: i16,
}

/// Trouble that a device reports by itself, and not as the end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::internals::fabric) struct Trouble {
    /// The peer whose connection has failed; `None` if this rank can continue with no peer.
    pub(in crate::internals::fabric) peer: Option<u32>,
    /// What has happened.
    pub(in crate::internals::fabric) reason: String,
}

/// Whether an operation was posted; `false` if the provider or this rank has no free resource now.
pub(in crate::internals::fabric) type Posted<E> = Result<bool, E>;

/// What ranks tell each other about their connections, once all are connected, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::internals::fabric) enum Telling {
    /// The connections that they have made.
    Made,
    /// Those of them that have reached this rank. No further ones come.
    Kept,
    /// Those of the made connections that still exist.
    StillMade,
}

impl Telling {
    pub(in crate::internals::fabric) const ALL: [Telling; 3] = [Telling::Made, Telling::Kept, Telling::StillMade];

    /// Returns the name of the step in seals.
    pub(super) fn name(self) -> &'static str {
        match self {
            Telling::Made => "made",
            Telling::Kept => "kept",
            Telling::StillMade => "still made",
        }
    }
}

/// A provider's endpoint. It knows nothing about messages, credit or collectives.
///
/// Peers are named by their ranks. Each operation has a number, below [`Limits::operations`], which its [`QueueEntry`]
/// repeats. No two operations have the same number at a time.
///
/// # Safety of operations
/// Operations that use memory after the call returns are unsafe. The memory must live until their entry was read or the
/// wire has ended. Until then nothing else may change what they read, or use what they write.
///
/// [`Limits::operations`]: super::limits::Limits::operations
pub(in crate::internals::fabric) trait Wire: Debug + Send + Sized + 'static {
    /// The name of the fabric.
    const FABRIC: &'static str;

    /// The library of the provider, as errors name it.
    const LIBRARY: &'static str;

    /// The provider's error.
    type Error: Copy + Debug + PartialEq + Send;

    /// Registered memory of this rank.
    type Memory: Registered;

    /// Registers memory, even while another thread uses the wire.
    type Registrar: Clone;

    /// Whether writes and changes of cells at a peer become visible in the order in which they were posted.
    const IN_ORDER: bool;

    /// Whether processes other than ranks may connect to this wire, as long as it lets them.
    const CAN_BE_FOUND: bool = false;

    /// Returns the registrar of this wire.
    fn registrar(&self) -> &Self::Registrar;

    /// Allocates zeroed memory of whole pages, and registers it where the purpose needs that.
    fn allocate(
        registrar: &Self::Registrar,
        bytes: usize,
        purpose: Purpose,
    ) -> Result<Self::Memory, Failed<Self::Error>>;

    /// Registers memory that is there already, for one-sided operations.
    fn register(
        registrar: &Self::Registrar,
        window: Window,
        access: Access,
    ) -> Result<Self::Memory, Failed<Self::Error>>;

    /// Adds the next rank, by its address. All ranks are added, including this one, before any operation names one.
    fn insert(&mut self, address: &[u8]) -> Result<(), Self::Error>;

    /// Stores the secret of the job, which is known once all ranks are added and before any operation.
    fn keep_secret(&mut self, _secret: JobSecret) {}

    /// Returns what this rank tells each rank about its connections at a step, once each has told it (`told`) what
    /// belongs to the previous step.
    ///
    /// # Errors
    /// Why other processes may still connect.
    fn tell_connections(&mut self, _step: Telling, _told: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
        Ok(Vec::new())
    }

    /// Called when all ranks have told what belongs to the last step. From now on no other process can connect, and
    /// none stays connected. Returns the addresses of those that were disconnected.
    ///
    /// # Errors
    /// Ranks to which this rank has no connection that they know.
    fn keep_strangers_out(&mut self, _still_made: &[Vec<u8>]) -> Result<BTreeSet<SocketAddr>, Ranks> {
        Ok(BTreeSet::new())
    }

    /// Returns whether what a peer has answered by now is its own answer. After a peer's death another process may be
    /// in its place.
    fn is_connected(&self, _peer: u32) -> bool {
        true
    }

    /// Takes the next message of any peer into a buffer.
    ///
    /// # Safety
    /// As [above](Wire#safety-of-operations).
    unsafe fn receive(&mut self, to: Local<'_, Self::Memory>, number: usize) -> Result<(), Self::Error>;

    /// Sends a message.
    ///
    /// # Safety
    /// As [above](Wire#safety-of-operations).
    unsafe fn send(&mut self, peer: u32, from: Local<'_, Self::Memory>, number: usize) -> Posted<Self::Error>;

    /// Returns the maximum number of bytes of a message that can be injected.
    fn most_injected(&self) -> usize;

    /// Sends a message, which may change as soon as this returns. There is no entry.
    fn inject(&mut self, peer: u32, message: &[u8]) -> Posted<Self::Error>;

    /// Returns the number of rails of this rank: devices over which parts of a transfer go at the same time. All ranks
    /// have the same number, and rails with the same number reach each other. The first one carries everything except
    /// the parts of large transfers.
    fn rails(&self) -> usize {
        1
    }

    /// Called when the world has failed: from now on what goes by the first rail waits for no other.
    fn forgo_rails(&mut self) {}

    /// Writes to a peer, by a rail. Without immediate data, completion means that the bytes lie in the peer's memory,
    /// before all that this rank writes afterwards and before reads by the same rail. What was written over several
    /// rails is read in the same parts. With immediate data, which only the first rail carries, completion means that
    /// the source was read.
    ///
    /// # Safety
    /// As [above](Wire#safety-of-operations).
    unsafe fn write(
        &mut self,
        to: (u32, usize),
        ends: Ends<'_, Self::Memory>,
        immediate: Option<u64>,
        number: usize,
    ) -> Posted<Self::Error>;

    /// Writes to two locations of a peer in one operation, with immediate data. Called only where the limits allow it.
    ///
    /// # Safety
    /// As [above](Wire#safety-of-operations).
    unsafe fn write_both(
        &mut self,
        peer: u32,
        places: [(Local<'_, Self::Memory>, Remote); 2],
        immediate: u64,
        number: usize,
    ) -> Posted<Self::Error>;

    /// Returns the agent that changes cells. Unless it is [`Atomicity::Processor`], there is [`Wire::change`].
    fn atomicity(&self) -> Atomicity {
        Atomicity::Processor
    }

    /// Returns whether the bytes of a write that lie in one cache line become visible together, or in ascending order,
    /// at every rank. Only for a wire that is [in order](Wire::IN_ORDER).
    fn writes_in_order(&self) -> bool {
        false
    }

    /// Returns whether this rank polls its memory at short intervals while it waits, so that peers need not wake it for
    /// what devices change there.
    fn polls_memory(&self) -> bool {
        false
    }

    /// Called if not all ranks' devices order the bytes of a write: from now on the wire does not rely on that.
    fn forgo_order(&mut self) {}

    /// Called if not all ranks' cells can be changed by devices: from now on processors change them.
    fn forgo_atomics(&mut self) {}

    /// Writes to a peer, if there is data, and then changes a cell of it; its device needs no processor for that.
    /// `word` is 8 bytes of own memory, which hold the old value of the cell when the operation has completed, unless
    /// it only sets the cell. In that case all of `word` is written, and may hold data in front of the value, where
    /// [writes are in order](Wire::writes_in_order). A wire that is not [in order](Wire::IN_ORDER) uses the 16 bytes
    /// after `word` itself meanwhile. `immediate` is delivered after both. The peer may be this rank.
    ///
    /// Completion means that all of it is visible in the peer's memory.
    ///
    /// # Safety
    /// As [above](Wire#safety-of-operations).
    unsafe fn change(
        &mut self,
        _peer: u32,
        _data: Option<Ends<'_, Self::Memory>>,
        _cell: (Remote, CellChange),
        _word: Local<'_, Self::Memory>,
        _immediate: Option<u64>,
        _number: usize,
    ) -> Posted<Self::Error> {
        debug_assert!(false, "this wire changes no cells");
        Ok(false)
    }

    /// Reads from a peer, by a rail.
    ///
    /// # Safety
    /// As [above](Wire#safety-of-operations).
    unsafe fn read(&mut self, from: (u32, usize), ends: Ends<'_, Self::Memory>, number: usize) -> Posted<Self::Error>;

    /// Makes progress and reads the completion queue. [`Wire::next`] returns the entries; all are taken before the next
    /// call.
    fn poll(&mut self) -> Result<(), Self::Error>;

    /// Returns the next entry that [`Wire::poll`] has read.
    fn next(&mut self) -> Option<QueueEntry>;

    /// Returns the next trouble that the device has reported. Not for every poll of the network, because it may be a
    /// system call.
    fn trouble(&mut self) -> Option<Trouble> {
        None
    }

    /// Sets until when this thread waits for the provider, including work of others in it; `None` if it waits for
    /// nothing any more. After that a provider that does not return is given up. Returns the previous setting.
    fn expect_by(_due: Option<Deadline>) -> Option<Deadline> {
        None
    }

    /// Returns the number of reliable queue pairs to peers; 0 where the provider has none that this rank knows of.
    fn queue_pairs(&self) -> u32 {
        0
    }

    /// Returns what the device has reported that may explain why a peer is silent.
    fn device_fault(&self) -> Option<String> {
        None
    }

    /// Returns the descriptors to sleep on until there is something to read, for threads that do not hold this value;
    /// empty if the provider has none. `None` if it is not safe to sleep now.
    fn may_sleep(&mut self) -> Option<Arc<[Watched]>>;

    /// Prepares for the end of this value, perhaps with operations in flight. Returns whether the memory that it knows
    /// may end before it. Otherwise the endpoint stays open until the process ends.
    fn end(&mut self, in_flight: bool) -> bool;

    /// Returns the text of an error.
    fn text(&self, error: Self::Error) -> String;
}
