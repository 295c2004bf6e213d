//! What the ranks of a job know, and others do not.
//!
//! Rank 0 draws it and tells the others where they meet. It crosses the network in the clear, in every message: it
//! stops those who have to guess, not those who listen.
#![forbid(unsafe_code)]

use crate::error::Result;
use crate::random::draw;

/// What every message of a job carries, and every write that tells its target of itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobSecret {
    /// In the header of each message.
    pub(super) word: u64,
    /// In what a write brings to the queue of its target, where that has room. Drawn apart, so that whoever finds these
    /// few bits by trying has none of the word.
    pub(super) tag: u32,
}

impl JobSecret {
    /// One that nobody has drawn before.
    pub(super) fn draw(rank: u32) -> Result<Self> {
        Ok(JobSecret { word: u64::from_le_bytes(draw(rank)?), tag: u32::from_le_bytes(draw(rank)?) })
    }
}

impl std::fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobSecret")
    }
}
