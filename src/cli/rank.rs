//! Prepares a launched process before it becomes the program: it dies with its launcher, and stays
//! on its core.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub(super) const NAME: &str = "__rank";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Process id of the launcher.
    #[arg(long)]
    launcher: i32,
    /// Position among the allowed cores to stay on.
    #[arg(long)]
    core: Option<usize>,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<OsString>,
}

pub(super) fn main(args: &Args) -> super::Outcome {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The launcher may have died before the line above.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != args.launcher) {
        return Err("the launcher is gone".into());
    }
    if let Some(position) = args.core {
        let allowed = sched_getaffinity(None)?;
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
        let mut only = CpuSet::new();
        only.set(cores[position % cores.len()]);
        sched_setaffinity(None, &only)?;
    }
    let failed = Command::new(&args.program[0]).args(&args.program[1..]).exec();
    Err(format!("cannot run {}: {failed}", args.program[0].to_string_lossy()).into())
}
