//! The end of a card: what its provider has still queued then.
#![forbid(unsafe_code)]

use super::DeferredProgram;
use crate::error::Result;
use crate::trigger::Role;

impl DeferredProgram {
    fn armed(&self) -> impl Iterator<Item = usize> + use<> {
        let armed: Vec<usize> = (0..self.slots.len()).filter(|&slot| self.slots[slot].uses > 0).collect();
        armed.into_iter()
    }

    /// Sets off everything that is still queued, whatever it waits for: `sockets` withdraws no work. For when
    /// all ranks have all they want: what it writes to them makes no sense.
    pub fn set_off(&mut self) {
        for slot in self.armed() {
            // All inputs are given here: none is to come on top.
            let state = &mut self.slots[slot];
            (state.readied, state.arrived, state.is_token_out) = (state.uses, state.uses, false);
            for counter in &self.program.counters {
                // Completions of transfers come by themselves, if they come.
                if matches!(counter.role, Role::Sent | Role::Done) {
                    continue;
                }
                let uses = if counter.role == Role::Gate { 1 } else { self.slots[slot].uses };
                let whole = uses * u64::from(counter.inputs);
                let lacks = whole.saturating_sub(self.value(slot, counter.role).unwrap_or(whole));
                if lacks > 0 {
                    // What the provider refuses now stays queued, and is looked for in the end.
                    let _ = self.slots[slot].counters[&counter.role].add(lacks);
                }
            }
        }
    }

    /// Whether everything that was queued has run.
    ///
    /// # Errors
    /// What the provider says.
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
            // Nobody has set the rest off, and it must not be now: a peer may still read the last round of a slot that
            // was armed again here, and what is queued would overwrite it. So all that it may read or count on stays,
            // registered, until the process ends.
            std::mem::forget((std::mem::take(&mut self.slots), self.one.clone(), self.window.clone()));
        }
    }
}
