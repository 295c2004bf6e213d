//! When a rank may use a slot of its board again, and what it tells the others about that.
//!
//! Ranks number their steps alike. Each rank tells each other one *word*, which only grows: 2s says "I have published
//! step s, and have taken what you published before it", 2s + 1 says "I have taken what you published up to step s". So
//! ranks that publish to each other in every step tell nothing else. Where all ranks share memory, the marks of what a rank
//! publishes ([`layout`](super::layout)) say what the even words would, and it tells the odd ones only.
//!
//! A slot is used again when all readers have taken what was in it: a slot for headers, and one for data if the step has
//! some outside of headers. A rank that has nothing to publish says so at most half as many steps after it has taken
//! something as there are slots for data, of which there are never more than for headers. So of the ranks that wait for each other,
//! the one with the fewest steps can go on: what it publishes into has been taken by ranks that have made more steps, and
//! what it takes has been published by them.
#![forbid(unsafe_code)]

use super::layout::{Sizes, StepSlot};
use super::plan::Readers;
use crate::error::Result;
use crate::fault::Fault;

/// Where a rank stands towards the others.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    me: u32,
    /// The step that it makes, from 1, and the slots of it.
    step: u64,
    slot: StepSlot,
    /// The first step in which it took something of each rank and has not said so; 0: it has said so.
    owed: Vec<u64>,
    /// No rank is owed an answer since before this step.
    oldest: u64,
    /// Who reads what it published in the last steps: in each slot for headers.
    readers: Vec<Readers>,
    /// For each slot for data, the last step that used it, or 0, and who reads that.
    data: Vec<(u64, Readers)>,
    fault: Option<Fault>,
}

impl Pace {
    pub(super) fn new(me: u32, sizes: Sizes, fault: Option<Fault>) -> Self {
        let owed = vec![0; sizes.ranks as usize];
        let (readers, data) =
            (vec![Readers::None; sizes.lines as usize], vec![(0, Readers::None); sizes.slots as usize]);
        let slot = StepSlot { line: 1 % sizes.lines, data: 1 % sizes.slots };
        Pace { me, step: 1, slot, owed, oldest: u64::MAX, readers, data, fault }
    }

    /// The mistake that the board makes.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The number of the step, as all ranks count.
    pub(super) fn step(&self) -> u64 {
        self.step
    }

    /// The slots of this step.
    pub(super) fn slot(&self) -> StepSlot {
        self.slot
    }

    /// The slots of the step after this one.
    pub(super) fn next_slot(&self) -> StepSlot {
        let next = |slot: u32, slots: usize| if slot as usize + 1 == slots { 0 } else { slot + 1 };
        StepSlot { line: next(self.slot.line, self.readers.len()), data: next(self.slot.data, self.data.len()) }
    }

    /// A rank that has not taken what the slots of this step hold; `has_data`: whether it takes one for data. `heard`:
    /// whether a rank has told a word.
    #[inline]
    pub(super) fn unfinished(&self, has_data: bool, mut heard: impl FnMut(u32, u64) -> bool) -> Option<u32> {
        let mut behind = |step: u64, readers: Readers, overlooks: Fault| {
            let needed = if overlooks.is(self.fault) { 0 } else { 2 * step + 1 };
            let mut lacks = |rank: u32| rank != self.me && !heard(rank, needed);
            match readers {
                Readers::None => None,
                Readers::One(rank) => Some(rank).filter(|&rank| lacks(rank)),
                Readers::All => (0..self.owed.len() as u32).find(|&rank| lacks(rank)),
            }
        };
        let before = self.step.saturating_sub(self.readers.len() as u64);
        let (step, readers) = if has_data { self.data[self.slot.data as usize] } else { (0, Readers::None) };
        let line = behind(before, self.readers[self.slot.line as usize], Fault::ReuseBoardLine);
        line.or_else(|| behind(step, readers, Fault::ReuseBoardSlot))
    }

    /// This rank has published its part of the step, with data outside of headers or not: its readers are told.
    ///
    /// # Errors
    /// The first of `tell`, which gets ranks and their words.
    pub(super) fn publish(
        &mut self,
        readers: Readers,
        has_data: bool,
        mut tell: impl FnMut(u32, u64) -> Result<()>,
    ) -> Result<()> {
        let (me, ranks, word) = (self.me, self.owed.len() as u32, 2 * self.step);
        self.readers[self.slot.line as usize] = readers;
        if has_data {
            self.data[self.slot.data as usize] = (self.step, readers);
        }
        let mut to = |rank: u32| {
            self.owed[rank as usize] = 0;
            tell(rank, word)
        };
        match readers {
            Readers::None => Ok(()),
            Readers::One(rank) => to(rank),
            // Each rank begins with another one.
            Readers::All => (me + 1..ranks).chain(0..me).try_for_each(to),
        }
    }

    /// Says what it has to say about steps that lie far enough behind, before it waits for anything in this one.
    ///
    /// # Errors
    /// As [`Pace::publish`].
    #[inline]
    pub(super) fn acknowledge(&mut self, mut tell: impl FnMut(u32, u64) -> Result<()>) -> Result<()> {
        let patience = self.data.len() as u64 / 2;
        if self.step < self.oldest.saturating_add(patience) || Fault::NeverAcknowledge.is(self.fault) {
            return Ok(());
        }
        self.oldest = u64::MAX;
        for (rank, owed) in (0..).zip(&mut self.owed) {
            match *owed {
                0 => {}
                step if self.step >= step + patience => {
                    *owed = 0;
                    // It has taken all that was published before this step.
                    tell(rank, 2 * self.step - 1)?;
                }
                step => self.oldest = self.oldest.min(step),
            }
        }
        Ok(())
    }

    /// The word of a rank that has published its part of the step.
    pub(super) fn published(&self) -> u64 {
        if Fault::TakeUnpublished.is(self.fault) { 0 } else { 2 * self.step }
    }

    /// This rank has taken what `rank` published in the step.
    pub(super) fn take(&mut self, rank: u32) {
        let owed = &mut self.owed[rank as usize];
        if *owed == 0 {
            *owed = self.step;
        }
        self.oldest = self.oldest.min(self.step);
    }

    /// The step is made.
    pub(super) fn end(&mut self) {
        self.step += 1;
        self.slot = self.next_slot();
    }
}
