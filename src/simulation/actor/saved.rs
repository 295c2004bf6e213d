//! What an explorer stores of a rank, and asks about it.

use std::hash::{Hash, Hasher};

use super::helper::Helper;
use super::{Actor, Doing};
use crate::collective::core::{Machine, Op, ProgramOp};
use crate::collective::session::Session;
use crate::fabric::sim::Net;

/// The death that affects a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::internals::simulation) enum DeathOf {
    /// No other rank has died, and this one will not.
    None,
    /// This rank may die at any step.
    This,
    /// Another rank has died.
    Other,
}

/// Everything that changes about an actor.
#[derive(Debug)]
pub(in crate::internals::simulation) struct Saved {
    machine: Machine,
    searches: bool,
    session: Session,
    doing: Doing,
    helper: Helper,
    made: u32,
    judged: u64,
    dropped: u64,
    heard: Vec<u32>,
}

impl Actor {
    /// Hashes what [`Actor::save`] saves, as far as it matters.
    pub(in crate::internals::simulation) fn fingerprint(&self, state: &mut impl Hasher) {
        let Actor { engine, session, doing, helper, made, judged, dropped, heard, .. } = self;
        if self.is_gone() {
            // It makes no further step, and no rank reads what it knew.
            return doing.hash(state);
        }
        engine.machine().fingerprint(state);
        session.fingerprint(state);
        (engine.searches(), doing, helper, made, judged, dropped, heard).hash(state);
    }

    pub(in crate::internals::simulation) fn save(&self) -> Saved {
        let (machine, searches) = self.engine.save();
        Saved {
            machine,
            searches,
            session: self.session.clone(),
            doing: self.doing,
            helper: self.helper,
            made: self.made,
            judged: self.judged,
            dropped: self.dropped,
            heard: self.heard.clone(),
        }
    }

    pub(in crate::internals::simulation) fn restore(&mut self, saved: &Saved) {
        self.engine.restore(&saved.machine, saved.searches);
        self.session.clone_from(&saved.session);
        (self.doing, self.helper, self.made) = (saved.doing, saved.helper, saved.made);
        (self.judged, self.dropped) = (saved.judged, saved.dropped);
        self.heard.clone_from(&saved.heard);
    }

    /// Returns whether its next step concerns no other rank: it writes only what no rank reads before a later step
    /// announces it, and reads only what no rank changes.
    pub(in crate::internals::simulation) fn next_is_local(&self, death: DeathOf, net: &Net) -> bool {
        let machine = self.engine.machine();
        match machine.peek_op() {
            _ if !self.has_lease() && self.habits.thread => false,
            Some(Op::Fence | Op::Program(ProgramOp::Seal { .. } | ProgramOp::Sum { .. })) => true,
            Some(op @ (Op::Program(ProgramOp::Run(_)) | Op::Combine { round: Some(_), .. })) => {
                !self.engine.driver().is_announced(op)
            }
            // A rank that begins to wait for this later polls what it announces.
            Some(Op::Wake { interest, .. }) => !net.is_awaited(*interest as u32),
            // What a claim holds besides its round is read only when its owner is dead.
            Some(Op::Store { cell, .. }) => death != DeathOf::This && machine.is_claim(*cell),
            Some(_) => false,
            // A rank that hears of a death gives up, and it may hear of one first.
            None if self.doing == Doing::Computing => death != DeathOf::Other || self.has_heard(),
            // A rank that was woken only records that.
            None => matches!(self.doing, Doing::Parked { .. }) && !net.is_waiting(self.rank() as usize),
        }
    }

    /// Returns whether its next step may depend on a death that it has heard of. Before any other step it need not hear
    /// of one: hearing of it after that step leads to the same state.
    pub(in crate::internals::simulation) fn heeds_deaths(&self) -> bool {
        let polls = !matches!(self.doing, Doing::Holding { .. } | Doing::Releasing | Doing::Filling { .. });
        self.habits.thread || (polls && self.engine.machine().peek_op().is_none())
    }

    /// Returns the cells of claims without meaning: everything that was claimed has happened.
    pub(in crate::internals::simulation) fn spent_claims(&self, cells: impl Fn(usize) -> u64) -> Vec<usize> {
        self.engine.machine().spent_claims(&cells)
    }
}
