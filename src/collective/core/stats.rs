//! What happened to a rank.

/// What happened to one rank in one collective so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Arrivals that entered the round they were made for.
    pub fresh: u64,
    /// Arrivals whose round had fired without them.
    pub late: u64,
    /// Late arrivals that found their round still open when they came, and closed when they asked.
    pub late_while_closing: u64,
    /// Late arrivals that missed two rounds or more.
    pub jumps: u64,
    /// Late arrivals that were dropped, where that is the rule.
    pub dropped: u64,
    /// Late arrivals for a full round too far ahead, which entered with the next one.
    pub deferred: u64,
    /// Arrivals that had to wait for a free slot.
    pub full_ring: u64,
    /// Graces that ended by time rather than by the last arrival.
    pub graces_expired: u64,
    /// Rounds that this rank closed because the deadline was over.
    pub deadlines_expired: u64,
    /// Rounds closed on behalf of an initiator that had left the library.
    pub closed_for_others: u64,
    /// Last arrivals that came late and had to be repeated.
    pub finish_retries: u64,
    /// Rounds this rank closed.
    pub initiated: u64,
    /// Segments this rank moved.
    pub segments: u64,
    /// Segments that this rank could not move yet, because a rank was still filling them.
    pub awaited: u64,
    /// Where ranks have registers: groups that moved in the rounds that this rank has seen. By order of arrival: groups
    /// that it closed.
    pub groups: u64,
    /// Rounds in which this rank's group did not move, because none of its members contributed.
    pub idle: u64,
    /// Of the groups by order of arrival that this rank closed, those that too few ranks were left to fill.
    pub closed_early: u64,
    /// Of these groups, the ones that were apart from other ranks and have a lender's register for that.
    pub bridges: u64,
    /// Of these groups, the ones that were apart and found no rank that could lend.
    pub apart: u64,
    /// How often groups borrowed this rank's register while it computed.
    pub lent: u64,
    /// How often the library was entered for this rank's part, or looked again while waiting.
    pub polls: u64,
    /// Messages to other ranks that this rank sent, for itself or for others, to say that a round
    /// has fired.
    pub activations: u64,
    /// Messages to other ranks that this rank sent where ranks relay activations and sums.
    pub relayed: u64,
    /// Rounds that this rank read by itself, because their reducers took too long.
    pub pulled: u64,
    /// Arrivals that found reducers with other shares while data for the earlier ones was in flight.
    pub moved_shares: u64,
    /// Operations of programs that this rank ran.
    pub operations: u64,
    /// Of those, the ones that it took over from a dead rank.
    pub inherited: u64,
}
