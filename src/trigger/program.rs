//! What a program is made of.

use std::fmt;

/// What a counter counts, and so its name in its rank's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The own arrival, and from every rank that the slot is free: *ready* tokens.
    Start,
    /// Arrivals for a round, at the rank that counts them.
    Arrived,
    /// Activations: the round has fired.
    Active,
    /// The gate: that no deposit is being made, and the activation.
    Gate,
    /// What this rank sends at a level is there.
    Made(u32),
    /// Both halves of a reduction at a level are there.
    Level(u32),
    /// Contributions that can be reduced.
    Sealed,
    /// Own puts whose source may be written again.
    Sent,
    /// Parts of the outcome that are complete.
    Done,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Start => f.pad("start"),
            Role::Arrived => f.pad("arrived"),
            Role::Active => f.pad("active"),
            Role::Gate => f.pad("gate"),
            Role::Made(level) => f.pad(&format!("made {level}")),
            Role::Level(level) => f.pad(&format!("level {level}")),
            Role::Sealed => f.pad("sealed"),
            Role::Sent => f.pad("sent"),
            Role::Done => f.pad("done"),
        }
    }
}

/// A monotone counter. Each input adds one in every use of a slot, so thresholds are cumulative:
/// in use `u` (from 0) an operation waits for `u * inputs + threshold`, and nothing is reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// What it counts.
    pub role: Role,
    /// Increments per use.
    pub inputs: u32,
    /// The first so many inputs are given by ranks, not by operations.
    pub external: u32,
}

/// One input of one counter of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal {
    /// Whose counter.
    pub rank: u32,
    /// Which, in that rank's program.
    pub counter: Role,
    /// Which of its inputs; each is given exactly once a use.
    pub input: u32,
}

/// Memory of a rank that an operation reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// What the gate let in: nothing, a carried contribution, a fresh one or both.
    Contribution,
    /// What was reduced at a level.
    Partial(u32),
    /// What another rank put here: by level, or by rank where all send to all.
    Inbox(u32),
    /// The outcome.
    Outcome,
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::Contribution => f.pad("contribution"),
            Buffer::Partial(level) => f.pad(&format!("partial {level}")),
            Buffer::Inbox(index) => f.pad(&format!("inbox {index}")),
            Buffer::Outcome => f.pad("outcome"),
        }
    }
}

/// A buffer of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Whose.
    pub rank: u32,
    /// Which.
    pub buffer: Buffer,
}

/// What an operation does to memory, before it signals. Data travels with the set of its
/// contributors, so what is reduced is both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Signal,
    /// Closes the gate: what was deposited is the rank's part in this round.
    Seal,
    /// Sums sources, in this order, into a buffer of the own rank. Of a chunk only that part.
    Reduce {
        /// Immutable from the trigger on.
        from: Vec<Place>,
        /// Written by nothing else in this use.
        to: Buffer,
        /// Which part, of how many.
        chunk: (u32, u32),
    },
    /// Writes an own buffer into one of another rank, whose signals follow the data.
    Put {
        /// Immutable from the trigger on.
        from: Buffer,
        /// Written by nothing else in this use.
        to: Place,
        /// Which part, of how many.
        chunk: (u32, u32),
    },
}

/// One row: when a counter reaches a threshold, act, then signal. Runs once a use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What sets it off.
    pub when: Role,
    /// At how many inputs of this use.
    pub threshold: u32,
    /// What it does.
    pub action: Action,
    /// What it bumps afterwards.
    pub then: Vec<Signal>,
}

/// The table of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Whose.
    pub rank: u32,
    /// Its counters.
    pub counters: Vec<Counter>,
    /// Its operations; their order has no meaning.
    pub operations: Vec<Operation>,
    /// Where this rank finds the outcome, and the counter (all inputs) that says so.
    pub receives: (Place, (u32, Role)),
}

impl Program {
    /// Inputs of a counter; none where there is no such counter.
    #[must_use]
    pub fn inputs(&self, role: Role) -> u32 {
        self.counter(role).map_or(0, |counter| counter.inputs)
    }

    /// Whether an operation is set off by the last input of its counter, whichever that is.
    #[must_use]
    pub fn waits_for_all(&self, operation: &Operation) -> bool {
        operation.threshold == self.inputs(operation.when)
    }

    /// A counter by its role.
    #[must_use]
    pub fn counter(&self, role: Role) -> Option<&Counter> {
        self.counters.iter().find(|counter| counter.role == role)
    }
}

/// What a program costs in each round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows of the table.
    pub operations: u64,
    /// Counters.
    pub counters: u64,
    /// Messages to other ranks that say that the round has fired.
    pub activations: u64,
    /// Other messages without data, from operations to other ranks.
    pub signals: u64,
    /// Tokens by which ranks say *arrived* and *ready* to other ranks.
    pub tokens: u64,
    /// Messages with data.
    pub puts: u64,
    /// Bytes of data in them.
    pub bytes: u64,
    /// Reductions.
    pub reductions: u64,
}

impl Counts {
    /// Of one rank's program, when a contribution has so many bytes.
    #[must_use]
    pub fn of(program: &Program, bytes: u64) -> Self {
        let mut counts = Counts {
            operations: program.operations.len() as u64,
            counters: program.counters.len() as u64,
            ..Counts::default()
        };
        for operation in &program.operations {
            // A put carries the signals to its own target.
            let mut carried_by_put = None;
            match &operation.action {
                Action::Put { to, chunk, .. } if to.rank != program.rank => {
                    counts.puts += 1;
                    counts.bytes += span(bytes, *chunk).1;
                    carried_by_put = Some(to.rank);
                }
                Action::Reduce { .. } => counts.reductions += 1,
                _ => {}
            }
            for signal in &operation.then {
                if signal.rank == program.rank || Some(signal.rank) == carried_by_put {
                    continue;
                }
                match signal.counter {
                    Role::Active => counts.activations += 1,
                    Role::Arrived => counts.tokens += 1,
                    _ => counts.signals += 1,
                }
            }
        }
        // Of the start's inputs one is the own arrival and one the own readiness.
        let start = program.counter(Role::Start).map_or(0, |start| start.external);
        counts.tokens += u64::from(start.saturating_sub(2));
        counts
    }

    /// Of the cut mover, small data, each rank on its own host: every arrival pushes its
    /// contribution to all others and adds its bit to the word; the one initiator sends the
    /// outcome to all others, and the record after it, which is what tells them.
    #[must_use]
    pub fn of_cut(ranks: u32, bytes: u64) -> Self {
        let (all, others) = (u64::from(ranks), u64::from(ranks) - 1);
        let puts = (all + 1) * others;
        Counts { activations: others, tokens: all, puts, bytes: puts.saturating_mul(bytes), ..Counts::default() }
    }

    /// The sum over all ranks.
    #[must_use]
    pub fn of_world(world: &[Program], bytes: u64) -> Self {
        world.iter().map(|program| Counts::of(program, bytes)).fold(Counts::default(), |sum, one| Counts {
            operations: sum.operations + one.operations,
            counters: sum.counters + one.counters,
            activations: sum.activations + one.activations,
            signals: sum.signals + one.signals,
            tokens: sum.tokens + one.tokens,
            puts: sum.puts + one.puts,
            bytes: sum.bytes + one.bytes,
            reductions: sum.reductions + one.reductions,
        })
    }
}

/// Bytes of a contribution that a chunk (which, of how many) covers: offset and length. Chunks
/// begin at cache lines; the last ones may be short, or empty.
#[must_use]
pub fn span(bytes: u64, (index, of): (u32, u32)) -> (u64, u64) {
    const LINE: u64 = 64;
    let piece = if of <= 1 { bytes } else { bytes.div_ceil(u64::from(of)).next_multiple_of(LINE) };
    let from = (piece * u64::from(index)).min(bytes);
    (from, piece.min(bytes - from))
}
