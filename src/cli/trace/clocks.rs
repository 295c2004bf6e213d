//! Aligns the clocks of machines by the rounds that their ranks had together.
//!
//! A round fires after each of its fresh contributions was handed in, and before any rank knows its cut. So what a
//! machine must add to its times has a lower and an upper limit with each round that it shares with others. Between the
//! limits, the ranks that waited for a round learn of it at nearly the same time.

use std::collections::{BTreeMap, BTreeSet};

use super::file::{Round, Seen, TraceFile};

/// What is added to the times of a rank, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clock {
    pub(super) offset: i64,
    /// What the rounds allow; `None` if they set no limit.
    pub(super) at_least: Option<i64>,
    pub(super) at_most: Option<i64>,
    /// The number of rounds that the limits come from.
    pub(super) shared: usize,
}

/// What the ranks of some machines knew of a round, by one clock: the newest arrival, the first knowledge, and when a
/// rank that had arrived in it first knew it.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    arrived: Option<i64>,
    knew: Option<i64>,
    learned: Option<i64>,
}

impl Limits {
    fn join(&mut self, other: Limits, offset: i64) {
        let moved = |time: Option<i64>| time.map(|time| time.saturating_add(offset));
        let least = |a: Option<i64>, b: Option<i64>| [a, b].into_iter().flatten().min();
        self.arrived = self.arrived.max(moved(other.arrived));
        self.knew = least(self.knew, moved(other.knew));
        self.learned = least(self.learned, moved(other.learned));
    }
}

impl From<Seen> for Limits {
    fn from(Seen { arrived, knew }: Seen) -> Self {
        Limits { arrived, knew, learned: knew.filter(|_| arrived.is_some()) }
    }
}

/// Returns a clock for each file. Those of one machine are equal, and the machine of the first file has offset 0.
pub(super) fn align(files: &[TraceFile]) -> Vec<Clock> {
    let mut machines: BTreeMap<&str, BTreeMap<Round, Limits>> = BTreeMap::new();
    for file in files {
        let of_machine = machines.entry(&file.machine).or_default();
        file.rounds().into_iter().for_each(|(round, seen)| of_machine.entry(round).or_default().join(seen.into(), 0));
    }
    let mut clocks: BTreeMap<&str, Clock> = BTreeMap::new();
    let mut aligned: BTreeMap<Round, Limits> = BTreeMap::new();
    let mut rest: BTreeSet<usize> = (0..files.len()).collect();
    let common = |rounds: &BTreeMap<Round, Limits>, aligned: &BTreeMap<Round, Limits>| {
        rounds.keys().filter(|round| aligned.contains_key(round)).count()
    };
    // The next machine is one that shares many rounds with those before it; the first one is that of the first file.
    let shares = |index: usize, aligned: &BTreeMap<Round, Limits>| common(&machines[&*files[index].machine], aligned);
    while let Some(next) = rest.iter().copied().max_by_key(|&index| (shares(index, &aligned), usize::MAX - index)) {
        let (machine, rounds) = (&*files[next].machine, &machines[&*files[next].machine]);
        let clock = compare(rounds, &aligned, files[next].to_wall.saturating_sub(files[0].to_wall));
        rounds.iter().for_each(|(&round, &limits)| aligned.entry(round).or_default().join(limits, clock.offset));
        clocks.insert(machine, clock);
        rest.retain(|&index| files[index].machine != machine);
    }
    files.iter().map(|file| clocks[&*file.machine]).collect()
}

/// Returns the clock of a machine, beside those that are aligned. `guess` counts if they share no round.
fn compare(own: &BTreeMap<Round, Limits>, aligned: &BTreeMap<Round, Limits>, guess: i64) -> Clock {
    let (mut at_least, mut at_most, mut shared) = (None, None, 0);
    let mut between = Vec::new();
    for (round, own) in own {
        let Some(others) = aligned.get(round) else { continue };
        shared += 1;
        if let (Some(arrived), Some(knew)) = (others.arrived, own.knew) {
            at_least = at_least.max(Some(arrived.saturating_sub(knew)));
        }
        if let (Some(knew), Some(arrived)) = (others.knew, own.arrived) {
            let limit = knew.saturating_sub(arrived);
            at_most = Some(at_most.map_or(limit, |before: i64| before.min(limit)));
        }
        if let (Some(others), Some(own)) = (others.learned, own.learned) {
            between.push(others.saturating_sub(own));
        }
    }
    between.sort_unstable();
    let guess = between.get(between.len() / 2).copied().unwrap_or(guess);
    let offset = match (at_least, at_most) {
        // A clock that runs faster than the others has no offset that suits all rounds.
        (Some(least), Some(most)) if least > most => least.midpoint(most),
        (least, most) => guess.max(least.unwrap_or(i64::MIN)).min(most.unwrap_or(i64::MAX)),
    };
    Clock { offset, at_least, at_most, shared }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of a rank whose clock is behind by an offset, with the times of its rounds: when it arrived, fresh or
    /// not, and when it knew.
    fn file(rank: u32, machine: &str, offset: i64, rounds: &[(i64, bool, i64)]) -> TraceFile {
        let mut text = format!(
            "[\n{{\"ph\":\"M\",\"name\":\"earlybird_trace\",\"pid\":{rank},\"tid\":0,\"ts\":0,\"args\":{{\"version\":1,\"ranks\":3,\"machine\":\"{machine}\",\"wall_ns\":0,\"monotonic_ns\":0}}}}"
        );
        for (round, &(arrived, fresh, knew)) in (1..).zip(rounds) {
            let (arrived, knew) = (arrived - offset, knew - offset);
            let fresh = if fresh { round.to_string() } else { "null".to_owned() };
            text += &format!(
                ",\n{{\"ph\":\"B\",\"pid\":{rank},\"tid\":0,\"ts\":{arrived},\"name\":\"round {round}\",\"args\":{{\"round\":{round}}}}}"
            );
            text += &format!(
                ",\n{{\"ph\":\"i\",\"pid\":{rank},\"tid\":0,\"ts\":{knew},\"name\":\"cut\",\"args\":{{\"round\":{round}}}}}"
            );
            text += &format!(
                ",\n{{\"ph\":\"i\",\"pid\":{rank},\"tid\":0,\"ts\":{knew},\"name\":\"take\",\"args\":{{\"first\":{round},\"last\":{round},\"fresh\":{fresh}}}}}"
            );
        }
        TraceFile::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn clocks_of_other_machines_follow_from_the_rounds() {
        // In microseconds: rounds fire at 1000, 2000 and 3000; who waits knows 5 later.
        let a = file(0, "a", 0, &[(900, true, 1005), (1990, true, 2005), (2500, true, 3005)]);
        let b = file(1, "b", 700_000, &[(1000, true, 1006), (1500, true, 2006), (3000, true, 3004)]);
        let c = file(2, "c", -40, &[(990, true, 1005), (2500, false, 2501), (2900, true, 3005)]);
        let clocks = align(&[a, b, c]);
        assert_eq!(clocks[0], Clock { offset: 0, at_least: None, at_most: None, shared: 0 });
        assert_eq!(clocks[1].shared, 3);
        assert!((clocks[1].offset - 700_000_000).abs() <= 6_000, "{clocks:?}");
        assert!(clocks[1].at_least.unwrap() <= 700_000_000 && clocks[1].at_most.unwrap() >= 700_000_000);
        assert!((clocks[2].offset + 40_000).abs() <= 6_000, "{clocks:?}");
    }

    #[test]
    fn times_that_no_clock_shows_do_no_harm() {
        let [mut a, mut b] = [file(0, "a", 0, &[(900, true, 1005)]), file(1, "b", 0, &[(1000, true, 1006)])];
        (a.to_wall, b.to_wall) = (i64::MIN, i64::MAX);
        a.events.iter_mut().for_each(|event| event.time = event.time.map(|_| i64::MIN));
        b.events.iter_mut().for_each(|event| event.time = event.time.map(|_| i64::MAX));
        assert_eq!(align(&[a, b]).len(), 2);
    }

    #[test]
    fn ranks_of_one_machine_have_one_clock_and_strangers_that_of_the_wall() {
        let [a, b] = [file(0, "a", 0, &[(900, true, 1005)]), file(1, "a", 0, &[(1000, true, 1001)])];
        let clocks = align(&[a, b]);
        assert_eq!((clocks[0].offset, clocks[1].offset), (0, 0));
        let mut alone = file(2, "c", 0, &[]);
        alone.to_wall = 77;
        let clocks = align(&[file(0, "a", 0, &[(900, true, 1005)]), alone]);
        assert_eq!(clocks[1], Clock { offset: 77, at_least: None, at_most: None, shared: 0 });
    }
}
