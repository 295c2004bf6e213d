//! The life of a world, as one rank sees it: which ranks run, have left and have ended, which are suspected, and why the
//! world has failed.
//!
//! Events are what peers announce, what the kernel and the device report, and the time after each poll of the network.
//! The engine asks what follows, sends messages, and completes operations. Nothing here reads a clock or sends.
//!
//! | stage of a peer | begins with | what is sent to it |
//! |---|---|---|
//! | runs | the world | everything |
//! | has left | `Leave` | everything: it still answers |
//! | has ended | its last message, or the end of its process after `Leave` | the answer to `Ended`, and nothing else |
//!
//! A rank that has announced its own end sends nothing but that.
//!
//! A peer whose process ends before it has left is dead, and the world fails. A failure is permanent: the first one
//! counts.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::super::suspects::{Evidence, Suspects};
use crate::fabric::failure::Failure;
use crate::fabric::watch::ENDED;

/// The life of a world.
#[derive(Debug)]
pub(in crate::internals::fabric) struct Life {
    me: u32,
    peers: Vec<Peer>,
    suspects: Suspects,
    failure: Option<Failure>,
    /// Whether this rank has announced its end.
    is_over: bool,
}

/// A peer, as this rank knows it.
#[derive(Clone, Debug)]
struct Peer {
    stage: Stage,
    /// Whether it gave a sign of life since the last [`Life::was_heard`].
    heard: bool,
}

/// The stage of a peer's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Runs,
    Left,
    /// It processes nothing any more. `waits` if it has announced that, and waits to hear the same.
    Ended {
        waits: bool,
    },
}

/// What is certain of a suspected peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Confirmed {
    /// It had left, and has ended in good order.
    Ended(u32),
    /// It had not left, and nothing more comes from it. `may_run`: ranks on its host may know more, and were not asked.
    Lost { peer: u32, evidence: Evidence, may_run: bool },
}

impl Life {
    /// Creates the life of a world of `ranks` ranks, which all run.
    pub(super) fn new(me: u32, ranks: u32, now: Instant) -> Self {
        let peers = vec![Peer { stage: Stage::Runs, heard: false }; ranks as usize];
        Life { me, peers, suspects: Suspects::new(now), failure: None, is_over: false }
    }

    fn others(&self) -> impl Iterator<Item = &Peer> {
        let me = self.me as usize;
        self.peers.iter().enumerate().filter(move |&(peer, _)| peer != me).map(|(_, peer)| peer)
    }

    /// Takes a peer's word that it leaves in good order.
    pub(super) fn leaves(&mut self, peer: u32) {
        let stage = &mut self.peers[peer as usize].stage;
        if *stage == Stage::Runs {
            *stage = Stage::Left;
        }
    }

    /// Takes a peer's last message: it processes nothing any more. `waits` if it waits to hear the same of this rank.
    pub(super) fn ends(&mut self, peer: u32, waits: bool) {
        let stage = &mut self.peers[peer as usize].stage;
        let waited = matches!(stage, Stage::Ended { waits: true });
        *stage = Stage::Ended { waits: waits || waited };
    }

    /// Takes a sign of life of a peer.
    #[inline]
    pub(super) fn hear(&mut self, peer: u32) {
        self.peers[peer as usize].heard = true;
    }

    /// Returns whether a peer gave a sign of life since the last call.
    pub(in crate::internals::fabric::net) fn was_heard(&mut self, peer: u32) -> bool {
        std::mem::take(&mut self.peers[peer as usize].heard)
    }

    /// Suspects that a peer has ended. What it sent before, and what others say about it, may still be unread.
    pub(super) fn suspect(&mut self, peer: u32, evidence: Evidence, now: Instant) {
        self.suspects.add(peer, evidence, now);
    }

    pub(in crate::internals::fabric::net) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    pub(super) fn is_suspected(&self, peer: u32) -> bool {
        self.suspects.has(peer)
    }

    /// Returns whether the kernel has reported the end of a peer's process.
    pub(super) fn has_process_ended(&self, peer: u32) -> bool {
        self.suspects.has_ended(peer)
    }

    /// Takes a poll of the network after which all events are processed; `quiet` if there were none. `is_settled`:
    /// no transfer to or from a peer can still complete or fail. Returns what is certain of one suspected peer.
    pub(super) fn confirm(&mut self, now: Instant, quiet: bool, is_settled: impl Fn(u32) -> bool) -> Option<Confirmed> {
        let Life { peers, suspects, .. } = self;
        suspects.clear(|peer, evidence| {
            let heard = peers[peer as usize].heard && matches!(evidence, Evidence::Silent(_));
            heard || peers[peer as usize].stage.has_ended() && is_settled(peer)
        });
        let (peer, evidence, asked_in_vain) = suspects.confirm(now, quiet)?;
        Some(match peers[peer as usize].stage {
            Stage::Runs => {
                let may_run = evidence != Evidence::Ended && !asked_in_vain;
                Confirmed::Lost { peer, evidence, may_run }
            }
            Stage::Left | Stage::Ended { .. } => Confirmed::Ended(peer),
        })
    }

    /// Records that ranks on the host of a peer were asked for it.
    pub(super) fn asked(&mut self, peer: u32, evidence: Evidence) {
        self.suspects.asked(peer, evidence);
    }

    /// Takes the answer of a rank on a peer's host: whether that peer's process runs. Returns why the world fails;
    /// `why` adds what else may explain a lost way.
    pub(super) fn answered(&mut self, from: u32, peer: u32, runs: bool, why: &str) -> Option<Failure> {
        if self.peers.get(peer as usize)?.stage != Stage::Runs {
            return None;
        }
        Some(match (self.suspects.answered(peer)?, runs) {
            (Evidence::Ended, _) | (_, false) => Failure::Died { peer, how: ENDED.to_owned() },
            (evidence, true) => {
                let seen = if from == self.me { "this rank".to_owned() } else { format!("rank {from} on its host") };
                let evidence = evidence.of_one_that_runs();
                let cause = format!("its process runs, as {seen} sees, but the way to it is lost ({evidence}{why})");
                Failure::Transport { by: self.me, peer: Some(peer), cause }
            }
        })
    }

    /// Fails the world. Returns false if it had failed before: the first reason stays.
    pub(super) fn fail(&mut self, failure: Failure) -> bool {
        let is_first = self.failure.is_none();
        self.failure.get_or_insert(failure);
        is_first
    }

    #[inline]
    pub(in crate::internals::fabric::net) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Records that this rank announces its end.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Returns whether this rank has announced its end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns whether a message must be sent to a peer; `is_last` if it is this rank's last one. A peer that has
    /// announced its end waits to hear the same. A peer whose process has ended does not.
    #[inline]
    pub(super) fn must_tell(&self, peer: u32, is_last: bool) -> bool {
        match self.peers[peer as usize].stage {
            Stage::Runs | Stage::Left => is_last || !self.is_over,
            Stage::Ended { waits } => is_last && waits,
        }
    }

    pub(in crate::internals::fabric) fn has_left(&self, peer: u32) -> bool {
        self.peers[peer as usize].stage != Stage::Runs
    }

    /// Returns whether a peer processes nothing any more.
    #[inline]
    pub(super) fn has_ended(&self, peer: u32) -> bool {
        self.peers[peer as usize].stage.has_ended()
    }

    /// Returns whether all ranks have left, so that none needs this one any more; or the world has failed.
    pub(in crate::internals::fabric::net) fn have_all_left(&self) -> bool {
        self.has_failed() || self.others().all(|peer| peer.stage != Stage::Runs)
    }

    /// Returns whether every other rank has ended, so that no rank sends to this one any more; or the world has failed.
    pub(in crate::internals::fabric::net) fn have_all_ended(&self) -> bool {
        self.has_failed() || self.others().all(|peer| peer.stage.has_ended())
    }
}

impl Stage {
    #[inline]
    fn has_ended(self) -> bool {
        matches!(self, Stage::Ended { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::fabric::net::suspects::STEP;

    const UNSETTLED: fn(u32) -> bool = |_| false;

    fn unreachable() -> Evidence {
        Evidence::Unreachable("reset".to_owned())
    }

    /// Polls in vain until a suspicion is confirmed.
    fn confirmed(life: &mut Life, now: &mut Instant) -> Option<Confirmed> {
        (0..200).find_map(|_| {
            *now += STEP;
            life.confirm(*now, true, UNSETTLED)
        })
    }

    #[test]
    fn a_peer_that_leaves_and_ends_is_told_the_end_and_no_more() {
        let mut life = Life::new(0, 2, Instant::now());
        assert!(!life.have_all_left() && life.must_tell(1, false));
        life.leaves(1);
        assert!(life.have_all_left() && !life.have_all_ended() && life.must_tell(1, false));
        life.ends(1, true);
        assert!(life.have_all_ended() && !life.must_tell(1, false) && life.must_tell(1, true));
        life.end();
        assert!(life.must_tell(1, true) && !life.has_failed());
    }

    #[test]
    fn a_rank_that_has_ended_sends_only_its_last_message() {
        let mut life = Life::new(1, 3, Instant::now());
        life.end();
        assert!(!life.must_tell(0, false) && life.must_tell(0, true));
        // The last message of a failed world needs no answer.
        life.ends(2, false);
        assert!(!life.must_tell(2, true));
        // A message that was overtaken changes nothing.
        life.leaves(2);
        assert!(life.has_ended(2));
    }

    #[test]
    fn an_ended_process_is_dead_unless_its_rank_has_left() {
        let mut now = Instant::now();
        let mut life = Life::new(0, 3, now);
        life.leaves(2);
        for peer in [1, 2] {
            life.suspect(peer, Evidence::Ended, now);
            assert!(life.has_process_ended(peer));
        }
        let lost = Confirmed::Lost { peer: 1, evidence: Evidence::Ended, may_run: false };
        assert_eq!(confirmed(&mut life, &mut now), Some(lost));
        assert_eq!(confirmed(&mut life, &mut now), Some(Confirmed::Ended(2)));
        assert!(!life.has_suspects());
    }

    #[test]
    fn a_silent_peer_that_speaks_again_is_not_suspected() {
        let mut now = Instant::now();
        let mut life = Life::new(0, 3, now);
        life.suspect(1, Evidence::Silent(STEP), now);
        life.suspect(2, unreachable(), now);
        life.hear(1);
        life.hear(2);
        let lost = Confirmed::Lost { peer: 2, evidence: unreachable(), may_run: true };
        assert_eq!(confirmed(&mut life, &mut now), Some(lost), "what it sent before says nothing of the way to it");
        assert!(life.was_heard(1) && !life.was_heard(1) && !life.has_suspects());
    }

    #[test]
    fn an_ended_peer_stays_suspected_while_transfers_wait_for_it() {
        let now = Instant::now();
        let mut life = Life::new(0, 2, now);
        life.suspect(1, unreachable(), now);
        life.ends(1, true);
        assert_eq!(life.confirm(now, true, UNSETTLED), None);
        assert!(life.has_suspects());
        assert_eq!(life.confirm(now, true, |_| true), None);
        assert!(!life.has_suspects());
    }

    #[test]
    fn the_answer_of_a_witness_tells_a_death_from_a_lost_way() {
        let now = Instant::now();
        let asked = |evidence: Evidence| {
            let mut life = Life::new(0, 4, now);
            life.asked(1, evidence);
            life
        };
        let answer = |mut life: Life, from, runs| life.answered(from, 1, runs, "; its port is down");
        let died = Failure::Died { peer: 1, how: ENDED.to_owned() };
        assert_eq!(answer(asked(unreachable()), 2, false), Some(died.clone()));
        assert_eq!(answer(asked(Evidence::Ended), 2, true), Some(died));
        let Some(Failure::Transport { by: 0, peer: Some(1), cause }) = answer(asked(unreachable()), 2, true) else {
            panic!("the way to rank 1 is lost");
        };
        let told = "its process runs, as rank 2 on its host sees, but the way to it is lost (reset; its port is down)";
        assert_eq!(cause, told);
        let mut left = asked(unreachable());
        left.leaves(1);
        assert_eq!(answer(left, 2, false), None);
        assert_eq!(answer(Life::new(0, 4, now), 2, false), None, "no rank was asked");
        assert_eq!(asked(unreachable()).answered(2, 9, false, ""), None, "there is no such rank");
    }

    #[test]
    fn witnesses_that_do_not_answer_are_asked_once() {
        let mut now = Instant::now();
        let mut life = Life::new(0, 2, now);
        life.suspect(1, unreachable(), now);
        let first = confirmed(&mut life, &mut now);
        assert_eq!(first, Some(Confirmed::Lost { peer: 1, evidence: unreachable(), may_run: true }));
        life.asked(1, unreachable());
        let second = confirmed(&mut life, &mut now);
        assert_eq!(second, Some(Confirmed::Lost { peer: 1, evidence: unreachable(), may_run: false }));
    }

    #[test]
    fn the_first_failure_stays() {
        let mut life = Life::new(0, 2, Instant::now());
        let aborted = |by| Failure::Aborted { by, reason: "a test".to_owned() };
        assert!(life.fail(aborted(1)));
        assert!(!life.fail(aborted(0)));
        assert_eq!(life.failure(), Some(&aborted(1)));
        assert!(life.have_all_left() && life.have_all_ended(), "a failed world waits for no rank");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Leaves,
        Ends(bool),
        Suspect(Evidence),
        Hear,
        Polls(u32, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Leaves),
            any::<bool>().prop_map(Step::Ends),
            Just(Step::Suspect(Evidence::Ended)),
            Just(Step::Suspect(unreachable())),
            Just(Step::Suspect(Evidence::Silent(Duration::from_secs(1)))),
            Just(Step::Hear),
            (1..20u32, any::<bool>()).prop_map(|(count, quiet)| Step::Polls(count, quiet)),
        ]
    }

    proptest! {
        /// In any order of events: a stage never goes back, a peer is lost only if it has not left, and no peer is
        /// confirmed that no event made suspect.
        #[test]
        fn a_life_goes_one_way(steps in proptest::collection::vec(step(), 1..60)) {
            let mut now = Instant::now();
            let mut life = Life::new(0, 2, now);
            let (mut left, mut ended, mut suspected) = (false, false, false);
            for step in steps {
                match step {
                    Step::Leaves => life.leaves(1),
                    Step::Ends(waits) => life.ends(1, waits),
                    Step::Suspect(evidence) => {
                        life.suspect(1, evidence, now);
                        suspected = true;
                    }
                    Step::Hear => life.hear(1),
                    Step::Polls(count, quiet) => for _ in 0..count {
                        now += STEP;
                        match life.confirm(now, quiet, UNSETTLED) {
                            None => {}
                            Some(Confirmed::Ended(1)) => {
                                prop_assert!(suspected && left);
                                life.ends(1, false);
                            }
                            Some(Confirmed::Lost { peer: 1, .. }) => prop_assert!(suspected && !left),
                            Some(other) => prop_assert!(false, "{other:?}"),
                        }
                    }
                }
                prop_assert!(life.has_left(1) || !left);
                prop_assert!(life.has_ended(1) || !ended);
                (left, ended) = (life.has_left(1), life.has_ended(1));
                prop_assert!(left || !ended);
                prop_assert_eq!(life.must_tell(1, false), !ended);
            }
        }
    }
}
