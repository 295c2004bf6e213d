//! A process that ends the ranks of a launcher that was killed.
//!
//! Other processes may start a rank: a shell, `uv run`, `multiprocessing`. The kernel ends only the launcher's own
//! children with it (`rank.rs`), so the launcher tells the keeper the process group of each rank. At the end of its
//! input the keeper kills the groups whose first process has not ended by then.

use std::collections::BTreeSet;
use std::io::{BufRead, Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, ExitCode, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

pub(super) const NAME: &str = "__keeper";

/// The launcher's end.
#[derive(Debug)]
pub(super) struct Keeper {
    told: ChildStdin,
}

impl Keeper {
    /// Starts the process in a group of its own, so that what ends the launcher by Ctrl-C spares it.
    pub(super) fn start() -> Result<Self, std::io::Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(NAME).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let told = command.spawn()?.stdin.take();
        told.map(|told| Keeper { told }).ok_or_else(|| std::io::Error::other("the keeper has no input"))
    }

    /// Makes the keeper kill a process group if the launcher dies.
    pub(super) fn hold(&mut self, group: u32) {
        self.say(&format!("{group}"));
    }

    /// Releases a group whose first process has ended: its number may belong to another group later.
    pub(super) fn let_go(&mut self, group: u32) {
        self.say(&format!("-{group}"));
    }

    fn say(&mut self, word: &str) {
        // A keeper that was killed cannot help; the ranks work without it.
        let _ = self.told.write_all(format!("{word}\n").as_bytes());
    }
}

pub(super) fn main() -> super::Outcome {
    let mut groups = BTreeSet::new();
    for line in stdin().lock().lines() {
        match line?.parse::<i32>() {
            Ok(group) if group > 0 => _ = groups.insert(group),
            Ok(group) => _ = groups.remove(&-group),
            Err(_) => {}
        }
    }
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        // A group that ends at this moment need not be killed.
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(ExitCode::SUCCESS)
}
