//! What a collective needs of somebody who runs its programs elsewhere: a provider, a network card,
//! or the model of one in [`cards`](super::cards).
//!
//! The order of calls for each use of a slot: *arm*, *open* the gates, *give* ready tokens; then
//! arrivals; when the outcome is there and every input has come, the slot is armed for its next use.
//! In shared memory nothing is armed and the [`Worker`](super::Worker) of each rank runs the tables.

use super::compile::Profile;
use super::program::{Role, Signal};

/// Runs the tables of a world, slot by slot.
pub trait Offload {
    /// What the tables must look like.
    fn profile(&self) -> Profile;

    /// Queues a rank's operations for the next use of a slot: each runs once, when its counter
    /// has come so far. Nobody may be able to set them off before their rank says *ready*.
    fn arm(&mut self, rank: u32, slot: usize);

    /// A rank gives an input: its arrival, *ready*, the token of its gate. Of an own counter at once.
    fn give(&mut self, by: u32, slot: usize, input: Signal);

    /// Takes the token of a rank's gate back, unless the activation came first; whether it did.
    /// While the token is out the contribution is the rank's to write, and the round waits.
    fn take_back(&mut self, slot: usize, rank: u32) -> bool;

    /// Whether all inputs of a counter have come for the use that was armed last.
    fn is_full(&self, slot: usize, rank: u32, counter: Role) -> bool;
}
