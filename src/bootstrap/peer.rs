//! Identifies the process at the other end of a local socket, according to the kernel and not to the peer.

use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use earlybird_ffi::socket::{Credentials, peer_credentials};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// A question of a rank that waits at an abstract socket in vain: the kernel has a list of such names for each network
/// namespace. The text continues "was rank N started".
pub(super) const ONE_NETWORK: &str =
    ", in one network namespace (of containers: docker run --network=host, or --network=container:NAME)";

/// Connects to an abstract name. It does not wait if a process has the name and accepts no connection, because that may
/// be any process.
///
/// # Errors
/// No process listens there, or it has accepted no connection for long ([`io::ErrorKind::WouldBlock`]).
pub(super) fn connect_to(name: &SocketAddr) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_abstract_name().unwrap_or_default())?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Returns why a name at which rank 0 wants to listen is taken.
pub(super) fn holder_of(name: &SocketAddr) -> String {
    match connect_to(name).map(|holder| of_this_user(&holder)) {
        Ok(Err(why)) => why,
        Ok(Ok(_)) => {
            "rank 0 of this job is there already: two processes were told to be rank 0, or a job with the same \
                      identity runs; set EARLYBIRD_STORE=unix:NAME to tell them apart"
                .to_owned()
        }
        Err(_) => {
            "another process has taken the name at which ranks are to meet, and admits none; any user of this machine \
                   can do that: set EARLYBIRD_STORE=unix:NAME to another name"
                .to_owned()
        }
    }
}

/// Returns the credentials of the process at the other end of a socket. It must belong to this process's user: names of
/// abstract sockets are public, and any process may listen on one or connect to it.
///
/// # Errors
/// The user to whom the process belongs, the expected user, and what to do.
pub(super) fn of_this_user(socket: impl AsFd) -> Result<Credentials, String> {
    let peer = peer_credentials(socket.as_fd())
        .map_err(|cause| format!("the kernel does not say who is at the other end ({cause})"))?;
    let expected = rustix::process::geteuid().as_raw();
    if peer.user == expected {
        return match stands_for_others(peer.user) {
            false => Ok(peer),
            true => Err(format!(
                "the process at the other end may belong to any user that this user namespace has no number for: user \
                 {expected} stands for all of them (user_namespaces(7)); start the ranks as another user"
            )),
        };
    }
    Err(format!(
        "the process at the other end belongs to user {}, where user {expected} was expected; start all ranks of a job \
         as one user, and give each job an EARLYBIRD_STORE=unix:NAME of its own",
        peer.user
    ))
}

/// Returns whether a user's number here stands for all users without a number in this user namespace.
pub(super) fn stands_for_others(user: u32) -> bool {
    let text = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let overflow = text("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    user == overflow && !is_of_all_users(&text("/proc/self/uid_map"))
}

/// Returns whether a map of users gives each its own number.
fn is_of_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Returns the process id, so that its end can be watched.
///
/// # Errors
/// The process lives in a namespace that this process cannot see. The text says what to do, and continues "rank N".
pub(super) fn process(peer: Credentials) -> Result<u32, String> {
    peer.process.ok_or_else(|| {
        "lives in another process namespace, where its end cannot be watched from here; start all ranks in one (of \
         containers: docker run --pid=host, or --pid=container:NAME, and the same with --network), or let them meet at \
         tcp:HOST:PORT, from where they take a network"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use rustix::net::{bind, listen, socket};

    use super::*;

    #[test]
    fn a_process_that_has_a_name_and_takes_no_connection_holds_no_rank_up() {
        let name = SocketAddr::from_abstract_name(format!("earlybird-test-{}-taken", std::process::id())).unwrap();
        let taken = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&taken, &SocketAddrUnix::new_abstract_name(name.as_abstract_name().unwrap()).unwrap()).unwrap();
        assert!(connect_to(&name).is_err());
        assert!(holder_of(&name).contains("another process has taken the name"));
        listen(&taken, 0).unwrap();
        let waiting: Vec<UnixStream> = (0..10).map_while(|_| connect_to(&name).ok()).collect();
        assert!(waiting.len() < 10, "its queue has no end");
        assert_eq!(connect_to(&name).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(holder_of(&name).contains("another process has taken the name"));
    }

    #[test]
    fn maps_that_leave_users_out_are_known() {
        assert!(is_of_all_users("         0          0 4294967295\n"));
        for map in ["", "0 1000 1", "0 100000 65536", "0 0 65536", "0 0 1\n1 1 4294967294"] {
            assert!(!is_of_all_users(map), "{map}");
        }
    }
}
