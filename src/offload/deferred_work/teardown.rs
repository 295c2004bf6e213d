//! The end of a deferred program whose provider may still have work queued.
#![forbid(unsafe_code)]

use super::DeferredProgram;
use crate::error::Result;
use crate::trigger::Role;

impl DeferredProgram {
    fn armed(&self) -> impl Iterator<Item = usize> + use<> {
        let armed: Vec<usize> = (0..self.slots.len()).filter(|&slot| self.slots[slot].uses > 0).collect();
        armed.into_iter()
    }

    /// Triggers all work that is still queued, whatever it waits for: `sockets` cannot withdraw work. For use when all
    /// ranks have all outcomes that they need: the data that the work writes to them is meaningless.
    pub fn set_off(&mut self) {
        for slot in self.armed() {
            // All inputs are given here: no other call may add one.
            let state = &mut self.slots[slot];
            (state.readied, state.arrived, state.is_token_revoked) = (state.uses, state.uses, false);
            for counter in &self.program.counters {
                // Transfers give these inputs themselves when they complete.
                if matches!(counter.role, Role::Sent | Role::Done) {
                    continue;
                }
                let uses = if counter.role == Role::Gate { 1 } else { self.slots[slot].uses };
                let whole = uses * u64::from(counter.inputs);
                let lacks = whole.saturating_sub(self.value(slot, counter.role).unwrap_or(whole));
                if lacks > 0 {
                    // Work that the provider refuses to trigger stays queued; `Drop` handles it.
                    let _ = self.slots[slot].counters[&counter.role].add(lacks);
                }
            }
        }
    }

    /// Returns whether all queued work has run.
    ///
    /// # Errors
    /// The provider's error.
    pub fn has_run(&mut self) -> Result<bool> {
        for slot in self.armed() {
            if !self.is_over(slot)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for DeferredProgram {
    fn drop(&mut self) {
        if !self.has_run().unwrap_or(false) {
            // The remaining work was not triggered, and must not be now: a peer may still read the last round of a slot
            // that was armed again here, and the queued work would overwrite it. So all memory and counters that the
            // work uses stay registered until the process ends.
            std::mem::forget((std::mem::take(&mut self.slots), self.one.clone(), self.window.clone()));
        }
    }
}
