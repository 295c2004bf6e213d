//! Compares the rule with every fixed quorum, in virtual time.

use super::super::durations::{Durations, Particulars};
use super::super::entry::Entry;
use super::super::played_tests::Lateness::{AfterAPause, Balanced, FailSlow, Moving};
use super::super::played_tests::{KINDS, Lateness, play};
use super::*;

fn best_fixed(kind: Lateness, ranks: u32, seed: u64) -> (f64, u32) {
    let cost = |quorum| (play(kind, ranks, Some(quorum), 1500, (seed, 0)).cost, quorum);
    (1..=ranks).map(cost).min_by(|one, other| one.0.total_cmp(&other.0)).expect("a world has a rank")
}

#[test]
fn it_costs_little_more_than_the_best_fixed_rule() {
    for (ranks, kind) in [4, 8, 32].into_iter().flat_map(|ranks| KINDS.map(|kind| (ranks, kind))) {
        for seed in [1, 2, 3] {
            let (best, quorum) = best_fixed(kind, ranks, seed);
            let auto = play(kind, ranks, None, 1500, (seed, 0));
            let ratio = auto.cost / best;
            println!("{ranks:3} {kind:?} seed {seed}: {ratio:.3} of quorum={quorum}");
            assert!(ratio < 1.10, "{kind:?} with {ranks} ranks, seed {seed}: {ratio} of quorum={quorum}");
        }
    }
}

#[test]
fn balanced_ranks_wait_for_all() {
    for (ranks, moving) in [4, 8, 32].into_iter().flat_map(|ranks| [(ranks, 0), (ranks, 20_000_000)]) {
        for seed in 1..=3 {
            let quorums = play(Balanced, ranks, None, 1000, (seed, moving)).quorums;
            assert!(quorums[32..].iter().all(|&quorum| quorum == ranks), "{ranks} ranks, data moves for {moving} ns");
        }
    }
}

#[test]
fn changes_are_followed() {
    for (ranks, seed) in [4, 8, 32].into_iter().flat_map(|ranks| [(ranks, 1), (ranks, 2), (ranks, 3)]) {
        let quorums = play(FailSlow, ranks, None, 1500, (seed, 0)).quorums;
        let down = quorums[300..].iter().position(|&quorum| quorum < ranks).unwrap();
        let up = quorums[600..].iter().rposition(|&quorum| quorum < ranks).map_or(0, |last| last + 1);
        println!("{ranks} ranks, seed {seed}: down after {down} rounds, up for good after {up}");
        assert!(down <= 32 && up <= 64, "{ranks} ranks, seed {seed}: down after {down}, up after {up}");
        assert!(quorums[340..600].iter().all(|&quorum| quorum == ranks - 1));
    }
}

#[test]
fn a_slow_rank_that_moves_and_a_pause_of_all_are_followed() {
    for ranks in [4, 8, 16] {
        let (best, quorum) = best_fixed(Moving, ranks, 1);
        let ratio = play(Moving, ranks, None, 1500, (1, 0)).cost / best;
        println!("{ranks} ranks: {ratio:.3} of quorum={quorum}");
        assert!(ratio < 1.10, "{ranks} ranks: {ratio} of quorum={quorum}");
        let quorums = play(AfterAPause, ranks, None, 1000, (1, 0)).quorums;
        let down = quorums[510..].iter().position(|&quorum| quorum < ranks);
        println!("{ranks} ranks: down after {down:?}");
        assert!(down.is_some_and(|down| down <= 32), "{ranks} ranks: {down:?}");
    }
}

/// A rank that is away tells nothing: its absence is what the others know.
#[test]
fn a_rank_that_stays_away_is_not_waited_for() {
    let mut auto = AutoQuorum::new(4, 10, 0);
    let told = |waited| Particulars::new(1, Durations::new(Some(10_000_000), Some(waited)));
    for round in 1..200 {
        let present = if round < 20 { 4 } else { 3 };
        let entries = (0..present).map(|rank| Entry::new(rank, Part::Fresh, (0, told(0)), 0)).collect();
        auto.learn(round, &Cut::of_entries(round, None, entries), &RankSet::full(4));
        assert!(round < 30 || auto.quorum(4) == 3, "round {round}");
    }
}

/// A restored world counts its own rounds, by the numbers that its caller knows.
#[test]
fn what_was_saved_goes_on_alike() {
    for (kind, ranks, at) in [(Lateness::OneTwice, 4, 40), (Lateness::HalfTwice, 8, 100), (FailSlow, 32, 310)] {
        let cuts = play(kind, ranks, None, 600, (5, 0)).cuts;
        let all = RankSet::full(ranks);
        let (before, after) = cuts.split_at(at);
        let mut auto = AutoQuorum::new(ranks, 10, 0);
        before.iter().for_each(|cut| auto.learn(cut.round(), cut, &all));
        let saved = serde_json::to_string(&auto.save()).unwrap();
        let saved: SavedQuorum = serde_json::from_str(&saved).unwrap();
        assert!(saved.is_possible(ranks, at as u64));
        assert!(!saved.is_possible(ranks + 1, at as u64) && !saved.is_possible(ranks, 3));
        let mut restored = AutoQuorum::new(ranks, 10, 0);
        restored.resume(&saved);
        for cut in after {
            auto.learn(cut.round(), cut, &all);
            restored.learn(cut.round(), cut, &all);
            assert_eq!(auto.save(), restored.save(), "{kind:?}, round {}", cut.round());
        }
    }
}

/// The longest steps that can be told, in a world of many ranks.
#[test]
fn what_follows_from_long_steps_can_be_restored() {
    let (ranks, long) = (600, Particulars::new(1, Durations::new(Some(Time::MAX), Some(Time::MAX / 2))));
    let mut auto = AutoQuorum::new(ranks, 10, 0);
    for round in 1..1000 {
        let entries = (0..ranks).map(|rank| Entry::new(rank, Part::Fresh, (0, long), 0)).collect();
        auto.learn(round, &Cut::of_entries(round, None, entries), &RankSet::full(ranks));
    }
    assert!(auto.save().is_possible(ranks, 999));
}

#[test]
fn nothing_measured_changes_nothing() {
    let mut auto = AutoQuorum::new(3, 10, 0);
    for round in 1..100 {
        let entries = (0..3).map(|rank| Entry::new(rank, Part::Fresh, (0, Particulars::PLAIN), 0)).collect();
        auto.learn(round, &Cut::of_entries(round, None, entries), &RankSet::full(3));
    }
    assert_eq!((auto.quorum(3), auto.quorum(2), auto.quorum(0)), (3, 2, 1));
}
