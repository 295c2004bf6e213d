//! RDMA verbs between real processes: rounds that need no processor of a stopped rank, ranks that die, a receiver that
//! takes nothing, a process that forks, and what is left of a world.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "opens an endpoint, and forks")]

mod common;

use std::ffi::c_int;
use std::process::{Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::folder::Folder;
use common::marks::Marks;
use common::tier::by_tier;
use common::{Job, Way, absence, rdma, rdma_objects, role, until, wait_at_most};
use earlybird::fabric::{Access, At, Change, Key, Posted, RawAccess, Signal};
use earlybird::rule::drawn;
use earlybird::{Config, Executor, Fire, Grace, World};
use rustix::process::Signal as ProcessSignal;

const DEADLINE: Duration = Duration::from_secs(60);

/// How long the tests wait for a job.
const LIMIT: Duration = Duration::from_secs(90);

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let Some(role) = role() else { return };
    match role.split(' ').next() {
        Some("away") => be_away_in_turn(),
        Some("puts") => put_to_a_stopped_rank(),
        Some("forks") => rounds_around_forks(),
        Some("ends") => end_well(role.split(' ').nth(1)),
        Some("takes") => end_well_over(&role.split(' ').skip(1).collect::<Vec<_>>()),
        Some("stopped") => common::faults::leave_or_be_stopped(),
        _ => common::faults::rank(),
    }
}

fn all_succeed(ends: &[(ExitStatus, String)]) {
    let failed = ends.iter().enumerate().filter(|(_, (status, _))| !status.success());
    let failed: Vec<String> = failed.map(|(rank, (_, text))| format!("rank {rank}: {text}")).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The processor time of a process, in nanoseconds.
fn processor_time(pid: u32) -> u64 {
    let of = |thread: std::fs::DirEntry| -> u64 {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.map(|thread| of(thread.unwrap())).sum()
}

/// The same of a process that has just been stopped: what its threads used last is counted when they have given up their
/// processors, a little after the kernel calls them stopped.
fn processor_time_when_stopped(pid: u32) -> u64 {
    let mut used = processor_time(pid);
    until("a stopped rank uses no processor", || {
        std::thread::sleep(Duration::from_millis(20));
        std::mem::replace(&mut used, processor_time(pid)) == used
    });
    used
}

/// How often the devices of this machine have told a sender, or were told, that a receiver had no buffer. `None` if no
/// device counts that.
fn receivers_not_ready() -> Option<u64> {
    let entries = |path: std::path::PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let ports = entries("/sys/class/infiniband".into()).flat_map(|device| entries(device.path().join("ports")));
    let counters = ports.flat_map(|port| entries(port.path().join("hw_counters")));
    let counts = counters.filter(|counter| counter.file_name().to_string_lossy().contains("rnr"));
    let read = |counter: std::fs::DirEntry| std::fs::read_to_string(counter.path()).ok()?.trim().parse::<u64>().ok();
    counts.filter_map(read).reduce(|sum, one| sum + one)
}

/// Ranks of a world in which one after the other is away.
const RANKS: u32 = 4;

/// Rounds that the others make meanwhile: as many as they may be ahead.
const ROUNDS: u64 = 16;

/// Elements of a small round, and of one whose data does not fit into a message.
const LENGTHS: [usize; 2] = [128, 8192];

/// A rule that fires without a rank.
fn fires_without(away: u32) -> [Fire; 3] {
    let seed = (0..).find(|&seed| (1..=ROUNDS).all(|round| drawn(seed, round, RANKS) != away)).unwrap();
    [Fire::SOLO, Fire::quorum(RANKS - 1), Fire::majority(seed)]
}

/// Who is away, the rule, and the length. Each round has a rank in whose memory its words lie, so with each rank away
/// in its turn, this is once the one that is away.
fn absences() -> Vec<(u32, Fire, usize)> {
    let of =
        |away: u32| fires_without(away).into_iter().flat_map(move |fire| LENGTHS.map(|length| (away, fire, length)));
    (0..RANKS).flat_map(of).collect()
}

fn be_away_in_turn() {
    let marks = Marks::of_role();
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    let me = world.rank();
    for (turn, (away, fire, length)) in absences().into_iter().enumerate() {
        let sum = world.allreduce::<u64>(&[length]).fire(fire).grace(Grace::NONE).depth(ROUNDS as u32);
        let mut sum = sum.executor(Executor::Caller).build().unwrap();
        world.barrier(DEADLINE).unwrap();
        marks.set(&format!("ready-{turn}-{me}"));
        if me == away {
            marks.wait(&format!("woken-{turn}"));
        } else {
            marks.wait(&format!("stopped-{turn}"));
        }
        let first = absence::rounds(&mut sum, (me, away), ROUNDS, DEADLINE);
        if me == away {
            assert!(first >= ROUNDS, "it received only {first} rounds at once");
        } else {
            marks.set(&format!("made-{turn}-{me}"));
            marks.wait(&format!("woken-{turn}"));
        }
        sum.finish(DEADLINE).unwrap();
    }
}

/// The others make rounds while a rank is stopped, and so are the threads that this library has in its process. Its
/// device changes the words that lie in its memory. It uses no processor time, and its device asks no rank to wait.
#[test]
fn rounds_need_no_processor_of_a_stopped_rank() {
    if rdma().is_none() {
        return;
    }
    let marks = Marks::make();
    let job = Job::start(Way::Verbs, RANKS, "rank", &format!("away {}", marks.folder()));
    let mut stalled = Vec::new();
    for (turn, (away, fire, length)) in absences().into_iter().enumerate() {
        let (away, what) = (away as usize, format!("without rank {away}: {fire}, {length} elements"));
        let ready = || (0..RANKS).all(|rank| marks.has(&format!("ready-{turn}-{rank}")));
        if !wait_at_most(LIMIT, ready) {
            stalled.push(format!("{what}: not begun"));
            break;
        }
        job.stop(away);
        let pid = job.ranks[away].id();
        let (used, asked, began) = (processor_time_when_stopped(pid), receivers_not_ready(), Instant::now());
        marks.set(&format!("stopped-{turn}"));
        let others = (0..RANKS as usize).filter(|&rank| rank != away);
        let have_made = || others.clone().all(|rank| marks.has(&format!("made-{turn}-{rank}")));
        let all_made = wait_at_most(DEADLINE, have_made);
        let (used, asked_now) = (processor_time(pid) - used, receivers_not_ready());
        let waits = asked_now.unwrap_or(0) - asked.unwrap_or(0);
        println!("{what}: {ROUNDS} rounds in {:.2?}, {used} ns of its processor, {waits} waits", began.elapsed());
        if !all_made || used > 0 || waits > 0 {
            stalled.push(format!("{what}: all made: {all_made}, {used} ns of its processor, {waits} waits"));
        }
        job.signal(away, ProcessSignal::CONT);
        marks.set(&format!("woken-{turn}"));
        if !all_made {
            break;
        }
    }
    if !stalled.is_empty() {
        let ends = job.finish(Duration::from_secs(5));
        panic!("{stalled:?}: {ends:?}");
    }
    all_succeed(&job.finish(LIMIT));
}

/// Ranks that put to rank 0, and the puts of each: several times what a receive queue holds.
const WRITERS: u32 = 3;
const PUTS: u64 = 400;

/// Bytes of a put, behind which is a cell.
const PUT: usize = 56;

/// All others put to rank 0 while it is stopped: by devices, or by messages that its processor takes.
fn put_to_a_stopped_rank() {
    let marks = Marks::of_role();
    let by_messages = role().unwrap().contains(MESSAGES);
    let mut config = Config::from_env().unwrap();
    config.verbs.device_atomics = by_messages.then_some(false);
    let world = World::with(&config).unwrap();
    let me = world.rank();
    // SAFETY: all ranks open one endpoint, and import keys of it. A put's bytes are written once, before it is posted;
    // they are read after all puts have completed.
    let access = unsafe { RawAccess::promise() };
    let mut end = world.raw_fabric().open(access).unwrap();
    let slots = PUTS as usize * WRITERS as usize * (PUT + size_of::<u64>());
    let own = end.register(slots, Access::Write).unwrap();
    let until = Instant::now() + LIMIT;
    let keys = world.raw_fabric().exchange("keys", &end.key(own).encode(), until).unwrap();
    let near = end.window(own).unwrap();
    marks.set(&format!("ready-{me}"));
    let place = |writer: u32, number: u64| {
        (number as usize * WRITERS as usize + writer as usize - 1) * (PUT + size_of::<u64>())
    };
    let value = |writer: u32, number: u64| u64::from(writer) << 32 | (number + 1);
    if me > 0 {
        let theirs = end.import(0, Key::decode(&keys[0]).unwrap()).unwrap();
        marks.wait("stopped");
        let mut done = 0;
        for number in 0..PUTS {
            let at = place(me, number);
            near.cell(at / size_of::<u64>()).store(value(me, number), Ordering::Relaxed);
            let (from, to) = (At { region: own, offset: at }, At { region: theirs, offset: at });
            let cell = At { region: theirs, offset: at + PUT };
            let signal = Signal { at: cell, change: Change::Add(number + 1), awaited: true };
            done += u64::from(end.put(from, to, PUT, Some(signal), number).unwrap() != Posted::Pending);
        }
        let mut take = |limit: Duration| {
            let until = Instant::now() + limit;
            while done < PUTS && Instant::now() < until {
                done += u64::from(end.poll().unwrap().is_some());
            }
            done
        };
        let while_stopped = take(if by_messages { Duration::from_secs(3) } else { LIMIT });
        println!("rank {me}: {while_stopped} puts were done while rank 0 was stopped");
        assert_eq!(while_stopped, if by_messages { 0 } else { PUTS });
        marks.set(&format!("full-{me}"));
        assert_eq!(take(LIMIT), PUTS);
    } else {
        marks.wait("woken");
    }
    world.raw_fabric().exchange("end", &[], until).unwrap();
    if me == 0 {
        for (writer, number) in (1..=WRITERS).flat_map(|writer| (0..PUTS).map(move |number| (writer, number))) {
            let cell = |skip: usize| near.cell((place(writer, number) + skip) / size_of::<u64>());
            let cells = [0, PUT].map(|skip| cell(skip).load(Ordering::Acquire));
            assert_eq!(cells, [value(writer, number), number + 1], "put {number} of rank {writer}");
        }
    }
}

/// How puts and signals go where devices have no atomics.
const MESSAGES: &str = " messages ";

/// Puts to a stopped rank. Returns how often its device had no buffer for them, if the device counts that.
fn puts_to_a_stopped_rank(how: &str) -> Option<u64> {
    let marks = Marks::make();
    let mut job = Job::start(Way::Verbs, WRITERS + 1, "rank", &format!("puts{how}{}", marks.folder()));
    (0..=WRITERS).for_each(|rank| job.wait_for_mark(rank as usize, (&marks, &format!("ready-{rank}"))));
    job.stop(0);
    let before = receivers_not_ready();
    marks.set("stopped");
    (1..=WRITERS).for_each(|rank| job.wait_for_mark(rank as usize, (&marks, &format!("full-{rank}"))));
    let waits = receivers_not_ready().zip(before).map(|(now, before)| now - before);
    println!("{how}: a receiver was not ready {waits:?} times");
    job.signal(0, ProcessSignal::CONT);
    marks.set("woken");
    all_succeed(&job.finish(LIMIT));
    waits
}

/// They complete: the wakes that come with them take only a part of its message buffers.
#[test]
fn a_stopped_rank_holds_up_no_put() {
    if rdma().is_some() {
        let waits = puts_to_a_stopped_rank(" ");
        assert_eq!(waits.unwrap_or(0), 0, "its device has asked others to wait");
    }
}

/// More messages than it has buffers for: they wait for as long as it takes, and no put is lost or made twice.
#[test]
fn messages_wait_for_a_receiver_that_is_not_ready() {
    if rdma().is_some() {
        let waits = puts_to_a_stopped_rank(MESSAGES);
        assert!(waits.is_none_or(|waits| waits > 0), "there were buffers for all");
    }
}

#[test]
fn all_ranks_name_a_killed_rank() {
    if rdma().is_none() {
        return;
    }
    let window = Duration::from_millis(300)..Duration::from_millis(1500);
    common::faults::kill(Way::Verbs, by_tier(3, 9), &["cut"], window);
}

/// The stopped rank sees that other processes have ended before it has read their messages.
#[test]
fn a_stopped_rank_receives_all_from_ranks_that_left() {
    if rdma().is_some() {
        common::faults::stop_while_others_leave(|role| Job::start(Way::Verbs, 3, "rank", role));
    }
}

unsafe extern "C" {
    fn fork() -> c_int;
    fn _exit(status: c_int) -> !;
    fn usleep(microseconds: u32) -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
}

/// A child that does nothing but wait and end.
fn child(microseconds: u32) -> c_int {
    // SAFETY: the child calls only functions that a child of a process with threads may call: it allocates nothing, and
    // drops nothing.
    unsafe {
        let pid = fork();
        if pid == 0 {
            usleep(microseconds);
            _exit(0);
        }
        assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
        pid
    }
}

/// Makes rounds while a child of this process lives, and after it has ended. A page that the child shares is copied when
/// this process writes to it, and the device must not be left with the old one.
fn rounds_around_forks() {
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    let me = world.rank();
    for length in [16, 100_000] {
        let mut sum = world.allreduce::<u64>(&[length]).fire(Fire::ALL).build().unwrap();
        let mut children = Vec::new();
        for round in 1..=12u64 {
            match round {
                3 if me == 0 => children.push(child(0)),
                6 => children.push(child(2_000_000)),
                _ => {}
            }
            for (index, x) in sum.contribution().unwrap().iter_mut().enumerate() {
                *x = round * 1000 + u64::from(me) + index as u64;
            }
            sum.arrive().unwrap();
            let outcomes = sum.wait(DEADLINE).unwrap();
            let ranks = u64::from(world.size());
            for (index, &x) in outcomes.newest().data().iter().enumerate() {
                let expected = ranks * (round * 1000 + index as u64) + ranks * (ranks - 1) / 2;
                assert_eq!(x, expected, "round {round}, element {index}");
            }
        }
        for pid in children {
            let mut status = 1;
            // SAFETY: the status lives during the call.
            assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
            assert_eq!(status, 0, "a child ends badly");
        }
        sum.finish(DEADLINE).unwrap();
    }
}

#[test]
fn a_fork_leaves_registered_memory_to_its_parent() {
    if rdma().is_some() {
        all_succeed(&Job::start(Way::Verbs, 2, "rank", "forks").finish(LIMIT));
    }
}

/// Five rounds, with this hw-config if there is one.
fn end_well(hw_config: Option<&str>) {
    let hw_config = hw_config.map(Into::into);
    rounds_of(&World::with(&Config { deadline: DEADLINE, hw_config, ..Config::from_env().unwrap() }).unwrap());
}

/// A fabric, and perhaps a provider of it.
fn end_well_over(expected: &[&str]) {
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    let taken = [Some(world.fabric_name()), world.provider()];
    assert_eq!(taken.iter().flatten().take(expected.len()).copied().collect::<Vec<_>>(), expected);
    rounds_of(&world);
}

fn rounds_of(world: &World) {
    let mut sum = world.allreduce::<u64>(&[3000]).fire(Fire::ALL).build().unwrap();
    let ranks = u64::from(world.size());
    (0..5).for_each(|round| {
        sum.contribution().unwrap().fill(round + u64::from(world.rank()));
        sum.arrive().unwrap();
        let expected = ranks * round + ranks * (ranks - 1) / 2;
        let outcomes = sum.wait(DEADLINE).unwrap();
        assert!(outcomes.newest().iter().all(|&value| value == expected));
    });
    sum.finish(DEADLINE).unwrap();
}

/// Ranks that meet as those of several hosts do, each with its own variables.
fn meet_as_hosts_do(role: &str, variables: &[&[(&str, &str)]]) -> Vec<(ExitStatus, String)> {
    let folder = Folder::new();
    let store = format!("file:{}", folder.file("meeting"));
    let begin = |(rank, own): (u32, &&[(&str, &str)])| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("EARLYBIRD_STORE", &store).envs([common::LEVELS_1]).envs(own.iter().copied());
        common::start(&mut command, (rank, variables.len() as u32), "rank", role)
    };
    Job { ranks: (0..).zip(variables).map(begin).collect() }.finish(LIMIT)
}

/// Where nothing names a fabric, ranks of several hosts take verbs if each has a device, and libfabric if one does not.
#[test]
fn ranks_choose_the_best_fabric_that_all_can_use() {
    if rdma().is_none() || common::libfabric().is_none() {
        return;
    }
    // Then libfabric has the same provider on all ranks.
    let any: &[_] = &[("EARLYBIRD_FABRIC", "auto"), ("FI_PROVIDER", "tcp")];
    let verbs: &[_] = &[("EARLYBIRD_FABRIC", "verbs")];
    let libfabric: &[_] = &[("EARLYBIRD_FABRIC", "ofi"), ("FI_PROVIDER", "tcp")];
    let missing: &[_] = &[("EARLYBIRD_FABRIC", "auto"), ("FI_PROVIDER", "tcp"), ("EARLYBIRD_DEVICE", "lo")];
    all_succeed(&meet_as_hosts_do("takes verbs", &[any, any, any]));
    all_succeed(&meet_as_hosts_do("takes verbs", &[any, verbs, any]));
    all_succeed(&meet_as_hosts_do("takes ofi", &[any, libfabric, any]));
    all_succeed(&meet_as_hosts_do("takes ofi", &[missing, any, any]));
    // A rank that has another provider of libfabric, and no device of this name.
    let [plain, loopback]: [&[_]; 2] =
        [&[("EARLYBIRD_FABRIC", "auto")], &[("EARLYBIRD_FABRIC", "auto"), ("EARLYBIRD_DEVICE", "lo")]];
    for (status, text) in meet_as_hosts_do("takes nothing", &[plain, loopback]) {
        let names_both = text.contains("verbs not by rank 1 (on ")
            && text.contains("there is no RDMA device lo")
            && text.contains("libfabric is");
        assert!(!status.success() && names_both, "{text}");
    }
    for (status, text) in meet_as_hosts_do("takes nothing", &[any, verbs, libfabric]) {
        let names_both = text.contains("verbs not by rank 2") && text.contains("libfabric not by rank 1");
        assert!(!status.success() && names_both, "{text}");
    }
}

/// The ranks of a user that may lock the 8 MiB of a kernel's default take TCP, over which memory is not locked. A provider
/// that the user names is not passed over, and its error names the limit.
#[test]
fn ranks_with_little_locked_memory_take_tcp() {
    if rdma().is_none() || common::libfabric().is_none() {
        return;
    }
    let start = |variables: &[(&str, &str)], role: &str| {
        let folder = Folder::new();
        let begin = |rank| {
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "sh", "-c"]);
            command.arg("ulimit -l 8192 && exec \"$0\" \"$@\"").arg(std::env::current_exe().unwrap());
            let store = format!("file:{}", folder.file("meeting"));
            command.env("EARLYBIRD_STORE", store).envs([common::LEVELS_1]).envs(variables.iter().copied());
            common::start(&mut command, (rank, 2), "rank", role)
        };
        Job { ranks: (0..2).map(begin).collect() }.finish(LIMIT)
    };
    all_succeed(&start(&[("EARLYBIRD_FABRIC", "auto")], "takes ofi tcp;ofi_rxm"));
    all_succeed(&start(&[("EARLYBIRD_FABRIC", "ofi")], "takes ofi tcp;ofi_rxm"));
    for (_, text) in start(&[("EARLYBIRD_PROVIDER", "verbs;ofi_rxm")], "takes ofi verbs;ofi_rxm") {
        assert!(
            text.contains("verbs;ofi_rxm: ") && text.contains("needs locked memory, and ulimit -l is 8 MiB"),
            "{text}"
        );
    }
}

#[test]
fn devices_are_told_what_the_hw_config_says() {
    if rdma().is_none() {
        return;
    }
    let folder = Folder::new();
    let file = |name: &str, keys: &str| {
        let file = folder.file(name);
        std::fs::write(&file, format!("[verbs]\n{keys}\n")).unwrap();
        file
    };
    let small = "mtu = \"256\"\nretries = 0\nlink_timeout = \"2s\"\nreceiver_wait = \"10us\"\nsend_depth = 16\nreceive_depth = 2";
    all_succeed(&Job::start(Way::Verbs, 3, "rank", &format!("ends {}", file("small", small))).finish(LIMIT));
    let wrong = format!("ends {}", file("wrong", "send_depth = 8"));
    for (status, text) in Job::start(Way::Verbs, 2, "rank", &wrong).finish(LIMIT) {
        assert!(!status.success() && text.contains("send_depth: use a number from 16 to 4096"), "{text}");
    }
}

/// Neither a world that ends well nor one with a killed rank leaves a queue pair or a region.
#[test]
fn nothing_is_left_of_a_world() {
    // Without a device the kernel may not know of such objects at all.
    let Some(before) = rdma().and_then(|_| rdma_objects()) else { return };
    all_succeed(&Job::start(Way::Verbs, 3, "rank", "ends").finish(LIMIT));
    until("a world that has ended leaves nothing", || rdma_objects().as_ref() == Some(&before));
    let marks = Marks::make();
    let mut job = Job::start(Way::Verbs, 3, "rank", &format!("all cut 8000 {}", marks.folder()));
    until("a world has started", || common::faults::have_started(&marks, 3));
    let during = rdma_objects();
    println!("{before}{}", during.as_deref().unwrap_or_default());
    assert_ne!(during.as_ref(), Some(&before), "a world has queue pairs");
    job.ranks[1].kill().unwrap();
    job.finish(LIMIT);
    until("a world whose rank was killed leaves nothing", || rdma_objects().as_ref() == Some(&before));
}
