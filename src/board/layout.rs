//! Where pieces lie on a board: in the slots of their step.
//!
//! A piece has a *header*, which ends with the *mark*: the number of the step. Where all ranks share memory, the headers lie
//! at the beginning of the board, in a cache line each: those that the same rank reads in one step after the other beside
//! each other, so processors fetch the next ones by themselves. No data ever lies where a mark does, so a rank that finds
//! the step's number there knows that the piece is there. Data of a few bytes lies in the line of its header: a reader waits
//! for one line and has all. There are more lines than slots for data, so a rank that sends a few bytes runs further ahead
//! of its readers. A rank on another host is told a word instead, and reads a header together with the data after
//! it.
#![forbid(unsafe_code)]

use crate::fabric::CACHE_LINE;

/// What comes with the data of a piece: three words that say what the call is, and the mark.
pub(super) type Header = [u64; 4];

/// The number of the mark among the words of a header.
pub(super) const MARK: usize = 3;

pub(super) const HEADER: usize = size_of::<Header>();

/// Most bytes of a piece in the line of its header.
const INLINE: usize = CACHE_LINE - HEADER;

/// Bytes of a slot for data, unless the pieces of all ranks need more.
const SLOT: usize = 128 << 10;

/// Bounds of the number of slots, and about how many all ranks of a host have together. The slots of few ranks do not fit
/// into the caches of their cores: another core reads what has left them faster than what it must ask the writer's
/// core for (measured with `bench --op`). On a network slots are registered memory, and there are few.
const FEW: u32 = 8;
const MANY: u32 = 32;
const SLOTS_OF_A_HOST: u32 = 128;

/// As [`MANY`] and [`SLOTS_OF_A_HOST`], for lines: where ranks share cores, a sender goes on until its readers get a core.
/// Two ranks seldom share one, and fewer lines stay in the first caches.
const MANY_LINES: u32 = 256;
const LINES_OF_A_HOST: u32 = 1024;

/// Sizes of the boards of a world. In few bytes: each call copies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(super) ranks: u32,
    /// Slots of a board for data, and bytes of each.
    pub(super) slots: u32,
    slot: u32,
    /// Slots of a board for headers.
    pub(super) lines: u32,
    /// All ranks share memory.
    pub(super) shared: bool,
}

/// The slots of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepSlot {
    /// For headers.
    pub(super) line: u32,
    /// For data.
    pub(super) data: u32,
}

impl Sizes {
    pub(crate) fn new(ranks: u32, shared: bool) -> Self {
        Sizes::with_slots(ranks, shared, SLOT)
    }

    /// With `bytes` bytes for data in a slot, or more where the pieces of all ranks need more.
    pub(super) fn with_slots(ranks: u32, shared: bool, bytes: usize) -> Self {
        let least = (ranks as usize + 1) * 2 * CACHE_LINE;
        // A few hundred bytes for each rank, and never 4 GiB.
        let slot = bytes.max(least).next_multiple_of(CACHE_LINE) as u32;
        if !shared {
            return Sizes { ranks, shared, slots: FEW, slot, lines: FEW };
        }
        let slots = (SLOTS_OF_A_HOST / ranks).clamp(FEW, MANY);
        let lines = if ranks <= 2 { slots } else { (LINES_OF_A_HOST / ranks).clamp(slots, MANY_LINES) };
        Sizes { ranks, shared, slots, slot, lines }
    }

    /// Bytes of a slot for data.
    pub(super) fn slot(self) -> usize {
        self.slot as usize
    }

    /// Bytes for headers at the beginning of a board.
    fn headers(self) -> usize {
        // A rank publishes a piece for each rank and one result, at most.
        if self.shared { self.lines as usize * (self.ranks as usize + 1) * CACHE_LINE } else { 0 }
    }

    /// Bytes of a board.
    pub(super) fn board(self) -> usize {
        self.headers() + self.slots as usize * self.slot()
    }

    /// The layout of a call with blocks of `block` bytes, at most; `several`: a slot has pieces for each rank.
    pub(super) fn layout(self, several: bool, block: usize) -> Layout {
        // What comes from another host is read into a place for each rank.
        let pieces = if several || !self.shared { self.ranks as usize + 1 } else { 1 };
        let header = if self.shared { 0 } else { HEADER };
        let needed = block.max(1).saturating_add(header + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
        let fits = needed.checked_mul(pieces).is_some_and(|all| all <= self.slot());
        let stride = if fits { needed } else { self.slot() / pieces / CACHE_LINE * CACHE_LINE };
        Layout { sizes: self, stride: stride as u32, is_inline: self.shared && block <= INLINE }
    }
}

/// Where the pieces of a call lie on a board.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    sizes: Sizes,
    /// Bytes from the data of a piece to that of the next one.
    stride: u32,
    /// The data lies in the line of the header.
    is_inline: bool,
}

impl Layout {
    /// Most bytes of data in a piece.
    pub(super) fn chunk(&self) -> usize {
        match self.is_inline {
            true => INLINE,
            false if self.sizes.shared => self.stride(),
            false => self.stride() - HEADER,
        }
    }

    fn stride(&self) -> usize {
        self.stride as usize
    }

    /// Whether pieces take a slot for data.
    pub(super) fn has_data(&self) -> bool {
        !self.is_inline
    }

    /// Where the header of a piece lies. That of piece 0 is at the same place in all calls.
    pub(super) fn header(&self, slot: StepSlot, piece: usize) -> usize {
        match self.sizes.shared {
            true => (piece * self.sizes.lines as usize + slot.line as usize) * CACHE_LINE,
            false => slot.data as usize * self.sizes.slot() + piece * self.stride(),
        }
    }

    /// Where the data of a piece lies.
    pub(super) fn data(&self, slot: StepSlot, piece: usize) -> usize {
        match self.is_inline || !self.sizes.shared {
            true => self.header(slot, piece) + HEADER,
            false => self.sizes.headers() + slot.data as usize * self.sizes.slot() + piece * self.stride(),
        }
    }

    /// Where in its memory a rank reads what `rank` of another host has published: a header, and data after it.
    pub(super) fn place(&self, rank: u32) -> usize {
        rank as usize * self.stride()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_beside_each_other() {
        for ranks in [1u32, 2, 3, 64, 4096] {
            for (shared, several) in [(true, true), (true, false), (false, true), (false, false)] {
                for block in [0, 1, 8, INLINE, INLINE + 1, 1000, 10 << 20] {
                    let sizes = Sizes::new(ranks, shared);
                    let layout = sizes.layout(several, block);
                    let pieces = if several { ranks as usize + 1 } else { 1 };
                    let last = StepSlot { line: sizes.lines - 1, data: sizes.slots - 1 };
                    let all = || {
                        let slots = [StepSlot { line: 0, data: 0 }, last].into_iter();
                        slots.flat_map(|slot| (0..pieces).map(move |piece| (slot, piece)))
                    };
                    let headers = all().map(|(slot, piece)| (layout.header(slot, piece), HEADER));
                    let data = all().map(|(slot, piece)| (layout.data(slot, piece), layout.chunk().min(block)));
                    let mut parts: Vec<_> = headers.chain(data).filter(|&(_, bytes)| bytes > 0).collect();
                    parts.sort_unstable();
                    assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{ranks} ranks, {block}");
                    assert!(parts.iter().all(|(at, bytes)| at + bytes <= sizes.board()), "{ranks} ranks, {block}");
                    assert!(layout.chunk() >= block.min(INLINE), "{ranks} ranks, {block}");
                    // What all ranks published can be read at once.
                    assert!(shared || layout.place(ranks) <= sizes.slot());
                }
            }
        }
    }

    /// Wherever one call has a mark, no other call has data.
    #[test]
    fn marks_and_data_of_any_calls_lie_apart() {
        let sizes = Sizes::with_slots(5, true, 1 << 10);
        let layouts = || {
            let blocks = [0, 1, 8, INLINE, INLINE + 1, 64, 1000, 1 << 20];
            blocks.into_iter().flat_map(|block| [true, false].map(|several| sizes.layout(several, block)))
        };
        let ends = [0, 1, sizes.lines - 1]
            .into_iter()
            .flat_map(|line| [0, sizes.slots - 1].map(|data| StepSlot { line, data }));
        let places: Vec<_> = ends.flat_map(|slot| (0..6).map(move |piece| (slot, piece))).collect();
        for (marked, other) in layouts().flat_map(|marked| layouts().map(move |other| (marked, other))) {
            for (place, another) in places.iter().flat_map(|place| places.iter().map(move |another| (place, another))) {
                let mark = marked.header(place.0, place.1) + MARK * size_of::<u64>();
                let from = other.data(another.0, another.1);
                assert!(mark + size_of::<u64>() <= from || mark >= from + other.chunk());
            }
        }
    }
}
