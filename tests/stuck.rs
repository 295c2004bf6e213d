//! Every call keeps its deadline, also where libfabric does not return, and the process ends by itself.
#![cfg(earlybird_faults)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::tier::{by_tier, is_deep};
use common::{Job, Way, role, said};
use earlybird::{Config, Executor, Fire, Reduce, Result, World};

/// Of each call.
const DEADLINE: Duration = Duration::from_secs(4);

/// How much later a call may end: a call of the provider is given up when it has taken a second.
const LATE: Duration = Duration::from_secs(4);

/// The calls in which libfabric stays: its function, and the how manieth call of it in the process. The first ones are of
/// the time while ranks join, the last ones of their end.
const CALLS: [(&str, u32); 16] = [
    ("fi_cq_read", 2000),
    ("fi_inject", 20),
    ("fi_writemsg", 2),
    ("fi_trywait", 3),
    ("fi_cq_read", 1),
    ("fi_getinfo", 1),
    ("fi_fabric", 1),
    ("fi_domain", 1),
    ("fi_cq_open", 1),
    ("fi_av_open", 1),
    ("fi_endpoint", 1),
    ("fi_getname", 1),
    ("fi_av_insert", 1),
    ("fi_mr_reg", 1),
    ("fi_recv", 3),
    ("fi_close", 1),
];

/// A call of the library, which ends by its deadline or a little later.
fn in_time<R>(what: &str, call: impl FnOnce() -> R) -> R {
    common::in_time(what, DEADLINE + LATE, call)
}

/// Works until something fails, for a few seconds at most; then it ends as a program does.
fn work(executor: Executor) -> Result<()> {
    let config = Config { deadline: DEADLINE, ..Config::from_env()? };
    let world = in_time("join", || World::with(&config))?;
    let make = || world.allreduce::<f32>(&[10]).fire(Fire::ALL).executor(executor).build();
    let mut all = in_time("build", make)?;
    let mut large = vec![1.0f32; 100_000];
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        all.contribution()?.fill(1.0);
        all.arrive()?;
        in_time("wait", || all.wait(DEADLINE).map(drop))?;
        in_time("all_reduce", || world.all_reduce(&mut large, Reduce::Max, DEADLINE))?;
        in_time("barrier", || world.barrier(DEADLINE))?;
    }
    in_time("finish", || all.finish(DEADLINE))
}

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    match work(role().unwrap().parse().unwrap()) {
        Ok(()) => println!("\nENDED"),
        Err(error) => println!("\nERROR {error}"),
    }
}

/// A world in which rank `stuck` stays in a call of libfabric.
struct Case {
    provider: &'static str,
    ranks: u32,
    stuck: u32,
    call: (&'static str, u32),
    how: &'static str,
    executor: Executor,
}

impl Case {
    fn check(&self) {
        let Case { provider, ranks, stuck, call: (function, count), how, executor } = self;
        let name = format!("{provider}: {function}:{count}:{how} on rank {stuck} of {ranks}, {executor}");
        let meeting = format!("unix:{}", common::unique());
        let begin = |rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .envs(Way::Ofi(provider).variables())
                .env("EARLYBIRD_STORE", &meeting)
                .env("EARLYBIRD_SILENCE", "2s");
            if rank == *stuck {
                command.env("TEST_STUCK", format!("{function}:{count}:{how}"));
            }
            common::start(&mut command, (rank, *ranks), "rank", &executor.to_string())
        };
        let job = Job { ranks: (0..*ranks).map(begin).collect() };
        for (rank, (status, text)) in (0..).zip(job.finish(Duration::from_secs(60))) {
            assert!(status.success(), "{name}: rank {rank}: {status}: {text}");
            let failed = said(&text, "ERROR ");
            let ended = said(&text, "ENDED");
            match (rank == *stuck, *function) {
                (_, "fi_close") => assert_eq!(failed.len() + ended.len(), 1, "{name}: rank {rank}: {text}"),
                (true, _) => {
                    let words = "libfabric has not returned for ";
                    assert!(text.contains(words) && text.contains(function), "{name}: rank {rank}: {text}");
                }
                (false, _) => {
                    assert_eq!((failed.len(), ended.len()), (1, 0), "{name}: rank {rank}: {text}");
                    // Once all are connected, the others are told why.
                    let told = text.contains("libfabric has not returned for") && text.contains(function);
                    assert!(*count < 20 || told, "{name}: rank {rank}: {text}");
                }
            }
        }
    }
}

/// Four at a time: they sleep most of the time.
fn check(cases: &[Case]) {
    if common::libfabric().is_none() {
        return;
    }
    for some in cases.chunks(4) {
        std::thread::scope(|scope| some.iter().for_each(|case| _ = scope.spawn(|| case.check())));
    }
}

#[test]
fn calls_end_where_libfabric_does_not_return() {
    let case = |(index, &call): (usize, &(&'static str, u32))| Case {
        provider: common::PROVIDERS[0],
        ranks: 2 + index as u32 % 3,
        stuck: index as u32 % 2,
        call,
        how: ["never", "spin", "late"][index % 3],
        executor: [Executor::Caller, Executor::Thread][index / 2 % 2],
    };
    let cases: Vec<Case> = CALLS.iter().enumerate().map(case).collect();
    check(&cases[..by_tier(4, CALLS.len())]);
}

/// All calls, in all ways, by both executors.
#[test]
fn calls_end_wherever_libfabric_stays() {
    if !is_deep() {
        return println!("TEST_DEEP=1 tries all calls");
    }
    let mut cases = Vec::new();
    for call in CALLS {
        for how in ["never", "spin", "late"] {
            for executor in [Executor::Caller, Executor::Thread] {
                let ranks = 2 + cases.len() as u32 % 3;
                cases.push(Case { provider: common::PROVIDERS[0], ranks, stuck: ranks - 1, call, how, executor });
            }
        }
    }
    check(&cases);
}
