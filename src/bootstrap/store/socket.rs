//! Sockets at which the ranks of a job meet: a port, or an abstract name.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use crate::bootstrap::beside::beside;
use crate::bootstrap::peer;
use crate::bootstrap::store_address::StoreAddress;
use crate::interrupt;

/// The longest time of a single poll of a socket.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// How often a guest checks whether its wait must end.
const SLICE: Duration = Duration::from_millis(100);

/// How long a process may take for a message that a rank sends at once.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(to),
            Stream::Tcp(stream) => stream.read(to),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(from),
            Stream::Tcp(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Stream {
    /// Makes calls block from now on, for at most `time` each.
    pub(super) fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        let time = Some(time.max(PAUSE));
        match self {
            Stream::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(time)?;
                stream.set_write_timeout(time)
            }
            Stream::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(time)?;
                stream.set_write_timeout(time)
            }
        }
    }

    /// Fills `to` by `until`, however slowly the bytes come. Only the error of an interrupted wait has the kind
    /// `Interrupted`.
    pub(super) fn read_until(&mut self, to: &mut [u8], until: Instant) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => read_until(stream, to, until),
            Stream::Tcp(stream) => fill(&*stream, |time| stream.set_read_timeout(Some(time)), to, until),
        }
    }

    pub(super) fn do_not_block(&self) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_nonblocking(true),
            Stream::Tcp(stream) => stream.set_nonblocking(true),
        }
    }

    /// Returns the address or the process at the other end, for people.
    pub(super) fn origin(&self) -> String {
        match self {
            Stream::Unix(stream) => match peer::of_this_user(stream).ok().and_then(|peer| peer.process) {
                Some(process) => format!("process {process}"),
                None => "a process of this machine".to_owned(),
            },
            Stream::Tcp(stream) => {
                stream.peer_addr().map_or("an unknown address".to_owned(), |peer| peer.ip().to_string())
            }
        }
    }

    /// Checks the peer's user, if the kernel knows it.
    pub(super) fn check_user(&self) -> std::result::Result<(), String> {
        match self {
            Stream::Unix(stream) => peer::of_this_user(stream).map(drop),
            Stream::Tcp(_) => Ok(()),
        }
    }
}

/// As [`Stream::read_until`], from a socket that blocks.
pub(in crate::internals::bootstrap) fn read_until(
    stream: &UnixStream,
    to: &mut [u8],
    until: Instant,
) -> io::Result<()> {
    fill(stream, |time| stream.set_read_timeout(Some(time)), to, until)
}

fn fill(
    mut from: impl Read,
    wait_at_most: impl Fn(Duration) -> io::Result<()>,
    to: &mut [u8],
    until: Instant,
) -> io::Result<()> {
    let mut filled = 0;
    while filled < to.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        interrupt::check(0, "join").map_err(|_| io::ErrorKind::Interrupted)?;
        wait_at_most(left.clamp(PAUSE, SLICE))?;
        match from.read(&mut to[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(cause) if matches!(cause.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

pub(super) fn abstract_name(name: &str) -> io::Result<UnixAddr> {
    UnixAddr::from_abstract_name(format!("earlybird-{name}-store"))
}

/// Returns the addresses of a host.
fn resolve(host: &str, port: u16, until: Instant) -> io::Result<Vec<SocketAddr>> {
    let name = host.to_owned();
    let search = move || (&*name, port).to_socket_addrs().map(Iterator::collect);
    beside(search, until, || format!("the search for the address of {host} has not ended"))
}

/// Listens at the given address if it is a numeric one of this machine, and at all addresses for a name. This host may
/// resolve its own name to a loopback address, which no other host reaches.
pub(super) fn listen(store: &StoreAddress) -> io::Result<Listener> {
    match store {
        StoreAddress::Tcp { port, .. } => {
            let named = store.given_ip().map(|address| SocketAddr::new(address, *port));
            let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
            let any = any.map(|address| SocketAddr::new(address, *port));
            let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
            for address in named.into_iter().chain(any) {
                match TcpListener::bind(address) {
                    Ok(listener) => return Ok(Listener::Tcp(listener)),
                    Err(cause) if cause.kind() == io::ErrorKind::AddrInUse => return Err(cause),
                    Err(cause) => last = cause,
                }
            }
            Err(last)
        }
        // On each host the name of its own host is another one.
        StoreAddress::Among { port, .. } => listen(&StoreAddress::Tcp { host: String::new(), port: *port }),
        StoreAddress::Unix(name) => UnixListener::bind_addr(&abstract_name(name)?).map(Listener::Unix),
        StoreAddress::File(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

impl Listener {
    pub(super) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
        }
    }

    pub(super) fn do_not_block(&self) -> io::Result<()> {
        match self {
            Listener::Unix(listener) => listener.set_nonblocking(true),
            Listener::Tcp(listener) => listener.set_nonblocking(true),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Connects to a socket at which rank 0 may listen.
pub(super) fn connect(store: &StoreAddress, until: Instant) -> io::Result<Stream> {
    match store {
        StoreAddress::Tcp { host, port } => {
            let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
            let found = match store.given_ip() {
                Some(address) => vec![SocketAddr::new(address, *port)],
                None => resolve(host, *port, until)?,
            };
            for address in found {
                // A name may have unreachable addresses besides a reachable one.
                let left = until.saturating_duration_since(Instant::now()).clamp(PAUSE, GREETING_TIMEOUT);
                let connect = move || TcpStream::connect_timeout(&address, left);
                let late = || format!("{address} does not answer");
                match beside(connect, Instant::now() + left + PAUSE, late) {
                    Ok(stream) => return Ok(Stream::Tcp(stream)),
                    Err(cause) if cause.kind() == io::ErrorKind::Interrupted => return Err(cause),
                    Err(cause) => last = cause,
                }
            }
            Err(last)
        }
        StoreAddress::Unix(name) => peer::connect_to(&abstract_name(name)?).map(Stream::Unix),
        StoreAddress::Among { .. } | StoreAddress::File(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}
