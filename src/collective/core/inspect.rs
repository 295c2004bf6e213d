//! Looking at a machine from outside: for messages, and for the explorer.

use std::hash::{Hash, Hasher};

use super::machine::Machine;

impl Machine {
    /// What its next steps depend on, apart from time.
    pub(crate) fn fingerprint(&self, state: &mut impl Hasher) {
        let Machine { taken, fired, landed, active, cuts, arrival, buffer, mover, dead, left, .. } = self;
        (taken, fired, landed, active, cuts, arrival, buffer, mover, dead, left).hash(state);
        let Machine {
            released_by_all, leavers, missing, arriving, pushes, tags_under_way, released, words, ops, ..
        } = self;
        (released_by_all, leavers, missing, arriving, pushes, tags_under_way, released, words, ops).hash(state);
        if let Some(worker) = &self.worker {
            worker.fingerprint(state);
            (self.passed_on > self.fired).hash(state);
        }
    }

    /// Where it stands, in a line.
    pub(crate) fn summary(&self) -> String {
        let Machine { taken, fired, landed, arrival, mover, pushes, tags_under_way, .. } = self;
        let active: Vec<u32> = self.active.iter().collect();
        format!(
            "taken {taken} fired {fired} landed {landed} active {active:?} pushes {pushes} tags {tags_under_way:?} {arrival:?} {mover:?}"
        )
    }
}
