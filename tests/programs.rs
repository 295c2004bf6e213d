//! Programs for every world size: what the checker proves, and what a round costs.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/tier.rs"]
mod tier;

use earlybird::trigger::{
    Action, Buffer, Chunk, Counts, Defect, Profile, Program, RankBuffer, Request, Role, Schedule, Signal, Start, check,
    compile,
};
use tier::is_deep;

const BYTES: u64 = 4096;

/// The world sizes of the quick tier: the small ones, and those around powers of two.
const SAMPLE: [u32; 22] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 31, 33, 48, 64, 65, 130];

fn request(ranks: u32, start: Start, schedule: Schedule) -> Request {
    Request { ranks, start, schedule, radix: 2, bytes: BYTES, chunk: 512, slots: 9 }
}

/// Radices besides pairs: a star, small ones, and direct exchange.
fn other_radices(ranks: u32) -> impl Iterator<Item = u32> {
    [1, 3, 5, 8, ranks].into_iter().filter(move |&radix| radix.max(if radix == 1 { ranks } else { 0 }) <= 32)
}

fn starts(ranks: u32) -> [Start; 4] {
    [Start::Everybody, Start::First, Start::Designated, Start::Count(ranks.div_ceil(2))]
}

fn every(mut f: impl FnMut(&Request, &Profile, &[Program])) {
    for ranks in (1..=130).filter(|ranks| is_deep() || SAMPLE.contains(ranks)) {
        for start in starts(ranks) {
            for schedule in Schedule::EVERY {
                for profile in [Profile::SHARED, Profile::NETWORK] {
                    let request = request(ranks, start, schedule);
                    f(&request, &profile, &compile(&request, &profile));
                }
            }
        }
    }
}

#[test]
fn programs_of_up_to_130_ranks_pass_the_checker() {
    let mut programs = 0;
    every(|request, profile, world| {
        programs += world.len();
        check(world, request, profile).unwrap_or_else(|defect| panic!("{request:?} on {}: {defect}", profile.name));
    });
    println!("{programs} programs");
}

#[test]
fn exchanges_in_any_shape_pass_the_checker() {
    for ranks in (2..=130).filter(|ranks| is_deep() || SAMPLE.contains(ranks)) {
        for radix in other_radices(ranks) {
            for (start, schedule) in
                starts(ranks).into_iter().flat_map(|start| [(start, Schedule::Doubling), (start, Schedule::Halving)])
            {
                let request = Request { radix, ..request(ranks, start, schedule) };
                let world = compile(&request, &Profile::NETWORK);
                check(&world, &request, &Profile::NETWORK).unwrap_or_else(|defect| panic!("{request:?}: {defect}"));
            }
        }
    }
}

/// A star takes 2 (P - 1) messages with data, and direct exchange P (P - 1), or 2 P (P - 1) of a share each.
#[test]
fn shapes_take_the_messages_that_they_are_named_after() {
    for ranks in (2..=32).filter(|ranks| is_deep() || SAMPLE.contains(ranks)) {
        let puts = |radix, schedule| {
            let request = Request { radix, ..request(ranks, Start::Everybody, schedule) };
            let counts = Counts::of_world(&compile(&request, &Profile::NETWORK), BYTES);
            (counts.puts, counts.bytes)
        };
        let (all, others) = (u64::from(ranks), u64::from(ranks) - 1);
        assert_eq!(puts(1, Schedule::Doubling), (2 * others, 2 * others * BYTES));
        assert_eq!(puts(ranks, Schedule::Doubling), (all * others, all * others * BYTES));
        let (shares, bytes) = puts(ranks, Schedule::Halving);
        assert_eq!((shares, bytes), (2 * all * others, 2 * others * BYTES));
    }
}

/// ⌈log2 P⌉, counted rather than computed.
fn log2(ranks: u32) -> u64 {
    (0..).find(|&i| 1u64 << i >= u64::from(ranks)).unwrap()
}

#[test]
fn the_flood_sends_p_log_p_messages() {
    every(|request, profile, world| {
        let counts = Counts::of_world(world, request.bytes);
        let expected = match request.start {
            Start::Everybody => 0,
            _ => u64::from(request.ranks) * log2(request.ranks),
        };
        assert_eq!(counts.activations, expected, "{request:?} on {}", profile.name);
    });
}

#[test]
fn data_messages_and_reductions_are_those_of_the_textbook() {
    every(|request, profile, world| {
        let (p, n) = (u64::from(request.ranks), request.bytes);
        let counts = Counts::of_world(world, n);
        if profile.shared {
            assert_eq!(counts.puts, 0);
            let sums = match request.schedule {
                Schedule::Doubling | Schedule::Halving => (p - 1).max(1),
                Schedule::Scatter => n / 512,
                Schedule::Gather => 1,
            };
            assert_eq!(counts.reductions, sums, "{request:?}");
            return;
        }
        let power = 1 << request.ranks.ilog2();
        let extra = p - power;
        let (puts, bytes) = match request.schedule {
            _ if p == 1 => (0, 0),
            Schedule::Doubling => {
                let puts = power * u64::from(power.ilog2()) + 2 * extra;
                (puts, puts * n)
            }
            Schedule::Halving => {
                let halvings = 2 * power * u64::from(power.ilog2());
                (halvings + 2 * extra, 2 * (power - 1) * n + 2 * extra * n)
            }
            Schedule::Gather => (p * (p - 1), p * (p - 1) * n),
            // Each byte goes to its reducer and from there to all ranks.
            Schedule::Scatter => (2 * p * (p - 1), 2 * (p - 1) * n),
        };
        assert_eq!((counts.puts, counts.bytes), (puts, bytes), "{request:?}");
    });
}

/// The flood reaches every rank from any rank within ⌈log2 P⌉ hops.
#[test]
fn the_flood_reaches_all_ranks_in_log_p_hops() {
    for ranks in 1..=130 {
        let world = compile(&request(ranks, Start::First, Schedule::Gather), &Profile::NETWORK);
        for initiator in [0, ranks / 3, ranks - 1] {
            let mut hop = vec![None; ranks as usize];
            hop[initiator as usize] = Some(0);
            let mut frontier = vec![initiator];
            while let Some(rank) = frontier.pop() {
                let next = hop[rank as usize].unwrap() + 1;
                let forwards =
                    world[rank as usize].operations.iter().filter(|operation| operation.when == Role::Active);
                for signal in forwards.flat_map(|operation| &operation.then).filter(|to| to.counter == Role::Active) {
                    if hop[signal.rank as usize].is_none_or(|known| known > next) {
                        hop[signal.rank as usize] = Some(next);
                        frontier.push(signal.rank);
                    }
                }
            }
            let farthest = hop.into_iter().map(|hop| hop.expect("reached")).max().unwrap();
            assert!(u64::from(farthest as u32) <= log2(ranks), "{ranks} ranks: {farthest} hops");
        }
    }
}

/// Tables that violate each rule of the checker.
#[test]
fn the_checker_finds_every_defect() {
    let request = request(6, Start::First, Schedule::Doubling);
    let broken = |profile: Profile, change: &dyn Fn(&mut Vec<Program>)| {
        let mut world = compile(&request, &profile);
        check(&world, &request, &profile).unwrap();
        change(&mut world);
        check(&world, &request, &profile).unwrap_err()
    };
    let network = Profile::NETWORK;
    let forgotten = broken(network, &|world| {
        world[2].operations[1].then.pop();
    });
    assert!(matches!(forgotten, Defect::Increments { times: 0, .. }), "{forgotten}");
    let twice = broken(network, &|world| {
        let again = world[2].operations[1].then[0];
        world[3].operations[1].then.push(again);
    });
    assert!(matches!(twice, Defect::Increments { times: 2, .. }), "{twice}");
    let nowhere = broken(network, &|world| {
        world[0].operations[1].then.push(Signal { rank: 5, counter: Role::Level(9), input: 0 });
    });
    assert!(matches!(nowhere, Defect::NoSuchInput { by: 0, .. }), "{nowhere}");
    let never = broken(network, &|world| world[1].operations[1].threshold = 99);
    assert!(matches!(never, Defect::Threshold { rank: 1, threshold: 99, .. }), "{never}");
    let ordered = broken(network, &|world| {
        let mut other = world[4].operations[1].clone();
        (other.threshold, other.then) = (2, Vec::new());
        world[4].operations.push(other);
    });
    assert!(matches!(ordered, Defect::Order { rank: 4, .. }), "{ordered}");
    // Two counters of a rank that wait for each other.
    let cycle = broken(network, &|world| {
        let counters = &mut world[0].counters;
        counters.iter_mut().filter(|counter| matches!(counter.role, Role::Gate | Role::Level(2))).for_each(|counter| {
            counter.inputs += 1;
        });
        for operation in &mut world[0].operations {
            let to = match operation.when {
                Role::Gate => Signal { rank: 0, counter: Role::Level(2), input: 2 },
                Role::Level(2) => Signal { rank: 0, counter: Role::Gate, input: 2 },
                _ => continue,
            };
            operation.threshold += 1;
            operation.then.push(to);
        }
    });
    assert!(matches!(cycle, Defect::Cycle { .. }), "{cycle}");
    let rewritten = broken(network, &|world| {
        let put = world[1].operations.iter_mut().find_map(|operation| match &mut operation.action {
            Action::Put { to, .. } => Some(to),
            _ => None,
        });
        *put.unwrap() = RankBuffer { rank: 2, buffer: Buffer::Outcome };
    });
    assert!(matches!(rewritten, Defect::Rewritten { .. }), "{rewritten}");
    let unordered = broken(network, &|world| {
        let from = world[0].operations.iter_mut().find_map(|operation| match &mut operation.action {
            Action::Reduce { from, .. } => Some(from),
            _ => None,
        });
        from.unwrap()[0] = RankBuffer { rank: 0, buffer: Buffer::Inbox(2) };
    });
    assert!(matches!(unordered, Defect::Unordered { rank: 0, .. }), "{unordered}");
    let holed = broken(network, &|world| {
        // The last sum of a rank that passes it on to no other one, half as long.
        let chunk = world[5].operations.iter_mut().find_map(|operation| match &mut operation.action {
            Action::Reduce { to: Buffer::Outcome, chunk, .. } => Some(chunk),
            _ => None,
        });
        *chunk.unwrap() = Chunk::piece(0, 2);
    });
    assert!(matches!(holed, Defect::Incomplete { .. }), "{holed}");
    let small = Profile { operations: 3, ..Profile::NETWORK };
    let world = compile(&request, &small);
    assert!(matches!(check(&world, &request, &small), Err(Defect::Budget { what: "operations", limit: 3, .. })));
    let tight = Profile { bytes: 1000, ..Profile::NETWORK };
    assert!(matches!(check(&world, &request, &tight), Err(Defect::Budget { what: "bytes", .. })));
}
