//! What each rank publishes and takes in each step of a collective. Pure: all ranks work it out by themselves.
//!
//! A rank's data is divided into *blocks*, and a step moves a *chunk* of every block. What a rank publishes in a step lies
//! in a *slot* of its board, as *pieces*: one for all its readers, or one for each rank and, in reductions, one more for
//! this rank's result of the step before.
#![forbid(unsafe_code)]

use std::ops::Range;

use super::layout::{Layout, Sizes};
use crate::fabric::CACHE_LINE;

/// Most bytes that all ranks together give to a reduction in which each rank reads everything.
const FLAT: usize = 16 << 10;

/// Whether a reduction is one in which each rank reads everything; `block` bytes of each rank.
pub(crate) fn is_small(block: usize, ranks: u32) -> bool {
    block.saturating_mul(ranks as usize) <= FLAT || ranks == 1
}

/// What a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The root's data to all.
    Broadcast,
    /// A block of each rank to the root.
    Gather,
    /// A block of each rank to all.
    AllGather,
    /// A block of the root to each rank.
    Scatter,
    /// A block of each rank to each rank.
    AllToAll,
    /// The reduction of all ranks' data to the root.
    Reduce,
    /// A block of the reduction to each rank.
    ReduceScatter,
    /// The reduction to all.
    AllReduce,
    /// A block of each rank to all, about a reduction of symmetric memory: where that lies, and then that a part is done.
    Symmetric,
}

impl Kind {
    pub(super) const EVERY: [(Kind, &'static str); 9] = [
        (Kind::Broadcast, "broadcast"),
        (Kind::Gather, "gather"),
        (Kind::AllGather, "all_gather"),
        (Kind::Scatter, "scatter"),
        (Kind::AllToAll, "all_to_all"),
        (Kind::Reduce, "reduce"),
        (Kind::ReduceScatter, "reduce_scatter"),
        (Kind::AllReduce, "all_reduce"),
        (Kind::Symmetric, "all_reduce of symmetric memory"),
    ];

    /// The kind with a number, if there is one, and its name.
    pub(super) fn numbered(number: u64) -> Option<(Kind, &'static str)> {
        Kind::EVERY.into_iter().find(|(kind, _)| *kind as u64 == number)
    }

    /// Whether element type and reduction are part of what a call is.
    pub(super) fn is_reduction(self) -> bool {
        matches!(self, Kind::Reduce | Kind::ReduceScatter | Kind::AllReduce | Kind::Symmetric)
    }

    /// The root, if one rank differs from the others; otherwise 0.
    pub(super) fn of_root(self, root: u32) -> u32 {
        if self.has_root() { root } else { 0 }
    }

    /// Whether one rank differs from the others.
    fn has_root(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Gather | Kind::Scatter | Kind::Reduce)
    }
}

/// The ranks that read what a rank publishes in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) enum Readers {
    #[default]
    None,
    One(u32),
    All,
}

/// A collective call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallPlan {
    kind: Kind,
    root: u32,
    me: u32,
    ranks: u32,
    /// A rank publishes a piece for each rank.
    is_split: bool,
    /// Bytes of the largest block, and of all blocks.
    block: usize,
    total: usize,
    /// Steps in which blocks move.
    chunks: usize,
    layout: Layout,
}

/// Where blocks lie in a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks<'a> {
    /// One after the other, all of the plan's length but the last ones.
    Even,
    /// Block i begins at the i-th place and ends at the next.
    Bounds(&'a [usize]),
}

impl CallPlan {
    /// A call with `block` bytes of the largest block: of what a rank contributes, or of what goes to each rank.
    pub(super) fn new(sizes: Sizes, kind: Kind, root: u32, me: u32, block: usize) -> Self {
        let (ranks, whole) = (sizes.ranks as usize, matches!(kind, Kind::Reduce | Kind::AllReduce));
        let is_flat =
            whole && is_small(block, sizes.ranks) && (block.saturating_mul(ranks) <= sizes.slot() || ranks == 1);
        let is_split = matches!(kind, Kind::Scatter | Kind::AllToAll | Kind::ReduceScatter) || whole && !is_flat;
        let (block, total) = match whole && is_split {
            true => (block.div_ceil(ranks).next_multiple_of(CACHE_LINE), block),
            false => (block, block.saturating_mul(ranks)),
        };
        let layout = sizes.layout(is_split, block);
        let chunks = if block <= layout.chunk() { 1 } else { block.div_ceil(layout.chunk()) };
        let root = kind.of_root(root);
        CallPlan { kind, root, me, ranks: sizes.ranks, is_split, block, total, chunks, layout }
    }

    pub(super) fn me(&self) -> u32 {
        self.me
    }

    pub(super) fn root(&self) -> u32 {
        self.root
    }

    /// Whether results of a step are published in the next one.
    fn has_results(&self) -> bool {
        matches!(self.kind, Kind::Reduce | Kind::AllReduce) && self.is_split
    }

    pub(super) fn steps(&self) -> usize {
        self.chunks + usize::from(self.has_results())
    }

    /// The ranks that read what `rank` publishes in a step.
    pub(super) fn readers(&self, rank: u32, step: usize) -> Readers {
        let to_root = if rank == self.root { Readers::None } else { Readers::One(self.root) };
        match self.kind {
            _ if self.ranks == 1 => Readers::None,
            Kind::Broadcast | Kind::Scatter if rank == self.root => Readers::All,
            Kind::Broadcast | Kind::Scatter => Readers::None,
            Kind::Gather => to_root,
            Kind::Reduce if !self.is_split || step == self.chunks => to_root,
            _ => Readers::All,
        }
    }

    /// Whether this rank takes something of what `rank` publishes in a step.
    pub(super) fn takes_from(&self, rank: u32, step: usize) -> bool {
        rank != self.me
            && match self.readers(rank, step) {
                Readers::None => false,
                Readers::One(reader) => reader == self.me,
                Readers::All => true,
            }
    }

    /// Where pieces lie in slots.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Pieces of this rank's input in a step: their numbers, which are those of blocks.
    pub(super) fn published(&self, step: usize) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let all = match self.readers(self.me, step) {
            Readers::None if !self.reduces_boards(step) => 0..0,
            _ if step == self.chunks => 0..0,
            _ => 0..if self.is_split { self.ranks as usize } else { 1 },
        };
        // No rank reads the piece for itself, unless it reduces what is on all boards.
        let skipped = (self.is_split && !self.reduces_boards(step)).then_some(self.me as usize);
        all.filter(move |&piece| Some(piece) != skipped)
    }

    /// Whether each reader of a step has a piece of its own.
    pub(super) fn has_piece_for_each(&self, step: usize) -> bool {
        self.is_split && step < self.chunks
    }

    /// Whether this rank's own data is reduced from its board: where it may not be read while the result is written.
    pub(super) fn reduces_boards(&self, step: usize) -> bool {
        self.kind == Kind::AllReduce && self.reduces(step)
    }

    /// The number of the piece in which a rank publishes its result of the step before, if it does.
    pub(super) fn result(&self, rank: u32, step: usize) -> Option<usize> {
        let goes_out = self.kind == Kind::AllReduce || rank != self.root;
        (self.has_results() && step > 0 && goes_out).then_some(self.ranks as usize)
    }

    /// Whether this rank reduces in a step.
    pub(super) fn reduces(&self, step: usize) -> bool {
        match self.kind {
            Kind::ReduceScatter => true,
            Kind::AllReduce => step < self.chunks,
            Kind::Reduce => step < self.chunks && (self.is_split || self.me == self.root),
            _ => false,
        }
    }

    /// The number of the piece of each rank that this one reduces or copies.
    pub(super) fn own_piece(&self) -> usize {
        if self.is_split { self.me as usize } else { 0 }
    }

    /// The number of the piece of `rank` that this one copies in a step, and the chunk that it is.
    pub(super) fn copied(&self, rank: u32, step: usize) -> Option<(usize, usize)> {
        match self.kind {
            Kind::Reduce if self.me != self.root => None,
            Kind::Reduce | Kind::AllReduce => self.result(rank, step).map(|piece| (piece, step - 1)),
            Kind::ReduceScatter => None,
            _ => Some((self.own_piece(), step)),
        }
    }

    /// The chunk of a block of the input.
    pub(super) fn input(&self, blocks: Blocks<'_>, block: usize, chunk: usize) -> Range<usize> {
        match self.is_split {
            true => self.within(blocks, block, chunk),
            false => self.cut(0..self.block, chunk),
        }
    }

    /// Where a chunk of a block belongs in the output: that of `rank`, or the result of `rank`.
    pub(super) fn output(&self, blocks: Blocks<'_>, rank: u32, chunk: usize) -> Range<usize> {
        match self.kind {
            Kind::Gather | Kind::AllGather | Kind::AllToAll | Kind::Symmetric => {
                self.within(blocks, rank as usize, chunk)
            }
            Kind::Reduce | Kind::AllReduce if self.is_split => self.within(blocks, rank as usize, chunk),
            _ => self.cut(0..self.block, chunk),
        }
    }

    /// A whole block.
    pub(super) fn whole(&self, blocks: Blocks<'_>, block: usize) -> Range<usize> {
        match blocks {
            Blocks::Even => {
                let from = (block * self.block).min(self.total);
                from..(from + self.block).min(self.total)
            }
            Blocks::Bounds(bounds) => bounds[block]..bounds[block + 1],
        }
    }

    fn within(&self, blocks: Blocks<'_>, block: usize, chunk: usize) -> Range<usize> {
        self.cut(self.whole(blocks, block), chunk)
    }

    fn cut(&self, block: Range<usize>, chunk: usize) -> Range<usize> {
        let from = (block.start + chunk * self.layout.chunk()).min(block.end);
        from..(from + self.layout.chunk()).min(block.end)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Chunks of a block follow each other, and a step has none beyond its end.
    #[test]
    fn chunks_make_a_block() {
        let sizes = Sizes::new(5, true);
        for bytes in [0, 1, 64, 300_001, 3 << 20] {
            for (kind, _) in Kind::EVERY {
                let plan = CallPlan::new(sizes, kind, 0, 0, bytes);
                for block in 0..5 {
                    let whole = if plan.is_split { plan.whole(Blocks::Even, block) } else { 0..plan.block };
                    let mut at = whole.start;
                    for chunk in 0..plan.chunks {
                        let part = plan.input(Blocks::Even, block, chunk);
                        assert_eq!(part.start, at);
                        at = part.end;
                    }
                    assert_eq!(at, whole.end, "{kind:?} of {bytes} bytes");
                }
            }
        }
    }
}
