//! Work that an executor does step by step.
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::time::Duration;

use crate::error::{Ranks, Result};
use crate::time::Time;

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// It did something.
    Progress,
    /// There is nothing to do now.
    Idle,
    /// The goal is reached.
    Ready,
}

/// The result of an attempt to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// There is something to do after all.
    Awake,
    /// The sleep is announced: until a wake-up, or until a time if there is one.
    Asleep {
        /// When to poll again even without an event.
        until: Option<Time>,
    },
}

/// How work ends if a rank that took part in it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlived {
    /// It did something.
    Progress,
    /// The goal is reached without the dead ranks.
    Ready,
    /// Living ranks have still claimed some of the work.
    Pending,
    /// The goal cannot be reached without the dead ranks.
    Lost,
}

/// How often work is polled before the clock is read again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Polls {
    pub(crate) times: u32,
    /// Whether the processor pauses in between: polls read only memory.
    pub(crate) pauses: bool,
}

/// The number of polls of a rank that has its core to itself.
const POLLS: u32 = 16;

impl Polls {
    /// Creates it. A rank that `yields` shares its core with others, and the one that is waited for may need it: it
    /// offers the core after each poll. Polls that read only memory are short, and the processor `pauses` in between.
    pub(crate) fn new(yields: bool, pauses: bool) -> Self {
        Polls { times: if yields { 1 } else { POLLS }, pauses: pauses && !yields }
    }
}

/// Work towards a goal. It reads no clock, and sleeps only in [`Work::sleep`]. Its executor does both, or a simulator
/// in the executor's place.
pub(crate) trait Work {
    /// Returns whether polls use the time.
    fn needs_time(&self) -> bool;

    /// Returns how often to poll before the clock is read again. `yields`: others need the core.
    fn polls(&self, yields: bool) -> Polls;

    /// Does one step.
    ///
    /// # Errors
    /// An operation failed.
    fn poll(&mut self, now: Time) -> Result<Polled>;

    /// Begins continuous polling, until the goal is reached or the executor gives up.
    fn begin(&mut self);

    /// Returns whether a round that was closed here has landed, so that [`Work::time`] must be called. `polled` is the
    /// earliest time at which this rank can have closed one.
    fn wants_time(&mut self, polled: Time) -> bool;

    /// Tells the time, if [`Work::wants_time`] asked for it.
    fn time(&mut self, now: Time);

    /// Returns when it must be polled even without an event.
    fn next_timer(&self) -> Option<Time>;

    /// Makes polls also search for what others left undone, until there is nothing left to do.
    fn search(&mut self);

    /// Does all that can be done now, including what others left undone. Returns whether the goal is reached.
    ///
    /// # Errors
    /// As [`Work::poll`].
    fn exhaust(&mut self, now: Time) -> Result<bool> {
        self.search();
        loop {
            match self.poll(now)? {
                Polled::Progress => {}
                Polled::Ready => return Ok(true),
                Polled::Idle => return Ok(false),
            }
        }
    }

    /// Announces a sleep and polls once more: an event after the announcement ends the sleep.
    ///
    /// # Errors
    /// As [`Work::poll`].
    fn rest(&mut self, now: Time) -> Result<Rest>;

    /// Sleeps, as announced.
    fn sleep(&mut self, at_most: Duration);

    /// Withdraws the announcement.
    fn rouse(&mut self);

    /// Delegates the announced sleep to the helper thread, which also sleeps for others, and without holding this work.
    /// Returns false if the sleep is over already.
    fn delegate(&mut self) -> bool;

    /// Returns the ranks without which it cannot continue.
    fn missing(&self) -> Ranks;

    /// Returns whether it can never continue if one of these ranks has left.
    fn needs_missing(&self) -> bool {
        false
    }

    /// Records that a rank died.
    fn hear_of(&mut self, dead: u32);

    /// Does one step towards the goal in place of the dead ranks, or returns the state of the work.
    ///
    /// # Errors
    /// As [`Work::poll`].
    fn outlive(&mut self, now: Time) -> Result<Outlived>;
}

/// Work that its owner and a thread do by turns.
pub(crate) trait Shared: Work + Send + Debug + 'static {
    /// Returns the work with a goal that a thread can pursue. `None` if the owner has what it wants or can take it, and
    /// no other rank waits for what was decided here.
    fn left_undone(&mut self) -> Option<&mut Self>;

    /// Returns whether the owner can take what it wants, even while other ranks still need the work.
    fn has_result(&self) -> bool;

    /// Returns whether a sleep was delegated and is not over.
    fn is_asleep(&self) -> bool;
}
