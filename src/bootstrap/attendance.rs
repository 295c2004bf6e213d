//! Who has come to a meeting.

use std::time::{Duration, Instant};

use crate::error::Ranks;
use crate::fault::Fault;

/// After a mistake is seen, how long the others are awaited so that they hear of it too.
const LINGER: Duration = Duration::from_secs(1);

/// When all have come, how long to see whether one comes twice while others knock.
const PATIENCE: Duration = Duration::from_millis(200);

/// Rank 0 has its own; it is present from the beginning.
#[derive(Debug)]
pub(super) struct Attendance {
    present: Vec<bool>,
    mistake: Option<(String, Instant)>,
    /// Why somebody was not let in.
    refused: Option<String>,
    complete: Option<Instant>,
    until: Instant,
    /// As it was set, to be told.
    deadline: Duration,
}

impl Attendance {
    pub(super) fn new(ranks: u32, until: Instant, deadline: Duration) -> Self {
        let present = (0..ranks).map(|rank| rank == 0).collect();
        Attendance { present, mistake: None, refused: None, complete: None, until, deadline }
    }

    /// A process says that it is `rank` in a world of `ranks`. Whether it can be.
    pub(super) fn enter(&mut self, rank: u32, ranks: u32) -> bool {
        let expected = self.present.len() as u32;
        let present = self.present.get_mut(rank as usize);
        let problem = match present {
            _ if ranks != expected && !Fault::AdmitOtherSize.is_chosen() => {
                format!("the world has {ranks} ranks on rank {rank} and {expected} on rank 0")
            }
            Some(present) if !*present || Fault::AdmitTwice.is_chosen() => {
                *present = true;
                return true;
            }
            _ => format!("two processes came as rank {rank}"),
        };
        // It counts as having come, so that nobody waits for it.
        if let Some(present) = self.present.get_mut(rank as usize) {
            *present = true;
        }
        self.fail(problem);
        false
    }

    /// Something is wrong; the first thing stays.
    pub(super) fn fail(&mut self, problem: String) {
        self.mistake.get_or_insert((problem, Instant::now()));
    }

    /// Somebody was not let in, who may be the one that is missing; of several the first is told of.
    pub(super) fn refuse(&mut self, why: String) {
        self.refused.get_or_insert(why);
    }

    fn missing(&self) -> Vec<u32> {
        (0..).zip(&self.present).filter(|(_, present)| !**present).map(|(rank, _)| rank).collect()
    }

    /// Whether the meeting is over, and how. `quiet` if nobody is at the door.
    pub(super) fn verdict(&mut self, quiet: bool) -> Option<Result<(), String>> {
        let (missing, late) = (self.missing(), Instant::now() > self.until);
        match &self.mistake {
            Some((mistake, since)) => {
                (missing.is_empty() || late || since.elapsed() > LINGER).then(|| Err(mistake.clone()))
            }
            // A rank that comes twice has been seen if nobody is at the door. Somebody always may be.
            None if missing.is_empty() || (late && Fault::GoWithoutTheMissing.is_chosen()) => {
                let complete = self.complete.get_or_insert_with(Instant::now);
                (quiet || late || complete.elapsed() > PATIENCE).then_some(Ok(()))
            }
            None if late => {
                let (missing, ranks, deadline) = (Ranks(missing), self.present.len(), self.deadline);
                let also = self.refused.as_ref().map_or_else(String::new, |why| format!(" Not let in: {why}"));
                Some(Err(format!(
                    "{missing} did not come within {deadline:?}; were all {ranks} started, with the same EARLYBIRD_STORE?{also}"
                )))
            }
            None => None,
        }
    }
}
