//! What concerns all ranks: exchanges, failure, and the end.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Channel, Content, Data, Engine, Evidence, Failure, MOST_DATA, Outgoing, Peer};

impl Engine {
    /// Gives bytes to an exchange, which is the next.
    pub(in crate::fabric::ofi) fn give(&mut self, turn: u64, mine: &[u8]) {
        self.turn = turn;
        let content = Content::Exchange { turn };
        self.gather(turn, self.rank, mine.to_vec());
        for peer in self.others() {
            let data = if mine.is_empty() { Data::None } else { Data::Bytes(mine.into()) };
            self.post(peer, Outgoing { channel: 0, content, data, token: None });
        }
    }

    pub(super) fn gather(&mut self, turn: u64, rank: u32, data: Vec<u8>) {
        let ranks = self.peers.len();
        self.gathered.entry(turn).or_insert_with(|| vec![None; ranks])[rank as usize] = Some(data);
        // Whoever waits for an exchange sleeps on channel 0.
        self.channel(0).wake();
    }

    /// Ranks that have not given anything to an exchange.
    pub(in crate::fabric::ofi) fn not_gathered(&self, turn: u64) -> Vec<u32> {
        let given = self.gathered.get(&turn);
        let lacks = |rank: &u32| given.is_none_or(|given| given[*rank as usize].is_none());
        (0..self.ranks()).filter(lacks).collect()
    }

    /// What all ranks gave.
    pub(in crate::fabric::ofi) fn take_gathered(&mut self, turn: u64) -> Vec<Vec<u8>> {
        self.gathered.remove(&turn).into_iter().flatten().map(Option::unwrap_or_default).collect()
    }

    // The end of things.

    /// Something that was to reach a peer did not.
    pub(super) fn lost(&mut self, peer: u32, how: &str) {
        self.suspect(peer, Evidence::Unreachable(how.to_owned()));
    }

    /// A peer seems to have ended. What it sent before, and what others say of it, may still be unread.
    pub(in crate::fabric::ofi) fn suspect(&mut self, peer: u32, evidence: Evidence) {
        if !self.peers[peer as usize].gone {
            self.suspects.add(peer, evidence, Instant::now());
        }
    }

    pub(in crate::fabric::ofi) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Whether there is nothing new in that a peer's process has ended.
    pub(in crate::fabric::ofi) fn knows_end_of(&self, peer: u32) -> bool {
        self.peers[peer as usize].gone || self.suspects.has_ended(peer)
    }

    /// After a look at the network: a suspect whose end is believed now is gone if it had left in good order; else it
    /// is dead, and the world fails.
    pub(super) fn judge(&mut self) {
        let Engine { suspects, peers, .. } = self;
        suspects.clear(|peer, evidence| {
            let peer = &peers[peer as usize];
            peer.gone || (peer.heard && matches!(evidence, Evidence::Silent(_)))
        });
        let Some((peer, evidence)) = suspects.judge(Instant::now(), self.idle > 0) else { return };
        match self.peers[peer as usize].left {
            true => self.forget(peer),
            false => self.fail(Failure::Died { peer, how: evidence.to_string() }),
        }
    }

    /// Fails the world, and tells the others.
    pub(in crate::fabric::ofi) fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        let (content, text) = match &failure {
            Failure::Aborted { by, reason } if *by == self.rank => (Content::Abort, reason.clone()),
            Failure::Aborted { by, reason } => (Content::Abort, format!("rank {by}: {reason}")),
            Failure::Died { peer, how } => (Content::Died { rank: *peer }, how.clone()),
        };
        self.fail_quietly(failure);
        let len = text.floor_char_boundary(MOST_DATA);
        for peer in self.others() {
            let data = Data::Bytes(text.as_bytes()[..len].into());
            self.post(peer, Outgoing { channel: 0, content, data, token: None });
        }
    }

    pub(super) fn fail_quietly(&mut self, failure: Failure) {
        if self.failure.is_none() {
            tracing::debug!(rank = self.rank, ?failure, "failed");
            self.failure = Some(failure);
            self.failed.store(true, Ordering::Release);
            self.channels.iter_mut().for_each(Channel::wake);
        }
    }

    /// This rank has no further use for a channel.
    pub(in crate::fabric::ofi) fn close(&mut self, channel: u16) {
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
    pub(super) fn count_closed(&mut self, channel: u16) {
        let (ranks, failed) = (self.ranks(), self.failure.is_some());
        let moves = self.transfers.iter().any(|transfer| transfer.channel == channel && transfer.parts > 0);
        let own = self.channel(channel);
        own.closed += 1;
        // In a world that has failed others may close what this rank still moves.
        if own.closed >= ranks && !failed && !moves {
            own.entries = Vec::new();
        }
    }

    /// Tells everybody that this rank ends in good order.
    pub(in crate::fabric::ofi) fn say_goodbye(&mut self) {
        for peer in self.others() {
            self.post(peer, Outgoing { channel: 0, content: Content::Leave, data: Data::None, token: None });
        }
    }

    /// Tells those who are left that this rank goes now.
    pub(in crate::fabric::ofi) fn go(&mut self) {
        for peer in self.others() {
            if !self.peers[peer as usize].gone {
                self.post(peer, Outgoing { channel: 0, content: Content::Gone, data: Data::None, token: None });
            }
        }
    }

    /// A peer, which has left, deals with nothing any more. What was written to it is done, as far as
    /// anybody can tell; whoever waits for an answer waits in vain.
    pub(super) fn forget(&mut self, from: u32) {
        let peer = &mut self.peers[from as usize];
        (peer.left, peer.gone) = (true, true);
        let waiting = peer.outbox.drain(..).map(|outgoing| outgoing.token.map(|token| (outgoing.channel, token)));
        let done: Vec<_> = peer.sent.give_up().chain(waiting).flatten().collect();
        for (channel, token) in done {
            self.channel(channel).complete(token, 0);
        }
        self.channel(0).wake();
        if self.asked.iter().any(|asked| asked.peer == from) {
            self.fail(Failure::Died { peer: from, how: "it had left when it was asked for something".to_owned() });
        }
    }

    /// Whether nobody needs this rank any more: all have left.
    pub(in crate::fabric::ofi) fn may_go(&self) -> bool {
        self.failure.is_some() || self.others().all(|peer| self.peers[peer as usize].left)
    }

    /// Whether everybody has dealt with all that this rank had to say; in a world that has failed,
    /// whether the news is on its way.
    pub(in crate::fabric::ofi) fn is_heard_by_all(&self) -> bool {
        let failed = self.failure.is_some();
        let heard = |Peer { sent, outbox, .. }: &Peer| match failed {
            true => self.wire.has_sent_all() && outbox.iter().all(|outgoing| outgoing.content.is_counted()),
            false => sent.is_empty() && outbox.is_empty(),
        };
        self.peers.iter().all(heard)
    }

    pub(in crate::fabric::ofi) fn has_left(&self, peer: u32) -> bool {
        self.peers[peer as usize].left
    }

    /// Whether a peer was heard of since the last call.
    pub(in crate::fabric::ofi) fn was_heard(&mut self, peer: u32) -> bool {
        std::mem::take(&mut self.peers[peer as usize].heard)
    }

    pub(in crate::fabric::ofi) fn ping(&mut self, peer: u32) {
        // One that cannot be sent is as good as one that gets no answer.
        if self.peers[peer as usize].outbox.is_empty() {
            self.post(peer, Outgoing { channel: 0, content: Content::Ping, data: Data::None, token: None });
        }
    }
}
