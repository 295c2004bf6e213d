//! Descriptors that the process that started this one has left open, and named by their numbers.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Returns a stream of its own to the other end of an inherited socket. Programs that this process starts do not inherit it.
///
/// # Errors
/// No such descriptor is open, or it is no socket.
pub fn stream(number: i32) -> io::Result<UnixStream> {
    // SAFETY: takes any number, and returns a new descriptor or an error.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is new, and this is its only owner.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    match (ask(&copy, libc::SO_DOMAIN)?, ask(&copy, libc::SO_TYPE)?) {
        (libc::AF_UNIX, libc::SOCK_STREAM) => Ok(copy.into()),
        _ => Err(io::Error::other("that descriptor is a socket of another type, which is not the launcher's")),
    }
}

/// Returns what a socket says of itself.
fn ask(socket: &OwnedFd, what: i32) -> io::Result<i32> {
    let (mut answer, mut len) = (0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: `answer` has a place of `len` bytes.
    let asked =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, what, (&raw mut answer).cast(), &raw mut len) };
    if asked == 0 { Ok(answer) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_stream_is_copied_and_nothing_else() {
        let (mut other, ours) = UnixStream::pair().unwrap();
        stream(ours.as_raw_fd()).unwrap().write_all(b"x").unwrap();
        drop(ours);
        let mut heard = Vec::new();
        other.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"x");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(stream(file.as_raw_fd()).is_err());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(stream(listener.as_raw_fd()).is_err());
        assert!(stream(-1).is_err() && stream(1 << 20).is_err());
    }
}
