//! Plans against brute force.

use super::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const MIB: u64 = 1 << 20;

fn gradients(of: &[(u64, u64)]) -> Vec<Gradient> {
    of.iter().map(|&(ready, bytes)| Gradient { ready: Duration::from_nanos(ready), bytes }).collect()
}

fn cost(message: u64, per_mib: u64) -> Cost {
    Cost { message: Duration::from_nanos(message), per_mib: Duration::from_nanos(per_mib) }
}

fn end(merging: Merging, gradients: &[Gradient], cost: Cost) -> Duration {
    Planner::default().plan(merging, gradients, cost).last().map_or(Duration::ZERO, |bucket| bucket.end)
}

/// Returns the earliest end of all divisions into buckets of consecutive gradients. Bit i of a division is set if a
/// bucket ends with gradient i.
fn earliest_of_buckets(gradients: &[Gradient], cost: Cost) -> Duration {
    let ends = |division: u32| {
        let (mut first, mut end) = (0, Duration::ZERO);
        for last in 0..gradients.len() {
            if last + 1 == gradients.len() || division >> last & 1 == 1 {
                let bucket = &gradients[first..=last];
                let ready = bucket.iter().map(|gradient| gradient.ready).max().unwrap();
                end = end.max(ready) + cost.of(bucket.iter().map(|gradient| gradient.bytes).sum::<u64>());
                first = last + 1;
            }
        }
        end
    };
    (0..1 << (gradients.len() - 1)).map(ends).min().unwrap()
}

/// Returns the earliest end of all schedules: any gradients in a message, messages in any order. Digit i of a schedule
/// is the message of gradient i.
fn earliest_of_all(gradients: &[Gradient], cost: Cost) -> Duration {
    let count = gradients.len();
    let ends = |schedule: usize| {
        (0..count).fold(Duration::ZERO, |end, message| {
            let is_in = |index: &usize| schedule / count.pow(*index as u32) % count == message;
            let members = || (0..count).filter(is_in).map(|index| gradients[index]);
            let ready = members().map(|gradient| gradient.ready).max();
            let bytes = members().map(|gradient| gradient.bytes).sum();
            ready.map_or(end, |ready| end.max(ready) + cost.of(bytes))
        })
    };
    (0..count.pow(count as u32)).map(ends).min().unwrap()
}

/// Draws gradients that become ready one after the other, and a message cost of about the time to compute them.
fn draw(rng: &mut impl Rng, most: usize, unit: u64) -> (Vec<Gradient>, Cost) {
    let mut ready = 0;
    let list = (0..rng.random_range(1..=most)).map(|_| {
        let most = [1_000, 10_000][rng.random_range(0..2)];
        ready += rng.random_range(0..=most);
        (ready, [1, 1, 10, 100][rng.random_range(0..4)] * unit)
    });
    (gradients(&list.collect::<Vec<_>>()), cost(rng.random_range(0..=10_000), rng.random_range(0..=200)))
}

#[test]
fn no_division_into_buckets_ends_earlier() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let (mut planner, mut merged, mut split) = (Planner::default(), 0, 0);
    for instance in 0..3_000 {
        // Sizes that are not whole MiB make the times of messages round.
        let unit = [MIB, 700_001][instance % 2];
        let (gradients, cost) = draw(&mut rng, 10, unit);
        let plan = planner.plan(Merging::Optimal, &gradients, cost);
        let what = format!("instance {instance}: {gradients:?}, {cost:?}, {plan:?}");
        assert_eq!(plan.last().unwrap().end, earliest_of_buckets(&gradients, cost), "{what}");
        merged += usize::from(plan.len() < gradients.len());
        split += usize::from(plan.len() > 1);
    }
    // Otherwise the instances would be too easy.
    assert!(merged > 1_000 && split > 1_000, "{merged} merge gradients, {split} have several messages");
}

/// With whole MiB, no time of a message is rounded.
#[test]
fn no_schedule_at_all_ends_earlier() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
    for instance in 0..500 {
        let (gradients, cost) = draw(&mut rng, 5, MIB);
        let best = earliest_of_all(&gradients, cost);
        assert_eq!(end(Merging::Optimal, &gradients, cost), best, "instance {instance}: {gradients:?}, {cost:?}");
    }
}

/// For any merging, every gradient is in one bucket, and messages do not overlap.
#[test]
fn plans_are_schedules() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut planner = Planner::default();
    for _ in 0..1_000 {
        let (mut gradients, cost) = draw(&mut rng, 40, 50_000);
        // The planner accepts ready times in any order.
        let (left, right) = (rng.random_range(0..gradients.len()), rng.random_range(0..gradients.len()));
        gradients.swap(left, right);
        let optimum = end(Merging::Optimal, &gradients, cost);
        for merging in [Merging::Optimal, Merging::Each, Merging::One, Merging::Bytes(MIB)] {
            let (mut next, mut free) = (0, Duration::ZERO);
            for bucket in planner.plan(merging, &gradients, cost) {
                let members = &gradients[bucket.gradients.clone()];
                assert_eq!(bucket.gradients.start, next);
                assert_eq!(bucket.bytes, members.iter().map(|gradient| gradient.bytes).sum::<u64>());
                assert_eq!(bucket.begin, members.iter().map(|gradient| gradient.ready).fold(free, Duration::max));
                assert_eq!(bucket.end, bucket.begin + cost.of(bucket.bytes));
                (next, free) = (bucket.gradients.end, bucket.end);
            }
            assert_eq!(next, gradients.len());
            assert!(optimum <= free, "{merging:?} ends before the optimum: {gradients:?}, {cost:?}");
        }
    }
}

#[test]
fn fixed_mergings_divide_as_they_say() {
    let list = gradients(&[(1, 60), (2, 60), (3, 10), (4, 200), (5, 10)]);
    let divide = |merging| {
        let mut planner = Planner::default();
        let plan = planner.plan(merging, &list, cost(1, 0));
        plan.iter().map(|bucket| (bucket.gradients.len(), bucket.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(divide(Merging::Each), [(1, 60), (1, 60), (1, 10), (1, 200), (1, 10)]);
    assert_eq!(divide(Merging::One), [(5, 340)]);
    assert_eq!(divide(Merging::Bytes(100)), [(2, 120), (2, 210), (1, 10)]);
    assert_eq!(divide(Merging::Bytes(120)), [(2, 120), (2, 210), (1, 10)]);
    assert_eq!(divide(Merging::Bytes(121)), [(3, 130), (1, 200), (1, 10)]);
}

/// An instance, worked out by hand, in which the best plan sends the large gradient alone and the small ones together:
/// 1 + 10 + 10, and from there 10 + 0.3.
#[test]
fn an_instance_by_hand() {
    let list = gradients(&[(1_000, 100 * MIB), (6_000, MIB), (11_000, MIB), (21_000, MIB)]);
    let mut planner = Planner::default();
    let plan = planner.plan(Merging::Optimal, &list, cost(10_000, 100));
    let sent: Vec<_> =
        plan.iter().map(|bucket| (bucket.gradients.clone(), bucket.begin.as_nanos(), bucket.end.as_nanos())).collect();
    assert_eq!(sent, [(0..1, 1_000, 21_000), (1..4, 21_000, 31_300)]);
}

#[test]
fn extremes_neither_panic_nor_overflow() {
    let mut planner = Planner::default();
    let longest = Cost { message: Duration::MAX, per_mib: Duration::MAX };
    let list = [Gradient { ready: Duration::MAX, bytes: u64::MAX }; 3];
    for merging in [Merging::Optimal, Merging::Each, Merging::One, Merging::Bytes(0)] {
        assert_eq!(planner.plan(merging, &[], cost(1, 1)), []);
        let plan = planner.plan(merging, &list, longest);
        assert_eq!(plan.last().unwrap().end, Duration::from_nanos(u64::MAX), "{merging:?}");
        assert_eq!(plan.iter().map(|bucket| bucket.gradients.len()).sum::<usize>(), 3);
    }
    // Messages cost nothing: each division is equally good, and the plan is still a schedule.
    let plan = planner.plan(Merging::Optimal, &list[..1], cost(0, 0));
    assert_eq!((plan.len(), plan[0].begin), (1, plan[0].end));
    assert_eq!(cost(5, 1 << 20).of(3), Duration::from_nanos(8));
}
