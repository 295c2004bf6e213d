//! A barrier for the threads of a test. The standard library's waits for ever where one of them has panicked, and the
//! test with it, without a word of the panic.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Longer than any call of a test waits, so the first panic is the one that tells why.
const PATIENCE: Duration = Duration::from_secs(180);

pub struct Barrier {
    threads: u64,
    /// How often threads have come, all of them together.
    came: Mutex<u64>,
    changed: Condvar,
}

impl Barrier {
    pub fn new(threads: u64) -> Self {
        Self { threads, came: Mutex::new(0), changed: Condvar::new() }
    }

    /// Waits until all threads have come as often as this one.
    pub fn wait(&self) {
        let mut came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        *came += 1;
        let last_of_this_time = came.div_ceil(self.threads) * self.threads;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(came, PATIENCE, |came| *came < last_of_this_time);
        let (came, end) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(came);
        assert!(!end.timed_out() || thread::panicking(), "another thread did not come: it has ended, or hangs");
    }
}
