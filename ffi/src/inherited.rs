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
    let (mut kind, mut len) = (0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: `kind` has a place of `len` bytes.
    let asked = unsafe {
        libc::getsockopt(copy.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut len)
    };
    match asked {
        0 if kind == libc::SOCK_STREAM => Ok(copy.into()),
        0 => Err(io::Error::other("it is a socket of another type")),
        _ => Err(io::Error::last_os_error()),
    }
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
        assert!(stream(-1).is_err() && stream(1 << 20).is_err());
    }
}
