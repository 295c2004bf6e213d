//! Counts of events at a rank.

/// Counts of events at one rank in one collective so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Arrivals that entered the round they were made for.
    pub fresh: u64,
    /// Arrivals whose target had fired without them.
    pub late: u64,
    /// Late arrivals that found their round open when they came, and closed when they asked.
    pub late_while_closing: u64,
    /// Late arrivals that missed two rounds or more.
    pub jumps: u64,
    /// Late arrivals that were dropped, under a rule that drops them.
    pub dropped: u64,
    /// Late arrivals that entered with the rank's next arrival, because the open full round was too far ahead.
    pub deferred: u64,
    /// Arrivals that had to wait for a free slot. Where ranks relay: the rounds for which ranks had to wait, at the agent.
    pub full_ring: u64,
    /// Graces that ended by time instead of by the last arrival.
    pub graces_expired: u64,
    /// Rounds that this rank closed because the deadline had passed.
    pub deadlines_expired: u64,
    /// Rounds closed on behalf of an initiator that had left the library.
    pub closed_for_others: u64,
    /// Last arrivals that came late and had to be repeated.
    pub finish_retries: u64,
    /// Rounds this rank closed. Where ranks relay: those that this agent started, for any rank of its host.
    pub initiated: u64,
    /// Segments this rank moved.
    pub segments: u64,
    /// Segments that this rank could not move yet, because a rank was still filling them.
    pub awaited: u64,
    /// Where ranks have registers: groups that moved in the rounds that this rank has seen. By order of arrival: groups
    /// that this rank closed.
    pub groups: u64,
    /// Rounds in which this rank's group did not move, because none of its members contributed.
    pub idle: u64,
    /// Groups by order of arrival that this rank closed and that too few ranks were left to fill.
    pub closed_early: u64,
    /// Of the groups that this rank closed, those that were apart from other ranks and include a lender's register for
    /// that reason.
    pub bridges: u64,
    /// Of the groups that this rank closed, those that were apart and found no rank that could lend.
    pub apart: u64,
    /// How often groups borrowed this rank's register while the rank computed.
    pub lent: u64,
    /// Under [`When::Auto`](crate::When::Auto): the number of arrivals that the next round waits for. Otherwise 0.
    pub quorum: u32,
    /// How often the library was entered for this rank, or polled again while waiting.
    pub polls: u64,
    /// Messages by which this rank announced to other ranks, for itself or for others, that a round has fired.
    pub activations: u64,
    /// Messages that this rank sent to other ranks where ranks relay activations and sums.
    pub relayed: u64,
    /// Rounds that this rank obtained by fallback reads, because their reducers took too long.
    pub pulled: u64,
    /// Arrivals that found reducers with other shares while data for the earlier shares was in flight.
    pub moved_shares: u64,
    /// Operations of programs that this rank ran.
    pub operations: u64,
    /// Of these operations, those that this rank took over from a dead rank.
    pub inherited: u64,
}
