//! Puts, signals and atomics that devices carry out, without a processor of the target.
//!
//! A change of a cell goes to its home as an operation on memory, after the data that it announces. Immediate data
//! follows, which names the channel: it ends a wait there, and changes nothing else (`wakes.rs`). So a rank that is
//! stopped misses nothing: it finds all changes in its memory.

use super::{Act, CellChange, NetEngine, OnComplete, Registered, Transfer, Way, Wire};
use crate::fabric::net::wire::Atomicity;
use crate::fabric::{At, Atomic, Change, Posted, Signal, cell_behind};

impl Change {
    /// Returns what a device does for this change.
    fn by_device(self, in_order: bool) -> CellChange {
        match self {
            Change::Advance { to: value, .. } if in_order => CellChange::Set(value),
            Change::Set(value) => CellChange::Set(value),
            Change::Add(_) | Change::Advance { .. } => CellChange::Atomic(Atomic::FetchAdd(self.value())),
        }
    }
}

impl<W: Wire> NetEngine<W> {
    /// Returns whether devices change the cells of peers.
    #[inline]
    pub(super) fn is_by_device(&self) -> bool {
        self.link.is_by_device()
    }

    /// Returns the distance of a signal from the start of its data, if both lie in one cache line with the signal right
    /// after the data. One write then brings both, where [writes are in order](Wire::writes_in_order), and no processor
    /// sees the signal without the data.
    pub(super) fn in_one_write((to, len): (At, usize), cell: At, change: CellChange) -> Option<usize> {
        let follows = |&before: &usize| cell == At { offset: to.offset + before, ..to };
        let sets = matches!(change, CellChange::Set(_));
        cell_behind(to.offset, len).filter(|before| len > 0 && sets && follows(before))
    }

    /// Returns whether this rank's processor may change a cell of its own: no peer changes it at the same time, or none
    /// by a device.
    pub(super) fn may_change_own(&self, channel: u16, at: At) -> bool {
        let own = self.channels[usize::from(channel)].own(at.region);
        let is_shared = own.is_some_and(|own| own.access().allows_writing());
        self.link.wire.atomicity() != Atomicity::Device || !is_shared
    }

    /// Writes data to a peer, if there is any, and gives a signal, if there is one.
    pub(super) fn put_by_device(
        &mut self,
        (channel, token, peer): (u16, u64, u32),
        (from, to, len): (At, At, usize),
        signal: Option<Signal>,
    ) -> Posted {
        let (act, then) = match signal {
            None if len == 0 => return Posted::Done(0),
            None => (Act::Move(Way::Out), OnComplete::Complete),
            Some(Signal { at, change, .. }) if self.overtakes(len, change) => {
                (Act::Move(Way::Out), OnComplete::Change(at, change))
            }
            Some(Signal { at, change, .. }) => (self.change_with_wake(channel, peer, at, change), OnComplete::Complete),
        };
        self.transfer(Transfer::new((channel, token, peer), "put", then), (from, to, len), act);
        Posted::Pending
    }

    /// Returns whether a signal right after the last part would overtake some of its data. A signal that advances a
    /// cell stays in order with others that do, and with its data, which then goes by one rail.
    fn overtakes(&self, len: usize, change: Change) -> bool {
        match W::IN_ORDER {
            true => self.link.rails(len) > 1 && !matches!(change, Change::Advance { .. }),
            false => len > self.link.limits.part,
        }
    }

    fn change_with_wake(&mut self, channel: u16, peer: u32, at: At, change: Change) -> Act {
        // A rank wakes itself when the operation has completed.
        let wake = if peer == self.rank { None } else { self.wake_behind(channel, peer, at) };
        Act::Change { at, change: change.by_device(W::IN_ORDER), wake }
    }

    /// Gives the signal of a put whose parts have all landed.
    pub(super) fn change_behind(&mut self, (channel, token, peer): (u16, u64, u32), at: At, change: Change) {
        if self.life.has_ended(peer) {
            // The peer can no longer see it.
            return self.channel(channel).complete(token, 0);
        }
        let act = self.change_with_wake(channel, peer, at, change);
        self.transfer(Transfer::new((channel, token, peer), "put", OnComplete::Complete), (at, at, 0), act);
    }

    /// Gives a signal.
    pub(super) fn signal_by_device(&mut self, operation: (u16, u64, u32), signal: Signal) -> Posted {
        self.put_by_device(operation, (signal.at, signal.at, 0), Some(signal))
    }

    /// Changes a cell and fetches its old value.
    pub(super) fn atomic_by_device(&mut self, (channel, token, peer): (u16, u64, u32), at: At, atomic: Atomic) {
        let act = Act::Change { at, change: CellChange::Atomic(atomic), wake: None };
        self.transfer(Transfer::new((channel, token, peer), "atomic", OnComplete::Fetch), (at, at, 0), act);
    }
}
