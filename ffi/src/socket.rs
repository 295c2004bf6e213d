//! Sockets: the credentials of the process at the other end of one, and sockets that a library has opened.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::c_int;

/// The process at the other end, as it was when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its process id here; `None` if it lives in a process namespace that this process does not
    /// see into.
    pub process: Option<u32>,
    /// Its effective user.
    pub user: u32,
}

/// `SO_PEERCRED`, see unix(7). Read here directly, because the kernel reports process id 0 for a
/// process in another namespace, which other bindings do not allow.
///
/// # Errors
/// The kernel's error for a descriptor that is no such socket.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed. The kernel writes at most `len` bytes,
    // which `peer` has, and any bytes are integers.
    let code = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len)
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    let process = u32::try_from(peer.pid).ok().filter(|&process| process != 0);
    Ok(Credentials { process, user: peer.uid })
}

/// A socket of TCP that has a number among this process's descriptors, which a library may close at any time. It is only named
/// here: a copy that is closed would end the process's locks of a file, if the number had become one (fcntl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    number: RawFd,
    /// This end.
    pub here: SocketAddr,
    /// The other end of a connection; `None` for a listener.
    pub there: Option<SocketAddr>,
}

impl Tcp {
    /// The socket that has this number now: one that listens, or is connected.
    #[must_use]
    pub fn of(number: RawFd) -> Option<Self> {
        if option(number, libc::SO_PROTOCOL)? != libc::IPPROTO_TCP {
            return None;
        }
        let here = address(number, libc::getsockname)?;
        match option(number, libc::SO_ACCEPTCONN)? {
            0 => Some(Tcp { number, here, there: Some(address(number, libc::getpeername)?) }),
            _ => Some(Tcp { number, here, there: None }),
        }
    }

    /// Whether this listener takes connections. If it does not, the kernel drops all that comes for it, and processes that are
    /// connected already notice nothing. By a filter that takes all bytes of a packet or none (`SO_ATTACH_FILTER` in
    /// socket(7)); where the kernel takes none, by demanding signatures (`TCP_MD5SIG_EXT` in `linux/tcp.h`) with a key that no
    /// process knows.
    ///
    /// # Errors
    /// The kernel's.
    pub fn admit(&self, all: bool) -> io::Result<()> {
        self.filter(all).or_else(|cause| self.demand_signatures(!all).map_err(|_| cause))
    }

    fn filter(&self, all: bool) -> io::Result<()> {
        attach(self.number, &mut [instruction(END, if all { u32::MAX } else { 0 }, (0, 0))])
    }

    fn demand_signatures(&self, demand: bool) -> io::Result<()> {
        let mut key = [0; 16];
        // SAFETY: the kernel writes at most as many bytes as there are.
        let drawn = unsafe { libc::getrandom(key.as_mut_ptr().cast(), key.len(), 0) };
        if drawn != key.len() as isize {
            return Err(io::Error::last_os_error());
        }
        let key = if demand { &key[..] } else { &[] };
        match option(self.number, libc::SO_DOMAIN) {
            Some(libc::AF_INET) => sign(self.number, libc::AF_INET, Ipv6Addr::UNSPECIFIED, key),
            // Addresses of IPv4, too, which are a part of these.
            _ => sign(self.number, libc::AF_INET6, Ipv6Addr::UNSPECIFIED, key)
                .and_then(|()| sign(self.number, libc::AF_INET6, Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(), key)),
        }
    }

    /// Closes the oldest connection that waits at this listener; returns where it came from, or `None` if none waits.
    ///
    /// # Errors
    /// The kernel's, if this process has no descriptor left.
    pub fn turn_away(&self) -> io::Result<Option<SocketAddr>> {
        let mut polled = libc::pollfd { fd: self.number, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives during the call.
        if unsafe { libc::poll(&raw mut polled, 1, 0) } <= 0 {
            return Ok(None);
        }
        // SAFETY: it may be told no address.
        let taken = unsafe { libc::accept4(self.number, ptr::null_mut(), ptr::null_mut(), libc::SOCK_CLOEXEC) };
        if taken < 0 {
            let cause = io::Error::last_os_error();
            let is_used_up = matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
            return if is_used_up { Err(cause) } else { Ok(None) };
        }
        // SAFETY: the kernel has just made it, for this call.
        let taken = unsafe { OwnedFd::from_raw_fd(taken) };
        Ok(address(taken.as_raw_fd(), libc::getpeername))
    }

    /// This connection, to be known again; `None` if the number does not have it any more.
    #[must_use]
    pub fn connection(&self) -> Option<Connection> {
        let cookie = cookie(self.number)?;
        (Tcp::of(self.number) == Some(*self)).then_some(Connection { number: self.number, cookie })
    }

    /// Ends this connection, if the number still has it; the library that has it finds it ended. Returns whether it did.
    #[must_use]
    pub fn cut(&self) -> bool {
        // SAFETY: it has no memory to do with.
        Tcp::of(self.number) == Some(*self) && unsafe { libc::shutdown(self.number, libc::SHUT_RDWR) } == 0
    }
}

/// A connection that has a number among this process's descriptors, as long as the library that has made it keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    number: RawFd,
    /// The kernel gives no two sockets the same.
    cookie: u64,
}

impl Connection {
    /// Whether it is still there, and its other end is open.
    #[must_use]
    pub fn lives(&self) -> bool {
        let (mut state, mut len) = (0u8, 1 as libc::socklen_t);
        // SAFETY: it only looks, whatever the number has. The kernel writes one byte, the first of `tcp_info`.
        let code = unsafe {
            libc::getsockopt(self.number, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &raw mut len)
        };
        code == 0 && state == ESTABLISHED && cookie(self.number) == Some(self.cookie)
    }
}

/// `TCP_ESTABLISHED` of the kernel's `enum` in `tcp_states.h`.
const ESTABLISHED: u8 = 1;

/// What the kernel calls the socket that has a number (`SO_COOKIE`, socket(7)).
fn cookie(number: RawFd) -> Option<u64> {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: it only looks, whatever the number has. The kernel writes 8 bytes.
    let code =
        unsafe { libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut len) };
    (code == 0).then_some(cookie)
}

/// An option of the socket that has a number.
fn option(number: RawFd, name: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: it only looks, whatever the number has. The kernel writes an integer.
    let code = unsafe { libc::getsockopt(number, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    (code == 0).then_some(value)
}

/// An end of the socket that has a number, without the scope; one of IPv4 as that.
fn address(
    number: RawFd,
    ask: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int,
) -> Option<SocketAddr> {
    // SAFETY: any bytes are a valid one.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: it only looks, whatever the number has. The kernel writes at most `len` bytes, which `storage` has.
    if unsafe { ask(number, (&raw mut storage).cast(), &raw mut len) } != 0 {
        return None;
    }
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which structure is there, and the storage is as large and as aligned as any.
            let it = unsafe { (&raw const storage).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(it.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip.into(), u16::from_be(it.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let it = unsafe { (&raw const storage).cast::<libc::sockaddr_in6>().read() };
            let ip = IpAddr::from(Ipv6Addr::from(it.sin6_addr.s6_addr)).to_canonical();
            Some(SocketAddr::new(ip, u16::from_be(it.sin6_port)))
        }
        _ => None,
    }
}

// The operations of a filter: load a word of the packet, compare it with another one, and end with the bytes to take.
const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const EQUALS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const END: u32 = libc::BPF_RET | libc::BPF_K;

/// An instruction of a filter, with how many to leave out if it holds, and if it does not.
fn instruction(code: u32, k: u32, (jt, jf): (u8, u8)) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// A filter of packets for a socket.
fn attach(number: RawFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    // The kernel copies the program in the call, and it lives until then.
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set_option(number, (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER), &program)
}

/// Sets an option, by its `(level, name)`, of the socket that has a number.
fn set_option<T>(number: RawFd, (level, name): (c_int, c_int), value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads at most `len` bytes, which `value` has.
    let code = unsafe { libc::setsockopt(number, level, name, (&raw const *value).cast(), len) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `struct tcp_md5sig` in `linux/tcp.h`.
#[repr(C)]
struct Signed {
    family: u16,
    port: [u8; 2],
    /// Of IPv4 these four bytes; of IPv6 the flow, and the address follows.
    ip: [u8; 4],
    ip6: [u8; 16],
    rest: [u8; 104],
    flags: u8,
    prefix: u8,
    key_len: u16,
    device: c_int,
    key: [u8; 80],
}

const _: () = assert!(size_of::<Signed>() == 216);

/// `TCP_MD5SIG_EXT`, and its flag for a prefix of addresses.
const SIGN: c_int = 32;
const BY_PREFIX: u8 = 1;

/// Demands signatures from all addresses of a family, by this key; none if it is empty.
fn sign(number: RawFd, family: c_int, ip6: Ipv6Addr, key: &[u8]) -> io::Result<()> {
    let mut signed = Signed {
        family: family as u16,
        port: [0; 2],
        ip: [0; 4],
        ip6: ip6.octets(),
        rest: [0; 104],
        flags: BY_PREFIX,
        prefix: 0,
        key_len: key.len() as u16,
        device: 0,
        key: [0; 80],
    };
    signed.key[..key.len()].copy_from_slice(key);
    set_option(number, (libc::IPPROTO_TCP, SIGN), &signed)
}

/// Lets a datagram socket take only what begins with these bytes: the kernel drops the rest before it takes any room there.
///
/// # Errors
/// The kernel's error for a descriptor that is no socket.
pub fn take_only(socket: BorrowedFd<'_>, beginning: [u8; 8]) -> io::Result<()> {
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|index| beginning[at + index]));
    // A load beyond the packet drops it.
    let mut program = [
        instruction(LOAD, 0, (0, 0)),
        instruction(EQUALS, word(0), (0, 3)),
        instruction(LOAD, 4, (0, 0)),
        instruction(EQUALS, word(4), (0, 1)),
        instruction(END, u32::MAX, (0, 0)),
        instruction(END, 0, (0, 0)),
    ];
    attach(socket.as_raw_fd(), &mut program)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pair_of_sockets_is_of_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = peer_credentials(one.as_fd()).unwrap();
        assert_eq!(peer.process, Some(std::process::id()));
        // SAFETY: takes nothing and cannot fail.
        let own = unsafe { libc::geteuid() };
        assert_eq!(peer.user, own);
    }

    #[test]
    fn what_is_no_socket_has_no_peer() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(peer_credentials(file.as_fd()).is_err());
    }

    #[test]
    fn a_listener_that_admits_no_more_keeps_its_connections() {
        admits_no_more("127.0.0.1:0", |tcp, all| tcp.filter(all));
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            // Kernels are built without that, too, and hosts without IPv6.
            let has = TcpListener::bind(address)
                .is_ok_and(|listener| Tcp::of(listener.as_raw_fd()).unwrap().demand_signatures(true).is_ok());
            match has {
                true => admits_no_more(address, |tcp, all| tcp.demand_signatures(!all)),
                false => println!("SKIPPED: this kernel takes no signatures at {address}"),
            }
        }
    }

    fn admits_no_more(address: &str, admit: impl Fn(&Tcp, bool) -> io::Result<()>) {
        let listener = TcpListener::bind(address).unwrap();
        let mut address = listener.local_addr().unwrap();
        if address.ip().is_unspecified() {
            // Of IPv4.
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        let mut before = TcpStream::connect(address).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let waiting = TcpStream::connect(address).unwrap();
        let tcp = Tcp::of(listener.as_raw_fd()).unwrap();
        assert_eq!((tcp.here.port(), tcp.there), (address.port(), None));
        admit(&tcp, false).unwrap();
        let after = TcpStream::connect_timeout(&address, Duration::from_millis(300));
        assert_eq!(after.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(tcp.turn_away().unwrap(), Some(waiting.local_addr().unwrap()));
        assert_eq!(tcp.turn_away().unwrap(), None);
        before.write_all(b"here").unwrap();
        accepted.write_all(b"there").unwrap();
        let (mut here, mut there) = ([0; 4], [0; 5]);
        accepted.read_exact(&mut here).unwrap();
        before.read_exact(&mut there).unwrap();
        assert_eq!((&here, &there), (b"here", b"there"));
        admit(&tcp, true).unwrap();
        TcpStream::connect_timeout(&address, Duration::from_secs(30)).unwrap();
        let connection = Tcp::of(accepted.as_raw_fd()).unwrap();
        assert_eq!((connection.here, connection.there), (address, Some(before.local_addr().unwrap())));
        assert!(connection.cut());
        assert_eq!(before.read(&mut [0]).unwrap(), 0);
        assert!(!Tcp { there: None, ..connection }.cut(), "another socket has the number");
    }

    #[test]
    fn only_tcp_is_found() {
        let (one, _other) = UnixStream::pair().unwrap();
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        datagrams.connect("127.0.0.1:9").unwrap();
        let unconnected =
            TcpListener::bind("[::1]:0").map(|listener| Tcp::of(listener.as_raw_fd()).unwrap().here.is_ipv6());
        assert!(unconnected.unwrap_or(true));
        let file = std::fs::File::open("/dev/null").unwrap();
        for number in [1 << 20, one.as_raw_fd(), datagrams.as_raw_fd(), file.as_raw_fd()] {
            assert_eq!(Tcp::of(number), None);
        }
    }

    #[test]
    fn datagrams_that_begin_otherwise_are_dropped() {
        let (one, other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        take_only(other.as_fd(), *b"12345678").unwrap();
        other.set_nonblocking(true).unwrap();
        for text in [&b"12345678 and more"[..], b"12345678"] {
            for dropped in [&b""[..], b"1234567", b"12345679", b"02345678 and more"] {
                let _ = one.send(dropped);
            }
            one.send(text).unwrap();
            let mut came = [0; 100];
            let len = other.recv(&mut came).unwrap();
            assert_eq!(&came[..len], text);
        }
        assert!(other.recv(&mut [0; 8]).is_err());
    }
}
