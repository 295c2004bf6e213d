//! The attendance of a meeting: which ranks have come, and when it is over.

use std::time::{Duration, Instant};

use super::identity::Identity;
use crate::error::{Error, Ranks};
use crate::fault::Fault;
use crate::interrupt;

/// How long rank 0 waits for the others after a mistake, so that they learn of it, too.
const LINGER: Duration = Duration::from_secs(1);

/// How long rank 0 watches for a rank that comes twice, after all have come and while others connect.
const PATIENCE: Duration = Duration::from_millis(200);

/// The terms of a meeting as the user set them, for error texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeetingTerms {
    /// How long ranks wait for each other.
    pub(crate) deadline: Duration,
    /// What the starts of all ranks have in common ([`super::identity::Identity::together`]).
    pub(crate) together: &'static str,
}

impl MeetingTerms {
    pub(crate) fn of(identity: &Identity, deadline: Duration) -> Self {
        MeetingTerms { deadline, together: identity.together }
    }

    /// Returns the error of a rank that waited for rank 0 in vain. It contains the reason, if there is one, and a
    /// further question.
    pub(super) fn rank_0_missing(&self, why: Option<&std::io::Error>, also: &str) -> String {
        let MeetingTerms { deadline, together } = self;
        let why = why.map_or_else(String::new, |cause| format!(" ({cause})"));
        format!("rank 0 did not come within {deadline:?}{why}; was it started, {together}{also}?")
    }
}

/// The attendance list of rank 0. Rank 0 itself is present from the beginning.
#[derive(Debug)]
pub(super) struct Attendance {
    present: Vec<bool>,
    mistake: Option<(String, Instant)>,
    /// Why a process was refused.
    refused: Option<String>,
    complete: Option<Instant>,
    /// The error of rank 0 if its own wait was interrupted.
    interrupted: Option<Error>,
    until: Instant,
    terms: MeetingTerms,
    /// A further question that rank 0 asks if a rank does not come.
    also: &'static str,
}

impl Attendance {
    pub(super) fn new(ranks: u32, until: Instant, terms: MeetingTerms, also: &'static str) -> Self {
        let present = (0..ranks).map(|rank| rank == 0).collect();
        Attendance { present, mistake: None, refused: None, complete: None, interrupted: None, until, terms, also }
    }

    /// Records a process that claims to be `rank` in a world of `ranks`. Returns whether that is possible.
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
        // It counts as present, so that rank 0 does not wait for it.
        if let Some(present) = self.present.get_mut(rank as usize) {
            *present = true;
        }
        self.fail(problem);
        false
    }

    /// Records a mistake; later ones do not replace the first one.
    pub(super) fn fail(&mut self, problem: String) {
        self.mistake.get_or_insert((problem, Instant::now()));
    }

    /// Records why a process was refused, which may be the missing rank. Later reasons do not replace the first one.
    pub(super) fn refuse(&mut self, why: String) {
        self.refused.get_or_insert(why);
    }

    /// Records that rank 0's wait was interrupted.
    pub(super) fn interrupt(&mut self, error: Error) {
        self.interrupted = Some(error);
    }

    /// Returns the error of rank 0 after a failed meeting: that of its interrupted wait, or `other`.
    pub(super) fn error(self, other: impl FnOnce() -> Error) -> Error {
        self.interrupted.unwrap_or_else(other)
    }

    fn missing(&self) -> Vec<u32> {
        (0..).zip(&self.present).filter(|(_, present)| !**present).map(|(rank, _)| rank).collect()
    }

    /// Returns the result of the meeting, once it is over. `quiet` if no process waits to be accepted.
    pub(super) fn verdict(&mut self, quiet: bool) -> Option<Result<(), String>> {
        let (missing, late) = (self.missing(), Instant::now() > self.until);
        if let Err(interrupted) = interrupt::check(0, "join") {
            self.interrupt(interrupted);
        }
        if let Some(interrupted) = &self.interrupted {
            return Some(Err(interrupted.to_string()));
        }
        match &self.mistake {
            Some((mistake, since)) => {
                (missing.is_empty() || late || since.elapsed() > LINGER).then(|| Err(mistake.clone()))
            }
            // If no process waits to be accepted, a rank that comes twice would have been seen. Processes may always
            // wait, so the time is limited.
            None if missing.is_empty() || (late && Fault::GoWithoutTheMissing.is_chosen()) => {
                let complete = self.complete.get_or_insert_with(Instant::now);
                (quiet || late || complete.elapsed() > PATIENCE).then_some(Ok(()))
            }
            None if late => {
                let (missing, ranks) = (Ranks(missing), self.present.len());
                let MeetingTerms { deadline, together } = self.terms;
                let (also, refused) = (self.also, self.refused.as_ref());
                let refused = refused.map_or_else(String::new, |why| format!(" Not let in: {why}"));
                Some(Err(format!(
                    "{missing} did not come within {deadline:?}; were all {ranks} started, {together}{also}?{refused}"
                )))
            }
            None => None,
        }
    }
}
