//! Limits of what is posted to a provider at once.
#![forbid(unsafe_code)]

use earlybird_ffi::ofi::Info;

use crate::fabric::net::Limits;

/// InfiniBand, RoCE.
const VERBS: &str = "verbs;ofi_rxm";

impl Limits {
    /// Those of a provider, in a world of `ranks`. Writes carry immediate data if `cq_data` says
    /// so, or else if that works over this provider.
    pub(super) fn of_provider(info: Info<'_>, ranks: u32, cq_data: Option<bool>) -> Self {
        let longest = info.endpoint().map_or(usize::MAX, |attributes| attributes.max_msg_size);
        let brings = info.domain().map_or(0, |domain| domain.cq_data_size);
        let places = info.transmit().map_or(1, |transmit| transmit.iov_limit.min(transmit.rma_iov_limit));
        let limits = Limits { immediate: brings, places, ..Limits::of(longest, ranks) };
        let limits = match info.provider() {
            name if name.ends_with("ofi_rxd") => limits.for_rxd(),
            VERBS => limits.for_verbs(),
            _ => limits,
        };
        match cq_data {
            None => limits,
            Some(carried) => Limits { immediate: if carried { brings } else { 0 }, ..limits },
        }
    }

    /// `ofi_rxm` over `verbs` (1.17, on Soft-RoCE) may post a receive again for a closed
    /// connection, and crash, unless peers share their receives (`FI_OFI_RXM_USE_SRX=1`). With
    /// shared receives it gets stuck after a hundred writes with immediate data. So writes over
    /// this provider carry none.
    fn for_verbs(self) -> Self {
        Limits { immediate: 0, ..self }
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
