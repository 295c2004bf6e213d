//! What a rank has sent over its network.
#![forbid(unsafe_code)]

use std::ops::{Add, Sub};

/// What a rank has sent over its network, as it posted it: what a provider splits, repeats or merges is not seen. Within
/// one host ranks write each other's memory, and send nothing.
///
/// Counts grow as long as the world exists. The difference of two values is what was sent in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages, and writes to memory of peers: a write that brings its signal along counts once.
    pub messages: u64,
    /// Messages that only the transport needs: acknowledgements and signs of life. They are not among the messages.
    pub control: u64,
    /// The bytes of all of them, with their headers.
    pub bytes: u64,
    /// Atomic operations that devices carry out on cells of peers. Where processors do that, they are messages.
    pub atomics: u64,
    /// Reads of memory of peers.
    pub reads: u64,
    /// The bytes of these reads, which the peers' devices send.
    pub read_bytes: u64,
}

impl Sub for Traffic {
    type Output = Traffic;

    fn sub(self, before: Traffic) -> Traffic {
        Traffic {
            messages: self.messages - before.messages,
            control: self.control - before.control,
            bytes: self.bytes - before.bytes,
            atomics: self.atomics - before.atomics,
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
        }
    }
}

impl Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        Traffic {
            messages: self.messages + other.messages,
            control: self.control + other.control,
            bytes: self.bytes + other.bytes,
            atomics: self.atomics + other.atomics,
            reads: self.reads + other.reads,
            read_bytes: self.read_bytes + other.read_bytes,
        }
    }
}

/// The peers of a rank over its network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Reached {
    /// The number of peers to which this rank has sent anything.
    pub peers: u32,
    /// The number of its reliable queue pairs, over verbs: one for each peer and rail.
    pub queue_pairs: u32,
}
