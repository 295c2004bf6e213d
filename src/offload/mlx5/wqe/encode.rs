//! Encodes elements as bytes.

use super::{
    BLOCK, Element, ElementError, FETCH_ADD, INLINE, INVERT, Location, MOST_SEGMENTS, ON_COMPLETIONS, ON_WORD,
    Operation, Payload, Result, SEGMENT, WAIT, WRITE, WRITE_IMMEDIATE, WaitWord, aligned, data_length, fits,
};

/// Writes segments.
#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn word(&mut self, value: u32) {
        self.0.extend(value.to_be_bytes());
    }

    fn long(&mut self, value: u64) {
        self.0.extend(value.to_be_bytes());
    }

    fn remote(&mut self, Location { key, address }: Location) {
        self.long(address);
        self.word(key);
        self.word(0);
    }

    fn piece(&mut self, Location { key, address }: Location, length: u32) {
        self.word(length);
        self.word(key);
        self.long(address);
    }

    fn pad(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn payload(&mut self, payload: &Payload) -> Result<()> {
        match payload {
            Payload::Gather(pieces) => {
                for &(from, length) in pieces {
                    self.piece(from, data_length(length as usize)?);
                }
            }
            Payload::Inline(bytes) => {
                self.word(data_length(bytes.len())? | INLINE);
                self.0.extend(bytes);
                self.pad(SEGMENT);
            }
        }
        Ok(())
    }

    fn wait(&mut self, wait: &WaitWord) -> Result<()> {
        let word = aligned(wait.word)?;
        self.word(wait.condition as u32 | if wait.invert { INVERT } else { 0 });
        self.word(word.key);
        self.long(word.address | wait.miss as u64);
        self.0.extend(wait.value);
        self.0.extend(wait.mask);
        Ok(())
    }
}

impl Operation {
    fn opcode(&self) -> (u8, u8) {
        match self {
            Operation::Write { .. } => (WRITE, 0),
            Operation::WriteImmediate { .. } => (WRITE_IMMEDIATE, 0),
            Operation::FetchAdd { .. } => (FETCH_ADD, 0),
            Operation::WaitCompletions { .. } => (WAIT, ON_COMPLETIONS),
            Operation::WaitWord(_) => (WAIT, ON_WORD),
        }
    }

    fn encode(&self, to: &mut Encoder) -> Result<()> {
        match self {
            Operation::Write { to: there, data } | Operation::WriteImmediate { to: there, data, .. } => {
                to.remote(*there);
                to.payload(data)
            }
            Operation::FetchAdd { to: there, add, before } => {
                to.remote(aligned(*there)?);
                to.long(*add);
                to.long(0);
                to.piece(*before, 8);
                Ok(())
            }
            Operation::WaitCompletions { queue, count } => {
                to.long(0);
                to.word(fits("number of entries", *count, 24)?);
                to.word(fits("completion queue", *queue, 24)?);
                Ok(())
            }
            Operation::WaitWord(wait) => to.wait(wait),
        }
    }
}

impl Element {
    /// Returns the element's basic blocks, for the block with this number in its queue (modulo 2¹⁶).
    ///
    /// # Errors
    /// A number that does not fit, a word that is not aligned, or too much data.
    pub fn encode(&self, index: u16) -> Result<Vec<u8>> {
        let mut segments = Encoder::default();
        self.operation.encode(&mut segments)?;
        let count = 1 + segments.0.len() / SEGMENT;
        if count > MOST_SEGMENTS {
            return Err(ElementError::TooLong(count));
        }
        let (opcode, modifier) = self.operation.opcode();
        let mut bytes = Encoder::default();
        bytes.word(u32::from(modifier) << 24 | u32::from(index) << 8 | u32::from(opcode));
        bytes.word(fits("queue pair", self.queue, 24)? << 8 | count as u32);
        // A signature and a stream come before the flags; neither is used.
        bytes.word((self.fence as u32) << 5 | (self.report as u32) << 2);
        bytes.word(if let Operation::WriteImmediate { immediate, .. } = self.operation { immediate } else { 0 });
        bytes.0.extend(segments.0);
        bytes.pad(BLOCK);
        Ok(bytes.0)
    }
}
