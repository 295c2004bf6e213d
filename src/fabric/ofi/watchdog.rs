//! Calls of libfabric that do not return are abandoned, so that the calls of this library that made them keep their deadlines.
//!
//! A stranger's message can stop libfabric's `tcp` inside a call for good, and so can a fault of a driver. A thread looks at
//! the calls in which all threads of the process are. It abandons one that takes longer than peers may be silent, and sooner
//! where a deadline of this library has passed. The world fails then, and so do all that use libfabric in this process.
#![forbid(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use earlybird_ffi::abandon::{self, Found};
use earlybird_ffi::fork;
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// How often it looks. It counts its own looks and no time: a process that was stopped for a while was not in a call so long.
const BEAT: Duration = Duration::from_millis(100);

/// Looks that find the same call before it may be abandoned at all: what a busy machine or a large registration takes.
const LEAST: u32 = 10;

/// A deadline that passed so long ago leaves a call these few looks: a rank that ends makes many calls.
const LONG: Duration = Duration::from_secs(2);
const LEAST_LONG_AFTER: u32 = 3;

/// Those that rely on it, each with the looks that find the same call before it is abandoned.
static USERS: Mutex<Users> = Mutex::new(Users { all: Vec::new(), next: 0, runs_in: None });

struct Users {
    all: Vec<(u64, u32)>,
    next: u64,
    /// The process in which the thread runs, by its number among forks.
    runs_in: Option<u32>,
}

/// While one lives, calls are watched.
#[derive(Debug)]
pub(super) struct Watchdog(u64);

impl Watchdog {
    /// Watches for a user whose peers may be silent for so long.
    ///
    /// # Errors
    /// There can be no other thread.
    pub(super) fn start(rank: u32, silence: Duration) -> Result<Self> {
        let mut users = USERS.lock();
        let own = users.next;
        users.next += 1;
        let checks = u32::try_from(silence.as_millis().div_ceil(BEAT.as_millis())).unwrap_or(u32::MAX).max(LEAST);
        users.all.push((own, checks));
        let watchdog = Watchdog(own);
        let here = fork::generation();
        if users.runs_in != Some(here) {
            let thread = thread::Builder::new().name("earlybird watchdog".to_owned());
            users.runs_in = Some(here);
            drop(users);
            if let Err(cause) = thread.spawn(run) {
                USERS.lock().runs_in = None;
                return Err(Error::os(rank, "start the watchdog", cause));
            }
        }
        Ok(watchdog)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        USERS.lock().all.retain(|&(user, _)| user != self.0);
    }
}

/// The thread. It ends when there are no users.
fn run() {
    let mut seen: Vec<(Found, u32)> = Vec::new();
    loop {
        thread::sleep(BEAT);
        let most = {
            let mut users = USERS.lock();
            let Some(most) = users.all.iter().map(|&(_, checks)| checks).min() else {
                users.runs_in = None;
                return;
            };
            most
        };
        let overdue = abandon::earliest_due().and_then(|due| Instant::now().checked_duration_since(due));
        let enough = match overdue {
            Some(overdue) if overdue > LONG => LEAST_LONG_AFTER,
            Some(_) => LEAST,
            None => most,
        };
        let count = |found: Found| {
            let before = seen.iter().find(|(call, _)| *call == found).map_or(0, |&(_, count)| count);
            (found, before + 1)
        };
        let now: Vec<_> = abandon::find().into_iter().map(count).collect();
        for (call, checks) in &now {
            if *checks >= enough.min(most) {
                let (name, after) = (call.name(), BEAT * *checks);
                let left = call.abandon(after);
                tracing::warn!(call = name, ?after, left, "libfabric does not return: this process uses it no more");
            }
        }
        seen = now;
    }
}
