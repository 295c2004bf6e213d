//! The costs of single operations: writes and atomics between two ranks, and arming rounds in a provider.
//!
//! Safe to call: all memory that is reached here was made here, and stays here.
#![forbid(unsafe_code)]

mod reach;

pub use reach::{Reach, reach};

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Misuse, Ranks, Result};
use crate::fabric::{
    Access, At, Atomic, CACHE_LINE, Change, Completion, Endpoint, Fabric, Key, Posted, RawAccess, Region, Signal,
    cell_behind, ofi,
};
use crate::offload::deferred_work::{DeferredProgram, Introduction, provider_for};
use crate::rule::Schedule;
use crate::trigger::{Request, Start};

/// Writes in flight while bandwidth is measured.
pub const WINDOW: u64 = 64;

/// The offset of the data, behind the cells that report the other rank's progress.
const DATA: usize = 2 * CACHE_LINE;

/// Where the signal of a write goes: behind data that fits a cache line with it, as in a collective.
fn progress_at(bytes: usize) -> usize {
    cell_behind(DATA, bytes).map_or(0, |before| DATA + before)
}

/// Looks in vain for each look at the clock.
const POLLS_PER_CLOCK: u32 = 1024;

/// Precedes a rank's key, so that a rank in another call is not taken for the partner.
const PAIR: &[u8] = b"pair";

/// Two ranks, each with memory that the other writes. The other ranks of their world, if there are
/// any, make the same calls and measure nothing.
#[derive(Debug)]
pub struct Pair<'f> {
    fabric: &'f dyn Fabric,
    patience: Duration,
    endpoint: Box<dyn Endpoint>,
    own: Region,
    /// The rank whose times are measured.
    first: u32,
    /// The partner of this rank, and the partner's memory.
    partner: Option<(u32, Region)>,
    /// Operations in flight.
    open: u64,
    /// Round trips so far: the cell never has the same value twice.
    rounds: u64,
}

/// A wait for the other rank.
#[derive(Debug, Default)]
struct Wait {
    /// Looks in vain.
    polls: u32,
    /// The first look at the clock.
    since: Option<Instant>,
}

impl<'f> Pair<'f> {
    /// Makes the memory, for at most `bytes` of data, in a world of two. Both ranks call it and every
    /// measurement, in the same order; each waits at most `patience` for the other.
    ///
    /// # Errors
    /// [`Error::Usage`] in a world of another size; too little memory; a rank that does not come,
    /// or makes another call.
    pub fn new(fabric: &'f dyn Fabric, bytes: usize, patience: Duration) -> Result<Self> {
        if fabric.ranks() != 2 {
            let problem = Misuse::Argument("a pair is two ranks; start a world of two");
            return Err(Error::Usage { rank: fabric.rank(), operation: "bench", problem });
        }
        Self::between(fabric, (0, 1), bytes, patience)
    }

    /// As [`Pair::new`], for two ranks of a world, of which the first one measures. All ranks call it.
    ///
    /// # Errors
    /// As [`Pair::new`].
    pub fn between(fabric: &'f dyn Fabric, pair: (u32, u32), bytes: usize, patience: Duration) -> Result<Self> {
        let (rank, operation) = (fabric.rank(), "bench");
        let mut endpoint = fabric.open(RawAccess::CRATE)?;
        let own = endpoint.register(DATA + bytes.max(CACHE_LINE), Access::Write)?;
        let told = [PAIR, &endpoint.key(own).encode()].concat();
        let answers = fabric.exchange(operation, &told, Instant::now() + patience)?;
        let partner = match pair {
            (first, second) if first == rank => Some(second),
            (first, second) if second == rank => Some(first),
            _ => None,
        };
        let import = |peer: u32| -> Result<(u32, Region)> {
            let strange = || {
                let cause = format!("rank {peer} measures something else, or is of another version");
                Error::transport(rank, peer, operation, cause)
            };
            let answer = answers.get(peer as usize).ok_or_else(strange)?;
            let key = answer.strip_prefix(PAIR).and_then(Key::decode);
            Ok((peer, endpoint.import(peer, key.ok_or_else(strange)?)?))
        };
        let partner = partner.map(import).transpose()?;
        Ok(Pair { fabric, patience, endpoint, own, first: pair.0, partner, open: 0, rounds: 0 })
    }

    /// Whether this rank measures.
    fn is_first(&self) -> bool {
        self.fabric.rank() == self.first
    }

    /// The partner and its memory; a rank without one makes no operation.
    fn partner(&self, operation: &'static str) -> Result<(u32, Region)> {
        let problem = Misuse::Argument("this rank is not one of the pair");
        self.partner.ok_or(Error::Usage { rank: self.fabric.rank(), operation, problem })
    }

    /// Half of each round trip of writes with a signal, in seconds; on the first rank only.
    ///
    /// # Errors
    /// More bytes than the pair was made for; a rank that does not come.
    pub fn write_latency(&mut self, bytes: usize, warmup: u64, iterations: u64) -> Result<Vec<f64>> {
        let first = self.is_first();
        if self.partner.is_none() {
            return Ok(Vec::new());
        }
        let mut seconds = Vec::with_capacity(iterations as usize);
        let base = self.rounds;
        self.rounds += warmup + iterations;
        for round in 1..=warmup + iterations {
            let start = Instant::now();
            if !first {
                self.hear("write_lat", bytes, base + round)?;
            }
            self.write("write_lat", bytes, Some(base + round))?;
            if first {
                self.hear("write_lat", bytes, base + round)?;
                if round > warmup {
                    seconds.push(start.elapsed().as_secs_f64() / 2.0);
                }
            }
            self.settle("write_lat", 4)?;
        }
        self.settle("write_lat", 0)?;
        Ok(seconds)
    }

    /// The time of each [`WINDOW`] of writes, in seconds; on the first rank only.
    ///
    /// # Errors
    /// As [`Pair::write_latency`].
    pub fn write_bandwidth(&mut self, bytes: usize, warmup: u64, iterations: u64) -> Result<Vec<f64>> {
        let mut seconds = Vec::new();
        if self.is_first() {
            for window in 0..(warmup + iterations).div_ceil(WINDOW) {
                let start = Instant::now();
                for _ in 0..WINDOW {
                    self.write("write_bw", bytes, None)?;
                }
                // Operations in flight at the end of a window count for the next.
                self.settle("write_bw", if (window + 1) * WINDOW < warmup + iterations { WINDOW / 2 } else { 0 })?;
                if window * WINDOW >= warmup {
                    seconds.push(start.elapsed().as_secs_f64());
                }
            }
        }
        self.meet("write_bw")?;
        Ok(seconds)
    }

    /// The time of each atomic, in seconds; on the first rank only.
    ///
    /// # Errors
    /// A rank that does not come; an atomic that did not return the previous value.
    pub fn fetch_add_latency(&mut self, warmup: u64, iterations: u64) -> Result<Vec<f64>> {
        let operation = "fetch_add_lat";
        let mut seconds = Vec::with_capacity(iterations as usize);
        let mut expected = None;
        if self.is_first() {
            let at = At { region: self.partner(operation)?.1, offset: CACHE_LINE };
            for round in 0..warmup + iterations {
                let start = Instant::now();
                let posted = self.endpoint.atomic(at, Atomic::FetchAdd(1), 0);
                let before = match posted.map_err(|error| error.in_call(operation))? {
                    Posted::Done(value) => value,
                    Posted::Pending => {
                        self.open += 1;
                        self.settle(operation, 0)?
                    }
                };
                if round >= warmup {
                    seconds.push(start.elapsed().as_secs_f64());
                }
                let counted = expected.is_none_or(|expected| expected == before);
                expected = Some(before + 1);
                if !counted {
                    let cause = "an atomic did not return the previous value";
                    return Err(Error::transport(self.first, self.partner.map(|(peer, _)| peer), operation, cause));
                }
            }
        }
        self.meet(operation)?;
        Ok(seconds)
    }

    /// Blocks until all ranks have called it.
    fn meet(&self, operation: &'static str) -> Result<()> {
        self.fabric.exchange(operation, &[], Instant::now() + self.patience).map(drop)
    }

    /// Called after each look in vain: looks at the clock and at the other rank's health now and then. To look at the
    /// clock each time would cost as much as what is measured.
    fn look_again(&self, operation: &'static str, wait: &mut Wait) -> Result<()> {
        wait.polls = wait.polls.wrapping_add(1);
        if !wait.polls.is_multiple_of(POLLS_PER_CLOCK) {
            return Ok(());
        }
        self.fabric.health(operation)?;
        let waited = wait.since.get_or_insert_with(Instant::now).elapsed();
        if waited < self.patience {
            return Ok(());
        }
        let missing = Ranks(self.partner.iter().map(|&(peer, _)| peer).collect());
        Err(Error::timeout(self.fabric.rank(), operation, waited, missing, true))
    }

    /// Waits until at most `most` operations are in flight; returns the value of the last completion.
    fn settle(&mut self, operation: &'static str, most: u64) -> Result<u64> {
        let (mut wait, mut value) = (Wait::default(), 0);
        while self.open > most {
            match self.poll(operation)? {
                Some(completion) => (self.open, value) = (self.open - 1, completion.value),
                None => self.look_again(operation, &mut wait)?,
            }
        }
        Ok(value)
    }

    /// Waits until the other rank has raised the cell of writes of `bytes` bytes to `round`.
    fn hear(&mut self, operation: &'static str, bytes: usize, round: u64) -> Result<()> {
        let Some(window) = self.endpoint.window(self.own) else {
            return Err(Error::Usage {
                rank: self.fabric.rank(),
                operation,
                problem: Misuse::Unavailable("own memory is not mapped"),
            });
        };
        let cell = window.cell(progress_at(bytes) / size_of::<u64>());
        let mut wait = Wait::default();
        while cell.load(Ordering::Acquire) < round {
            if self.poll(operation)?.is_some() {
                self.open -= 1;
            }
            self.look_again(operation, &mut wait)?;
        }
        Ok(())
    }

    fn poll(&mut self, operation: &'static str) -> Result<Option<Completion>> {
        self.endpoint.poll().map_err(|error| error.in_call(operation))
    }

    fn write(&mut self, operation: &'static str, bytes: usize, round: Option<u64>) -> Result<()> {
        let theirs = self.partner(operation)?.1;
        let (from, to) = (At { region: self.own, offset: DATA }, At { region: theirs, offset: DATA });
        let cell = At { region: theirs, offset: progress_at(bytes) };
        let signal = round.map(|round| Signal { at: cell, change: Change::Set(round), awaited: true });
        let posted = self.endpoint.put(from, to, bytes, signal, 0).map_err(|error| error.in_call(operation))?;
        self.open += u64::from(posted == Posted::Pending);
        Ok(())
    }
}

/// Rounds that are armed one after the other.
const SLOTS: u64 = 8;

/// The cost of queueing the operations of rounds in a provider.
#[derive(Clone, Debug)]
pub struct Arming {
    /// The name of the provider.
    pub provider: String,
    /// Operations that this rank queues for a round.
    pub operations: u64,
    /// The time of each round, in seconds.
    pub seconds: Vec<f64>,
}

/// Arms rounds and lets them run. All ranks call it; each waits at most `patience` for the others.
///
/// # Errors
/// No provider that runs programs by itself; a rank that does not come, or makes another call.
pub fn arming(fabric: &dyn Fabric, bytes: u64, (warmup, iterations): (u64, u64), patience: Duration) -> Result<Arming> {
    let first = fabric.rank() == 0;
    let (mut card, provider) = open_card(fabric, bytes, patience)?;
    let slots = 0..SLOTS as usize;
    let warmup = warmup.div_ceil(SLOTS);
    let mut seconds = Vec::new();
    for turn in 0..warmup + iterations.div_ceil(SLOTS) {
        for slot in slots.clone() {
            let start = Instant::now();
            card.arm(slot)?;
            if turn >= warmup {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        for slot in slots.clone() {
            card.ready(slot)?;
            if first {
                card.arrive(slot)?;
            }
        }
        for slot in slots.clone() {
            wait_for(fabric, patience, || card.has_outcome(slot))?;
            if !first {
                card.arrive(slot)?;
            }
        }
        for slot in slots.clone() {
            wait_for(fabric, patience, || card.is_over(slot))?;
        }
    }
    // No rank ends while others may still receive from it.
    fabric.exchange("arm", &[], Instant::now() + patience)?;
    Ok(Arming { provider, operations: card.operations(), seconds })
}

fn open_card(fabric: &dyn Fabric, bytes: u64, patience: Duration) -> Result<(DeferredProgram, String)> {
    let (rank, ranks) = (fabric.rank(), fabric.ranks());
    let none = |cause: String| Error::transport(rank, None, "arm", cause);
    let library = ofi::library().map_err(|cause| none(cause.to_string()))?;
    let provider = provider_for(&library, fabric.provider()).map_err(none)?;
    let (start, schedule) = (Start::First, Schedule::Gather);
    let request = Request { ranks, start, schedule, radix: 2, bytes, chunk: 0, slots: SLOTS };
    let (mut card, introduction) = DeferredProgram::open(&library, &provider, rank, &request, 0, RawAccess::CRATE)?;
    let everybody = fabric.exchange_long("arm", &introduction.encode(), Instant::now() + patience)?;
    let strange = |peer: u32| {
        let cause = format!("rank {peer} introduced itself in a way this version does not understand");
        Error::transport(rank, peer, "arm", cause)
    };
    let everybody =
        everybody.iter().zip(0..).map(|(bytes, peer)| Introduction::decode(bytes).ok_or_else(|| strange(peer)));
    card.connect(&everybody.collect::<Result<Vec<_>>>()?)?;
    Ok((card, provider))
}

fn wait_for(fabric: &dyn Fabric, patience: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let since = Instant::now();
    while !done()? {
        fabric.check_peers("arm")?;
        if since.elapsed() > patience {
            let (rank, missing) = (fabric.rank(), Ranks::default());
            return Err(Error::timeout(rank, "arm", since.elapsed(), missing, true));
        }
        thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::shm::ShmFabric;

    #[test]
    fn a_rank_that_writes_nothing_is_named_in_time() {
        let world = ShmFabric::in_this_process(2).unwrap();
        let long = Duration::from_secs(20);
        thread::scope(|scope| {
            let silent = scope.spawn(|| Pair::new(&world[1], 8, long).map(drop));
            let mut pair = Pair::new(&world[0], 8, long).unwrap();
            silent.join().unwrap().unwrap();
            pair.patience = Duration::from_millis(50);
            let error = pair.write_latency(8, 0, 1).unwrap_err();
            let Error::Timeout { waited, missing, .. } = &error else { panic!("{error}") };
            assert!(*waited >= pair.patience && missing.0 == [1], "{error}");
        });
    }
}
