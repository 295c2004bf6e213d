//! The engine: the state that connects a rank's operations with those of its peers, which is outgoing and incoming
//! messages, transfers and completions. The thread that holds its lock makes progress for all threads.
#![forbid(unsafe_code)]

mod atomics;
mod cells;
mod life;
mod lifecycle;
mod operations;
mod receiving;
mod sending;
mod wakes;
mod witnesses;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use self::atomics::SoftwareAtomics;
use self::life::Life;
use self::wakes::Wakes;
pub(super) use self::witnesses::Witnesses;
use super::channel::{Channel, PeerRegion, RegionEntry};
use super::header_slots::{HeaderSlots, IN_SLOT, ImmediateData};
use super::link::{Event, Link, Way};
use super::message::{Content, Location, MOST_DATA, MOST_HEADER, Message};
use super::registration::{Failed, Registered};
use super::secret::{JobSecret, Words};
use super::sequence::{Receipt, Received, Sent, WINDOW};
use super::shares::Queues;
use super::suspects::Evidence;
use super::wire::{CellChange, Telling, Trouble, Wire};
use crate::error::{Error, Misuse, Result};
use crate::fabric::alarm::Alarm;
use crate::fabric::failure::Failure;
use crate::fabric::{Access, At, Change, Key, Region, Window};
use crate::fault::Fault;
use crate::strangers::Strangers;

/// The number of polls without an event after which pending acks are sent alone.
const IDLE_POLLS: u32 = 256;

/// The maximum delay of an ack while this rank polls the network and processes other events.
const MAX_ACK_DELAY: Duration = Duration::from_micros(500);

/// The number of polls of the network for each read of the clock, which costs a tenth as much.
const POLLS_PER_CLOCK: u32 = 16;

/// The number of writes without the job's tag after which the job fails: one in 65,536 of the attempts needed to guess
/// 32 bits.
pub(in crate::internals::fabric) const MOST_GUESSES: u32 = 1 << 16;

/// The bit of a key from which it holds the access that the region's owner allows: above the rank, which has 16 bits.
const ACCESS: u32 = 48;

/// The state of one peer.
#[derive(Debug, Default)]
struct Peer {
    /// What this rank shows to the peer, and the peer to this rank.
    shows: Words,
    shown: Words,
    /// Where this rank writes headers to the peer.
    header_slots: Option<HeaderSlots>,
    /// Whether the peer needs no wakes.
    polls_memory: bool,
    sent: Sent<Option<(u16, u64)>>,
    received: Received,
    wakes: Wakes,
    /// The messages that wait for credit or a message buffer.
    outbox: VecDeque<Outgoing>,
    /// Whether the peer is in `NetEngine::backlogged`.
    is_backlogged: bool,
    /// Whether the peer is in `NetEngine::acks_pending`.
    ack_pending: bool,
    /// Whether the peer is in `NetEngine::wanting_ack`.
    wants_ack: bool,
}

/// A message that is not sent yet.
#[derive(Debug)]
struct Outgoing {
    channel: u16,
    content: Content,
    data: Data,
    /// The token of the operation that completes when the peer acknowledges the message.
    token: Option<u64>,
}

/// The data of a message. A region's bytes do not change until completion.
#[derive(Debug)]
enum Data {
    None,
    Region { region: Region, offset: usize, len: usize },
    Bytes(Box<[u8]>),
}

/// A transfer by one-sided operations, in parts.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    channel: u16,
    token: u64,
    peer: u32,
    /// The number of parts that have not completed.
    parts: u32,
    then: OnComplete,
    /// The operation that the transfer belongs to.
    operation: &'static str,
    /// Whether a part failed. The consequence depends on whether the peer has left or is dead.
    failed: bool,
    /// The value that it has fetched.
    value: u64,
}

impl Transfer {
    fn new((channel, token, peer): (u16, u64, u32), operation: &'static str, then: OnComplete) -> Self {
        Transfer { channel, token, peer, parts: 0, then, operation, failed: false, value: 0 }
    }
}

/// What follows the completion of all parts of a transfer.
#[derive(Clone, Copy, Debug)]
enum OnComplete {
    /// The operation completes.
    Complete,
    /// The operation completes with the value that it has fetched.
    Fetch,
    /// A message with the signal is sent.
    SendSignal(Location, Change, bool),
    /// The device of the peer changes a cell there.
    Change(At, Change),
    /// Nothing: the operation completes with the ack of the message that announced the transfer.
    AwaitAck,
}

/// Writes of a peer with one id, and the message that announces them: either may come first.
#[derive(Debug)]
struct Landing {
    from: u32,
    write_id: u16,
    /// The number of parts that have landed.
    landed: u32,
    announced: Option<Announced>,
}

/// The announcement of writes.
#[derive(Clone, Copy, Debug)]
struct Announced {
    /// The number of the message.
    number: u32,
    channel: u16,
    parts: u32,
    signal: (Location, Change),
    ack_now: bool,
}

/// What an operation of a transfer does.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// It moves data.
    Move(Way),
    /// It moves data to the peer, if there is any, and then changes the cell `at`; `wake` is immediate data.
    Change { at: At, change: CellChange, wake: Option<u64> },
}

/// A part of a transfer that waits for a context.
#[derive(Clone, Copy, Debug)]
struct TransferPart {
    transfer: u32,
    own: At,
    remote: At,
    len: usize,
    rail: usize,
    act: Act,
}

#[derive(Debug)]
pub(in crate::internals::fabric) struct NetEngine<W: Wire> {
    pub(super) rank: u32,
    pub(in crate::internals::fabric) secret: JobSecret,
    /// Whether messages of this rank carry the joining word.
    joins: bool,
    /// The number of exchanges by which ranks join before messages carry another word; 0 once all have joined.
    joining_turns: u64,
    // Before the link, because registrations must end before the wire.
    pub(super) channels: Vec<Channel<W::Memory>>,
    pub(in crate::internals::fabric) link: Link<W>,
    /// Memory that must outlive the wire.
    kept: Vec<Window>,
    peers: Vec<Peer>,
    backlogged: VecDeque<u32>,
    acks_pending: Vec<u32>,
    /// When the first ack became pending, or all pending acks were last checked.
    acks_pending_since: Option<Instant>,
    /// The peers among them that get an ack after this poll.
    wanting_ack: Vec<u32>,
    /// The maximum number of wakes in flight to one peer.
    most_wakes: u32,
    idle: u32,
    /// The number of all polls of the network.
    polls: u32,
    atomics: SoftwareAtomics,
    transfers: Vec<Transfer>,
    free_transfers: Vec<u32>,
    parts: Queues<TransferPart>,
    last_write_id: u16,
    landings: Vec<Landing>,
    /// Channels that this rank has closed without having announced it.
    closing: Vec<u16>,
    pub(in crate::internals::fabric) strangers: Strangers,
    /// The number of writes with a wrong tag among them.
    guesses: u32,
    turn: u64,
    /// What ranks gave to each exchange, by its number.
    gathered: BTreeMap<u64, Vec<Option<Vec<u8>>>>,
    pub(in crate::internals::fabric) life: Life,
    witnesses: Witnesses,
    alarm: Alarm,
    failed: Arc<AtomicBool>,
    fault: Option<Fault>,
}

impl<W: Wire> NetEngine<W> {
    /// Creates the engine. `peers`: where this rank writes headers to each rank, and whether that rank needs no wakes.
    pub(super) fn new(
        rank: u32,
        secret: JobSecret,
        link: Link<W>,
        peers: Vec<(Option<HeaderSlots>, bool)>,
        (witnesses, alarm): (Witnesses, Alarm),
        failed: Arc<AtomicBool>,
    ) -> Self {
        let words = |from, to| match secret.words(from, to) {
            words if link.tags_immediate => words,
            words => Words { tag: 0, ..words },
        };
        let peer = |(other, (header_slots, polls_memory))| {
            let (shows, shown) = (words(rank, other), words(other, rank));
            Peer { shows, shown, header_slots, polls_memory, ..Peer::default() }
        };
        let peers: Vec<Peer> = (0..).zip(peers).map(peer).collect();
        let life = Life::new(rank, peers.len() as u32, Instant::now());
        let most_wakes = wakes::most(link.limits.receives, peers.len() as u32);
        NetEngine {
            rank,
            secret,
            joins: W::CAN_BE_FOUND,
            joining_turns: if W::CAN_BE_FOUND { (link.wire.rails().min(2) + Telling::ALL.len()) as u64 } else { 0 },
            channels: Vec::new(),
            link,
            kept: Vec::new(),
            parts: Queues::new(peers.len() as u32),
            peers,
            backlogged: VecDeque::new(),
            acks_pending: Vec::new(),
            acks_pending_since: None,
            wanting_ack: Vec::new(),
            most_wakes,
            idle: 0,
            polls: 0,
            atomics: SoftwareAtomics::default(),
            transfers: Vec::new(),
            free_transfers: Vec::new(),
            last_write_id: 0,
            landings: Vec::new(),
            closing: Vec::new(),
            strangers: Strangers::default(),
            guesses: 0,
            turn: 0,
            gathered: BTreeMap::new(),
            life,
            witnesses,
            alarm,
            failed,
            fault: Fault::chosen(),
        }
    }

    pub(super) fn ranks(&self) -> u32 {
        self.peers.len() as u32
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<W> {
        let me = self.rank;
        (0..self.ranks()).filter(move |&peer| peer != me)
    }

    #[inline]
    pub(in crate::internals::fabric) fn health(&self, operation: &'static str) -> Result<()> {
        match self.life.failure() {
            None => Ok(()),
            Some(failure) => Err(failure.clone().error(self.rank, operation)),
        }
    }

    /// Returns whether operations of a channel can still complete.
    #[inline]
    fn check(&self, operation: &'static str, channel: u16) -> Result<()> {
        let is_broken = self.life.has_failed() || self.channels[usize::from(channel)].broken.is_some();
        if is_broken { self.explain_broken(operation, channel) } else { Ok(()) }
    }

    #[cold]
    fn explain_broken(&self, operation: &'static str, channel: u16) -> Result<()> {
        self.health(operation)?;
        match self.channels[usize::from(channel)].broken {
            None => Ok(()),
            Some((operation, peer)) => Err(Error::left(self.rank, operation, peer)),
        }
    }

    fn usage(&self, operation: &'static str, problem: Misuse) -> Error {
        Error::Usage { rank: self.rank, operation, problem }
    }

    /// Returns the channel, which is created at its first use.
    pub(super) fn channel(&mut self, channel: u16) -> &mut Channel<W::Memory> {
        let index = usize::from(channel);
        if index >= self.channels.len() {
            self.channels.resize_with(index + 1, Channel::default);
        }
        &mut self.channels[index]
    }

    /// Ends the waits that were delegated to a sleeper, which is awake.
    pub(super) fn end_delegated_waits(&mut self, bell: &Arc<OwnedFd>) {
        self.channels.iter_mut().filter(|channel| channel.is_asleep_on(bell)).for_each(Channel::end_wait);
    }

    /// Ends all waits, except those that were delegated to the thread that sleeps on `delegated`: that thread looks which
    /// of them are over. Returns whether there are such waits. The thread that sleeps on `awake` is awake.
    pub(super) fn end_waits(&mut self, awake: &Arc<OwnedFd>, delegated: &Arc<OwnedFd>) -> bool {
        let mut has_delegated = false;
        for channel in &mut self.channels {
            if channel.is_asleep_on(delegated) {
                has_delegated = true;
            } else if channel.is_asleep_on(awake) {
                channel.end_wait();
            } else {
                channel.wake();
            }
        }
        has_delegated
    }

    /// Adds a registration, or returns its error. The caller registers without the engine's lock, because that may take
    /// long.
    pub(super) fn registered(
        &mut self,
        channel: u16,
        bytes: usize,
        made: std::result::Result<W::Memory, Failed<W::Error>>,
    ) -> Result<Region> {
        let rank = self.rank;
        let registered = made.map_err(|failed| match failed {
            Failed::System(error) => error,
            Failed::Code(code) => {
                let cause = format!("memory cannot be registered: {}", self.link.wire.text(code));
                Error::transport(rank, None, "register", cause)
            }
        })?;
        self.add(channel, RegionEntry::Own(registered, bytes))
    }

    fn add(&mut self, channel: u16, entry: RegionEntry<W::Memory>) -> Result<Region> {
        let entries = &mut self.channel(channel).entries;
        let region = entries.len();
        if region > usize::from(u16::MAX) {
            return Err(self.usage("register", Misuse::Exhausted("more regions than an endpoint can name")));
        }
        entries.push(entry);
        Ok(Region(region as u32))
    }

    pub(super) fn key(&mut self, channel: u16, region: Region) -> Key {
        let rank = u64::from(self.rank);
        let Some(RegionEntry::Own(registered, bytes)) = self.channel(channel).entries.get(region.0 as usize) else {
            return Key::NONE;
        };
        registered.key().map_or(Key::NONE, |(key, base)| {
            let operation = rank << 32 | u64::from(channel) << 16 | u64::from(region.0);
            Key([registered.access().code() << ACCESS | operation, *bytes as u64, key, base])
        })
    }

    pub(super) fn import(&mut self, channel: u16, peer: u32, key: Key) -> Result<Region> {
        let Key([what, bytes, key, base]) = key;
        let named = (what >> 32 & 0xFFFF, what >> 16 & 0xFFFF) == (u64::from(peer), u64::from(channel));
        let known = named && peer != self.rank && peer < self.ranks() && bytes <= isize::MAX as u64;
        let Some(access) = Access::of_key(what >> ACCESS).filter(|_| known) else {
            return Err(self.usage("import", Misuse::Argument("not a key of that peer")));
        };
        let remote = PeerRegion { owner: peer, access, region: what as u16, bytes: bytes as usize, key, base };
        self.add(channel, RegionEntry::Peer(remote))
    }
}
