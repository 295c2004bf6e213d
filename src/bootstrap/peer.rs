//! Identifies the process at the other end of a local socket, by the kernel's word and not by the
//! peer's.

use std::os::fd::AsFd;

use earlybird_ffi::socket::{Credentials, peer_credentials};

/// What a rank asks that waits at an abstract socket in vain: the kernel has a list of such names for
/// each network namespace. The text continues "was rank N started".
pub(super) const ONE_NETWORK: &str =
    ", in one network namespace (of containers: docker run --network=host, or --network=container:NAME)";

/// The process at the other end of a socket. It must belong to this process's user: names of
/// abstract sockets are public, and any process may listen on one or connect to it.
///
/// # Errors
/// The user that it belongs to, the expected one, and what to do.
pub(super) fn of_this_user(socket: impl AsFd) -> Result<Credentials, String> {
    let peer = peer_credentials(socket.as_fd())
        .map_err(|cause| format!("the kernel does not say who is at the other end ({cause})"))?;
    let expected = rustix::process::geteuid().as_raw();
    if peer.user == expected {
        return Ok(peer);
    }
    Err(format!(
        "the process at the other end belongs to user {}, where user {expected} was expected; start all ranks of a job \
         as one user, and give each job an EARLYBIRD_STORE=unix:NAME of its own",
        peer.user
    ))
}

/// The process id, so that its end can be watched.
///
/// # Errors
/// The process lives in a namespace that this process cannot see, with what to do; the text
/// continues "rank N".
pub(super) fn process(peer: Credentials) -> Result<u32, String> {
    peer.process.ok_or_else(|| {
        "lives in another process namespace, where its end cannot be watched from here; start all ranks in one (of \
         containers: docker run --pid=host, or --pid=container:NAME, and the same with --network), or set \
         EARLYBIRD_FABRIC=ofi"
            .to_owned()
    })
}
