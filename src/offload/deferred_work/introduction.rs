//! The messages in which ranks describe their slots before their providers can reach each other.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::trigger::Role;

/// The key of a registration, and the base of its remote addresses.
pub(super) type RegionKey = (u64, u64);

/// The value that stands for the key of a cell that a rank does not have.
pub(super) const ABSENT: RegionKey = (u64::MAX, u64::MAX);

/// The keys of a slot that peers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotKeys {
    pub(super) inboxes: RegionKey,
    pub(super) cells: BTreeMap<Role, RegionKey>,
}

/// Roles of the counters to which other ranks signal by writing a cell.
pub(super) const SIGNALLED: [Role; 3] = [Role::Start, Role::Arrived, Role::Active];

/// The description of a deferred program for the other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    pub(super) address: Vec<u8>,
    pub(super) slots: Vec<SlotKeys>,
}

impl Introduction {
    /// Encodes it for the other ranks.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.address.len() as u32).to_le_bytes().to_vec();
        bytes.extend(&self.address);
        for SlotKeys { inboxes, cells } in &self.slots {
            let cells = SIGNALLED.map(|role| cells.get(&role).copied().unwrap_or(ABSENT));
            for (key, origin) in [*inboxes].into_iter().chain(cells) {
                bytes.extend([key.to_le_bytes(), origin.to_le_bytes()].concat());
            }
        }
        bytes
    }

    /// Returns `None` for bytes that are not an introduction.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (len, rest) = bytes.split_first_chunk()?;
        let (address, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let key = |pair: &[u8]| (word(&pair[..8]), word(&pair[8..]));
        let keys: Vec<RegionKey> = rest.chunks_exact(16).map(key).collect();
        if !rest.len().is_multiple_of(16 * (1 + SIGNALLED.len())) {
            return None;
        }
        let slot = |keys: &[RegionKey]| SlotKeys {
            inboxes: keys[0],
            cells: SIGNALLED.into_iter().zip(keys[1..].iter().copied()).filter(|(_, key)| *key != ABSENT).collect(),
        };
        Some(Introduction { address: address.to_vec(), slots: keys.chunks(1 + SIGNALLED.len()).map(slot).collect() })
    }
}
