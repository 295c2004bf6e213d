//! The choice of the buffer into which a rank writes its next contribution.
//!
//! Recently used memory is still in a cache. So a rank that takes a round before it begins to write takes the buffer
//! that it used last, if no rank reads that buffer any more. A rank that writes earlier, while the round before is in
//! progress, takes the buffer that it has not used for the longest time.

use super::context::Context;
use super::plan::{BUFFERS, Plan};
use crate::fault::Fault;
use crate::rule::MovementBy;

/// The buffers of a rank.
#[derive(Clone, Debug, Hash)]
pub(super) struct Buffers {
    /// The buffer of the next contribution.
    next: u32,
    /// The round for which each buffer was handed in last.
    used: [u64; BUFFERS as usize],
    /// No other rank reads the buffers in place: pushed data is reduced where it was pushed to.
    private: bool,
}

impl Buffers {
    pub(super) fn new(plan: &Plan) -> Self {
        let alone = !plan.topology.is_shared(plan.host());
        let private = alone && plan.movement == MovementBy::Everyone;
        Buffers { next: 0, used: [0; BUFFERS as usize], private }
    }

    /// Returns the buffer of the contribution that the caller writes next.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Notes that the next buffer was handed in for a round. The buffer after it is the one that was unused for the
    /// longest time: it was handed in at least two arrivals ago, so no rank reads it.
    pub(super) fn hand_in(&mut self, round: u64) {
        self.used[self.next as usize] = round;
        self.next = (0..BUFFERS).min_by_key(|&buffer| self.used[buffer as usize]).unwrap_or(0);
    }

    /// Notes that no rank will read a buffer, so that it comes next after the one that is being written. Ranks may read
    /// another buffer until something newer replaces it.
    pub(super) fn free(&mut self, buffer: u32) {
        self.used[buffer as usize] = 0;
    }

    /// Chooses a better next buffer if there is one. The caller has not written into the next one yet.
    pub(super) fn choose(&mut self, cx: &Context) {
        if !cx.plan.by_tags() {
            // A contribution may be carried, and then stays in its buffer for long.
            return;
        }
        let free = (0..BUFFERS).filter(|&buffer| self.is_free(buffer, cx));
        self.next = free.max_by_key(|&buffer| self.used[buffer as usize]).unwrap_or(self.next);
    }

    /// Returns whether no rank reads a buffer any more. Other ranks show by arriving for the next round that they no
    /// longer read the round before.
    fn is_free(&self, buffer: u32, Context { plan, ledger, outbox, .. }: &Context) -> bool {
        let round = self.used[buffer as usize];
        let read = ledger.fired() <= round && !plan.fault(Fault::WriteWhatIsRead);
        let sent = !outbox.has_tag(buffer) || plan.fault(Fault::WriteWhatIsSent);
        sent && (!read || (self.private && ledger.taken() >= round))
    }
}
