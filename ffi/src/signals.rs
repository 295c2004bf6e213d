//! What the process does when a signal comes: libraries that are loaded must not change that.

use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{c_int, sigaction, sigset_t};

/// Signals are numbers up to this one.
const MOST: c_int = 64;

/// Signals that end a process from outside.
const ENDINGS: [c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Runs `act`, and then lets signals do again what they did before. Debian's libfabric 1.17 loads a library for InfiniPath
/// hardware that ends the process at SIGINT and SIGTERM instead, and crashes if it is still being loaded. So a signal that
/// would end the process waits until then, unless another thread takes it.
///
/// Loads take turns: a second one would take a handler of the first one's library for the program's. A thread of the
/// program that changes what a signal does meanwhile may lose its change.
pub(crate) fn keep_handlers<R>(act: impl FnOnce() -> R) -> R {
    let _turn = turn();
    kept(act)
}

/// The turn to load a library.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps handlers in one's turn.
fn kept<R>(act: impl FnOnce() -> R) -> R {
    let before: Vec<_> = (1..=MOST).map(|signal| (signal, handler(signal))).collect();
    let mask = block(&ENDINGS);
    let result = act();
    for (signal, before) in before {
        if let (Some(before), Some(now)) = (before, handler(signal))
            && (now.sa_sigaction, now.sa_flags) != (before.sa_sigaction, before.sa_flags)
        {
            // SAFETY: what was there before is valid: the kernel gave it.
            unsafe { libc::sigaction(signal, &before, std::ptr::null_mut()) };
        }
    }
    // SAFETY: the mask that this thread had before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) };
    result
}

/// Lets signals to this thread wait; returns which ones waited before.
fn block(signals: &[c_int]) -> sigset_t {
    let (mut set, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
    // SAFETY: the first call makes the set empty, and the others add valid signals to it. `before` is valid when zeroed,
    // and is filled.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        signals.iter().for_each(|&signal| _ = libc::sigaddset(set.as_mut_ptr(), signal));
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
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
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Signals that came to the program's own handler, and to a library's.
    static CAME: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

    extern "C" fn own(_: c_int) {
        CAME[0].fetch_add(1, Ordering::Relaxed);
    }

    extern "C" fn library(_: c_int) {
        CAME[1].fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_signal_while_a_library_is_loaded_comes_to_the_programs_handler() {
        // Other tests load libraries, and would take this test's handler away.
        let _turn = turn();
        let handlers = [own, library].map(|handler: extern "C" fn(c_int)| handler as *const () as usize);
        // SAFETY: the handlers do what handlers may do.
        unsafe { libc::signal(libc::SIGHUP, handlers[0]) };
        kept(|| {
            // SAFETY: as above. The signal is for this thread.
            unsafe { (libc::signal(libc::SIGHUP, handlers[1]), libc::raise(libc::SIGHUP)) };
            assert_eq!(CAME.each_ref().map(|count| count.load(Ordering::Relaxed)), [0, 0]);
        });
        assert_eq!(CAME.each_ref().map(|count| count.load(Ordering::Relaxed)), [1, 0]);
    }

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
