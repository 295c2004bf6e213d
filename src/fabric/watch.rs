//! Watches the processes of other ranks on this machine: the kernel reports at once when one ends.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{Error, Result};

/// How long a rank sleeps before it checks that all ranks are alive.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(20);

/// Process descriptors, by rank; `None` for ranks in this process or on other machines.
#[derive(Debug)]
pub(crate) struct Watch {
    processes: Vec<Option<OwnedFd>>,
}

impl Watch {
    /// Begins to watch the processes with these numbers, for `rank`.
    ///
    /// # Errors
    /// [`Error::PeerDied`] for a process that does not exist; too few descriptors.
    pub(crate) fn new(rank: u32, pids: &[Option<u32>]) -> Result<Self> {
        let open = |(peer, pid): (usize, &Option<u32>)| -> Result<Option<OwnedFd>> {
            let Some(pid) = pid.filter(|_| peer != rank as usize) else { return Ok(None) };
            let died = || Error::PeerDied {
                rank,
                operation: "join",
                peer: peer as u32,
                how: format!("process {pid} is not there"),
            };
            let pid = Pid::from_raw(pid as i32).ok_or_else(died)?;
            pidfd_open(pid, PidfdFlags::empty()).map(Some).map_err(|cause| match cause {
                rustix::io::Errno::SRCH => died(),
                cause => Error::os(
                    rank,
                    "watch another rank's process (one descriptor a rank: is ulimit -n too low?)",
                    cause,
                ),
            })
        };
        let processes = pids.iter().enumerate().map(open).collect::<Result<_>>()?;
        Ok(Watch { processes })
    }

    /// The ranks, ascending, whose processes have ended without leaving: `left` says whether a rank
    /// has left, which a process does before it ends.
    pub(crate) fn ended(&self, left: impl Fn(u32) -> bool) -> Vec<u32> {
        let watched = || self.processes.iter().enumerate().filter_map(|(peer, fd)| Some((peer as u32, fd.as_ref()?)));
        let watched: Vec<_> = watched().filter(|(peer, _)| !left(*peer)).collect();
        let mut polled: Vec<_> = watched.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)).collect();
        if poll(&mut polled, Some(&rustix::time::Timespec::default())).unwrap_or(0) == 0 {
            return Vec::new();
        }
        let ended = watched.iter().zip(&polled).filter(|(_, poll)| !poll.revents().is_empty());
        ended.map(|((peer, _), _)| *peer).filter(|&peer| !left(peer)).collect()
    }

    /// Whether the kernel reports the end of a rank's process.
    pub(crate) fn watches(&self, rank: u32) -> bool {
        self.processes.get(rank as usize).is_some_and(Option::is_some)
    }
}

/// The description of a death without `finish`.
pub(crate) const ENDED: &str = "its process ended without finish";
