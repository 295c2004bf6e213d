//! How a rank whose network works no more tells those of its host: by a datagram (unix(7)). They tell the others.
#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use earlybird_ffi::socket::take_only;

use crate::error::text_of;
use crate::seal::Secret;

/// Most bytes of a reason.
const MOST_REASON: usize = 4096;

/// Bytes before the reason: the key, and the rank.
const HEADING: usize = 12;

/// Where a rank rings, and hears others. No process can foresee a rank's name without the job's secret, and the kernel drops
/// what comes there without the key of the rank that hears: one that has taken the name of a rank that left learns only that
/// rank's.
pub(crate) struct Alarm {
    /// None where the kernel gives none: the others notice by themselves then.
    socket: Option<UnixDatagram>,
    others: Vec<(SocketAddr, [u8; 8])>,
    rank: u32,
    key: [u8; 8],
}

// What is secret is not printed.
impl std::fmt::Debug for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Alarm")
    }
}

/// The name at which a rank hears.
fn name(secret: &Secret, rank: u32) -> std::io::Result<SocketAddr> {
    let name = u64::from_le_bytes(secret.derive(&[b"alarm", &rank.to_le_bytes()]));
    SocketAddr::from_abstract_name(format!("earlybird-alarm-{name:016x}"))
}

impl Alarm {
    /// The alarm of a rank of the job with this secret, which rings at `others`, ranks of its host.
    pub(crate) fn new(rank: u32, secret: &Secret, others: impl Iterator<Item = u32>) -> Self {
        let key_of = |rank: u32| secret.derive::<8>(&[b"key of alarms", &rank.to_le_bytes()]);
        let key = key_of(rank);
        let open = || {
            let socket = UnixDatagram::bind_addr(&name(secret, rank)?)?;
            socket.set_nonblocking(true)?;
            take_only(socket.as_fd(), key)?;
            Ok(socket)
        };
        let socket = open().inspect_err(|error: &std::io::Error| tracing::debug!(rank, %error, "hears no alarm")).ok();
        let others = others.filter_map(|other| Some((name(secret, other).ok()?, key_of(other)))).collect();
        Alarm { socket, others, rank, key }
    }

    /// Tells the others why the world has failed. One that takes nothing misses it.
    pub(crate) fn ring(&self, reason: &str) {
        let Some(socket) = &self.socket else { return };
        let reason = &reason.as_bytes()[..reason.floor_char_boundary(MOST_REASON)];
        for (other, key) in &self.others {
            let message = [&key[..], &self.rank.to_le_bytes(), reason].concat();
            let _ = socket.send_to_addr(&message, other);
        }
    }

    /// The rank that rang, and why.
    pub(crate) fn heard(&self) -> Option<(u32, String)> {
        let socket = self.socket.as_ref()?;
        let mut message = [0; HEADING + MOST_REASON];
        let len = socket.recv(&mut message).ok()?;
        // It may have come before the filter was there.
        let (heading, reason) = message[..len].split_first_chunk::<HEADING>()?;
        let by = u32::from_le_bytes([heading[8], heading[9], heading[10], heading[11]]);
        (heading[..8] == self.key).then(|| (by, text_of(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_the_host_hear_it_and_strangers_do_not_ring() {
        let secret = Secret::of(&crate::random::draw::<16>(0).unwrap());
        let alarms = [0, 1, 2].map(|rank| Alarm::new(rank, &secret, (0..3).filter(move |&other| other != rank)));
        assert!(alarms.iter().all(|alarm| alarm.heard().is_none()));
        let stranger = UnixDatagram::unbound().unwrap();
        for message in [&b""[..], b"short", &[0; 100]] {
            (0..100).for_each(|_| _ = stranger.send_to_addr(message, &name(&secret, 2).unwrap()));
        }
        alarms[1].ring("no network");
        assert_eq!(alarms[0].heard(), Some((1, "no network".to_owned())));
        assert_eq!(alarms[2].heard(), Some((1, "no network".to_owned())));
        assert!(alarms.iter().all(|alarm| alarm.heard().is_none()));
    }

    #[test]
    fn a_long_reason_is_cut() {
        let secret = Secret::of(&crate::random::draw::<16>(0).unwrap());
        let [one, other] = [0, 1].map(|rank| Alarm::new(rank, &secret, [1 - rank].into_iter()));
        one.ring(&"é".repeat(MOST_REASON));
        assert_eq!(other.heard(), Some((0, "é".repeat(MOST_REASON / 2))));
    }
}
