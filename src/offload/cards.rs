//! A model of network cards that run programs by themselves: counters that only grow, operations
//! that run once, messages with any delay. A seed determines every random choice.
//!
//! The order of calls for each use of a slot: *arm*, *open* the gates, *give* ready tokens, then arrivals. When the
//! outcome is there and every input has come, the slot is armed for its next use.
//!
//! The model has no cells, claims or gates of shared memory, so its results hold for the tables. Data is symbolic: a
//! buffer holds the set of the contributions that were summed into it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::trigger::{Action, Buffer, Chunk, Program, RankBuffer, Role, Signal};

/// The contributions in a buffer, by rank and number.
pub type Sum = BTreeSet<(u32, u64)>;

/// A part of a buffer.
type Piece = (RankBuffer, Chunk);

/// The cards of all ranks of a world.
#[derive(Debug)]
pub struct Cards {
    world: Vec<Program>,
    slots: Vec<SlotState>,
    /// Operations that have been triggered and have not run.
    triggered: Vec<Queued>,
    messages: Vec<Message>,
    rng: Xoshiro256PlusPlus,
    /// Reads of a contribution while its rank was writing it.
    torn: u64,
}

#[derive(Clone, Debug, Default)]
struct SlotState {
    /// Increments so far, over all uses.
    values: HashMap<(u32, Role), u64>,
    /// Uses that each rank has armed.
    armed: Vec<u64>,
    /// Operations that each counter has not triggered yet, and the values that trigger them.
    waiting: HashMap<(u32, Role), Vec<(u64, Queued)>>,
    buffers: BTreeMap<Piece, Sum>,
    /// Ranks that are writing their contribution.
    writing: BTreeSet<u32>,
}

/// An operation of a rank's program, by its index, for the next use of a slot.
#[derive(Clone, Copy, Debug)]
struct Queued {
    slot: usize,
    rank: u32,
    index: usize,
}

#[derive(Debug)]
enum Message {
    Signal { slot: usize, to: Signal },
    Put { slot: usize, to: Piece, data: Sum, then: Vec<Signal> },
}

fn parts(buffers: &BTreeMap<Piece, Sum>, place: RankBuffer) -> impl Iterator<Item = (Chunk, &Sum)> {
    let from = Chunk { from: 0, to: 0, of: 0 };
    buffers.range((place, from)..).take_while(move |((at, _), _)| *at == place).map(|((_, part), sum)| (*part, sum))
}

impl Cards {
    /// Cards that hold these tables for `slots` slots; no slot is armed.
    #[must_use]
    pub fn new(world: Vec<Program>, slots: usize, seed: u64) -> Self {
        let slot = SlotState { armed: vec![0; world.len()], ..SlotState::default() };
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        Cards { world, slots: vec![slot; slots], triggered: Vec::new(), messages: Vec::new(), rng, torn: 0 }
    }

    /// Runs one event, chosen at random; returns whether there was one.
    pub fn step(&mut self) -> bool {
        let choices = self.triggered.len() + self.messages.len();
        if choices == 0 {
            return false;
        }
        match self.rng.random_range(0..choices) {
            choice if choice < self.triggered.len() => {
                let queued = self.triggered.swap_remove(choice);
                self.run(queued);
            }
            choice => {
                // Messages may overtake each other.
                let message = self.messages.swap_remove(choice - self.triggered.len());
                self.land(message);
            }
        }
        true
    }

    fn run(&mut self, Queued { slot, rank, index }: Queued) {
        let operation = self.world[rank as usize].operations[index].clone();
        let own = |buffer| RankBuffer { rank, buffer };
        let mut then = operation.then;
        match operation.action {
            Action::Signal | Action::Seal => {}
            Action::Reduce { from, to, chunk } => {
                let mut sum = Sum::new();
                for place in from {
                    for contribution in self.read(slot, place, chunk) {
                        assert!(sum.insert(contribution), "{contribution:?} is summed twice");
                    }
                }
                self.slots[slot].buffers.insert((own(to), chunk), sum);
            }
            Action::Put { from, to, chunk } => {
                let data = self.read(slot, own(from), chunk);
                let (carried, others) = then.into_iter().partition(|signal: &Signal| signal.rank == to.rank);
                self.messages.push(Message::Put { slot, to: (to, chunk), data, then: carried });
                then = others;
            }
        }
        for to in then {
            if to.rank == rank {
                self.add(slot, to);
            } else {
                self.messages.push(Message::Signal { slot, to });
            }
        }
    }

    fn land(&mut self, message: Message) {
        match message {
            Message::Signal { slot, to } => self.add(slot, to),
            Message::Put { slot, to, data, then } => {
                self.slots[slot].buffers.insert(to, data);
                then.into_iter().for_each(|to| self.add(slot, to));
            }
        }
    }

    fn add(&mut self, slot: usize, to: Signal) {
        let counter = (to.rank, to.counter);
        let SlotState { values, waiting, .. } = &mut self.slots[slot];
        let value = values.entry(counter).or_default();
        *value += 1;
        if let Some(waiting) = waiting.get_mut(&counter) {
            self.triggered.extend(waiting.extract_if(.., |(at, _)| *at <= *value).map(|(_, queued)| queued));
        }
    }

    /// Returns the data in a part of a buffer, whose pieces must all be equal; an empty sum if any piece is missing.
    fn read(&mut self, slot: usize, place: RankBuffer, chunk: Chunk) -> Sum {
        let state = &self.slots[slot];
        self.torn += u64::from(place.buffer == Buffer::Contribution && state.writing.contains(&place.rank));
        let (mut found, mut pieces) = (None, 0);
        for (part, sum) in parts(&state.buffers, place) {
            let part = if part.is_whole() { chunk } else { part };
            assert_eq!(part.of, chunk.of, "a buffer has one division");
            let common = part.to.min(chunk.to).saturating_sub(part.from.max(chunk.from));
            if common > 0 {
                assert!(found.is_none_or(|found| found == sum), "pieces of {place:?} hold different sums");
                (found, pieces) = (Some(sum), pieces + common);
            }
        }
        found.filter(|_| pieces == chunk.to - chunk.from).cloned().unwrap_or_default()
    }

    fn value(&self, slot: usize, rank: u32, counter: Role) -> u64 {
        self.slots[slot].values.get(&(rank, counter)).copied().unwrap_or(0)
    }

    /// Begins to write a contribution, which must not be read before [`Cards::written`].
    pub fn write(&mut self, slot: usize, rank: u32) {
        self.slots[slot].writing.insert(rank);
    }

    /// Ends the write: the buffer holds contribution `number`, too.
    pub fn written(&mut self, slot: usize, rank: u32, number: u64) {
        self.slots[slot].writing.remove(&rank);
        let part = (RankBuffer { rank, buffer: Buffer::Contribution }, Chunk::WHOLE);
        self.slots[slot].buffers.entry(part).or_default().insert((rank, number));
    }

    /// Returns a rank's outcome, chunk by chunk; all chunks must be equal.
    #[must_use]
    pub fn outcome(&self, slot: usize, rank: u32) -> Vec<Sum> {
        let place = RankBuffer { rank, buffer: Buffer::Outcome };
        parts(&self.slots[slot].buffers, place).map(|(_, sum)| sum.clone()).collect()
    }

    /// Returns how often a contribution was read while its rank was writing it.
    #[must_use]
    pub fn torn(&self) -> u64 {
        self.torn
    }

    /// Queues a rank's operations for the next use of a slot. Each runs once, when its counter
    /// reaches the threshold; no rank can trigger them before this one has given its ready token.
    pub fn arm(&mut self, rank: u32, slot: usize) {
        let program = &self.world[rank as usize];
        let state = &mut self.slots[slot];
        let uses = state.armed[rank as usize];
        for (index, operation) in program.operations.iter().enumerate() {
            let inputs = u64::from(program.inputs(operation.when));
            let at = uses * inputs + u64::from(operation.threshold);
            let (counter, queued) = ((rank, operation.when), Queued { slot, rank, index });
            match state.values.get(&counter) {
                Some(&value) if value >= at => self.triggered.push(queued),
                _ => state.waiting.entry(counter).or_default().push((at, queued)),
            }
        }
        state.armed[rank as usize] += 1;
        let own = |place: &RankBuffer| place.rank == rank && place.buffer == Buffer::Contribution;
        state.buffers.retain(|(place, _), _| !own(place));
    }

    /// Gives a rank's input: its arrival, a ready token, the token of its gate. Its own counters count it at once.
    pub fn give(&mut self, by: u32, slot: usize, input: Signal) {
        if by == input.rank {
            self.add(slot, input);
        } else {
            self.messages.push(Message::Signal { slot, to: input });
        }
    }

    /// Revokes the token of a rank's gate; returns false if the activation came first. While the
    /// token is revoked, the rank may write its contribution, and the round waits.
    pub fn revoke_token(&mut self, slot: usize, rank: u32) -> bool {
        let before = self.slots[slot].armed[rank as usize].saturating_sub(1) * 2;
        let value = self.slots[slot].values.entry((rank, Role::Gate)).or_default();
        // Both inputs are there: the gate has fired, or is about to fire.
        if *value >= before + 2 || *value == before {
            return false;
        }
        *value -= 1;
        true
    }

    /// Returns whether all inputs of a counter have come for the use that was armed last.
    #[must_use]
    pub fn is_full(&self, slot: usize, rank: u32, counter: Role) -> bool {
        let inputs = u64::from(self.world[rank as usize].inputs(counter));
        self.value(slot, rank, counter) >= self.slots[slot].armed[rank as usize] * inputs
    }
}
