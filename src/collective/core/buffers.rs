//! Which of its buffers a rank writes its next contribution into.
//!
//! Memory that was used a moment ago is still in a cache. So a rank that has taken a round before it begins to
//! write takes the buffer that it used last, if nobody reads that any more. Who writes earlier, while the round
//! before is under way, takes the one that has rested longest.

use super::machine::Machine;
use super::plan::{BUFFERS, Path, Plan};
use crate::fault::Fault;

/// The buffers of a rank.
#[derive(Clone, Debug, Hash)]
pub(super) struct Buffers {
    /// The one that the next contribution goes to.
    next: u32,
    /// The round that each was handed in for last.
    used: [u64; BUFFERS as usize],
    /// Nobody else ever reads them where they are: pushed data is reduced where it was pushed to.
    private: bool,
}

impl Buffers {
    pub(super) fn new(plan: &Plan) -> Self {
        let private = plan.path == Path::Replicated && !plan.topology.is_shared(plan.host());
        Buffers { next: 0, used: [0; BUFFERS as usize], private }
    }

    /// The next one was handed in, for a round. The one after it is the one that has rested longest: it was
    /// handed in two arrivals ago at least, so nobody reads it.
    pub(super) fn hand_in(&mut self, round: u64) {
        self.used[self.next as usize] = round;
        self.next = (0..BUFFERS).min_by_key(|&buffer| self.used[buffer as usize]).unwrap_or(0);
    }
}

impl Machine {
    /// The buffer of the contribution that is being written.
    pub(crate) fn buffer(&self) -> u32 {
        self.buffers.next
    }

    /// Nothing was written into [`Machine::buffer`] yet: another one may be better.
    pub(super) fn choose_buffer(&mut self) {
        if !self.plan.by_tags() {
            // A contribution may be carried, and stays where it is for long.
            return;
        }
        let used = self.buffers.used;
        let free = (0..BUFFERS).filter(|&buffer| self.is_free(buffer));
        self.buffers.next = free.max_by_key(|&buffer| used[buffer as usize]).unwrap_or(self.buffers.next);
    }

    /// Whether nobody reads a buffer any more: others show that they are done with a round by arriving for the
    /// next one.
    fn is_free(&self, buffer: u32) -> bool {
        let round = self.buffers.used[buffer as usize];
        let read = self.fired <= round && !self.plan.fault(Fault::WriteWhatIsRead);
        let sent = !self.has_tags_under_way(buffer) || self.plan.fault(Fault::WriteWhatIsSent);
        sent && (!read || (self.buffers.private && self.taken >= round))
    }
}
