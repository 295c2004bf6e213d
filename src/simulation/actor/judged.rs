//! The steps of a rank, judged by the oracle.

use std::rc::Rc;

use super::{Actor, Step, Trouble};
use crate::collective::core::{Effort, Op, ProgramOp, Time, Token};
use crate::collective::engine::Engine;
use crate::collective::protocol::{Goal, Protocol};
use crate::executor::work::{Outlived, Polled, Work};
use crate::rule::Absent;
use crate::simulation::coverage::operation;
use crate::simulation::oracle::Oracle;

impl Actor {
    /// Does one operation of the driver, and judges what landed by it.
    pub(super) fn step(&mut self, now: Time, effort: Effort, oracle: &mut Rc<Oracle>) -> Step<bool> {
        self.drive(now, oracle, |engine| engine.step(now, effort))
    }

    /// As `step`, while an arrival is in progress.
    pub(super) fn advance(&mut self, now: Time, effort: Effort, oracle: &mut Rc<Oracle>) -> Step<bool> {
        self.drive(now, oracle, |engine| engine.advance(now, effort))
    }

    /// As `step`, by a poll of the caller.
    pub(super) fn poll(&mut self, now: Time, oracle: &mut Rc<Oracle>) -> Step<Polled> {
        self.poll_towards(now, self.session.goal(), oracle)
    }

    pub(super) fn poll_towards(&mut self, now: Time, goal: Goal, oracle: &mut Rc<Oracle>) -> Step<Polled> {
        let polled = self.drive(now, oracle, |engine| engine.towards(goal).poll(now))?;
        self.tell_time(now);
        Ok(polled)
    }

    /// Does one step in place of dead ranks.
    pub(super) fn outlive(&mut self, now: Time, goal: Goal, oracle: &mut Rc<Oracle>) -> Step<Outlived> {
        let work = self.engine.towards(goal);
        self.heard.iter().for_each(|&dead| work.hear_of(dead));
        // One step at a time, so that other ranks get turns in between.
        self.drive(now, oracle, |engine| engine.towards(goal).outlive(now))
    }

    /// Does one step with the engine.
    pub(super) fn drive<R>(
        &mut self,
        now: Time,
        oracle: &mut Rc<Oracle>,
        work: impl FnOnce(&mut Engine) -> crate::Result<R>,
    ) -> Step<R> {
        if let Some(op) = self.engine.machine().peek_op() {
            self.judge_claim(op)?;
            self.performed |= operation(op);
        }
        let done = match (work(&mut self.engine), self.engine.machine().problem()) {
            (_, Some(problem)) => return Err(Trouble::Violation(format!("G9: {problem}"))),
            (Err(_), None) => return Err(Trouble::Broke),
            (Ok(done), None) => done,
        };
        let machine = self.engine.machine();
        if matches!(machine.plan().absent, Absent::Drop | Absent::Hold) && self.dropped < machine.stats().dropped {
            self.dropped += 1;
            Rc::make_mut(oracle).drops(machine.plan().me, machine.taken() + 1)?;
        }
        while self.judged < machine.landed() {
            self.judged += 1;
            let (cut, at) = (machine.cut(self.judged), machine.outcome_at(self.judged));
            let data = self.memory.outcome(at, machine.plan().bytes);
            Rc::make_mut(oracle).lands(machine.plan().me, cut, data, now)?;
        }
        Ok(done)
    }

    pub(super) fn tell_time(&mut self, now: Time) {
        if self.engine.wants_time(now) {
            self.engine.time(now);
        }
    }

    /// Judges a claim. Other ranks do not wait for a rank that has nothing handed in, so it may hold no claim.
    fn judge_claim(&self, op: &Op) -> Step<()> {
        let claims = matches!(
            op,
            Op::Program(ProgramOp::Run(_))
                | Op::Combine { round: Some(_), .. }
                | Op::Average { .. }
                | Op::Atomic { token: Token::Claim | Token::Swap, .. }
        );
        let takes_part = self.session.is_outstanding() || self.is_leaving();
        match claims && !takes_part {
            true => {
                Err(format!("G3: rank {} is at work with nothing handed in: {}", self.rank(), self.summary()).into())
            }
            false => Ok(()),
        }
    }

    /// Judges that a round that it holds reads as it did when any rank first saw it.
    pub(super) fn judge_held(&self, round: u64, oracle: &Oracle) -> Step<()> {
        let (at, bytes) = self.session.place(round);
        Ok(oracle.holds(self.rank(), self.session.cut(round), self.memory.outcome(at, bytes))?)
    }

    /// Judges that the ranks that it reports as missing can be missing.
    pub(super) fn judge_missing(&mut self) -> Step<()> {
        let rank = self.rank();
        let missing = self.pursue().missing().0;
        match missing.contains(&rank) {
            true => Err(format!("G8: rank {rank} misses {missing:?}: {}", self.summary()).into()),
            false => Ok(()),
        }
    }

    /// Judges that it may give up, because a rank that took part in its round is dead.
    pub(super) fn judge_loss(&self) -> Step<()> {
        let machine = self.engine.machine();
        if machine.has_arrival() && !machine.is_served() && self.engine.driver().has_fired() {
            let summary = self.summary();
            return Err(format!("G8: rank {} gives up a round that had fired: {summary}", self.rank()).into());
        }
        Ok(())
    }
}
