//! Which processes stay connected to this rank's address: the ranks of its world.
//!
//! libfabric's `tcp` and `sockets` listen as long as an endpoint lives, and a stranger that connects can stop this rank by a
//! few bytes (see SECURITY.md). Once the ranks are connected to each other, none needs to connect any more. libfabric has no
//! call that says so, so the kernel is told: it drops all that comes for the listening socket from then on. Connections that
//! no rank has made are cut.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use earlybird_ffi::socket::Tcp;
use rustix::net::AddressFamily;
use rustix::process::{Resource, getrlimit};

use crate::error::Ranks;
use crate::strangers::Places;

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

/// Numbers to look at where the kernel does not list those of descriptors, as where a process has none left for that.
const MOST_NUMBERS: u64 = 1 << 16;

/// The sockets of TCP of this process, one after the other: those that listen, and those that are connected.
fn sockets() -> impl Iterator<Item = Tcp> {
    let listed = std::fs::read_dir("/proc/self/fd").map(|entries| {
        let number = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        entries.filter_map(number).collect::<Vec<i32>>()
    });
    let most = || getrlimit(Resource::Nofile).current.unwrap_or(MOST_NUMBERS).min(MOST_NUMBERS) as i32;
    listed.unwrap_or_else(|_| (0..most()).collect()).into_iter().filter_map(Tcp::of)
}

/// The connections that this process has made to each of these addresses, by their own ends: what it tells the rank there.
pub(super) fn made(to: &[SocketAddr]) -> Vec<Vec<u8>> {
    let mut made: BTreeMap<SocketAddr, Vec<u8>> = BTreeMap::new();
    for Tcp { here, there, .. } in sockets() {
        there.into_iter().for_each(|there| made.entry(there).or_default().extend(encode(here)));
    }
    let told = |address| match made.get(address) {
        Some(made) if made.len() > MOST_MADE => TOO_MANY.to_vec(),
        made => made.cloned().unwrap_or_default(),
    };
    to.iter().map(told).collect()
}

/// Most bytes of what a rank tells another one.
const MOST_MADE: usize = 50 * ENCODED;

/// What a rank tells that has made more connections than fit, as where many ranks share a process.
const TOO_MANY: [u8; 1] = [0];

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

/// Admits nothing more at `ranks[me]`, where this process listens, unless it may `connect_later` itself, and cuts what no rank
/// has made. `ranks` are the addresses of all, and `told` is what each has told this one. Returns where the cut connections
/// came from. libfabric must make no progress meanwhile.
///
/// Where a rank has told of too many, no rank's connection can be told from a stranger's, and none is cut.
///
/// # Errors
/// Ranks to which there is no connection that they have made, or that was made to them: what is sent to such a rank may go to
/// a process that has connected in its name.
pub(super) fn shut(
    me: usize,
    ranks: &[SocketAddr],
    told: &[Vec<u8>],
    connect_later: bool,
) -> Result<BTreeSet<SocketAddr>, (Ranks, String)> {
    let none = Ok(BTreeSet::new());
    let own = ranks[me];
    let all_told = !told.iter().any(|bytes| bytes == &TOO_MANY);
    let told: Vec<BTreeSet<SocketAddr>> =
        told.iter().map(|bytes| bytes.as_chunks::<ENCODED>().0.iter().map(decode).collect()).collect();
    let (mut listener, mut known) = (None, BTreeSet::from([me]));
    for socket in sockets() {
        match socket.there {
            None if socket.here == own => listener = Some(socket),
            None => {}
            Some(there) if socket.here == own => {
                known.extend((0..told.len()).filter(|&rank| told[rank].contains(&there)));
            }
            Some(there) => known.extend(ranks.iter().position(|&rank| rank == there)),
        }
    }
    // Other devices than those of TCP have such addresses, too.
    let Some(listener) = listener else { return none };
    let unknown: Vec<u32> = (0..ranks.len()).filter(|rank| !known.contains(rank)).map(|rank| rank as u32).collect();
    if !all_told {
        tracing::warn!(rank = me, "strangers' connections may stay: a process has too many ranks");
        return none;
    }
    if !unknown.is_empty() {
        let why = "another process has connected in its name, or addresses are translated between hosts";
        return Err((Ranks(unknown), why.to_owned()));
    }
    let mut cut = BTreeSet::new();
    if !connect_later {
        // Also those that libfabric has not taken yet. It is connected to all ranks.
        let shut = listener.admit(false).and_then(|()| turn_away(&listener, &mut cut));
        if let Err(cause) = shut {
            tracing::warn!(rank = me, "strangers may connect: {cause} (is ulimit -n too low?)");
        }
    }
    for socket in sockets().filter(|socket| socket.here == own) {
        let there = socket.there.filter(|there| told.iter().all(|made| !made.contains(there)));
        cut.extend(there.filter(|_| socket.cut()));
    }
    Ok(cut)
}

/// Accepts and closes the connections that wait at a listener, and adds where they came from.
fn turn_away(listener: &Tcp, from: &mut BTreeSet<SocketAddr>) -> std::io::Result<()> {
    while let Some(one) = listener.turn_away()? {
        from.insert(one);
    }
    Ok(())
}

/// The connections that have come to `ranks[me]` from addresses at which no rank is.
pub(super) fn from_elsewhere(me: usize, ranks: &[SocketAddr]) -> Places {
    let hosts: BTreeSet<IpAddr> = ranks.iter().map(SocketAddr::ip).collect();
    let mut places = Places::default();
    for socket in sockets().filter(|socket| socket.here == ranks[me]) {
        let there = socket.there.filter(|there| !hosts.contains(&there.ip()));
        there.iter().for_each(|there| places.came(&there.ip().to_string()));
    }
    places
}

/// All processes may connect here again.
#[cfg(test)]
pub(super) fn open(own: SocketAddr) {
    let listeners = sockets().filter(|socket| socket.there.is_none() && socket.here == own);
    listeners.for_each(|listener| listener.admit(true).unwrap());
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
        let elsewhere = encode("10.0.0.1:9".parse().unwrap()).to_vec();
        assert_eq!(shut(0, &ranks, &[Vec::new(), elsewhere], false).unwrap_err().0, Ranks(vec![1]));
        assert_eq!(shut(0, &ranks, &[TOO_MANY.to_vec(), of_rank.clone()], false), Ok(BTreeSet::new()));
        let came = strangers.each_ref().map(|stranger| stranger.local_addr().unwrap());
        // Where a rank may connect to itself later, what waits to be accepted stays.
        assert_eq!(shut(0, &ranks, &[Vec::new(), of_rank.clone()], true), Ok(BTreeSet::from([came[0]])));
        assert!(shut(0, &ranks, &[Vec::new(), of_rank], false).unwrap().contains(&came[1]));
        for stranger in &mut strangers {
            stranger.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            assert_eq!(stranger.read(&mut [0]).unwrap(), 0);
        }
        assert!(accepted[0].take_error().unwrap().is_none());
        let late = TcpStream::connect_timeout(&own, Duration::from_millis(300));
        assert_eq!(late.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    }
}
