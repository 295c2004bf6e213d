//! What the process does when a signal comes: libraries that are loaded must not change that.

use std::mem::MaybeUninit;

use libc::{c_int, sigaction};

/// Signals are numbers up to this one.
const MOST: c_int = 64;

/// Runs `act`, and then lets signals do again what they did before. Debian's libfabric 1.17 loads a library for InfiniPath
/// hardware that ends the process at SIGINT and SIGTERM instead.
///
/// Another thread that changes what a signal does at the same time may lose its change.
pub(crate) fn keep_handlers<R>(act: impl FnOnce() -> R) -> R {
    let before: Vec<_> = (1..=MOST).map(|signal| (signal, handler(signal))).collect();
    let result = act();
    for (signal, before) in before {
        if let (Some(before), Some(now)) = (before, handler(signal))
            && (now.sa_sigaction, now.sa_flags) != (before.sa_sigaction, before.sa_flags)
        {
            // SAFETY: what was there before is valid: the kernel gave it.
            unsafe { libc::sigaction(signal, &before, std::ptr::null_mut()) };
        }
    }
    result
}

/// What a signal does; none if there is no such signal.
fn handler(signal: c_int) -> Option<sigaction> {
    let mut now = MaybeUninit::uninit();
    // SAFETY: given null for a new one it only fills the place, unless it fails.
    let failed = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) } != 0;
    // SAFETY: it was filled.
    (!failed).then(|| unsafe { now.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_changes_no_handler() {
        let before = handler(libc::SIGUSR2).unwrap().sa_sigaction;
        assert_eq!(before, libc::SIG_DFL);
        keep_handlers(|| {
            // SAFETY: to ignore a signal is always possible.
            unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
            assert_eq!(handler(libc::SIGUSR2).unwrap().sa_sigaction, libc::SIG_IGN);
        });
        assert_eq!(handler(libc::SIGUSR2).unwrap().sa_sigaction, before);
        assert!(handler(1000).is_none());
    }
}
