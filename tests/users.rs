//! What another user of a machine can do, and a user whose program has more rights: nothing to files of the job's user, and no
//! rank of the job. These tests act as two users, so they need root.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::command::text;

/// Two users that have nothing on this machine.
const USERS: [u32; 2] = [61_001, 61_002];

/// A folder in which both users can make files and remove each other's, and the command in it. `None` where this process
/// cannot act as another user.
struct Shared(PathBuf);

impl Shared {
    fn new(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            common::skipped(common::Need::Root, "to act as another user");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("{}-{name}", common::unique()));
        fs::create_dir(&folder).unwrap();
        // Not sticky: in sticky folders kernels keep a user from following others' links.
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let program = folder.join("earlybird");
        // Another process copies it: if a test forked while this one wrote, the copy would stay open and could not be started.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_earlybird")).arg(&program).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        Some(Shared(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The command with these arguments, as a user.
    fn earlybird(&self, user: u32, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("earlybird"));
        command.args(args).uid(user).gid(user).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
        command
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn belongs_to(path: &Path, user: u32) {
    std::os::unix::fs::lchown(path, Some(user), Some(user)).unwrap();
}

fn run(command: &mut Command) -> (Output, Duration) {
    let start = Instant::now();
    (command.output().unwrap(), start.elapsed())
}

/// The other user has put something there first.
#[test]
fn files_of_the_library_follow_no_link_and_wait_for_no_pipe() {
    let Some(shared) = Shared::new("links") else { return };
    let [user, other] = USERS;
    let (precious, recording, saved) = (shared.path("precious"), shared.path("run.0.0"), shared.path("saved.0.new"));
    fs::write(&precious, "precious").unwrap();
    belongs_to(&precious, user);
    let train = ["train", "digits", "-n", "2", "--epochs", "1"];
    let checkpoint = format!("--checkpoint={}", shared.path("saved").display());
    let record = || {
        let mut command = shared.earlybird(user, &[&train[..], &["--fire", "solo"]].concat());
        command.env("EARLYBIRD_RECORD", shared.path("run"));
        command
    };
    let save =
        || shared.earlybird(user, &[&train[..], &["--fire", "all", "--checkpoint-every", "5", &checkpoint]].concat());
    let refused = |command: &mut Command, words: &str| {
        let (output, took) = run(command);
        assert!(!output.status.success() && text(&output).contains(words), "{words}: {}", text(&output));
        assert!(took < Duration::from_secs(60), "it waited for {took:?}");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    };
    for (command, taken) in [(&record as &dyn Fn() -> Command, &recording), (&save, &saved)] {
        symlink(&precious, taken).unwrap();
        belongs_to(taken, other);
        refused(&mut command(), "a link has this name");
        fs::remove_file(taken).unwrap();
        make_pipe(taken, other);
        refused(&mut command(), "is no file");
        fs::remove_file(taken).unwrap();
        fs::write(taken, "").unwrap();
        belongs_to(taken, other);
        refused(&mut command(), &format!("user {other} has a file of this name"));
        fs::remove_file(taken).unwrap();
    }
    let (output, _) = run(&mut record());
    assert!(output.status.success(), "{}", text(&output));
    assert!(fs::metadata(shared.path("run.0.1")).is_ok());
    assert_eq!(fs::metadata(&recording).unwrap().permissions().mode() & 0o7777, 0o600);
    fs::remove_file(&recording).unwrap();
    make_pipe(&recording, other);
    let mut replay = shared.earlybird(user, &[&train[..], &["--fire", "solo"]].concat());
    refused(replay.env("EARLYBIRD_REPLAY", shared.path("run")), "no file");
}

fn make_pipe(path: &Path, user: u32) {
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    belongs_to(path, user);
}

/// A setuid copy, which another user starts.
#[test]
fn a_program_with_more_rights_loads_and_writes_no_file_that_variables_name() {
    let Some(shared) = Shared::new("setuid") else { return };
    let [user, other] = USERS;
    let program = shared.path("earlybird");
    chown(&program, Some(user), Some(user)).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    let library = shared.path("library");
    let mut info = shared.earlybird(other, &["info"]);
    let (output, _) = run(info.env("EARLYBIRD_LIBFABRIC", &library).env("EARLYBIRD_HW_CONFIG", "/dev/zero"));
    let said = text(&output);
    if !said.contains("more rights") && is_nosuid(&shared.0) {
        common::skipped(common::Need::Root, "programs in the folder for temporary files get no rights of their owner");
        return;
    }
    assert!(output.status.success(), "{said}");
    assert!(said.contains("is ignored: this program has more rights"), "{said}");
    assert!(!said.contains(library.to_str().unwrap()), "{said}");
    let mut bench = shared.earlybird(other, &["bench", "-n", "1", "-b", "8", "--iters", "3"]);
    let (output, _) = run(bench.env("EARLYBIRD_RECORD", shared.path("run")).env("EARLYBIRD_HW_CONFIG", "/dev/zero"));
    assert!(output.status.success(), "{}", text(&output));
    assert!(!shared.path("run.0.0").exists());
    // libfabric itself would load providers from there.
    let (output, _) = run(shared.earlybird(other, &["info"]).env("FI_PROVIDER_PATH", shared.path("")));
    assert!(
        text(&output).contains("No libfabric: FI_PROVIDER_PATH is set, and this program has more rights"),
        "{}",
        text(&output)
    );
    let folder = shared.path("store");
    let mut bench = shared.earlybird(other, &["bench", "-b", "8", "--iters", "3"]);
    bench.env("EARLYBIRD_STORE", format!("file:{}", folder.display())).env("EARLYBIRD_FABRIC", "ofi");
    let (output, _) =
        run(bench.env("EARLYBIRD_RANK", "0").env("EARLYBIRD_WORLD_SIZE", "2").env("EARLYBIRD_DEADLINE", "2s"));
    assert!(text(&output).contains("names a folder, and this program has more rights"), "{}", text(&output));
    assert!(!folder.exists());
}

fn is_nosuid(folder: &Path) -> bool {
    rustix::fs::statvfs(folder).unwrap().f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID)
}

/// In a user namespace without a map all users have one number. Each of the two takes the other for itself.
#[test]
fn users_without_a_number_do_not_join_each_other() {
    let Some(shared) = Shared::new("unmapped") else { return };
    let store = format!("unix:{}", common::unique());
    let rank = |rank: usize| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--"]).arg(shared.path("earlybird"));
        command.args(["bench", "-b", "8", "--iters", "3"]).uid(USERS[rank]).gid(USERS[rank]);
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/").stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("EARLYBIRD_RANK", rank.to_string()).env("EARLYBIRD_WORLD_SIZE", "2");
        command.env("EARLYBIRD_STORE", &store).env("EARLYBIRD_DEADLINE", "5s").env("EARLYBIRD_FABRIC", "shm");
        command.spawn().unwrap()
    };
    let can = Command::new("unshare").args(["--user", "--", "true"]).uid(USERS[0]).gid(USERS[0]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return common::skipped(common::Need::Namespaces, "users cannot make user namespaces here");
    }
    for rank in [rank(0), rank(1)] {
        let output = rank.wait_with_output().unwrap();
        assert!(!output.status.success(), "it joined: {}", text(&output));
        assert!(text(&output).contains("this user namespace has no number for"), "{}", text(&output));
    }
}
