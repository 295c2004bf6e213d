//! What an explorer keeps of a rank, and asks it.

use std::hash::{Hash, Hasher};

use super::helper::Helper;
use super::{Actor, Doing};
use crate::collective::core::{Machine, Op};
use crate::collective::session::Session;

/// Everything about an actor that changes.
#[derive(Debug)]
pub(in crate::simulation) struct Saved {
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

impl Hash for Saved {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Saved { machine, searches, session, doing, helper, made, judged, dropped, heard } = self;
        machine.fingerprint(state);
        session.fingerprint(state);
        (searches, doing, helper, made, judged, dropped, heard).hash(state);
    }
}

impl Actor {
    pub(in crate::simulation) fn save(&self) -> Saved {
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

    pub(in crate::simulation) fn restore(&mut self, saved: &Saved) {
        self.engine.restore(&saved.machine, saved.searches);
        self.session.clone_from(&saved.session);
        (self.doing, self.helper, self.made) = (saved.doing, saved.helper, saved.made);
        (self.judged, self.dropped) = (saved.judged, saved.dropped);
        self.heard.clone_from(&saved.heard);
    }

    /// Whether its next step concerns no other rank: it writes only what no rank reads before a later step says so, and
    /// reads only what no rank changes.
    pub(in crate::simulation) fn next_is_local(&self, mortals: bool, nobody_waits: bool) -> bool {
        let machine = self.engine.machine();
        match machine.peek_op() {
            _ if !self.is_seated() && self.habits.thread => false,
            Some(Op::Fence) => true,
            Some(Op::Run(task)) => !self.engine.driver().is_announced(*task),
            // A rank that begins to wait later looks at what this announces.
            Some(Op::Wake { .. }) => nobody_waits,
            // Claims are looked at again only when their owner is dead.
            Some(Op::Store { cell, .. }) => !mortals && machine.is_claim(*cell),
            Some(_) => false,
            None => self.doing == Doing::Computing,
        }
    }

    /// Cells of claims that have no meaning any more: everything that was claimed has happened.
    pub(in crate::simulation) fn spent_claims(&self, cells: impl Fn(usize) -> u64) -> Vec<usize> {
        self.engine.machine().spent_claims(cells)
    }
}
