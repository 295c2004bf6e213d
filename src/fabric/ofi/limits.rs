//! How much is given to a provider at once.
#![forbid(unsafe_code)]

use earlybird_ffi::ofi::Info;

use super::header_slots::SLOT_BYTES;
use super::message::MOST_DATA;
use super::shares::peers;

/// Longest part of a transfer, whatever the provider can do: messages to the same peer, signs of life
/// among them, wait behind it.
const MOST_PART: usize = 1 << 20;

/// One-sided operations under way, where no more ranks have to share them.
const MOVING: usize = 64;

/// InfiniBand, RoCE.
const VERBS: &str = "verbs;ofi_rxm";

/// Of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most bytes of data that are put by a message.
    pub(super) put: usize,
    /// Longest part of a transfer.
    pub(super) part: usize,
    /// Longest transfer beside a note.
    pub(super) with_header: usize,
    /// One-sided operations under way.
    pub(super) moving: usize,
    /// Whether writes may bring data to the queue of their target.
    pub(super) cq_data: bool,
}

impl Limits {
    pub(super) fn of(info: Info<'_>, ranks: u32) -> Self {
        let longest = info.endpoint().map_or(usize::MAX, |attributes| attributes.max_msg_size);
        let (part, with_header) = (longest.clamp(1, MOST_PART), longest.saturating_sub(SLOT_BYTES).min(MOST_PART));
        let moving = MOVING.max(peers(ranks));
        let limits = Limits { put: MOST_DATA, part, with_header, moving, cq_data: true };
        match info.provider() {
            name if name.ends_with("ofi_rxd") => limits.for_rxd(),
            VERBS => limits.for_verbs(),
            _ => limits,
        }
    }

    /// `ofi_rxm` over `verbs` (1.17, on Soft-RoCE) may post a receive again for a connection that is closed, and crash,
    /// unless peers share their receives (`FI_OFI_RXM_USE_SRX=1`); with these it gets stuck after a hundred writes with
    /// data for the target's queue. So these go without.
    fn for_verbs(self) -> Self {
        Limits { cq_data: false, ..self }
    }

    /// `ofi_rxd` (1.17 to 2.5) lets what is sent later overtake packets of a write that it has not sent yet, and lists
    /// them in that order. From then on it sees no acknowledgement of the write, however often that comes; once 128
    /// packets to a peer are not acknowledged, nothing goes there any more. So there are never as many: one write or
    /// read at a time, of 23 packets, as many for what the peer reads, a packet for each message in the window, and
    /// room for 18 words that are not counted. One at a time to all peers together: there, one that is stalled holds
    /// up the others.
    fn for_rxd(self) -> Self {
        const PART: usize = 32 << 10;
        const PACKET: usize = 1 << 10;
        Limits { put: PACKET, part: self.part.min(PART), with_header: self.with_header.min(PART), moving: 1, ..self }
    }
}

/// How many operations a rank may have queued in a provider. More than `sockets` can keep under way get
/// lost among each other; a card shares its triggers among all its processes, and gives each so many for
/// sure.
pub(crate) fn most_queued(provider: &str) -> u64 {
    match provider {
        "sockets" => 2048,
        _ => 60,
    }
}

/// The largest value of a provider's counters that is read as it is. `sockets` keeps 32 bits and reads them with a
/// sign, so beyond half of them a counter seems to have passed every threshold. The counters of `cxi` have 48 bits.
pub(crate) fn largest_count(provider: &str) -> u64 {
    match provider {
        "sockets" => u64::from(i32::MAX.unsigned_abs()),
        _ => (1 << 48) - 1,
    }
}
