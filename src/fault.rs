//! Deliberate mistakes, which prove that the tests find them. They exist only in this repository, in the profiles of
//! development and tests (`build.rs`).
//!
//! The table lists for each mistake its description, the part of the library that makes it, and the tests that must
//! find it.
//!
//! # How a mistake is chosen
//! `Fault::during` chooses a mistake for the work of a thread. A fabric or a collective that is made meanwhile then
//! keeps the mistake, whichever thread uses it later; a meeting makes the mistake during its own time. So tests with
//! mistakes run in parallel with others. The simulator, whose ranks share a thread, writes the mistake into the plans
//! of a world.
//!
//! In other builds nothing can be chosen: `Fault::is` is false at compile time, and the mistakes are compiled out.

use std::time::Duration;

use crate::rule::Mover;

/// The mistakes, by the part that makes them and the tests that must find them.
macro_rules! faults {
    ($($place:literal in $suite:ident { $($(#[$doc:meta])+ $fault:ident $(: $guarantee:ident)?,)+ })+) => {
        /// A mistake that the library makes on request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($($(#[$doc])+ $fault,)+)+
        }

        impl Fault {
            /// All mistakes.
            pub const EVERY: &'static [Fault] = &[$($(Fault::$fault,)+)+];

            /// Returns the part of the library that makes it, as a path below `src`.
            #[must_use]
            pub fn place(self) -> &'static str {
                match self {
                    $($(Fault::$fault)|+ => $place,)+
                }
            }

            /// Returns the promise that a test of the simulator must find broken.
            #[must_use]
            pub fn guarantee(self) -> Option<Guarantee> {
                match self {
                    $($($(Fault::$fault => Some(Guarantee::$guarantee),)?)+)+
                    _ => None,
                }
            }

            /// Returns the tests that must find it.
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
    "collective/buckets" in Handles {
        /// Leaves its buckets one after the other.
        FinishOneByOne,
        /// Does not notify its other buckets of the ends of the first one's last waits.
        TellNoLastEnds,
    }
    "collective/core" in Simulator {
        /// Publishes a carried contribution as a fresh one.
        CarriedAsFresh: G9,
        /// Admits an arrival to a round whose slot a rank may still read.
        ReuseSlotEarly: G4,
        /// Treats a late contribution as placed without adding its bit.
        ForgetCarriedBit: G1,
        /// Ends the grace with the word as it was last seen, instead of closing it.
        CloseWithoutWord: G2,
        /// Never announces that outcomes were released.
        SkipRelease: Liveness,
        /// Does not clear the words of the next round.
        SkipRearm: Liveness,
        /// Clears the words of the next round after ranks may have begun to use them.
        LateRearm: G5,
        /// Sometimes adds its bit again, as if the first addition had been lost.
        RepeatAtomic: Liveness,
        /// Places a late contribution before its tag has landed.
        PlaceBeforeTag: G1,
        /// Announces small data before it is in place.
        LandBeforeData: Data,
        /// In worlds of several words, closes by ticket without closing the words.
        TrustTicket: G2,
        /// Makes a carried contribution a round older than it is.
        WrongAge: G9,
        /// Counts the last segment without reducing it.
        SkipSegment: G2,
        /// Publishes a record and wakes no rank.
        ForgetWake: Liveness,
        /// Does not complete the claims of a dead rank.
        AbandonTheDead: Liveness,
        /// Fires a quorum with one arrival too few.
        MiscountQuorum: G5,
        /// Continues to wait for ranks that have left.
        ForgetLeavers: Liveness,
        /// Draws a rank that may have left, and allows no other rank to replace it.
        DrawnMayBeGone: Liveness,
        /// Fires a full round with its first arrival.
        FullAsUsual: G5,
        /// Drops a late contribution without counting it.
        DropUncounted: G1,
        /// Closes a round after half of its time.
        HastyDeadline: G5,
        /// Allows a slot to be reused while data written from it may still be read.
        ReleaseBeforeLanding: G2,
        /// Releases outcomes when they have landed, before the caller has read them.
        ReleaseOnLanding: G4,
        /// Forgets a contribution that must enter a full round with the next arrival.
        ForgetDeferred: G1,
        /// Publishes a weight of 1 instead of the given one.
        LoseWeight: G9,
        /// Releases outcomes and wakes no rank that waits for a free slot.
        ForgetWakeForRoom: Liveness,
        /// Reduces a segment without checking that all members have filled it.
        ReadUnfilled: Data,
        /// Fills a piece and wakes no rank that waits for it.
        ForgetWakeForPieces: Liveness,
        /// Makes a fallback read of contributions that may not have arrived.
        PullUnasked: G1,
        /// Accepts a round that lacks a share.
        TakeIncomplete: Data,
        /// Writes a contribution into a buffer whose earlier contribution others may still read.
        WriteWhatIsRead: G2,
        /// Writes a contribution into a buffer whose earlier contribution may not have been sent.
        WriteWhatIsSent: G2,
        /// Pushes an outcome to memory where an earlier one may still land.
        HandOutEarly: G2,
        /// Receives shares in memory where writes for earlier reducers may still land.
        ReceiveAmongOldShares: Data,
        /// Enters a round while ranks that left with the last one may still read it.
        OvertakeLeavers: G2,
        /// Leaves an absent member of a group with the model that it had.
        ForgetRegister: Data,
        /// Moves groups to which no member contributed.
        MoveIdleGroup: G2,
        /// Divides the sum of a group by its contributors.
        WrongDivisor: Data,
        /// Divides all ranks into groups, even those that have left.
        ScheduleByRank: Data,
        /// Averages the first model of each rank instead of its newest.
        HoldOldTag: Data,
        /// Counts a segment of a register that may not have landed everywhere.
        CountBeforeLanding: G2,
        /// Decides rounds as if none had come before, although the collective resumes from a checkpoint.
        ForgetBase: G5,
        /// Writes the model that a rank begins with into the register of another rank.
        BeginWithAnother: Data,
        /// Chooses a quorum by what its own clock says.
        LearnFromOwnClock: G5,
    }
    "collective/core/agreement/given" in Replays {
        /// Adds to a round a contribution that the given cut does not list, because its tag is there.
        TakeEarlyTag: G1,
        /// Sees all tags of a round, and writes no record for ranks that come after the tags are overwritten.
        ForgetGivenRecord: Liveness,
        /// Waits for the tags of a round whose outcome has come from another host.
        WaitForGoneTags: Liveness,
        /// Returns all rounds that have landed, even those after the given end.
        TakeMoreThanGiven: Liveness,
        /// Makes its own cut for a round whose cut was not given yet.
        SecondCutInAStep: G1,
        /// Fires a round without members of its cut whose contributions are not there.
        BucketWithoutMember: Liveness,
    }
    "collective/core/agreement/relay" in Simulator {
        /// Closes a leaf while writes for the round before the last may still land.
        SealEarly: G2,
        /// Closes a leaf while writes of hosts that left may still land.
        ForgetDeparted: G2,
        /// Reads the closed round before its tag is there.
        LookBeforeTag: G9,
        /// Takes the tags of a leaf before it is announced as closed.
        TakeBeforeClosing: G9,
        /// Does not note which tags it took.
        ForgetWhatWasTaken: G1,
        /// Counts late contributions as arrivals for the round that is open.
        CountLateAsFresh: G5,
        /// Overwrites an outcome that a rank reads which has left.
        ForgetReadersThatLeft: G2,
        /// Closes a leaf twice, and keeps only what it took last.
        CloseTwice: G9,
        /// Takes the last arrival of a rank only for its target.
        MissLateLeavers: Liveness,
        /// Tells the counter of one rank more than there are tags.
        CountBeforeTag: G5,
        /// Counts what hosts reported of the round before.
        CountOldReports: G5,
        /// Sends a report while an older one is under way to the same host.
        SendReportsTogether: Liveness,
        /// Chooses the counter of a round by its own number.
        CountForItself: Liveness,
        /// Activates no other host.
        ForgetForward: Liveness,
        /// Uses the areas of two rounds in turn.
        UseTwoAreas: G2,
        /// Shows its tag without waking the agent.
        ForgetToTellAgent: Liveness,
        /// Has an outcome, and wakes no rank of its host.
        ForgetToTellHost: Liveness,
        /// Says that an outcome has landed when its host's part is sealed.
        LandOnSealing: G2,
        /// Ends with its own rank, although ranks of its host are active.
        LeaveHostAlone: Liveness,
        /// Takes a host for gone when its lowest rank has left.
        LeaveWithAgent: Liveness,
        /// Adds the contributions of a host from the last rank to the first.
        AddHostBackwards: Data,
        /// Announces a free slot only after its leaf is closed again.
        SayRoomLate: Liveness,
        /// Starts rounds for whose outcomes some hosts have no free slot.
        StartWithoutRoom: G4,
        /// Has a free slot again, and notifies no host.
        ForgetRoom: Liveness,
        /// Treats the outcome as complete when its own rows have run.
        CompleteEarly: G1,
        /// Continues with a table that includes hosts that have left.
        KeepOldTable: Order,
        /// Passes on a lone contribution as if it were a sum.
        RelaySumOfOne: Data,
        /// Sums a part that it sent instead of the part that it keeps.
        SumWhatWasSent: Data,
        /// Adds its own data first, and then that of the others.
        AddOwnFirst: Data,
    }
    "collective/driver" in Simulator {
        /// Writes a record's round to another host before its entries.
        PublishBeforeEntries: G2,
        /// Writes a record to another host without its last entry.
        ShortRecord: Order,
        /// Carries out the signal of a write without its data.
        SignalWithoutData: Data,
        /// Takes a completion without reporting it.
        DropCompletion: Liveness,
        /// Clears a round's words without its ticket and its claims.
        ForgetClaims: Liveness,
        /// Counts the words of another host as cleared when the operation is posted.
        ClearUnawaited: Liveness,
    }
    "collective/engine" in Simulator {
        /// Sleeps without the poll of memory that must follow its announcement.
        SleepUnseen: Liveness,
        /// Sleeps without a limit, ignoring its timers.
        SleepThroughTimers: Liveness,
        /// Starts a helper thread's work without checking that there is work.
        HelpUnasked: G3,
        /// Gives a round up although living ranks hold claims in it.
        GiveUpEarly: G8,
    }
    "collective/session" in Simulator {
        /// Returns to the application and leaves no work to its helper thread.
        ForgetThread: Liveness,
        /// Gives its caller another buffer, although the caller has begun to write.
        ForgetBegun: Data,
        /// Writes the next contribution into the buffer of the last one.
        KeepBuffer: Data,
    }
    "collective/tickets" in Tickets {
        /// Waits for a full group although too few ranks are active.
        NoTail,
        /// Closes a group early by adding the free seats, whether or not another rank has arrived since.
        CloseByAdd,
        /// Writes into a record whose group is not over.
        ReuseRecord,
        /// Adds a lender without claiming its register.
        UnclaimedBridge,
        /// Releases a group when one segment of its data is moved.
        ReleaseUnmoved,
        /// Ends a group of one rank while the write of its cut is in flight.
        OverlookCut,
    }
    "trigger" in Simulator {
        /// Reads a gate without closing it, so a deposit may come in between.
        GateOff: Data,
        /// Signals a sum before it is complete.
        SignalBeforeData: Data,
        /// Forgets the last of an operation's signals.
        ForgetSignal: Liveness,
        /// Runs an operation with one input too few.
        StartShort: G5,
        /// Treats a gate that was closed for an earlier round as closed.
        OldGate: G1,
        /// Completes an outcome and wakes no rank.
        ForgetCall: Liveness,
    }
    "fabric/shm" in Conformance {
        /// Gives the signal of a put before it copies the data.
        SignalBeforeCopy,
        /// Copies whole words only.
        ForgetTail,
        /// Gives a signal and rings no doorbell.
        ForgetRing,
        /// Makes wakers that end no wait.
        ForgetWaker,
        /// Wakes one rank instead of all.
        WakeOne,
        /// Returns the bytes of the previous exchange.
        StaleExchange,
        /// Uses one mailbox for all exchanges, so that a fast rank overwrites what a slow one has not read.
        OneMailbox,
        /// Never checks whether the world has failed.
        IgnoreFailure,
        /// Frees memory after its owner has closed its endpoint, but others have not.
        FreeEarly,
    }
    "fabric/net" in Conformance {
        /// Changes a cell twice, as if a repeated message were processed again.
        DealTwice,
        /// Processes a put and wakes no rank that waits for it.
        ForgetBell,
    }
    "fabric/net" in Stepping {
        /// Acknowledges writes with immediate data when they are announced, before they have landed.
        AcknowledgeEarly,
        /// Gives the signal of several writes when the first has landed.
        SignalBeforeLastPart,
        /// Completes a read, or a write without a signal, before its last part.
        CompleteBeforeLastPart,
        /// Writes each header where the last one may still be read.
        ReuseHeaderSlot,
        /// Sends more messages than it has credits for.
        CreditTooEarly,
    }
    "bootstrap" in Meetings {
        /// Admits two processes as the same rank.
        AdmitTwice,
        /// Admits a rank with another world size.
        AdmitOtherSize,
        /// Starts at the deadline even if ranks are missing.
        GoWithoutTheMissing,
        /// Accepts any bytes as the introduction of a rank.
        GreetStrangers,
        /// Accepts a guest with a wrong seal.
        TrustAnyGuest,
        /// Accepts an answer with a wrong seal, or one for another guest.
        TrustAnyAnswer,
        /// Keeps the files of an earlier job in the folder.
        KeepOldFiles,
        /// Writes a file under its final name, so that others may read it half-written.
        WriteInPlace,
    }
    "board" in Boards {
        /// Publishes into a line for headers that a rank may still read.
        ReuseBoardLine,
        /// Publishes data into a slot that a rank may still read.
        ReuseBoardSlot,
        /// Never acknowledges what it has taken, unless it publishes.
        NeverAcknowledge,
        /// Takes the contents of a slot, published or not.
        TakeUnpublished,
        /// Takes a piece without comparing what it belongs to.
        CompareNothing,
        /// Overwrites a part of a message that was not taken.
        OverwriteLane,
        /// Takes the next message, ignoring its tag.
        TakeAnyTag,
    }
}

/// A promise that the simulator judges, with its name in `docs/semantics.md`, or what holds beside these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guarantee {
    /// Exactly once: a contribution enters one round, or is dropped and counted.
    G1,
    /// Agreement: all receivers see the same cut and the same bits.
    G2,
    /// No waiting: a round needs no call by a passive rank, and no rank works where nothing was handed in.
    G3,
    /// Bounded staleness: no slot is used again before every rank has released it.
    G4,
    /// Exact quorum: a round fires only when its rule says so.
    G5,
    /// Errors with names: a death fails later calls, and what had fired before it ends.
    G8,
    /// Complete outcomes: cuts say parts, ages, weights and the initiator as they were.
    G9,
    /// An outcome is the reduction of the contributions in its cut.
    Data,
    /// Cuts list contributions in the order of reduction.
    Order,
    /// Every rank comes to its end.
    Liveness,
}

impl Guarantee {
    /// The promise that a failure of the simulator names first. A panic is none: what it would have broken is not known.
    #[must_use]
    pub fn broken_by(what: &str) -> Option<Guarantee> {
        Some(match what.split(':').next()? {
            "G1" => Guarantee::G1,
            "G2" => Guarantee::G2,
            "G3" => Guarantee::G3,
            "G4" => Guarantee::G4,
            "G5" => Guarantee::G5,
            "G8" => Guarantee::G8,
            "G9" => Guarantee::G9,
            "data" => Guarantee::Data,
            "order" => Guarantee::Order,
            "liveness" => Guarantee::Liveness,
            _ => return None,
        })
    }
}

/// Tests that must find mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// Random schedules: `tests/simulation.rs`.
    Simulator,
    /// The same schedules, recorded and replayed: `tests/simulation.rs`.
    Replays,
    /// The requirements on every fabric: `tests/conformance.rs`.
    Conformance,
    /// Events of a network in an order that the test chooses: `fabric/net/stepping_tests.rs`.
    Stepping,
    /// Meetings in one process: `bootstrap/store/meeting_tests.rs`.
    Meetings,
    /// Synchronous collectives in random orders: `board/tests.rs`.
    Boards,
    /// Random orders of operations: `collective/tickets/tests.rs`.
    Tickets,
    /// Programs whose ranks take turns: `tests/handles.rs`.
    Handles,
}

impl Suite {
    /// Returns the mistakes that it must find.
    pub fn faults(self) -> impl Iterator<Item = Fault> {
        Fault::EVERY.iter().copied().filter(move |fault| fault.suite() == self)
    }
}

/// The point at which a process kills itself, to prove that others complete its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crash {
    /// An operation is claimed, and has had no effect.
    AfterClaim,
    /// Half of its output is written.
    InsideOperation,
    /// Its output is written and some of its signals are given.
    BetweenSignals,
}

impl Crash {
    /// All crash points.
    pub const EVERY: [Crash; 3] = [Crash::AfterClaim, Crash::InsideOperation, Crash::BetweenSignals];
}

/// A crash, and the number of times that its point is passed before it happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fuse {
    place: Crash,
    left: u64,
}

impl Fuse {
    #[cfg(earlybird_faults)]
    pub(crate) fn new(place: Crash, left: u64) -> Self {
        Fuse { place, left }
    }

    /// Kills this process if this is the point and the count is reached.
    pub(crate) fn pass(fuse: &mut Option<Fuse>, place: Crash) {
        if !cfg!(earlybird_faults) {
            return;
        }
        if let Some(fuse) = fuse.as_mut().filter(|fuse| fuse.place == place) {
            if fuse.left == 0 {
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
            fuse.left = fuse.left.saturating_sub(1);
        }
    }

    /// Returns whether the next pass of this point is the last.
    pub(crate) fn is_due(fuse: Option<Fuse>, place: Crash) -> bool {
        cfg!(earlybird_faults) && fuse.is_some_and(|fuse| fuse.place == place && fuse.left == 0)
    }
}

impl Fault {
    /// Returns the mover that can make a mistake of the simulator; `None` if both can.
    #[must_use]
    pub fn mover(self) -> Option<Mover> {
        match self {
            Fault::GateOff
            | Fault::SignalBeforeData
            | Fault::ForgetSignal
            | Fault::StartShort
            | Fault::OldGate
            | Fault::ForgetCall
            | Fault::SealEarly
            | Fault::ForgetDeparted
            | Fault::LookBeforeTag
            | Fault::TakeBeforeClosing
            | Fault::ForgetWhatWasTaken
            | Fault::CountLateAsFresh
            | Fault::ForgetReadersThatLeft
            | Fault::CloseTwice
            | Fault::MissLateLeavers
            | Fault::CountBeforeTag
            | Fault::CountOldReports
            | Fault::SendReportsTogether
            | Fault::CountForItself
            | Fault::ForgetForward
            | Fault::UseTwoAreas
            | Fault::ForgetToTellAgent
            | Fault::ForgetToTellHost
            | Fault::LandOnSealing
            | Fault::LeaveHostAlone
            | Fault::LeaveWithAgent
            | Fault::AddHostBackwards
            | Fault::SayRoomLate
            | Fault::StartWithoutRoom
            | Fault::ForgetRoom
            | Fault::CompleteEarly
            | Fault::KeepOldTable
            | Fault::RelaySumOfOne
            | Fault::SumWhatWasSent
            | Fault::AddOwnFirst
            | Fault::GiveUpEarly
            | Fault::AbandonTheDead => Some(Mover::Tree),
            Fault::MiscountQuorum
            | Fault::LearnFromOwnClock
            | Fault::ForgetLeavers
            | Fault::DrawnMayBeGone
            | Fault::ForgetBase
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

    /// Returns whether the mistake shows only when a rank dies.
    #[must_use]
    pub fn needs_a_death(self) -> bool {
        matches!(self, Fault::AbandonTheDead | Fault::GiveUpEarly)
    }

    /// Returns whether `chosen` is this mistake; false where no mistake is compiled in.
    #[inline(always)]
    pub(crate) fn is(self, chosen: Option<Fault>) -> bool {
        cfg!(earlybird_faults) && chosen == Some(self)
    }

    /// Returns the mistake that this thread has chosen.
    #[cfg(earlybird_faults)]
    pub(crate) fn chosen() -> Option<Fault> {
        CHOSEN.get()
    }

    /// Returns the mistake that this thread has chosen.
    #[cfg(not(earlybird_faults))]
    pub(crate) fn chosen() -> Option<Fault> {
        None
    }

    /// Returns whether this thread has chosen this mistake.
    pub(crate) fn is_chosen(self) -> bool {
        self.is(Fault::chosen())
    }

    /// Runs `work` with another thread's choice: `fault` is what that thread had
    /// [chosen](Fault::chosen).
    #[cfg(earlybird_faults)]
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

    /// Runs `work`; there is no choice to pass on.
    #[cfg(not(earlybird_faults))]
    pub(crate) fn passed_on<R>(_: Option<Fault>, work: impl FnOnce() -> R) -> R {
        work()
    }

    /// Returns how long a test waits for an event: a shorter time with a mistake, which may prevent the event.
    pub(crate) fn patience(usual: Duration) -> Duration {
        const WITH_A_FAULT: Duration = Duration::from_secs(1);
        if Fault::chosen().is_some() { usual.min(WITH_A_FAULT) } else { usual }
    }
}

#[cfg(earlybird_faults)]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    #[cfg(earlybird_faults)]
    use crate::fabric::RawAccess;

    #[test]
    fn each_part_makes_some() {
        let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
        Fault::EVERY.iter().for_each(|fault| *parts.entry(fault.place()).or_default() += 1);
        println!("{parts:?}");
        let expected = [
            "board",
            "bootstrap",
            "collective/buckets",
            "collective/core",
            "collective/core/agreement/given",
            "collective/core/agreement/relay",
            "collective/driver",
            "collective/engine",
            "collective/session",
            "collective/tickets",
            "fabric/net",
            "fabric/shm",
            "trigger",
        ];
        assert!(parts.keys().eq(&expected), "{parts:?}");
        assert!(parts.values().all(|&count| count >= 2), "{parts:?}");
        assert!(Fault::EVERY.len() >= 50, "only {}", Fault::EVERY.len());
    }

    #[cfg(earlybird_faults)]
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
