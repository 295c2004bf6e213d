//! Sockets: the credentials of the process at the other end of one, and sockets that a library has opened.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

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

/// A descriptor of its own for the internet socket that has `number` in this process now, which a library may close at any
/// time. `None` if the number has no such socket; there is no copy of anything else then: to close one would end the process's
/// locks of a file (fcntl(2)).
#[must_use]
pub fn internet_socket(number: RawFd) -> Option<OwnedFd> {
    let (mut domain, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: it only looks, whatever the number has. The kernel writes an integer.
    let code =
        unsafe { libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &raw mut len) };
    if code != 0 || ![libc::AF_INET, libc::AF_INET6].contains(&domain) {
        return None;
    }
    // SAFETY: a copy of a socket changes nothing that another part of the process relies on.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: the kernel has just made it, for this call.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Whether a listening socket takes connections. If it does not, the kernel drops all that comes for it, and processes that
/// are connected already notice nothing. By a filter that takes all bytes of a packet or none, see `SO_ATTACH_FILTER` in
/// socket(7).
///
/// # Errors
/// The kernel's error for a descriptor that is no socket.
pub fn admit(listener: BorrowedFd<'_>, all: bool) -> io::Result<()> {
    let most = if all { u32::MAX } else { 0 };
    let mut take = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: most };
    let program = libc::sock_fprog { len: 1, filter: &raw mut take };
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed. The kernel copies the program, of one instruction.
    let code = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            len,
        )
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut before = TcpStream::connect(address).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let copy = internet_socket(listener.as_raw_fd()).unwrap();
        admit(copy.as_fd(), false).unwrap();
        let after = TcpStream::connect_timeout(&address, Duration::from_millis(300));
        assert_eq!(after.unwrap_err().kind(), io::ErrorKind::TimedOut);
        before.write_all(b"here").unwrap();
        accepted.write_all(b"there").unwrap();
        let (mut here, mut there) = ([0; 4], [0; 5]);
        accepted.read_exact(&mut here).unwrap();
        before.read_exact(&mut there).unwrap();
        assert_eq!((&here, &there), (b"here", b"there"));
        admit(copy.as_fd(), true).unwrap();
        TcpStream::connect_timeout(&address, Duration::from_secs(30)).unwrap();
        assert!(admit(std::fs::File::open("/dev/null").unwrap().as_fd(), false).is_err());
        let (one, _other) = UnixStream::pair().unwrap();
        for number in [1 << 20, one.as_raw_fd(), std::fs::File::open("/dev/null").unwrap().as_raw_fd()] {
            assert!(internet_socket(number).is_none());
        }
    }
}
