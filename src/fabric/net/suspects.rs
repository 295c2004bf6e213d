//! Peers that seem to have ended, until the suspicion is confirmed.
//!
//! What a process sent before it ended may lie here unread: its last outcomes, that it leaves in good order, or whose
//! death it ended for. So a suspicion is confirmed only when this rank has polled the network for a while and its last
//! poll found nothing. Time in which this process was stopped does not count.
#![forbid(unsafe_code)]

use std::fmt;
use std::time::{Duration, Instant};

use crate::fabric::watch::ENDED;

/// How long a peer is suspected before the suspicion is confirmed, in time during which this process ran.
const GRACE: Duration = Duration::from_millis(100);

/// How long ranks on a peer's host have to say whether its process runs; they check five times a second.
const ANSWER: Duration = Duration::from_secs(2);

/// The minimum number of polls of the network in that time.
const POLLS: u32 = 8;

/// The maximum that counts of the time between two polls: a process that was stopped in between has run for less.
pub(super) const STEP: Duration = Duration::from_millis(20);

/// The evidence against a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The kernel reports that its process has ended.
    Ended,
    /// An operation did not reach it, for this reason.
    Unreachable(String),
    /// It was silent for this long.
    Silent(Duration),
}

impl Evidence {
    /// Returns the evidence against a peer whose process runs.
    pub(super) fn of_one_that_runs(self) -> String {
        match self {
            Evidence::Silent(time) => format!("nothing was heard of it for {time:?}"),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::Ended => f.write_str(ENDED),
            Evidence::Unreachable(reason) => f.write_str(reason),
            Evidence::Silent(time) => {
                write!(f, "nothing was heard of it for {time:?}: it was killed, or its host or the way there is down")
            }
        }
    }
}

/// The suspected peers, oldest suspicion first.
#[derive(Debug)]
pub(super) struct Suspects {
    suspects: Vec<Suspect>,
    /// When this rank last polled the network.
    checked: Instant,
}

#[derive(Debug)]
struct Suspect {
    peer: u32,
    evidence: Evidence,
    /// The time and the polls since the suspicion began.
    time: Duration,
    polls: u32,
    /// Whether ranks on its host were asked for it.
    is_asked: bool,
}

impl Suspects {
    pub(super) fn new(now: Instant) -> Self {
        Suspects { suspects: Vec::new(), checked: now }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.suspects.is_empty()
    }

    /// Returns whether a peer's process is known to have ended.
    pub(super) fn has_ended(&self, peer: u32) -> bool {
        self.suspects.iter().any(|suspect| suspect.peer == peer && suspect.evidence == Evidence::Ended)
    }

    /// Records that ranks on the host of a peer were asked for it. The suspicion is not confirmed before they had time
    /// to answer.
    pub(super) fn asked(&mut self, peer: u32, evidence: Evidence) {
        self.suspects.retain(|suspect| suspect.peer != peer);
        self.suspects.push(Suspect { peer, evidence, time: Duration::ZERO, polls: 0, is_asked: true });
    }

    /// Records an answer about a peer. Returns the evidence against it, if it was asked for.
    pub(super) fn answered(&mut self, peer: u32) -> Option<Evidence> {
        let index = self.suspects.iter().position(|suspect| suspect.peer == peer && suspect.is_asked)?;
        Some(self.suspects.remove(index).evidence)
    }

    /// Returns whether a peer is suspected.
    pub(super) fn has(&self, peer: u32) -> bool {
        self.suspects.iter().any(|suspect| suspect.peer == peer)
    }

    /// Begins to suspect a peer.
    pub(super) fn add(&mut self, peer: u32, evidence: Evidence, now: Instant) {
        if self.suspects.is_empty() {
            self.checked = now;
        }
        match self.suspects.iter_mut().find(|suspect| suspect.peer == peer) {
            None => self.suspects.push(Suspect { peer, evidence, time: Duration::ZERO, polls: 0, is_asked: false }),
            // The kernel's report is the clearest evidence, and the same on every rank of the machine.
            Some(known) if evidence == Evidence::Ended => known.evidence = evidence,
            Some(_) => {}
        }
    }

    /// Drops the suspicions that `is_cleared` finds unfounded.
    pub(super) fn clear(&mut self, is_cleared: impl Fn(u32, &Evidence) -> bool) {
        self.suspects.retain(|suspect| !is_cleared(suspect.peer, &suspect.evidence));
    }

    /// Counts a poll of the network after which all events are processed; `quiet` if there were none. Returns a peer
    /// from which nothing more can come, with the evidence, and whether ranks on its host were asked for it in vain.
    pub(super) fn confirm(&mut self, now: Instant, quiet: bool) -> Option<(u32, Evidence, bool)> {
        let step = now.saturating_duration_since(self.checked).min(STEP);
        self.checked = now;
        for suspect in &mut self.suspects {
            suspect.time += step;
            suspect.polls = suspect.polls.saturating_add(1);
        }
        let enough =
            |suspect: &Suspect| if suspect.is_asked && suspect.evidence != Evidence::Ended { ANSWER } else { GRACE };
        let confirmed = |suspect: &Suspect| quiet && suspect.time >= enough(suspect) && suspect.polls >= POLLS;
        let index = self.suspects.iter().position(confirmed)?;
        let Suspect { peer, evidence, is_asked, .. } = self.suspects.remove(index);
        Some((peer, evidence, is_asked))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// This process is stopped for 11 s right after a peer was suspected. What the peer sent before
    /// it ended is processed first.
    #[test]
    fn a_stop_confirms_no_suspicion() {
        let mut now = Instant::now();
        for evidence in [Evidence::Ended, Evidence::Unreachable("reset".to_owned()), Evidence::Silent(MILLISECOND)] {
            let mut suspects = Suspects::new(now);
            suspects.add(3, evidence.clone(), now);
            now += Duration::from_secs(11);
            assert_eq!(suspects.confirm(now, true), None, "{evidence:?}: only a look from now on counts");
            // Processing what came takes a while, in which the queue may seem empty.
            for look in 0..40 {
                now += MILLISECOND;
                assert_eq!(suspects.confirm(now, look % 2 == 0), None, "{evidence:?}, look {look}");
            }
            // One of the messages said that the peer leaves.
            suspects.clear(|peer, _| peer == 3);
            now += Duration::from_secs(11);
            assert_eq!(suspects.confirm(now, true), None);
            assert!(suspects.is_empty());
        }
    }

    #[test]
    fn an_ended_peer_is_named_in_time_and_by_the_clearest_evidence() {
        let mut now = Instant::now();
        let mut suspects = Suspects::new(now);
        now += Duration::from_secs(60);
        suspects.add(1, Evidence::Unreachable("reset".to_owned()), now);
        suspects.add(2, Evidence::Silent(MILLISECOND), now);
        assert!(!suspects.has_ended(1));
        suspects.add(1, Evidence::Ended, now);
        assert!(suspects.has_ended(1));
        suspects.add(1, Evidence::Unreachable("again".to_owned()), now);
        let mut named = Vec::new();
        for _ in 0..10 {
            now += STEP;
            named.extend(suspects.confirm(now, true));
        }
        assert_eq!(named, [(1, Evidence::Ended, false), (2, Evidence::Silent(MILLISECOND), false)]);
    }

    #[test]
    fn witnesses_have_time_to_answer() {
        let mut now = Instant::now();
        let mut suspects = Suspects::new(now);
        suspects.asked(1, Evidence::Silent(MILLISECOND));
        suspects.asked(2, Evidence::Silent(MILLISECOND));
        assert_eq!(suspects.answered(3), None);
        assert_eq!(suspects.answered(2), Some(Evidence::Silent(MILLISECOND)));
        assert_eq!(suspects.answered(2), None, "the second answer");
        let mut waited = Duration::ZERO;
        let named = loop {
            (now, waited) = (now + STEP, waited + STEP);
            if let Some(named) = suspects.confirm(now, true) {
                break named;
            }
        };
        assert_eq!((named, waited), ((1, Evidence::Silent(MILLISECOND), true), ANSWER));
        assert!(suspects.is_empty());
    }

    proptest! {
        /// For any times between looks: no peer is confirmed before this process has run and looked
        /// for long enough, nor while something arrives, nor later than then.
        #[test]
        fn only_time_that_the_process_ran_counts(
            polls in proptest::collection::vec((0..50_000u64, any::<bool>()), 1..60),
        ) {
            let mut now = Instant::now();
            let mut suspects = Suspects::new(now);
            suspects.add(0, Evidence::Ended, now);
            let (mut ran, mut checked) = (Duration::ZERO, 0);
            for (gap, quiet) in polls {
                let gap = Duration::from_micros(gap);
                now += gap;
                ran += gap.min(STEP);
                checked += 1;
                let due = quiet && ran >= GRACE && checked >= POLLS;
                prop_assert_eq!(suspects.confirm(now, quiet).is_some(), due);
                if due {
                    break;
                }
            }
        }
    }
}
