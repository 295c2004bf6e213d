//! The record of a world's failure, which the first rank that fails the world writes once.

use super::mailbox::{load_bytes, store_bytes};
use crate::error::text_of;
use crate::fabric::failure::Failure;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The number of cells for the reason; a longer text is cut.
const TEXT: usize = if cfg!(loom) { 1 } else { 32 };

#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub(super) struct FailureCell {
    /// 0: none, 1: being written, 2: aborted, 3: died.
    state: AtomicU32,
    rank: AtomicU32,
    len: AtomicU64,
    text: [AtomicU64; TEXT],
}

impl FailureCell {
    /// Records the failure unless there is one already.
    pub(super) fn set(&self, failure: &Failure) {
        if self.state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        let (state, rank, text) = match failure {
            Failure::Aborted { by, reason } | Failure::Transport { by, cause: reason, .. } => (2, *by, reason),
            Failure::Died { peer, how } => (3, *peer, how),
        };
        let len = text.floor_char_boundary(self.text.len() * 8);
        store_bytes(&self.text, &text.as_bytes()[..len]);
        self.len.store(len as u64, Ordering::Relaxed);
        self.rank.store(rank, Ordering::Relaxed);
        self.state.store(state, Ordering::Release);
    }

    pub(super) fn get(&self) -> Option<Failure> {
        let state = self.state.load(Ordering::Acquire);
        if state < 2 {
            return None;
        }
        let text = load_bytes(&self.text, self.len.load(Ordering::Relaxed) as usize);
        let text = text_of(&text);
        let rank = self.rank.load(Ordering::Relaxed);
        Some(if state == 2 {
            Failure::Aborted { by: rank, reason: text }
        } else {
            Failure::Died { peer: rank, how: text }
        })
    }
}
