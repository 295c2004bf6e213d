//! Runs in virtual time, of which the account must say what was wrong with them.

use super::*;
use crate::collective::core::played_tests::{KINDS, Lateness as Kind, play};
use crate::collective::core::{Entry, Particulars};

/// The account of 1,000 rounds.
fn account_of(kind: Kind, ranks: u32, quorum: u32, seed: u64) -> Lateness {
    let mut account = Account::new(ranks);
    for cut in play(kind, ranks, Some(quorum), 1000, (seed, 0)).cuts {
        account.add(cut.round, &cut, |_| ());
    }
    account.lateness()
}

fn names(lateness: &Lateness) -> Vec<u32> {
    lateness.slow_ranks().map(|rank| rank.rank).collect()
}

/// What an account names, for each kind of lateness: the ranks that are slow for a while.
#[test]
fn it_tells_jitter_from_a_lasting_change_and_a_slow_host_from_a_slow_rank() {
    for (ranks, seed) in [(4, 1), (8, 2), (16, 3), (32, 4)] {
        for (quorum, kind) in [ranks, 3 * ranks / 4, 1].into_iter().flat_map(|quorum| KINDS.map(|kind| (quorum, kind)))
        {
            let lateness = account_of(kind, ranks, quorum, seed);
            let (slow, hosts) = (names(&lateness), lateness.slow_hosts(|rank| rank / 8.min(ranks / 2)));
            let (expected, host) = match kind {
                Kind::Balanced | Kind::OneRandom | Kind::Lognormal | Kind::Rare => (0..0, None),
                Kind::Moving | Kind::AfterAPause => unreachable!("not one of the kinds"),
                Kind::OneTwice | Kind::FailSlow => (0..1, None),
                Kind::HalfTwice => (0..ranks / 2, Some(ranks)),
                Kind::SlowHost => (0..8.min(ranks / 2), Some(0)),
            };
            let what = format!("{kind:?} with {ranks} ranks, quorum={quorum}");
            assert!(slow.iter().copied().eq(expected), "{what}: {slow:?}");
            match host {
                None => assert!(hosts.is_empty(), "{what}: {hosts:?}"),
                Some(0) => assert_eq!(hosts, [0], "{what}"),
                Some(_) => assert!(!hosts.is_empty(), "{what}"),
            }
        }
    }
}

/// A rank that is slow again and again has the newest spells apart, and none takes memory in a round.
#[test]
fn the_oldest_of_many_spells_become_one() {
    let mut seen = Seen::default();
    seen.reserve();
    let memory = seen.spells.as_ptr();
    let step = Sums { steps: 1, factors: 2.0, cost: 10, jitter: 0 };
    for round in 1..=4000 {
        seen.judge(round, (round - 1) / 100 % 2 == 0, step, 0.02);
    }
    let spells = &seen.spells;
    assert_eq!((spells.len(), spells.as_ptr()), (MOST_SPELLS, memory));
    assert_eq!((spells[0].since, spells[0].until, spells[0].sums.steps), (1, Some(901), 500), "five as one");
    let newer = spells[1..].iter().zip(5..);
    newer.for_each(|(spell, at)| assert_eq!((spell.since, spell.until), (at * 200 + 1, Some(at * 200 + 101))));
}

const MS: Time = 1_000_000;

/// A round in which ranks tell these times of computation, in milliseconds; `None`: the rank leaves.
fn round_of(times: &[Option<Time>], round: u64) -> Cut {
    let told = |ms: Time| Particulars::new(1, Durations::new(Some(ms * MS), Some(0)));
    let entry = |(rank, time): (u32, &Option<Time>)| match *time {
        Some(ms) => Entry::new(rank, Part::Fresh, (0, told(ms)), 0),
        None => Entry::new(rank, Part::Leaving, (0, Particulars::weighing(0)), 0),
    };
    Cut::of_entries(round, None, (0..).zip(times).map(entry).collect())
}

/// What a slow rank costs is not counted again as jitter; a single long step is jitter.
#[test]
fn a_slow_rank_is_no_jitter() {
    let mut account = Account::new(4);
    for round in 1..=500 {
        let slow = if (200..300).contains(&round) { 15 } else { 3 };
        let single = if round == 77 { 13 } else { 3 };
        account.add(round, &round_of(&[Some(3), Some(single), Some(slow), Some(3)], round), |_| ());
    }
    let lateness = account.lateness();
    assert_eq!(names(&lateness), [2]);
    let [spell] = lateness.ranks[2].spells[..] else { panic!("{:?}", lateness.ranks[2]) };
    assert!((1.15..1.25).contains(&spell.cost.as_secs_f64()), "{spell:?}");
    assert!((0.009..0.011).contains(&lateness.jitter.as_secs_f64()), "{:?}", lateness.jitter);
}

/// A rank that has left is neither the one that others are compared with nor one to wait for.
#[test]
fn a_rank_that_has_left_counts_no_more() {
    for of_leaver in [1, 100] {
        let mut account = Account::new(4);
        let present = round_of(&[Some(10), Some(10), Some(10), Some(of_leaver)], 0);
        (1..50).for_each(|round| account.add(round, &present, |_| ()));
        account.add(50, &round_of(&[Some(10), Some(10), Some(10), None], 50), |rank| assert_eq!(rank, 3));
        (51..550).for_each(|round| account.add(round, &round_of(&[Some(10); 3], round), |_| ()));
        let lateness = account.lateness();
        let would_wait = lateness.ranks[0].would_wait.as_secs_f64();
        assert!(would_wait < 0.09 * 51.0, "{would_wait}");
        assert!(lateness.ranks[..3].iter().all(|rank| !rank.is_slow()), "{lateness:?}");
    }
}

#[test]
fn a_rank_that_computes_nothing_gives_no_infinite_factor() {
    let mut account = Account::new(2);
    (1..100).for_each(|round| account.add(round, &round_of(&[Some(0), Some(3)], round), |_| ()));
    let [spell] = account.lateness().ranks[1].spells[..] else { panic!("no spell") };
    assert!(spell.factor <= 3.1 * MS as f64 / Durations::UNIT as f64, "{spell:?}");
}

#[test]
fn a_spell_is_dated_and_priced() {
    for (ranks, quorum) in [(4, 4), (4, 3), (32, 32), (32, 31), (32, 16)] {
        let lateness = account_of(Kind::FailSlow, ranks, quorum, 7);
        let [spell] = lateness.ranks[0].spells[..] else { panic!("{:?}", lateness.ranks[0]) };
        // The round after round 300 is the first slow one.
        assert!(spell.since.abs_diff(301) <= 2, "{spell:?}");
        assert!(spell.until.is_some_and(|until| until.abs_diff(601) <= 2), "{spell:?}");
        assert!((spell.factor - 1.5).abs() < 0.05, "{spell:?}");
        let steps = if quorum == ranks { 300 } else { 200 };
        let cost = spell.cost.as_secs_f64() / (f64::from(steps) * 0.005);
        assert!((0.85..1.15).contains(&cost), "{spell:?} costs {cost} of what it must");
        assert_eq!(lateness.rounds, 1000);
        // All others would have waited for 5 ms in each of the slow rounds, and for a tenth of one in the others.
        let other = lateness.ranks[1].would_wait.as_secs_f64() / 1.5;
        assert!((0.85..1.25).contains(&other) || quorum < ranks, "{other}");
        assert!(lateness.ranks[0].would_wait < lateness.ranks[1].would_wait);
        let late = lateness.ranks[0].late;
        assert_eq!(late > 0, quorum < ranks, "{:?}", lateness.ranks[0]);
    }
}
