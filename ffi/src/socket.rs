//! The credentials of the process at the other end of a Unix socket, from the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

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
}
