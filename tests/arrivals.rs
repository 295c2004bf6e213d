//! Models that ranks average in groups by order of arrival: from what all ranks have seen, the registers are computed anew,
//! and every group's model is found equal to the bit.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use common::barrier::Barrier;
use common::models::update;
use common::tier::by_tier;
use common::worlds::{everywhere, ways, world};
use common::{Job, Way, role, said};
use earlybird::{Absent, Allreduce, AllreduceBuilder, Config, Error, Executor, Fire, Group, Mover, Scale, World};

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let role = role().unwrap();
    let [what, size, absent, length, steps] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let config = Config { deadline: DEADLINE, ..Config::from_env().unwrap() };
    let world = World::with(&config).unwrap();
    if what == "die" {
        return die(&world);
    }
    let choices = (size.parse().unwrap(), absent.parse().unwrap());
    for seen in arrive(&world, choices, length.parse().unwrap(), steps.parse().unwrap()) {
        println!("\nSEEN {}", seen.line());
    }
}

/// A group as a member has seen it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    round: u64,
    group: Vec<u32>,
    fresh: Vec<u32>,
    /// The first elements of the model, as bits.
    model: Vec<u32>,
}

impl Seen {
    fn line(&self) -> String {
        let list = |all: &[u32]| all.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        format!("{}|{}|{}|{}", self.round, list(&self.group), list(&self.fresh), list(&self.model))
    }

    fn parse(line: &str) -> Self {
        let list = |text: &str| text.split(',').map(|word| word.parse().unwrap()).collect::<Vec<u32>>();
        let [round, group, fresh, model] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
        Seen { round: round.parse().unwrap(), group: list(group), fresh: list(fresh), model: list(model) }
    }
}

/// How many elements of a model are looked at.
const LOOKED_AT: usize = 3;

/// Those that are looked at: the first, one in the middle, and the last.
fn places(length: usize) -> [usize; LOOKED_AT] {
    [0, length / 2, length - 1]
}

fn build<'w>(world: &'w World, lengths: &[usize], initial: &'w [f32]) -> AllreduceBuilder<'w, f32> {
    world.allreduce::<f32>(lengths).memory(initial)
}

/// Makes so many contributions. Odd ranks are slow, and make half as many. Every third rank has a helper thread.
fn arrive(world: &World, (size, absent): (u32, Absent), length: usize, steps: u64) -> Vec<Seen> {
    let initial: Vec<f32> = (0..length).map(|index| update(9999, 0, index)).collect();
    let me = world.rank();
    let executor = if me % 3 == 1 { Executor::Thread } else { Executor::Caller };
    let models = build(world, &[length], &initial).group(Group::Arrivals(size)).absent(absent);
    let mut models = models.executor(executor).build().unwrap();
    let steps = if me % 2 == 1 { steps / 2 } else { steps };
    let mut seen: Vec<Seen> = Vec::new();
    for step in 0..steps {
        if me % 2 == 1 || (step * 7 + u64::from(me) * 3).is_multiple_of(11) {
            std::thread::sleep(Duration::from_micros(u64::from(me) * 20));
        }
        models.contribution().unwrap().iter_mut().enumerate().for_each(|(index, x)| *x = update(me, step, index));
        models.arrive().unwrap();
        if step % 8 == 3 {
            // Its group goes on without it, as far as it does not need it.
            std::thread::sleep(Duration::from_micros(200));
        }
        let outcomes = models.wait(DEADLINE).unwrap();
        assert_eq!(outcomes.len(), 1);
        let outcome = outcomes.newest();
        assert!(seen.last().is_none_or(|last| last.round < outcome.round()));
        assert_eq!(outcome.own().count(), 1);
        let group = outcome.group();
        assert!(outcome.cut().contributions().all(|entry| group.contains(entry.rank)));
        let model = places(length).map(|index| outcome[index].to_bits());
        let before = outcome.to_vec();
        if step % 16 == 5 {
            // While it is held, no other group changes it.
            std::thread::sleep(Duration::from_micros(500));
            assert!(before.iter().zip(outcome.data()).all(|(one, other)| one.to_bits() == other.to_bits()));
        }
        let [group, fresh] = [outcome.group(), outcome.fresh()].map(|ranks| ranks.iter().collect());
        seen.push(Seen { round: outcome.round(), group, fresh, model: model.into() });
    }
    models.finish(DEADLINE).unwrap();
    seen
}

/// What happened in a world.
#[derive(Debug, Default)]
struct Followed {
    groups: usize,
    bridges: usize,
    small: usize,
}

/// Computes all models anew, group by group, in an order in which they can have happened.
fn follow(seen: &[Vec<Seen>], (size, absent): (usize, Absent), length: usize) -> Followed {
    let mut groups: BTreeMap<u64, &Seen> = BTreeMap::new();
    for seen in seen.iter().flatten() {
        let known = groups.entry(seen.round).or_insert(seen);
        assert_eq!(*known, seen, "members of a group have seen different ones");
    }
    for (round, group) in &groups {
        let members = |rank: &&u32| seen[**rank as usize].iter().any(|seen| seen.round == *round);
        assert!(group.fresh.iter().all(|rank| members(&rank)), "{group:?} has ranks that know nothing of it");
        assert!(group.fresh.len() <= size && group.group.len() <= group.fresh.len() + 1, "{group:?}");
        assert!(absent == Absent::Carry || group.group == group.fresh, "{group:?}");
    }
    let initial = places(length).map(|index| update(9999, 0, index));
    let mut registers = vec![initial; seen.len()];
    let mut open: Vec<VecDeque<u64>> = seen.iter().map(|seen| seen.iter().map(|seen| seen.round).collect()).collect();
    let mut made = vec![0u64; seen.len()];
    let mut followed = Followed { groups: groups.len(), ..Followed::default() };
    while open.iter().any(|rounds| !rounds.is_empty()) {
        let next: Vec<u64> = open.iter().filter_map(|rounds| rounds.front().copied()).collect();
        // A group with a lender may have to wait until another one has its register.
        let done = next.iter().copied().find(|round| {
            let group = groups[round];
            let is_next = group.fresh.iter().all(|&rank| open[rank as usize].front() == Some(round));
            is_next && model(group, absent, &registers, &made, length) == group.model
        });
        let round = done.unwrap_or_else(|| panic!("no group follows from those before: {next:?}"));
        let group = groups[&round];
        let after: Vec<f32> = group.model.iter().map(|&bits| f32::from_bits(bits)).collect();
        group.group.iter().for_each(|&rank| registers[rank as usize].copy_from_slice(&after));
        for &rank in &group.fresh {
            made[rank as usize] += 1;
            open[rank as usize].pop_front();
        }
        followed.bridges += usize::from(group.group.len() > group.fresh.len());
        followed.small += usize::from(group.fresh.len() < size);
    }
    followed
}

/// The model that a group makes of registers, as bits.
fn model(group: &Seen, absent: Absent, registers: &[[f32; LOOKED_AT]], made: &[u64], length: usize) -> Vec<u32> {
    let of = |(place, index): (usize, usize)| {
        let updates = group.fresh.iter().map(|&rank| update(rank, made[rank as usize], index));
        let sum = updates.reduce(|a, b| a + b).unwrap();
        if absent == Absent::Hold {
            return (sum / group.fresh.len() as f32).to_bits();
        }
        let first = registers[group.group[0] as usize][place];
        let differences = group.group[1..].iter().map(|&rank| registers[rank as usize][place] - first);
        (first + differences.fold(sum, |a, b| a + b) / group.group.len() as f32).to_bits()
    };
    places(length).into_iter().enumerate().map(of).collect()
}

#[test]
fn every_model_follows_from_the_groups() {
    for way in ways() {
        let (ranks, most) = match way {
            Way::Shm => (by_tier(6, 16), by_tier(80, 1000)),
            Way::Ofi("tcp;ofi_rxm") => (4, by_tier(60, 1000)),
            _ => (4, 60),
        };
        for (size, absent) in [(2, "carry"), (4, "carry"), (4, "hold")] {
            let role = format!("arrive {size} {absent} 300 {most}");
            let ends = Job::start(way, ranks, "rank", &role).finish(DEADLINE);
            assert!(ends.iter().all(|(status, _)| status.success()), "{way:?}, {size}, {absent}: {ends:?}");
            let seen: Vec<Vec<Seen>> =
                ends.iter().map(|(_, text)| said(text, "SEEN").into_iter().map(Seen::parse).collect()).collect();
            let followed = follow(&seen, (size, absent.parse().unwrap()), 300);
            println!("{way:?}, groups of {size}, {absent}: {followed:?}");
            assert!(followed.groups > most as usize / 2);
        }
    }
}

/// Many segments, which the members move together.
#[test]
fn large_models_are_moved_in_segments() {
    const LENGTH: usize = 200_001;
    for seen in everywhere(5, DEADLINE, |world| arrive(&world, (2, Absent::Carry), LENGTH, 12)) {
        let followed = follow(&seen, (2, Absent::Carry), LENGTH);
        assert!(followed.groups > 12, "{followed:?}");
    }
}

/// Two pairs that never meet would drift apart: a group of one gets the register of a rank of the other one.
#[test]
fn pairs_that_never_meet_are_bridged() {
    const TURNS: u32 = 24;
    let turn = Barrier::new(4);
    let all = everywhere(4, DEADLINE, |world| {
        let mut models = build(&world, &[1], &[0.0]).group(Group::Arrivals(2)).build().unwrap();
        let (mut bridges, mut newest) = (0, 0.0);
        for number in 0..TURNS {
            if world.rank() / 2 == number % 2 {
                // Only the first pair learns anything.
                hand_in(&mut models, if world.rank() == 0 { 1.0 } else { 0.0 });
                let outcomes = models.wait(DEADLINE).unwrap();
                let outcome = outcomes.newest();
                assert_eq!(outcome.fresh().iter().map(|rank| rank / 2).collect::<Vec<_>>(), [number % 2; 2]);
                bridges += usize::from(outcome.group().len() > outcome.fresh().len());
                newest = outcome[0];
            }
            turn.wait();
        }
        models.finish(DEADLINE).unwrap();
        (bridges, newest)
    });
    for ranks in all {
        assert!(ranks.iter().any(|&(bridges, _)| bridges > 0), "{ranks:?}");
        assert!(ranks.iter().all(|&(_, newest)| newest > 0.0), "the second pair learned nothing: {ranks:?}");
    }
}

fn hand_in(models: &mut Allreduce<f32>, model: f32) {
    models.contribution().unwrap().fill(model);
    models.arrive().unwrap();
}

/// A rank that arrives first does not wait for one that is away, and a rank that leaves is missed by none.
#[test]
fn no_group_waits_for_a_rank_that_is_away() {
    let turn = Barrier::new(3);
    let all = everywhere(3, DEADLINE, |world| {
        let mut models = build(&world, &[1], &[0.0]).group(Group::Arrivals(2)).build().unwrap();
        let mut seen = Vec::new();
        if world.rank() < 2 {
            for _ in 0..5 {
                hand_in(&mut models, 2.0);
                seen.push(models.wait(DEADLINE).unwrap().newest()[0]);
            }
        }
        turn.wait();
        if world.rank() == 2 {
            hand_in(&mut models, 6.0);
            assert!(models.try_wait().unwrap().is_none());
            // Alone it waits: others may still come. Over a network it is not seen at once that they have not.
            let patience = Instant::now() + DEADLINE;
            loop {
                let waited = models.wait(Duration::from_millis(100)).map(|_| ());
                let Err(Error::Timeout { missing, .. }) = waited else { panic!("{waited:?}") };
                if missing.0 == [0, 1] {
                    break;
                }
                assert!(Instant::now() < patience, "{missing:?}");
            }
        }
        turn.wait();
        if world.rank() < 2 {
            models.finish(DEADLINE).unwrap();
        } else {
            seen.push(models.wait(DEADLINE).unwrap().newest()[0]);
            // It is alone now, and waits for none.
            hand_in(&mut models, 1.0);
            seen.push(models.wait(DEADLINE).unwrap().newest()[0]);
            models.finish(DEADLINE).unwrap();
        }
        seen
    });
    for seen in all {
        assert_eq!(seen[0], seen[1]);
        assert_eq!(seen[2][1], seen[2][0] + 1.0, "{seen:?}");
    }
}

/// Models count less the further their ranks are behind, and all members are as far as the newest then.
#[test]
fn models_are_weighed_by_age() {
    // Pairs that meet one after the other, what their ranks contribute, and the mean.
    let meetings = [
        ([0, 1], [2.0, 4.0], 3.0),
        ([0, 1], [2.0, 6.0], 4.0),
        // Two iterations apart: 4/7, and 1/7 with the 2/7 of the iteration in between.
        ([0, 2], [7.0, 14.0], 10.0),
        // Rank 2 has gone on from where rank 0 was, so it is one ahead: 1/3 and 2/3.
        ([1, 2], [6.0, 3.0], 4.0),
    ];
    let turn = Barrier::new(3);
    everywhere(3, DEADLINE, |world| {
        let models = build(&world, &[1], &[0.0]).group(Group::Arrivals(2)).absent(Absent::Hold);
        let mut models = models.scale(Scale::Ages(0.5)).build().unwrap();
        for (ranks, contributed, mean) in meetings {
            if let Some(place) = ranks.iter().position(|&rank| rank == world.rank()) {
                hand_in(&mut models, contributed[place]);
                let found = models.wait(DEADLINE).unwrap().newest()[0];
                assert!((found - mean).abs() < 1e-5, "{ranks:?}: {found}, not {mean}");
            }
            turn.wait();
        }
        models.finish(DEADLINE).unwrap();
    });
}

/// After a while a group closes with the ranks that have come.
#[test]
fn a_deadline_closes_a_group() {
    let closed = Barrier::new(3);
    let all = everywhere(3, DEADLINE, |world| {
        let within = Fire::ALL.within(Duration::from_millis(5));
        let mut models = build(&world, &[1], &[0.0]).group(Group::Arrivals(3)).fire(within).build().unwrap();
        let mut seen = 0.0;
        if world.rank() == 0 {
            hand_in(&mut models, 4.0);
            seen = models.wait(DEADLINE).unwrap().newest()[0];
            assert_eq!(models.stats().deadlines_expired, 1);
        }
        // Ranks that leave would fill it.
        closed.wait();
        models.finish(DEADLINE).unwrap();
        seen
    });
    // A lender has half of it.
    assert!(all.iter().all(|seen| seen[0] == 4.0 || seen[0] == 2.0), "{all:?}");
}

/// Dies when all others wait for it.
fn die(world: &World) {
    let mut models = build(world, &[1], &[0.0]).group(Group::Arrivals(3)).build().unwrap();
    if world.rank() == 1 {
        // Until then a rank may still be about to build it.
        for rank in [0, 2] {
            world.receive(&mut [0u8], rank, 0, DEADLINE).unwrap();
        }
        std::process::abort();
    }
    hand_in(&mut models, 1.0);
    let told = world.send(&[0u8], 1, 0, DEADLINE);
    assert!(matches!(told, Ok(()) | Err(Error::PeerDied { peer: 1, .. })), "{told:?}");
    let waited = models.wait(DEADLINE).map(|_| ());
    assert!(matches!(waited, Err(Error::PeerDied { peer: 1, .. })), "{waited:?}");
    println!("\nHEARD yes");
}

#[test]
fn a_dead_rank_is_named() {
    for way in ways() {
        let ends = Job::start(way, 3, "rank", "die 3 carry 1 1").finish(DEADLINE);
        for (rank, (status, text)) in ends.iter().enumerate().filter(|(rank, _)| *rank != 1) {
            assert!(status.success() && said(text, "HEARD") == ["yes"], "{way:?}, rank {rank}: {text}");
        }
    }
}

/// The rank whose memory has the cells stays until the others have left, as long as it may take.
#[test]
fn the_home_waits_for_the_others() {
    for way in ways().into_iter().filter(|way| *way != Way::Shm) {
        let has_tried = Barrier::new(2);
        world(way, 2, DEADLINE, &|world| {
            let mut models = build(&world, &[1], &[0.0]).group(Group::Arrivals(2)).build().unwrap();
            if world.rank() == 0 {
                let finished = models.finish(Duration::from_millis(100));
                let Err(Error::Timeout { missing, .. }) = finished else { panic!("{way:?}: {finished:?}") };
                assert_eq!(missing.0, [1]);
            }
            has_tried.wait();
            if world.rank() == 1 {
                hand_in(&mut models, 1.0);
                assert_eq!(models.wait(DEADLINE).unwrap().newest()[0], 1.0);
            }
            models.finish(DEADLINE).unwrap();
        });
    }
}

#[test]
fn choices_that_mean_nothing_are_refused() {
    world(Way::Shm, 2, DEADLINE, &|world| {
        let model = [1.0f32; 4];
        let build = || build(&world, &[3, 1], &model).group(Group::Arrivals(2));
        let usage = |built: earlybird::Result<_>| match built {
            Err(Error::Usage { problem, .. }) => problem.text(),
            other => panic!("{:?}", other.map(|_: Allreduce<f32>| ())),
        };
        assert!(usage(build().group(Group::Arrivals(1)).build()).contains("2 ranks or more"));
        // It never fills, and needs no more tickets than one of all ranks.
        build().group(Group::Arrivals(u32::MAX)).build().unwrap().finish(DEADLINE).unwrap();
        assert!(usage(build().fire(Fire::SOLO).build()).contains("fire=all"));
        let within = Fire::ALL.within(Duration::from_millis(5));
        assert!(usage(build().fire(within.full_every(3)).build()).contains("fire=all"));
        assert!(usage(build().absent(Absent::Drop).build()).contains("absent=carry"));
        assert!(usage(build().scale(Scale::World).build()).contains("scale=sum"));
        assert!(usage(build().mover(Mover::Tree).build()).contains("tree mover"));
        let without = world.allreduce::<f32>(&[4]).group(Group::Arrivals(2)).build();
        assert!(usage(without).contains("a model"));
        let sizes = build().group(Group::Arrivals(2 + world.rank())).build();
        assert!(matches!(&sizes, Err(Error::Mismatch { what: "group", .. })), "{sizes:?}");
    });
}
