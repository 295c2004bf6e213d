//! What the machine asks its driver to do, and what comes back.

use super::cut::Cut;
use super::entry::Entry;
use super::plan::{BUFFERS, Plan, RELAYED_ROUNDS, SIGNALLED_ROUNDS};
use crate::fabric::{Atomic, Change};
use crate::reduce::Place;
use crate::trigger::{Buffer, Chunk, Deposit, Order, Task};

/// Operations of which several may be in flight towards a host, so that they are only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counted {
    /// An outcome, a cut, or zeros for the next round's words.
    Push,
    /// A release.
    Notice,
    /// A reducer's share of an outcome.
    Outcome,
    /// A look at a piece of a contribution there.
    Read,
    /// Data that is relayed in a round, by its turn.
    Relayed { turn: u32 },
    /// An activation or an arrival of a round, by its turn.
    Signalled { turn: u32 },
    /// The tag (and data) of the contribution in a buffer.
    Tag { buffer: u32 },
}

const FIRST_SIGNALLED: usize = 4 + RELAYED_ROUNDS as usize;
const FIRST_TAG: usize = FIRST_SIGNALLED + SIGNALLED_ROUNDS as usize;

impl Counted {
    /// Tags, by buffer.
    pub(super) const TAGS: [Counted; BUFFERS as usize] =
        [Counted::Tag { buffer: 0 }, Counted::Tag { buffer: 1 }, Counted::Tag { buffer: 2 }];

    pub(super) const ALL: [Counted; FIRST_TAG + BUFFERS as usize] = [
        Counted::Push,
        Counted::Notice,
        Counted::Outcome,
        Counted::Read,
        Counted::Relayed { turn: 0 },
        Counted::Relayed { turn: 1 },
        Counted::Relayed { turn: 2 },
        Counted::Signalled { turn: 0 },
        Counted::Signalled { turn: 1 },
        Counted::Signalled { turn: 2 },
        Counted::Signalled { turn: 3 },
        Counted::Signalled { turn: 4 },
        Counted::Signalled { turn: 5 },
        Counted::Signalled { turn: 6 },
        Counted::Signalled { turn: 7 },
        Self::TAGS[0],
        Self::TAGS[1],
        Self::TAGS[2],
    ];

    /// Its place in [`Counted::ALL`].
    #[inline]
    pub(super) fn index(self) -> usize {
        match self {
            Counted::Push => 0,
            Counted::Notice => 1,
            Counted::Outcome => 2,
            Counted::Read => 3,
            Counted::Relayed { turn } => 4 + turn as usize,
            Counted::Signalled { turn } => FIRST_SIGNALLED + turn as usize,
            Counted::Tag { buffer } => FIRST_TAG + buffer as usize,
        }
    }
}

/// Names an operation to the machine when it completes. At most one operation of a kind is under
/// way, except for those that are only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Token {
    /// One of several, towards a host, which may be the own one.
    Counted { what: Counted, host: u32 },
    /// The arrived bit.
    Arrive,
    /// The ticket of a large world.
    Ticket,
    /// A look at whether the round fired.
    Probe,
    /// A look at a peer's tag where the peer keeps it.
    Look,
    /// The closed bit of a word.
    Close,
    /// The carried bit.
    Place,
    /// The next round's words.
    Clear,
    /// A segment to move.
    Claim,
    /// Segments that landed on the own host.
    Done,
    /// The own gate.
    Deposit,
    /// What the worker claims or closes.
    Swap,
}

/// The code of the first kind of those that are counted.
const FIRST_COUNTED: u64 = 12;
const HOST_SHIFT: u32 = 8;

impl Token {
    /// As a fabric carries it.
    #[inline]
    pub(crate) fn code(self) -> u64 {
        match self {
            Token::Counted { what, host } => (FIRST_COUNTED + what.index() as u64) | (u64::from(host) << HOST_SHIFT),
            Token::Arrive => 1,
            Token::Ticket => 2,
            Token::Probe => 3,
            Token::Close => 4,
            Token::Place => 5,
            Token::Clear => 6,
            Token::Claim => 7,
            Token::Done => 8,
            Token::Deposit => 9,
            Token::Swap => 10,
            Token::Look => 11,
        }
    }

    /// What [`Token::code`] stands for.
    #[inline]
    pub(crate) fn from_code(code: u64) -> Self {
        match code {
            1 => Token::Arrive,
            2 => Token::Ticket,
            3 => Token::Probe,
            4 => Token::Close,
            5 => Token::Place,
            6 => Token::Clear,
            7 => Token::Claim,
            8 => Token::Done,
            9 => Token::Deposit,
            10 => Token::Swap,
            11 => Token::Look,
            counted => {
                let index = (counted & ((1 << HOST_SHIFT) - 1)) - FIRST_COUNTED;
                Token::Counted { what: Counted::ALL[index as usize], host: (counted >> HOST_SHIFT) as u32 }
            }
        }
    }
}

/// What waiting ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(crate) enum Awaited {
    /// A cut, or data.
    Outcome = 1,
    /// Room in the ring.
    Room = 2,
    /// A piece of a contribution.
    Piece = 3,
}

/// What goes from this host to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PutData {
    /// `len` bytes of the data region, from an offset here to one there.
    Bytes { from: usize, to: usize, len: usize },
    /// Cells, to the same place there.
    Cells { first: usize, count: usize },
}

/// What a reduction reads: a contribution, by its entry in the cut, or something else as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addend {
    pub(crate) at: Place,
    pub(crate) entry: Option<Entry>,
}

/// The lists that an operation comes with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operands {
    /// What a reduction reads.
    pub(crate) inputs: Vec<Addend>,
    /// What a record has.
    pub(crate) words: Vec<u64>,
}

impl Operands {
    /// Makes the memory of lists now.
    pub(crate) fn reserve(&mut self, plan: &Plan) {
        self.inputs.reserve(plan.most_sources());
        self.words.reserve(Cut::cells(plan.ranks));
    }
}

/// One operation. It says all that the driver has to know, with its [`Operands`]. Those with a token complete exactly once;
/// the others take effect at once, in the order given, before anything that follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// Stores a cell on the own host, with release order.
    Store { cell: usize, value: u64 },
    /// Raises a cell on the own host to a value, if it is less.
    Raise { cell: usize, value: u64 },
    /// Makes earlier stores visible to all ranks before later loads.
    Fence,
    /// Puts data on another host, and then changes a cell there; one of them may be missing.
    Put { host: u32, data: Option<PutData>, signal: Option<(usize, Change)>, token: Token },
    /// Zeroes cells. Completes when no later operation of any rank can see what was there.
    Clear { host: u32, first: usize, count: usize, token: Token },
    /// An atomic on a cell; completes with the value before.
    Atomic { host: u32, cell: usize, atomic: Atomic, token: Token },
    /// Reads a piece of a contribution, from an offset there to one in staging memory.
    Read { host: u32, from: usize, len: usize, to: usize, token: Token },
    /// Reduces `len` bytes of its inputs, the contributions of a cut, to an offset of the data region. Ranks of this host may
    /// read it as the outcome of `round`; without one, this rank alone.
    Combine { round: Option<u64>, inputs: u32, to: usize, len: usize },
    /// Averages `len` bytes of the first `models` inputs, adds those behind them, and divides by the number of ranks.
    Average { inputs: u32, models: u32, divisor: u32, to: usize, len: usize },
    /// Copies `len` bytes of the data region.
    Copy { from: usize, to: usize, len: usize },
    /// Writes its words into cells of the own host, each below the one before, and then stores the round in a cell, with
    /// release order.
    Record { last: usize, words: u32, cell: usize, round: u64 },
    /// Wakes ranks of the own host that wait for this: at most `most`, or all.
    Wake { most: u32, interest: Awaited },
    /// What a program of triggered operations asks for.
    Program(ProgramOp),
}

/// What only programs ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProgramOp {
    /// Carries out a reduction.
    Run(Task),
    /// Puts what a gate let in, `pieces` pieces, where it is relayed from. `without_slot`: this rank has no room for the next
    /// round.
    Seal { round: u64, deposit: Deposit, initiator: Option<u32>, without_slot: bool, pieces: u32, order: Order },
    /// Sums a chunk of what lies in one or two buffers, with its labels, into another one: the outcome, or a partial sum.
    Sum { round: u64, from: (Buffer, Option<Buffer>), to: Buffer, chunk: Chunk, order: Order },
    /// Queues a slot's operations for this round, with an empty gate.
    Arm { round: u64 },
    /// Tells all ranks that the round's slot may be written to.
    Ready { round: u64 },
    /// Takes the token of the round's gate; completes with 1, or with 0 if the gate is sealed.
    RevokeGateToken { round: u64, token: Token },
    /// Puts a deposit into the gate whose token is out, with what lies in a buffer, and gives the token back.
    Deposit { round: u64, gate: u64, buffer: u32, row: Option<u32>, weight: u16 },
    /// The own arrival, told to the provider.
    SignalArrival { round: u64 },
}

// Each round in shared memory queues some of them.
const _: () = assert!(size_of::<Op>() <= 72);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_fabric() {
        (1..20).for_each(|code| assert_eq!(Token::from_code(code).code(), code));
        for what in Counted::ALL {
            let token = Token::Counted { what, host: u32::MAX };
            assert_eq!(Token::from_code(token.code()), token);
        }
    }
}
