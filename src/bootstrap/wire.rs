//! The encoding of what ranks send at the meeting of one machine.

use crate::fault::Fault;

/// The maximum number of ranks of one machine.
pub(super) const MOST_RANKS: u32 = 4096;

const MAGIC: u32 = 0x4542_4452;
const VERSION: u32 = 5;

/// The bytes of a greeting.
pub(super) const HELLO: usize = 20;

/// The bytes of the nonce that rank 0 draws for each process that comes. The greeting is sealed with it, so a greeting
/// is accepted once.
pub(super) const NONCE: usize = 16;

/// The maximum length of a verdict: an error text, or the process ids.
pub(super) const VERDICT: usize = 16 + 4 * MOST_RANKS as usize;

/// A guest's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// The guest's process, so that another process cannot forward its greeting as its own.
    pub(crate) process: u32,
}

impl Hello {
    pub(crate) fn encode(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        for (bytes, field) in bytes.chunks_exact_mut(4).zip([MAGIC, VERSION, self.rank, self.ranks, self.process]) {
            bytes.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Decodes a greeting; `None` for the bytes of a stranger, or of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let field = |index: usize| bytes.get(4 * index..4 * index + 4)?.try_into().ok().map(u32::from_le_bytes);
        let is_ours = field(0)? == MAGIC && field(1)? == VERSION;
        (is_ours || Fault::GreetStrangers.is_chosen()).then_some(())?;
        Some(Hello { rank: field(2)?, ranks: field(3)?, process: field(4)? })
    }
}

/// The heading of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heading {
    pub(crate) refused: bool,
    /// The bytes that follow.
    pub(crate) len: usize,
}

impl Heading {
    pub(crate) fn encode(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[0] = u8::from(self.refused);
        bytes[4..].copy_from_slice(&(self.len as u32).to_le_bytes());
        bytes
    }

    /// Decodes a heading; `None` for more bytes than a verdict can have.
    pub(crate) fn decode(bytes: [u8; 8]) -> Option<Self> {
        let len = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        (len <= VERDICT).then_some(Heading { refused: bytes[0] != 0, len })
    }
}

/// Encodes the process ids of a world for a verdict.
pub(crate) fn encode_pids(pids: &[u32]) -> Vec<u8> {
    pids.iter().flat_map(|pid| pid.to_le_bytes()).collect()
}

/// Decodes the process ids; `None` if there is not one for each rank.
pub(crate) fn decode_pids(body: &[u8], ranks: u32) -> Option<Vec<Option<u32>>> {
    let whole = body.len() == 4 * ranks as usize;
    let pid = |bytes: &[u8]| Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    whole.then(|| body.chunks_exact(4).map(pid).collect())
}
