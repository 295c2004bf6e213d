//! Proves the properties that every executor relies on, for a given set of tables.
//!
//! - *Deterministic increments*: one operation or one rank gives each input of each counter,
//!   exactly once a use. So thresholds are cumulative, and a slot is free when all inputs are in.
//! - *No cycle*: among counters that wait for all their inputs, and within a rank among all. (The flood passes ranks in
//!   cycles; it ends because operations run once.)
//! - *No order among thresholds*: a counter has one threshold, so the operations that it triggers
//!   may run in any order. Some providers ignore the order of thresholds.
//! - *Immutable inputs, fresh outputs*: every part of a buffer has one writer in a use, and the
//!   writer triggers its readers. So another rank can repeat an operation.
//! - *Budget*: operations, counters and bytes fit the executor.

use std::collections::{HashMap, HashSet};

use super::compile::{Profile, Request};
use super::program::{Action, Buffer, Chunk, Operation, Program, RankBuffer, Role, Signal};

/// Why a set of tables is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// A signal to an input that does not exist.
    #[error("rank {by} signals input {} of counter {} of rank {}, which does not exist", .to.input, .to.counter, .to.rank)]
    NoSuchInput {
        /// The rank that signals.
        by: u32,
        /// The input that it signals.
        to: Signal,
    },
    /// An input that is not given exactly once a use.
    #[error("input {} of counter {} of rank {} is given {times} times in a use", .input.input, .input.counter, .input.rank)]
    Increments {
        /// The input.
        input: Signal,
        /// How often it is given.
        times: u32,
    },
    /// A threshold that is never reached, or always.
    #[error("rank {rank}: threshold {threshold} of counter {counter}, which has {inputs} inputs")]
    Threshold {
        /// The rank that has the counter.
        rank: u32,
        /// The counter.
        counter: Role,
        /// The threshold.
        threshold: u32,
        /// The number of the counter's inputs.
        inputs: u32,
    },
    /// Two thresholds on one counter.
    #[error("rank {rank}: counter {counter} has thresholds {first} and {second}, so their order would matter")]
    Order {
        /// The rank that has the counter.
        rank: u32,
        /// The counter.
        counter: Role,
        /// One threshold.
        first: u32,
        /// The other threshold.
        second: u32,
    },
    /// A counter that waits for itself.
    #[error("counter {counter} of rank {rank} waits for itself")]
    Cycle {
        /// The rank that has the counter.
        rank: u32,
        /// The counter.
        counter: Role,
    },
    /// Two writers of the same bytes in a use.
    #[error("{} of rank {}, chunk {chunk:?}, is written twice in a use", .place.buffer, .place.rank)]
    Rewritten {
        /// The buffer.
        place: RankBuffer,
        /// The part of it.
        chunk: Chunk,
    },
    /// A reader that does not wait for the writer.
    #[error("rank {rank} reads {} of rank {} without waiting for its writer", .place.buffer, .place.rank)]
    Unordered {
        /// The reader.
        rank: u32,
        /// The buffer that it reads.
        place: RankBuffer,
    },
    /// An outcome with a hole.
    #[error("no operation writes all of {} of rank {}", .place.buffer, .place.rank)]
    Incomplete {
        /// The outcome.
        place: RankBuffer,
    },
    /// A table beyond the executor's limits.
    #[error("rank {rank}: {need} {what} in a table, where the {profile} profile allows {limit}")]
    Budget {
        /// The rank.
        rank: u32,
        /// The resource.
        what: &'static str,
        /// How much the table needs.
        need: u64,
        /// How much there is.
        limit: u64,
        /// The profile that sets the limit.
        profile: &'static str,
    },
}

/// Checks the tables of all ranks of a world.
///
/// # Errors
/// The first defect found.
pub fn check(world: &[Program], request: &Request, profile: &Profile) -> Result<(), Defect> {
    increments(world)?;
    thresholds(world)?;
    acyclic(world)?;
    data(world)?;
    budget(world, request, profile)
}

fn operations(world: &[Program]) -> impl Iterator<Item = (&Program, &Operation)> {
    world.iter().flat_map(|program| program.operations.iter().map(move |operation| (program, operation)))
}

fn increments(world: &[Program]) -> Result<(), Defect> {
    let mut given: HashMap<Signal, u32> = HashMap::new();
    for program in world {
        for counter in &program.counters {
            for input in 0..counter.inputs {
                let signal = Signal { rank: program.rank, counter: counter.role, input };
                given.insert(signal, u32::from(input < counter.external));
            }
        }
    }
    for (program, operation) in operations(world) {
        for &to in &operation.then {
            *given.get_mut(&to).ok_or(Defect::NoSuchInput { by: program.rank, to })? += 1;
        }
    }
    match given.into_iter().find(|(_, times)| *times != 1) {
        Some((input, times)) => Err(Defect::Increments { input, times }),
        None => Ok(()),
    }
}

fn thresholds(world: &[Program]) -> Result<(), Defect> {
    for program in world {
        let rank = program.rank;
        let mut seen: HashMap<Role, u32> = HashMap::new();
        for operation in &program.operations {
            let (counter, threshold) = (operation.when, operation.threshold);
            let inputs = program.inputs(counter);
            if threshold == 0 || threshold > inputs {
                return Err(Defect::Threshold { rank, counter, threshold, inputs });
            }
            let first = *seen.entry(counter).or_insert(threshold);
            if first != threshold {
                return Err(Defect::Order { rank, counter, first, second: threshold });
            }
        }
    }
    Ok(())
}

/// Kahn's algorithm over counters: an edge leads from the counter that triggers an operation to each that it signals.
fn acyclic(world: &[Program]) -> Result<(), Defect> {
    type Node = (u32, Role);
    let mut edges: HashMap<Node, Vec<Node>> = HashMap::new();
    let mut incoming: HashMap<Node, u32> = HashMap::new();
    let any: HashSet<Node> = operations(world)
        .filter(|(program, operation)| !program.waits_for_all(operation))
        .map(|(program, operation)| (program.rank, operation.when))
        .collect();
    for (program, operation) in operations(world) {
        for signal in &operation.then {
            let to = (signal.rank, signal.counter);
            // A counter that any one input satisfies does not wait for those from other ranks.
            if any.contains(&to) && signal.rank != program.rank {
                continue;
            }
            edges.entry((program.rank, operation.when)).or_default().push(to);
            *incoming.entry(to).or_default() += 1;
        }
    }
    let nodes = world.iter().flat_map(|program| program.counters.iter().map(|counter| (program.rank, counter.role)));
    let mut free: Vec<Node> = nodes.filter(|node| !incoming.contains_key(node)).collect();
    while let Some(node) = free.pop() {
        for to in edges.remove(&node).unwrap_or_default() {
            if let Some(count) = incoming.get_mut(&to) {
                *count -= 1;
                if *count == 0 {
                    incoming.remove(&to);
                    free.push(to);
                }
            }
        }
    }
    match incoming.into_keys().next() {
        Some((rank, counter)) => Err(Defect::Cycle { rank, counter }),
        None => Ok(()),
    }
}

/// The parts of buffers that are complete when a counter has all its inputs.
type Known = HashMap<RankBuffer, HashSet<Chunk>>;

/// Returns the buffer and the chunk that an operation writes.
fn written(program: &Program, operation: &Operation) -> Option<(RankBuffer, Chunk)> {
    let own = |buffer| RankBuffer { rank: program.rank, buffer };
    match &operation.action {
        Action::Signal => None,
        // A contribution is sealed as a whole.
        Action::Seal => Some((own(Buffer::Contribution), Chunk::WHOLE)),
        Action::Reduce { to, chunk, .. } => Some((own(*to), *chunk)),
        Action::Put { to, chunk, .. } => Some((*to, *chunk)),
    }
}

/// Returns whether these parts together cover a chunk.
fn cover<'a>(parts: impl IntoIterator<Item = &'a Chunk>, chunk: Chunk) -> bool {
    let mut parts: Vec<&Chunk> = parts.into_iter().collect();
    parts.sort_unstable();
    let mut next = chunk.from;
    for part in parts {
        if part.is_whole() {
            return true;
        }
        if part.of == chunk.of && part.from <= next {
            next = next.max(part.to);
        }
    }
    next >= chunk.to
}

/// Returns what is complete when each counter is full: the output of the operations that feed it, and on the same rank
/// the data that those operations have waited for.
fn complete(world: &[Program]) -> HashMap<(u32, Role), Known> {
    let mut known: HashMap<(u32, Role), Known> = HashMap::new();
    for (program, operation) in operations(world) {
        let Some((place, chunk)) = written(program, operation) else { continue };
        for signal in &operation.then {
            known.entry((signal.rank, signal.counter)).or_default().entry(place).or_default().insert(chunk);
        }
    }
    // Data that is complete at other counters is not needed.
    let triggers = operations(world).map(|(program, operation)| (program.rank, operation.when));
    let asked: HashSet<(u32, Role)> = triggers.chain(world.iter().map(|program| program.receives.1)).collect();
    let mut grows = true;
    while grows {
        grows = false;
        for (program, operation) in operations(world).filter(|(program, operation)| program.waits_for_all(operation)) {
            let own = operation.then.iter().filter(|signal| signal.rank == program.rank);
            for to in own.map(|signal| (signal.rank, signal.counter)).filter(|to| asked.contains(to)) {
                let before = known.get(&(program.rank, operation.when)).cloned().unwrap_or_default();
                let after = known.entry(to).or_default();
                for (place, chunks) in before {
                    let parts = after.entry(place).or_default();
                    grows |= chunks.into_iter().fold(false, |grew, chunk| parts.insert(chunk) | grew);
                }
            }
        }
    }
    known
}

fn data(world: &[Program]) -> Result<(), Defect> {
    let mut writes: HashMap<RankBuffer, Vec<Chunk>> = HashMap::new();
    for (program, operation) in operations(world) {
        let Some((place, chunk)) = written(program, operation) else { continue };
        let others = writes.entry(place).or_default();
        let is_apart = |other: &Chunk| other.of == chunk.of && (other.to <= chunk.from || chunk.to <= other.from);
        if !others.iter().all(is_apart) {
            return Err(Defect::Rewritten { place, chunk });
        }
        others.push(chunk);
    }
    let known = complete(world);
    let is_known = |counter: &(u32, Role), place: &RankBuffer, chunk| {
        known.get(counter).and_then(|known| known.get(place)).is_some_and(|parts| cover(parts, chunk))
    };
    for (program, operation) in operations(world) {
        let own = |buffer| RankBuffer { rank: program.rank, buffer };
        let (sources, chunk) = match &operation.action {
            Action::Reduce { from, chunk, .. } => (from.clone(), *chunk),
            Action::Put { from, chunk, .. } => (vec![own(*from)], *chunk),
            _ => continue,
        };
        for place in sources {
            if !program.waits_for_all(operation) || !is_known(&(program.rank, operation.when), &place, chunk) {
                return Err(Defect::Unordered { rank: program.rank, place });
            }
        }
    }
    // All parts of the outcome are written, and feed the counter that announces it.
    for program in world {
        let (place, done) = program.receives;
        let parts = writes.get(&place).map_or(&[][..], |parts| parts);
        let is_whole = |part: &Chunk| cover(parts, Chunk { from: 0, to: part.of, of: part.of });
        if parts.first().is_some_and(|part| !is_whole(part)) {
            return Err(Defect::Incomplete { place });
        }
        if parts.is_empty() || !parts.iter().all(|&part| is_known(&done, &place, part)) {
            return Err(Defect::Unordered { rank: program.rank, place });
        }
    }
    Ok(())
}

fn budget(world: &[Program], request: &Request, profile: &Profile) -> Result<(), Defect> {
    let bytes = buffer_bytes(world, request.bytes);
    for program in world {
        let needs = [
            ("operations", program.operations.len() as u64, profile.operations),
            ("counters", program.counters.len() as u64, profile.counters),
            ("bytes", bytes[program.rank as usize].saturating_mul(request.slots), profile.bytes),
        ];
        if let Some((what, need, limit)) = needs.into_iter().find(|(_, need, limit)| need > limit) {
            return Err(Defect::Budget { rank: program.rank, what, need, limit, profile: profile.name });
        }
    }
    Ok(())
}

/// Returns the bytes of each rank's buffers in one slot, without the contribution.
#[must_use]
pub fn buffer_bytes(world: &[Program], bytes: u64) -> Vec<u64> {
    let mut sizes = vec![0u64; world.len()];
    for (writer, operation) in operations(world) {
        let (owner, chunk) = match &operation.action {
            Action::Reduce { chunk, .. } => (writer.rank, *chunk),
            Action::Put { to, chunk, .. } => (to.rank, *chunk),
            Action::Signal | Action::Seal => continue,
        };
        // Buffers of a rank outside the world take no memory here; another check reports them.
        if let Some(size) = sizes.get_mut(owner as usize) {
            *size = size.saturating_add(chunk.span(bytes).1);
        }
    }
    sizes
}
