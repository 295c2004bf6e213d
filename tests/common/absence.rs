//! Rounds that the other ranks make while one is away, and what that one finds then.

use std::time::Duration;

use earlybird::Allreduce;

/// What rank `rank` contributes for round `target`.
pub fn value(rank: u32, target: u64) -> u64 {
    u64::from(rank + 1) << 32 | target
}

/// Contributes until so many rounds are there, and checks every outcome. A rank that was away calls this, too, when it
/// is back. Returns how many rounds the first wait received.
pub fn rounds(sum: &mut Allreduce<u64>, (me, away): (u32, u32), rounds: u64, deadline: Duration) -> u64 {
    let (mut newest, mut first) = (0, None);
    while newest < rounds {
        sum.contribution().unwrap().fill(value(me, newest + 1));
        sum.arrive().unwrap();
        let outcomes = sum.wait(deadline).unwrap();
        first.get_or_insert(outcomes.len() as u64);
        for outcome in outcomes {
            assert_eq!(outcome.round(), newest + 1, "a round is lost");
            newest = outcome.round();
            let parts = outcome.cut().contributions();
            let expected = parts.fold(0u64, |sum, entry| sum.wrapping_add(value(entry.rank, newest - entry.age)));
            assert!(outcome.data().iter().all(|&x| x == expected), "round {newest}: {:?}", outcome.cut());
            assert!(
                me == away || newest > rounds || outcome.cut().entries().all(|entry| entry.rank != away),
                "rank {away} was away in round {newest}"
            );
        }
    }
    first.unwrap_or(0)
}
