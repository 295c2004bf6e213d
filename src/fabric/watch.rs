//! Watches the processes of other ranks on this machine: the kernel reports at once when one ends. Where it does not, this
//! rank looks.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use crate::error::{Error, HostNames, Result};

/// How long a rank sleeps before it checks that all ranks are alive.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(20);

/// The processes of the ranks, by rank; `None` for ranks in this process or on other machines.
#[derive(Debug)]
pub(crate) struct Watch {
    processes: Vec<Option<Process>>,
}

/// A process whose end this rank notices.
#[derive(Debug)]
enum Process {
    /// The kernel says when it ends.
    Described(OwnedFd),
    /// The kernel has no descriptors of processes (before Linux 5.3), or a container's filter forbids them (Docker before
    /// 20.10). A number alone may be given to another process later, so the time at which it began belongs to it.
    Numbered { pid: Pid, began: Option<u64> },
}

impl Process {
    fn open(pid: Pid) -> std::result::Result<Self, Errno> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Process::Described(descriptor)),
            Err(Errno::NOSYS | Errno::PERM) => Self::number(pid),
            Err(cause) => Err(cause),
        }
    }

    fn number(pid: Pid) -> std::result::Result<Self, Errno> {
        let process = Process::Numbered { pid, began: stat(pid).map(|stat| stat.began) };
        if process.has_ended() { Err(Errno::SRCH) } else { Ok(process) }
    }

    /// Whether a process that is known by its number has ended: it is not there, is a zombie, or began at another time.
    fn has_ended(&self) -> bool {
        let &Process::Numbered { pid, began } = self else { return false };
        match stat(pid) {
            Some(stat) => stat.is_over || began.is_some_and(|began| began != stat.began),
            None => test_kill_process(pid) == Err(Errno::SRCH),
        }
    }
}

/// What `/proc/PID/stat` says (proc(5)).
struct Stat {
    /// In clock ticks after the boot.
    began: u64,
    is_over: bool,
}

/// `None` where `/proc` is not there, has no such process, or shows those of another namespace.
fn stat(pid: Pid) -> Option<Stat> {
    let own = std::fs::read_link("/proc/self").ok()?;
    if own.to_str()?.parse() != Ok(rustix::process::getpid().as_raw_nonzero().get()) {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The second field is a name that may contain anything. The third is the state, the 20th the number of threads, the 22nd
    // the start time. A process whose first thread has ended alone is a zombie here, too.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_over = matches!(fields.next()?, "Z" | "X" | "x");
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    Some(Stat { began: fields.nth(1)?.parse().ok()?, is_over: is_over && threads <= 1 })
}

impl Watch {
    /// Begins to watch the processes with these numbers, for `rank`.
    ///
    /// # Errors
    /// [`Error::PeerDied`] for a process that does not exist; too few descriptors.
    pub(crate) fn new(rank: u32, pids: &[Option<u32>]) -> Result<Self> {
        let needed = pids.iter().flatten().count().saturating_sub(1);
        let open = |(peer, pid): (usize, &Option<u32>)| -> Result<Option<Process>> {
            let Some(pid) = pid.filter(|_| peer != rank as usize) else { return Ok(None) };
            let died = || Error::PeerDied {
                rank,
                operation: "join",
                peer: peer as u32,
                how: format!("process {pid} is not there"),
                hosts: HostNames::default(),
            };
            let pid = Pid::from_raw(pid as i32).ok_or_else(died)?;
            Process::open(pid).map(Some).map_err(|cause| match cause {
                Errno::SRCH => died(),
                Errno::MFILE | Errno::NFILE => {
                    Error::join(rank, format!(
                        "watching the processes of the other ranks takes {needed} descriptors, one a rank, and fewer are \
                         left ({cause}); raise ulimit -n"
                    ))
                }
                cause => Error::os(rank, "watch another rank's process", cause),
            })
        };
        let processes = pids.iter().enumerate().map(open).collect::<Result<_>>()?;
        Ok(Watch { processes })
    }

    /// The ranks, ascending, whose processes have ended without leaving: `left` says whether a rank
    /// has left, which a process does before it ends.
    pub(crate) fn ended(&self, left: impl Fn(u32) -> bool) -> Vec<u32> {
        let processes = || (0..).zip(&self.processes).filter(|&(peer, _)| !left(peer));
        let described: Vec<(u32, &OwnedFd)> = processes()
            .filter_map(|(peer, process)| match process {
                Some(Process::Described(descriptor)) => Some((peer, descriptor)),
                _ => None,
            })
            .collect();
        let mut polled: Vec<_> = described.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)).collect();
        let some_ended = poll(&mut polled, Some(&rustix::time::Timespec::default())).unwrap_or(0) > 0;
        let reported = described.iter().zip(&polled).filter(|(_, poll)| some_ended && !poll.revents().is_empty());
        let reported = reported.map(|(&(peer, _), _)| peer);
        let missed = processes().filter(|(_, process)| process.as_ref().is_some_and(Process::has_ended));
        let mut ended: Vec<u32> = reported.chain(missed.map(|(peer, _)| peer)).filter(|&peer| !left(peer)).collect();
        ended.sort_unstable();
        ended
    }

    /// Whether the kernel reports the end of a rank's process.
    pub(crate) fn watches(&self, rank: u32) -> bool {
        self.processes.get(rank as usize).is_some_and(Option::is_some)
    }
}

/// The description of a death without `finish`.
pub(crate) const ENDED: &str = "its process ended without finish";

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    fn pid(child: &Child) -> Pid {
        Pid::from_raw(child.id() as i32).unwrap()
    }

    #[test]
    fn the_end_of_a_process_is_noticed_by_its_number_too() {
        for open in [Process::open, Process::number] {
            let mut child = sleeper();
            let process = open(pid(&child)).unwrap();
            let watch = Watch { processes: vec![None, Some(process)] };
            assert!(watch.ended(|_| false).is_empty());
            child.kill().unwrap();
            // Its parent has not waited for it, so that its number is still taken.
            let until = std::time::Instant::now() + Duration::from_secs(10);
            while watch.ended(|_| false) != [1] {
                assert!(std::time::Instant::now() < until, "{watch:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(watch.ended(|peer| peer == 1).is_empty(), "it has left");
            child.wait().unwrap();
            assert_eq!(watch.ended(|_| false), [1]);
        }
    }

    #[test]
    fn a_process_that_got_the_number_later_is_another_one() {
        let mut child = sleeper();
        let process = Process::Numbered { pid: pid(&child), began: Some(1) };
        assert!(process.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Process::number(pid(&child)).err(), Some(Errno::SRCH));
    }
}
