//! Which of its buffers a rank writes its next contribution into.
//!
//! Memory that was used a moment ago is still in a cache. So a rank that has taken a round before it begins to
//! write takes the buffer that it used last, if no rank reads that any more. A rank that writes earlier, while the round
//! before is under way, takes the one that has rested longest.

use super::context::Context;
use super::plan::{BUFFERS, Plan};
use crate::fault::Fault;
use crate::rule::MovementBy;

/// The buffers of a rank.
#[derive(Clone, Debug, Hash)]
pub(super) struct Buffers {
    /// The one that the next contribution goes to.
    next: u32,
    /// The round that each was handed in for last.
    used: [u64; BUFFERS as usize],
    /// No other rank ever reads them where they are: pushed data is reduced where it was pushed to.
    private: bool,
}

impl Buffers {
    pub(super) fn new(plan: &Plan) -> Self {
        let alone = !plan.topology.is_shared(plan.host());
        let private = alone && plan.movement == MovementBy::Everyone;
        Buffers { next: 0, used: [0; BUFFERS as usize], private }
    }

    /// The buffer of the contribution that is being written.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// The next one was handed in, for a round. The one after it is the one that has rested longest: it was
    /// handed in two arrivals ago at least, so no rank reads it.
    pub(super) fn hand_in(&mut self, round: u64) {
        self.used[self.next as usize] = round;
        self.next = (0..BUFFERS).min_by_key(|&buffer| self.used[buffer as usize]).unwrap_or(0);
    }

    /// No rank will read a buffer, so it comes next after the one that is being written. Another one may be read for as
    /// long as nothing newer takes its place.
    pub(super) fn free(&mut self, buffer: u32) {
        self.used[buffer as usize] = 0;
    }

    /// Nothing was written into the next one yet: another one may be better.
    pub(super) fn choose(&mut self, cx: &Context) {
        if !cx.plan.by_tags() {
            // A contribution may be carried, and stays where it is for long.
            return;
        }
        let free = (0..BUFFERS).filter(|&buffer| self.is_free(buffer, cx));
        self.next = free.max_by_key(|&buffer| self.used[buffer as usize]).unwrap_or(self.next);
    }

    /// Whether no rank reads a buffer any more: others show that they are done with a round by arriving for the
    /// next one.
    fn is_free(&self, buffer: u32, Context { plan, ledger, outbox, .. }: &Context) -> bool {
        let round = self.used[buffer as usize];
        let read = ledger.fired() <= round && !plan.fault(Fault::WriteWhatIsRead);
        let sent = !outbox.has_tag(buffer) || plan.fault(Fault::WriteWhatIsSent);
        sent && (!read || (self.private && ledger.taken() >= round))
    }
}
