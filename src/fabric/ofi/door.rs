//! Which processes stay connected to this rank's address: the ranks of its world.
//!
//! libfabric's `tcp` and `sockets` listen as long as an endpoint lives, and a stranger that connects can stop this rank by a
//! few bytes (see SECURITY.md). Once the ranks are connected to each other, none needs to connect any more. libfabric has no
//! call that says so, so the kernel is told: it drops all that comes for the listening socket from then on. Connections that
//! no rank has made are cut.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use crate::strangers::Places;
use earlybird_ffi::socket::{admit, internet_socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, Shutdown, acceptfrom, getpeername, getsockname, shutdown, sockopt};

/// Where one connection or listener of this process is.
#[derive(Debug)]
struct Socket {
    here: SocketAddr,
    /// The other end of a connection; `None` for a listener.
    there: Option<SocketAddr>,
    descriptor: OwnedFd,
}

/// The internet address in a `sockaddr` (ip(7), ipv6(7)); `None` for another one.
pub(super) fn internet_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let ip = match AddressFamily::from_raw(family) {
        AddressFamily::INET => IpAddr::from(Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?)),
        AddressFamily::INET6 => IpAddr::from(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?)),
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

/// An address of IPv4 as one of IPv4, and no scope.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The internet sockets of this process: those that listen, and those that are connected.
fn sockets() -> Vec<Socket> {
    let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    // All before the first one is duplicated.
    let numbers: Vec<i32> = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let socket = |number: i32| {
        let descriptor = internet_socket(number)?;
        let here = SocketAddr::try_from(getsockname(&descriptor).ok()?).ok()?;
        let there = match sockopt::socket_acceptconn(&descriptor).ok()? {
            true => None,
            false => Some(SocketAddr::try_from(getpeername(&descriptor).ok()??).ok()?),
        };
        Some(Socket { here: canonical(here), there: there.map(canonical), descriptor })
    };
    numbers.into_iter().filter_map(socket).collect()
}

/// The connections that this process has made to these addresses, by their own ends: what it tells the other ranks.
pub(super) fn made(to: &[SocketAddr]) -> Vec<u8> {
    let to: BTreeSet<&SocketAddr> = to.iter().collect();
    let made = sockets().into_iter().filter(|socket| socket.there.is_some_and(|there| to.contains(&there)));
    made.flat_map(|socket| encode(socket.here)).collect()
}

const ENCODED: usize = 18;

fn encode(address: SocketAddr) -> [u8; ENCODED] {
    let mut bytes = [0; ENCODED];
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; ENCODED]) -> SocketAddr {
    let (ip, port) = bytes.split_at(16);
    let ip = Ipv6Addr::from(std::array::from_fn(|index| ip[index]));
    canonical(SocketAddr::new(ip.into(), u16::from_le_bytes([port[0], port[1]])))
}

/// Admits nothing more at `ranks[me]`, where this process listens, and cuts what no rank has made. `ranks` are the addresses
/// of all, and `told` is what each has told. Returns where the cut connections came from. libfabric must make no progress
/// meanwhile.
///
/// Where a connection seems to come from elsewhere than its maker says, as where addresses are translated, no rank's
/// connection can be told from a stranger's, and none is cut.
pub(super) fn shut(me: usize, ranks: &[SocketAddr], told: &[Vec<u8>]) -> BTreeSet<SocketAddr> {
    let told: Vec<BTreeSet<SocketAddr>> =
        told.iter().map(|bytes| bytes.as_chunks::<ENCODED>().0.iter().map(decode).collect()).collect();
    let is_here = |socket: &Socket| socket.here.port() == ranks[me].port();
    let (listeners, connections): (Vec<_>, Vec<_>) = sockets().into_iter().partition(|socket| socket.there.is_none());
    let listeners: Vec<Socket> = listeners.into_iter().filter(is_here).collect();
    for listener in &listeners {
        if let Err(error) = admit(listener.descriptor.as_fd(), false) {
            tracing::debug!(rank = me, ?listener, %error, "listens on");
        }
    }
    let mut known = BTreeSet::from([me]);
    for socket in &connections {
        let Some(there) = socket.there else { continue };
        match is_here(socket) {
            true => known.extend((0..told.len()).filter(|&rank| told[rank].contains(&there))),
            false => known.extend(ranks.iter().position(|&rank| rank == there)),
        }
    }
    if known.len() < ranks.len() {
        tracing::debug!(rank = me, ?known, "cannot tell strangers' connections from those of ranks");
        return BTreeSet::new();
    }
    // Those that libfabric has not taken yet. It is connected to all ranks.
    let mut cut: BTreeSet<SocketAddr> = listeners.iter().flat_map(drain).collect();
    let is_strange = |there: &SocketAddr| told.iter().all(|made| !made.contains(there));
    for socket in sockets() {
        let Some(there) = socket.there.filter(|there| is_here(&socket) && is_strange(there)) else { continue };
        if shutdown(&socket.descriptor, Shutdown::Both).is_ok() {
            cut.insert(there);
        }
    }
    cut
}

/// The connections that have come to `ranks[me]` from addresses at which no rank is.
pub(super) fn from_elsewhere(me: usize, ranks: &[SocketAddr]) -> Places {
    let hosts: BTreeSet<IpAddr> = ranks.iter().map(SocketAddr::ip).collect();
    let mut places = Places::default();
    for Socket { here, there, .. } in sockets() {
        let there = there.filter(|there| here.port() == ranks[me].port() && !hosts.contains(&there.ip()));
        there.iter().for_each(|there| places.came(&there.ip().to_string()));
    }
    places
}

/// Closes the connections that wait at a listener; returns where they came from.
fn drain(listener: &Socket) -> Vec<SocketAddr> {
    let mut from = Vec::new();
    while let Ok(1..) = poll(&mut [PollFd::new(&listener.descriptor, PollFlags::IN)], Some(&Timespec::default())) {
        let Ok((_, Some(address))) = acceptfrom(&listener.descriptor) else { break };
        from.extend(SocketAddr::try_from(address).map(canonical));
    }
    from
}

/// All processes may connect here again.
#[cfg(test)]
pub(super) fn open(own: SocketAddr) {
    let is_here = |socket: &Socket| socket.there.is_none() && socket.here.port() == own.port();
    let listeners = sockets().into_iter().filter(is_here);
    listeners.for_each(|listener| admit(listener.descriptor.as_fd(), true).unwrap());
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn addresses_survive_encoding() {
        for text in ["127.0.0.1:80", "10.1.2.3:65535", "[fd77::1]:1", "[::ffff:10.0.0.1]:7"] {
            let address = canonical(text.parse().unwrap());
            assert_eq!(decode(&encode(address)), address);
        }
        assert_eq!(internet_address(b"\x02\x00\x01\x02\x0a\x00\x00\x01"), Some("10.0.0.1:258".parse().unwrap()));
        assert_eq!(internet_address(b"\x02\x00\x01\x02\x0a\x00\x00"), None);
        assert_eq!(internet_address(b"shm://1"), None);
        assert_eq!(internet_address(b""), None);
    }

    /// Two ranks, of which one has connected to the other, and a stranger.
    #[test]
    fn what_no_rank_has_made_is_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let rank = TcpStream::connect(own).unwrap();
        let mut strangers = [TcpStream::connect(own).unwrap(), TcpStream::connect(own).unwrap()];
        // The second one is not accepted yet.
        let accepted = [listener.accept().unwrap().0, listener.accept().unwrap().0];
        let ranks = [own, "127.0.0.1:1".parse().unwrap()];
        let of_rank = encode(rank.local_addr().unwrap()).to_vec();

        // Its maker seems to be elsewhere.
        assert_eq!(shut(0, &ranks, &[Vec::new(), encode("10.0.0.1:9".parse().unwrap()).to_vec()]), BTreeSet::new());
        let came = strangers.each_ref().map(|stranger| stranger.local_addr().unwrap());
        assert_eq!(shut(0, &ranks, &[Vec::new(), of_rank]), BTreeSet::from(came));
        for stranger in &mut strangers {
            stranger.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            assert_eq!(stranger.read(&mut [0]).unwrap(), 0);
        }
        assert!(accepted[0].take_error().unwrap().is_none());
        let late = TcpStream::connect_timeout(&own, Duration::from_millis(300));
        assert_eq!(late.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    }
}
