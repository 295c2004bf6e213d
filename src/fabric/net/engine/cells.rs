//! Puts, signals and atomics that devices carry out: no processor of the target takes part.
//!
//! A change of a cell goes to its home as an operation on memory, behind the data that it announces.
//! Immediate data follows, which names the channel: it ends a wait there, and changes nothing else
//! (`wakes.rs`). So a rank that is stopped misses nothing: it finds all changes in its memory.

use super::{Act, CellChange, Engine, OnComplete, Registered, Transfer, Way, Wire};
use crate::fabric::net::wire::Atomicity;
use crate::fabric::{At, Atomic, Change, Posted, Signal, cell_behind};

impl Change {
    fn by_device(self) -> CellChange {
        match self {
            Change::Set(value) => CellChange::Set(value),
            Change::Add(value) => CellChange::Atomic(Atomic::FetchAdd(value)),
        }
    }
}

impl<W: Wire> Engine<W> {
    /// Whether devices change the cells of peers.
    #[inline]
    pub(super) fn is_by_device(&self) -> bool {
        self.link.wire.atomicity() != Atomicity::Processor
    }

    /// Bytes in front of a signal that goes to one cache line with its data, right behind it: then one write brings
    /// both, and no processor sees the signal without the data.
    pub(super) fn in_one_write((to, len): (At, usize), cell: At, change: CellChange) -> Option<usize> {
        let follows = |&before: &usize| cell == At { offset: to.offset + before, ..to };
        let sets = matches!(change, CellChange::Set(_));
        cell_behind(to.offset, len).filter(|before| len > 0 && sets && follows(before))
    }

    /// Whether this rank's processor may change a cell of its own with others at the same time. No
    /// peer can reach a region that is local.
    pub(super) fn may_change_own(&self, channel: u16, at: At) -> bool {
        let own = self.channels[usize::from(channel)].own(at.region);
        let is_shared = own.is_some_and(|own| own.access().is_shared());
        self.link.wire.atomicity() != Atomicity::Device || !is_shared
    }

    /// Writes data to a peer, if there is some, and gives a signal, if there is one.
    pub(super) fn put_by_device(
        &mut self,
        (channel, token, peer): (u16, u64, u32),
        (from, to, len): (At, At, usize),
        signal: Option<Signal>,
    ) -> Posted {
        let act = match signal {
            None if len == 0 => return Posted::Done(0),
            None => Act::Move(Way::Out),
            Some(Signal { at, change, .. }) => {
                // A rank wakes itself when the operation has completed.
                let wake = if peer == self.rank { None } else { self.wake_behind(channel, peer, at) };
                Act::Change { at, change: change.by_device(), wake }
            }
        };
        self.transfer(Transfer::new((channel, token, peer), "put", OnComplete::Complete), (from, to, len), act);
        Posted::Pending
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
