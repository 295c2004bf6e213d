//! One rank's table, as that rank runs it alone where ranks share no memory.
//!
//! An input of a counter comes from the rank itself or from another one. The rank records its own inputs privately;
//! another rank writes the round into a cell of this rank. The cells of a slot have the same numbers on all ranks, so a
//! rank needs only its own table to know where its signals go.

use super::compile::{Profile, Request, Start, compile_rank, hops};
use super::program::{Action, Buffer, Chunk, Counter, Program, Role, Signal};

/// Numbers of the cells in which a rank gets inputs from others, within a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputCells {
    hops: usize,
}

impl InputCells {
    /// Returns the cells in a world of `ranks` ranks.
    pub(crate) fn of(ranks: u32) -> Self {
        InputCells { hops: hops(ranks) as usize }
    }

    /// Returns the number of cells, without those of arrivals.
    pub(crate) fn count(self) -> usize {
        3 * self.hops + 2
    }

    /// Returns the level of the inbox that the rank that gives an input writes before it, if it writes one.
    pub(crate) fn level(self, cell: usize) -> Option<u32> {
        let level = cell.checked_sub(self.hops)?;
        (level <= self.hops).then_some(level as u32)
    }

    fn cell(self, counter: Role, input: u32) -> usize {
        match counter {
            Role::Active => input as usize,
            // The second half of a level; the first one is the rank's own.
            Role::Level(level) => self.hops + level as usize,
            Role::Done => 2 * self.hops + 1,
            Role::Gathered(level) => 2 * self.hops + 1 + level as usize,
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
    before: u32,
    remote: Vec<Remote>,
}

/// The order of the halves of a buffer's data: the half that is sent on lies in front, right after the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    /// All of it is sent on, or none.
    AsItIs,
    LowFirst,
    HighFirst,
}

impl Order {
    /// Returns the parts of a chunk, in this order, each with the part in front of it.
    pub(crate) fn parts(self, chunk: Chunk) -> impl Iterator<Item = (Option<Chunk>, Chunk)> {
        let [low, high] = chunk.halves();
        let (first, second) = match self {
            Order::AsItIs => (chunk, None),
            Order::LowFirst => (low, Some(high)),
            Order::HighFirst => (high, Some(low)),
        };
        std::iter::once((None, first)).chain(second.map(|second| (Some(first), second)))
    }

    /// Returns the order of a buffer that holds a chunk.
    fn of(buffer: Buffer, chunk: Chunk, program: &Program) -> Self {
        let sent = program.operations.iter().find_map(|operation| match operation.action {
            // An outcome is for the caller.
            Action::Put { from, chunk, .. } if from == buffer && from != Buffer::Outcome => Some(chunk),
            _ => None,
        });
        match (sent, chunk.halves()) {
            (None, _) => Order::AsItIs,
            (Some(sent), _) if sent == chunk => Order::AsItIs,
            (Some(sent), [low, _]) if sent == low => Order::LowFirst,
            _ => Order::HighFirst,
        }
    }
}

/// A row, resolved to counters and cells.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedRow {
    when: usize,
    pub(crate) action: Action,
    /// The order of the data that it writes into a buffer of its rank.
    pub(crate) order: Order,
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
    given: Vec<u32>,
    /// Rows that have run.
    ran: u128,
}

/// The input by which a rank starts a round itself. No table has this number of neighbours.
const BY_ITSELF: u32 = 31;

impl Table {
    /// Compiles the table of one rank. A request for fewer ranks than the world has gives the table among the ranks
    /// that are left.
    pub(crate) fn new(request: &Request, rank: u32, cells: InputCells) -> Self {
        let program = compile_rank(request, &Profile::NETWORK, rank);
        let is_run = |role: Role| !matches!(role, Role::Start | Role::Arrived | Role::Sent);
        let counters: Vec<_> = program.counters.iter().filter(|counter| is_run(counter.role)).collect();
        let index = |role: Role| counters.iter().position(|counter| counter.role == role);
        let whole = program.operations.iter().filter_map(|operation| match operation.action {
            Action::Put { chunk, .. } => Some(Chunk { from: 0, to: chunk.of, of: chunk.of }),
            _ => None,
        });
        let whole = whole.max().unwrap_or(Chunk::WHOLE);
        let mut rows = Vec::new();
        let mut own = vec![0u32; counters.len()];
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
            let order = match operation.action {
                Action::Reduce { to, chunk, .. } => Order::of(to, chunk, &program),
                Action::Seal => Order::of(Buffer::Contribution, whole, &program),
                Action::Signal | Action::Put { .. } => Order::AsItIs,
            };
            rows.push(ResolvedRow { when, action: operation.action.clone(), order, gives, signals, activates });
        }
        let inputs = |(id, counter): (usize, &&Counter)| {
            let before = (1 << counter.external) - 1;
            let from_others = (0..counter.inputs.min(BY_ITSELF)).filter(|bit| (own[id] | before) >> bit & 1 == 0);
            let remote = from_others.filter_map(|bit| {
                let from = sender(&program, request, counter.role, bit)?;
                Some(Remote { bit, cell: cells.cell(counter.role, bit), from })
            });
            Inputs { threshold: thresholds[id], before, remote: remote.collect() }
        };
        let seal = rows.iter().position(|row: &ResolvedRow| row.action == Action::Seal);
        let (active, done, seal) = match (index(Role::Active), index(Role::Done), seal) {
            (Some(active), Some(done), Some(seal)) => (active, done, seal),
            _ => unreachable!("each table has an activation, a gate and an outcome"),
        };
        let counters: Vec<Inputs> = counters.iter().enumerate().map(inputs).collect();
        assert!(rows.len() <= u128::BITS as usize, "a table of {} rows", rows.len());
        Table { counters, rows, active, done, seal, whole }
    }

    /// Returns the progress at the beginning of a round.
    pub(crate) fn begin(&self) -> Progress {
        let mut progress = Progress { given: Vec::with_capacity(self.counters.len()), ran: 0 };
        self.begin_again(&mut progress);
        progress
    }

    /// Sets the progress to the beginning of a round, in the memory of the round before.
    pub(crate) fn begin_again(&self, progress: &mut Progress) {
        progress.given.clear();
        progress.given.extend(self.counters.iter().map(|counter| counter.before));
        progress.ran = 0;
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
        progress.ran >> self.seal & 1 == 1
    }

    /// Returns whether all rows have run.
    pub(crate) fn has_run(&self, progress: &Progress) -> bool {
        progress.ran.count_ones() as usize == self.rows.len()
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
            |row: &usize| progress.ran >> row & 1 == 0 && self.is_reached(self.rows[*row].when, progress, &is_given);
        (0..self.rows.len()).find(is_due)
    }

    /// Notes that a row has run, and gives the rank's own inputs.
    pub(crate) fn ran(&self, row: usize, progress: &mut Progress) {
        progress.ran |= 1 << row;
        self.rows[row].gives.iter().for_each(|&(counter, input)| progress.given[counter] |= 1 << input);
    }

    /// Returns the ranks whose data is all that some rows still wait for.
    pub(crate) fn awaited(&self, progress: &Progress) -> impl Iterator<Item = u32> {
        let waits = |row: &(usize, &ResolvedRow)| progress.ran >> row.0 & 1 == 0 && row.1.when != self.active;
        let counters = self.rows.iter().enumerate().filter(waits).map(|(_, row)| row.when);
        counters.chain([self.done]).flat_map(|id| {
            let (counter, given) = (&self.counters[id], progress.given[id]);
            let open = counter.remote.iter().filter(move |remote| given >> remote.bit & 1 == 0);
            let alone = given.count_ones() as usize + counter.remote.len() >= counter.threshold as usize;
            open.filter(move |_| alone).map(|remote| remote.from)
        })
    }
}

/// Returns the rank that gives an input that the table itself does not give.
fn sender(program: &Program, request: &Request, counter: Role, input: u32) -> Option<u32> {
    let (rank, ranks) = (program.rank, request.ranks);
    match counter {
        // Where each rank starts by itself, no other rank starts it; elsewhere the last input is the rank's own.
        Role::Active if request.start == Start::Everybody => None,
        Role::Active => (input < hops(ranks)).then(|| (rank + ranks - (1 << input)) % ranks),
        // The partners of a level send their data to each other.
        Role::Level(_) | Role::Gathered(_) => {
            let mut signals = program.operations.iter().flat_map(|operation| &operation.then);
            let partner = signals.find(|signal| signal.rank != rank && signal.counter == counter);
            // The second rank of a pair sends, and gets the outcome.
            Some(partner.map_or(rank + 1, |signal| signal.rank))
        }
        Role::Done => rank.checked_sub(1),
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::rule::Schedule;

    const RELAYED: [Schedule; 2] = [Schedule::Doubling, Schedule::Halving];

    fn tables(ranks: u32, start: Start, schedule: Schedule) -> Vec<Table> {
        let request = Request { ranks, start, schedule, bytes: 8, chunk: 0, slots: 3 };
        (0..ranks).map(|rank| Table::new(&request, rank, InputCells::of(ranks))).collect()
    }

    /// A rank runs O(log P) rows and sends at most that number of messages, its arrival included.
    #[test]
    fn a_round_takes_few_messages_of_each_rank() {
        for (ranks, schedule) in (2..=300).flat_map(|ranks| RELAYED.map(|schedule| (ranks, schedule))) {
            for start in [Start::Everybody, Start::First, Start::Designated, Start::Count(ranks / 2 + 1)] {
                for table in tables(ranks, start, schedule) {
                    let messages: usize = table.rows.iter().map(|row| row.signals.len()).sum();
                    let most = if schedule == Schedule::Halving { 4 } else { 3 } * hops(ranks) as usize + 4;
                    assert!(messages < most, "{messages} messages of {ranks} ranks, {start:?}, {schedule:?}");
                    assert!(table.rows.len() <= most + 1, "{} rows of {ranks} ranks", table.rows.len());
                }
            }
        }
    }

    /// Runs all tables of a round, rows and messages in any order; returns how often rows waited for an input in vain.
    fn play(tables: &[Table], starters: &[usize], mut draw: impl FnMut(usize) -> usize) {
        let mut given = vec![vec![false; InputCells::of(tables.len() as u32).count()]; tables.len()];
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
        for (ranks, schedule) in (1..=40).flat_map(|ranks| RELAYED.map(|schedule| (ranks, schedule))) {
            let all: Vec<usize> = (0..ranks as usize).collect();
            let cases =
                [(Start::Everybody, &all[..]), (Start::First, &all[ranks as usize / 2..]), (Start::Count(1), &[0])];
            for (start, starters) in cases {
                play(&tables(ranks, start, schedule), starters, |count| rng.random_range(0..count.max(1)));
            }
        }
    }
}
