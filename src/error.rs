//! Errors: what failed, which rank caused it, and what to do.

mod host_names;
mod misuse;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use host_names::HostNames;
pub use misuse::Misuse;

use crate::rule::RuleError;
use crate::units::Bytes;

/// The result of an operation that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An error. Its text names the rank that reports it, the peer that caused it (if any), the operation, the cause and
/// the remedy.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The deadline passed. After `wait` and `finish` nothing is lost: repeat the call to continue waiting. A call that
    /// all ranks make together cannot be repeated (`together`).
    #[error(
        "{at}: {operation}: timeout after {waited:?}, waiting for {missing}{strangers}. {way_out}",
        at = hosts.rank(*rank),
        waited = readable(*waited),
        missing = hosts.ranks(&missing.0),
        way_out = after_timeout(*together)
    )]
    Timeout {
        /// The rank that reports.
        rank: u32,
        /// The call that waited.
        operation: &'static str,
        /// How long it waited.
        waited: Duration,
        /// The ranks that had not come.
        missing: Ranks,
        /// Whether all ranks make this call together (`barrier`, `broadcast`, `build`). If so, the ranks are out of
        /// step: later calls of this kind fail, and a new world is needed.
        together: bool,
        /// What processes outside this world sent to this rank, as text that continues a sentence; empty if they sent
        /// nothing.
        strangers: String,
        /// The hosts of the ranks.
        hosts: HostNames,
    },
    /// A process ended without leaving its collectives. Every later call fails the same way.
    #[error(
        "{at}: {operation}: {peer} died ({how}); restart the job, its ranks cannot go on without each other",
        at = hosts.rank(*rank),
        peer = hosts.rank(*peer)
    )]
    PeerDied {
        /// The rank that reports.
        rank: u32,
        /// The operation that failed.
        operation: &'static str,
        /// The dead rank.
        peer: u32,
        /// What is known of its end.
        how: String,
        /// The hosts of the ranks.
        hosts: HostNames,
    },
    /// A rank that had left in good order was still needed. Every later operation of the same
    /// collective fails the same way.
    #[error(
        "{at}: {operation}: {peer} has left and is still needed; a rank may leave when its part of all calls is done",
        at = hosts.rank(*rank),
        peer = hosts.rank(*peer)
    )]
    PeerLeft {
        /// The rank that reports.
        rank: u32,
        /// The operation that failed.
        operation: &'static str,
        /// The rank that has left.
        peer: u32,
        /// The hosts of the ranks.
        hosts: HostNames,
    },
    /// A rank called `abort`. Every later call fails the same way.
    #[error("{at}: {operation}: {by} aborted the job: {reason}", at = hosts.rank(*rank), by = hosts.rank(*by))]
    Aborted {
        /// The rank that reports.
        rank: u32,
        /// The operation that failed.
        operation: &'static str,
        /// The rank that called `abort`.
        by: u32,
        /// Its reason.
        reason: String,
        /// The hosts of the ranks.
        hosts: HostNames,
    },
    /// Ranks disagree on something that must be the same everywhere.
    #[error(
        "{at}: {operation}: {what} is {mine} here and {theirs} on {peer}; all ranks must pass the same",
        at = hosts.rank(*rank),
        peer = hosts.rank(*peer)
    )]
    Mismatch {
        /// The rank that reports.
        rank: u32,
        /// The call that compared.
        operation: &'static str,
        /// What differs.
        what: &'static str,
        /// This rank's value.
        mine: String,
        /// The first rank that differs.
        peer: u32,
        /// Its value.
        theirs: String,
        /// The hosts of the ranks.
        hosts: HostNames,
    },
    /// The world could not be set up.
    #[error("rank {rank}: joining the world: {cause}")]
    Join {
        /// The rank that reports.
        rank: u32,
        /// The cause, and what to do.
        cause: String,
    },
    /// A provider failed, or a rank sent invalid data over it, after the world had been joined. The collective cannot
    /// continue.
    #[error(
        "{at}: {operation}: the transport{to} failed: {cause}; start the job again, over another provider if \
         that does not help (`earlybird info` lists them)",
        at = hosts.rank(*rank),
        to = peer.map_or(String::new(), |peer| format!(" to {}", hosts.rank(peer)))
    )]
    Transport {
        /// The rank that reports.
        rank: u32,
        /// The other end, if the failure concerns one peer.
        peer: Option<u32>,
        /// The operation that failed.
        operation: &'static str,
        /// The cause.
        cause: String,
        /// The hosts of the ranks.
        hosts: HostNames,
    },
    /// The operation needs more memory than is available.
    #[error("rank {rank}: {operation}: needs {need} of memory, {available} are available ({limit}); use fewer ranks, a shorter vector or a smaller depth, or raise the limit", need = Bytes(*need), available = Bytes(*available))]
    Memory {
        /// The rank that reports.
        rank: u32,
        /// The operation that needed the memory.
        operation: &'static str,
        /// Bytes needed.
        need: u64,
        /// Bytes available.
        available: u64,
        /// What sets the limit.
        limit: String,
    },
    /// The kernel lets this process lock less memory than a device needs.
    #[error(
        "rank {rank}: {operation}: needs {need} of locked memory, and {locked} of the limit of {limit} are in use; \
         raise the limit where the ranks start: `ulimit -l unlimited`, memlock in /etc/security/limits.conf, \
         LimitMEMLOCK= of the service that starts them, and with Slurm `sbatch --propagate=NONE`",
        need = Bytes(*need),
        locked = Bytes(*locked),
        limit = Bytes(*limit)
    )]
    LockedMemory {
        /// The rank that reports.
        rank: u32,
        /// The operation that needed the memory.
        operation: &'static str,
        /// Bytes needed.
        need: u64,
        /// Bytes that devices use already.
        locked: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A rule that is invalid in this world.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// An invalid argument, variable or file.
    #[error("{0}")]
    Config(String),
    /// A call that is not allowed, or not now.
    #[error("rank {rank}: {operation}: {problem}")]
    Usage {
        /// The rank that reports.
        rank: u32,
        /// The call.
        operation: &'static str,
        /// What is wrong with it, and what to do.
        problem: Misuse,
    },
    /// The operating system returned an error.
    #[error("rank {rank}: {operation}: {cause}")]
    Os {
        /// The rank that reports.
        rank: u32,
        /// The operation that failed.
        operation: &'static str,
        /// The system's error.
        #[source]
        cause: Arc<std::io::Error>,
    },
    /// The program ended the wait ([`interrupt_when`](crate::interrupt_when)). A call that all ranks make together
    /// cannot be repeated.
    #[error("rank {rank}: {operation}: the wait was interrupted")]
    Interrupted {
        /// The rank that reports.
        rank: u32,
        /// The call that waited.
        operation: &'static str,
    },
}

fn after_timeout(together: bool) -> &'static str {
    match together {
        true => "The ranks are out of step now: start a new world, with a longer deadline",
        false => "Call again to go on waiting, or set a longer deadline",
    }
}

/// Rounds to milliseconds, and times below one millisecond to microseconds.
fn readable(time: Duration) -> Duration {
    let unit = if time < Duration::from_millis(1) { 1_000 } else { 1_000_000 };
    match u64::try_from(time.as_nanos()) {
        Ok(nanos @ 1_000..) => Duration::from_nanos(nanos.saturating_add(unit / 2) / unit * unit),
        _ => time,
    }
}

/// The kind of an error, as a number for other languages. The numbers never change; new ones may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(i32)]
pub enum ErrorKind {
    /// [`Error::Timeout`]
    Timeout = 1,
    /// [`Error::PeerDied`]
    PeerDied = 2,
    /// [`Error::PeerLeft`]
    PeerLeft = 3,
    /// [`Error::Aborted`]
    Aborted = 4,
    /// [`Error::Mismatch`]
    Mismatch = 5,
    /// [`Error::Join`]
    Join = 6,
    /// [`Error::Transport`]
    Transport = 7,
    /// [`Error::Memory`]
    Memory = 8,
    /// [`Error::LockedMemory`]
    LockedMemory = 9,
    /// [`Error::Rule`] and [`Error::Config`]
    Config = 10,
    /// [`Error::Usage`]
    Usage = 11,
    /// [`Error::Os`]
    Os = 12,
    /// [`Error::Interrupted`]
    Interrupted = 13,
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Timeout { .. } => ErrorKind::Timeout,
            Error::PeerDied { .. } => ErrorKind::PeerDied,
            Error::PeerLeft { .. } => ErrorKind::PeerLeft,
            Error::Aborted { .. } => ErrorKind::Aborted,
            Error::Mismatch { .. } => ErrorKind::Mismatch,
            Error::Join { .. } => ErrorKind::Join,
            Error::Transport { .. } => ErrorKind::Transport,
            Error::Memory { .. } => ErrorKind::Memory,
            Error::LockedMemory { .. } => ErrorKind::LockedMemory,
            Error::Rule(_) | Error::Config(_) => ErrorKind::Config,
            Error::Usage { .. } => ErrorKind::Usage,
            Error::Os { .. } => ErrorKind::Os,
            Error::Interrupted { .. } => ErrorKind::Interrupted,
        }
    }

    /// Returns the rank that reports; `None` for an invalid rule or setting, which no rank reports.
    #[must_use]
    pub fn rank(&self) -> Option<u32> {
        match *self {
            Error::Timeout { rank, .. }
            | Error::PeerDied { rank, .. }
            | Error::PeerLeft { rank, .. }
            | Error::Aborted { rank, .. }
            | Error::Mismatch { rank, .. }
            | Error::Join { rank, .. }
            | Error::Transport { rank, .. }
            | Error::Memory { rank, .. }
            | Error::LockedMemory { rank, .. }
            | Error::Usage { rank, .. }
            | Error::Os { rank, .. }
            | Error::Interrupted { rank, .. } => Some(rank),
            Error::Rule(_) | Error::Config(_) => None,
        }
    }

    /// Returns the other rank that the failure concerns, if there is one; for a timeout the first missing rank.
    #[must_use]
    pub fn peer(&self) -> Option<u32> {
        match self {
            Error::PeerDied { peer, .. } | Error::PeerLeft { peer, .. } | Error::Mismatch { peer, .. } => Some(*peer),
            Error::Aborted { by, .. } => Some(*by),
            Error::Transport { peer, .. } => *peer,
            Error::Timeout { missing, .. } => missing.0.first().copied(),
            _ => None,
        }
    }

    /// Returns what is wrong with the call that failed, if it is not allowed.
    #[must_use]
    pub fn misuse(&self) -> Option<Misuse> {
        match *self {
            Error::Usage { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// Creates a timeout. The names of the hosts are added where the error leaves the library ([`Error::on`]).
    pub(crate) fn timeout(
        rank: u32,
        operation: &'static str,
        waited: Duration,
        missing: Ranks,
        together: bool,
    ) -> Self {
        Error::Timeout {
            rank,
            operation,
            waited,
            missing,
            together,
            strangers: String::new(),
            hosts: HostNames::default(),
        }
    }

    /// Adds what strangers sent, if the error is a timeout.
    pub(crate) fn beside_strangers(mut self, told: impl FnOnce() -> String) -> Self {
        if let Error::Timeout { strangers, .. } = &mut self {
            *strangers = told();
        }
        self
    }

    /// Creates a mismatch of this rank's value and a peer's.
    pub(crate) fn mismatch(
        rank: u32,
        operation: &'static str,
        what: &'static str,
        mine: impl fmt::Display,
        (peer, theirs): (u32, impl fmt::Display),
    ) -> Self {
        let (mine, theirs) = (mine.to_string(), theirs.to_string());
        Error::Mismatch { rank, operation, what, mine, peer, theirs, hosts: HostNames::default() }
    }

    pub(crate) fn left(rank: u32, operation: &'static str, peer: u32) -> Self {
        Error::PeerLeft { rank, operation, peer, hosts: HostNames::default() }
    }

    pub(crate) fn os(rank: u32, operation: &'static str, cause: impl Into<std::io::Error>) -> Self {
        Error::Os { rank, operation, cause: Arc::new(cause.into()) }
    }

    pub(crate) fn join(rank: u32, cause: impl fmt::Display) -> Self {
        Error::Join { rank, cause: cause.to_string() }
    }

    pub(crate) fn transport(
        rank: u32,
        peer: impl Into<Option<u32>>,
        operation: &'static str,
        cause: impl fmt::Display,
    ) -> Self {
        let (peer, cause, hosts) = (peer.into(), cause.to_string(), HostNames::default());
        Error::Transport { rank, peer, operation, cause, hosts }
    }

    /// Adds the hosts of the ranks, for the text.
    pub(crate) fn on(mut self, names: &HostNames) -> Self {
        use Error::{Aborted, Mismatch, PeerDied, PeerLeft, Timeout, Transport};
        if let Timeout { hosts, .. }
        | PeerDied { hosts, .. }
        | PeerLeft { hosts, .. }
        | Aborted { hosts, .. }
        | Mismatch { hosts, .. }
        | Transport { hosts, .. } = &mut self
        {
            hosts.clone_from(names);
        }
        self
    }

    /// Gives the ranks other numbers: those of a world, where the error comes from a part of it that counts its members.
    pub(crate) fn renumbered(mut self, number: impl Fn(u32) -> u32) -> Self {
        use Error::{
            Aborted, Interrupted, Join, LockedMemory, Memory, Mismatch, Os, PeerDied, PeerLeft, Timeout, Transport,
            Usage,
        };
        match &mut self {
            Timeout { rank, missing, .. } => {
                *rank = number(*rank);
                missing.0.iter_mut().for_each(|rank| *rank = number(*rank));
            }
            PeerDied { rank, peer, .. }
            | PeerLeft { rank, peer, .. }
            | Aborted { rank, by: peer, .. }
            | Mismatch { rank, peer, .. }
            | Transport { rank, peer: Some(peer), .. } => (*rank, *peer) = (number(*rank), number(*peer)),
            Transport { rank, peer: None, .. }
            | Join { rank, .. }
            | Memory { rank, .. }
            | LockedMemory { rank, .. }
            | Usage { rank, .. }
            | Interrupted { rank, .. }
            | Os { rank, .. } => *rank = number(*rank),
            Error::Rule(_) | Error::Config(_) => {}
        }
        self
    }

    /// Names the failing call instead of a step of that call, if the world failed.
    pub(crate) fn in_call(mut self, call: &'static str) -> Self {
        use Error::{Aborted, PeerDied, Transport};
        if let PeerDied { operation, .. } | Aborted { operation, .. } | Transport { operation, .. } = &mut self {
            *operation = call;
        }
        self
    }
}

/// Turns what another process said into text for people. Control characters become spaces, because a terminal would
/// obey them.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let harmless = |char: char| if char.is_control() { ' ' } else { char };
    String::from_utf8_lossy(bytes).chars().map(harmless).collect()
}

/// A list of ranks. A long list is printed only in part.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ranks(pub Vec<u32>);

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        HostNames::default().ranks(&self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_others_say_moves_no_cursor() {
        assert_eq!(super::text_of(b"a\x1b[2Jb\n\xc3\xa9\xff"), "a [2Jb é\u{fffd}");
    }

    use super::*;

    #[test]
    fn a_timeout_says_what_to_do_next() {
        let text = |operation, together| {
            let (waited, missing) = (Duration::from_nanos(300_106_249), Ranks(vec![2]));
            Error::timeout(1, operation, waited, missing, together).to_string()
        };
        let start = "timeout after 300ms, waiting for rank 2. ";
        let (wait, barrier) = (text("wait", false), text("barrier", true));
        assert!(wait.starts_with(&format!("rank 1: wait: {start}Call again to go on waiting")), "{wait}");
        assert!(barrier.starts_with(&format!("rank 1: barrier: {start}")), "{barrier}");
        assert!(barrier.contains("start a new world, with a longer deadline"), "{barrier}");
        assert!(!barrier.contains("Call again"), "{barrier}");
        let beside = Error::timeout(1, "wait", Duration::from_secs(1), Ranks(vec![2]), false);
        let beside = beside.beside_strangers(|| "; 3 messages were dropped here".to_owned());
        assert!(beside.to_string().contains("waiting for rank 2; 3 messages were dropped here. "), "{beside}");
    }

    #[test]
    fn what_the_system_refused_is_the_source_of_the_error() {
        let cause = std::io::Error::from_raw_os_error(24);
        let error = Error::Os { rank: 0, operation: "join", cause: cause.into() };
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Arc<std::io::Error>>());
        assert_eq!(source.and_then(|source| source.raw_os_error()), Some(24));
    }

    #[test]
    fn a_failure_is_named_after_the_call() {
        let text = |peer: Option<u32>| Error::transport(1, peer, "poll", "no route").in_call("wait").to_string();
        assert!(text(None).starts_with("rank 1: wait: the transport failed: no route; start the job again"));
        assert!(text(Some(3)).starts_with("rank 1: wait: the transport to rank 3 failed: no route; "));
        let hosts = HostNames::new(vec!["a".to_owned(), "b".to_owned()]);
        let died = Error::PeerDied { rank: 1, operation: "poll", peer: 0, how: "ended".to_owned(), hosts };
        assert!(died.in_call("arrive").to_string().starts_with("rank 1 on b: arrive: rank 0 on a died (ended)"));
    }

    #[test]
    fn short_times_stay_readable() {
        for (nanos, text) in [
            (0, "0ns"),
            (750, "750ns"),
            (20_400, "20µs"),
            (999_900, "1ms"),
            (1_400_000, "1ms"),
            (299_600_000, "300ms"),
            (4_000_212_000, "4s"),
        ] {
            assert_eq!(format!("{:?}", readable(Duration::from_nanos(nanos))), text, "{nanos}");
        }
    }
}
