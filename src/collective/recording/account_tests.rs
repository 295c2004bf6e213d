//! Runs in virtual time, recorded in files, of which the account must say what was wrong with them.

use std::collections::BTreeMap;

use super::format::{Header, VERSION};
use super::reader::Recorded;
use super::writer::Recorder;
use crate::collective::core::played_tests::Lateness::{
    self as Kind, Balanced, FailSlow, HalfTwice, Lognormal, OneRandom, OneTwice, Rare, SlowHost,
};
use crate::collective::core::played_tests::{Played, Run, play, play_work};
use crate::collective::core::{Cut, Time};
use crate::collective::lateness::{Account, Lateness};

const RANKS: u32 = 16;

/// Rank 2 takes five times as long for rounds 300 to 699.
struct FiveTimes;

impl Played for FiveTimes {
    fn begins(&mut self, rank: u32, round: u64) -> Time {
        let usual = 10_000_000 + (round * 7 + u64::from(rank) * 13) % 5 * 40_000;
        if rank == 2 && (300..700).contains(&(round + 1)) { 5 * usual } else { usual }
    }

    fn fires(&mut self, round: u64, _: Time) -> bool {
        round < 1000
    }
}

/// What `earlybird report` reads from a recording of these cuts, by ranks of which every eight share a host.
fn reported(cuts: &[Cut], name: &str) -> (Lateness, Vec<u32>) {
    let file = std::env::temp_dir().join(format!("earlybird-account-{}-{name}", std::process::id()));
    let header = Header {
        earlybird_recording: VERSION,
        ranks: RANKS,
        rank: 0,
        collective: 0,
        choices: BTreeMap::from([("fire".to_owned(), "all".to_owned())]),
        hosts: (0..RANKS).map(|rank| rank / 8).collect(),
        groups: false,
        tree: false,
    };
    let mut recorder = Recorder::new(&file, &header).unwrap();
    let (last, before) = cuts.split_last().unwrap();
    before.iter().for_each(|cut| recorder.took(&(cut.round()..=cut.round()), std::slice::from_ref(cut)));
    // The rank is killed in its last wait.
    recorder.left(std::slice::from_ref(last)).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.trim_end().rsplit_once('\n').unwrap().0.to_owned() + "\n").unwrap();
    let recorded = Recorded::open(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(recorded.cuts.len(), before.len());
    let mut account = Account::new(recorded.ranks);
    recorded.cuts.iter().for_each(|cut| account.add(cut.round(), cut, |_| ()));
    let lateness = account.lateness();
    let hosts = lateness.slow_hosts(|rank| recorded.hosts[rank as usize]);
    (lateness, hosts)
}

fn named(lateness: &Lateness) -> Vec<u32> {
    lateness.slow_ranks().map(|rank| rank.rank).collect()
}

#[test]
fn a_recording_tells_who_was_slow_and_since_when() {
    let Run { cuts, .. } = play_work(&mut FiveTimes, RANKS, Some(RANKS), 0);
    let (lateness, hosts) = reported(&cuts, "five-times");
    assert_eq!((named(&lateness), hosts), (vec![2], vec![]));
    let spell = lateness.ranks[2].spells[0];
    assert!(spell.since.abs_diff(300) <= 2 && spell.until.is_some_and(|until| until.abs_diff(700) <= 2), "{spell:?}");
    assert!((spell.factor - 5.0).abs() < 0.2, "{spell:?}");
}

/// Jitter from a lasting change, and a slow host from slow ranks.
#[test]
fn seven_more_recordings_name_the_slow_ranks_and_balanced_ones_none() {
    let of = |kind: Kind, seed: u64, name: &str| {
        let Run { cuts, .. } = play(kind, RANKS, Some(RANKS), 1000, (seed, 0));
        reported(&cuts, name)
    };
    let cases: [(Kind, std::ops::Range<u32>, &[u32]); 7] = [
        (OneTwice, 0..1, &[]),
        (FailSlow, 0..1, &[]),
        (SlowHost, 0..8, &[0]),
        (HalfTwice, 0..8, &[0]),
        (OneRandom, 0..0, &[]),
        (Lognormal, 0..0, &[]),
        (Rare, 0..0, &[]),
    ];
    for (kind, ranks, hosts) in cases {
        let (lateness, named_hosts) = of(kind, 11, &format!("{kind:?}"));
        assert!(named(&lateness).into_iter().eq(ranks), "{kind:?}: {:?}", named(&lateness));
        assert_eq!(named_hosts, hosts, "{kind:?}");
    }
    for seed in 1..=3 {
        let (lateness, hosts) = of(Balanced, seed, &format!("balanced-{seed}"));
        assert_eq!((named(&lateness), hosts), (vec![], vec![]), "seed {seed}");
    }
}
