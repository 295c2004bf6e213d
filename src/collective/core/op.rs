//! The operations that the machine asks its driver to carry out, and their results.

use super::cut::Cut;
use super::entry::Entry;
use super::plan::{BUFFERS, Plan, RELAYED_ROUNDS, SIGNALLED_ROUNDS};
use crate::fabric::{Atomic, Change};
use crate::reduce::Place;
use crate::trigger::{Addends, Buffer, Task};

/// Operations of which several may be in flight towards a host, so that they are only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counted {
    /// An outcome, a cut, or zeros for the next round's words.
    Push,
    /// A release.
    Notice,
    /// A reducer's share of an outcome.
    Outcome,
    /// A read of a piece of a contribution on that host.
    Read,
    /// Data that is relayed in a round; the turn identifies the round.
    Relayed { turn: u32 },
    /// An activation of a round; the turn identifies the round.
    Signalled { turn: u32 },
    /// A count of arrivals.
    Report,
    /// The tag (and data) of the contribution in a buffer.
    Tag { buffer: u32 },
}

const FIRST_SIGNALLED: usize = 4 + RELAYED_ROUNDS as usize;
const REPORT: usize = FIRST_SIGNALLED + SIGNALLED_ROUNDS as usize;
const FIRST_TAG: usize = REPORT + 1;

impl Counted {
    /// The tags, by buffer.
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
        Counted::Report,
        Self::TAGS[0],
        Self::TAGS[1],
        Self::TAGS[2],
    ];

    /// Returns its index in [`Counted::ALL`].
    #[inline]
    pub(super) fn index(self) -> usize {
        match self {
            Counted::Push => 0,
            Counted::Notice => 1,
            Counted::Outcome => 2,
            Counted::Read => 3,
            Counted::Relayed { turn } => 4 + turn as usize,
            Counted::Signalled { turn } => FIRST_SIGNALLED + turn as usize,
            Counted::Report => REPORT,
            Counted::Tag { buffer } => FIRST_TAG + buffer as usize,
        }
    }
}

/// Identifies an operation to the machine when it completes. At most one operation of a kind is in flight, except for
/// those that are only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Token {
    /// One of several counted operations towards a host, which may be this rank's own.
    Counted { what: Counted, host: u32 },
    /// Adds the arrived bit.
    Arrive,
    /// Takes a ticket in a large world.
    Ticket,
    /// Reads whether the round should have fired.
    Probe,
    /// Reads a peer's tag in that peer's memory.
    Look,
    /// Sets the closed bit of a word.
    Close,
    /// Adds the carried bit.
    Place,
    /// Clears the next round's words.
    Clear,
    /// Claims a segment to move.
    Claim,
    /// Counts segments that landed on this host.
    Done,
    /// Changes this rank's gate.
    Deposit,
    /// Changes what the worker claims or closes.
    Swap,
}

/// The code of the first counted kind.
const FIRST_COUNTED: u64 = 12;
const HOST_SHIFT: u32 = 8;

impl Token {
    /// Returns the number that a fabric carries for this token.
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

    /// Returns the token for a number that [`Token::code`] returned.
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

/// What a sleeping rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(crate) enum Awaited {
    /// A cut, or data.
    Outcome = 1,
    /// A free slot of the ring.
    Room = 2,
    /// A piece of a contribution.
    Piece = 3,
}

/// The data that an operation writes from this host to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PutData {
    /// `len` bytes of the data region, from an offset here to one there.
    Bytes { from: usize, to: usize, len: usize },
    /// Cells, to the same cells there.
    Cells { first: usize, count: usize },
}

/// An input of a reduction: a contribution, identified by its entry in the cut, or other data, taken as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addend {
    pub(crate) at: Place,
    pub(crate) entry: Option<Entry>,
}

/// The lists of an operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operands {
    /// The inputs of a reduction.
    pub(crate) inputs: Vec<Addend>,
    /// The words of a record.
    pub(crate) words: Vec<u64>,
    /// The entries of a host's part in a round.
    pub(crate) entries: Vec<Entry>,
}

impl Operands {
    /// Reserves the memory of the lists now.
    pub(crate) fn reserve(&mut self, plan: &Plan) {
        self.inputs.reserve(plan.most_sources());
        self.words.reserve(Cut::cells(plan.ranks));
        self.entries.reserve(plan.most_sealed());
    }
}

/// One operation. With its [`Operands`] it holds all that the driver needs. An operation with a token completes exactly
/// once; the others take effect at once, in the given order, before any later operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// Stores a cell on this host, with release order.
    Store { cell: usize, value: u64 },
    /// Raises a cell on this host to a value, if the cell holds less.
    Raise { cell: usize, value: u64 },
    /// Makes earlier stores visible to all ranks before later loads.
    Fence,
    /// Puts data on another host, then changes a cell there; either part may be missing.
    Put { host: u32, data: Option<PutData>, signal: Option<(usize, Change)>, token: Token },
    /// Zeroes cells. Completes when no later operation of any rank can see their former values.
    Clear { host: u32, first: usize, count: usize, token: Token },
    /// Runs an atomic on a cell; completes with the value before.
    Atomic { host: u32, cell: usize, atomic: Atomic, token: Token },
    /// Reads a piece of a contribution, from an offset there to one in staging memory.
    Read { host: u32, from: usize, len: usize, to: usize, token: Token },
    /// Reduces `len` bytes of its inputs, the contributions of a cut, to an offset of the data region. Ranks of this
    /// host may read the result as the outcome of `round`; if `round` is `None`, only this rank may read it.
    Combine { round: Option<u64>, inputs: u32, to: usize, len: usize },
    /// Averages `len` bytes of the first `models` inputs, adds the inputs after them, and divides by the number of
    /// ranks.
    Average { inputs: u32, models: u32, divisor: u32, to: usize, len: usize },
    /// Copies `len` bytes of the data region.
    Copy { from: usize, to: usize, len: usize },
    /// Writes its words into cells of this host, each cell below the one before, and then stores the round in a cell,
    /// with release order.
    Record { last: usize, words: u32, cell: usize, round: u64 },
    /// Wakes at most `most` ranks of this host that wait for `interest`; `u32::MAX` wakes all of them.
    Wake { most: u32, interest: Awaited },
    /// An operation of a program of triggered operations.
    Program(ProgramOp),
}

/// Operations that only programs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProgramOp {
    /// Carries out a reduction.
    Run(Task),
    /// Puts the contributions of its entries, in `pieces` pieces, into the buffer from which they are relayed in equal
    /// parts. `without_slot`: this host has no free slot for the next round.
    Seal { round: u64, entries: u32, initiator: Option<u32>, without_slot: bool, pieces: u32, parts: u8 },
    /// Sums data, and joins its labels, into a buffer: the outcome, or a partial sum in equal parts.
    Sum { round: u64, from: Addends, to: Buffer, parts: u8 },
    /// Asks the runner of the program, where one runs it in place of the ranks.
    Runner(RunnerOp),
}

/// Requests to the runner of a program, one for each of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RunnerOp {
    /// Queues a slot's operations for this round, with an empty gate.
    Arm { round: u64 },
    /// Tells all ranks that they may write to the round's slot.
    Ready { round: u64 },
    /// Takes the token of the round's gate; completes with 1, or with 0 if the gate is sealed.
    RevokeGateToken { round: u64, token: Token },
    /// Puts a deposit, with the data in a buffer, into the gate whose token was taken, and returns the token.
    Deposit { round: u64, gate: u64, buffer: u32, row: Option<u32>, weight: u16 },
    /// Signals this rank's arrival to the runner.
    SignalArrival { round: u64 },
}

// Each round in shared memory queues several operations.
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
