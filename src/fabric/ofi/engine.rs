//! The one place where a rank's operations meet those of its peers: messages out, messages in,
//! transfers, completions. Whoever holds it makes progress for all.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use earlybird_ffi::ofi;

use super::channel::{Channel, Entry, Remote};
use super::message::{Content, MOST_DATA, Message, Place};
use super::peer::{Novelty, Received, Sent, WINDOW};
use super::wire::{Event, Failed, Registered, Wire};
use crate::error::{Error, Result};
use crate::fabric::failure::Failure;
use crate::fabric::{At, Atomic, Change, Completion, Key, Posted, Region, Signal, Window};

/// Polls without a message after which peers are told what was dealt with, if there was no other
/// message to tell them by.
const PATIENCE: u32 = 16;

/// What this rank knows of a peer.
#[derive(Debug, Default)]
struct Peer {
    /// How libfabric names it.
    address: u64,
    sent: Sent<Option<(u16, u64)>>,
    received: Received,
    /// Messages that wait for room.
    outbox: VecDeque<Outgoing>,
    /// In the list of those with an outbox.
    waits: bool,
    /// In the list of those that are to be told.
    owed: bool,
    /// It was heard of since somebody asked.
    heard: bool,
    /// It said that it leaves.
    left: bool,
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
    /// What follows when they have.
    then: Option<(Place, Change)>,
}

/// A part of a transfer that waits for room.
#[derive(Clone, Copy, Debug)]
struct Part {
    transfer: u32,
    own: At,
    remote: At,
    len: usize,
    out: bool,
}

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) rank: u32,
    job: u32,
    // Before the wire: what libfabric uses must not go before its endpoint, which the regions
    // keep alive.
    pub(super) channels: Vec<Channel>,
    pub(super) wire: Wire,
    peers: Vec<Peer>,
    waiting: VecDeque<u32>,
    debtors: Vec<u32>,
    idle: u32,
    asked: Vec<Asked>,
    asked_so_far: u32,
    transfers: Vec<Transfer>,
    free_transfers: Vec<u32>,
    parts: VecDeque<Part>,
    keys: u64,
    turn: u64,
    /// What ranks gave to an exchange, by its number.
    gathered: BTreeMap<u64, Vec<Option<Vec<u8>>>>,
    failure: Option<Failure>,
    failed: Arc<AtomicBool>,
}

impl Engine {
    pub(super) fn new(rank: u32, job: u32, wire: Wire, addresses: Vec<u64>, failed: Arc<AtomicBool>) -> Self {
        let peers = addresses.into_iter().map(|address| Peer { address, ..Peer::default() }).collect();
        Engine {
            rank,
            job,
            channels: Vec::new(),
            wire,
            peers,
            waiting: VecDeque::new(),
            debtors: Vec::new(),
            idle: 0,
            asked: Vec::new(),
            asked_so_far: 0,
            transfers: Vec::new(),
            free_transfers: Vec::new(),
            parts: VecDeque::new(),
            // 0 is the rooms'.
            keys: 1,
            turn: 0,
            gathered: BTreeMap::new(),
            failure: None,
            failed,
        }
    }

    pub(super) fn ranks(&self) -> u32 {
        self.peers.len() as u32
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.rank;
        (0..self.ranks()).filter(move |&peer| peer != me)
    }

    // What an endpoint asks for.

    pub(super) fn health(&self, operation: &'static str) -> Result<()> {
        self.failure.clone().map_or(Ok(()), |failure| Err(failure.error(self.rank, operation)))
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

    pub(super) fn register(&mut self, channel: u16, bytes: usize) -> Result<Region> {
        let (available, limit) = crate::fabric::memory::available_memory();
        let (rank, operation, need) = (self.rank, "register", bytes as u64);
        if need > available {
            return Err(Error::Memory { rank, operation, need, available, limit });
        }
        self.keys += 1;
        let registered = Registered::new(self.wire.endpoint(), bytes, self.keys).map_err(|failed| match failed {
            Failed::Memory(cause) => Error::os(rank, "allocate memory", cause),
            Failed::Code(code) => Error::os(rank, "register memory", std::io::Error::other(self.wire.text(code))),
        })?;
        let entry = Entry::Own(registered, bytes);
        self.add(channel, entry)
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
        match self.channel(channel).entries.get(region.0 as usize) {
            Some(Entry::Own(registered, bytes)) => {
                let (key, base) = registered.key();
                [rank << 32 | u64::from(channel) << 16 | u64::from(region.0), *bytes as u64, key, base]
            }
            _ => [u64::MAX; 4],
        }
    }

    pub(super) fn import(&mut self, channel: u16, peer: u32, key: Key) -> Result<Region> {
        let [what, bytes, key, base] = key;
        let named = (what >> 32, what >> 16 & 0xFFFF) == (u64::from(peer), u64::from(channel));
        if !named || peer == self.rank || peer >= self.ranks() || bytes > isize::MAX as u64 {
            return Err(self.usage("import", "not a key of that peer"));
        }
        let remote = Remote { owner: peer, region: what as u16, bytes: bytes as usize, key, base };
        self.add(channel, Entry::Peer(remote))
    }

    fn place(&self, operation: &'static str, channel: u16, at: At, len: usize) -> Result<(Option<u32>, Place)> {
        let entry = self.channels[usize::from(channel)].entry(at, len);
        let entry = entry.ok_or_else(|| self.usage(operation, "a place outside its region"))?;
        let (owner, region) = match entry {
            Entry::Own(..) => (None, at.region.0 as u16),
            Entry::Peer(remote) => (Some(remote.owner), remote.region),
        };
        Ok((owner, Place { region, offset: at.offset as u64 }))
    }

    fn cell(&self, operation: &'static str, channel: u16, at: At) -> Result<(Option<u32>, Place)> {
        if !at.offset.is_multiple_of(size_of::<u64>()) {
            return Err(self.usage(operation, "a cell that is not aligned to 8 bytes"));
        }
        self.place(operation, channel, at, size_of::<u64>())
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
        self.health("put")?;
        self.place("put", channel, from, len)?;
        let source = self.own_window("put", channel, from)?;
        let (owner, place) = self.place("put", channel, to, len)?;
        let mut then = None;
        if let Some(Signal { at, change }) = signal {
            let (keeper, cell) = self.cell("put", channel, at)?;
            if keeper != owner {
                return Err(self.usage("put", "data and signal go to different ranks"));
            }
            then = Some((cell, change));
        }
        let Some(peer) = owner else {
            Window::copy((source, from.offset), (self.own_window("put", channel, to)?, to.offset), len);
            return self.change_own(channel, then);
        };
        if len > MOST_DATA {
            self.transfer(Transfer { channel, token, peer, parts: 0, then }, from, to, len, true);
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

    pub(super) fn signal(&mut self, channel: u16, signal: Signal, token: u64) -> Result<Posted> {
        self.health("signal")?;
        let (owner, cell) = self.cell("signal", channel, signal.at)?;
        let signal = Some((cell, signal.change));
        let Some(peer) = owner else { return self.change_own(channel, signal) };
        self.put_by_message(channel, peer, (Place::default(), Data::None), signal, token);
        Ok(Posted::Pending)
    }

    pub(super) fn read(&mut self, channel: u16, from: At, to: At, len: usize, token: u64) -> Result<Posted> {
        self.health("read")?;
        self.place("read", channel, to, len)?;
        let target = self.own_window("read", channel, to)?;
        let (owner, _) = self.place("read", channel, from, len)?;
        match owner {
            _ if len == 0 => Ok(Posted::Done(0)),
            None => {
                Window::copy((self.own_window("read", channel, from)?, from.offset), (target, to.offset), len);
                Ok(Posted::Done(0))
            }
            Some(peer) => {
                self.transfer(Transfer { channel, token, peer, parts: 0, then: None }, to, from, len, false);
                Ok(Posted::Pending)
            }
        }
    }

    pub(super) fn atomic(&mut self, channel: u16, at: At, atomic: Atomic, token: u64) -> Result<Posted> {
        self.health("atomic")?;
        let (owner, at) = self.cell("atomic", channel, at)?;
        let Some(peer) = owner else {
            let value = self.channels[usize::from(channel)].atomic(at, atomic);
            return Ok(Posted::Done(value.unwrap_or(0)));
        };
        self.asked_so_far = self.asked_so_far.wrapping_add(1);
        let id = self.asked_so_far;
        self.asked.push(Asked { id, channel, token });
        let content = Content::Atomic { at, atomic, id };
        self.post(peer, Outgoing { channel, content, data: Data::None, token: None });
        Ok(Posted::Pending)
    }

    pub(super) fn completion(&mut self, channel: u16) -> Result<Option<Completion>> {
        let completion = self.channels[usize::from(channel)].completions.pop_front();
        if completion.is_none() {
            self.health("poll")?;
        }
        Ok(completion)
    }

    // Out.

    /// Sends a message now, or when there is room.
    fn post(&mut self, peer: u32, outgoing: Outgoing) {
        let to = &mut self.peers[peer as usize];
        // What is not counted does not wait for room either: a word on what was dealt with may be
        // what makes room for the others.
        match outgoing.content.is_counted() {
            true => to.outbox.push_back(outgoing),
            false => to.outbox.push_front(outgoing),
        }
        if !to.waits && !self.flush(peer) {
            self.peers[peer as usize].waits = true;
            self.waiting.push_back(peer);
        }
    }

    /// Sends what waits for a peer, as far as there is room; whether that was all.
    fn flush(&mut self, peer: u32) -> bool {
        let Engine { rank, job, peers, channels, wire, .. } = self;
        let to = &mut peers[peer as usize];
        while let Some(Outgoing { channel, content, data, token }) = to.outbox.front() {
            if content.is_counted() && !to.sent.has_room() {
                return false;
            }
            let len = match data {
                Data::None => 0,
                Data::Region { len, .. } => *len,
                Data::Bytes(bytes) => bytes.len(),
            };
            let (number, upto) = (to.sent.next(), to.received.upto());
            let (channel, content) = (*channel, *content);
            let message = Message { job: *job, from: *rank, number, upto, channel, len: len as u32, content };
            let own = &channels.get(usize::from(channel));
            let fill = |room: &Window, at: usize| match data {
                Data::None => {}
                // A region goes when all have closed its channel, so it is there.
                Data::Region { region, offset, len } => {
                    if let Some(registered) = own.and_then(|own| own.own(*region)) {
                        Window::copy((registered.window(), *offset), (room, at), *len);
                    }
                }
                Data::Bytes(bytes) => room.write(at, bytes),
            };
            match wire.send((peer, to.address), &message.encode(), len, fill) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(code) => {
                    let text = wire.text(code);
                    to.outbox.clear();
                    self.lost(peer, &text);
                    return true;
                }
            }
            to.received.told();
            if content.is_counted() {
                to.sent.push(token.map(|token| (channel, token)));
            }
            to.outbox.pop_front();
        }
        true
    }

    fn transfer(&mut self, transfer: Transfer, own: At, remote: At, len: usize, out: bool) {
        let most = self.wire.most;
        let transfer = Transfer { parts: len.div_ceil(most) as u32, ..transfer };
        let index = match self.free_transfers.pop() {
            Some(index) => index,
            None => {
                self.transfers.push(transfer);
                self.transfers.len() as u32 - 1
            }
        };
        self.transfers[index as usize] = transfer;
        let at = |at: At, skip: usize| At { offset: at.offset + skip, ..at };
        for skip in (0..len).step_by(most) {
            let (own, remote, len) = (at(own, skip), at(remote, skip), most.min(len - skip));
            self.parts.push_back(Part { transfer: index, own, remote, len, out });
        }
        self.move_parts();
    }

    /// Posts parts of transfers, as far as there is room.
    fn move_parts(&mut self) {
        while let Some(&Part { transfer, own, remote, len, out }) = self.parts.front() {
            let Transfer { channel, peer, .. } = self.transfers[transfer as usize];
            let entries = &self.channels[usize::from(channel)].entries;
            // Regions outlive the transfers that were checked against them.
            if let (Some(Entry::Own(near, _)), Some(Entry::Peer(far))) =
                (entries.get(own.region.0 as usize), entries.get(remote.region.0 as usize))
            {
                let (address, key) = (far.base + remote.offset as u64, far.key);
                let far = ofi::Remote { peer: self.peers[peer as usize].address, address, key };
                match self.wire.transfer(transfer, peer, (near, own.offset, len), far, out) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(code) => {
                        let text = self.wire.text(code);
                        self.lost(peer, &text);
                    }
                }
            }
            self.parts.pop_front();
        }
    }

    // In.

    /// Deals with what has happened; whether anything has. In between, sends what waits.
    pub(super) fn progress(&mut self) -> bool {
        let mut any = false;
        // Bounded, so that a caller comes back to its own affairs.
        for _ in 0..WINDOW {
            match self.wire.next() {
                Ok(Some(event)) => self.deal_with(event),
                Ok(None) => break,
                Err(code) => {
                    let reason = format!("libfabric cannot read completions: {}", self.wire.text(code));
                    self.fail(Failure::Aborted { by: self.rank, reason });
                    break;
                }
            }
            any = true;
        }
        for _ in 0..self.waiting.len() {
            let Some(peer) = self.waiting.pop_front() else { break };
            if self.flush(peer) {
                self.peers[peer as usize].waits = false;
            } else {
                self.waiting.push_back(peer);
            }
        }
        self.move_parts();
        self.idle = if any { 0 } else { self.idle + 1 };
        if self.idle == PATIENCE {
            self.tell();
        }
        any
    }

    /// Tells peers what was dealt with, those who were not told by other messages.
    pub(super) fn tell(&mut self) {
        for _ in 0..self.debtors.len() {
            let Some(peer) = self.debtors.pop() else { break };
            self.peers[peer as usize].owed = false;
            if self.peers[peer as usize].received.owed() > 0 {
                self.tell_peer(peer);
            }
        }
    }

    fn tell_peer(&mut self, peer: u32) {
        self.post(peer, Outgoing { channel: 0, content: Content::Ack, data: Data::None, token: None });
    }

    fn deal_with(&mut self, event: Event) {
        match event {
            Event::Message(room, len) => {
                self.deal_with_message(room, len);
                if let Err(code) = self.wire.offer(room) {
                    let reason = format!("libfabric takes no room for messages: {}", self.wire.text(code));
                    self.fail(Failure::Aborted { by: self.rank, reason });
                }
            }
            Event::Moved(index) => {
                let transfer = &mut self.transfers[index as usize];
                transfer.parts -= 1;
                if transfer.parts > 0 {
                    return;
                }
                let Transfer { channel, token, peer, then, .. } = *transfer;
                self.free_transfers.push(index);
                match then {
                    None => self.channel(channel).complete(token, 0),
                    then => self.put_by_message(channel, peer, (Place::default(), Data::None), then, token),
                }
            }
            Event::Failed(peer, text) => self.lost(peer, &text),
            Event::Sent | Event::Nothing => {}
        }
    }

    fn deal_with_message(&mut self, room: usize, len: usize) {
        let decoded = Message::decode(self.wire.message(room, len));
        let Some((message, data)) = decoded.filter(|(message, _)| message.job == self.job) else {
            return tracing::debug!(rank = self.rank, len, "a message that is not of this world");
        };
        let Message { from, channel, content, .. } = message;
        let Some(peer) = self.peers.get_mut(from as usize) else { return };
        peer.heard = true;
        while let Some(sent) = peer.sent.settle(message.upto) {
            // What nobody waits for by token may be what somebody on channel 0 waits for.
            let (channel, token) = sent.map_or((0, None), |(channel, token)| (channel, Some(token)));
            match (self.channels.get_mut(usize::from(channel)), token) {
                (Some(channel), Some(token)) => channel.complete(token, 0),
                (Some(channel), None) => channel.wake(),
                (None, _) => {}
            }
        }
        let mut prompt = false;
        if content.is_counted() {
            match peer.received.take(message.number) {
                Novelty::New => {}
                Novelty::Known => return,
                Novelty::Nonsense => return self.nonsense(from),
            }
            if !peer.owed {
                peer.owed = true;
                self.debtors.push(from);
            }
            prompt = peer.received.owed() >= WINDOW / 2;
        }
        match content {
            Content::Put { to, signal, prompt: awaited } => {
                prompt |= awaited;
                let Some(own) = self.channels.get_mut(usize::from(channel)) else { return self.nonsense(from) };
                let written = if data.is_empty() { Some(()) } else { own.write(to, data) };
                let changed = match signal {
                    Some((cell, change)) => own.change(cell, change),
                    None => Some(()),
                };
                if written.and(changed).is_none() {
                    return self.nonsense(from);
                }
                own.wake();
            }
            Content::Atomic { at, atomic, id } => {
                let value = self.channels.get(usize::from(channel)).and_then(|own| own.atomic(at, atomic));
                let Some(value) = value else { return self.nonsense(from) };
                let content = Content::Value { id, value };
                self.post(from, Outgoing { channel, content, data: Data::None, token: None });
            }
            Content::Value { id, value } => {
                if let Some(index) = self.asked.iter().position(|asked| asked.id == id) {
                    let Asked { channel, token, .. } = self.asked.swap_remove(index);
                    self.channel(channel).complete(token, value);
                }
            }
            Content::Exchange { turn } => {
                // Nobody can be further than one ahead.
                if turn == 0 || turn > self.turn + 1 {
                    return self.nonsense(from);
                }
                let data = data.to_vec();
                self.gather(turn, from, data);
            }
            // An answer is all that it wants; an idle rank owes it one.
            Content::Ping => self.tell_peer(from),
            Content::Ack => {}
            Content::Abort => {
                let reason = String::from_utf8_lossy(data).into_owned();
                self.fail_quietly(Failure::Aborted { by: from, reason });
            }
            Content::Died { rank } => {
                let how = String::from_utf8_lossy(data).into_owned();
                self.fail_quietly(Failure::Died { peer: rank, how });
            }
            Content::Close => self.count_closed(channel),
            Content::Leave => {
                peer.left = true;
                tracing::debug!(rank = self.rank, peer = from, "leaves");
                self.channel(0).wake();
            }
        }
        if prompt {
            self.tell_peer(from);
        }
    }

    fn nonsense(&mut self, from: u32) {
        let reason = format!("rank {from} sent a message that makes no sense; do all ranks run the same version?");
        self.fail(Failure::Aborted { by: self.rank, reason });
    }

    // Exchanges.

    /// Gives bytes to the next exchange; its number.
    pub(super) fn give(&mut self, mine: &[u8]) -> u64 {
        self.turn += 1;
        let (turn, content) = (self.turn, Content::Exchange { turn: self.turn });
        self.gather(turn, self.rank, mine.to_vec());
        for peer in self.others() {
            let data = if mine.is_empty() { Data::None } else { Data::Bytes(mine.into()) };
            self.post(peer, Outgoing { channel: 0, content, data, token: None });
        }
        turn
    }

    fn gather(&mut self, turn: u64, rank: u32, data: Vec<u8>) {
        let ranks = self.peers.len();
        self.gathered.entry(turn).or_insert_with(|| vec![None; ranks])[rank as usize] = Some(data);
        // Whoever waits for an exchange sleeps on channel 0.
        self.channel(0).wake();
    }

    /// Ranks that have not given anything to an exchange.
    pub(super) fn not_gathered(&self, turn: u64) -> Vec<u32> {
        let given = self.gathered.get(&turn);
        let lacks = |rank: &u32| given.is_none_or(|given| given[*rank as usize].is_none());
        (0..self.ranks()).filter(lacks).collect()
    }

    /// What all ranks gave.
    pub(super) fn take_gathered(&mut self, turn: u64) -> Vec<Vec<u8>> {
        self.gathered.remove(&turn).into_iter().flatten().map(Option::unwrap_or_default).collect()
    }

    // The end of things.

    /// Something that was to reach a peer did not.
    fn lost(&mut self, peer: u32, how: &str) {
        if !self.peers[peer as usize].left {
            self.fail(Failure::Died { peer, how: format!("libfabric: {how}") });
        }
    }

    /// Fails the world, and tells the others.
    pub(super) fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        let (content, text) = match &failure {
            Failure::Aborted { by, reason } if *by == self.rank => (Content::Abort, reason.clone()),
            Failure::Aborted { by, reason } => (Content::Abort, format!("rank {by}: {reason}")),
            Failure::Died { peer, how } => (Content::Died { rank: *peer }, how.clone()),
        };
        self.fail_quietly(failure);
        let mut len = text.len().min(MOST_DATA);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        for peer in self.others() {
            let data = Data::Bytes(text.as_bytes()[..len].into());
            self.post(peer, Outgoing { channel: 0, content, data, token: None });
        }
    }

    fn fail_quietly(&mut self, failure: Failure) {
        if self.failure.is_none() {
            tracing::debug!(rank = self.rank, ?failure, "failed");
            self.failure = Some(failure);
            self.failed.store(true, Ordering::Release);
            self.channels.iter_mut().for_each(Channel::wake);
        }
    }

    /// This rank has no further use for a channel.
    pub(super) fn close(&mut self, channel: u16) {
        let own = self.channel(channel);
        own.is_open = false;
        own.completions.clear();
        for peer in self.others() {
            let content = Content::Close;
            self.post(peer, Outgoing { channel, content, data: Data::None, token: None });
        }
        self.count_closed(channel);
    }

    /// Memory may be used by others until all have closed the channel.
    fn count_closed(&mut self, channel: u16) {
        let ranks = self.ranks();
        let own = self.channel(channel);
        own.closed += 1;
        if own.closed >= ranks {
            own.entries = Vec::new();
        }
    }

    /// Tells everybody that this rank ends in good order.
    pub(super) fn say_goodbye(&mut self) {
        for peer in self.others() {
            self.post(peer, Outgoing { channel: 0, content: Content::Leave, data: Data::None, token: None });
        }
    }

    /// Whether nobody needs this rank any more: all have left.
    pub(super) fn may_go(&self) -> bool {
        self.failure.is_some() || self.others().all(|peer| self.peers[peer as usize].left)
    }

    /// Whether everybody has dealt with all that this rank had to say; in a world that has failed,
    /// whether the news is on its way.
    pub(super) fn is_heard_by_all(&self) -> bool {
        let failed = self.failure.is_some();
        let heard = |Peer { sent, outbox, .. }: &Peer| match failed {
            true => outbox.iter().all(|outgoing| outgoing.content.is_counted()),
            false => sent.is_empty() && outbox.is_empty(),
        };
        self.peers.iter().all(heard)
    }

    pub(super) fn has_left(&self, peer: u32) -> bool {
        self.peers[peer as usize].left
    }

    /// Whether a peer was heard of since the last call.
    pub(super) fn was_heard(&mut self, peer: u32) -> bool {
        std::mem::take(&mut self.peers[peer as usize].heard)
    }

    pub(super) fn ping(&mut self, peer: u32) {
        // One that cannot be sent is as good as one that gets no answer.
        if self.peers[peer as usize].outbox.is_empty() {
            self.post(peer, Outgoing { channel: 0, content: Content::Ping, data: Data::None, token: None });
        }
    }
}
