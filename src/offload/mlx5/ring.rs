//! The memory of a send queue: a ring of basic blocks.
#![forbid(unsafe_code)]

use super::wqe::{BLOCK, Element, ElementError};

/// The reason for which an element was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The queue lacks free blocks.
    #[error("an element of {need} blocks for a queue that has {free} free")]
    Blocks {
        /// Blocks of the element.
        need: usize,
        /// Blocks that are free.
        free: usize,
    },
    /// The element cannot be encoded.
    #[error(transparent)]
    Element(#[from] ElementError),
}

/// A ring of basic blocks. Blocks are numbered modulo 2¹⁶ for a ring of any length, and an element continues at the
/// ring's first block when it reaches the end.
#[derive(Clone, Debug)]
pub struct SendRing {
    bytes: Vec<u8>,
    posted: u16,
}

impl SendRing {
    /// Returns a ring of `blocks` blocks: a power of two, at most 2¹⁵.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        Self::starting_at(blocks, 0)
    }

    /// Returns a ring whose first block has this number.
    #[must_use]
    pub fn starting_at(blocks: usize, posted: u16) -> Self {
        assert!(blocks.is_power_of_two() && blocks <= 1 << 15, "a ring of {blocks} blocks");
        SendRing { bytes: vec![0; blocks * BLOCK], posted }
    }

    /// Returns the number of the next block, which the doorbell announces.
    #[must_use]
    pub fn posted(&self) -> u16 {
        self.posted
    }

    fn blocks(&self) -> usize {
        self.bytes.len() / BLOCK
    }

    fn block(&mut self, index: u16) -> &mut [u8] {
        let at = usize::from(index) % self.blocks() * BLOCK;
        &mut self.bytes[at..at + BLOCK]
    }

    /// Writes an element after the last one, and returns its index. Blocks before `released` are
    /// free.
    ///
    /// # Errors
    /// [`Full`] if blocks are missing; nothing was written.
    pub fn post(&mut self, element: &Element, released: u16) -> Result<u16, Full> {
        let index = self.posted;
        let bytes = element.encode(index)?;
        let (need, free) =
            (bytes.len() / BLOCK, self.blocks().saturating_sub(usize::from(index.wrapping_sub(released))));
        if need > free {
            return Err(Full::Blocks { need, free });
        }
        for block in bytes.chunks_exact(BLOCK) {
            self.block(self.posted).copy_from_slice(block);
            self.posted = self.posted.wrapping_add(1);
        }
        Ok(index)
    }

    /// Returns the bytes of the element that begins at a block, in whole blocks.
    #[must_use]
    pub fn element(&self, index: u16) -> Vec<u8> {
        let at = |index: u16| usize::from(index) % self.blocks() * BLOCK;
        let first = &self.bytes[at(index)..at(index) + BLOCK];
        let length = first.first_chunk().map_or(BLOCK, Element::length);
        let blocks = length.div_ceil(BLOCK).clamp(1, self.blocks());
        (0..blocks as u16).flat_map(|next| &self.bytes[at(index.wrapping_add(next))..][..BLOCK]).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::wqe::{Location, Operation, Payload};
    use super::*;

    fn element(bytes: usize) -> Element {
        let to = Location { key: 1, address: 0x1000 };
        let data = Payload::Inline((0..bytes).map(|byte| byte as u8).collect());
        Element::quiet(7, Operation::Write { to, data })
    }

    #[test]
    fn an_element_goes_on_at_the_first_block() {
        let mut ring = SendRing::starting_at(4, 3);
        // The element has 36 bytes before the data; one block has 28.
        let long = element(100);
        assert_eq!(ring.post(&long, 3), Ok(3));
        assert_eq!(ring.posted(), 6);
        assert_eq!(&ring.bytes[3 * BLOCK..], &long.encode(3).unwrap()[..BLOCK]);
        assert_eq!(&ring.bytes[..2 * BLOCK], &long.encode(3).unwrap()[BLOCK..]);
        assert_eq!(Element::decode(&ring.element(3)), Ok((3, long)));
    }

    #[test]
    fn indices_wrap_at_their_width_and_not_with_the_ring() {
        let mut ring = SendRing::starting_at(8, u16::MAX - 1);
        let mut released = ring.posted();
        for step in 0..200_000u32 {
            let element = element(1 + step as usize % 90);
            let index = ring.post(&element, released).unwrap();
            assert_eq!(Element::decode(&ring.element(index)), Ok((index, element)));
            released = ring.posted();
        }
    }

    #[test]
    fn a_full_ring_refuses_elements() {
        let mut ring = SendRing::starting_at(2, u16::MAX);
        let start = ring.posted();
        assert_eq!(ring.post(&element(100), start), Err(Full::Blocks { need: 3, free: 2 }));
        assert_eq!(ring.post(&element(8), start), Ok(u16::MAX));
        assert_eq!(ring.post(&element(8), start), Ok(0));
        assert_eq!(ring.post(&element(8), start), Err(Full::Blocks { need: 1, free: 0 }));
        assert_eq!(ring.post(&element(8), 0), Ok(1));
    }
}
