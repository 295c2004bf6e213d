//! Deliberate faults, to prove that the tests find them. Only with the feature `faults`.

use crate::collective::Mover;

/// A mistake that the protocol makes on request.
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
    /// Does not clear the words of the next round.
    SkipRearm,
    /// Clears the words of the next round after everybody may use them.
    LateRearm,
    /// Adds its bit again now and then, as if the first time had got lost.
    RepeatAtomic,
    /// Places a late contribution before its tag is known to have landed.
    PlaceBeforeTag,
    /// Says that small data is in place before it is.
    LandBeforeData,
    /// In worlds of several words, closes by ticket without closing the words.
    TrustTicket,
    /// Makes what is carried a round older than it is.
    WrongAge,
    /// Counts the last segment without moving it.
    SkipSegment,
    /// Hands out a record and wakes nobody.
    ForgetWake,
    /// Takes what is in a gate without closing it, so a deposit may come in between.
    GateOff,
    /// Signals that a sum is there before it is.
    SignalBeforeData,
    /// Forgets the last of an operation's signals.
    ForgetSignal,
    /// Leaves what a dead rank had claimed undone.
    AbandonTheDead,
    /// Fires a quorum with an arrival too few.
    MiscountQuorum,
    /// Goes on waiting for those who left.
    ForgetLeavers,
    /// Draws a rank that may have left, and nobody stands in for it.
    DrawnMayBeGone,
    /// Fires a full round with its first arrival.
    FullAsUsual,
    /// Drops a late contribution without counting it.
    DropUncounted,
    /// Closes a round when half of its time is over.
    HastyDeadline,
    /// Lets a slot be used again while what was written from it may still be read.
    ReleaseBeforeLanding,
    /// Releases outcomes as soon as they have landed, and before anybody has read them.
    ReleaseOnLanding,
    /// Forgets what was to enter a full round with the next arrival.
    ForgetDeferred,
    /// Shows a weight of 1, whatever was given.
    LoseWeight,
    /// Releases outcomes and wakes nobody who waits for room.
    ForgetWakeForRoom,
    /// Reduces a segment without looking whether everybody has filled it.
    ReadUnfilled,
    /// Fills a piece and wakes nobody who waits for it.
    ForgetWakeForPieces,
    /// Makes a round for itself from contributions that may not have been handed in.
    PullUnasked,
    /// Takes a round of which a share has not come.
    TakeIncomplete,
    /// Writes a contribution where others may still read the one before.
    WriteWhatIsRead,
    /// Writes a contribution where the one before may not have been sent.
    WriteWhatIsSent,
    /// Hands a round out where what was handed out before may still land.
    HandOutEarly,
    /// Receives shares where writes to the shares of earlier homes may still land.
    ReceiveAmongOldShares,
}

/// Where a process kills itself, to prove that others finish what it had in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crash {
    /// An operation is claimed, and nothing of it has happened.
    AfterClaim,
    /// Half of its output is written.
    InsideOperation,
    /// Its output is written and some of its signals are given.
    BetweenSignals,
}

impl Crash {
    /// All of them.
    pub const EVERY: [Crash; 3] = [Crash::AfterClaim, Crash::InsideOperation, Crash::BetweenSignals];
}

/// A crash, and how often its place is passed before it happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fuse {
    place: Crash,
    left: u64,
}

impl Fuse {
    #[cfg(feature = "faults")]
    pub(crate) fn new(place: Crash, left: u64) -> Self {
        Fuse { place, left }
    }

    /// Kills this process if this is the place and the time.
    pub(crate) fn pass(fuse: &mut Option<Fuse>, place: Crash) {
        if !cfg!(feature = "faults") {
            return;
        }
        if let Some(fuse) = fuse.as_mut().filter(|fuse| fuse.place == place) {
            if fuse.left == 0 {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
            fuse.left = fuse.left.saturating_sub(1);
        }
    }

    /// Whether the next passing of this place is the last.
    pub(crate) fn is_due(fuse: Option<Fuse>, place: Crash) -> bool {
        cfg!(feature = "faults") && fuse.is_some_and(|fuse| fuse.place == place && fuse.left == 0)
    }
}

impl Fault {
    /// All of them.
    pub const EVERY: [Fault; 37] = [
        Fault::CarriedAsFresh,
        Fault::ReuseSlotEarly,
        Fault::ForgetCarriedBit,
        Fault::CloseWithoutWord,
        Fault::SkipRelease,
        Fault::SkipRearm,
        Fault::LateRearm,
        Fault::RepeatAtomic,
        Fault::PlaceBeforeTag,
        Fault::LandBeforeData,
        Fault::TrustTicket,
        Fault::WrongAge,
        Fault::SkipSegment,
        Fault::ForgetWake,
        Fault::GateOff,
        Fault::SignalBeforeData,
        Fault::ForgetSignal,
        Fault::AbandonTheDead,
        Fault::MiscountQuorum,
        Fault::ForgetLeavers,
        Fault::DrawnMayBeGone,
        Fault::FullAsUsual,
        Fault::DropUncounted,
        Fault::HastyDeadline,
        Fault::ReleaseBeforeLanding,
        Fault::ReleaseOnLanding,
        Fault::ForgetDeferred,
        Fault::LoseWeight,
        Fault::ForgetWakeForRoom,
        Fault::ReadUnfilled,
        Fault::ForgetWakeForPieces,
        Fault::PullUnasked,
        Fault::TakeIncomplete,
        Fault::WriteWhatIsRead,
        Fault::WriteWhatIsSent,
        Fault::HandOutEarly,
        Fault::ReceiveAmongOldShares,
    ];

    /// The mover that can make it; nothing if both can.
    #[must_use]
    pub fn mover(self) -> Option<Mover> {
        match self {
            Fault::GateOff | Fault::SignalBeforeData | Fault::ForgetSignal | Fault::AbandonTheDead => Some(Mover::Tree),
            Fault::MiscountQuorum
            | Fault::ForgetLeavers
            | Fault::DrawnMayBeGone
            | Fault::FullAsUsual
            | Fault::DropUncounted
            | Fault::HastyDeadline
            | Fault::ReleaseOnLanding
            | Fault::ForgetDeferred
            | Fault::LoseWeight
            | Fault::ForgetWakeForRoom => None,
            _ => Some(Mover::Cut),
        }
    }

    /// Whether it shows only when somebody dies.
    #[must_use]
    pub fn needs_a_death(self) -> bool {
        self == Fault::AbandonTheDead
    }

    /// Whether `chosen` is this one. Never, when faults are not compiled in.
    #[inline(always)]
    pub(crate) fn is(self, chosen: Option<Fault>) -> bool {
        cfg!(feature = "faults") && chosen == Some(self)
    }
}
