//! Boards: synchronous collectives of any length, for the ranks of a world; and messages between two of them ([`pairs`]).
//!
//! Each rank has a *board*, which the others read. It publishes its part of a step there, tells its readers, and takes
//! what the others published. All collectives consist of such steps ([`plan`]); [`pace`] decides when memory may be
//! reused. No rank is in the middle: data goes from the board of its rank to the memory of its reader.
//!
//! Ranks that share memory read a board in place, and a reduction reads all of them at once. Pieces from other hosts
//! are first read into a buffer for each rank.
//!
//! Polls that never block drive a call ([`Call::poll`]). An executor or a test makes the polls, over any fabric.
#![forbid(unsafe_code)]

mod call;
mod layout;
mod pace;
mod pairs;
mod peers;
mod plan;
#[cfg(test)]
#[cfg(earlybird_internals)]
mod tests;
mod work;

pub(crate) use call::{Call, Data, What, place};
pub(crate) use layout::Sizes;
pub(crate) use pairs::{Pairs, Transfer};
pub(crate) use plan::{Blocks, Kind, is_small};
pub(crate) use work::CallWork;

use crate::error::{Error, Misuse, Result};
use crate::fabric::Endpoint;
use crate::fault::Fault;
use crate::reduce::Gathered;
use pace::Pace;
use peers::{Memory, Peers};
use plan::Readers;

/// Why no call can be made after one that failed.
pub(crate) const BROKEN: &str =
    "an earlier collective of this world failed, so the ranks are out of step; start a new world";

/// Bytes of callers' data that the [synchronous collectives](crate::World#synchronous-collectives) of a rank have copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copies {
    /// From memory of the caller to memory that other ranks read. Results of reductions count, too.
    pub into_boards: u64,
    /// From boards, of any rank, to memory of the caller. What a reduction reads is not copied.
    pub out_of_boards: u64,
}

/// This rank's board, and its access to the boards of the others.
#[derive(Debug)]
pub(crate) struct Board {
    me: u32,
    sizes: Sizes,
    peers: Peers,
    /// The slots, and the buffers for pieces from other hosts: first those to be copied, then those to be reduced.
    memory: Memory,
    pace: Pace,
    /// A digest of all calls so far.
    history: u64,
    copies: Copies,
    /// For the call in progress: the ranks whose part of the step this rank has taken, or begun to read.
    met: Vec<bool>,
    sources: Gathered,
    /// Results to publish in the next step.
    results: Vec<u64>,
    /// Whether a call failed, so that the ranks are out of step.
    is_broken: bool,
}

impl Board {
    /// Makes a board. Also returns what this rank must tell the [`Board::meet`] of the other ranks.
    ///
    /// # Errors
    /// There is too little memory.
    pub(crate) fn new(endpoint: Box<dyn Endpoint>, me: u32, sizes: Sizes) -> Result<(Self, Vec<u8>)> {
        let places = (!sizes.shared).then_some(2 * sizes.slot());
        let (peers, memory, told) = Peers::new(endpoint, me, sizes.ranks, sizes.board(), places)?;
        let board = Board {
            me,
            sizes,
            peers,
            memory,
            pace: Pace::new(me, sizes, Fault::chosen()),
            history: 0,
            copies: Copies::default(),
            met: Vec::new(),
            sources: Gathered::default(),
            results: Vec::new(),
            is_broken: false,
        };
        Ok((board, told))
    }

    /// Takes what all ranks have told about their boards, in rank order.
    ///
    /// # Errors
    /// A rank told something else.
    pub(crate) fn meet(&mut self, told: &[Vec<u8>]) -> Result<()> {
        self.peers.meet(told)
    }

    /// Returns a rank that has not taken what the slots of this step hold, if there is one.
    fn unfinished(&mut self, has_data: bool) -> Option<u32> {
        let Board { pace, peers, .. } = self;
        pace.unfinished(has_data, |rank, word| peers.has_told(rank, word))
    }

    /// Tells the ranks that wait for it what this rank has taken.
    fn acknowledge(&mut self) -> Result<()> {
        let Board { pace, peers, .. } = self;
        pace.acknowledge(|rank, word| peers.tell(rank, word))?;
        peers.wake();
        Ok(())
    }

    /// Records that this rank has published its part of a step. Wakes the readers, and tells those of them that see no
    /// marks.
    fn announce(&mut self, readers: Readers, has_data: bool) -> Result<()> {
        let Board { pace, peers, sizes, .. } = self;
        pace.publish(readers, has_data, |rank, word| match sizes.shared {
            true => {
                peers.have_marked();
                Ok(())
            }
            false => peers.tell(rank, word),
        })?;
        peers.wake();
        Ok(())
    }

    pub(crate) fn copies(&self) -> Copies {
        self.copies
    }

    /// Checks that a call can be made.
    ///
    /// # Errors
    /// An earlier call failed.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        let problem = Misuse::OutOfStep(BROKEN);
        if self.is_broken { Err(Error::Usage { rank: self.me, operation, problem }) } else { Ok(()) }
    }

    /// Makes all later calls fail, unless [`Board::resume`] ends the call in progress.
    pub(crate) fn break_off(&mut self) {
        self.is_broken = true;
    }

    /// Ends a call that succeeded.
    pub(crate) fn resume(&mut self) {
        self.is_broken = false;
    }
}
