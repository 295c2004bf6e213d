//! Whether this process was forked from another one since.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The forks between the process that called [`generation`] first and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that a forked child has otherwise than its parent. It takes no system call, but for the first time.
#[must_use]
pub fn generation() -> u32 {
    static WATCHED: Once = Once::new();
    // SAFETY: the handler stays where it is, because it is a function of this library, which is not unloaded while it has
    // thread-local data and threads. It changes an atomic, which any handler may do. If the system has no memory for it,
    // children are not told apart.
    WATCHED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(count));
    });
    FORKS.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_another_generation() {
        let before = generation();
        assert_eq!(generation(), before);
        // SAFETY: the child makes only calls that are allowed after a fork of a process with threads.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let differs = generation() != before;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(differs)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child, whose status has a place.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(ended == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1, "{status}");
        assert_eq!(generation(), before);
    }
}
