//! Boards: synchronous collectives of any length, for the ranks of a world; and messages between two of them ([`pairs`]).
//!
//! Each rank has a *board* that the others read: it publishes its part of a step there, tells its readers, and takes
//! theirs. All collectives are such steps ([`plan`]); [`pace`] says when memory may be used again. No rank is in the
//! middle: data goes from the board of its rank to the memory of its reader.
//!
//! Ranks that share memory read a board in place, and a reduction reads all of them at once. From other hosts pieces are
//! read into a place for each rank first.
//!
//! Polls that never block drive a call ([`Call::poll`]): those of an executor or of a test, over any fabric.
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

use crate::error::{Error, Result};
use crate::fabric::Endpoint;
use crate::fault::Fault;
use crate::reduce::Gathered;
use pace::Pace;
use peers::{Memory, Peers};
use plan::Readers;

/// Bytes of callers' data that the [synchronous collectives](crate::World#synchronous-collectives) of a rank have copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copies {
    /// From memory of the caller to where other ranks read, results of reductions included.
    pub into_boards: u64,
    /// From there to memory of the caller, on any rank. What a reduction reads is not copied.
    pub out_of_boards: u64,
}

/// This rank's board, and its way to those of the others.
#[derive(Debug)]
pub(crate) struct Board {
    me: u32,
    sizes: Sizes,
    peers: Peers,
    /// The slots; and where pieces from other hosts are read to: those to be copied, and then those to be reduced.
    memory: Memory,
    pace: Pace,
    /// Of all calls so far.
    history: u64,
    copies: Copies,
    /// Of a call: the ranks of which it has taken, or begun to read, what they published in the step.
    met: Vec<bool>,
    sources: Gathered,
    /// Results that are published in the next step.
    results: Vec<u64>,
    /// A call failed: the ranks are out of step.
    is_broken: bool,
}

impl Board {
    /// Makes a board, and what [`Board::meet`] of the other ranks is to be told.
    ///
    /// # Errors
    /// There is no memory for it.
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

    /// Gets to know what all ranks have told, in rank order.
    ///
    /// # Errors
    /// A rank told something else.
    pub(crate) fn meet(&mut self, told: &[Vec<u8>]) -> Result<()> {
        self.peers.meet(told)
    }

    /// A rank that has not taken what the slots of this step hold.
    fn unfinished(&mut self, has_data: bool) -> Option<u32> {
        let Board { pace, peers, .. } = self;
        pace.unfinished(has_data, |rank, word| peers.has_told(rank, word))
    }

    /// Tells the ranks that wait for it what this one has taken.
    fn acknowledge(&mut self) -> Result<()> {
        let Board { pace, peers, .. } = self;
        pace.acknowledge(|rank, word| peers.tell(rank, word))?;
        peers.wake();
        Ok(())
    }

    /// This rank has published its part of a step: wakes the readers, and tells them where marks do not.
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

    /// Whether a call can be made.
    ///
    /// # Errors
    /// An earlier one failed.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        let problem = "an earlier collective of this world failed, so the ranks are out of step; start a new world";
        if self.is_broken { Err(Error::Usage { rank: self.me, operation, problem }) } else { Ok(()) }
    }

    /// No call can be made from now on, unless [`Board::resume`] says that the one that goes on is done.
    pub(crate) fn break_off(&mut self) {
        self.is_broken = true;
    }

    /// A call is done.
    pub(crate) fn resume(&mut self) {
        self.is_broken = false;
    }
}
