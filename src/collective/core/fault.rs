//! Deliberate faults, to prove that the tests find them. Only with the feature `faults`.

/// A mistake that the protocol core makes on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Counts a carried contribution as a fresh one when the cut is written down.
    CarriedAsFresh,
    /// Lets an arrival into a round whose slot somebody may still read.
    ReuseSlotEarly,
    /// Believes that a late contribution was placed without adding its bit.
    ForgetCarriedBit,
    /// Ends the grace from what was last seen of the word instead of closing it.
    CloseWithoutWord,
    /// Never says that outcomes were released.
    SkipRelease,
}

impl Fault {
    /// All of them.
    pub const EVERY: [Fault; 5] = [
        Fault::CarriedAsFresh,
        Fault::ReuseSlotEarly,
        Fault::ForgetCarriedBit,
        Fault::CloseWithoutWord,
        Fault::SkipRelease,
    ];
}
