//! The incoming side: events, and the requests of messages.

use std::time::Instant;

use super::{
    Announced, Content, Data, Event, Failure, Fault, IDLE_POLLS, IN_SLOT, ImmediateData, Landing, MAX_ACK_DELAY,
    MOST_GUESSES, MOST_HEADER, Message, NetEngine, OnComplete, Outgoing, POLLS_PER_CLOCK, Peer, Receipt, Received,
    WINDOW, Wire,
};
use crate::error::text_of;

impl<W: Wire> NetEngine<W> {
    /// Processes events and sends what waits; returns whether there was an event.
    pub(in crate::internals::fabric::net) fn progress(&mut self) -> bool {
        let mut any = false;
        // Polls once, so that a caller can soon continue with what it has seen.
        if let Err(code) = self.link.poll() {
            let (why, device_fault) = (self.link.wire.text(code), self.device_fault());
            let cause = format!("{} cannot read completions: {why}{device_fault}{}", W::LIBRARY, self.strangers);
            self.fail(Failure::Transport { by: self.rank, peer: None, cause });
        }
        while let Some(event) = self.link.next() {
            self.process(event);
            any = true;
        }
        // One ack covers all messages of this poll.
        while let Some(peer) = self.wanting_ack.pop() {
            self.peers[peer as usize].wants_ack = false;
            self.send_ack(peer);
        }
        for _ in 0..self.backlogged.len() {
            let Some(peer) = self.backlogged.pop_front() else { break };
            if self.flush(peer) {
                self.peers[peer as usize].is_backlogged = false;
            } else {
                self.backlogged.push_back(peer);
            }
        }
        if !self.parts.are_empty() {
            self.move_parts();
        }
        self.idle = if any { 0 } else { self.idle.saturating_add(1) };
        if self.idle == IDLE_POLLS {
            self.ack_all();
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_CLOCK) {
            self.ack_if_due();
        }
        if self.life.has_suspects() {
            self.confirm_suspects();
        }
        if !self.closing.is_empty() {
            self.close_settled();
        }
        any
    }

    /// Polls the network if that may clear or confirm a suspicion.
    pub(in crate::internals::fabric::net) fn check_suspects(&mut self) {
        if self.life.has_suspects() {
            self.progress();
        }
    }

    /// Processes what has come while this rank did not poll, or much of it.
    pub(in crate::internals::fabric::net) fn catch_up(&mut self) {
        const POLLS: u32 = 64;
        for _ in 0..POLLS {
            if !self.progress() {
                break;
            }
        }
    }

    /// Sends pending acks if one has waited long enough for a message to carry it.
    pub(in crate::internals::fabric::net) fn ack_if_due(&mut self) {
        // An ack that is pending at one such check is overdue at the next.
        if self.acks_pending_since.is_some_and(|since| since.elapsed() > MAX_ACK_DELAY / 2) {
            self.send_due_acks(Received::is_overdue);
        }
    }

    /// Sends all acks that no other message has carried.
    pub(in crate::internals::fabric::net) fn ack_all(&mut self) {
        self.send_due_acks(|received| received.unacked() > 0);
    }

    /// Sends the acks that are due; drops peers that another message has acknowledged.
    fn send_due_acks(&mut self, is_due: impl Fn(&mut Received) -> bool) {
        for index in (0..self.acks_pending.len()).rev() {
            let number = self.acks_pending[index];
            let peer = &mut self.peers[number as usize];
            let due = is_due(&mut peer.received);
            if due || peer.received.unacked() == 0 {
                peer.ack_pending = false;
                self.acks_pending.swap_remove(index);
            }
            if due {
                self.send_ack(number);
            }
        }
        self.acks_pending_since = if self.acks_pending.is_empty() { None } else { Some(Instant::now()) };
    }

    /// Gives a sign of life to remote peers that send much data to this rank, by their writes or by its reads. Over a
    /// slow line their pings arrive after that data, perhaps too late.
    pub(in crate::internals::fabric::net) fn reassure_senders(&mut self, is_elsewhere: impl Fn(u32) -> bool) {
        let writers = self.landings.iter().map(|landing| landing.from);
        let read = self.transfers.iter().filter(|transfer| transfer.parts > 0).map(|transfer| transfer.peer);
        let senders: Vec<u32> = writers.chain(read).filter(|&peer| is_elsewhere(peer)).collect();
        senders.into_iter().for_each(|peer| self.ack_soon(peer));
    }

    /// Returns whether an ack is pending.
    pub(in crate::internals::fabric::net) fn has_acks_pending(&self) -> bool {
        self.acks_pending.iter().any(|&peer| self.peers[peer as usize].received.unacked() > 0)
    }

    pub(super) fn send_ack(&mut self, peer: u32) {
        // An ack that waits in the outbox will cover all that is processed by then.
        let first = self.peers[peer as usize].outbox.front();
        if first.is_some_and(|outgoing| matches!(outgoing.content, Content::Ack)) {
            return;
        }
        self.post(peer, Outgoing { channel: 0, content: Content::Ack, data: Data::None, token: None });
    }

    pub(in crate::internals::fabric) fn process(&mut self, event: Event) {
        match event {
            Event::Message(buffer, len) => {
                self.process_message(Source::Buffer(buffer, len));
                if let Err(code) = self.link.post_receive(buffer) {
                    let cause = format!("{} takes no message buffer: {}", W::LIBRARY, self.link.wire.text(code));
                    self.fail(Failure::Transport { by: self.rank, peer: None, cause });
                }
            }
            Event::Moved(index, peer, value) => {
                // A write with immediate data completes when it has gone out, without the peer. Reads and other writes
                // are answered: by the peer's process where software emulates them, as over `tcp;ofi_rxm`; or by a
                // device, as long as that process has not ended. They count as a sign of life, because a ping waits for
                // all that was posted before.
                let answered = !matches!(self.transfers[index as usize].then, OnComplete::AwaitAck);
                if answered && !self.link.wire.is_connected(peer) {
                    self.suspect_unreachable(peer, "its connection has ended");
                    return self.end_part(index, false);
                }
                if answered {
                    self.life.hear(peer);
                }
                self.transfers[index as usize].value = value;
                self.end_part(index, true);
            }
            Event::Landed(data) => {
                let (immediate, tag) = ImmediateData::decode(data);
                if self.peers.get(immediate.from as usize).is_none_or(|peer| peer.shown.tag != tag) {
                    return self.drop_untagged_write();
                }
                if self.is_by_device() {
                    return self.wake_channel(immediate);
                }
                let ImmediateData { from, which } = immediate;
                if which & IN_SLOT != 0 {
                    let Some(header) = self.link.header(from, u32::from(which & !IN_SLOT)) else { return };
                    return self.process_message(Source::HeaderSlot(from, header));
                }
                self.life.hear(from);
                self.landing(from, which).landed += 1;
                self.complete_landing(from, which);
            }
            Event::Failed(peer, transfer, text) => {
                self.suspect_unreachable(peer, &text);
                if let Some(transfer) = transfer {
                    self.end_part(transfer, false);
                }
            }
            Event::Sent | Event::Nothing => {}
        }
    }

    fn process_message(&mut self, source: Source) {
        let bytes = match &source {
            Source::Buffer(buffer, len) => self.link.message(*buffer, *len),
            Source::HeaderSlot(_, header) => header,
        };
        // No state changes before the secret is checked, whichever sender the message names.
        let decoded = Message::decode(bytes).filter(|(message, _)| self.is_of_job(message));
        let Some((message, data)) = decoded else { return self.drop_stranger("a message") };
        let Message { from, channel, content, .. } = message;
        if matches!(source, Source::HeaderSlot(writer, _) if writer != from) {
            return self.reject_message(from);
        }
        let Some(peer) = self.peers.get_mut(from as usize) else { return };
        self.life.hear(from);
        // What ranks send while they join needs no acknowledgement.
        let acks = message.secret == peer.shown.word;
        while let Some(sent) = acks.then(|| peer.sent.pop_acked(message.ack)).flatten() {
            // A message without a token may be what a caller on channel 0 waits for.
            let (channel, token) = sent.map_or((0, None), |(channel, token)| (channel, Some(token)));
            match (self.channels.get_mut(usize::from(channel)), token) {
                (Some(channel), Some(token)) => channel.complete(token, 0),
                (Some(channel), None) => channel.wake(),
                (None, _) => {}
            }
        }
        if let Content::Landing { write_id, parts, signal, ack_now } = content {
            // It counts as processed when its data has landed.
            let number = message.number;
            if Fault::AcknowledgeEarly.is(self.fault) {
                count(&mut self.peers, (&mut self.acks_pending, &mut self.acks_pending_since), from, number);
            }
            self.landing(from, write_id).announced = Some(Announced { number, channel, parts, signal, ack_now });
            return self.complete_landing(from, write_id);
        }
        if content.is_counted() {
            match count(&mut self.peers, (&mut self.acks_pending, &mut self.acks_pending_since), from, message.number) {
                Receipt::New => {}
                Receipt::Duplicate => return,
                Receipt::Invalid => return self.reject_message(from),
            }
        }
        let mut ack_now = self.is_ack_urgent(from);
        match content {
            Content::Landing { .. } => {}
            Content::Put { to, signal, ack_now: awaited } => {
                ack_now |= awaited;
                let Some(own) = self.channels.get_mut(usize::from(channel)) else { return self.reject_message(from) };
                let written = match data {
                    [] => Some(()),
                    data => own.writable(to).and_then(|own| own.write(to, data)),
                };
                let changed = match signal {
                    Some((cell, change)) => own.writable(cell).and_then(|own| own.change(cell, change)),
                    None => Some(()),
                };
                if written.and(changed).is_none() {
                    return self.reject_message(from);
                }
                if let Some((cell, change)) = signal.filter(|_| Fault::DealTwice.is(self.fault)) {
                    _ = own.change(cell, change);
                }
                if !Fault::ForgetBell.is(self.fault) {
                    own.wake();
                }
            }
            Content::Atomic { at, atomic, id } => {
                if self.answer_atomic(channel, from, (at, atomic), id).is_none() {
                    return self.reject_message(from);
                }
            }
            Content::Value { id, value } => self.complete_atomic(id, value),
            Content::Exchange { turn } => {
                // A rank is at most one exchange ahead.
                if turn == 0 || turn > self.turn + 1 {
                    return self.reject_message(from);
                }
                let data = data.to_vec();
                self.gather(turn, from, data);
            }
            Content::Join { turn } => {
                if (1..=self.joining_turns.min(self.turn + 1)).contains(&turn) {
                    self.gather(turn, from, data.to_vec());
                }
            }
            // A ping wants only an answer, and the ack is one.
            Content::Ping => self.ack_soon(from),
            Content::Ack => {}
            Content::Ask { rank } => {
                if self.is_asked(from, rank).is_none() {
                    return self.reject_message(from);
                }
            }
            Content::Seen { rank, runs } => self.take_answer(from, rank, runs),
            Content::Woken { count } => {
                if self.wakes_were_taken(from, count).is_none() {
                    return self.reject_message(from);
                }
            }
            Content::Abort { by, .. } => {
                let reason = text_of(data);
                self.record_failure(Failure::Aborted { by, reason });
            }
            Content::Died { rank, .. } => {
                let how = text_of(data);
                self.record_failure(Failure::Died { peer: rank, how });
            }
            Content::Ended => {}
            Content::Close => self.count_closed(channel),
            Content::Leave => {
                self.life.leaves(from);
                tracing::debug!(rank = self.rank, peer = from, "leaves");
                self.channel(0).wake();
            }
        }
        if content.is_last() {
            self.forget(from, matches!(content, Content::Ended));
        }
        if ack_now {
            self.ack_soon(from);
        }
    }

    /// Returns whether a message carries what the rank that it names shows to this one. A process that stood where a
    /// rank should may know the joining word, so such a message must not change anything that lasts beyond joining.
    fn is_of_job(&self, message: &Message) -> bool {
        let NetEngine { secret, joining_turns, peers, .. } = self;
        let Some(peer) = peers.get(message.from as usize) else { return false };
        let is_of_joining = || message.secret == secret.joining && message.content.is_of_joining();
        message.secret == peer.shown.word || *joining_turns > 0 && is_of_joining()
    }

    /// Returns the state that messages and writes of peers change.
    #[cfg(test)]
    pub(in crate::internals::fabric) fn peer_state(&self) -> String {
        format!("{:?} {:?} {:?} {:?} {:?}", self.peers, self.life, self.landings, self.acks_pending, self.gathered)
    }

    /// Drops and counts a message or write without the job's secret.
    fn drop_stranger(&mut self, what: &'static str) {
        self.strangers.messages += 1;
        if self.strangers.messages == 1 {
            let why = "it does not carry this job's secret; another job or a stranger sends to this rank's address";
            tracing::warn!(rank = self.rank, "{what} is dropped: {why}. Further ones are only counted");
        }
    }

    /// Drops a write with a wrong tag. A tag has so few bits that it could be guessed, so the job fails after too many.
    fn drop_untagged_write(&mut self) {
        self.drop_stranger("a write");
        self.guesses += 1;
        if self.guesses == MOST_GUESSES {
            let cause =
                format!("{MOST_GUESSES} writes came without this job's tag: a stranger guesses it (see SECURITY.md)");
            self.fail(Failure::Transport { by: self.rank, peer: None, cause });
        }
    }

    fn ack_soon(&mut self, peer: u32) {
        if !std::mem::replace(&mut self.peers[peer as usize].wants_ack, true) {
            self.wanting_ack.push(peer);
        }
    }

    /// Returns the state of a peer's writes with this id.
    fn landing(&mut self, from: u32, write_id: u16) -> &mut Landing {
        let known = self.landings.iter().position(|landing| (landing.from, landing.write_id) == (from, write_id));
        let index = known.unwrap_or_else(|| {
            self.landings.push(Landing { from, write_id, landed: 0, announced: None });
            self.landings.len() - 1
        });
        &mut self.landings[index]
    }

    /// Gives the signal if all writes that it waits for have landed.
    fn complete_landing(&mut self, from: u32, write_id: u16) {
        let enough = |parts: u32| if Fault::SignalBeforeLastPart.is(self.fault) { 1 } else { parts };
        let complete = |landing: &Landing| landing.announced.is_some_and(|said| landing.landed >= enough(said.parts));
        let is_it = |landing: &Landing| (landing.from, landing.write_id) == (from, write_id) && complete(landing);
        let Some(index) = self.landings.iter().position(is_it) else { return };
        let Some(announced) = self.landings.swap_remove(index).announced else { return };
        let Announced { number, channel, signal: (cell, change), ack_now, .. } = announced;
        // The message is from a rank of this world.
        match count(&mut self.peers, (&mut self.acks_pending, &mut self.acks_pending_since), from, number) {
            Receipt::New => {}
            Receipt::Duplicate if Fault::AcknowledgeEarly.is(self.fault) => {}
            Receipt::Duplicate => return,
            Receipt::Invalid => return self.reject_message(from),
        }
        let own = self.channel(channel);
        if own.writable(cell).and_then(|own| own.change(cell, change)).is_none() {
            return self.reject_message(from);
        }
        own.wake();
        if ack_now || self.is_ack_urgent(from) {
            self.ack_soon(from);
        }
    }

    /// Returns whether a peer will soon have no credit without an ack.
    fn is_ack_urgent(&self, peer: u32) -> bool {
        self.peers[peer as usize].received.unacked() >= WINDOW / 2
    }

    pub(super) fn reject_message(&mut self, from: u32) {
        let cause = format!("rank {from} sent a message that makes no sense, as one of another version would");
        self.fail(Failure::Transport { by: self.rank, peer: Some(from), cause });
    }
}

/// The location of a message.
enum Source {
    /// In a message buffer, with this length.
    Buffer(usize, usize),
    /// In a header slot, written by this rank.
    HeaderSlot(u32, [u8; MOST_HEADER]),
}

/// Counts a message that is about to be processed. Returns whether it is new.
fn count(
    peers: &mut [Peer],
    (acks_pending, acks_pending_since): (&mut Vec<u32>, &mut Option<Instant>),
    from: u32,
    number: u32,
) -> Receipt {
    let peer = &mut peers[from as usize];
    let receipt = peer.received.take(number);
    if receipt == Receipt::New && !peer.ack_pending {
        peer.ack_pending = true;
        acks_pending.push(from);
        acks_pending_since.get_or_insert_with(Instant::now);
    }
    receipt
}
