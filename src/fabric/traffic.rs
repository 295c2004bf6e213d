//! What a rank has sent over its network.
#![forbid(unsafe_code)]

use std::ops::{Add, Sub};

/// What a rank has sent over its network, in operations as it posted them: what a provider or a device splits, repeats,
/// merges or adds is not seen, nor what a program sends that a provider runs, nor the meeting of ranks before they join.
/// In a world over shared memory ranks write each other's memory, and send nothing. Each world, also one that was split
/// off, counts for itself.
///
/// Counts grow as long as the world exists. The difference of a value and an earlier one is what was sent in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages, and writes to memory of peers: a write that brings its signal along counts once.
    pub messages: u64,
    /// Messages that only the transport needs: acknowledgements, wakes, signs of life, and those about ranks that end or
    /// fail. They are not among the messages.
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
            messages: self.messages.saturating_sub(before.messages),
            control: self.control.saturating_sub(before.control),
            bytes: self.bytes.saturating_sub(before.bytes),
            atomics: self.atomics.saturating_sub(before.atomics),
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
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
