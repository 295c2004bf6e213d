//! The outgoing side: messages, as far as credit and buffers allow, and transfers in parts.

use super::{
    Act, Channel, Content, Data, Fault, ImmediateData, Link, Location, Message, NetEngine, OnComplete, Outgoing, Peer,
    RegionEntry, Registered, Transfer, TransferPart, Way, Window, Wire,
};
use crate::fabric::net::limits::SPREAD_UNIT;
use crate::fabric::net::wire::{Local, Posted, Remote};
use crate::fabric::{At, Change};

/// Returns the two ends of a transfer. Regions outlive the transfers that were checked against them.
fn between<M: Registered>(entries: &[RegionEntry<M>], own: At, far: At, len: usize) -> Option<(Local<'_, M>, Remote)> {
    match entries.get(own.region.0 as usize)? {
        RegionEntry::Own(memory, _) => Some((Local { memory, offset: own.offset, len }, remote_of(entries, far)?)),
        RegionEntry::Peer(_) => None,
    }
}

/// Returns the name of a location in operations: a peer's, or one of this rank that peers may use.
fn remote_of<M: Registered>(entries: &[RegionEntry<M>], at: At) -> Option<Remote> {
    let (key, base) = match entries.get(at.region.0 as usize)? {
        RegionEntry::Own(memory, _) => memory.key()?,
        RegionEntry::Peer(far) => (far.key, far.base),
    };
    Some(Remote { address: base.wrapping_add(at.offset as u64), key })
}

/// Posts a part of a transfer. Returns whether that was done, or never has to be.
#[inline]
fn post_part<W: Wire>(
    transfers: &[Transfer],
    channels: &[Channel<W::Memory>],
    link: &mut Link<W>,
    part: &TransferPart,
) -> Posted<W::Error> {
    let &TransferPart { transfer, own, remote, len, rail, act } = part;
    let Transfer { channel, peer, .. } = transfers[transfer as usize];
    let entries = &channels[usize::from(channel)].entries;
    match (act, between(entries, own, remote, len)) {
        (Act::Change { at, change, wake }, data) => {
            let Some(cell) = remote_of(entries, at) else { return Ok(true) };
            let joins = NetEngine::<W>::in_one_write((remote, len), at, change).filter(|_| link.wire.writes_in_order());
            link.change((transfer, peer), (data.filter(|_| len > 0), joins), (cell, change), wake)
        }
        (Act::Move(_), None) => Ok(true),
        (Act::Move(way), Some(ends)) => link.transfer(transfer, (peer, rail), ends, way),
    }
}

impl Peer {
    /// Returns the next message for the peer, with what this rank shows to it.
    fn next_message(&self, (from, secret): (u32, u64), (channel, len): (u16, usize), content: Content) -> Message {
        let (number, ack) = (self.sent.next(), self.received.processed());
        Message { secret, from, number, ack, channel, len: len as u32, content }
    }

    /// Returns the slot of the next message if a write carries its header, and the immediate data that names it.
    fn next_header_slot(&self, from: u32, fault: Option<Fault>) -> Option<(ImmediateData, Remote)> {
        let number = if Fault::ReuseHeaderSlot.is(fault) { 0 } else { self.sent.next() };
        self.header_slots.map(|slots| slots.target(from, number))
    }

    /// Returns whether another counted message may be sent.
    fn has_credit(&self, fault: Option<Fault>) -> bool {
        self.sent.has_credit() || Fault::CreditTooEarly.is(fault)
    }

    /// Records that the next message was sent, or that the peer will never process it.
    fn was_sent(&mut self, is_counted: bool, what: Option<(u16, u64)>) {
        self.received.acked();
        if is_counted {
            self.sent.push(what);
        }
    }
}

impl<W: Wire> NetEngine<W> {
    /// Sends a message now, or when credit and a buffer are free.
    pub(super) fn post(&mut self, peer: u32, outgoing: Outgoing) {
        if !self.life.must_tell(peer, outgoing.content.is_last()) {
            if let Some(token) = outgoing.token {
                self.channel(outgoing.channel).complete(token, 0);
            }
            return;
        }
        let to = &mut self.peers[peer as usize];
        // An uncounted message does not wait for credit: an ack may be what gives the peer credit
        // for its own messages.
        match outgoing.content.is_counted() {
            true => to.outbox.push_back(outgoing),
            false => to.outbox.push_front(outgoing),
        }
        if !to.is_backlogged && !self.flush(peer) {
            self.peers[peer as usize].is_backlogged = true;
            self.backlogged.push_back(peer);
        }
    }

    /// Sends what waits for a peer, as far as possible. Returns whether that was all.
    pub(super) fn flush(&mut self, peer: u32) -> bool {
        let NetEngine { rank, joins, secret, peers, channels, link, fault, .. } = self;
        let to = &mut peers[peer as usize];
        let word = if *joins { secret.joining } else { to.shows.word };
        while let Some(Outgoing { channel, content, data, token }) = to.outbox.front() {
            if content.is_counted() && !to.has_credit(*fault) {
                return false;
            }
            let len = match data {
                Data::None => 0,
                Data::Region { len, .. } => *len,
                Data::Bytes(bytes) => bytes.len(),
            };
            let (channel, content) = (*channel, *content);
            let header = to.next_message((*rank, word), (channel, len), content).encode();
            let own = &channels.get(usize::from(channel));
            let fill = |buffer: &Window, at: usize| match data {
                Data::None => {}
                // A region lives until all ranks have closed its channel.
                Data::Region { region, offset, len } => {
                    if let Some(registered) = own.and_then(|own| own.own(*region)) {
                        Window::copy((registered.window(), *offset), (buffer, at), *len);
                    }
                }
                Data::Bytes(bytes) => buffer.write(at, bytes),
            };
            match link.send(peer, (&header, content), len, fill) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(code) => {
                    // Waiting messages complete when the peer has left in good order.
                    let text = link.wire.text(code);
                    self.suspect_unreachable(peer, &text);
                    return true;
                }
            }
            let what = token.map(|token| (channel, token));
            to.was_sent(content.is_counted(), what);
            to.outbox.pop_front();
        }
        true
    }

    /// Writes data and the header with its signal in one operation. Returns whether that was possible.
    pub(super) fn put_with_header(
        &mut self,
        (channel, token, peer): (u16, u64, u32),
        (own, remote, len): (At, At, usize),
        (cell, change, ack_now): (Location, Change, bool),
    ) -> bool {
        let to = &self.peers[peer as usize];
        // Waiting messages and parts go first.
        let first = to.outbox.is_empty() && self.parts.is_empty(peer);
        let fits = len <= self.link.limits.with_header && self.link.rails(len) == 1;
        let may = first && fits && to.has_credit(self.fault);
        let (Some((immediate, slot)), true) = (to.next_header_slot(self.rank, self.fault), may) else { return false };
        let content = Content::Put { to: Location::default(), signal: Some((cell, change)), ack_now };
        let header = to.next_message((self.rank, to.shows.word), (channel, 0), content).encode();
        let operation = (channel, token, peer);
        let transfer =
            self.add_transfer(Transfer { parts: 1, ..Transfer::new(operation, "put", OnComplete::AwaitAck) });
        let NetEngine { channels, link, peers, .. } = self;
        let immediate = immediate.encode(peers[peer as usize].shows.tag);
        let to = &mut peers[peer as usize];
        let moved = match between(&channels[usize::from(channel)].entries, own, remote, len) {
            None => Ok(false),
            Some((near, far)) => link.transfer_with_header(transfer, peer, near, far, (immediate, &header, slot)),
        };
        if moved != Ok(false) {
            // A failed transfer, too, ends when the peer has ended.
            to.was_sent(true, Some((channel, token)));
        }
        match moved {
            Ok(true) => {}
            Ok(false) => {
                self.transfers[transfer as usize].parts = 0;
                self.free_transfers.push(transfer);
            }
            Err(code) => self.fail_part(transfer, code),
        }
        moved != Ok(false)
    }

    fn add_transfer(&mut self, transfer: Transfer) -> u32 {
        match self.free_transfers.pop() {
            Some(index) => {
                self.transfers[index as usize] = transfer;
                index
            }
            None => {
                self.transfers.push(transfer);
                self.transfers.len() as u32 - 1
            }
        }
    }

    pub(super) fn transfer(&mut self, transfer: Transfer, (own, remote, len): (At, At, usize), act: Act) {
        let peer = transfer.peer;
        // The last part changes the cell, even if there is no data.
        let changes = matches!(act, Act::Change { .. });
        let rails = if matches!(act, Act::Move(Way::Out | Way::In)) { self.link.rails(len) } else { 1 };
        let longest = self.link.limits.part;
        // The same number of parts for each rail.
        let most = match rails {
            1 => longest,
            _ => {
                let parts = len.div_ceil(longest).next_multiple_of(rails);
                len.div_ceil(parts).next_multiple_of(SPREAD_UNIT).min(longest)
            }
        };
        let parts = len.div_ceil(most).max(usize::from(changes));
        let index = self.add_transfer(Transfer { parts: parts as u32, ..transfer });
        if parts == 1 && self.parts.are_empty() {
            let part = TransferPart { transfer: index, own, remote, len, rail: 0, act };
            let NetEngine { transfers, channels, link, .. } = self;
            match post_part(transfers, channels, link, &part) {
                Ok(true) => {}
                Ok(false) => self.parts.push(peer, part),
                Err(code) => self.fail_part(index, code),
            }
            return;
        }
        let at = |at: At, skip: usize| At { offset: at.offset + skip, ..at };
        for part in 0..parts {
            let (skip, is_last) = (part * most, part + 1 == parts);
            let (own, remote, len) = (at(own, skip), at(remote, skip), most.min(len - skip));
            let act = if changes && !is_last { Act::Move(Way::Out) } else { act };
            self.parts.push(peer, TransferPart { transfer: index, own, remote, len, rail: part % rails, act });
        }
        self.move_parts();
    }

    /// Posts parts of transfers, as far as contexts are free. A part that a peer refuses waits and delays only that
    /// peer.
    pub(super) fn move_parts(&mut self) {
        let mut failed = Vec::new();
        let NetEngine { parts, transfers, channels, link, .. } = self;
        parts.post(|part| {
            post_part(transfers, channels, link, part).unwrap_or_else(|code| {
                failed.push((part.transfer, code));
                true
            })
        });
        for (transfer, code) in failed {
            self.fail_part(transfer, code);
        }
    }

    /// Handles a part of a transfer that could not be posted.
    fn fail_part(&mut self, transfer: u32, error: W::Error) {
        let (peer, text) = (self.transfers[transfer as usize].peer, self.link.wire.text(error));
        self.suspect_unreachable(peer, &text);
        self.end_part(transfer, false);
    }

    /// Ends a part of a transfer, which has moved or failed.
    pub(super) fn end_part(&mut self, index: u32, moved: bool) {
        let transfer = &mut self.transfers[index as usize];
        transfer.parts -= 1;
        transfer.failed |= !moved;
        if Fault::CompleteBeforeLastPart.is(self.fault)
            && transfer.parts == 1
            && matches!(transfer.then, OnComplete::Complete)
        {
            transfer.then = OnComplete::AwaitAck;
            let Transfer { channel, token, .. } = *transfer;
            return self.channel(channel).complete(token, 0);
        }
        if transfer.parts > 0 {
            return;
        }
        let Transfer { channel, token, peer, then, failed, value, .. } = *transfer;
        if failed {
            // If the peer has not ended already, it is suspected.
            if self.life.has_ended(peer) {
                self.report_failed(peer);
            }
        } else {
            self.free_transfers.push(index);
            match then {
                OnComplete::Complete | OnComplete::Fetch => self.channel(channel).complete(token, value),
                OnComplete::SendSignal(cell, change, ack_now) => {
                    let content = Content::Put { to: Location::default(), signal: Some((cell, change)), ack_now };
                    self.post(peer, Outgoing { channel, content, data: Data::None, token: Some(token) });
                }
                OnComplete::Change(at, change) => self.change_behind((channel, token, peer), at, change),
                OnComplete::AwaitAck => {}
            }
        }
        self.free_if_closed(channel);
    }

    /// Reports the transfers that failed because a peer that had left has ended.
    pub(super) fn report_failed(&mut self, peer: u32) {
        for index in 0..self.transfers.len() {
            let transfer = &mut self.transfers[index];
            if transfer.peer != peer || !transfer.failed {
                continue;
            }
            if transfer.parts == 0 {
                transfer.failed = false;
                self.free_transfers.push(index as u32);
            }
            let Transfer { channel, operation, .. } = *transfer;
            self.channel(channel).break_off(operation, peer);
        }
    }
}
