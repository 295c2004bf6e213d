//! Which processes stay connected to this rank's address: the ranks of its world.
//!
//! libfabric's `tcp` and `sockets` listen as long as an endpoint lives, and a stranger that connects can stop this rank by a
//! few bytes (see SECURITY.md). Once the ranks are connected to each other, none needs to connect any more. libfabric has no
//! call that says so, so the kernel is told: it drops all that comes for the listening socket from then on. Connections that
//! no rank has made are cut.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use earlybird_ffi::socket::{Connection, Tcp};
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

/// Numbers to look at where the kernel does not list those of descriptors, as where a process has none left for that. Linux
/// gives a process no more, unless root has set `fs.nr_open` higher.
const MOST_NUMBERS: u64 = 1 << 20;

/// The sockets of TCP of this process, one after the other: those that listen, and those that are connected.
fn sockets() -> impl Iterator<Item = Tcp> {
    // Not those of the process, which is gone from there once its first thread has ended.
    let listed = std::fs::read_dir("/proc/thread-self/fd").map(|entries| {
        let number = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        entries.filter_map(number).collect::<Vec<i32>>()
    });
    let most = || getrlimit(Resource::Nofile).current.unwrap_or(MOST_NUMBERS).min(MOST_NUMBERS) as i32;
    listed.unwrap_or_else(|_| (0..most()).collect()).into_iter().filter_map(Tcp::of)
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

fn decoded(bytes: &[u8]) -> impl Iterator<Item = SocketAddr> {
    bytes.as_chunks().0.iter().map(decode)
}

fn decode(bytes: &[u8; ENCODED]) -> SocketAddr {
    let (ip, port) = bytes.split_at(16);
    let ip = Ipv6Addr::from(std::array::from_fn(|index| ip[index]));
    canonical(SocketAddr::new(ip.into(), u16::from_le_bytes([port[0], port[1]])))
}

/// The connections of a rank with the others of its world, while they find out which of them are theirs.
///
/// Each rank tells each other one three things, in this order, and what it tells is sealed:
///
/// 1. its ends of the connections that it has made to that rank;
/// 2. once no more can come: those that are still there, among the ones that the other has told;
/// 3. those that it still has itself, among the ones that the other has just told.
///
/// The third counts, because the kernel gives two sockets no equal pair of addresses: what a rank has at that time, and the
/// other one has kept since, no process has taken over in between.
#[derive(Debug)]
pub(super) struct Door {
    me: usize,
    /// The addresses of all ranks.
    ranks: Vec<SocketAddr>,
    /// The other ends of the connections that each rank has made to this one.
    kept: Vec<BTreeSet<SocketAddr>>,
    /// Ranks to which this one has a connection that is theirs.
    known: BTreeSet<usize>,
    /// There is a listener for connections over the internet. Other devices than those of TCP have such addresses, too.
    listens: bool,
    /// A rank has too many connections to tell.
    is_blind: bool,
    /// Where connections came from that are no longer there.
    cut: BTreeSet<SocketAddr>,
    /// Those with each rank, of which both ends know.
    connections: Vec<Vec<Connection>>,
}

impl Door {
    pub(super) fn new(me: u32) -> Self {
        Door {
            me: me as usize,
            ranks: Vec::new(),
            kept: Vec::new(),
            known: BTreeSet::from([me as usize]),
            listens: false,
            is_blind: false,
            cut: BTreeSet::new(),
            connections: Vec::new(),
        }
    }

    /// Adds the address of the next rank, in the order of ranks.
    pub(super) fn add(&mut self, address: SocketAddr) {
        self.ranks.push(address);
    }

    /// The address of this rank, once it was added.
    pub(super) fn own(&self) -> Option<SocketAddr> {
        self.ranks.get(self.me).copied()
    }

    /// How many ranks have an address.
    pub(super) fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// What this rank tells each one first: the connections that this process has made to it.
    pub(super) fn made(&self) -> Vec<Vec<u8>> {
        let mut made: BTreeMap<SocketAddr, Vec<u8>> = BTreeMap::new();
        for Tcp { here, there, .. } in sockets() {
            there.into_iter().for_each(|there| made.entry(there).or_default().extend(encode(here)));
        }
        let told = |address| match made.get(address) {
            Some(made) if made.len() > MOST_MADE => TOO_MANY.to_vec(),
            made => made.cloned().unwrap_or_default(),
        };
        self.ranks.iter().map(told).collect()
    }

    /// All ranks have told what they made, so they are connected. Admits nothing more, unless this rank may `connect_later`
    /// itself. Returns what this rank tells each one then: what it keeps of that. libfabric must make no progress meanwhile.
    ///
    /// # Errors
    /// Strangers may connect further; says why.
    pub(super) fn shut(&mut self, made: &[Vec<u8>], connect_later: bool) -> Result<Vec<Vec<u8>>, String> {
        let (rank, own) = (self.me, self.own());
        let listener = sockets().find(|socket| socket.there.is_none() && Some(socket.here) == own);
        self.listens = listener.is_some();
        self.is_blind = made.iter().any(|bytes| bytes == &TOO_MANY);
        if self.is_blind {
            tracing::warn!(rank, "strangers' connections may stay: a process has too many ranks");
            return Ok(vec![TOO_MANY.to_vec(); self.ranks.len()]);
        }
        if let Some(listener) = listener.filter(|_| !connect_later) {
            match listener.admit(false) {
                // Also those that libfabric has not taken yet. It is connected to all ranks.
                Ok(()) => turn_away(&listener, &mut self.cut)
                    .map_err(|cause| format!("{cause}; raise ulimit -n for this rank"))?,
                Err(cause) => tracing::warn!(
                    rank,
                    "strangers may connect: the kernel takes neither a filter nor signatures ({cause})"
                ),
            }
        }
        let came: BTreeSet<SocketAddr> = self.came().filter_map(|socket| socket.there).collect();
        self.kept = made.iter().map(|made| decoded(made).filter(|there| came.contains(there)).collect()).collect();
        let kept = self.kept.iter().map(|kept| kept.iter().flat_map(|&there| encode(there)).collect());
        Ok(kept.collect())
    }

    /// All ranks have told what they keep. Returns what this rank tells each one then: which of that it has made and still has.
    pub(super) fn still_made(&mut self, told: &[Vec<u8>]) -> Vec<Vec<u8>> {
        // A rank that could not tell strangers has warned of it.
        self.known.extend((0..told.len()).filter(|&rank| told[rank] == TOO_MANY));
        let kept: Vec<BTreeSet<SocketAddr>> = told.iter().map(|kept| decoded(kept).collect()).collect();
        let mut still = vec![Vec::new(); told.len()];
        self.connections = vec![Vec::new(); told.len()];
        for socket in sockets() {
            for (rank, kept) in kept.iter().enumerate() {
                if socket.there.as_ref() == self.ranks.get(rank) && kept.contains(&socket.here) {
                    still[rank].extend(encode(socket.here));
                    self.known.insert(rank);
                    self.connections[rank].extend(socket.connection());
                }
            }
        }
        still
    }

    /// All ranks have told which connections are theirs. Cuts those that are no rank's, and returns where these came from.
    /// libfabric must make no progress meanwhile.
    ///
    /// Where a rank has told of too many, no rank's connection can be told from a stranger's, and none is cut.
    ///
    /// # Errors
    /// Ranks to which there is no connection that they have made, or that was made to them: what is sent to such a rank may go
    /// to a process that has connected in its name.
    pub(super) fn cut(&mut self, still_made: &[Vec<u8>]) -> Result<BTreeSet<SocketAddr>, Ranks> {
        if self.is_blind || !self.listens {
            self.connections.clear();
            return Ok(BTreeSet::new());
        }
        self.connections.resize(self.ranks.len(), Vec::new());
        for (kept, still_made) in self.kept.iter_mut().zip(still_made) {
            let still_made: BTreeSet<SocketAddr> = decoded(still_made).collect();
            kept.retain(|there| still_made.contains(there));
        }
        let mut strangers = Vec::new();
        for socket in self.came() {
            let Some(there) = socket.there else { continue };
            let makers: Vec<usize> = (0..self.kept.len()).filter(|&rank| self.kept[rank].contains(&there)).collect();
            if makers.is_empty() {
                strangers.push((socket, there));
            }
            for &rank in &makers {
                self.connections[rank].extend(socket.connection());
            }
            self.known.extend(makers);
        }
        let unknown: Vec<u32> =
            (0..self.ranks.len()).filter(|rank| !self.known.contains(rank)).map(|rank| rank as u32).collect();
        if !unknown.is_empty() {
            return Err(Ranks(unknown));
        }
        self.cut.extend(strangers.into_iter().filter_map(|(socket, there)| socket.cut().then_some(there)));
        Ok(std::mem::take(&mut self.cut))
    }

    /// Whether a rank is still there: its end of a connection is open, so it has its port, and what came from there was its own.
    /// Nothing is known of ranks without such connections.
    pub(super) fn is_connected(&self, rank: u32) -> bool {
        let known = self.connections.get(rank as usize).filter(|known| !known.is_empty());
        known.is_none_or(|known| known.iter().any(Connection::lives))
    }

    /// The connections that have come to this rank's address.
    fn came(&self) -> impl Iterator<Item = Tcp> + use<> {
        let own = self.own();
        sockets().filter(move |socket| Some(socket.here) == own && socket.there.is_some())
    }

    /// The connections that have come to this rank from addresses at which no rank is.
    pub(super) fn hosts_without_ranks(&self) -> Places {
        let hosts: BTreeSet<IpAddr> = self.ranks.iter().map(SocketAddr::ip).collect();
        let mut places = Places::default();
        let from = self.came().filter_map(|socket| socket.there).filter(|there| !hosts.contains(&there.ip()));
        from.for_each(|there| places.came(&there.ip().to_string()));
        places
    }
}

/// Accepts and closes the connections that wait at a listener, and adds where they came from.
fn turn_away(listener: &Tcp, from: &mut BTreeSet<SocketAddr>) -> std::io::Result<()> {
    while let Some(one) = listener.turn_away()? {
        from.insert(one);
    }
    Ok(())
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
    use std::time::{Duration, Instant};

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

    /// A rank that listens, another one that has connected to it, and two strangers. The second one was not accepted.
    struct Four {
        own: SocketAddr,
        _listener: TcpListener,
        rank: Option<TcpStream>,
        strangers: [TcpStream; 2],
        accepted: [TcpStream; 2],
        door: Door,
    }

    impl Four {
        fn new() -> Four {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let own = listener.local_addr().unwrap();
            let rank = TcpStream::connect(own).unwrap();
            let strangers = [TcpStream::connect(own).unwrap(), TcpStream::connect(own).unwrap()];
            let accepted = [listener.accept().unwrap().0, listener.accept().unwrap().0];
            let mut door = Door::new(0);
            door.ranks = vec![own, "127.0.0.1:1".parse().unwrap()];
            Four { own, _listener: listener, rank: Some(rank), strangers, accepted, door }
        }

        fn made(&self) -> Vec<Vec<u8>> {
            vec![Vec::new(), encode(self.rank.as_ref().unwrap().local_addr().unwrap()).to_vec()]
        }
    }

    #[test]
    fn what_no_rank_has_made_is_cut() {
        let Four { own, _listener, rank, mut strangers, accepted, mut door } = Four::new();
        let made = vec![Vec::new(), encode(rank.as_ref().unwrap().local_addr().unwrap()).to_vec()];
        let came = strangers.each_ref().map(|stranger| stranger.local_addr().unwrap());
        assert_eq!(door.shut(&made, false).unwrap(), made);
        assert_eq!(door.cut(&made), Ok(BTreeSet::from(came)));
        for stranger in &mut strangers {
            stranger.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            assert_eq!(stranger.read(&mut [0]).unwrap(), 0);
        }
        assert!(accepted[0].take_error().unwrap().is_none());
        assert!(door.is_connected(0) && door.is_connected(1));
        drop(rank);
        let until = Instant::now() + Duration::from_secs(30);
        while door.is_connected(1) {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
        let late = TcpStream::connect_timeout(&own, Duration::from_millis(300));
        assert_eq!(late.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    }

    /// Where a rank may connect to itself later, what waits to be accepted stays.
    #[test]
    fn a_rank_that_may_connect_later_shuts_nothing() {
        let mut four = Four::new();
        let made = four.made();
        assert_eq!(four.door.shut(&made, true).unwrap(), made);
        assert_eq!(four.door.cut(&made), Ok(BTreeSet::from([four.strangers[0].local_addr().unwrap()])));
    }

    #[test]
    fn a_rank_whose_connection_is_not_there_is_unknown() {
        let mut four = Four::new();
        // Its maker seems to be elsewhere.
        let elsewhere = encode("10.0.0.1:9".parse().unwrap()).to_vec();
        assert_eq!(four.door.shut(&[Vec::new(), elsewhere.clone()], true).unwrap(), [[], []] as [[u8; 0]; 2]);
        assert_eq!(four.door.cut(&[Vec::new(), elsewhere]), Err(Ranks(vec![1])));
    }

    #[test]
    fn where_a_process_has_too_many_connections_none_is_cut() {
        let mut four = Four::new();
        let mut made = four.made();
        made[0] = TOO_MANY.to_vec();
        assert_eq!(four.door.shut(&made, false).unwrap(), [TOO_MANY, TOO_MANY]);
        assert_eq!(four.door.still_made(&[Vec::new(), TOO_MANY.to_vec()]), [[], []] as [[u8; 0]; 2]);
        assert_eq!(four.door.cut(&[Vec::new(), Vec::new()]), Ok(BTreeSet::new()));
    }

    #[test]
    fn a_rank_that_cannot_tell_strangers_is_believed() {
        let mut four = Four::new();
        let elsewhere = encode("10.0.0.1:9".parse().unwrap()).to_vec();
        four.door.shut(&[Vec::new(), elsewhere.clone()], true).unwrap();
        assert_eq!(four.door.still_made(&[Vec::new(), TOO_MANY.to_vec()]), [[], []] as [[u8; 0]; 2]);
        assert!(four.door.cut(&[Vec::new(), elsewhere]).is_ok());
    }

    /// The port of a rank's connection is taken by a stranger before its other end shuts the door: the rank, asked, does not
    /// have it.
    #[test]
    fn a_connection_from_the_port_of_a_closed_one_is_no_ranks() {
        let mut four = Four::new();
        let made = four.made();
        let kept = four.door.shut(&made, true).unwrap();
        assert_eq!(kept, made);
        // What the other rank does.
        let mut other = Door::new(1);
        other.ranks = vec!["127.0.0.1:1".parse().unwrap(), four.own];
        let told = [Vec::new(), kept[1].clone()];
        assert_eq!(other.still_made(&told)[1], made[1]);
        drop(four.rank.take());
        let still_made = other.still_made(&told);
        assert_eq!(still_made, [[], []] as [[u8; 0]; 2]);
        assert_eq!(four.door.cut(&still_made), Err(Ranks(vec![1])));
    }
}
