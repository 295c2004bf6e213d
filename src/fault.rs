//! Deliberate mistakes, to prove that the tests find them. Only with the feature `faults`.
//!
//! The table below says of each mistake what it is, which part of the library makes it, and which tests have to find it.
//!
//! # How a mistake is chosen
//! `Fault::during` chooses one for what a thread does in the meantime. A fabric or a collective that is made then keeps
//! the mistake, whichever thread uses it later; a meeting and a broadcast make it while they last. So tests with
//! mistakes run beside others. The simulator, whose ranks share a thread, writes the mistake into the plans of a world.
//!
//! Without the feature nothing can be chosen: `Fault::is` is false at compile time, and the mistakes are not there.

use std::time::Duration;

use crate::rule::Mover;

/// The mistakes, by the part that makes them and the tests that have to find them.
macro_rules! faults {
    ($($place:literal in $suite:ident { $($(#[$doc:meta])+ $fault:ident,)+ })+) => {
        /// A mistake that the library makes on request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($($(#[$doc])+ $fault,)+)+
        }

        impl Fault {
            /// All of them.
            pub const EVERY: &'static [Fault] = &[$($(Fault::$fault,)+)+];

            /// The part of the library that makes it, as its path below `src`.
            #[must_use]
            pub fn place(self) -> &'static str {
                match self {
                    $($(Fault::$fault)|+ => $place,)+
                }
            }

            /// The tests that have to find it.
            #[must_use]
            pub fn suite(self) -> Suite {
                match self {
                    $($(Fault::$fault)|+ => Suite::$suite,)+
                }
            }
        }
    };
}

faults! {
    "collective/core" in Simulator {
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
        /// Enters a round while those who left with the last one may still read that.
        OvertakeLeavers,
    }
    "collective/driver" in Simulator {
        /// Writes a record's round to another host before its entries.
        PublishBeforeEntries,
        /// Writes a record to another host without its last entry.
        ShortRecord,
        /// Carries out the signal of a write without its data.
        SignalWithoutData,
        /// Takes a completion in passing, and tells nobody.
        DropCompletion,
        /// Clears a round's words without its ticket and its claims.
        ForgetClaims,
        /// Counts the words of another host as cleared when that is posted.
        ClearUnawaited,
    }
    "collective/engine" in Simulator {
        /// Sleeps without the look that comes behind its announcement.
        SleepUnseen,
        /// Sleeps for however long, whatever its timers say.
        SleepThroughTimers,
        /// Has a thread set to work without looking whether anything is left to it.
        HelpUnasked,
        /// Gives a round up although ranks that live have something of it in hand.
        GiveUpEarly,
    }
    "collective/session" in Simulator {
        /// Goes away, and leaves nothing to its thread.
        ForgetThread,
        /// Gives its caller another buffer, whatever was written into the one before.
        ForgetBegun,
        /// Writes the next contribution where the last one is.
        KeepBuffer,
    }
    "trigger" in Simulator {
        /// Takes what is in a gate without closing it, so a deposit may come in between.
        GateOff,
        /// Signals that a sum is there before it is.
        SignalBeforeData,
        /// Forgets the last of an operation's signals.
        ForgetSignal,
        /// Runs an operation with an input too few.
        StartShort,
        /// Takes a gate that was closed for an earlier round for closed.
        OldGate,
        /// Completes an outcome and wakes nobody.
        ForgetCall,
    }
    "fabric/shm" in Conformance {
        /// Gives the signal of a put before it copies the data.
        SignalBeforeCopy,
        /// Copies whole words only.
        ForgetTail,
        /// Gives a signal and rings no bell.
        ForgetRing,
        /// Makes wakers that end no wait.
        ForgetWaker,
        /// Wakes one rank where all were to be woken.
        WakeOne,
        /// Hands out what ranks gave to the exchange before.
        StaleExchange,
        /// Uses one mailbox for all exchanges, so that a fast rank overwrites what a slow one has not read.
        OneMailbox,
        /// Never looks whether the world has failed.
        IgnoreFailure,
        /// Gives memory back when its owner has closed its endpoint, and others have not.
        FreeEarly,
    }
    "fabric/ofi" in Conformance {
        /// Changes a cell twice, as if a message had come again and nobody had counted.
        DealTwice,
        /// Deals with a put and wakes nobody who waits for it.
        ForgetBell,
    }
    "fabric/ofi" in Stepping {
        /// Acknowledges marked writes when they are announced, and not when they have landed.
        AcknowledgeEarly,
        /// Gives the signal of marked writes when the first has landed.
        SignalBeforeLastPart,
        /// Completes a read, or a write without a signal, before its last part.
        CompleteBeforeLastPart,
        /// Writes each header where the last one may still be read.
        ReuseHeaderSlot,
        /// Sends more messages than the window has room for.
        CreditTooEarly,
    }
    "bootstrap" in Meetings {
        /// Lets two processes in as the same rank.
        AdmitTwice,
        /// Lets a rank in that was told another world size.
        AdmitOtherSize,
        /// Begins at the deadline, whoever is missing.
        GoWithoutTheMissing,
        /// Takes whatever is said for the introduction of a rank.
        GreetStrangers,
        /// Believes a guest whose seal is wrong.
        TrustAnyGuest,
        /// Believes an answer whose seal is wrong, or that was meant for another.
        TrustAnyAnswer,
        /// Leaves in the folder what an earlier job has left there.
        KeepOldFiles,
        /// Writes a file where others may read it half written.
        WriteInPlace,
    }
    "world" in Broadcasts {
        /// Returns from a broadcast at the root while its memory may still be read.
        BroadcastWithoutBarrier,
        /// Broadcasts without a look at the lengths.
        BroadcastAnyLength,
    }
}

/// Tests that have to find mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// Random schedules: `tests/simulation.rs`.
    Simulator,
    /// What every fabric must do: `tests/conformance.rs`.
    Conformance,
    /// Events of libfabric in an order of the test's own: `fabric/ofi/stepping_tests.rs`.
    Stepping,
    /// Meetings in one process: `bootstrap/store/meeting_tests.rs`.
    Meetings,
    /// Broadcasts in one process: `world/tests.rs`.
    Broadcasts,
}

impl Suite {
    /// What it has to find.
    pub fn faults(self) -> impl Iterator<Item = Fault> {
        Fault::EVERY.iter().copied().filter(move |fault| fault.suite() == self)
    }
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
    /// Of those of the simulator: the mover that can make it; nothing if both can.
    #[must_use]
    pub fn mover(self) -> Option<Mover> {
        match self {
            Fault::GateOff
            | Fault::SignalBeforeData
            | Fault::ForgetSignal
            | Fault::StartShort
            | Fault::OldGate
            | Fault::ForgetCall
            | Fault::GiveUpEarly
            | Fault::AbandonTheDead => Some(Mover::Tree),
            Fault::MiscountQuorum
            | Fault::ForgetLeavers
            | Fault::DrawnMayBeGone
            | Fault::FullAsUsual
            | Fault::DropUncounted
            | Fault::HastyDeadline
            | Fault::ReleaseOnLanding
            | Fault::ForgetDeferred
            | Fault::LoseWeight
            | Fault::ForgetWakeForRoom
            | Fault::SleepUnseen
            | Fault::SleepThroughTimers
            | Fault::HelpUnasked
            | Fault::ForgetThread
            | Fault::KeepBuffer => None,
            _ => Some(Mover::Cut),
        }
    }

    /// Whether it shows only when somebody dies.
    #[must_use]
    pub fn needs_a_death(self) -> bool {
        matches!(self, Fault::AbandonTheDead | Fault::GiveUpEarly)
    }

    /// Whether `chosen` is this one. Never, when faults are not compiled in.
    #[inline(always)]
    pub(crate) fn is(self, chosen: Option<Fault>) -> bool {
        cfg!(feature = "faults") && chosen == Some(self)
    }

    /// What this thread has chosen.
    #[cfg(feature = "faults")]
    pub(crate) fn chosen() -> Option<Fault> {
        CHOSEN.get()
    }

    /// What this thread has chosen.
    #[cfg(not(feature = "faults"))]
    pub(crate) fn chosen() -> Option<Fault> {
        None
    }

    /// Whether this thread has chosen this one.
    pub(crate) fn is_chosen(self) -> bool {
        self.is(Fault::chosen())
    }

    /// Does something as a thread that has chosen this, for one that was started by another: `fault` is what that one
    /// had [chosen](Fault::chosen).
    #[cfg(feature = "faults")]
    pub(crate) fn passed_on<R>(fault: Option<Fault>, work: impl FnOnce() -> R) -> R {
        struct Before(Option<Fault>);
        impl Drop for Before {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        let _before = Before(CHOSEN.replace(fault));
        work()
    }

    /// Does something; there is nothing to pass on.
    #[cfg(not(feature = "faults"))]
    pub(crate) fn passed_on<R>(_: Option<Fault>, work: impl FnOnce() -> R) -> R {
        work()
    }

    /// How long a test waits for what must come: not for long where a mistake may keep it away.
    pub(crate) fn patience(usual: Duration) -> Duration {
        const WITH_A_FAULT: Duration = Duration::from_secs(1);
        if Fault::chosen().is_some() { usual.min(WITH_A_FAULT) } else { usual }
    }
}

#[cfg(feature = "faults")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    #[cfg(feature = "faults")]
    use crate::fabric::RawAccess;

    #[test]
    fn each_part_makes_some() {
        let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
        Fault::EVERY.iter().for_each(|fault| *parts.entry(fault.place()).or_default() += 1);
        println!("{parts:?}");
        let expected = [
            "bootstrap",
            "collective/core",
            "collective/driver",
            "collective/engine",
            "collective/session",
            "fabric/ofi",
            "fabric/shm",
            "trigger",
            "world",
        ];
        assert!(parts.keys().eq(&expected), "{parts:?}");
        assert!(parts.values().all(|&count| count >= 2), "{parts:?}");
        assert!(Fault::EVERY.len() >= 50, "only {}", Fault::EVERY.len());
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_fault_is_chosen_for_a_thread_and_a_time() {
        let seen = Fault::ForgetTail.during(RawAccess::CRATE, || {
            let elsewhere = std::thread::spawn(Fault::chosen).join().unwrap();
            let inside = Fault::StaleExchange.during(RawAccess::CRATE, Fault::chosen);
            (Fault::chosen(), elsewhere, inside)
        });
        assert_eq!(seen, (Some(Fault::ForgetTail), None, Some(Fault::StaleExchange)));
        let unseen = Fault::unseen([Fault::ForgetTail, Fault::FreeEarly], RawAccess::CRATE, || {
            assert!(!Fault::ForgetTail.is_chosen());
        });
        assert_eq!((unseen, Fault::chosen()), (vec![Fault::FreeEarly], None));
    }
}
