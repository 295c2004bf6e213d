//! Work that an executor carries on, step by step.
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::time::Duration;

use crate::error::{Ranks, Result};
use crate::time::Time;

/// What one poll led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// Something was done.
    Progress,
    /// There is nothing to do now.
    Idle,
    /// The goal is reached.
    Ready,
}

/// What came of the attempt to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// There is something to do after all.
    Awake,
    /// The sleep is announced: until a wake-up, or until a time if there is one.
    Asleep {
        /// When to poll again although nothing happened.
        until: Option<Time>,
    },
}

/// What became of work in which ranks had a hand that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlived {
    /// Something was done.
    Progress,
    /// The goal is reached without them.
    Ready,
    /// Ranks that live still have something of it in hand.
    Pending,
    /// It cannot be done without them.
    Lost,
}

/// How often work is polled before the clock is read again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks {
    pub(crate) times: u32,
    /// Whether the processor is to pause in between: polls read memory, and nothing else.
    pub(crate) pauses: bool,
}

/// Looks of a rank that has its core to itself.
const LOOKS: u32 = 16;

impl Looks {
    /// A rank that `yields` shares its core with others, of which the one that is waited for may need it: it offers the core
    /// after each look. Looks that read memory alone are short, and the processor `pauses` in between.
    pub(crate) fn new(yields: bool, pauses: bool) -> Self {
        Looks { times: if yields { 1 } else { LOOKS }, pauses: pauses && !yields }
    }
}

/// Work towards a goal. It reads no clock, and does not sleep but in [`Work::sleep`]: its executor does, or a simulator
/// in the executor's place.
pub(crate) trait Work {
    /// Whether polls make use of the time.
    fn needs_time(&self) -> bool;

    /// How often to poll before the clock is read again; `yields`: the core is needed by others.
    fn looks(&self, yields: bool) -> Looks;

    /// Does one thing.
    ///
    /// # Errors
    /// An operation that failed.
    fn poll(&mut self, now: Time) -> Result<Polled>;

    /// From now on it is polled all the time, until the goal is reached or the executor gives up.
    fn begin(&mut self);

    /// Whether a round that was closed here has landed, so that [`Work::time`] is to be told the time. `polled` is the
    /// earliest time at which this rank can have closed one.
    fn wants_time(&mut self, polled: Time) -> bool;

    /// Says what time it is, if [`Work::wants_time`] asked for that.
    fn time(&mut self, now: Time);

    /// When it wants to be polled although nothing happens.
    fn next_timer(&self) -> Option<Time>;

    /// Until there is nothing left to do, polls also look for what others left undone.
    fn search(&mut self);

    /// Does what there is to do now, also what others left undone. Whether the goal is reached.
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

    /// Announces a sleep and looks once more: what happens from the announcement on ends the sleep.
    ///
    /// # Errors
    /// As [`Work::poll`].
    fn rest(&mut self, now: Time) -> Result<Rest>;

    /// Sleeps, as announced.
    fn sleep(&mut self, at_most: Duration);

    /// Takes the announcement back.
    fn rouse(&mut self);

    /// Leaves the announced sleep to the helper thread, which sleeps for others too and lets go of this meanwhile.
    /// Fails if the sleep is over already.
    fn delegate(&mut self) -> bool;

    /// The ranks without which it does not go on.
    fn missing(&self) -> Ranks;

    /// Whether it can never go on without one of these that has left.
    fn needs_missing(&self) -> bool {
        false
    }

    /// A rank died.
    fn hear_of(&mut self, dead: u32);

    /// Does one thing towards the goal in place of the dead, or says how it stands.
    ///
    /// # Errors
    /// As [`Work::poll`].
    fn outlive(&mut self, now: Time) -> Result<Outlived>;
}

/// What its owner and a thread carry on by turns.
pub(crate) trait Shared: Work + Send + Debug + 'static {
    /// The same, working towards what a thread can carry on. Nothing if the owner has what it wants or can take it, and no
    /// other rank waits for what was decided here.
    fn left_undone(&mut self) -> Option<&mut Self>;

    /// Whether the owner can take what it wants, also while other ranks still need the work.
    fn has_result(&self) -> bool;

    /// Whether a sleep was delegated and is not over.
    fn is_asleep(&self) -> bool;
}
