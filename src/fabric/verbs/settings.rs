//! How devices are told to behave.
#![forbid(unsafe_code)]

use std::time::Duration;

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

/// After this time a peer whose device does not answer is given up.
pub(super) const LINK_TIMEOUT: Duration = Duration::from_secs(4);

/// How often a request is repeated. One more would mean without an end.
const RETRIES: u8 = 6;

/// The exponent of the time after which a request is repeated, as devices encode it: 2^n units of 4.096 us. So often
/// repeated, it takes the link timeout, as closely as powers of two permit.
fn repeat_after(link_timeout: Duration) -> u8 {
    const UNIT: f64 = 4.096e-6;
    let units = link_timeout.as_secs_f64() / f64::from(RETRIES + 1) / UNIT;
    // The InfiniBand Architecture Specification has five bits for it, and 0 for no limit.
    units.log2().round().clamp(1.0, 31.0) as u8
}

/// The settings of a connection whose packets have at most so many bytes, as libibverbs encodes that.
///
/// A peer without a receive is asked again after 80 us (6), without an end (7): it may be stopped for a while, and if it
/// has ended, its device no longer asks to wait.
pub(super) fn of_connection(mtu: u8, outstanding_reads: u8, link_timeout: Duration) -> Settings {
    let (timeout, mtu) = (repeat_after(link_timeout), mtu.into());
    Settings { mtu, timeout, retry_count: RETRIES, rnr_retry: 7, min_rnr_timer: 6, outstanding_reads }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_given_up_after_about_the_link_timeout() {
        assert_eq!(repeat_after(LINK_TIMEOUT), 17);
        for millis in [1, 20, 300, 4000, 90_000, 3_600_000, 7_200_000] {
            let wanted = millis as f64 / 1e3;
            let taken = 7.0 * 4.096e-6 * f64::from(repeat_after(Duration::from_millis(millis))).exp2();
            assert!((0.7..1.5).contains(&(taken / wanted)), "{taken} s for {wanted} s");
        }
    }
}
