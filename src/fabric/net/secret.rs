//! The secret that the ranks of a job share.
//!
//! Rank 0 draws it and tells the others at the meeting. It crosses the network in the clear, in
//! every message: it stops strangers that guess, not those that listen.
#![forbid(unsafe_code)]

use crate::error::Result;
use crate::random::draw;

/// The secret that every message of a job carries, and its tag in immediate data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobSecret {
    /// Travels in the header of each message.
    pub(in crate::fabric) word: u64,
    /// Travels in immediate data, where that has bytes for it. It is drawn apart from the word, so
    /// that a stranger that finds these few bits by trying learns nothing of the word.
    pub(in crate::fabric) tag: u32,
}

impl JobSecret {
    /// All of it.
    pub(super) fn bytes(&self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.word.to_le_bytes());
        bytes[8..].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    /// Draws a new secret.
    pub(super) fn draw(rank: u32) -> Result<Self> {
        Ok(JobSecret { word: u64::from_le_bytes(draw(rank)?), tag: u32::from_le_bytes(draw(rank)?) })
    }
}

impl std::fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobSecret")
    }
}
