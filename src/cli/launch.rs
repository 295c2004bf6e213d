//! Starts the ranks of a world on this machine and waits until they have ended.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::keeper::Keeper;
use super::relay::Outlet;
use crate::Config;
use crate::fabric::ofi;

/// Where ranks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Bind {
    /// Rank i stays on core i, modulo the cores there are
    Core,
    /// Wherever the kernel puts them
    None,
}

/// What happens to the output of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Every line is prefixed with its rank.
    Prefixed,
    /// Rank 0's output has no prefix. The output of the other ranks, and the errors of all, have one. At a terminal
    /// rank 0 also writes its errors itself, because a progress bar is drawn only then.
    First,
}

pub(super) struct Launch<'a> {
    pub(super) ranks: u32,
    pub(super) bind: Bind,
    pub(super) output: Output,
    pub(super) program: &'a OsStr,
    pub(super) args: &'a [OsString],
    /// Variables of the ranks, besides those that say which ranks they are.
    pub(super) variables: &'a [(&'static str, &'static str)],
}

const LEVELS: &str = "EARLYBIRD_LEVELS";

/// The time after a failure of a rank in which the others can notice it, report it and end.
const AFTER_A_FAILURE: Duration = Duration::from_secs(5);
/// The time after a terminating signal in which ranks can end in good order; Slurm gives them the same time.
const AFTER_A_SIGNAL: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);
/// The time for output that has not been read when all ranks have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

struct Rank {
    child: Child,
    status: Option<ExitStatus>,
}

impl Launch<'_> {
    pub(super) fn run(&self) -> super::Outcome {
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2])?;
        let (meeting, secret) = (format!("unix:{}", random()?), random()?);
        if let Some(own) = std::env::var_os("EARLYBIRD_STORE").filter(|own| !own.is_empty()) {
            complain!(
                "warning: EARLYBIRD_STORE={} is replaced by {meeting}, which no other job has; to choose \
                 the store, start the ranks with another launcher",
                own.to_string_lossy()
            );
        }
        let (mut ranks, mut relays) = (Vec::new(), Vec::new());
        let (out, err) = (Arc::new(Outlet::to(std::io::stdout())), Arc::new(Outlet::to(std::io::stderr())));
        let mut keeper = Keeper::start()?;
        for rank in 0..self.ranks {
            // Children die with the thread that started them, so this thread stays. The keeper ends what they have
            // started.
            let spawned = self.command(rank, &meeting, &secret)?.spawn();
            let mut child = spawned.map_err(|cause| cannot_start(rank, &cause))?;
            keeper.hold(child.id());
            if let Some(said) = child.stdout.take() {
                let out = out.clone();
                relays.push(thread::spawn(move || out.relay(rank, said)));
            }
            if let Some(said) = child.stderr.take() {
                let err = err.clone();
                relays.push(thread::spawn(move || err.relay(rank, said)));
            }
            ranks.push(Rank { child, status: None });
        }
        let code = watch(&mut ranks, &mut signals, &mut keeper, &|| out.is_closed())?;
        // A process that a rank left running may hold its output open for ever.
        let until = Instant::now() + LAST_WORDS;
        while Instant::now() < until && !relays.iter().all(thread::JoinHandle::is_finished) {
            thread::sleep(LOOK);
        }
        match out.failure().or(err.failure()) {
            Some(cause) if code == ExitCode::SUCCESS => Err(format!("output of ranks is lost: {cause}").into()),
            _ => Ok(code),
        }
    }

    fn command(&self, rank: u32, meeting: &str, secret: &str) -> Result<Command, std::io::Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(super::rank::NAME).arg("--launcher").arg(std::process::id().to_string());
        if self.bind == Bind::Core {
            command.arg("--core").arg(rank.to_string());
        }
        command.arg("--").arg(self.program).args(self.args);
        command.env("EARLYBIRD_RANK", rank.to_string());
        command.env("EARLYBIRD_WORLD_SIZE", self.ranks.to_string());
        command.env("EARLYBIRD_STORE", meeting);
        command.envs(ofi::variables_not_set()).envs(self.variables.iter().copied());
        // A secret that the user has set is kept, because ranks that are started otherwise may know it.
        if std::env::var_os("EARLYBIRD_SECRET").is_none() {
            command.env("EARLYBIRD_SECRET", secret);
        }
        // Rank 0 reads the launcher's input. A terminal would stop it, because it is in a group of its own.
        let reads = rank == 0 && self.output == Output::Prefixed && !std::io::stdin().is_terminal();
        command.stdin(if reads { Stdio::inherit() } else { Stdio::null() });
        command.process_group(0);
        let speaks = rank == 0 && self.output == Output::First;
        if !speaks {
            command.stdout(Stdio::piped());
        }
        if !(speaks && std::io::stderr().is_terminal()) {
            command.stderr(Stdio::piped());
        }
        Ok(command)
    }
}

/// Returns an unguessable number: a name for the meeting, which all users can read in /proc/net/unix, or a secret,
/// which only this user and root can read in the environment of the ranks.
fn random() -> Result<String, std::io::Error> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn signal(ranks: &[Rank], signal: Signal) {
    for rank in ranks.iter().filter(|rank| rank.status.is_none()) {
        if let Some(pid) = Pid::from_raw(rank.child.id() as i32) {
            let _ = kill_process_group(pid, signal);
        }
    }
}

/// Waits for all ranks, forwards signals, and ends ranks that outlive a failure or a terminating signal. A second such
/// signal ends them at once. Output without a reader counts as a terminating signal, too, as a closed pipe ends a
/// program.
fn watch(
    ranks: &mut [Rank],
    signals: &mut Signals,
    keeper: &mut Keeper,
    is_closed: &dyn Fn() -> bool,
) -> Result<ExitCode, std::io::Error> {
    let mut failed: Option<(u8, Instant)> = None;
    let mut asked: Option<Instant> = None;
    loop {
        if asked.is_none() && is_closed() {
            asked = Some(Instant::now());
            failed.get_or_insert((128 + SIGPIPE as u8, Instant::now()));
            signal(ranks, Signal::TERM);
        }
        for number in signals.pending() {
            let Some(known) = Signal::from_named_raw(number) else { continue };
            let asks = matches!(number, SIGHUP | SIGINT | SIGTERM);
            signal(ranks, if asks && asked.is_some() { Signal::KILL } else { known });
            if asks {
                asked.get_or_insert_with(Instant::now);
            }
        }
        for (index, rank) in ranks.iter_mut().enumerate() {
            if rank.status.is_some() {
                continue;
            }
            rank.status = rank.child.try_wait()?;
            if rank.status.is_some() {
                keeper.let_go(rank.child.id());
            }
            if let Some(status) = rank.status.filter(|status| !status.success()) {
                let (code, how) = describe(status);
                if failed.is_none_or(|(_, since)| since.elapsed() < AFTER_A_FAILURE) {
                    complain!("rank {index} {how}");
                }
                failed.get_or_insert((code, Instant::now()));
            }
        }
        if ranks.iter().all(|rank| rank.status.is_some()) {
            return Ok(ExitCode::from(failed.map_or(0, |(code, _)| code)));
        }
        let outlived = |since: Option<Instant>, time| since.is_some_and(|since| since.elapsed() > time);
        if outlived(failed.map(|(_, since)| since), AFTER_A_FAILURE) || outlived(asked, AFTER_A_SIGNAL) {
            signal(ranks, Signal::KILL);
        }
        thread::sleep(LOOK);
    }
}

fn describe(status: ExitStatus) -> (u8, String) {
    match (status.code(), status.signal()) {
        (Some(code), _) => (code.clamp(1, 255) as u8, format!("ended with exit status {code}")),
        (None, Some(signal)) => {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown");
            ((128 + signal) as u8, format!("was killed by signal {signal} ({name})"))
        }
        (None, None) => (1, "ended in an unknown way".to_owned()),
    }
}

/// Checks the number of ranks that a command starts.
pub(super) fn check_ranks(ranks: u32) -> Result<(), String> {
    match ranks {
        0 => Err("0 ranks can do nothing; use -n 1 or more".to_owned()),
        1..=1024 => Ok(()),
        _ => Err(format!("{ranks} ranks on one machine; the most is 1024")),
    }
}

/// Starts this command again as `ranks` ranks. A user who names a network wants to see that, so they use it although they
/// could share memory, unless the user has chosen the levels, too.
pub(super) fn again(ranks: u32, bind: Bind, config: &Config) -> super::Outcome {
    check_ranks(ranks)?;
    let is_left_open = std::env::var_os(LEVELS).is_none_or(|levels| levels.is_empty());
    let variables: &[_] = if config.fabric.names_a_network() && is_left_open { &[(LEVELS, "1")] } else { &[] };
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let program = std::env::current_exe()?;
    Launch { ranks, bind, output: Output::First, program: program.as_os_str(), args: &args, variables }.run()
}

/// Returns why a rank cannot be started, and what to do.
fn cannot_start(rank: u32, cause: &std::io::Error) -> String {
    let all_used = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error())).contains(&cause.raw_os_error());
    let advice = if all_used { "; the launcher takes two descriptors a rank, raise ulimit -n" } else { "" };
    format!("rank {rank} cannot be started: {cause}{advice}")
}
