//! The time of a *solo* round on the rank that makes it while all others are away.

use std::fs;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Allreduce, Error, Executor, Fire, Grace, Misuse, Result, World};
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::p2p::{self, Measured};
use super::{Args, PATIENCE, conditions::Conditions};

/// Refuses options that have no meaning here. `plain`: sums of f32 in registered memory.
pub(super) fn check(args: &Args, ranks: u32) -> std::result::Result<(), String> {
    let problem = match args.common.executor {
        Executor::Provider => "a provider needs all ranks for each round; choose another --executor",
        _ if ranks < 2 => "there are no others that could be away; use -n 2 or more",
        _ => return Ok(()),
    };
    Err(format!("--op {}: {problem}", args.op))
}

/// Measures rounds that one rank makes for each size. Returns the number of wrong results.
pub(super) fn run(world: &World, args: &Args, sizes: &[u64], conditions: Option<&Conditions>) -> Result<u64> {
    let mut table = p2p::latencies();
    let mut wrong = 0;
    let fabric = world.fabric();
    let own = getpid().as_raw_pid().to_le_bytes();
    let processes = match args.stopped {
        true => fabric.exchange("solo_lat", &own, Instant::now() + PATIENCE)?,
        false => Vec::new(),
    };
    if world.rank() == 0 && conditions.is_none() {
        let away = if processes.is_empty() { "wait at a barrier" } else { "are stopped" };
        say!("{}, {} ranks, {}: the others {away}", args.op, world.size(), super::report::transport(world));
    }
    for &bytes in sizes {
        let (measured, errors) = measure(world, args, bytes as usize, &processes)?;
        wrong += errors;
        if world.rank() == 0 {
            p2p::times(measured, conditions, &mut table);
        }
    }
    world.barrier(Duration::from_secs(10))?;
    Ok(wrong)
}

/// Processes of ranks that are stopped. They continue when this is dropped.
struct Stopped(Vec<Pid>);

impl Drop for Stopped {
    fn drop(&mut self) {
        for &process in &self.0 {
            // A process that has ended needs no signal.
            let _ = kill_process(process, Signal::CONT);
        }
    }
}

/// Stops the processes of all ranks but 0, which calls it, and returns when they are stopped.
fn stop_others(world: &World, processes: &[Vec<u8>]) -> Result<Stopped> {
    let pid = |bytes: &Vec<u8>| Pid::from_raw(i32::from_le_bytes(bytes[..].try_into().ok()?));
    let others = Stopped(processes.iter().skip(1).filter_map(pid).collect());
    let failed = |cause: io::Error| Error::Os { rank: world.rank(), operation: "stop a rank", cause: Arc::new(cause) };
    let since = Instant::now();
    for &process in &others.0 {
        kill_process(process, Signal::STOP).map_err(|cause| failed(cause.into()))?;
        loop {
            let status = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).map_err(failed)?;
            // The state follows the name, which may contain anything.
            match status.rsplit(") ").next().and_then(|rest| rest.chars().next()) {
                Some('T') => break,
                Some('Z' | 'X') => return Err(failed(io::Error::other("its process has ended"))),
                _ if since.elapsed() > PATIENCE => return Err(failed(io::ErrorKind::TimedOut.into())),
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
    }
    Ok(others)
}

/// Refuses a world in which rounds need ranks that are away, because such rounds would never end.
fn check_world(world: &World, stopped: bool, sum: &Allreduce<f32>) -> Result<()> {
    let fabric = world.fabric();
    let refused = |problem| {
        let problem = Misuse::Unavailable(problem);
        Err(Error::Usage { rank: world.rank(), operation: "solo_lat", problem })
    };
    match fabric.name() {
        _ if stopped && fabric.neighbours().len() as u32 != fabric.ranks() => {
            refused("--stopped: not all ranks are on this machine")
        }
        "shm" => Ok(()),
        // A stopped process also stops a provider's threads.
        name if stopped && (name != "verbs" || fabric.changes_by_processor()) => {
            refused("--stopped: this network needs the processors of other ranks; use shm, or verbs with atomics")
        }
        _ if stopped && sum.path() == "relayed" => {
            refused("--stopped: ranks that are stopped relay nothing; use --mover cut")
        }
        _ if sum.path() == "relayed" && sum.executor() != Executor::Thread => {
            refused("ranks that are away relay nothing without a thread; use --executor thread, or --mover cut")
        }
        _ => Ok(()),
    }
}

/// Measures: rank 0 makes as many rounds as it may be ahead, then all begin anew, so nothing is carried. The others are
/// stopped if their processes are known, and otherwise wait at a barrier.
fn measure(world: &World, args: &Args, bytes: usize, processes: &[Vec<u8>]) -> Result<(Measured, u64)> {
    let (depth, length) = (args.common.depth, bytes / size_of::<f32>());
    let (warmup, iterations) = (args.warmup as usize, args.iters.unwrap_or(1_000) as usize);
    let (mut seconds, mut wrong, mut made) = (Vec::with_capacity(iterations), 0, 0);
    while made < warmup + iterations {
        let rounds = (warmup + iterations - made).min(depth as usize);
        let sum = world.allreduce::<f32>(&[length]).fire(Fire::SOLO).grace(Grace::NONE).depth(depth);
        let mut sum = sum.mover(args.common.mover).executor(args.common.executor).build()?;
        world.barrier(PATIENCE)?;
        check_world(world, args.stopped, &sum)?;
        let others = if world.rank() == 0 { stop_others(world, processes)? } else { Stopped(Vec::new()) };
        for round in (made..made + rounds).take_while(|_| world.rank() == 0) {
            let value = (round % 100) as f32;
            sum.contribution()?.fill(value);
            let start = Instant::now();
            sum.arrive()?;
            let outcomes = sum.wait(PATIENCE)?;
            if round >= warmup {
                seconds.push(start.elapsed().as_secs_f64());
            }
            let newest = outcomes.newest();
            let alone = newest.cut().contributions().count() == 1;
            wrong += u64::from(!alone || newest.data().iter().any(|&x| x != value));
        }
        drop(others);
        world.barrier(PATIENCE)?;
        sum.finish(PATIENCE)?;
        made += rounds;
    }
    Ok((Measured { bytes: length * size_of::<f32>(), iterations: seconds.len() as u64, seconds }, wrong))
}
