//! The one place where a rank's operations meet those of its peers: messages out, messages in,
//! transfers, completions. Whoever holds it makes progress for all.
#![forbid(unsafe_code)]

mod dealing;
mod sending;
mod together;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::channel::{Channel, Entry, Remote};
use super::message::{Content, MOST_DATA, MOST_HEADER, MOST_INLINE, Message, Place};
use super::notes::{Mark, NOTED, Notes};
use super::peer::{Novelty, Received, Sent, WINDOW};
use super::registration::{Failed, Registered};
use super::secret::JobSecret;
use super::shares::Queues;
use super::suspects::{Evidence, Suspects};
use super::wire::{Event, Way, Wire};
use crate::error::{Error, Result};
use crate::fabric::failure::Failure;
use crate::fabric::{Access, At, Atomic, Change, Completion, Key, NOT_ALLOWED, Posted, Region, Signal, Window};
use crate::fault::Fault;

/// Polls without a message after which peers are told what was dealt with, if there was no other
/// message to tell them by.
const PATIENCE: u32 = 256;

/// How long they may have to wait for that while this rank looks at the network, however much else happens.
const LONGEST_DEBT: Duration = Duration::from_micros(500);

/// Of looks at the network, how many there are for each look at the time, which costs a tenth as much.
const LOOKS_PER_CLOCK: u32 = 16;

/// From so many bytes on, a writer who waits is told at once that they were dealt with: a word costs little
/// beside it.
const LARGE: usize = 256 << 10;

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
    notes: Option<Notes>,
    sent: Sent<Option<(u16, u64)>>,
    received: Received,
    /// Messages that wait for room.
    outbox: VecDeque<Outgoing>,
    /// In the list of those with an outbox.
    waits: bool,
    /// In the list of those that are to be told.
    owed: bool,
    /// In the list of those who wait for the word.
    waits_for_word: bool,
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
struct Asked {
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
    then: Then,
    /// What it is a part of.
    operation: &'static str,
    /// A part failed. What that means depends on what becomes of the peer.
    failed: bool,
}

impl Transfer {
    fn new((channel, token, peer): (u16, u64, u32), operation: &'static str, then: Then) -> Self {
        Transfer { channel, token, peer, parts: 0, then, operation, failed: false }
    }
}

/// What follows when all parts of a transfer have completed.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// The operation has.
    Done,
    /// A message with its signal.
    Signal(Place, Change, bool),
    /// Nothing: the peer says when it has dealt with the message that announced it.
    Nothing,
}

/// Marked writes of a peer, and the message that says what they lead to: either may come first.
#[derive(Debug)]
struct Landing {
    from: u32,
    mark: u16,
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
    signal: (Place, Change),
    prompt: bool,
}

/// A part of a transfer that waits for room.
#[derive(Clone, Copy, Debug)]
struct Part {
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
    waiting: VecDeque<u32>,
    debtors: Vec<u32>,
    /// When somebody first owed a word, or all debts were last looked at.
    owed_since: Option<Instant>,
    /// Those of them who wait for the word.
    waiting_for_word: Vec<u32>,
    idle: u32,
    /// Looks at the network, all of them.
    looks: u32,
    asked: Vec<Asked>,
    asked_so_far: u32,
    transfers: Vec<Transfer>,
    free_transfers: Vec<u32>,
    parts: Queues<Part>,
    marks: u16,
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
        addresses: Vec<(u64, Option<Notes>)>,
        failed: Arc<AtomicBool>,
    ) -> Self {
        let peer = |(address, notes)| Peer { address, notes, ..Peer::default() };
        let peers: Vec<Peer> = addresses.into_iter().map(peer).collect();
        Engine {
            rank,
            secret,
            tag: if wire.tags { secret.tag } else { 0 },
            channels: Vec::new(),
            wire,
            kept: Vec::new(),
            parts: Queues::new(peers.len() as u32),
            peers,
            waiting: VecDeque::new(),
            debtors: Vec::new(),
            owed_since: None,
            waiting_for_word: Vec::new(),
            idle: 0,
            looks: 0,
            asked: Vec::new(),
            asked_so_far: 0,
            transfers: Vec::new(),
            free_transfers: Vec::new(),
            marks: 0,
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
        self.add(channel, Entry::Own(registered, bytes))
    }

    fn add(&mut self, channel: u16, entry: Entry) -> Result<Region> {
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
        let Some(Entry::Own(registered, bytes)) = self.channel(channel).entries.get(region.0 as usize) else {
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
        let remote = Remote { owner: peer, access, region: what as u16, bytes: bytes as usize, key, base };
        self.add(channel, Entry::Peer(remote))
    }

    /// Whose a place is, if a peer's, and how the owner names it. The owner must allow what is about to be done.
    fn place(
        &self,
        operation: &'static str,
        channel: u16,
        (at, len): (At, usize),
        allows: fn(Access) -> bool,
    ) -> Result<(Option<u32>, Place)> {
        let entry = self.channels[usize::from(channel)].entry(at, len);
        let entry = entry.ok_or_else(|| self.usage(operation, "a place outside its region"))?;
        let (owner, region) = match entry {
            Entry::Own(..) => (None, at.region.0 as u16),
            Entry::Peer(remote) if !allows(remote.access) => return Err(self.usage(operation, NOT_ALLOWED)),
            Entry::Peer(remote) => (Some(remote.owner), remote.region),
        };
        Ok((owner, Place { region, offset: at.offset as u64 }))
    }

    fn cell(&self, operation: &'static str, channel: u16, at: At) -> Result<(Option<u32>, Place)> {
        if !at.offset.is_multiple_of(size_of::<u64>()) {
            return Err(self.usage(operation, "a cell that is not aligned to 8 bytes"));
        }
        if at.offset / size_of::<u64>() > u32::MAX as usize {
            return Err(self.usage(operation, "a cell beyond 32 GiB, which messages cannot name"));
        }
        self.place(operation, channel, (at, size_of::<u64>()), Access::allows_writing)
    }

    /// The near side of an operation.
    fn near(&self, operation: &'static str, channel: u16, at: At, len: usize) -> Result<&Window> {
        self.place(operation, channel, (at, len), Access::is_shared)?;
        self.own_window(operation, channel, at)
    }

    fn own_window(&self, operation: &'static str, channel: u16, at: At) -> Result<&Window> {
        let own = self.channels[usize::from(channel)].own(at.region).map(Registered::window);
        own.ok_or_else(|| self.usage(operation, "the near side must be a region of this endpoint"))
    }

    pub(super) fn put(
        &mut self,
        channel: u16,
        (from, to, len): (At, At, usize),
        signal: Option<Signal>,
        token: u64,
    ) -> Result<Posted> {
        self.check("put", channel)?;
        let source = self.near("put", channel, from, len)?;
        let (owner, place) = self.place("put", channel, (to, len), Access::allows_writing)?;
        let (mut then, mut prompt) = (None, false);
        if let Some(Signal { at, change, awaited }) = signal {
            let (keeper, cell) = self.cell("put", channel, at)?;
            if keeper != owner {
                return Err(self.usage("put", "data and signal go to different ranks"));
            }
            then = Some((cell, change));
            prompt = awaited && len >= LARGE;
        }
        let Some(peer) = owner else {
            Window::copy((source, from.offset), (self.own_window("put", channel, to)?, to.offset), len);
            return self.change_own(channel, then);
        };
        if self.peers[peer as usize].gone {
            // Nobody is there to see it.
            return Ok(Posted::Done(0));
        }
        let (whose, what) = ((channel, token, peer), (from, to, len));
        let signal = then.map(|(cell, change)| (cell, change, prompt));
        if len > MOST_INLINE && signal.is_some_and(|signal| self.put_with_note(whose, what, signal)) {
            return Ok(Posted::Pending);
        }
        if len > self.wire.limits.put {
            self.put_by_writing(whose, what, signal);
            return Ok(Posted::Pending);
        }
        let data = if len == 0 { Data::None } else { Data::Region { region: from.region, offset: from.offset, len } };
        self.put_by_message(channel, peer, (place, data), then, token);
        Ok(Posted::Pending)
    }

    fn change_own(&mut self, channel: u16, signal: Option<(Place, Change)>) -> Result<Posted> {
        let own = &mut self.channels[usize::from(channel)];
        if let Some((cell, change)) = signal {
            // It was checked; a change of an own cell cannot fail any more.
            let _ = own.change(cell, change);
            own.wake();
        }
        Ok(Posted::Done(0))
    }

    /// Writes, and signals: by marked writes and a message that announces them, if the provider can do that; else by a
    /// message after the writes.
    fn put_by_writing(
        &mut self,
        (channel, token, peer): (u16, u64, u32),
        (from, to, len): (At, At, usize),
        signal: Option<(Place, Change, bool)>,
    ) {
        let (mut way, mut then) = (Way::Out, Then::Done);
        if let Some((cell, change, prompt)) = signal {
            if self.wire.marks {
                self.marks = (self.marks + 1) % NOTED;
                let parts = len.div_ceil(self.wire.limits.part) as u32;
                let content = Content::Landing { mark: self.marks, parts, signal: (cell, change), prompt };
                self.post(peer, Outgoing { channel, content, data: Data::None, token: Some(token) });
                let mark = Mark { from: self.rank, which: self.marks };
                (way, then) = (Way::Marked(mark.encode(self.tag)), Then::Nothing);
            } else {
                then = Then::Signal(cell, change, prompt);
            }
        }
        self.transfer(Transfer::new((channel, token, peer), "put", then), from, to, len, way);
    }

    fn put_by_message(
        &mut self,
        channel: u16,
        peer: u32,
        (to, data): (Place, Data),
        signal: Option<(Place, Change)>,
        token: u64,
    ) {
        let content = Content::Put { to, signal, prompt: signal.is_none() };
        self.post(peer, Outgoing { channel, content, data, token: Some(token) });
    }

    /// What is asked of somebody who has gone gets no answer.
    fn is_here(&self, operation: &'static str, peer: u32) -> Result<()> {
        match self.peers[peer as usize].gone {
            true => Err(Error::PeerLeft { rank: self.rank, operation, peer }),
            false => Ok(()),
        }
    }

    pub(super) fn signal(&mut self, channel: u16, signal: Signal, token: u64) -> Result<Posted> {
        self.check("signal", channel)?;
        let (owner, cell) = self.cell("signal", channel, signal.at)?;
        let signal = Some((cell, signal.change));
        let Some(peer) = owner else { return self.change_own(channel, signal) };
        if self.peers[peer as usize].gone {
            return Ok(Posted::Done(0));
        }
        self.put_by_message(channel, peer, (Place::default(), Data::None), signal, token);
        Ok(Posted::Pending)
    }

    pub(super) fn read(&mut self, channel: u16, from: At, to: At, len: usize, token: u64) -> Result<Posted> {
        self.check("read", channel)?;
        let target = self.near("read", channel, to, len)?;
        let (owner, _) = self.place("read", channel, (from, len), Access::allows_reading)?;
        match owner {
            _ if len == 0 => Ok(Posted::Done(0)),
            None => {
                Window::copy((self.own_window("read", channel, from)?, from.offset), (target, to.offset), len);
                Ok(Posted::Done(0))
            }
            Some(peer) => {
                self.is_here("read", peer)?;
                let transfer = Transfer::new((channel, token, peer), "read", Then::Done);
                self.transfer(transfer, to, from, len, Way::In);
                Ok(Posted::Pending)
            }
        }
    }

    pub(super) fn atomic(&mut self, channel: u16, at: At, atomic: Atomic, token: u64) -> Result<Posted> {
        self.check("atomic", channel)?;
        let (owner, at) = self.cell("atomic", channel, at)?;
        let Some(peer) = owner else {
            let value = self.channels[usize::from(channel)].atomic(at, atomic);
            return Ok(Posted::Done(value.unwrap_or(0)));
        };
        self.is_here("atomic", peer)?;
        self.asked_so_far = self.asked_so_far.wrapping_add(1);
        let id = self.asked_so_far;
        self.asked.push(Asked { id, peer, channel, token });
        let content = Content::Atomic { at, atomic, id };
        self.post(peer, Outgoing { channel, content, data: Data::None, token: None });
        Ok(Posted::Pending)
    }

    pub(super) fn completion(&mut self, channel: u16) -> Result<Option<Completion>> {
        let completion = self.channels[usize::from(channel)].completions.pop_front();
        if completion.is_none() {
            self.check("poll", channel)?;
        }
        Ok(completion)
    }
}
