//! Mailboxes for the exchanges of a world's set-up.

use crate::sync::{AtomicU64, Ordering, announce, full_fence, look};

/// The maximum number of bytes that a rank posts in a turn.
pub(super) const MAILBOX: usize = if cfg!(loom) { 16 } else { crate::fabric::MOST_EXCHANGED };

/// One rank's post in a turn of an exchange. Turns alternate between two mailboxes, so that a fast
/// rank's next post does not overwrite what a slow rank has not read. A rank cannot be two turns
/// ahead.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub(super) struct Mailbox {
    turn: AtomicU64,
    len: AtomicU64,
    data: [AtomicU64; MAILBOX / 8],
}

impl Mailbox {
    pub(super) fn turn(&self) -> u64 {
        look(&self.turn)
    }

    pub(super) fn post(&self, turn: u64, data: &[u8]) {
        store_bytes(&self.data, data);
        self.len.store(data.len() as u64, Ordering::Relaxed);
        announce(&self.turn, turn);
        // Of the last two ranks to post, at least one sees both posts when it polls next.
        full_fence();
    }

    pub(super) fn read(&self) -> Vec<u8> {
        load_bytes(&self.data, self.len.load(Ordering::Relaxed) as usize)
    }
}

pub(super) fn store_bytes(cells: &[AtomicU64], bytes: &[u8]) {
    for (cell, chunk) in cells.iter().zip(bytes.chunks(8)) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        cell.store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
}

pub(super) fn load_bytes(cells: &[AtomicU64], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = cells.iter().flat_map(|cell| cell.load(Ordering::Relaxed).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}
