//! The tree mover where ranks share no memory: real processes that relay activations and sums over networks.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::relaying::join;
use common::stress::Run;
use common::tier::{by_tier, is_deep};
use common::worlds::ways;
use common::{Job, Way, role, said};
use earlybird::{Executor, Fire, Mover};

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    match role().as_deref() {
        Some(role) if role.starts_with("bits ") => bits(role),
        Some(role) if role.starts_with("chooses ") => choose(role),
        Some("busy") => common::relaying::stay_away(),
        Some("orders") => common::relaying::wait_in_different_orders(),
        Some(role) if role.split(' ').count() == 4 => common::faults::rank(),
        _ => common::stress::play(),
    }
}

/// The networks, and so none where there is no library for one.
fn networks() -> Vec<Way> {
    ways().into_iter().filter(|&way| way != Way::Shm).collect()
}

/// `bits FIRE LENGTH ROUNDS RADIX MOVER`: sums of floats of any size, whose last bits depend on the order.
fn bits(role: &str) {
    let words: Vec<&str> = role.split(' ').collect();
    let [_, fire, length, rounds, radix, mover] = words[..] else { panic!("{role}") };
    let (length, rounds): (usize, u64) = (length.parse().unwrap(), rounds.parse().unwrap());
    // In shared memory large data has the bits of another program otherwise.
    let shape = match radix {
        "1" => "star_total = \"1G\"\n".to_owned(),
        radix => format!("star_total = \"0\"\nradix = {radix}\n"),
    };
    let world = join(&format!("[shm]\ntree_scatter = \"1G\"\n[ofi]\n{shape}[verbs]\n{shape}"), |_| {});
    let (fire, mover): (Fire, Mover) = (fire.parse().unwrap(), mover.parse().unwrap());
    let sum = world.allreduce::<f32>(&[length]).fire(fire).mover(mover).executor(Executor::Caller);
    let mut sum = sum.build().unwrap();
    let mut digest = 0u64;
    for round in 1..=rounds {
        let seed = (round << 20) + u64::from(world.rank());
        for (index, x) in sum.contribution().unwrap().iter_mut().enumerate() {
            let bits = (seed + ((index as u64) << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            *x = (bits >> 40) as f32 / (1 << (bits & 15)) as f32;
        }
        sum.arrive().unwrap();
        for x in sum.wait(DEADLINE).unwrap().newest().iter() {
            digest = digest.rotate_left(7) ^ u64::from(x.to_bits());
        }
    }
    let stats = sum.stats();
    println!("\nBITS {digest:x}\nRELAYED {}", stats.relayed);
    sum.finish(DEADLINE).unwrap();
}

/// Sums by pairs have the bits that a tree gives in shared memory. Those by a star and by direct exchange are made in
/// ascending rank, as a cut's are there. No rank sends more than its part of the messages: O(log P) by pairs; a star's ranks
/// send one, but for the one in the middle.
#[test]
fn sums_have_the_bits_of_shared_memory_and_take_few_messages() {
    const ROUNDS: u64 = 20;
    const LARGE: u64 = 40_001;
    for way in networks() {
        for ranks in by_tier(vec![2u32, 5, 8], (2..=8).collect()) {
            let others = u64::from(ranks) - 1u64;
            let hops = u64::from(u32::BITS - (ranks - 1).leading_zeros());
            for (length, radix) in
                [1, 3000, LARGE].into_iter().flat_map(|length| [1, 2, 8].map(|radix| (length, radix)))
            {
                let run = |way, mover| {
                    let role = format!("bits all {length} {ROUNDS} {radix} {mover}");
                    let ends = Job::start(way, ranks, "rank", &role).finish(DEADLINE);
                    assert!(ends.iter().all(|(status, _)| status.success()), "{way:?}, {ranks} ranks: {ends:?}");
                    ends
                };
                let reference = if radix == 2 { "tree" } else { "cut" };
                let (here, there) = (run(Way::Shm, reference), run(way, "tree"));
                for (rank, (_, text)) in there.iter().enumerate() {
                    let of = |text: &str| said(text, "BITS")[0].to_owned();
                    assert_eq!(
                        of(text),
                        of(&here[0].1),
                        "{way:?}, {ranks} ranks, radix {radix}: rank {rank} has other bits"
                    );
                    let relayed: u64 = said(text, "RELAYED")[0].parse().unwrap();
                    let most = match (radix, length) {
                        (1, _) if ranks > 2 && rank > 0 => 1,
                        (1, _) => others,
                        (2, LARGE) => 4 * hops + 4,
                        (2, _) => 3 * hops + 4,
                        (_, LARGE) => 2 * others,
                        _ => others,
                    };
                    assert!(relayed <= most * ROUNDS, "rank {rank} of {ranks}, radix {radix}, sent {relayed} messages");
                }
            }
        }
    }
}

/// `chooses ATOMICS EXECUTOR`: whether devices change cells, `on` or `off`, and the executor that carries out small rounds.
/// Their sums are exact.
fn choose(role: &str) {
    let words: Vec<&str> = role.split(' ').collect();
    let [_, atomics, expected] = words[..] else { panic!("{role}") };
    // Over this provider no round is relayed otherwise.
    let world = join("[ofi.sockets]\nrelay = \"64K\"\n", |config| {
        let by_device = Some(atomics == "on");
        (config.ofi.device_atomics, config.verbs.device_atomics) = (by_device, by_device);
    });
    for fire in ["solo", "quorum=2", "majority"] {
        let mut sum = world.allreduce::<u64>(&[10]).fire(fire.parse().unwrap()).build().unwrap();
        // The helper thread relays.
        assert_eq!(sum.executor(), expected.parse().unwrap());
        assert_eq!(sum.path() == "relayed", expected == "thread", "{}", sum.path());
        for _ in 0..30 {
            sum.contribution().unwrap().fill(1);
            sum.arrive().unwrap();
            for outcome in sum.wait(DEADLINE).unwrap() {
                let contributions = outcome.cut().contributions().count() as u64;
                assert!(outcome.data().iter().all(|&sum| sum == contributions), "{fire}, {:?}", outcome.cut());
            }
        }
        sum.finish(DEADLINE).unwrap();
    }
}

/// A round is relayed where a processor would change its word, and not where a device does.
#[test]
fn small_rounds_are_relayed_where_processors_change_words() {
    let mut cases: Vec<(Way, &str, &str)> = networks().into_iter().map(|way| (way, "off", "thread")).collect();
    let by_device = networks().into_iter().filter_map(|way| match way {
        Way::Ofi("tcp;ofi_rxm") => Some(Way::Ofi("sockets")),
        Way::Ofi(_) | Way::Shm => None,
        Way::Verbs => Some(Way::Verbs),
    });
    cases.extend(by_device.map(|way| (way, "on", "caller")));
    for (way, atomics, executor) in cases {
        let ends = Job::start(way, 3, "rank", &format!("chooses {atomics} {executor}")).finish(DEADLINE);
        assert!(ends.iter().all(|(status, _)| status.success()), "{way:?}, {atomics}: {ends:?}");
    }
}

/// Sums are exact, and the same on all ranks, in rounds that fire for each reason; ranks leave one after the other.
#[test]
fn nothing_is_lost() {
    for way in networks() {
        let mut cases = vec![(5, 24, 60), (2, 3000, 40), (3, 24, 60)];
        if is_deep() {
            cases.extend([(8, 24, 40), (7, 3000, 30), (4, 100_000, 10), (3, 8192, 60)]);
        }
        for (ranks, length, steps) in cases {
            let rules = ["all", "solo", "quorum=2", "majority"].into_iter();
            let runs = rules.flat_map(|fire| {
                [Executor::Caller, Executor::Thread].map(|executor| Run {
                    fire,
                    how: (Mover::Tree, executor),
                    length,
                    steps,
                })
            });
            common::stress::stress_in_turn(way, ranks, &runs.collect::<Vec<_>>());
        }
    }
}

/// The helper thread of a rank that computes relays for the others, and the rank finds all that it missed.
#[test]
fn a_rank_that_computes_holds_up_no_other() {
    for way in networks() {
        let ends = Job::start(way, 4, "rank", "busy").finish(DEADLINE);
        assert!(ends.iter().all(|(status, _)| status.success()), "{way:?}: {ends:?}");
        let first: u64 = said(&ends[0].1, "FIRST")[0].parse().unwrap();
        assert!(first >= 40, "{way:?}: it received only {first} rounds at once");
    }
}

#[test]
fn collectives_may_be_waited_for_in_any_order() {
    for way in networks() {
        let ends = Job::start(way, 3, "rank", "orders").finish(DEADLINE);
        assert!(ends.iter().all(|(status, _)| status.success()), "{way:?}: {ends:?}");
    }
}

#[test]
fn all_ranks_name_a_killed_rank() {
    for way in networks().into_iter().filter(|way| way.outlives_kills()) {
        common::faults::kill(way, by_tier(1, 8), &["tree"], Duration::from_millis(300)..Duration::from_millis(1500));
    }
}
