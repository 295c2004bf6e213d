//! Strangers at the ports of a job. What they send changes no sum, and no call waits much beyond its deadline. Once all ranks
//! have joined, the ranks notice nothing of them.
//!
//! `TEST_SECONDS` is how long the attacks on jobs that begin go on: 3 seconds, or 9 minutes in the deep tier. libfabric is the
//! one that `EARLYBIRD_LIBFABRIC` names, or else the system's.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../common/mod.rs"]
mod common;

mod attack;
mod name;
mod session;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use attack::{Attack, attack, ports};
use common::hosts::Hosts;
use common::marks::Marks;
use common::tier::by_tier;
use common::{Job, Way, role, said};
use earlybird::{Config, Executor, Fire, Outcome, Reduce, Result, World};
use name::{Between, FORGED};

const RANKS: u32 = 4;

/// Of each call, and of joining.
const DEADLINE: Duration = Duration::from_secs(5);

/// How much later a call may end on a busy machine: a call of libfabric is given up when it has taken a second.
const LATE: Duration = Duration::from_secs(10);

/// How long ranks work that have joined.
const WORK: Duration = Duration::from_secs(1);

fn in_time<R>(what: &str, call: impl FnOnce() -> R) -> R {
    common::in_time(what, DEADLINE + LATE, call)
}

/// Descriptors of this process, and bytes of its memory.
fn held() -> (usize, usize) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), pages * 4096)
}

/// A rank that checks every sum.
fn work(executor: Executor, marks: &Marks) -> Result<()> {
    let config = Config { deadline: DEADLINE, ..Config::from_env()? };
    let world = in_time("join", || World::with(&config))?;
    println!("\nJOINED");
    marks.set(&format!("joined {}", world.rank()));
    marks.wait("work");
    let make = || world.allreduce::<f32>(&[10]).fire(Fire::ALL).executor(executor).build();
    let mut all = in_time("build", make)?;
    let (me, whole) = (world.rank() as f32, (RANKS * (RANKS - 1) / 2) as f32);
    let mut large = vec![0.0f32; 50_000];
    let (until, mut round, mut before) = (Instant::now() + WORK, 0, None);
    loop {
        round += 1;
        all.contribution()?.fill(me);
        all.arrive()?;
        in_time("wait", || {
            let is_right = |outcome: Outcome<'_, f32>| outcome.iter().all(|&sum| sum == whole);
            all.wait(DEADLINE).map(|outcomes| assert!(outcomes.into_iter().all(is_right), "WRONG round {round}"))
        })?;
        large.fill(me * round as f32);
        in_time("all_reduce", || world.all_reduce(&mut large, Reduce::Sum, DEADLINE))?;
        assert!(large.iter().all(|&sum| sum == whole * round as f32), "WRONG all_reduce {round}");
        if round == 20 {
            before = Some(held());
        }
        let mut enough = [u8::from(Instant::now() >= until && round > 40)];
        in_time("all_reduce", || world.all_reduce(&mut enough, Reduce::Max, DEADLINE))?;
        if enough == [1] {
            break;
        }
    }
    let ((descriptors, bytes), (more, larger)) = (before.unwrap(), held());
    assert!(more <= descriptors + 4 && larger <= bytes + (16 << 20), "{descriptors} {bytes} became {more} {larger}");
    in_time("finish", || all.finish(DEADLINE))
}

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let role = role().unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    if let [STRANGER, address, marks] = words[..] {
        return stay(address.parse().unwrap(), &Marks::at(marks));
    }
    match work(words[0].parse().unwrap(), &Marks::of_role()) {
        Ok(()) => println!("\nENDED"),
        Err(error) => println!("\nERROR {error}"),
    }
}

/// A free port, which another process may take before it is used.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(way: Way, executor: Executor, marks: &Marks, ranks: std::ops::Range<u32>, port: u16) -> Job {
    let begin = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(way.variables()).env("EARLYBIRD_STORE", format!("tcp:127.0.0.1:{port}"));
        command.env("EARLYBIRD_SECRET", "a secret of this test's own").env("EARLYBIRD_SILENCE", "3s");
        common::start(&mut command, (rank, RANKS), "rank", &format!("{executor} {}", marks.folder()))
    };
    Job { ranks: ranks.map(begin).collect() }
}

/// How a job has ended.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    well: u32,
    /// With an error on every rank that libfabric has not ended.
    failed: u32,
    /// Jobs in which libfabric crashed while ranks joined.
    crashed: u32,
}

/// Checks how a job has ended. Ranks that have joined must not notice strangers.
fn check(name: &str, ends: &[(ExitStatus, String)], all: &mut Ends) {
    let crashed = |(status, text): &(ExitStatus, String)| status.signal().is_some() && said(text, "JOINED").is_empty();
    for (rank, end) in ends.iter().enumerate() {
        let (status, text) = end;
        assert!(!text.contains("WRONG"), "{name}: rank {rank}: {text}");
        if crashed(end) {
            assert!(status.signal() != Some(9), "{name}: rank {rank} was still there after a minute: {text}");
            continue;
        }
        assert!(status.success(), "{name}: rank {rank}: {status}: {text}");
        let (errors, well) = (said(text, "ERROR "), said(text, "ENDED"));
        assert_eq!(errors.len() + well.len(), 1, "{name}: rank {rank}: {text}");
    }
    if ends.iter().any(crashed) {
        all.crashed += 1;
    } else if ends.iter().all(|(_, text)| said(text, "ERROR ").is_empty()) {
        all.well += 1;
    } else {
        all.failed += 1;
    }
}

/// The ways by libfabric that have ports.
fn ways() -> Vec<Way> {
    if common::libfabric().is_none() {
        return Vec::new();
    }
    let library = earlybird::fabric::ofi::library().unwrap();
    let devices = earlybird::fabric::ofi::devices(&library).unwrap();
    let has = |provider: &&str| devices.iter().any(|device| device.provider == *provider);
    // The last one takes long, and no attack on it was seen to do anything.
    let all = by_tier(&["tcp;ofi_rxm", "tcp"][..], &["tcp;ofi_rxm", "tcp", "sockets"]);
    all.iter().copied().filter(has).map(Way::Ofi).collect()
}

/// Attacks these ports, which may change, until `act` has returned.
fn under_attack<R>(
    attacks: &[Attack],
    targets: &(dyn Fn() -> Vec<u16> + Sync),
    seed: u64,
    act: impl FnOnce() -> R,
) -> (R, u64) {
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let attacking = scope.spawn(|| attack(attacks, targets, seed, &goes_on));
        // The attack ends, too, if a check fails.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        goes_on.store(false, Ordering::Relaxed);
        let connections = attacking.join().unwrap();
        (result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), connections)
    })
}

/// Processes that know no more than the ports do nothing to ranks that have joined: they get no connection.
#[test]
fn ranks_that_have_joined_notice_nothing() {
    for (way, executor) in ways().into_iter().zip([Executor::Caller, Executor::Thread].into_iter().cycle()) {
        let (marks, port) = (Marks::make(), free_port());
        let mut job = start(way, executor, &marks, 0..RANKS, port);
        (0..RANKS).for_each(|rank| job.wait_for_mark(rank as usize, (&marks, &format!("joined {rank}"))));
        let pids = job.pids();
        let targets = || pids.iter().flat_map(|&pid| ports(pid)).collect();
        let listening: Vec<u16> = targets();
        assert!(pids.iter().all(|&pid| attack::listens_inside(pid)), "{way:?}: a job on one machine listens outside");
        assert!(listening.len() >= RANKS as usize, "{way:?}: {listening:?}");
        let (ends, connections) = under_attack(&Attack::ALL, &targets, 1, || {
            marks.set("work");
            job.finish(Duration::from_secs(60))
        });
        let mut all = Ends::default();
        check(&format!("{way:?}"), &ends, &mut all);
        assert_eq!((all.well, connections), (1, 0), "{way:?}: {ends:?}");
    }
}

/// The store alone: processes that do not know the secret are sent away, and the job begins.
#[test]
fn a_meeting_takes_place_among_strangers() {
    let Some(&way) = ways().first() else { return };
    for attacks in by_tier(&[&Attack::ALL[..]][..], &[&Attack::ALL[..], &[Attack::Flood]]) {
        let (marks, port) = (Marks::make(), free_port());
        marks.set("work");
        let first = start(way, Executor::Caller, &marks, 0..1, port);
        let mut all = Ends::default();
        let (ends, connections) = under_attack(attacks, &|| vec![port], 2, || {
            std::thread::sleep(by_tier(Duration::from_millis(200), Duration::from_secs(1)));
            let others = start(way, Executor::Caller, &marks, 1..RANKS, port);
            let first = first.finish(Duration::from_secs(60));
            [first, others.finish(Duration::from_secs(60))].concat()
        });
        check(&format!("{way:?} {attacks:?}"), &ends, &mut all);
        assert_eq!(all.well, 1, "{ends:?}");
        assert!(connections > 0, "no stranger came");
    }
}

/// Bytes that stop libfabric's `tcp` inside a call, at a time when ranks connect to each other: each call ends by its deadline,
/// and the process by itself.
#[test]
fn joining_ends_by_its_deadline_where_a_stranger_stops_libfabric() {
    for way in ways() {
        let (marks, port) = (Marks::make(), free_port());
        marks.set("work");
        let early = start(way, Executor::Caller, &marks, 0..RANKS - 1, port);
        let pids = early.pids();
        let targets = || -> Vec<u16> { pids.iter().flat_map(|&pid| ports(pid)).filter(|&at| at != port).collect() };
        common::until("the ranks listen", || targets().len() >= pids.len());
        let (ends, _) = under_attack(&[Attack::Stop], &targets, 3, || {
            std::thread::sleep(Duration::from_millis(500));
            let last = start(way, Executor::Caller, &marks, RANKS - 1..RANKS, port);
            [early.finish(Duration::from_secs(60)), last.finish(Duration::from_secs(60))].concat()
        });
        let mut all = Ends::default();
        check(&format!("{way:?}"), &ends, &mut all);
        println!("{way:?}: {all:?}: {:?}", ends.iter().map(|(_, text)| said(text, "ERROR ")).collect::<Vec<_>>());
    }
}

/// What a stranger hears that stands between two ranks while they join is worth nothing once ranks have joined.
#[test]
fn a_stranger_in_the_name_of_a_rank_is_not_believed() {
    let Some(&way) = ways().iter().find(|way| matches!(way, Way::Ofi("tcp;ofi_rxm"))) else { return };
    let (marks, port) = (Marks::make(), free_port());
    let early = start(way, Executor::Caller, &marks, 0..RANKS - 1, port);
    let of = |pid: u32| ports(pid).into_iter().find(|&at| at != port);
    let pids = early.pids();
    common::until("the ranks listen", || pids.iter().all(|&pid| of(pid).is_some()));
    let mut between = Between::new([pids[0], pids[1]].map(|pid| (of(pid).unwrap(), pid)));
    let last = start(way, Executor::Caller, &marks, RANKS - 1..RANKS, port);
    let until = Instant::now() + DEADLINE;
    let have_joined = || (0..RANKS).all(|rank| marks.has(&format!("joined {rank}")));
    while !have_joined() && Instant::now() < until {
        between.pass_on();
    }
    if have_joined() {
        between.forge();
        std::thread::sleep(Duration::from_millis(200));
    }
    marks.set("work");
    let ends = [early.finish(Duration::from_secs(60)), last.finish(Duration::from_secs(60))].concat();
    check(&format!("{way:?}"), &ends, &mut Ends::default());
    let told: Vec<String> = ends.iter().map(|(_, text)| said(text, "ERROR ").concat()).collect();
    println!("all joined: {}, it has heard something: {}: {told:?}", have_joined(), between.has_heard());
    assert!(!told.iter().any(|text| text.contains(FORGED)), "{told:?}");
    assert!(between.has_heard() || have_joined(), "{told:?}");
}

/// The role of a process on a host without ranks.
const STRANGER: &str = "stranger";

/// Stops libfabric there, and stays connected.
fn stay(address: SocketAddr, marks: &Marks) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&Attack::STOP).unwrap();
    marks.set("connected");
    // It ends when the job has ended.
    let _ = stream.read(&mut [0; 64]);
    marks.wait("ended");
}

/// The error of the rank that a stranger has stopped says where that came from.
#[test]
fn a_stranger_on_another_host_is_named() {
    let Some(hosts) = common::libfabric().and_then(|_| Hosts::new(3)) else { return };
    let marks = Marks::make();
    let start = |rank: u32| {
        let mut command = hosts.command(rank as usize);
        command.envs(Way::Ofi(common::PROVIDERS[0]).variables()).env("EARLYBIRD_SILENCE", "2s");
        command.env("EARLYBIRD_STORE", format!("tcp:{}:29400", hosts.address(0)));
        command.env("EARLYBIRD_SECRET", "a secret of this test's own");
        common::start(&mut command, (rank, 2), "rank", &format!("caller {}", marks.folder()))
    };
    marks.set("work");
    let mut job = Job { ranks: vec![start(0)] };
    let pid = job.pids()[0];
    let own = || ports(pid).into_iter().find(|port| *port != 29400);
    common::until("rank 0 listens", || own().is_some());
    let mut command = hosts.command(2);
    let role = format!("{STRANGER} {}:{} {}", hosts.address(0), own().unwrap(), marks.folder());
    let stranger = Job { ranks: vec![common::start(&mut command, (0, 1), "rank", &role)] };
    marks.wait("connected");
    job.ranks.push(start(1));
    let ends = job.finish(Duration::from_secs(60));
    marks.set("ended");
    drop(stranger);
    check("two hosts", &ends, &mut Ends::default());
    let (_, text) = &ends[0];
    let told = format!("connections to this rank came from hosts on which no rank is: from {}", hosts.address(2));
    assert!(text.contains("libfabric has not returned for") && text.contains(&told), "{ends:?}");
}

/// Jobs that begin, work and end while strangers attack all that listens.
#[test]
fn jobs_end_well_or_say_why() {
    let seconds = std::env::var("TEST_SECONDS").ok().map(|text| text.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or_else(|| by_tier(3, 540)));
    let (ways, mut turn, mut attacked) = (ways(), 0, 0);
    let mut all = vec![Ends::default(); ways.len()];
    while Instant::now() < until && !ways.is_empty() {
        let (index, executor) = (turn % ways.len(), [Executor::Caller, Executor::Thread][turn / ways.len() % 2]);
        let (way, marks, port) = (ways[index], Marks::make(), free_port());
        marks.set("work");
        let early = start(way, executor, &marks, 0..RANKS - 1, port);
        let pids = early.pids();
        let targets = || pids.iter().flat_map(|&pid| ports(pid)).collect();
        let attacks =
            [&Attack::ALL[..], &Attack::ALL[1..], &[Attack::Replay, Attack::Damage, Attack::Repeat]][turn % 3];
        let (ends, connections) = under_attack(attacks, &targets, turn as u64, || {
            std::thread::sleep(Duration::from_millis(turn as u64 % 5 * 100));
            let last = start(way, executor, &marks, RANKS - 1..RANKS, port);
            [early.finish(Duration::from_secs(60)), last.finish(Duration::from_secs(60))].concat()
        });
        check(&format!("turn {turn}: {way:?}, {executor}"), &ends, &mut all[index]);
        for (_, text) in &ends {
            said(text, "ERROR ").iter().for_each(|error| println!("{way:?}: {error}"));
        }
        (turn, attacked) = (turn + 1, attacked + connections);
    }
    println!("{attacked} connections: {:?}", ways.iter().zip(&all).collect::<Vec<_>>());
}
