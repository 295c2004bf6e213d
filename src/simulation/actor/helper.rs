//! A rank's thread, which does what `executor/thread.rs` does, at any time.

use std::rc::Rc;

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Actor, Doing, Next, Step};
use crate::collective::core::Time;
use crate::collective::protocol::{Goal, Protocol};
use crate::executor::work::{Outlived, Polled, Rest, Shared, Work};
use crate::simulation::oracle::Oracle;

/// What a thread does; without a thread, nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Helper {
    /// No work is left to it.
    Idle,
    /// Gives its caller time to come back.
    HeadStart,
    /// Takes the engine as soon as its caller has given it up.
    Knocking,
    Working {
        /// Whether there was nothing to do at its last poll.
        idle: bool,
    },
    /// As working, but announced as asleep.
    Parked,
}

impl Actor {
    /// Returns whether the caller has the engine.
    pub(super) fn has_lease(&self) -> bool {
        matches!(
            self.doing,
            Doing::Arriving | Doing::Waiting { .. } | Doing::Parked { .. } | Doing::Testing { .. } | Doing::Releasing
        )
    }

    /// Returns whether the thread can do something when it is its turn.
    pub(in crate::internals::simulation) fn has_helper(&self) -> bool {
        match self.helper {
            _ if self.is_gone() => false,
            Helper::Idle => false,
            Helper::HeadStart => true,
            Helper::Knocking | Helper::Working { .. } | Helper::Parked => !self.has_lease(),
        }
    }

    pub(in crate::internals::simulation) fn helper_is_parked(&self) -> bool {
        self.helper == Helper::Parked && !self.is_gone()
    }

    pub(super) fn caller_is_due(&self, now: Time) -> bool {
        !self.habits.thread || self.has_lease() || self.caller_at.is_some_and(|time| time <= now)
    }

    pub(super) fn helper_is_due(&self, now: Time) -> bool {
        let first = |time: Time| time <= now && self.caller_at.is_none_or(|caller| time <= caller);
        match self.helper {
            _ if !self.has_helper() || self.has_lease() => false,
            // Something has woken it, or it is its caller's turn.
            Helper::Parked => !self.caller_is_due(now),
            _ => self.helper_at.is_some_and(first),
        }
    }

    /// Returns when either has its next turn, after one of them said when it wants its own.
    pub(super) fn next(&mut self, by_helper: bool, now: Time, next: Next) -> Next {
        let at = match next {
            Next::After(pause) => Some(now + pause),
            Next::Parked(until) => until,
            Next::Gone | Next::Broke => return next,
        };
        *(if by_helper { &mut self.helper_at } else { &mut self.caller_at }) = at;
        self.next_of_both(now)
    }

    pub(super) fn next_of_both(&self, now: Time) -> Next {
        let helper_at = self.helper_at.filter(|_| self.has_helper() && !self.has_lease());
        let first = self.caller_at.into_iter().chain(helper_at).min();
        match first {
            Some(time) if !self.is_parked() => Next::After(time.saturating_sub(now).max(1)),
            _ => Next::Parked(first),
        }
    }

    /// Leaves work to the thread, because the caller goes away.
    pub(super) fn leave_work(&mut self, now: Time, rng: &mut Xoshiro256PlusPlus) {
        if self.habits.thread && self.session.leaves_work(&mut self.engine) && self.helper == Helper::Idle {
            self.helper = Helper::HeadStart;
            self.helper_at = Some(now + rng.random_range(1..=self.habits.compute));
        }
    }

    /// Takes work back, because the caller has come to do it itself.
    pub(super) fn claim_work(&mut self, now: Time) {
        if self.helper == Helper::HeadStart {
            let begins = self.helper_at.is_some_and(|time| time <= now);
            self.helper = if begins { Helper::Knocking } else { Helper::Idle };
        }
    }

    /// Takes the engine for the caller; a thread that has it gives it up.
    pub(super) fn take_lease(&mut self, now: Time) {
        match self.helper {
            Helper::Idle | Helper::HeadStart | Helper::Knocking => return,
            Helper::Working { .. } => {}
            Helper::Parked => self.engine.towards(Goal::Arrival).rouse(),
        }
        self.met.interrupted += 1;
        // It continues when the caller has gone away.
        self.helper = if self.engine.left_undone().is_some() { Helper::HeadStart } else { Helper::Idle };
        self.helper_at = Some(now + 1);
    }

    /// Takes a turn of the thread.
    pub(super) fn help(&mut self, now: Time, rng: &mut Xoshiro256PlusPlus, oracle: &mut Rc<Oracle>) -> Step<Next> {
        match self.helper {
            Helper::Idle => {}
            Helper::HeadStart if self.has_lease() => self.helper = Helper::Knocking,
            Helper::HeadStart | Helper::Knocking => match self.engine.left_undone() {
                Some(_) => self.helper = Helper::Working { idle: false },
                None => self.rest(now, rng),
            },
            Helper::Parked => {
                self.engine.towards(Goal::Arrival).rouse();
                self.helper = Helper::Working { idle: false };
            }
            Helper::Working { idle: true } if !self.has_heard() => {
                match self.drive(now, oracle, |engine| engine.towards(Goal::Arrival).rest(now))? {
                    Rest::Awake => self.helper = Helper::Working { idle: false },
                    Rest::Asleep { until } => {
                        self.helper = Helper::Parked;
                        return Ok(self.parked(until));
                    }
                }
            }
            Helper::Working { .. } => match self.poll_towards(now, Goal::Arrival, oracle)? {
                Polled::Progress => {}
                Polled::Ready => {
                    self.met.helped += 1;
                    self.rest(now, rng);
                }
                Polled::Idle if self.has_heard() => match self.outlive(now, Goal::Arrival, oracle)? {
                    Outlived::Progress | Outlived::Ready => {}
                    Outlived::Pending => return Ok(Next::After(rng.random_range(100..5_000))),
                    // The caller meets it again.
                    Outlived::Lost => self.rest(now, rng),
                },
                Polled::Idle => {
                    self.helper = Helper::Working { idle: true };
                    if self.habits.hasty {
                        return self.help(now, rng, oracle);
                    }
                }
            },
        }
        Ok(self.pause(rng))
    }

    /// Ends the thread's work. A caller that stayed away until then has something to do again.
    fn rest(&mut self, now: Time, rng: &mut Xoshiro256PlusPlus) {
        self.helper = Helper::Idle;
        self.caller_at.get_or_insert_with(|| now + rng.random_range(1..=self.habits.compute));
    }
}
