//! The elements of a program.

use std::fmt;

/// What a counter counts. The role is also the counter's name in its rank's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The rank's own arrival, and a ready token from every rank: the slot is free.
    Start,
    /// Arrivals for a round, at the rank that counts them.
    Arrived,
    /// Activations: the round has fired.
    Active,
    /// The gate: the token that shows that no deposit is being made, and the activation.
    Gate,
    /// Data that this rank sends at a level is complete.
    Made(u32),
    /// What is summed at a level is complete.
    Level(u32),
    /// Contributions that can be reduced.
    Sealed,
    /// The rank's own puts that have read their source.
    Sent,
    /// The parts of an outcome that ranks gather at a level.
    Gathered(u32),
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
            Role::Gathered(level) => f.pad(&format!("gathered {level}")),
            Role::Done => f.pad("done"),
        }
    }
}

/// A counter that only grows. Each input adds one in every use of a slot, so thresholds are cumulative: in use `u`
/// (from 0) an operation waits for `u * inputs + threshold`. No counter is reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// What it counts.
    pub role: Role,
    /// Increments per use.
    pub inputs: u32,
    /// The number of inputs, which are the first ones, that ranks give instead of operations.
    pub external: u32,
}

/// One input of one counter of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal {
    /// The rank that has the counter.
    pub rank: u32,
    /// The counter in that rank's program.
    pub counter: Role,
    /// The number of the input; each is given exactly once a use.
    pub input: u32,
}

/// Memory of a rank that an operation reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The contents of the gate when it was sealed: nothing, a carried contribution, a fresh one or both.
    Contribution,
    /// The result of a reduction at a level.
    Partial(u32),
    /// Data from another rank, numbered by level and input, or by rank where all ranks send to all.
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
pub struct RankBuffer {
    /// The rank that has it.
    pub rank: u32,
    /// The buffer of that rank.
    pub buffer: Buffer,
}

/// A part of a contribution: the pieces from `from` up to `to`, of `of` pieces. Pieces are equally long and begin at
/// cache lines; the last ones may be short, or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chunk {
    /// The first piece.
    pub from: u32,
    /// The first piece after it.
    pub to: u32,
    /// The number of pieces in the whole.
    pub of: u32,
}

impl Chunk {
    /// All of a contribution.
    pub const WHOLE: Chunk = Chunk { from: 0, to: 1, of: 1 };

    /// Returns one piece.
    #[must_use]
    pub fn piece(index: u32, of: u32) -> Self {
        Chunk { from: index, to: index + 1, of }
    }

    /// Returns whether it is all of a contribution.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.from == 0 && self.to == self.of
    }

    /// Returns the number of its pieces.
    #[must_use]
    pub fn pieces(self) -> u32 {
        self.to - self.from
    }

    /// Returns one of `of` equal parts; `of` must divide the number of pieces.
    #[must_use]
    pub fn part(self, index: u32, of: u32) -> Chunk {
        let each = self.pieces() / of;
        let from = self.from + index * each;
        Chunk { from, to: from + each, ..self }
    }

    /// Returns the bytes of a contribution that it covers: offset and length.
    #[must_use]
    pub fn span(self, bytes: u64) -> (u64, u64) {
        const LINE: u64 = 64;
        let piece = if self.of <= 1 { bytes } else { bytes.div_ceil(u64::from(self.of)).next_multiple_of(LINE) };
        let bound = |pieces: u32| piece.saturating_mul(u64::from(pieces)).min(bytes);
        (bound(self.from), bound(self.to) - bound(self.from))
    }
}

/// The effect of an operation on memory before it signals. Data travels with the set of its contributors; a reduction
/// reduces both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Signal,
    /// Closes the gate: the deposit is the rank's part in this round.
    Seal,
    /// Sums sources, in this order, into a buffer of this rank; only the part that the chunk covers.
    Reduce {
        /// Immutable once the operation is triggered.
        from: Vec<RankBuffer>,
        /// No other operation writes it in this use.
        to: Buffer,
        /// The part of both that it reads and writes.
        chunk: Chunk,
    },
    /// Writes a buffer of this rank into one of another rank; the signals to that rank follow the data.
    Put {
        /// Immutable once the operation is triggered.
        from: Buffer,
        /// No other operation writes it in this use.
        to: RankBuffer,
        /// The part of both that it reads and writes.
        chunk: Chunk,
    },
}

/// One row: when a counter reaches a threshold, act, then signal. Runs once a use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The counter that triggers it.
    pub when: Role,
    /// The threshold, in inputs of this use.
    pub threshold: u32,
    /// What it does.
    pub action: Action,
    /// The inputs that it gives afterwards.
    pub then: Vec<Signal>,
}

/// The table of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The rank that runs it.
    pub rank: u32,
    /// Its counters.
    pub counters: Vec<Counter>,
    /// Its operations; their order has no meaning.
    pub operations: Vec<Operation>,
    /// Where this rank finds the outcome, and the counter that completes it with its last input.
    pub receives: (RankBuffer, (u32, Role)),
}

impl Program {
    /// Returns the number of a counter's inputs; 0 if there is no such counter.
    #[must_use]
    pub fn inputs(&self, role: Role) -> u32 {
        self.counter(role).map_or(0, |counter| counter.inputs)
    }

    /// Returns whether an operation needs all inputs of its counter.
    #[must_use]
    pub fn waits_for_all(&self, operation: &Operation) -> bool {
        operation.threshold == self.inputs(operation.when)
    }

    /// Returns a counter by its role.
    #[must_use]
    pub fn counter(&self, role: Role) -> Option<&Counter> {
        self.counters.iter().find(|counter| counter.role == role)
    }
}

/// The costs of a program in each round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows of the table.
    pub operations: u64,
    /// Counters.
    pub counters: u64,
    /// Activations sent to other ranks.
    pub activations: u64,
    /// Other messages without data that operations send to other ranks.
    pub signals: u64,
    /// Arrival tokens and ready tokens sent to other ranks.
    pub tokens: u64,
    /// Messages with data.
    pub puts: u64,
    /// Bytes of data in them.
    pub bytes: u64,
    /// Reductions.
    pub reductions: u64,
}

impl Counts {
    /// Returns the costs of one rank's program, with contributions of `bytes` bytes.
    #[must_use]
    pub fn of(program: &Program, bytes: u64) -> Self {
        let mut counts = Counts {
            operations: program.operations.len() as u64,
            counters: program.counters.len() as u64,
            ..Counts::default()
        };
        for operation in &program.operations {
            // A put carries the signals to its target.
            let mut carried_by_put = None;
            match &operation.action {
                Action::Put { to, chunk, .. } if to.rank != program.rank => {
                    counts.puts += 1;
                    counts.bytes += chunk.span(bytes).1;
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
        // The start's inputs include this rank's own arrival and its own ready token.
        let start = program.counter(Role::Start).map_or(0, |start| start.external);
        counts.tokens += u64::from(start.saturating_sub(2));
        counts
    }

    /// Returns the costs of the cut mover for small data, with each rank on its own host. Every arrival adds its bit to
    /// the word and pushes its contribution to all others. A rank that fires a round of up to 31 ranks alone pushes
    /// nothing, which is not counted here. The single initiator sends the outcome with the record of the cut to all
    /// others.
    #[must_use]
    pub fn of_cut(ranks: u32, bytes: u64) -> Self {
        let (all, others) = (u64::from(ranks), u64::from(ranks) - 1);
        let puts = (all + 1) * others;
        Counts { activations: others, tokens: all, puts, bytes: puts.saturating_mul(bytes), ..Counts::default() }
    }

    /// Returns the costs of all ranks together.
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
