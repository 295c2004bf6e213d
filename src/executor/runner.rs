//! What runs the program of a collective apart from its ranks.

use std::fmt::Debug;

use crate::error::Result;
use crate::fabric::Window;
use crate::trigger::Deposit;

/// Rows of a contribution: the one that was made for a round, and the one that is carried into it.
pub(crate) const ROWS: u32 = 2;

/// One rank's access to what runs its program: it forwards the activation, closes gates and hands contributions to all ranks.
///
/// A round's slot goes through *armed* (its gate takes deposits), *ready* (all ranks may be activated), outcome, and *over*
/// (everything queued for it has run), and is armed again. Each call can fail with the error of what runs the program.
pub(crate) trait Runner: Debug + Send {
    /// The memory of the collective, and behind it that of the contributions of all ranks.
    fn window(&self) -> &Window;

    /// The last round that it can run, the same on all ranks.
    fn last_round(&self) -> u64;

    /// Queues the operations of a round, with an empty gate.
    fn arm(&mut self, round: u64) -> Result<()>;

    /// Tells all ranks that the round's slot may be written to.
    fn ready(&mut self, round: u64) -> Result<()>;

    /// Signals that this rank has arrived for the round, or has no contribution to it.
    fn signal_arrival(&mut self, round: u64) -> Result<()>;

    /// Revokes the token of the round's gate, so that the contribution can be written; returns false if the gate is sealed.
    fn revoke_token(&mut self, round: u64) -> Result<bool>;

    /// Writes a deposit into the gate whose token is revoked, and returns the token. If the deposit has a row, its data lies
    /// at `from` in the window.
    fn deposit(&mut self, round: u64, gate: u64, from: usize, row: Option<u32>, weight: u16) -> Result<()>;

    /// Returns whether every contribution to the round is here.
    fn has_outcome(&mut self, round: u64) -> Result<bool>;

    /// Returns whether all operations of the round have run.
    fn is_over(&mut self, round: u64) -> Result<bool>;

    /// Returns whether a contribution of a rank to the round has come.
    fn has_heard(&self, round: u64, rank: u32) -> bool;

    /// Returns a rank's deposit in a round whose outcome is here, and the weight of each row.
    fn deposit_of(&self, round: u64, rank: u32) -> Result<(Deposit, [u16; ROWS as usize])>;

    /// Returns the offset in the window of a row of a rank's contribution to a round.
    fn offset_of(&self, round: u64, rank: u32, row: u32) -> usize;

    /// Triggers all operations that are still queued, for rounds that no rank needs any more.
    fn set_off(&mut self);

    /// Returns whether all queued operations have run.
    fn has_run(&mut self) -> Result<bool>;
}
