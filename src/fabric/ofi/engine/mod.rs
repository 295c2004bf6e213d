//! The one place where a rank's operations meet those of its peers: messages out, messages in,
//! transfers, completions. Whoever holds it makes progress for all.
#![forbid(unsafe_code)]

mod lifecycle;
mod operations;
mod receiving;
mod sending;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::channel::{Channel, PeerRegion, RegionEntry};
use super::header_slots::{HeaderSlots, IN_SLOT, ImmediateData};
use super::message::{Content, Location, MOST_DATA, MOST_HEADER, Message};
use super::registration::{Failed, Registered};
use super::secret::JobSecret;
use super::sequence::{Receipt, Received, Sent, WINDOW};
use super::shares::Queues;
use super::suspects::{Evidence, Suspects};
use super::wire::{Event, Way, Wire};
use crate::error::{Error, Result};
use crate::fabric::failure::Failure;
use crate::fabric::{Access, At, Change, Key, Region, Window};
use crate::fault::Fault;

/// Polls without a message after which peers are told what was dealt with, if there was no other
/// message to tell them by.
const IDLE_LOOKS: u32 = 256;

/// How long they may have to wait for that while this rank looks at the network, however much else happens.
const MAX_ACK_DELAY: Duration = Duration::from_micros(500);

/// Of looks at the network, how many there are for each look at the time, which costs a tenth as much.
const LOOKS_PER_CLOCK: u32 = 16;

/// Writes without the job's tag after which the job fails: one in 65,536 of what it takes to guess 32 bits.
pub(super) const MOST_GUESSES: u32 = 1 << 16;

/// Where a key says what the region's owner allows: above the rank, which has 16 bits.
const ACCESS: u32 = 48;

/// What this rank knows of a peer.
#[derive(Debug, Default)]
struct Peer {
    /// How libfabric names it.
    address: u64,
    /// Where it wants notes.
    header_slots: Option<HeaderSlots>,
    sent: Sent<Option<(u16, u64)>>,
    received: Received,
    /// Messages that wait for room.
    outbox: VecDeque<Outgoing>,
    /// In the list of those with an outbox.
    is_backlogged: bool,
    /// In the list of those that are to be told.
    ack_pending: bool,
    /// In the list of those who wait for the word.
    wants_ack: bool,
    /// It was heard of since somebody asked.
    heard: bool,
    /// It said that it leaves.
    left: bool,
    /// Nothing is sent to it any more: it said that it goes, or has ended after it left.
    gone: bool,
    /// It said so, and waits to hear the same.
    said_gone: bool,
}

/// A message that is not sent yet.
#[derive(Debug)]
struct Outgoing {
    channel: u16,
    content: Content,
    data: Data,
    /// Completes when the peer has dealt with it.
    token: Option<u64>,
}

/// Where a message's data lies. A region's stays as it is until completion.
#[derive(Debug)]
enum Data {
    None,
    Region { region: Region, offset: usize, len: usize },
    Bytes(Box<[u8]>),
}

/// An atomic whose answer is awaited.
#[derive(Debug)]
struct PendingAtomic {
    id: u32,
    peer: u32,
    channel: u16,
    token: u64,
}

/// Data on its way by one-sided operations, in parts.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    channel: u16,
    token: u64,
    peer: u32,
    /// Parts that have not completed.
    parts: u32,
    then: OnComplete,
    /// What it is a part of.
    operation: &'static str,
    /// A part failed. What that means depends on what becomes of the peer.
    failed: bool,
}

impl Transfer {
    fn new((channel, token, peer): (u16, u64, u32), operation: &'static str, then: OnComplete) -> Self {
        Transfer { channel, token, peer, parts: 0, then, operation, failed: false }
    }
}

/// What follows when all parts of a transfer have completed.
#[derive(Clone, Copy, Debug)]
enum OnComplete {
    /// The operation has.
    Complete,
    /// A message with its signal.
    SendSignal(Location, Change, bool),
    /// Nothing: the peer says when it has dealt with the message that announced it.
    AwaitAck,
}

/// Marked writes of a peer, and the message that says what they lead to: either may come first.
#[derive(Debug)]
struct Landing {
    from: u32,
    write_id: u16,
    /// Parts that have landed.
    landed: u32,
    announced: Option<Announced>,
}

/// What is said of marked writes.
#[derive(Clone, Copy, Debug)]
struct Announced {
    /// The message's.
    number: u32,
    channel: u16,
    parts: u32,
    signal: (Location, Change),
    ack_now: bool,
}

/// A part of a transfer that waits for room.
#[derive(Clone, Copy, Debug)]
struct TransferPart {
    transfer: u32,
    own: At,
    remote: At,
    len: usize,
    way: Way,
}

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) rank: u32,
    pub(super) secret: JobSecret,
    /// What of it marks have.
    tag: u32,
    // Before the wire: what libfabric uses must not go before its endpoint, which the regions
    // keep alive.
    pub(super) channels: Vec<Channel>,
    pub(super) wire: Wire,
    /// Memory that must not go before the endpoint of the wire does.
    kept: Vec<Window>,
    peers: Vec<Peer>,
    backlogged: VecDeque<u32>,
    acks_pending: Vec<u32>,
    /// When somebody first owed a word, or all debts were last looked at.
    acks_pending_since: Option<Instant>,
    /// Those of them who wait for the word.
    wanting_ack: Vec<u32>,
    idle: u32,
    /// Looks at the network, all of them.
    looks: u32,
    atomics: Vec<PendingAtomic>,
    last_atomic_id: u32,
    transfers: Vec<Transfer>,
    free_transfers: Vec<u32>,
    parts: Queues<TransferPart>,
    last_write_id: u16,
    landings: Vec<Landing>,
    /// Channels that this rank has closed and has not said so.
    closing: Vec<u16>,
    /// What did not carry the secret.
    pub(super) strangers: u64,
    /// Of them, writes with another tag.
    guesses: u32,
    turn: u64,
    /// What ranks gave to an exchange, by its number.
    gathered: BTreeMap<u64, Vec<Option<Vec<u8>>>>,
    /// Peers that seem to have ended.
    suspects: Suspects,
    failure: Option<Failure>,
    /// This rank has said that it goes.
    gone: bool,
    failed: Arc<AtomicBool>,
    fault: Option<Fault>,
}

impl Engine {
    pub(super) fn new(
        rank: u32,
        secret: JobSecret,
        wire: Wire,
        addresses: Vec<(u64, Option<HeaderSlots>)>,
        failed: Arc<AtomicBool>,
    ) -> Self {
        let peer = |(address, header_slots)| Peer { address, header_slots, ..Peer::default() };
        let peers: Vec<Peer> = addresses.into_iter().map(peer).collect();
        Engine {
            rank,
            secret,
            tag: if wire.tags_immediate { secret.tag } else { 0 },
            channels: Vec::new(),
            wire,
            kept: Vec::new(),
            parts: Queues::new(peers.len() as u32),
            peers,
            backlogged: VecDeque::new(),
            acks_pending: Vec::new(),
            acks_pending_since: None,
            wanting_ack: Vec::new(),
            idle: 0,
            looks: 0,
            atomics: Vec::new(),
            last_atomic_id: 0,
            transfers: Vec::new(),
            free_transfers: Vec::new(),
            last_write_id: 0,
            landings: Vec::new(),
            closing: Vec::new(),
            strangers: 0,
            guesses: 0,
            turn: 0,
            gathered: BTreeMap::new(),
            suspects: Suspects::new(Instant::now()),
            failure: None,
            gone: false,
            failed,
            fault: Fault::chosen(),
        }
    }

    pub(super) fn ranks(&self) -> u32 {
        self.peers.len() as u32
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.rank;
        (0..self.ranks()).filter(move |&peer| peer != me)
    }

    pub(super) fn health(&self, operation: &'static str) -> Result<()> {
        self.failure.clone().map_or(Ok(()), |failure| Err(failure.error(self.rank, operation)))
    }

    /// Whether operations of a channel can still complete.
    fn check(&self, operation: &'static str, channel: u16) -> Result<()> {
        self.health(operation)?;
        match self.channels[usize::from(channel)].broken {
            None => Ok(()),
            Some((operation, peer)) => Err(Error::PeerLeft { rank: self.rank, operation, peer }),
        }
    }

    fn usage(&self, operation: &'static str, problem: &'static str) -> Error {
        Error::Usage { rank: self.rank, operation, problem }
    }

    /// The channel, which begins to exist when it is first named.
    pub(super) fn channel(&mut self, channel: u16) -> &mut Channel {
        let index = usize::from(channel);
        if index >= self.channels.len() {
            self.channels.resize_with(index + 1, Channel::default);
        }
        &mut self.channels[index]
    }

    /// A registration is made, or was refused: without this value, because it may take long.
    pub(super) fn registered(
        &mut self,
        channel: u16,
        bytes: usize,
        made: std::result::Result<Registered, Failed>,
    ) -> Result<Region> {
        let rank = self.rank;
        let registered = made.map_err(|failed| match failed {
            Failed::System(error) => error,
            Failed::Code(code) => Error::os(rank, "register memory", std::io::Error::other(self.wire.text(code))),
        })?;
        self.add(channel, RegionEntry::Own(registered, bytes))
    }

    fn add(&mut self, channel: u16, entry: RegionEntry) -> Result<Region> {
        let entries = &mut self.channel(channel).entries;
        let region = entries.len();
        if region > usize::from(u16::MAX) {
            return Err(self.usage("register", "more regions than an endpoint can name"));
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
            let whose = rank << 32 | u64::from(channel) << 16 | u64::from(region.0);
            Key([registered.access().code() << ACCESS | whose, *bytes as u64, key, base])
        })
    }

    pub(super) fn import(&mut self, channel: u16, peer: u32, key: Key) -> Result<Region> {
        let Key([what, bytes, key, base]) = key;
        let named = (what >> 32 & 0xFFFF, what >> 16 & 0xFFFF) == (u64::from(peer), u64::from(channel));
        let known = named && peer != self.rank && peer < self.ranks() && bytes <= isize::MAX as u64;
        let Some(access) = Access::of_key(what >> ACCESS).filter(|_| known) else {
            return Err(self.usage("import", "not a key of that peer"));
        };
        let remote = PeerRegion { owner: peer, access, region: what as u16, bytes: bytes as usize, key, base };
        self.add(channel, RegionEntry::Peer(remote))
    }
}
