//! What concerns all ranks: exchanges, failure, close and leave.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::life::Confirmed;
use super::{
    Act, Channel, Content, Data, Evidence, Failure, MOST_DATA, NetEngine, OnComplete, Outgoing, Peer, RegionEntry,
    Registered, Transfer, TransferPart, Trouble, Way, Wire,
};
use crate::error::Ranks;

impl<W: Wire> NetEngine<W> {
    /// Gives this rank's bytes for each rank to the next exchange.
    pub(in crate::internals::fabric::net) fn give<'d>(&mut self, turn: u64, to: impl Fn(u32) -> &'d [u8]) {
        self.turn = turn;
        let content = if self.joins { Content::Join { turn } } else { Content::Exchange { turn } };
        self.gather(turn, self.rank, to(self.rank).to_vec());
        for peer in self.others() {
            let bytes = to(peer);
            let data = if bytes.is_empty() { Data::None } else { Data::Bytes(bytes.into()) };
            self.post(peer, Outgoing { channel: 0, content, data, token: None });
        }
    }

    pub(super) fn gather(&mut self, turn: u64, rank: u32, data: Vec<u8>) {
        let ranks = self.peers.len();
        self.gathered.entry(turn).or_insert_with(|| vec![None; ranks])[rank as usize] = Some(data);
        // A caller that waits for an exchange sleeps on channel 0.
        self.channel(0).wake();
    }

    /// Returns the ranks whose bytes for an exchange have not come.
    pub(in crate::internals::fabric::net) fn not_gathered(&self, turn: u64) -> Vec<u32> {
        let given = self.gathered.get(&turn);
        let lacks = |rank: &u32| given.is_none_or(|given| given[*rank as usize].is_none());
        (0..self.ranks()).filter(lacks).collect()
    }

    /// Takes what all ranks gave to an exchange.
    pub(in crate::internals::fabric::net) fn take_gathered(&mut self, turn: u64) -> Vec<Vec<u8>> {
        self.gathered.remove(&turn).into_iter().flatten().map(Option::unwrap_or_default).collect()
    }

    /// Cuts all connections but those that the ranks have told each other, and allows no further ones. So from now on
    /// no process but the ranks hears what this rank sends.
    ///
    /// # Errors
    /// Ranks to which another process may hear what is sent.
    pub(in crate::internals::fabric::net) fn keep_strangers_out(&mut self, told: &[Vec<u8>]) -> Result<(), Ranks> {
        for from in self.link.wire.keep_strangers_out(told)? {
            tracing::warn!(rank = self.rank, %from, "cuts a connection that no rank of this job has made");
            self.strangers.connections.came(&from.ip().to_string());
        }
        self.joins = false;
        Ok(())
    }

    /// Ends joining: all ranks have kept strangers out.
    pub(in crate::internals::fabric::net) fn end_joining(&mut self) {
        self.joining_turns = 0;
    }

    /// Suspects a peer that an operation did not reach.
    pub(super) fn suspect_unreachable(&mut self, peer: u32, how: &str) {
        self.suspect(peer, Evidence::Unreachable(format!("{}: {how}", W::LIBRARY)));
    }

    /// Takes the trouble that the device reports by itself.
    pub(in crate::internals::fabric::net) fn poll_device(&mut self) {
        while let Some(trouble) = self.link.wire.trouble() {
            self.take_trouble(trouble);
        }
    }

    /// Takes the failure of a connection or of the whole device.
    pub(in crate::internals::fabric) fn take_trouble(&mut self, Trouble { peer, reason }: Trouble) {
        match peer {
            Some(peer) => self.suspect_unreachable(peer, &reason),
            None => {
                let cause = format!("{}: {reason}", W::LIBRARY);
                self.fail(Failure::Transport { by: self.rank, peer: None, cause });
            }
        }
    }

    /// Suspects that a peer has ended. What it sent before, and what others say about it, may still be unread.
    pub(in crate::internals::fabric::net) fn suspect(&mut self, peer: u32, evidence: Evidence) {
        if !self.is_done_with(peer) {
            self.life.suspect(peer, evidence, Instant::now());
        }
    }

    /// Returns whether the end of a peer's process is known already.
    pub(in crate::internals::fabric::net) fn knows_end_of(&self, peer: u32) -> bool {
        self.life.has_process_ended(peer) || self.is_done_with(peer)
    }

    /// Returns whether a peer has ended and no transfer waits for the provider's report on it.
    pub(in crate::internals::fabric::net) fn is_done_with(&self, peer: u32) -> bool {
        self.life.has_ended(peer) && !has_undecided(&self.transfers, peer)
    }

    /// Returns whether this rank waits for a peer that has left.
    pub(in crate::internals::fabric::net) fn needs(&self, peer: u32) -> bool {
        let Peer { sent, outbox, .. } = &self.peers[peer as usize];
        self.atomics.wait_for(peer) || !sent.is_empty() || !outbox.is_empty() || has_undecided(&self.transfers, peer)
    }

    /// Returns what may explain why peers are silent, as text that continues a sentence.
    pub(in crate::internals::fabric::net) fn device_fault(&self) -> String {
        self.link.wire.device_fault().map_or(String::new(), |device_fault| format!("; {device_fault}"))
    }

    /// Confirms suspicions after a poll of the network. A confirmed peer that had left has ended in good order. Any
    /// other is dead, unless a rank on its host sees it running; the world fails.
    pub(super) fn confirm_suspects(&mut self) {
        let NetEngine { life, transfers, .. } = self;
        match life.confirm(Instant::now(), self.idle > 0, |peer| !has_undecided(transfers, peer)) {
            None => {}
            Some(Confirmed::Lost { peer, evidence, may_run }) => {
                // The cause may be on this side.
                self.poll_device();
                if may_run && self.ask_witnesses(peer) {
                    return self.life.asked(peer, evidence);
                }
                let device_fault = if evidence == Evidence::Ended { String::new() } else { self.device_fault() };
                let how = format!("{evidence}{device_fault}{}", self.strangers);
                self.fail(Failure::Died { peer, how });
            }
            Some(Confirmed::Ended(peer)) => {
                // The peer cannot answer, whatever the provider reports about operations in flight, and whenever it does.
                let of_peer = |transfer: &&mut Transfer| transfer.peer == peer && transfer.parts > 0;
                self.transfers.iter_mut().filter(of_peer).for_each(|transfer| transfer.failed = true);
                self.forget(peer, false);
            }
        }
    }

    /// Fails the world and tells the other ranks.
    pub(in crate::internals::fabric::net) fn fail(&mut self, failure: Failure) {
        if self.record_failure(failure) {
            self.announce_failure(false);
        }
    }

    /// Tells the other ranks why the world has failed, if it has. `last` if this rank ends.
    fn announce_failure(&mut self, last: bool) {
        let Some(failure) = self.life.failure().cloned() else { return };
        let is_own_network = matches!(failure, Failure::Transport { .. });
        let (content, text) = match failure {
            Failure::Aborted { by, reason } | Failure::Transport { by, peer: None, cause: reason } => {
                (Content::Abort { by, last }, reason)
            }
            Failure::Transport { by, peer: Some(peer), cause } => {
                (Content::Abort { by, last }, format!("the transport to rank {peer} failed: {cause}"))
            }
            Failure::Died { peer, how } => (Content::Died { rank: peer, last }, how),
        };
        if is_own_network && !last {
            // The messages may reach no rank.
            self.alarm.ring(&text);
        }
        let len = text.floor_char_boundary(MOST_DATA);
        let is_dead = |peer: &u32| matches!(content, Content::Died { rank, .. } if rank == *peer);
        for peer in self.others().filter(|peer| !is_dead(peer)) {
            let data = Data::Bytes(text.as_bytes()[..len].into());
            self.post(peer, Outgoing { channel: 0, content, data, token: None });
        }
    }

    /// Takes what ranks of this host say whose network no longer works, and tells the others.
    pub(in crate::internals::fabric::net) fn hear_alarm(&mut self) {
        if let Some((by, reason)) = self.alarm.heard().filter(|&(by, _)| by < self.ranks()) {
            self.fail(Failure::Aborted { by, reason });
        }
    }

    /// Fails the world without telling the other ranks. Returns false if it had failed before.
    pub(super) fn record_failure(&mut self, failure: Failure) -> bool {
        let is_first = self.life.fail(failure);
        if is_first {
            tracing::debug!(rank = self.rank, failure = ?self.life.failure(), "failed");
            self.link.wire.forgo_rails();
            self.failed.store(true, Ordering::Release);
            self.channels.iter_mut().for_each(Channel::wake);
        }
        is_first
    }

    /// Closes a channel on this rank. The other ranks are told when no operation of this rank is in flight there.
    pub(in crate::internals::fabric::net) fn close(&mut self, channel: u16) {
        let own = self.channel(channel);
        own.is_open = false;
        own.completions.clear();
        self.closing.push(channel);
        self.close_settled();
    }

    /// Tells the others about closed channels in which no operation of this rank is in flight. A peer frees the memory
    /// once all ranks have told it, and `Close` would overtake parts that wait to be posted. Posted messages and writes
    /// are not ordered among each other either.
    pub(super) fn close_settled(&mut self) {
        for index in (0..self.closing.len()).rev() {
            let channel = self.closing[index];
            if self.is_in_flight(channel) {
                continue;
            }
            self.closing.swap_remove(index);
            for peer in self.others() {
                let content = Content::Close;
                self.post(peer, Outgoing { channel, content, data: Data::None, token: None });
            }
            self.count_closed(channel);
        }
        if self.closing.is_empty() {
            // A rank that leaves waits for that on channel 0.
            self.channel(0).wake();
        }
    }

    /// Returns whether an operation that this rank began in a channel may still arrive at a peer. These are waiting
    /// parts, operations that have not completed, and messages that the peer has not acknowledged, since a write with
    /// immediate data completes before it has landed. Operations to a peer that has ended do not count.
    fn is_in_flight(&self, channel: u16) -> bool {
        let moves = |transfer: &Transfer| {
            transfer.channel == channel && transfer.parts > 0 && !self.life.has_ended(transfer.peer)
        };
        let is_unheard = |Peer { sent, outbox, .. }: &Peer| {
            let is_backlogged = outbox.iter().any(|outgoing| outgoing.channel == channel);
            is_backlogged || sent.in_flight().flatten().any(|&(of, _)| of == channel)
        };
        self.transfers.iter().any(moves) || self.atomics.are_in(channel) || self.peers.iter().any(is_unheard)
    }

    /// Returns whether no operation that this rank began in any channel may still arrive at a peer, or the world has
    /// failed.
    pub(in crate::internals::fabric::net) fn has_settled(&self) -> bool {
        self.life.has_failed() || (0..self.channels.len()).all(|channel| !self.is_in_flight(channel as u16))
    }

    /// Counts a rank that has closed the channel. The channel's memory stays in use until all have closed it.
    pub(super) fn count_closed(&mut self, channel: u16) {
        self.channel(channel).closed += 1;
        self.free_if_closed(channel);
    }

    /// Frees the memory of a channel that all ranks have closed, once no transfer of this rank uses it.
    pub(super) fn free_if_closed(&mut self, channel: u16) {
        let closed = self.channel(channel).closed;
        // In a failed world others may close what this rank still transfers.
        if closed < self.ranks() || self.life.has_failed() {
            return;
        }
        if !self.transfers.iter().any(|transfer| transfer.channel == channel && transfer.parts > 0) {
            self.channel(channel).free();
        }
    }

    /// Tells all ranks that this one leaves in good order, unless the world has failed.
    pub(in crate::internals::fabric::net) fn announce_leave(&mut self) {
        if self.life.has_failed() {
            return;
        }
        for peer in self.others() {
            self.post(peer, Outgoing { channel: 0, content: Content::Leave, data: Data::None, token: None });
        }
    }

    /// Tells the remaining ranks that this one ends now. In a failed world it repeats the reason. Messages may overtake
    /// each other or be lost, and a peer that has not heard of the failure must believe neither that this rank has left
    /// in good order nor that it has died.
    pub(in crate::internals::fabric::net) fn announce_end(&mut self) {
        self.life.end();
        if self.life.has_failed() {
            return self.announce_failure(true);
        }
        for peer in self.others() {
            self.post(peer, Outgoing { channel: 0, content: Content::Ended, data: Data::None, token: None });
        }
    }

    /// Ends the operations to a peer that has ended. `waits` if it waits to hear the same of this rank. Failed transfers, reads and atomics to it fail for their callers.
    /// Other operations to it complete, since no process is there to see them.
    pub(super) fn forget(&mut self, from: u32, waits: bool) {
        self.life.ends(from, waits);
        let peer = &mut self.peers[from as usize];
        let backlogged = peer.outbox.drain(..).map(|outgoing| outgoing.token.map(|token| (outgoing.channel, token)));
        let done: Vec<_> = peer.sent.drain().chain(backlogged).flatten().collect();
        for TransferPart { transfer, act, .. } in self.parts.drain(from) {
            let fetches = matches!(self.transfers[transfer as usize].then, OnComplete::Fetch);
            let is_answered = fetches || matches!(act, Act::Move(Way::In));
            self.end_part(transfer, !is_answered);
        }
        self.report_failed(from);
        self.break_off_atomics(from);
        for (channel, token) in done {
            self.channel(channel).complete(token, 0);
        }
        self.channel(0).wake();
    }

    /// Returns whether all ranks have acknowledged all that this rank sent. In a failed world: whether the provider has
    /// sent the failure.
    pub(in crate::internals::fabric::net) fn is_acked_by_all(&self) -> bool {
        let failed = self.life.has_failed();
        let heard = |Peer { sent, outbox, .. }: &Peer| match failed {
            true => self.link.has_sent_all() && outbox.iter().all(|outgoing| outgoing.content.is_counted()),
            false => sent.is_empty() && outbox.is_empty(),
        };
        self.peers.iter().all(heard)
    }

    pub(in crate::internals::fabric::net) fn ping(&mut self, peer: u32) {
        // A ping that cannot be sent is equivalent to one without an answer.
        if self.peers[peer as usize].outbox.is_empty() {
            self.post(peer, Outgoing { channel: 0, content: Content::Ping, data: Data::None, token: None });
        }
    }
}

/// Returns whether a transfer to or from a peer can still complete or fail.
fn has_undecided(transfers: &[Transfer], peer: u32) -> bool {
    transfers.iter().any(|transfer| transfer.peer == peer && transfer.parts > 0 && !transfer.failed)
}

impl<W: Wire> Drop for NetEngine<W> {
    fn drop(&mut self) {
        // The regions end first, because the endpoint cannot be closed while they are registered. What the provider
        // still does with their memory ends with the wire.
        let own = self.channels.iter().flat_map(|channel| &channel.entries);
        self.kept.extend(own.filter_map(|entry| match entry {
            RegionEntry::Own(registered, _) => Some(registered.window().clone()),
            RegionEntry::Peer(_) => None,
        }));
        self.kept.extend(self.link.windows().cloned());
        // Not every provider can close its endpoint while operations are in flight.
        if !self.link.wire.end(!self.life.is_over() || !self.link.is_idle()) {
            std::mem::forget((std::mem::take(&mut self.channels), std::mem::take(&mut self.kept)));
        }
    }
}
