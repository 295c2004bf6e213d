//! One rank's table, as that rank runs it alone where ranks share no memory.
//!
//! An input of a counter comes from the rank itself or from another one. The rank records its own inputs privately;
//! another rank writes the round into a cell of this rank. The cells of a slot have the same numbers on all ranks, so a
//! rank needs only its own table to know where its signals go.

use super::compile::{Profile, Request, Start, compile_rank, hops, input_from};
use super::program::{Action, Buffer, Chunk, Counter, Program, RankBuffer, Role, Signal};
use super::shape::{Inboxes, Shape};
use crate::rule::{MOST_RADIX, Schedule};

/// Numbers of the cells in which a rank gets inputs from others, within a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputCells {
    hops: usize,
    inboxes: Inboxes,
}

impl InputCells {
    /// Returns the cells in a world of `ranks` ranks whose tables have this radix.
    pub(crate) fn of(ranks: u32, radix: u32) -> Self {
        InputCells { hops: hops(ranks) as usize, inboxes: Inboxes::of(ranks, radix) }
    }

    /// Returns the number of cells.
    pub(crate) fn count(self) -> usize {
        let gathered = self.inboxes.levels() * self.inboxes.width();
        self.hops + (self.inboxes.count() + 1 + gathered) as usize
    }

    /// Returns the level and the input of the inbox that the rank that gives an input writes before it, if it writes one.
    pub(crate) fn inbox(self, cell: usize) -> Option<(u32, u32)> {
        let number = cell.checked_sub(self.hops)? as u32;
        (number < self.inboxes.count()).then(|| self.inboxes.place(number))
    }

    fn cell(self, counter: Role, input: u32) -> usize {
        let done = self.hops + self.inboxes.count() as usize;
        let at = |level: u32| (level * self.inboxes.width() + input) as usize;
        match counter {
            Role::Active => input as usize,
            Role::Level(level) => self.hops + at(level),
            Role::Done => done,
            Role::Gathered(level) => done + 1 + at(level - 1),
            other => unreachable!("no other rank counts in {other}"),
        }
    }
}

/// An input that another rank gives.
#[derive(Clone, Copy, Debug)]
struct Remote {
    bit: u32,
    cell: usize,
    /// The rank, by its number in the table's world.
    from: u32,
}

#[derive(Clone, Debug)]
struct Inputs {
    threshold: u32,
    /// The inputs that are given before a round begins.
    before: u64,
    remote: Vec<Remote>,
}

/// Where data lies in the memory of a rank: a buffer, or one of several that are of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Area {
    /// An inbox has the number of its level here.
    pub(crate) buffer: Buffer,
    /// Which inbox of the level, or which part of the buffer: a buffer of which parts are sent consists of these parts,
    /// each with a label of its own.
    pub(crate) index: u32,
    /// What it holds.
    pub(crate) chunk: Chunk,
}

/// The inputs of a sum: the rank's own data, and its inboxes of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Addends {
    own: Buffer,
    level: u32,
    /// The place of the rank's own data among all.
    digit: u32,
    of: u32,
    /// What each of them covers.
    pub(crate) chunk: Chunk,
}

impl Addends {
    /// Returns where the inputs lie, in the order in which they are added.
    pub(crate) fn areas(self) -> impl Iterator<Item = Area> {
        let Addends { own, level, digit, of, chunk } = self;
        (0..of).map(move |other| match other == digit {
            // A whole was not divided.
            true => Area { buffer: own, index: if chunk.is_whole() { 0 } else { digit }, chunk },
            false => Area { buffer: Buffer::Inbox(level), index: input_from(other, digit), chunk },
        })
    }

    /// Returns another part of the rank's own data, one that it sends.
    pub(crate) fn another(self) -> u32 {
        (self.digit + 1) % self.of
    }

    /// Returns whether an input is the rank's own data.
    pub(crate) fn is_own(self, index: usize) -> bool {
        index == self.digit as usize
    }
}

/// What a row does in the memory of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing.
    Signal,
    /// Closes the gate, whose contents become the contribution, in this number of parts.
    Seal { parts: u8 },
    /// Sums data into a buffer, in this number of parts.
    Sum { from: Addends, to: Buffer, parts: u8 },
    /// Writes an area into one of another rank.
    Put { from: Area, to: Area },
}

/// A row, resolved to counters and cells.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedRow {
    when: usize,
    pub(crate) act: Act,
    /// Inputs of this rank's counters.
    gives: Vec<(usize, u32)>,
    /// Inputs of other ranks' counters: the rank and the cell.
    pub(crate) signals: Vec<(u32, usize)>,
    /// Whether these signals forward the activation.
    pub(crate) activates: bool,
}

/// The table of one rank. It numbers ranks without gaps.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    counters: Vec<Inputs>,
    rows: Vec<ResolvedRow>,
    /// The counter of activations, and the counter that the outcome completes.
    active: usize,
    done: usize,
    /// The row that closes the gate.
    seal: usize,
    /// The whole contribution, in the pieces into which this table divides it.
    whole: Chunk,
}

/// The progress of the rows in a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Progress {
    /// Inputs that have been given, by counter.
    given: Vec<u64>,
    /// Rows that have run, a bit for each.
    ran: [u64; RAN_WORDS],
}

const RAN_WORDS: usize = 4;

impl Progress {
    fn has_run(&self, row: usize) -> bool {
        self.ran[row / 64] >> (row % 64) & 1 == 1
    }
}

/// The input by which a rank starts a round itself. No table has this number of neighbours.
const BY_ITSELF: u32 = 63;

impl Table {
    /// Compiles the table of one rank. A request for fewer ranks than the world has gives the table among the ranks
    /// that are left.
    pub(crate) fn new(request: &Request, rank: u32, cells: InputCells) -> Self {
        let is_possible = request.radix > 1 || request.ranks <= MOST_RADIX;
        assert!(
            is_possible && request.radix <= MOST_RADIX,
            "a shape of radix {} of {} ranks",
            request.radix,
            request.ranks
        );
        let program = compile_rank(request, &Profile::NETWORK, rank);
        let is_run = |role: Role| !matches!(role, Role::Start | Role::Arrived | Role::Sent);
        let counters: Vec<_> = program.counters.iter().filter(|counter| is_run(counter.role)).collect();
        let index = |role: Role| counters.iter().position(|counter| counter.role == role);
        let whole = match request.schedule {
            Schedule::Halving => Shape::of(request.ranks, request.radix).pieces(),
            _ => Chunk::WHOLE,
        };
        // The compiler numbers the inboxes of the ranks that are left.
        let inboxes = Inboxes::of(request.ranks, request.radix);
        let mut rows = Vec::new();
        let mut own = vec![0u64; counters.len()];
        let mut thresholds: Vec<u32> = counters.iter().map(|counter| counter.inputs).collect();
        for operation in program.operations.iter().filter(|operation| is_run(operation.when)) {
            let when = index(operation.when).expect("a row waits for a counter of its table");
            thresholds[when] = operation.threshold;
            let (mine, others): (Vec<&Signal>, Vec<&Signal>) =
                operation.then.iter().partition(|signal| signal.rank == rank);
            let gives: Vec<_> = mine.iter().filter_map(|to| index(to.counter).map(|id| (id, to.input))).collect();
            gives.iter().for_each(|&(id, input)| own[id] |= 1 << input);
            let signals = others.iter().map(|to| (to.rank, cells.cell(to.counter, to.input))).collect();
            let activates = others.iter().any(|to| to.counter == Role::Active);
            let act = act(&operation.action, &program, whole, inboxes);
            rows.push(ResolvedRow { when, act, gives, signals, activates });
        }
        let inputs = |(id, counter): (usize, &&Counter)| {
            let before = (1u64 << counter.external) - 1;
            let from_others = (0..counter.inputs.min(BY_ITSELF)).filter(|bit| (own[id] | before) >> bit & 1 == 0);
            let remote = from_others.filter_map(|bit| {
                let from = sender(&program, request, counter.role, bit)?;
                Some(Remote { bit, cell: cells.cell(counter.role, bit), from })
            });
            Inputs { threshold: thresholds[id], before, remote: remote.collect() }
        };
        let seal = rows.iter().position(|row: &ResolvedRow| matches!(row.act, Act::Seal { .. }));
        let (active, done, seal) = match (index(Role::Active), index(Role::Done), seal) {
            (Some(active), Some(done), Some(seal)) => (active, done, seal),
            _ => unreachable!("each table has an activation, a gate and an outcome"),
        };
        let counters: Vec<Inputs> = counters.iter().enumerate().map(inputs).collect();
        assert!(rows.len() <= 64 * RAN_WORDS, "a table of {} rows", rows.len());
        Table { counters, rows, active, done, seal, whole }
    }

    /// Returns the progress at the beginning of a round.
    pub(crate) fn begin(&self) -> Progress {
        let mut progress = Progress { given: Vec::with_capacity(self.counters.len()), ran: [0; RAN_WORDS] };
        self.begin_again(&mut progress);
        progress
    }

    /// Sets the progress to the beginning of a round, in the memory of the round before.
    pub(crate) fn begin_again(&self, progress: &mut Progress) {
        progress.given.clear();
        progress.given.extend(self.counters.iter().map(|counter| counter.before));
        progress.ran = [0; RAN_WORDS];
    }

    /// Returns the whole contribution, in the pieces into which this table divides it.
    pub(crate) fn whole(&self) -> Chunk {
        self.whole
    }

    #[cfg(test)]
    pub(crate) fn rows(&self) -> &[ResolvedRow] {
        &self.rows
    }

    pub(crate) fn row(&self, row: usize) -> &ResolvedRow {
        &self.rows[row]
    }

    /// Starts the round from this rank.
    pub(crate) fn activate(&self, progress: &mut Progress) {
        progress.given[self.active] |= 1 << BY_ITSELF;
    }

    /// Returns whether the round has started, as far as this rank knows.
    pub(crate) fn is_activated(&self, progress: &Progress) -> bool {
        progress.given[self.active] > 0
    }

    /// Returns whether the gate is closed.
    pub(crate) fn is_sealed(&self, progress: &Progress) -> bool {
        progress.has_run(self.seal)
    }

    /// Returns whether all rows have run.
    pub(crate) fn has_run(&self, progress: &Progress) -> bool {
        progress.ran.iter().map(|word| word.count_ones() as usize).sum::<usize>() == self.rows.len()
    }

    /// Returns whether all rows have run and the outcome is there; `is_given` returns whether an input has come from
    /// another rank.
    pub(crate) fn is_complete(&self, progress: &mut Progress, is_given: impl Fn(usize) -> bool) -> bool {
        self.has_run(progress) && self.is_reached(self.done, progress, is_given)
    }

    /// Returns whether a rank has given an input in this round, and so takes part in it; `is_given` returns whether an
    /// input has come from another rank.
    pub(crate) fn takes_part(&self, number: u32, is_given: impl Fn(usize) -> bool) -> bool {
        let mut inputs = self.counters.iter().flat_map(|counter| &counter.remote);
        inputs.any(|remote| remote.from == number && is_given(remote.cell))
    }

    fn is_reached(&self, counter: usize, progress: &mut Progress, is_given: impl Fn(usize) -> bool) -> bool {
        let (inputs, given) = (&self.counters[counter], &mut progress.given[counter]);
        for remote in &inputs.remote {
            if *given >> remote.bit & 1 == 0 && given.count_ones() < inputs.threshold && is_given(remote.cell) {
                *given |= 1 << remote.bit;
            }
        }
        given.count_ones() >= inputs.threshold
    }

    /// Returns a row that is due; `is_given` returns whether an input has come from another rank.
    pub(crate) fn next(&self, progress: &mut Progress, is_given: impl Fn(usize) -> bool) -> Option<usize> {
        let is_due =
            |row: &usize| !progress.has_run(*row) && self.is_reached(self.rows[*row].when, progress, &is_given);
        (0..self.rows.len()).find(is_due)
    }

    /// Notes that a row has run, and gives the rank's own inputs.
    pub(crate) fn ran(&self, row: usize, progress: &mut Progress) {
        progress.ran[row / 64] |= 1 << (row % 64);
        self.rows[row].gives.iter().for_each(|&(counter, input)| progress.given[counter] |= 1 << input);
    }

    /// Returns the ranks whose data is all that some rows still wait for.
    pub(crate) fn awaited(&self, progress: &Progress) -> impl Iterator<Item = u32> {
        let waits = |row: &(usize, &ResolvedRow)| !progress.has_run(row.0) && row.1.when != self.active;
        let counters = self.rows.iter().enumerate().filter(waits).map(|(_, row)| row.when);
        counters.chain([self.done]).flat_map(|id| {
            let (counter, given) = (&self.counters[id], progress.given[id]);
            let open = counter.remote.iter().filter(move |remote| given >> remote.bit & 1 == 0);
            let of_others: u64 = counter.remote.iter().map(|remote| 1 << remote.bit).sum();
            let own = (given & !of_others).count_ones() as usize;
            let alone = own + counter.remote.len() >= counter.threshold as usize;
            open.filter(move |_| alone).map(|remote| remote.from)
        })
    }
}

/// Returns what a row does.
fn act(action: &Action, program: &Program, whole: Chunk, inboxes: Inboxes) -> Act {
    // The number of parts in which a buffer that holds a chunk is sent. An outcome stays as it is, for the caller.
    let parts = |buffer: Buffer, chunk: Chunk| {
        let sent = program.operations.iter().find_map(|operation| match operation.action {
            Action::Put { from, chunk, .. } if from == buffer && from != Buffer::Outcome => Some(chunk),
            _ => None,
        });
        // There are at most as many as the radix of a level.
        sent.map_or(1, |sent| (chunk.pieces() / sent.pieces()) as u8)
    };
    match *action {
        Action::Signal => Act::Signal,
        Action::Seal => Act::Seal { parts: parts(Buffer::Contribution, whole) },
        Action::Reduce { ref from, to, chunk } => {
            let is_own = |place: &RankBuffer| !matches!(place.buffer, Buffer::Inbox(_));
            let digit = from.iter().position(is_own).expect("a sum has the rank's own data");
            let level = from.iter().find_map(|place| match place.buffer {
                Buffer::Inbox(number) => Some(inboxes.place(number).0),
                _ => None,
            });
            // A rank that is alone takes its own data as it is.
            let level = level.unwrap_or(0);
            let from = Addends { own: from[digit].buffer, level, digit: digit as u32, of: from.len() as u32, chunk };
            Act::Sum { from, to, parts: parts(to, chunk) }
        }
        Action::Put { from, to, chunk } => {
            let (buffer, index) = match to.buffer {
                Buffer::Inbox(number) => {
                    let (level, index) = inboxes.place(number);
                    (Buffer::Inbox(level), index)
                }
                other => (other, 0),
            };
            // Parts of a buffer lie in its order.
            let part =
                if from == Buffer::Outcome { 0 } else { chunk.from % pieces_of(from, program, whole) / chunk.pieces() };
            Act::Put { from: Area { buffer: from, index: part, chunk }, to: Area { buffer, index, chunk } }
        }
    }
}

/// Returns the number of pieces that a buffer holds.
fn pieces_of(buffer: Buffer, program: &Program, whole: Chunk) -> u32 {
    let written = program.operations.iter().find_map(|operation| match operation.action {
        Action::Reduce { to, chunk, .. } if to == buffer => Some(chunk),
        _ => None,
    });
    written.unwrap_or(whole).pieces()
}

/// Returns the rank that gives an input that the table itself does not give.
fn sender(program: &Program, request: &Request, counter: Role, input: u32) -> Option<u32> {
    let (rank, ranks) = (program.rank, request.ranks);
    let shape = Shape::of(ranks, request.radix);
    let place = shape.place(rank);
    match counter {
        // Where each rank starts by itself, no other rank starts it; elsewhere the last input is the rank's own.
        Role::Active if request.start == Start::Everybody => None,
        Role::Active => (input < hops(ranks)).then(|| (rank + ranks - (1 << input)) % ranks),
        Role::Level(0) => Some(rank + 1 + input),
        Role::Level(level) | Role::Gathered(level) => {
            let digit = shape.digit(place, level);
            // The digits without the rank's own.
            Some(shape.leader(shape.partner(place, level, input + u32::from(input >= digit))))
        }
        Role::Done => (rank != shape.leader(place)).then(|| shape.leader(place)),
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const RELAYED: [Schedule; 2] = [Schedule::Doubling, Schedule::Halving];

    fn tables(ranks: u32, start: Start, (schedule, radix): (Schedule, u32)) -> Vec<Table> {
        let request = Request { ranks, start, schedule, radix, bytes: 8, chunk: 0, slots: 3 };
        (0..ranks).map(|rank| Table::new(&request, rank, InputCells::of(ranks, radix))).collect()
    }

    /// All ways to exchange data, with the radices that a world of this size may have.
    fn ways(ranks: u32) -> impl Iterator<Item = (Schedule, u32)> {
        let radices = [1, 2, 3, 4, 8, ranks].into_iter().filter(move |&radix| radix > 1 || ranks <= MOST_RADIX);
        let radices = radices.filter(|&radix| radix <= MOST_RADIX);
        RELAYED.into_iter().flat_map(move |schedule| radices.clone().map(move |radix| (schedule, radix)))
    }

    /// A rank runs O(log P) rows and sends at most that number of messages, its arrival included.
    #[test]
    fn a_round_takes_few_messages_of_each_rank() {
        for (ranks, schedule) in (2..=300).flat_map(|ranks| RELAYED.map(|schedule| (ranks, schedule))) {
            for start in [Start::Everybody, Start::First, Start::Designated, Start::Count(ranks / 2 + 1)] {
                for table in tables(ranks, start, (schedule, 2)) {
                    let messages: usize = table.rows.iter().map(|row| row.signals.len()).sum();
                    let most = if schedule == Schedule::Halving { 4 } else { 3 } * hops(ranks) as usize + 4;
                    assert!(messages < most, "{messages} messages of {ranks} ranks, {start:?}, {schedule:?}");
                    assert!(table.rows.len() <= most + 1, "{} rows of {ranks} ranks", table.rows.len());
                }
            }
        }
    }

    /// Runs all tables of a round, rows and messages in any order; returns how often rows waited for an input in vain.
    fn play(tables: &[Table], cells: InputCells, starters: &[usize], mut draw: impl FnMut(usize) -> usize) {
        let mut given = vec![vec![false; cells.count()]; tables.len()];
        let mut progress: Vec<Progress> = tables.iter().map(Table::begin).collect();
        starters.iter().for_each(|&rank| tables[rank].activate(&mut progress[rank]));
        let mut messages: Vec<(usize, usize)> = Vec::new();
        loop {
            let due: Vec<(usize, usize)> = (0..tables.len())
                .filter_map(|rank| {
                    let row = tables[rank].next(&mut progress[rank], |cell| given[rank][cell])?;
                    Some((rank, row))
                })
                .collect();
            match draw(due.len() + messages.len()) {
                _ if due.is_empty() && messages.is_empty() => break,
                chosen if chosen < due.len() => {
                    let (rank, row) = due[chosen];
                    messages.extend(tables[rank].row(row).signals.iter().map(|&(to, cell)| (to as usize, cell)));
                    tables[rank].ran(row, &mut progress[rank]);
                }
                chosen => {
                    let (rank, cell) = messages.swap_remove(chosen - due.len());
                    assert!(!given[rank][cell], "an input of {} ranks came twice", tables.len());
                    given[rank][cell] = true;
                }
            }
        }
        for (rank, table) in tables.iter().enumerate() {
            assert!(
                table.is_complete(&mut progress[rank], |cell| given[rank][cell]),
                "rank {rank} of {}",
                tables.len()
            );
            assert_eq!(table.awaited(&progress[rank]).count(), 0);
        }
    }

    #[test]
    fn every_table_runs_to_its_end() {
        use rand::{RngExt, SeedableRng};
        let mut rng = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(7);
        for (ranks, way) in (1..=40).flat_map(|ranks| ways(ranks).map(move |way| (ranks, way))) {
            let all: Vec<usize> = (0..ranks as usize).collect();
            let cases =
                [(Start::Everybody, &all[..]), (Start::First, &all[ranks as usize / 2..]), (Start::Count(1), &[0])];
            for (start, starters) in cases {
                play(&tables(ranks, start, way), InputCells::of(ranks, way.1), starters, |count| {
                    rng.random_range(0..count.max(1))
                });
            }
        }
    }
}
