//! How devices are told to behave.
#![forbid(unsafe_code)]

use std::time::Duration;

use earlybird_ffi::verbs::Settings;

use super::hellos;
use crate::config::VerbsSettings;
use crate::fabric::net::peers;

/// Requests to one peer that wait in its send queue, at least, and at most where no setting says otherwise. A completion
/// tells that those before it are over, too.
pub(super) const LEAST_SENDS: usize = 16;
const MOST_SENDS: u32 = 128;

/// Requests in all send queues together.
const ALL_SENDS: usize = 1 << 14;

/// Bytes of a message that may travel within its request. A device may grant fewer, or more.
pub(super) const INLINE: u32 = 128;

/// The requests that the send queue to each peer holds.
pub(in crate::internals::fabric) fn sends(peers: usize, most: Option<u32>) -> u32 {
    let most = most.unwrap_or(MOST_SENDS);
    ((ALL_SENDS / peers.max(1)).max(LEAST_SENDS) as u32).min(most)
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

    /// Those of a rank with `receives` receives.
    pub(super) fn in_world(receives: usize, send_depth: Option<u32>, ranks: u32) -> Self {
        Depths::of(receives, sends(peers(ranks), send_depth), ranks)
    }
}

/// The entries of the completion queue of a rank with `receives` receives.
#[cfg(all(test, not(loom)))]
pub(in crate::internals::fabric) fn completions(receives: usize, ranks: u32) -> usize {
    Depths::in_world(receives, None, ranks).completions
}

/// After this time a peer whose device does not answer is given up, unless a setting says otherwise.
const LINK_TIMEOUT: Duration = Duration::from_secs(4);

/// How often a request is repeated, at most and unless a setting says otherwise. One more would mean without an end.
const RETRIES: u8 = 6;

/// How long a peer waits before it asks again for a receive: longer than a rank that runs takes to give one back.
const RECEIVER_WAIT: Duration = Duration::from_micros(80);

/// The exponent of the time after which a request is repeated, as devices encode it: 2^n units of 4.096 us. So often
/// repeated, it takes the link timeout, as closely as powers of two permit.
fn repeat_after(link_timeout: Duration, retries: u8) -> u8 {
    const UNIT: f64 = 4.096e-6;
    let units = link_timeout.as_secs_f64() / f64::from(retries + 1) / UNIT;
    // The InfiniBand Architecture Specification has five bits for it, and 0 for no limit.
    units.log2().round().clamp(1.0, 31.0) as u8
}

/// The shortest time of the table in ibv_modify_qp(3) that is not below this one, by its index. From 20 us on, index 2,
/// every other time is twice as long, and those between them half as long again; index 1 is 10 us, and 0 the longest.
fn receiver_wait(time: Duration) -> u8 {
    let micros = |index: u32| match index {
        1 => 10,
        _ => (if index.is_multiple_of(2) { 10u128 } else { 15 }) << (index / 2),
    };
    (1..32).find(|&index| micros(index) >= time.as_micros()).unwrap_or(0) as u8
}

/// The longest packet, as libibverbs encodes it: 1 for 256 bytes, 5 for 4096.
pub(super) fn longest_packet(of_port: u8, most: Option<u32>) -> u8 {
    most.map_or(of_port, |bytes| of_port.min(bytes.ilog2().saturating_sub(7) as u8))
}

/// The settings of a connection whose packets have at most `mtu` bytes, as libibverbs encodes that.
///
/// A peer without a receive is asked again without an end (7): it may be stopped for a while, and if it has ended, its
/// device no longer asks to wait.
pub(super) fn of_connection(mtu: u8, outstanding_reads: u8, chosen: &VerbsSettings) -> Settings {
    let retry_count = chosen.retries.unwrap_or(RETRIES);
    let timeout = repeat_after(chosen.link_timeout.unwrap_or(LINK_TIMEOUT), retry_count);
    let min_rnr_timer = receiver_wait(chosen.receiver_wait.unwrap_or(RECEIVER_WAIT));
    Settings { mtu: mtu.into(), timeout, retry_count, rnr_retry: 7, min_rnr_timer, outstanding_reads }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_given_up_after_about_the_link_timeout() {
        assert_eq!(repeat_after(LINK_TIMEOUT, RETRIES), 17);
        for millis in [1, 20, 300, 4000, 90_000, 3_600_000, 7_200_000] {
            let wanted = millis as f64 / 1e3;
            let taken = 7.0 * 4.096e-6 * f64::from(repeat_after(Duration::from_millis(millis), RETRIES)).exp2();
            assert!((0.7..1.5).contains(&(taken / wanted)), "{taken} s for {wanted} s");
        }
    }

    /// ibv_modify_qp(3) has the table.
    #[test]
    fn waits_for_a_receive_have_the_index_of_the_manual() {
        for (micros, index) in [
            (10, 1),
            (20, 2),
            (30, 3),
            (40, 4),
            (60, 5),
            (80, 6),
            (81, 7),
            (120, 7),
            (640, 12),
            (960, 13),
            (10_240, 20),
            (491_520, 31),
            (491_521, 0),
            (655_360, 0),
        ] {
            assert_eq!(receiver_wait(Duration::from_micros(micros)), index, "{micros} us");
        }
        assert_eq!(of_connection(5, 1, &VerbsSettings::default()).min_rnr_timer, 6);
    }

    #[test]
    fn settings_bound_packets_and_queues() {
        let packets = [None, Some(256), Some(1024), Some(4096)].map(|most| longest_packet(3, most));
        assert_eq!(packets, [3, 1, 3, 3]);
        assert_eq!([None, Some(16), Some(4096)].map(|most| sends(1, most)), [128, 16, 4096]);
        assert_eq!([None, Some(16), Some(4096)].map(|most| sends(4095, most)), [16, 16, 16]);
    }
}
