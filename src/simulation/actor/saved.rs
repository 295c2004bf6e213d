//! What an explorer keeps of a rank.

use std::hash::{Hash, Hasher};

use super::helper::Helper;
use super::{Actor, Doing};
use crate::collective::core::Machine;
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
}
