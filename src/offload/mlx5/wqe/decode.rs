//! Decodes elements from bytes.

use super::{
    Condition, Element, ElementError, FETCH_ADD, Fence, INLINE, INVERT, Location, MOST_SEGMENTS, Miss, ON_COMPLETIONS,
    ON_WORD, Operation, Payload, Report, Result, SEGMENT, WAIT, WRITE, WRITE_IMMEDIATE, WaitWord, aligned, data_length,
    fits,
};

impl Element {
    /// Returns the length of an element in bytes, from its first segment.
    #[must_use]
    pub fn length(first: &[u8; SEGMENT]) -> usize {
        SEGMENT * usize::from(first[7] & MOST_SEGMENTS as u8)
    }

    /// Returns an element and its index, from bytes that begin with it.
    ///
    /// # Errors
    /// Bytes that are not a whole element, or one that has no meaning here.
    pub fn decode(bytes: &[u8]) -> Result<(u16, Self)> {
        let short = ElementError::Truncated { have: bytes.len(), need: SEGMENT };
        let need = Element::length(bytes.first_chunk().ok_or(short)?);
        let segments = bytes.get(..need).ok_or(ElementError::Truncated { have: bytes.len(), need })?;
        let mut from = Decoder { rest: segments, count: need / SEGMENT };
        let head = from.word()?;
        let count = from.word()?;
        let flags = from.word()?;
        let immediate = from.word()?;
        if count & 0xc0 != 0 || flags & !0xfc != 0 {
            return Err(ElementError::Meaning("control"));
        }
        let (modifier, index, opcode) = ((head >> 24) as u8, (head >> 8) as u16, head as u8);
        let element = Element {
            queue: count >> 8,
            fence: fence(flags >> 5)?,
            report: report(flags >> 2 & 3 | flags & 0x10)?,
            operation: from.operation(opcode, modifier, immediate)?,
        };
        if opcode != WRITE_IMMEDIATE && immediate != 0 {
            return Err(ElementError::Meaning("immediate"));
        }
        if from.rest.is_empty() { Ok((index, element)) } else { Err(ElementError::Segments(from.count)) }
    }
}

fn fence(bits: u32) -> Result<Fence> {
    match bits {
        0 => Ok(Fence::None),
        1 => Ok(Fence::Keys),
        4 => Ok(Fence::Reads),
        _ => Err(ElementError::Meaning("fence")),
    }
}

fn report(bits: u32) -> Result<Report> {
    use Report::*;
    [Errors, FirstError, Always, Event].get(bits as usize).copied().ok_or(ElementError::Meaning("completion mode"))
}

fn condition(bits: u32) -> Result<Condition> {
    use Condition::*;
    let known = [Always, Equal, Bigger, Smaller, CyclicBigger, CyclicSmaller];
    known.get(bits as usize).copied().ok_or(ElementError::Meaning("condition"))
}

fn miss(bits: u64) -> Result<Miss> {
    use Miss::*;
    [Retry, Fail].get(bits as usize).copied().ok_or(ElementError::Meaning("action on failure"))
}

/// Reads segments.
struct Decoder<'a> {
    rest: &'a [u8],
    /// Segments of the element.
    count: usize,
}

impl Decoder<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(ElementError::Segments(self.count))?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn word(&mut self) -> Result<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn long(&mut self) -> Result<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn zero(&mut self, field: &'static str, bytes: usize) -> Result<()> {
        for _ in 0..bytes {
            if self.take::<1>()? != [0] {
                return Err(ElementError::Meaning(field));
            }
        }
        Ok(())
    }

    fn remote(&mut self) -> Result<Location> {
        let (address, key) = (self.long()?, self.word()?);
        self.zero("remote address", 4)?;
        Ok(Location { key, address })
    }

    fn piece(&mut self) -> Result<(Location, u32)> {
        let (length, key, address) = (self.word()?, self.word()?, self.long()?);
        Ok((Location { key, address }, data_length(length as usize)?))
    }

    fn payload(&mut self) -> Result<Payload> {
        if self.rest.first().is_some_and(|first| first & 0x80 != 0) {
            let length = data_length((self.word()? & !INLINE) as usize)? as usize;
            let end = (4 + length).next_multiple_of(SEGMENT) - 4;
            let bytes = self.rest.get(..length).ok_or(ElementError::Segments(self.count))?.to_vec();
            self.rest = self.rest.get(end..).ok_or(ElementError::Segments(self.count))?;
            return Ok(Payload::Inline(bytes));
        }
        let mut pieces = Vec::new();
        while !self.rest.is_empty() {
            pieces.push(self.piece()?);
        }
        Ok(Payload::Gather(pieces))
    }

    fn wait(&mut self) -> Result<WaitWord> {
        let (operation, key, address) = (self.word()?, self.word()?, self.long()?);
        Ok(WaitWord {
            condition: condition(operation & !INVERT)?,
            invert: operation & INVERT != 0,
            miss: miss(address & 7)?,
            word: Location { key, address: address & !7 },
            value: self.take()?,
            mask: self.take()?,
        })
    }

    fn operation(&mut self, opcode: u8, modifier: u8, immediate: u32) -> Result<Operation> {
        match (opcode, modifier) {
            (WRITE, 0) => Ok(Operation::Write { to: self.remote()?, data: self.payload()? }),
            (WRITE_IMMEDIATE, 0) => {
                Ok(Operation::WriteImmediate { to: self.remote()?, data: self.payload()?, immediate })
            }
            (FETCH_ADD, 0) => {
                let (to, add) = (aligned(self.remote()?)?, self.long()?);
                self.zero("compare", 8)?;
                match self.piece()? {
                    (before, 8) => Ok(Operation::FetchAdd { to, add, before }),
                    (_, length) => Err(ElementError::Length(length as usize)),
                }
            }
            (WAIT, ON_COMPLETIONS) => {
                self.zero("wait", 8)?;
                let (count, queue) = (self.word()?, self.word()?);
                Ok(Operation::WaitCompletions {
                    queue: fits("completion queue", queue, 24)?,
                    count: fits("number of entries", count, 24)?,
                })
            }
            (WAIT, ON_WORD) => self.wait().map(Operation::WaitWord),
            _ => Err(ElementError::Opcode { opcode, modifier }),
        }
    }
}
