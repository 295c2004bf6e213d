//! How devices are told to behave.
#![forbid(unsafe_code)]

use earlybird_ffi::verbs::Settings;

use super::hellos;
use crate::fabric::net::peers;

/// Requests to one peer that wait in its send queue, at least and at most. A completion tells that
/// those before it are over, too.
pub(super) const LEAST_SENDS: usize = 16;
const MOST_SENDS: usize = 128;

/// Requests in all send queues together.
const ALL_SENDS: usize = 1 << 14;

/// Bytes of a message that may travel within its request. A device may grant fewer, or more.
pub(super) const INLINE: u32 = 128;

/// The requests that the send queue to each peer holds.
pub(in crate::fabric) fn sends(peers: usize) -> u32 {
    (ALL_SENDS / peers.max(1)).clamp(LEAST_SENDS, MOST_SENDS) as u32
}

/// What the queues of a rank hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depths {
    /// Receives in the queue that all connections share.
    pub(super) receives: usize,
    /// Requests in the send queue to each peer.
    pub(super) sends: u32,
    /// Entries of the completion queue.
    pub(super) completions: usize,
}

impl Depths {
    /// With an entry for each request that can be in flight: each completes with one if its connection
    /// fails, and no other is posted in its place before that entry was read.
    pub(super) fn of(receives: usize, sends: u32, ranks: u32) -> Self {
        let completions = receives + hellos::SENDS + hellos::RECEIVES + ranks as usize * sends as usize;
        Depths { receives, sends, completions }
    }

    /// Those of a rank with so many receives.
    pub(super) fn in_world(receives: usize, ranks: u32) -> Self {
        Depths::of(receives, sends(peers(ranks)), ranks)
    }
}

/// The entries of the completion queue of a rank with so many receives.
#[cfg(all(test, not(loom)))]
pub(in crate::fabric) fn completions(receives: usize, ranks: u32) -> usize {
    Depths::in_world(receives, ranks).completions
}

/// The settings of a connection whose packets have at most so many bytes, as libibverbs encodes that.
///
/// A peer whose device does not answer is given up after about four seconds: 2^17 units of 4.096 us,
/// seven times. Seven tries are the most that can be told from infinitely many. A peer without a
/// receive is asked again after 80 us (6), without an end (7): it may be stopped for a while, and if
/// it has ended, its device no longer asks to wait.
pub(super) fn of_connection(mtu: u8, outstanding_reads: u8) -> Settings {
    Settings { mtu: mtu.into(), timeout: 17, retry_count: 6, rnr_retry: 7, min_rnr_timer: 6, outstanding_reads }
}
