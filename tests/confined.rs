//! Ranks that have less than the machine: some of its cores, a part of its memory, an older kernel's calls.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::groups::{Group, Limit};
use common::{Job, Way, cpu_time, libfabric, role, said, until};
use earlybird::{Config, Error, World};
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

const DEADLINE: Duration = Duration::from_secs(60);

/// The number of the system call `pidfd_open`, which is the same on all architectures.
const PIDFD_OPEN: i64 = 434;

const ENOSYS: u32 = 38;
const EPERM: u32 = 1;

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let role = role().unwrap();
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("one-core", _) => {
            let mine = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&core| mine.is_set(core)).unwrap();
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            take_turns();
        }
        ("two-cores", _) => take_turns(),
        ("old-kernel", errno) => {
            forbid(PIDFD_OPEN, errno.parse().unwrap());
            wait_for_a_death();
        }
        ("memory", _) => take_memory(),
        ("quota", _) => {
            wait_for_the_group();
            println!("\nSHARES {}", world().shares_its_core());
        }
        other => panic!("{other:?}"),
    }
}

fn world() -> World {
    World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap()
}

/// Rounds in which all ranks wait for each other.
fn take_turns() {
    const ROUNDS: u32 = 500;
    let world = world();
    let mut sum = world.allreduce::<u32>(&[2]).build().unwrap();
    let mut round = || {
        sum.contribution().unwrap().fill(1);
        sum.arrive().unwrap();
        assert_eq!(sum.wait(DEADLINE).unwrap().newest()[0], world.size());
    };
    (0..50).for_each(|_| round());
    let before = cpu_time();
    (0..ROUNDS).for_each(|_| round());
    println!("\nSHARES {}", world.shares_its_core());
    println!("\nMICROS {}", (cpu_time() - before).as_micros() / u128::from(ROUNDS));
    sum.finish(DEADLINE).unwrap();
}

/// Ranks on one core of several know that they share it, and others that they do not. How much processor time a round takes
/// is told: a rank that spins where the other one should work spends its time slices, of some milliseconds.
#[test]
fn ranks_on_one_core_of_several_let_each_other_work() {
    let ways = [Some((Way::Shm, 200)), libfabric().map(|_| (Way::Ofi("tcp;ofi_rxm"), 400))];
    for (way, most) in ways.into_iter().flatten() {
        for (role, shares) in [("one-core", "true"), ("two-cores", "false")] {
            if role == "two-cores" && std::thread::available_parallelism().unwrap().get() < 2 {
                continue;
            }
            for (status, text) in Job::start(way, 2, "rank", role).finish(DEADLINE) {
                assert!(status.success(), "{text}");
                assert_eq!(said(&text, "SHARES"), [shares], "{way:?}, {role}");
                let micros: u64 = said(&text, "MICROS")[0].parse().unwrap();
                println!("{way:?}, {role}: {micros} us of processor time a round and rank");
                assert!(
                    role == "two-cores" || micros < most,
                    "{way:?}: {micros} us of processor time a round and rank"
                );
            }
        }
    }
}

/// As a kernel or a container that does not know a system call.
fn forbid(call: i64, errno: u32) {
    let rules = BTreeMap::from([(call, Vec::new())]);
    let architecture = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), architecture).unwrap();
    seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

fn wait_for_a_death() {
    let world = world();
    let mut sum = world.allreduce::<u32>(&[2]).build().unwrap();
    sum.arrive().unwrap();
    drop(sum.wait(DEADLINE).unwrap());
    println!("\nREADY");
    if world.rank() == 1 {
        rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    }
    sum.arrive().unwrap();
    let error = sum.wait(DEADLINE).unwrap_err();
    assert!(matches!(error, Error::PeerDied { peer: 1, .. }), "{error}");
}

#[test]
fn deaths_are_named_where_the_kernel_has_no_descriptors_of_processes() {
    let ways = [Some(Way::Shm), libfabric().map(|_| Way::Ofi("tcp;ofi_rxm"))];
    for way in ways.into_iter().flatten() {
        for errno in [ENOSYS, EPERM] {
            let ends = Job::start(way, 3, "rank", &format!("old-kernel {errno}")).finish(DEADLINE);
            for (rank, (status, text)) in ends.iter().enumerate() {
                assert_eq!(said(text, "READY").len(), 1, "{way:?}, rank {rank}: {text}");
                assert_eq!(status.success(), rank != 1, "{way:?}, rank {rank}: {text}");
            }
        }
    }
}

/// The limit of the group around this process's own one.
const MEMORY: u64 = 256 << 20;

/// Waits until the test has put this process into its group.
fn wait_for_the_group() {
    let groups = || std::fs::read_to_string("/proc/self/cgroup").unwrap();
    until("this process is in a group", || groups().contains("/inner"));
}

fn take_memory() {
    wait_for_the_group();
    let world = world();
    let told = world.allreduce::<f32>(&[MEMORY as usize]).build().err();
    println!("\nTOLD {told:?}");
    let fits = world.allreduce::<f32>(&[MEMORY as usize / 256]).build();
    fits.unwrap().finish(DEADLINE).unwrap();
}

#[test]
fn the_memory_of_a_group_around_the_own_one_is_not_exceeded() {
    let Some(group) = Group::new(Limit::Memory(MEMORY)) else { return };
    let job = Job::start(Way::Shm, 1, "rank", "memory");
    group.hold(job.pids()[0]);
    let (status, text) = job.finish(DEADLINE).remove(0);
    assert!(status.success(), "{status}: {text}");
    assert!(said(&text, "TOLD")[0].contains("memory limit of the container or job"), "{text}");
}

/// The quota is of the group around the own one, and gives two ranks less than a core each.
#[test]
fn ranks_in_a_group_with_a_quota_share_cores() {
    let Some(group) = Group::new(Limit::Processor(150)) else { return };
    let job = Job::start(Way::Shm, 2, "rank", "quota");
    job.pids().into_iter().for_each(|pid| group.hold(pid));
    for (status, text) in job.finish(DEADLINE) {
        assert!(status.success(), "{status}: {text}");
        assert_eq!(said(&text, "SHARES"), ["true"], "{text}");
    }
}
