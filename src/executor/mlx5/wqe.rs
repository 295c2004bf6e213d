//! Work queue elements, typed and as the bytes that a NIC reads.
//!
//! An element is a control segment and further segments of 16 bytes, in *basic blocks* of 64. All
//! numbers are big endian. The module's table of sources says where each layout is from.
#![forbid(unsafe_code)]

/// Bytes of a basic block; an element begins at one.
pub const BLOCK: usize = 64;

/// Bytes of a segment.
const SEGMENT: usize = 16;

/// The count of an element's segments has six bits.
const MOST_SEGMENTS: usize = 63;

const WRITE: u8 = 0x08;
const WRITE_IMMEDIATE: u8 = 0x09;
const WAIT: u8 = 0x0f;
const FETCH_ADD: u8 = 0x12;

/// The modifiers of a WAIT.
const ON_COMPLETIONS: u8 = 0;
const ON_WORD: u8 = 1;

/// In the length of a data segment: the data follow in the element itself.
const INLINE: u32 = 1 << 31;

/// In the operation of a wait for a word: it waits until the condition does not hold.
const INVERT: u32 = 1 << 4;

/// What an element waits for in its own queue before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Nothing.
    None = 0,
    /// Earlier changes of memory keys (`MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE`).
    Keys = 1,
    /// Earlier reads and atomics, too (`MLX5_WQE_CTRL_FENCE`; verbs' `IBV_SEND_FENCE`).
    Reads = 4,
}

/// When an element adds an entry to the queue pair's completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// When it fails.
    Errors = 0,
    /// When it is the first that fails.
    FirstError = 1,
    /// Always.
    Always = 2,
    /// Always, with an event.
    Event = 3,
}

/// Registered memory: its key, and an address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The key of the registration, at the host that has the memory.
    pub key: u32,
    /// The virtual address.
    pub address: u64,
}

/// The data of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Pieces of local memory, with their lengths; none for a write without data. The NIC reads
    /// them when it sends, and again when it must send again.
    Gather(Vec<(Location, u32)>),
    /// Bytes in the element.
    Inline(Vec<u8>),
}

/// How the value of a wait compares to memory when it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Always goes on.
    Always = 0,
    /// The value is equal to memory.
    Equal = 1,
    /// The value is more than memory, without signs.
    Bigger = 2,
    /// The value is less than memory, without signs.
    Smaller = 3,
    /// The value is more than memory, as numbers that wrap.
    CyclicBigger = 4,
    /// The value is less than memory, as numbers that wrap.
    CyclicSmaller = 5,
}

/// What a wait does when its condition does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Looks again.
    Retry = 0,
    /// Fails.
    Fail = 1,
}

/// A wait for a word of local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitWord {
    /// The condition.
    pub condition: Condition,
    /// Waits until the condition does *not* hold.
    pub invert: bool,
    /// What follows if it is not so.
    pub miss: Miss,
    /// The word; its address is a multiple of 8.
    pub word: Location,
    /// The value, byte by byte as it would lie in memory. The first byte is the most significant.
    pub value: [u8; 8],
    /// The bits to compare, likewise.
    pub mask: [u8; 8],
}

/// What an element does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes to another host.
    Write {
        /// The first byte to write.
        to: Location,
        /// What to write.
        data: Payload,
    },
    /// Writes to another host, and adds an entry to the completion queue there.
    WriteImmediate {
        /// The first byte to write.
        to: Location,
        /// What to write.
        data: Payload,
        /// A number in that entry.
        immediate: u32,
    },
    /// Adds to a word of another host.
    FetchAdd {
        /// The word; its address is a multiple of 8.
        to: Location,
        /// What to add.
        add: u64,
        /// Where the word's earlier value goes.
        before: Location,
    },
    /// Stops the queue until a completion queue of this NIC has had so many entries, modulo 2²⁴.
    WaitCompletions {
        /// The number of the completion queue.
        queue: u32,
        /// The number of entries since it was made.
        count: u32,
    },
    /// Stops the queue until a word of local memory has a value.
    WaitWord(WaitWord),
}

/// A work queue element, without its index in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The number of the queue pair.
    pub queue: u32,
    /// What it waits for in its own queue.
    pub fence: Fence,
    /// When it reports.
    pub report: Report,
    /// What it does.
    pub operation: Operation,
}

/// Why a value is no element, or bytes are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElementError {
    /// A number that does not fit its field.
    #[error("{field} is {value:#x}, and its field has {bits} bits")]
    Range {
        /// The field.
        field: &'static str,
        /// The number.
        value: u32,
        /// The width of the field.
        bits: u32,
    },
    /// A word that the NIC cannot access as one.
    #[error("the word at {0:#x} is not at a multiple of 8")]
    Misaligned(u64),
    /// A data segment of no bytes, which means 2³¹, or of more than that.
    #[error("a data segment of {0} bytes; it must have between 1 and 2^31 - 1")]
    Length(usize),
    /// More segments than an element can have.
    #[error("an element of {0} segments; it can have 63")]
    TooLong(usize),
    /// Fewer bytes than the element has.
    #[error("{have} bytes of an element that has {need}")]
    Truncated {
        /// The number of bytes.
        have: usize,
        /// The number that the element has.
        need: usize,
    },
    /// An opcode that is not known here.
    #[error("opcode {opcode:#04x} with modifier {modifier:#04x}")]
    Opcode {
        /// The opcode.
        opcode: u8,
        /// Its modifier.
        modifier: u8,
    },
    /// A field with a value that has no meaning.
    #[error("the field {0} has a value without a meaning")]
    Meaning(&'static str),
    /// Too many or too few segments for the opcode.
    #[error("{0} segments are too many or too few for the opcode")]
    Segments(usize),
}

type Result<T> = std::result::Result<T, ElementError>;

fn fits(field: &'static str, value: u32, bits: u32) -> Result<u32> {
    if value >> bits == 0 { Ok(value) } else { Err(ElementError::Range { field, value, bits }) }
}

fn aligned(location: Location) -> Result<Location> {
    if location.address.is_multiple_of(8) { Ok(location) } else { Err(ElementError::Misaligned(location.address)) }
}

fn data_length(bytes: usize) -> Result<u32> {
    let length = u32::try_from(bytes).ok().filter(|length| (1..INLINE).contains(length));
    length.ok_or(ElementError::Length(bytes))
}

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
    /// An element that starts at once and reports only its failure.
    #[must_use]
    pub fn quiet(queue: u32, operation: Operation) -> Self {
        Element { queue, fence: Fence::None, report: Report::Errors, operation }
    }

    /// The element's basic blocks, for the block with this number in its queue (modulo 2¹⁶).
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

    /// The bytes of an element, from its first segment.
    #[must_use]
    pub fn length(first: &[u8; SEGMENT]) -> usize {
        SEGMENT * usize::from(first[7] & MOST_SEGMENTS as u8)
    }

    /// An element and its index, from bytes that begin with it.
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
