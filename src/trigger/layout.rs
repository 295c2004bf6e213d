//! The layout of a world's tables in shared memory.
//!
//! A counter has one cell for each of its inputs. The cell holds the newest round for which the input was given; the
//! counter's value in a round is the number of inputs given until now. So an input counts once, even if it is given
//! twice (by the rank that takes over a dead rank's work) or late (after its slot was reused). No cell is ever reset.
//! An operation has a cell with its [`State`].

use std::collections::HashMap;

use super::compile::{Profile, Request, Start, compile};
use super::program::{Action, Buffer, Chunk, Program, RankBuffer, Role, Signal};

/// Cells in two cache lines.
const LINE: usize = 16;

/// A source of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// The contents of a rank's gate when it was sealed.
    Gate(u32),
    /// A partial sum, by its number.
    Partial(u32),
}

/// The destination of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A partial sum, by its number.
    Partial(u32),
    /// A chunk of the outcome; the first chunk writes the record as well.
    Outcome,
}

/// What a task does besides its signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TaskWork {
    /// Closes the gate of a rank.
    Seal(u32),
    /// Sums inputs, in this order.
    Reduce { from: Vec<Input>, to: Target, chunk: Chunk },
}

/// An operation, resolved to counters and cells.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) when: u32,
    pub(crate) work: TaskWork,
    /// Counter and input cell (within a slot) of each signal.
    pub(crate) then: Vec<(u32, usize)>,
    /// Signals to other ranks that the round has fired.
    pub(crate) activations: u32,
    state: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct CounterCells {
    pub(crate) first: usize,
    pub(crate) inputs: u32,
    pub(crate) threshold: u32,
    /// Operations that it triggers.
    pub(crate) rows: Vec<u32>,
}

/// The tables of a world, resolved to cells of a slot.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) start: Start,
    pub(crate) rows: Vec<Row>,
    pub(crate) counters: Vec<CounterCells>,
    gates: Vec<usize>,
    /// The activation that each rank gives itself: counter and cell. `None` where other ranks give it.
    activations: Vec<Option<(u32, usize)>>,
    arrived: Option<u32>,
    /// The counter that waits for all contributions of a reduction, if its operations are chunks
    /// that many ranks can share.
    pub(crate) shared_work: Option<u32>,
    pub(crate) done: u32,
    record: usize,
    partials: Vec<usize>,
    cells: usize,
}

impl Layout {
    /// Compiles for shared memory and lays the tables out. Debug builds check them.
    pub(crate) fn new(request: &Request) -> Self {
        let world = compile(request, &Profile::SHARED);
        #[cfg(debug_assertions)]
        match super::check(&world, request, &Profile::SHARED) {
            // A table that is too large is refused where its memory is requested.
            Ok(()) | Err(super::Defect::Budget { .. }) => {}
            Err(defect) => panic!("{request:?} compiles to an invalid program: {defect}"),
        }
        Resolver::default().resolve(&world, request)
    }

    /// Returns the number of cells in a slot.
    pub(crate) fn cells(&self) -> usize {
        self.cells
    }

    /// Returns the number of partial sums that need memory in a slot.
    pub(crate) fn partials(&self) -> u32 {
        self.partials.len() as u32
    }

    /// Returns the cell of a rank's gate.
    pub(crate) fn gate(&self, rank: u32) -> usize {
        self.gates[rank as usize]
    }

    /// Returns the cell with an operation's [`State`].
    pub(crate) fn state(&self, row: u32) -> usize {
        self.rows[row as usize].state
    }

    /// Returns the first cell of the round's record: head and entries.
    pub(crate) fn record(&self) -> usize {
        self.record
    }

    /// Returns the first of the cells that describe a partial sum: head and entries.
    pub(crate) fn header(&self, partial: u32) -> usize {
        self.partials[partial as usize]
    }

    /// Returns the counter and the input cell of a rank's arrival, if arrivals are counted.
    pub(crate) fn arrival(&self, rank: u32) -> Option<(u32, usize)> {
        let counter = self.arrived?;
        Some((counter, self.counters[counter as usize].first + rank as usize))
    }

    /// Returns the counter and the input cell by which a rank starts a round, if it may.
    pub(crate) fn activation(&self, rank: u32) -> (u32, usize) {
        let starter = if matches!(self.start, Start::Count(_)) { 0 } else { rank };
        self.activations[starter as usize].expect("a rank that may start a round has an input for it")
    }
}

/// Returns whether the arriving rank runs the operations of a counter itself in shared memory: they depend on time
/// (grace) and on which ranks have left.
fn is_by_arrival(when: Role) -> bool {
    matches!(when, Role::Start | Role::Arrived)
}

#[derive(Default)]
struct Resolver {
    next: usize,
    counter_ids: HashMap<(u32, Role), u32>,
    partial_ids: HashMap<(u32, Buffer), u32>,
    /// Ranks whose contributions a partial sum may contain.
    coverage: Vec<usize>,
    counters: Vec<CounterCells>,
    gates: Vec<usize>,
    states: Vec<usize>,
    partials: Vec<usize>,
}

impl Resolver {
    fn take(&mut self, cells: usize) -> usize {
        let first = self.next;
        self.next += cells;
        first
    }

    fn align(&mut self) {
        self.next = self.next.next_multiple_of(LINE);
    }

    fn resolve(mut self, world: &[Program], request: &Request) -> Layout {
        for program in world {
            // Cells that one rank's activation touches lie together.
            self.align();
            let gate = self.take(1);
            self.gates.push(gate);
            for counter in program.counters.iter().filter(|counter| counter.role != Role::Start) {
                let first = self.take(counter.inputs as usize);
                self.counter_ids.insert((program.rank, counter.role), self.counters.len() as u32);
                self.counters.push(CounterCells {
                    first,
                    inputs: counter.inputs,
                    threshold: counter.inputs,
                    rows: Vec::new(),
                });
            }
            for _ in program.operations.iter().filter(|operation| !is_by_arrival(operation.when)) {
                let state = self.take(1);
                self.states.push(state);
            }
        }
        self.number_partials(world);
        let rows = self.rows(world);
        self.align();
        let record = self.take(1 + 2 * world.len());
        self.align();
        let counter = |rank, role| self.counter_ids.get(&(rank, role)).copied();
        let activation = |program: &Program| {
            let id = counter(program.rank, Role::Active)?;
            let cells = &self.counters[id as usize];
            let by_itself = !matches!(request.start, Start::Count(_)) || program.rank == 0;
            by_itself.then(|| (id, cells.first + cells.inputs as usize - 1))
        };
        let many = |id: &u32| self.counters[*id as usize].rows.len() > 1;
        Layout {
            start: request.start,
            activations: world.iter().map(activation).collect(),
            arrived: counter(0, Role::Arrived),
            shared_work: counter(0, Role::Sealed).filter(many),
            done: counter(0, Role::Done).expect("rank 0's counter announces the outcome"),
            record,
            rows,
            cells: self.next,
            counters: self.counters,
            gates: self.gates,
            partials: self.partials,
        }
    }

    /// Numbers partial sums so that each comes after its sources.
    fn number_partials(&mut self, world: &[Program]) {
        let most = world.iter().flat_map(|program| &program.counters).filter_map(|counter| match counter.role {
            Role::Level(level) => Some(level),
            _ => None,
        });
        for level in 0..=most.max().unwrap_or(0) {
            for program in world {
                for operation in &program.operations {
                    let Action::Reduce { from, to: Buffer::Partial(number), .. } = &operation.action else { continue };
                    if *number != level {
                        continue;
                    }
                    let coverage = from.iter().map(|&place| self.coverage_of(place)).sum();
                    self.partial_ids.insert((program.rank, Buffer::Partial(level)), self.coverage.len() as u32);
                    self.coverage.push(coverage);
                    self.align();
                    let header = self.take(1 + 2 * coverage);
                    self.partials.push(header);
                }
            }
        }
    }

    fn coverage_of(&self, place: RankBuffer) -> usize {
        let partial = self.partial_ids.get(&(place.rank, place.buffer));
        partial.map_or(1, |&partial| self.coverage[partial as usize])
    }

    fn rows(&mut self, world: &[Program]) -> Vec<Row> {
        let mut rows = Vec::new();
        for program in world {
            for operation in program.operations.iter().filter(|operation| !is_by_arrival(operation.when)) {
                let when = self.counter_ids[&(program.rank, operation.when)];
                let input = |place: &RankBuffer| match self.partial_ids.get(&(place.rank, place.buffer)) {
                    Some(&partial) => Input::Partial(partial),
                    None => Input::Gate(place.rank),
                };
                let work = match &operation.action {
                    Action::Reduce { from, to, chunk } => TaskWork::Reduce {
                        from: from.iter().map(input).collect(),
                        to: match self.partial_ids.get(&(program.rank, *to)) {
                            Some(&partial) => Target::Partial(partial),
                            None => Target::Outcome,
                        },
                        chunk: *chunk,
                    },
                    Action::Seal => TaskWork::Seal(program.rank),
                    Action::Signal | Action::Put { .. } => unreachable!("not in a table for shared memory"),
                };
                let target = |signal: &Signal| {
                    let id = self.counter_ids[&(signal.rank, signal.counter)];
                    (id, self.counters[id as usize].first + signal.input as usize)
                };
                let then = operation.then.iter().map(target).collect();
                let activates = |to: &&Signal| to.counter == Role::Active && to.rank != program.rank;
                let activations = operation.then.iter().filter(activates).count() as u32;
                let counter = &mut self.counters[when as usize];
                counter.threshold = operation.threshold;
                counter.rows.push(rows.len() as u32);
                rows.push(Row { when, work, then, activations, state: self.states[rows.len()] });
            }
        }
        rows
    }
}

/// An operation's claim: the owner, the round, and the owner's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) round: u64,
    pub(crate) owner: u32,
    pub(crate) phase: Phase,
}

/// The progress of an operation. Completed signals are not recorded: they may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The owner may be writing the output.
    Claimed = 0,
    /// The output is complete and will not change; the signals follow.
    Written = 1,
}

impl State {
    const OWNER_BITS: u32 = 20;

    pub(crate) fn cell(self) -> u64 {
        self.round << (1 + Self::OWNER_BITS) | u64::from(self.owner) << 1 | self.phase as u64
    }

    pub(crate) fn from_cell(cell: u64) -> Self {
        State {
            round: cell >> (1 + Self::OWNER_BITS),
            owner: (cell >> 1) as u32 & ((1 << Self::OWNER_BITS) - 1),
            phase: if cell & 1 == 0 { Phase::Claimed } else { Phase::Written },
        }
    }
}
