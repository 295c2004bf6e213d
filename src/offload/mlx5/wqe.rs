//! Work queue elements, as typed values and as the bytes that a NIC reads.
//!
//! An element is a control segment and further segments of 16 bytes, in *basic blocks* of 64. All
//! numbers are big endian. The module's table of sources says where each layout is from.
#![forbid(unsafe_code)]

mod decode;
mod encode;

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

/// In the length of a data segment: the data follows in the element itself.
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

/// How the value of a wait must compare to memory for the wait to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The wait always ends.
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
    /// Reads the word again.
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
    /// The action if the condition does not hold.
    pub miss: Miss,
    /// The word; its address is a multiple of 8.
    pub word: Location,
    /// The value, byte by byte in memory order. The first byte is the most significant.
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
    /// Stops the queue until a completion queue of this NIC has had `count` entries, modulo 2²⁴.
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

impl Element {
    /// Returns an element that starts at once and reports only its failure.
    #[must_use]
    pub fn quiet(queue: u32, operation: Operation) -> Self {
        Element { queue, fence: Fence::None, report: Report::Errors, operation }
    }
}

/// The reason for which a value is not an element, or bytes are not one.
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
    /// An opcode that this module does not know.
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
