//! Compiles a request into tables of triggered operations.
//!
//! The activation is a flood over a circulant graph: rank k signals k + 1, k + 2, k + 4 … modulo P. Every rank
//! forwards it once. So it works for any world size and any number of concurrent initiators, and it reaches the
//! farthest rank after ⌈log2 P⌉ hops. The reductions are those of a [`Shape`].

use super::program::{Action, Buffer, Chunk, Counter, Operation, Program, RankBuffer, Role, Signal};
use super::shape::{Inboxes, Shape};
use crate::rule::{Fire, Grace, Schedule, When};

/// What triggers the activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Every rank's own arrival seals its own contribution; no rank activates another.
    Everybody,
    /// The first arrival, or several at once.
    First,
    /// The arrival of the rank that is drawn for the round. The table is that of `First`, and only
    /// this rank signals its arrival.
    Designated,
    /// A number of arrivals, counted in rank 0's memory.
    Count(u32),
}

impl Start {
    /// Returns how a program starts a round under a firing rule.
    #[must_use]
    pub fn of(fire: Fire, grace: Grace, ranks: u32) -> Self {
        // A grace or a deadline ends early when all ranks have arrived, so arrivals must be counted.
        let uncounted = grace == Grace::NONE && fire.limit().is_none() && !fire.has_full_rounds();
        match fire.when() {
            _ if fire.is_synchronous() => Start::Everybody,
            When::Solo if uncounted => Start::First,
            When::Majority(_) if uncounted => Start::Designated,
            _ => Start::Count(fire.threshold(ranks)),
        }
    }
}

/// The abilities and limits of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name in messages.
    pub name: &'static str,
    /// All ranks load and store the same memory: sources are read in place, an outcome is written
    /// once, and the gate is one atomic word.
    pub shared: bool,
    /// Most operations of a rank in a round.
    pub operations: u64,
    /// Most counters of a rank in a round.
    pub counters: u64,
    /// Most bytes of a rank's buffers over all slots.
    pub bytes: u64,
}

impl Profile {
    /// Processes that share memory.
    pub const SHARED: Profile =
        Profile { name: "shared", shared: true, operations: 1 << 20, counters: 1 << 16, bytes: 1 << 44 };

    /// Processes that reach each other by one-sided writes.
    pub const NETWORK: Profile =
        Profile { name: "network", shared: false, operations: 1 << 16, counters: 1 << 16, bytes: 1 << 40 };
}

/// The input of the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Ranks in the world.
    pub ranks: u32,
    /// What triggers the activation.
    pub start: Start,
    /// How contributions become an outcome.
    pub schedule: Schedule,
    /// Over a network, for the schedules `Doubling` and `Halving`: how many parts meet at a level. 2 makes pairs, the number
    /// of ranks makes all of them exchange their data directly, and 1 makes a star. At most 32.
    pub radix: u32,
    /// Bytes of a contribution.
    pub bytes: u64,
    /// Bytes of a chunk where the schedule may choose; 0 makes it one chunk.
    pub chunk: u64,
    /// Slots: rounds that may be in progress.
    pub slots: u64,
}

/// More chunks would balance no better, and every chunk lists all its sources.
const MOST_CHUNKS: u64 = 256;

/// Returns the number of hops of the flood, which is also a rank's number of neighbours in it: ⌈log2 P⌉.
#[must_use]
pub fn hops(ranks: u32) -> u32 {
    ranks.next_power_of_two().trailing_zeros()
}

/// Returns the table of every rank of the world.
#[must_use]
pub fn compile(request: &Request, profile: &Profile) -> Vec<Program> {
    (0..request.ranks).map(|rank| compile_rank(request, profile, rank)).collect()
}

/// Returns the table of one rank.
pub(super) fn compile_rank(request: &Request, profile: &Profile, rank: u32) -> Program {
    let ranks = request.ranks;
    let mut table = Builder { request, rank, counters: Vec::new(), operations: Vec::new() };
    table.start();
    let sealed = table.activation(profile);
    let shared = profile.shared;
    match request.schedule {
        Schedule::Doubling | Schedule::Halving if ranks > 1 && shared => table.combining_tree(sealed),
        Schedule::Doubling if ranks > 1 => table.exchange(sealed, false),
        Schedule::Halving if ranks > 1 => table.exchange(sealed, true),
        Schedule::Gather if !shared => table.all_to_all(sealed),
        Schedule::Scatter if !shared => table.reduce_scatter(sealed),
        _ => table.reduce_in_place(sealed),
    }
    table.completions();
    let place = |owner| RankBuffer { rank: owner, buffer: Buffer::Outcome };
    let receives = if shared { (place(0), (0, Role::Done)) } else { (place(rank), (rank, Role::Done)) };
    Program { rank, counters: table.counters, operations: table.operations, receives }
}

/// Returns the input that the partner with the digit `from` gives to the one with the digit `to`. The last input of a level
/// is the rank's own.
pub(super) fn input_from(from: u32, to: u32) -> u32 {
    from - u32::from(from > to)
}

struct Builder<'a> {
    request: &'a Request,
    rank: u32,
    counters: Vec<Counter>,
    operations: Vec<Operation>,
}

impl Builder<'_> {
    fn counter(&mut self, role: Role, inputs: u32, external: u32) {
        self.counters.push(Counter { role, inputs, external });
    }

    fn own(&self, counter: Role, input: u32) -> Signal {
        Signal { rank: self.rank, counter, input }
    }

    fn operation(&mut self, when: Role, threshold: u32, action: Action, then: Vec<Signal>) {
        self.operations.push(Operation { when, threshold, action, then });
    }

    /// Adds an operation as [`Builder::operation`] does, with all inputs of the counter as its threshold.
    fn when_full(&mut self, when: Role, action: Action, then: Vec<Signal>) {
        let inputs = self.counters.iter().find(|counter| counter.role == when).map_or(0, |counter| counter.inputs);
        self.operation(when, inputs, action, then);
    }

    /// The rank's own arrival counts once all ranks have freed the slot. So a rank that activates others knows that no
    /// buffer is written too early.
    fn start(&mut self) {
        let ranks = self.request.ranks;
        self.counter(Role::Start, 1 + ranks, 1 + ranks);
        let begin = match self.request.start {
            Start::Everybody | Start::First | Start::Designated => self.own(Role::Active, self.self_input()),
            Start::Count(_) => Signal { rank: 0, counter: Role::Arrived, input: self.rank },
        };
        self.when_full(Role::Start, Action::Signal, vec![begin]);
        if let Start::Count(threshold) = self.request.start
            && self.rank == 0
        {
            self.counter(Role::Arrived, ranks, 0);
            let fire = self.own(Role::Active, self.self_input());
            self.operation(Role::Arrived, threshold, Action::Signal, vec![fire]);
        }
    }

    fn neighbours(&self) -> u32 {
        if self.request.start == Start::Everybody { 0 } else { hops(self.request.ranks) }
    }

    /// Returns the input of the activation that the rank gives itself, after those of its neighbours.
    fn self_input(&self) -> u32 {
        self.neighbours()
    }

    /// Forwards the activation and closes the gate. Returns the operation that sealed the
    /// contribution; the reduction adds its signals to it.
    fn activation(&mut self, profile: &Profile) -> usize {
        let gives_itself = !matches!(self.request.start, Start::Count(_)) || self.rank == 0;
        self.counter(Role::Active, self.neighbours() + u32::from(gives_itself), 0);
        let forward =
            |input: u32| Signal { rank: (self.rank + (1 << input)) % self.request.ranks, counter: Role::Active, input };
        let mut forwards: Vec<Signal> = (0..self.neighbours()).map(forward).collect();
        if profile.shared {
            // The gate is one atomic word, so it can be closed during a deposit.
            self.operation(Role::Active, 1, Action::Seal, forwards);
        } else {
            self.counter(Role::Gate, 2, 1);
            forwards.push(self.own(Role::Gate, 1));
            self.operation(Role::Active, 1, Action::Signal, forwards);
            self.when_full(Role::Gate, Action::Seal, Vec::new());
        }
        self.operations.len() - 1
    }

    /// Adds a counter of puts: a slot is free for its next use only when the rank's own puts have read their sources,
    /// too.
    fn completions(&mut self) {
        let rank = self.rank;
        let puts = self.operations.iter_mut().filter(|operation| matches!(operation.action, Action::Put { .. }));
        let mut inputs = 0;
        for put in puts {
            put.then.push(Signal { rank, counter: Role::Sent, input: inputs });
            inputs += 1;
        }
        if inputs > 0 {
            self.counter(Role::Sent, inputs, 0);
        }
    }

    fn also_signal(&mut self, operation: usize, signal: Signal) {
        self.operations[operation].then.push(signal);
    }

    /// Adds a tree of P - 1 sums and one outcome. In shared memory both partners of a doubling step would compute the
    /// same bytes, so only one does.
    fn combining_tree(&mut self, sealed: usize) {
        let (rank, shape) = (self.rank, Shape::of(self.request.ranks, 2));
        let (levels, place) = (shape.levels(), shape.place(rank));
        let is_pair = |place: u32| shape.group(place).len() > 1;
        let up = |place: u32, level: u32| {
            let parent = place >> level << level;
            let input = place >> (level - 1) & 1;
            if level > levels {
                Signal { rank: 0, counter: Role::Done, input: 0 }
            } else {
                Signal { rank: shape.leader(parent), counter: Role::Level(level), input }
            }
        };
        if rank != shape.leader(place) {
            self.also_signal(sealed, Signal { rank: rank - 1, counter: Role::Level(0), input: 1 });
            return;
        }
        let sum = |low: RankBuffer, high: RankBuffer, to: Buffer| Action::Reduce {
            from: vec![low, high],
            to,
            chunk: Chunk::WHOLE,
        };
        if rank == 0 {
            self.counter(Role::Done, 1, 0);
        }
        if is_pair(place) {
            self.also_signal(sealed, self.own(Role::Level(0), 0));
            self.counter(Role::Level(0), 2, 0);
            let part = |rank| RankBuffer { rank, buffer: Buffer::Contribution };
            self.when_full(Role::Level(0), sum(part(rank), part(rank + 1), Buffer::Partial(0)), vec![up(place, 1)]);
        } else {
            self.also_signal(sealed, up(place, 1));
        }
        for level in 1..=levels {
            if !place.is_multiple_of(1 << level) {
                break;
            }
            let below = |place: u32| {
                let is_partial = level > 1 || is_pair(place);
                let buffer = if is_partial { Buffer::Partial(level - 1) } else { Buffer::Contribution };
                RankBuffer { rank: shape.leader(place), buffer }
            };
            let to = if level == levels { Buffer::Outcome } else { Buffer::Partial(level) };
            self.counter(Role::Level(level), 2, 0);
            let halves = (below(place), below(place + (1 << (level - 1))));
            self.when_full(Role::Level(level), sum(halves.0, halves.1, to), vec![up(place, level + 1)]);
        }
    }

    /// Adds reductions in shared memory: any rank inside the library reduces chunks directly from all contributions.
    fn reduce_in_place(&mut self, sealed: usize) {
        let request = self.request;
        self.also_signal(sealed, Signal { rank: 0, counter: Role::Sealed, input: self.rank });
        if self.rank > 0 {
            return;
        }
        let chunks = match request.schedule {
            Schedule::Scatter if request.chunk > 0 => {
                request.bytes.div_ceil(request.chunk).clamp(1, MOST_CHUNKS) as u32
            }
            _ => 1,
        };
        self.counter(Role::Sealed, request.ranks, 0);
        self.counter(Role::Done, chunks, 0);
        let from: Vec<RankBuffer> =
            (0..request.ranks).map(|rank| RankBuffer { rank, buffer: Buffer::Contribution }).collect();
        for chunk in 0..chunks {
            let action = Action::Reduce { from: from.clone(), to: Buffer::Outcome, chunk: Chunk::piece(chunk, chunks) };
            self.when_full(Role::Sealed, action, vec![self.own(Role::Done, chunk)]);
        }
    }

    /// Exchanges data in a shape, by puts into inboxes. At each level the partners give each other all that they have; or,
    /// in `shares`, each of them reduces one part of it, and they gather the outcome on the way back. The partners of a
    /// level are the same, so both ways give the same bits.
    fn exchange(&mut self, sealed: usize, shares: bool) {
        let (rank, shape) = (self.rank, Shape::of(self.request.ranks, self.request.radix));
        let (levels, place) = (shape.levels(), shape.place(self.rank));
        let inboxes = Inboxes::of(self.request.ranks, self.request.radix);
        let whole = if shares { shape.pieces() } else { Chunk::WHOLE };
        self.counter(Role::Done, 1, 0);
        let (leader, group) = (shape.leader(place), shape.group(place));
        if rank != leader {
            // A member that hangs on another one sends it its contribution, and receives the outcome.
            self.counter(Role::Made(0), 1, 0);
            self.also_signal(sealed, self.own(Role::Made(0), 0));
            let input = rank - leader - 1;
            let to = RankBuffer { rank: leader, buffer: inboxes.buffer(0, input) };
            let there = Signal { rank: leader, counter: Role::Level(0), input };
            self.when_full(Role::Made(0), Action::Put { from: Buffer::Contribution, to, chunk: whole }, vec![there]);
            return;
        }
        let own = |buffer| RankBuffer { rank, buffer };
        // The buffer that this rank sends at level 1, and the operation that produces it.
        let (mut mine, mut maker) = (Buffer::Contribution, sealed);
        let hung = group.len() as u32 - 1;
        if hung > 0 {
            self.counter(Role::Level(0), hung + 1, 0);
            self.also_signal(sealed, self.own(Role::Level(0), hung));
            let theirs = (0..hung).map(|input| own(inboxes.buffer(0, input)));
            let from = std::iter::once(own(Buffer::Contribution)).chain(theirs).collect();
            let to = if levels == 0 { Buffer::Outcome } else { Buffer::Partial(0) };
            self.when_full(Role::Level(0), Action::Reduce { from, to, chunk: whole }, Vec::new());
            (mine, maker) = (to, self.operations.len() - 1);
        }
        // The chunk that this rank reduces at each level.
        let mut kept = vec![whole];
        for level in 1..=levels {
            let (radix, digit) = (shape.radix(level), shape.digit(place, level));
            let partner = |digit: u32| shape.leader(shape.partner(place, level, digit));
            let before = kept[level as usize - 1];
            let part = |digit: u32| if shares { before.part(digit, radix) } else { whole };
            self.counter(Role::Made(level), 1, 0);
            self.counter(Role::Level(level), radix, 0);
            self.also_signal(maker, self.own(Role::Made(level), 0));
            self.also_signal(maker, self.own(Role::Level(level), radix - 1));
            for other in (0..radix).filter(|&other| other != digit) {
                let input = input_from(digit, other);
                let to = RankBuffer { rank: partner(other), buffer: inboxes.buffer(level, input) };
                let there = Signal { rank: partner(other), counter: Role::Level(level), input };
                self.when_full(Role::Made(level), Action::Put { from: mine, to, chunk: part(other) }, vec![there]);
            }
            let source = |other: u32| match other == digit {
                true => own(mine),
                false => own(inboxes.buffer(level, input_from(other, digit))),
            };
            let to = if level == levels { Buffer::Outcome } else { Buffer::Partial(level) };
            let action = Action::Reduce { from: (0..radix).map(source).collect(), to, chunk: part(digit) };
            kept.push(part(digit));
            self.when_full(Role::Level(level), action, Vec::new());
            (mine, maker) = (to, self.operations.len() - 1);
        }
        if shares && levels > 0 {
            let mut made = Role::Made(levels + 1);
            self.counter(made, 1, 0);
            self.also_signal(maker, self.own(made, 0));
            for level in (1..=levels).rev() {
                let (radix, digit, chunk) = (shape.radix(level), shape.digit(place, level), kept[level as usize]);
                let gathered = Role::Gathered(level);
                self.counter(gathered, radix, 0);
                self.when_full(made, Action::Signal, vec![self.own(gathered, radix - 1)]);
                for other in (0..radix).filter(|&other| other != digit) {
                    let partner = shape.leader(shape.partner(place, level, other));
                    let to = RankBuffer { rank: partner, buffer: Buffer::Outcome };
                    let there = Signal { rank: partner, counter: gathered, input: input_from(digit, other) };
                    self.when_full(made, Action::Put { from: Buffer::Outcome, to, chunk }, vec![there]);
                }
                made = gathered;
            }
            self.when_full(made, Action::Signal, Vec::new());
            maker = self.operations.len() - 1;
        }
        self.also_signal(maker, self.own(Role::Done, 0));
        if hung > 0 {
            let made = Role::Made(levels + 2);
            self.counter(made, 1, 0);
            self.also_signal(maker, self.own(made, 0));
            for member in group.skip(1) {
                let to = RankBuffer { rank: member, buffer: Buffer::Outcome };
                let there = Signal { rank: member, counter: Role::Done, input: 0 };
                self.when_full(made, Action::Put { from: Buffer::Outcome, to, chunk: whole }, vec![there]);
            }
        }
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, ranks) = (self.rank, self.request.ranks);
        (1..ranks).map(move |step| (rank + step) % ranks)
    }

    /// Returns the sources of a sum over all ranks: the rank's own contribution in place, and the inboxes of the
    /// others.
    fn all_sources(&self) -> Vec<RankBuffer> {
        let buffer = |rank| if rank == self.rank { Buffer::Contribution } else { Buffer::Inbox(rank) };
        (0..self.request.ranks).map(|rank| RankBuffer { rank: self.rank, buffer: buffer(rank) }).collect()
    }

    fn all_to_all(&mut self, sealed: usize) {
        let whole = Chunk::WHOLE;
        self.counter(Role::Made(0), 1, 0);
        self.counter(Role::Sealed, self.request.ranks, 0);
        self.counter(Role::Done, 1, 0);
        self.also_signal(sealed, self.own(Role::Made(0), 0));
        self.also_signal(sealed, self.own(Role::Sealed, self.rank));
        for peer in self.others() {
            let to = RankBuffer { rank: peer, buffer: Buffer::Inbox(self.rank) };
            let there = Signal { rank: peer, counter: Role::Sealed, input: self.rank };
            self.when_full(Role::Made(0), Action::Put { from: Buffer::Contribution, to, chunk: whole }, vec![there]);
        }
        let action = Action::Reduce { from: self.all_sources(), to: Buffer::Outcome, chunk: whole };
        self.when_full(Role::Sealed, action, vec![self.own(Role::Done, 0)]);
    }

    fn reduce_scatter(&mut self, sealed: usize) {
        let ranks = self.request.ranks;
        self.counter(Role::Made(0), 1, 0);
        self.counter(Role::Sealed, ranks, 0);
        self.counter(Role::Made(1), 1, 0);
        self.counter(Role::Done, ranks, 0);
        self.also_signal(sealed, self.own(Role::Made(0), 0));
        self.also_signal(sealed, self.own(Role::Sealed, self.rank));
        for peer in self.others() {
            let to = RankBuffer { rank: peer, buffer: Buffer::Inbox(self.rank) };
            let there = Signal { rank: peer, counter: Role::Sealed, input: self.rank };
            let action = Action::Put { from: Buffer::Contribution, to, chunk: Chunk::piece(peer, ranks) };
            self.when_full(Role::Made(0), action, vec![there]);
        }
        let chunk = Chunk::piece(self.rank, ranks);
        let action = Action::Reduce { from: self.all_sources(), to: Buffer::Outcome, chunk };
        let then = vec![self.own(Role::Made(1), 0), self.own(Role::Done, self.rank)];
        self.when_full(Role::Sealed, action, then);
        for peer in self.others() {
            let to = RankBuffer { rank: peer, buffer: Buffer::Outcome };
            let there = Signal { rank: peer, counter: Role::Done, input: self.rank };
            self.when_full(Role::Made(1), Action::Put { from: Buffer::Outcome, to, chunk }, vec![there]);
        }
    }
}
