//! Sleeps for several channels of a rank.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use super::segment::Segment;
use crate::fabric::{Sleeper, Waker};
use crate::fault::Fault;

#[derive(Debug)]
pub(super) struct ShmSleeper {
    segment: Arc<Segment>,
    rank: u32,
    /// The number of rings that the next sleep does not wait for.
    seen: u32,
    fault: Option<Fault>,
}

impl ShmSleeper {
    pub(super) fn new(segment: Arc<Segment>, rank: u32, fault: Option<Fault>) -> Self {
        ShmSleeper { segment, rank, seen: 0, fault }
    }
}

impl Sleeper for ShmSleeper {
    fn prepare(&mut self) {
        self.seen = self.segment.sleeper(self.rank).rings.count();
    }

    fn sleep(&mut self, at_most: Duration) {
        self.segment.sleeper(self.rank).rings.sleep(self.seen, at_most);
    }

    fn waker(&self) -> Waker {
        let (segment, rank, fault) = (self.segment.clone(), self.rank, self.fault);
        Waker::new(move || {
            if !Fault::ForgetWaker.is(fault) {
                segment.sleeper(rank).ring();
            }
        })
    }
}
