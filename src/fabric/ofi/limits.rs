//! Limits of what is posted to a provider at once.
#![forbid(unsafe_code)]

use earlybird_ffi::ofi::Info;

use super::header_slots::SLOT_BYTES;
use super::message::MOST_DATA;
use super::shares::peers;

/// Longest part of a transfer, whatever the provider supports: messages to the same peer, signs of
/// life among them, wait behind it.
const MOST_PART: usize = 1 << 20;

/// One-sided operations in flight, unless the world has more peers.
const MOVING: usize = 64;

/// InfiniBand, RoCE.
const VERBS: &str = "verbs;ofi_rxm";

/// Limits of one endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most bytes of data that travel in a message.
    pub(super) put: usize,
    /// Longest part of a transfer.
    pub(super) part: usize,
    /// Longest transfer that carries a header along.
    pub(super) with_header: usize,
    /// One-sided operations in flight.
    pub(super) moving: usize,
    /// Whether writes may carry immediate data.
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

    /// `ofi_rxm` over `verbs` (1.17, on Soft-RoCE) may post a receive again for a closed
    /// connection, and crash, unless peers share their receives (`FI_OFI_RXM_USE_SRX=1`). With
    /// shared receives it gets stuck after a hundred writes with immediate data. So writes over
    /// this provider carry none.
    fn for_verbs(self) -> Self {
        Limits { cq_data: false, ..self }
    }

    /// `ofi_rxd` (1.17 to 2.5) lets later packets overtake packets of a write that it has not sent
    /// yet, and lists them in that order. From then on it sees no acknowledgement of the write,
    /// however often one comes. Once 128 packets to a peer are unacknowledged, it sends nothing to
    /// that peer any more. So fewer packets are in flight: one write or read at a time, of 23
    /// packets, as many for what the peer reads, a packet for each message in the window, and 18
    /// uncounted messages. The limit holds for all peers together, so one stalled peer holds up the
    /// others there.
    fn for_rxd(self) -> Self {
        const PART: usize = 32 << 10;
        const PACKET: usize = 1 << 10;
        Limits { put: PACKET, part: self.part.min(PART), with_header: self.with_header.min(PART), moving: 1, ..self }
    }
}

/// How many operations a rank may have queued in a provider. `sockets` loses operations if more are
/// queued than it can keep in flight. A NIC shares its triggers among all its processes and
/// guarantees each this many.
pub(crate) fn most_queued(provider: &str) -> u64 {
    match provider {
        "sockets" => 2048,
        _ => 60,
    }
}

/// The largest value of a provider's counters that reads back correctly. `sockets` keeps 32 bits
/// and reads them as signed, so beyond half of the range a counter seems to have passed every
/// threshold. The counters of `cxi` have 48 bits.
pub(crate) fn largest_count(provider: &str) -> u64 {
    match provider {
        "sockets" => u64::from(i32::MAX.unsigned_abs()),
        _ => (1 << 48) - 1,
    }
}
