//! Operations of callers: puts, signals, reads, atomics and their completions.

use super::{
    Act, Content, Data, IN_SLOT, ImmediateData, Location, NetEngine, OnComplete, Outgoing, Peer, RegionEntry,
    Registered, Transfer, Way, Window, Wire,
};
use crate::error::{Error, Misuse, Result};
use crate::fabric::net::message::MOST_INLINE;
use crate::fabric::{Access, At, Atomic, Change, Completion, NOT_ALLOWED, Posted, Signal};

/// The number of bytes from which on a writer that waits gets its ack at once: an ack costs little compared with the
/// data.
const LARGE: usize = 256 << 10;

/// How a put goes to a peer.
#[derive(Clone, Copy, Debug)]
enum PutWay {
    Nothing,
    ByDevice,
    WithHeader,
    Writes,
    Message,
}

impl<W: Wire> NetEngine<W> {
    /// Returns the owner of a location, if it is a peer, and the owner's name for it. The owner must allow the
    /// operation.
    fn locate(
        &self,
        operation: &'static str,
        channel: u16,
        (at, len): (At, usize),
        allows: fn(Access) -> bool,
    ) -> Result<(Option<u32>, Location)> {
        let entry = self.channels[usize::from(channel)].entry(at, len);
        let entry = entry.ok_or_else(|| self.usage(operation, Misuse::Argument("a place outside its region")))?;
        let (owner, region) = match entry {
            RegionEntry::Own(..) => (None, at.region.0 as u16),
            RegionEntry::Peer(remote) if !allows(remote.access) => return Err(self.usage(operation, NOT_ALLOWED)),
            RegionEntry::Peer(remote) => (Some(remote.owner), remote.region),
        };
        Ok((owner, Location { region, offset: at.offset as u64 }))
    }

    fn cell(&self, operation: &'static str, channel: u16, at: At) -> Result<(Option<u32>, Location)> {
        if !at.offset.is_multiple_of(size_of::<u64>()) {
            return Err(self.usage(operation, Misuse::Argument("a cell that is not aligned to 8 bytes")));
        }
        if at.offset / size_of::<u64>() > u32::MAX as usize {
            return Err(self.usage(operation, Misuse::Argument("a cell beyond 32 GiB, which messages cannot name")));
        }
        self.locate(operation, channel, (at, size_of::<u64>()), Access::allows_writing)
    }

    /// Returns the window of an operation's local side.
    fn near(&self, operation: &'static str, channel: u16, at: At, len: usize) -> Result<&Window> {
        self.locate(operation, channel, (at, len), Access::is_shared)?;
        self.own_window(operation, channel, at)
    }

    fn own_window(&self, operation: &'static str, channel: u16, at: At) -> Result<&Window> {
        let own = self.channels[usize::from(channel)].own(at.region).map(Registered::window);
        own.ok_or_else(|| self.usage(operation, Misuse::Argument("the near side must be a region of this endpoint")))
    }

    pub(in crate::internals::fabric::net) fn put(
        &mut self,
        channel: u16,
        (from, to, len): (At, At, usize),
        signal: Option<Signal>,
        token: u64,
    ) -> Result<Posted> {
        self.check("put", channel)?;
        let source = self.near("put", channel, from, len)?;
        let (owner, location) = self.locate("put", channel, (to, len), Access::allows_writing)?;
        let signal = match signal {
            None => None,
            Some(signal) => match self.cell("put", channel, signal.at)? {
                (keeper, cell) if keeper == owner => Some((signal, cell)),
                _ => return Err(self.usage("put", Misuse::Argument("data and signal go to different ranks"))),
            },
        };
        let Some(peer) = owner else {
            Window::copy((source, from.offset), (self.own_window("put", channel, to)?, to.offset), len);
            return Ok(signal.map_or(Posted::Done(0), |signal| self.change_own((channel, token), signal)));
        };
        let (operation, range) = ((channel, token, peer), (from, to, len));
        let named = signal.map(|(signal, cell)| (cell, signal.change, signal.awaited && len >= LARGE));
        let mut way = self.way_of_put(peer, len, named.is_some());
        if let (PutWay::WithHeader, Some(signal)) = (way, named)
            && !self.put_with_header(operation, range, signal)
        {
            way = self.way_without_header(len);
        }
        match way {
            PutWay::Nothing => return Ok(Posted::Done(0)),
            PutWay::ByDevice => return Ok(self.put_by_device(operation, range, signal.map(|(signal, _)| signal))),
            PutWay::WithHeader => {}
            PutWay::Writes => self.put_by_writing(operation, range, named),
            PutWay::Message => {
                let data = match len {
                    0 => Data::None,
                    _ => Data::Region { region: from.region, offset: from.offset, len },
                };
                let signal = named.map(|(cell, change, _)| (cell, change));
                self.put_by_message(channel, peer, (location, data), signal, token);
            }
        }
        Ok(Posted::Pending)
    }

    /// Chooses the way of a put to a peer, with or without a signal that follows its data. The first row that fits holds:
    ///
    /// | peer | put | way |
    /// |---|---|---|
    /// | has ended | any | nothing: the peer can no longer see it |
    /// | any, where devices change cells | any | writes, and the device's operation on the cell |
    /// | has header slots | with a signal, longer than [`MOST_INLINE`] | one write of data and header, if it is free; else as below |
    /// | any | longer than the limit of a message | writes, which a message announces or follows |
    /// | any | others, and signals alone | one message |
    fn way_of_put(&self, peer: u32, len: usize, with_signal: bool) -> PutWay {
        let Peer { header_slots, .. } = &self.peers[peer as usize];
        match () {
            () if self.life.has_ended(peer) => PutWay::Nothing,
            () if self.is_by_device() => PutWay::ByDevice,
            () if with_signal && len > MOST_INLINE && header_slots.is_some() => PutWay::WithHeader,
            () => self.way_without_header(len),
        }
    }

    fn way_without_header(&self, len: usize) -> PutWay {
        if len > self.link.limits.put { PutWay::Writes } else { PutWay::Message }
    }

    /// Gives a signal to this rank. The location was checked.
    fn change_own(&mut self, (channel, token): (u16, u64), (signal, cell): (Signal, Location)) -> Posted {
        if !matches!(signal.change, Change::Set(_)) && !self.may_change_own(channel, signal.at) {
            return self.signal_by_device((channel, token, self.rank), signal);
        }
        let own = &mut self.channels[usize::from(channel)];
        // The change of an own cell at a checked location cannot fail.
        let _ = own.change(cell, signal.change);
        own.wake();
        Posted::Done(0)
    }

    /// Writes data and signals. It uses writes with immediate data and a message that announces them, if the provider
    /// can do that and all data goes by the first rail. Otherwise a message follows the writes.
    fn put_by_writing(
        &mut self,
        (channel, token, peer): (u16, u64, u32),
        (from, to, len): (At, At, usize),
        signal: Option<(Location, Change, bool)>,
    ) {
        let (mut way, mut then) = (Way::Out, OnComplete::Complete);
        if let Some((cell, change, ack_now)) = signal {
            if self.link.uses_immediate && self.link.rails(len) == 1 {
                self.last_write_id = (self.last_write_id + 1) % IN_SLOT;
                let parts = len.div_ceil(self.link.limits.part) as u32;
                let content = Content::Landing { write_id: self.last_write_id, parts, signal: (cell, change), ack_now };
                self.post(peer, Outgoing { channel, content, data: Data::None, token: Some(token) });
                let immediate = ImmediateData { from: self.rank, which: self.last_write_id };
                (way, then) = (
                    Way::OutWithImmediate(immediate.encode(self.peers[peer as usize].shows.tag)),
                    OnComplete::AwaitAck,
                );
            } else {
                then = OnComplete::SendSignal(cell, change, ack_now);
            }
        }
        self.transfer(Transfer::new((channel, token, peer), "put", then), (from, to, len), Act::Move(way));
    }

    fn put_by_message(
        &mut self,
        channel: u16,
        peer: u32,
        (to, data): (Location, Data),
        signal: Option<(Location, Change)>,
        token: u64,
    ) {
        let content = Content::Put { to, signal, ack_now: signal.is_none() };
        self.post(peer, Outgoing { channel, content, data, token: Some(token) });
    }

    /// Fails if the peer has ended and cannot answer.
    fn check_here(&self, operation: &'static str, peer: u32) -> Result<()> {
        match self.life.has_ended(peer) {
            true => Err(Error::left(self.rank, operation, peer)),
            false => Ok(()),
        }
    }

    pub(in crate::internals::fabric::net) fn signal(
        &mut self,
        channel: u16,
        signal: Signal,
        token: u64,
    ) -> Result<Posted> {
        self.check("signal", channel)?;
        let (owner, cell) = self.cell("signal", channel, signal.at)?;
        let Some(peer) = owner else { return Ok(self.change_own((channel, token), (signal, cell))) };
        match self.way_of_put(peer, 0, true) {
            PutWay::Nothing => Ok(Posted::Done(0)),
            PutWay::ByDevice => Ok(self.signal_by_device((channel, token, peer), signal)),
            PutWay::WithHeader | PutWay::Writes | PutWay::Message => {
                let data = (Location::default(), Data::None);
                self.put_by_message(channel, peer, data, Some((cell, signal.change)), token);
                Ok(Posted::Pending)
            }
        }
    }

    pub(in crate::internals::fabric::net) fn read(
        &mut self,
        channel: u16,
        from: At,
        to: At,
        len: usize,
        token: u64,
    ) -> Result<Posted> {
        self.check("read", channel)?;
        let target = self.near("read", channel, to, len)?;
        let (owner, _) = self.locate("read", channel, (from, len), Access::allows_reading)?;
        match owner {
            _ if len == 0 => Ok(Posted::Done(0)),
            None => {
                Window::copy((self.own_window("read", channel, from)?, from.offset), (target, to.offset), len);
                Ok(Posted::Done(0))
            }
            Some(peer) => {
                self.check_here("read", peer)?;
                let transfer = Transfer::new((channel, token, peer), "read", OnComplete::Complete);
                self.transfer(transfer, (to, from, len), Act::Move(Way::In));
                Ok(Posted::Pending)
            }
        }
    }

    pub(in crate::internals::fabric::net) fn atomic(
        &mut self,
        channel: u16,
        at: At,
        atomic: Atomic,
        token: u64,
    ) -> Result<Posted> {
        self.check("atomic", channel)?;
        let (owner, cell) = self.cell("atomic", channel, at)?;
        if owner.is_none() && self.may_change_own(channel, at) {
            let value = self.channels[usize::from(channel)].atomic(cell, atomic);
            return Ok(Posted::Done(value.unwrap_or(0)));
        }
        let peer = owner.unwrap_or(self.rank);
        self.check_here("atomic", peer)?;
        match self.is_by_device() {
            true => self.atomic_by_device((channel, token, peer), at, atomic),
            false => self.ask_atomic(channel, peer, (cell, atomic), token),
        }
        Ok(Posted::Pending)
    }

    #[inline]
    pub(in crate::internals::fabric::net) fn has_completion(&self, channel: u16) -> bool {
        !self.channels[usize::from(channel)].completions.is_empty()
    }

    #[inline]
    pub(in crate::internals::fabric::net) fn completion(&mut self, channel: u16) -> Result<Option<Completion>> {
        let completion = self.channels[usize::from(channel)].completions.pop_front();
        if completion.is_none() {
            self.check("poll", channel)?;
        }
        Ok(completion)
    }
}
