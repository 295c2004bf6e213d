//! Atomics as messages, which the target's processor answers. `cells.rs` has the atomics of devices.

use super::{Content, Data, Location, NetEngine, Outgoing, Wire};
use crate::fabric::Atomic;

/// An atomic whose answer is pending.
#[derive(Debug)]
struct PendingAtomic {
    id: u32,
    peer: u32,
    channel: u16,
    token: u64,
}

/// The atomics that this rank has asked of its peers.
#[derive(Debug, Default)]
pub(super) struct SoftwareAtomics {
    pending: Vec<PendingAtomic>,
    last_id: u32,
}

impl SoftwareAtomics {
    /// Returns whether a peer's answer is pending.
    pub(super) fn wait_for(&self, peer: u32) -> bool {
        self.pending.iter().any(|atomic| atomic.peer == peer)
    }

    /// Returns whether an answer in a channel is pending.
    pub(super) fn are_in(&self, channel: u16) -> bool {
        self.pending.iter().any(|atomic| atomic.channel == channel)
    }
}

impl<W: Wire> NetEngine<W> {
    /// Asks a peer to change a cell.
    pub(super) fn ask_atomic(&mut self, channel: u16, peer: u32, (at, atomic): (Location, Atomic), token: u64) {
        let SoftwareAtomics { pending, last_id } = &mut self.atomics;
        *last_id = last_id.wrapping_add(1);
        let id = *last_id;
        pending.push(PendingAtomic { id, peer, channel, token });
        let content = Content::Atomic { at, atomic, id };
        self.post(peer, Outgoing { channel, content, data: Data::None, token: None });
    }

    /// Changes a cell for a peer and answers with its old value. `None` if the peer may not ask for that.
    pub(super) fn answer_atomic(
        &mut self,
        channel: u16,
        from: u32,
        (at, atomic): (Location, Atomic),
        id: u32,
    ) -> Option<()> {
        let own = self.channels.get(usize::from(channel)).and_then(|own| own.writable(at));
        let value = own.and_then(|own| own.atomic(at, atomic))?;
        let content = Content::Value { id, value };
        self.post(from, Outgoing { channel, content, data: Data::None, token: None });
        Some(())
    }

    /// Completes an atomic that a peer has answered.
    pub(super) fn complete_atomic(&mut self, id: u32, value: u64) {
        if let Some(index) = self.atomics.pending.iter().position(|atomic| atomic.id == id) {
            let PendingAtomic { channel, token, .. } = self.atomics.pending.swap_remove(index);
            self.channel(channel).complete(token, value);
        }
    }

    /// Breaks off the atomics of a peer that has ended and answers no more.
    pub(super) fn break_off_atomics(&mut self, peer: u32) {
        let (unanswered, pending): (Vec<_>, _) =
            std::mem::take(&mut self.atomics.pending).into_iter().partition(|it| it.peer == peer);
        self.atomics.pending = pending;
        for PendingAtomic { channel, .. } in unanswered {
            self.channel(channel).break_off("atomic", peer);
        }
    }
}
