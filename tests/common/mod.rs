//! Real processes: a test starts its own executable again, once for each rank.
#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]

#[path = "../../ffi/tests/skipped/mod.rs"]
mod skipped;

pub mod absence;
pub mod barrier;
#[cfg(earlybird_internals)]
pub mod collectives;
#[cfg(feature = "cli")]
pub mod command;
pub mod faults;
pub mod folder;
pub mod groups;
pub mod guests;
pub mod hosts;
pub mod marks;
pub mod models;
pub mod relaying;
pub mod stress;
pub mod tier;
pub mod troubles;
pub mod worlds;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use earlybird::fabric::ofi::PROVIDER_VARIABLES;
pub use skipped::{Need, skipped};

/// Set in a process that plays a rank.
const ROLE: &str = "TEST_ROLE";

/// The part that this process plays, if it was started by [`Job::start`].
pub fn role() -> Option<String> {
    static CLEARED: Once = Once::new();
    let role = std::env::var(ROLE).ok()?;
    CLEARED.call_once(clear_own_name);
    Some(role)
}

/// libfabric's own shared memory names its files after process numbers. A killed process leaves them behind, and one that
/// gets the same number later finds them busy.
fn clear_own_name() {
    let own = format!("{}:", std::process::id());
    for name in shared_memory_files().into_iter().filter(|name| name.starts_with(&own)) {
        let _ = std::fs::remove_file(format!("/dev/shm/{name}"));
    }
}

/// The processor time of this process, with all its threads.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How ranks reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Shm,
    /// libfabric, by this provider.
    Ofi(&'static str),
    /// RDMA verbs.
    Verbs,
}

impl Way {
    /// Whether ranks always outlive one that is killed. In libfabric's own shared memory a killed process may hold a lock
    /// in the memory of the others, which then spin for ever.
    pub fn outlives_kills(self) -> bool {
        self != Way::Ofi("shm")
    }
}

/// Makes each rank a host of its own, so that ranks of this machine use the network.
pub const LEVELS_1: (&str, &str) = ("EARLYBIRD_LEVELS", "1");

/// The providers of libfabric that run on any machine.
pub const PROVIDERS: [&str; 4] = ["tcp;ofi_rxm", "sockets", "shm", "udp;ofi_rxd"];

/// InfiniBand and RoCE.
pub const VERBS: &str = "verbs;ofi_rxm";

/// The providers to test with: those that run on any machine, and that of a device if there is one.
/// Prints a message without libfabric. The search takes a while, so it runs once.
pub fn providers() -> &'static [&'static str] {
    static FOUND: OnceLock<Vec<&str>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let Some(library) = libfabric() else { return Vec::new() };
        PROVIDERS.into_iter().chain(has_verbs(&library).then_some(VERBS)).collect()
    })
}

fn has_verbs(library: &earlybird::fabric::ofi::Library) -> bool {
    earlybird::fabric::ofi::devices(library).unwrap().iter().any(|device| device.provider == VERBS)
}

/// Whether there is a device for InfiniBand or RoCE, such as Soft-RoCE; prints a message if not.
pub fn verbs() -> bool {
    let found = libfabric().is_some_and(|library| has_verbs(&library));
    if !found {
        skipped(Need::Verbs, format_args!("{VERBS} has no device here; Soft-RoCE would do (rdma link add)"));
    }
    found
}

/// The libibverbs to test with, if there is a device with an active port; prints a message if not.
pub fn rdma() -> Option<earlybird::fabric::verbs::Library> {
    static SAID: Once = Once::new();
    let found = earlybird::fabric::verbs::library().map_err(|problem| problem.to_string()).and_then(|library| {
        let ports = earlybird::fabric::verbs::devices(&library).map_err(|problem| problem.to_string())?;
        let active = ports.iter().any(|port| port.active);
        active.then_some(library).ok_or_else(|| "no RDMA device has an active port here".to_owned())
    });
    let missing = |why: &String| SAID.call_once(|| skipped(Need::Verbs, format_args!("{why}; see tests/soft-roce")));
    found.inspect_err(missing).ok()
}

/// The packets that a device has sent, if it counts them.
pub fn sent_packets(device: &str) -> Option<u64> {
    let counter = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
    std::fs::read_to_string(counter).ok()?.trim().parse().ok()
}

/// What the kernel lists of the objects of all devices: queue pairs, completion queues, regions and so on.
pub fn rdma_objects() -> Option<String> {
    let output = Command::new("rdma").args(["resource", "show"]).output();
    let output = output.inspect_err(|error| skipped(Need::Ip, format_args!("rdma cannot be run: {error}"))).ok()?;
    assert!(output.status.success(), "rdma resource show: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The libfabric to test with; prints a message if there is none.
pub fn libfabric() -> Option<earlybird::fabric::ofi::Library> {
    let library = earlybird::fabric::ofi::Library::load(None);
    library.inspect_err(|problem| skipped(Need::Libfabric, problem)).ok()
}

impl Way {
    /// The variables that select it.
    pub fn variables(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Way::Shm => vec![("EARLYBIRD_FABRIC", "shm")],
            Way::Ofi(provider) => {
                // A test has several threads, so its ranks do not set these themselves.
                let variables = PROVIDER_VARIABLES.map(|variable| (variable.name, variable.value));
                let chosen = [("EARLYBIRD_FABRIC", "ofi"), ("EARLYBIRD_PROVIDER", provider), LEVELS_1];
                chosen.into_iter().chain(variables).collect()
            }
            Way::Verbs => vec![("EARLYBIRD_FABRIC", "verbs"), LEVELS_1],
        }
    }
}

/// Processes that are the ranks of one world. A drop kills those that still run.
pub struct Job {
    pub ranks: Vec<Child>,
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            // A rank that has ended cannot be killed, and was waited for.
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

/// A name that no other test has.
pub fn unique() -> String {
    format!("test-{}-{:016x}", std::process::id(), RandomState::new().build_hasher().finish())
}

/// Waits until `holds` returns true, for so long at most; returns whether it did.
pub fn wait_at_most(time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + time;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Makes a call, which must end within `limit`.
pub fn in_time<R>(what: &str, limit: Duration, call: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = call();
    let took = start.elapsed();
    assert!(took < limit, "{what} took {took:?}");
    result
}

/// Waits until something holds, for longer than any rank waits.
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(wait_at_most(Duration::from_secs(100), holds), "not within the limit: {what}");
}

/// Starts this executable's ignored test `test` as a rank of so many; `command` has the rest.
pub fn start(command: &mut Command, (rank, ranks): (u32, u32), test: &str, role: &str) -> Child {
    command
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"])
        .env(ROLE, role)
        .env("EARLYBIRD_RANK", format!("{rank}"))
        .env("EARLYBIRD_WORLD_SIZE", format!("{ranks}"))
        .env("RUST_BACKTRACE", std::env::var("TEST_BACKTRACE").unwrap_or("0".to_owned()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

impl Job {
    /// Starts `ranks` processes that run the ignored test `test` of this executable as `role`.
    pub fn start(way: Way, ranks: u32, test: &str, role: &str) -> Job {
        let meeting = format!("unix:{}", unique());
        let begin = |rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.envs(way.variables()).env("EARLYBIRD_STORE", &meeting);
            start(&mut command, (rank, ranks), test, role)
        };
        Job { ranks: (0..ranks).map(begin).collect() }
    }

    /// Waits for all ranks and returns how each ended, with its output. Kills ranks that take too long.
    pub fn finish(mut self, limit: Duration) -> Vec<(ExitStatus, String)> {
        let until = Instant::now() + limit;
        let mut ranks = std::mem::take(&mut self.ranks);
        let readers: Vec<_> = ranks
            .iter_mut()
            .map(|rank| {
                let (mut out, mut err) = (rank.stdout.take().unwrap(), rank.stderr.take().unwrap());
                std::thread::spawn(move || {
                    let mut text = String::new();
                    let _ = out.read_to_string(&mut text);
                    let _ = err.read_to_string(&mut text);
                    text
                })
            })
            .collect();
        let mut ends = Vec::new();
        for rank in &mut ranks {
            let status = loop {
                if let Some(status) = rank.try_wait().unwrap() {
                    break status;
                }
                if Instant::now() > until {
                    rank.kill().unwrap();
                    break rank.wait().unwrap();
                }
                std::thread::sleep(Duration::from_millis(2));
            };
            ends.push(status);
        }
        ends.into_iter().zip(readers.into_iter().map(|reader| reader.join().unwrap())).collect()
    }

    pub fn pids(&self) -> Vec<u32> {
        self.ranks.iter().map(Child::id).collect()
    }

    /// Stops a rank, and waits until all its threads have stopped.
    pub fn stop(&self, rank: usize) {
        self.signal(rank, rustix::process::Signal::STOP);
        let has_stopped = |thread: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap();
            // The state follows the name, which may contain anything.
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        };
        until("a rank has stopped", || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", self.ranks[rank].id())).unwrap();
            threads.into_iter().all(|thread| has_stopped(thread.unwrap()))
        });
    }

    /// Waits until a rank has set a mark, or has ended: its end then says more.
    pub fn wait_for_mark(&mut self, rank: usize, (marks, name): (&marks::Marks, &str)) {
        until(name, || marks.has(name) || self.ranks[rank].try_wait().unwrap().is_some());
    }

    /// Waits until a rank has ended.
    pub fn wait_for_end(&mut self, rank: usize) {
        until("a rank has ended", || self.ranks[rank].try_wait().unwrap().is_some());
    }

    pub fn signal(&self, rank: usize, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.ranks[rank].id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

/// The files in `/dev/shm`.
pub fn shared_memory_files() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// What these processes have left in `/dev/shm`. Names with a colon are those of libfabric's own
/// provider for shared memory, and begin with the process; other tests may be creating some.
pub fn left_behind(before: &[String], pids: &[u32]) -> Vec<String> {
    let by_them = |name: &String| pids.iter().any(|pid| name.starts_with(&format!("{pid}:")));
    // A file that was there before may be of a process that had the same number.
    let new = |name: &String| !before.contains(name);
    shared_memory_files().into_iter().filter(|name| new(name) && (by_them(name) || !name.contains(':'))).collect()
}

/// The lines that begin with `key`, without it.
pub fn said<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(key)).map(str::trim).collect()
}
