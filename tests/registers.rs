//! Models that groups of ranks average: every rank computes the registers of all ranks anew from the cuts, and finds its own
//! model equal to the bit.
#![cfg(feature = "internals")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::tier::by_tier;
use common::worlds::{everywhere, ways};
use common::{Job, Way, role, said};
use earlybird::{Config, Cut, Error, Fire, Group, Mover, RankSet, Scale, World};

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let role = role().unwrap();
    let [_, group, fire, length, steps] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let config = Config { deadline: DEADLINE, ..Config::from_env().unwrap() };
    let world = World::from_env(&config).unwrap();
    let followed =
        follow(&world, group.parse().unwrap(), fire.parse().unwrap(), length.parse().unwrap(), steps.parse().unwrap());
    println!("\nLATE {}\nIDLE {}\nROUNDS {}", followed.late, followed.idle, followed.rounds);
}

/// What a rank contributes to the round that it makes a contribution for.
fn update(rank: u32, target: u64, index: usize) -> f32 {
    let seed = (u64::from(rank) << 40) + (target << 20) + index as u64;
    let bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (bits >> 40) as f32 / (1 << 24) as f32 - 0.5
}

/// The registers of all ranks, as any rank can compute them.
struct Registers {
    group: Group,
    models: Vec<Vec<f32>>,
    active: RankSet,
}

impl Registers {
    /// Follows a round. Returns the ranks in the group of a rank.
    fn follow(&mut self, cut: &Cut, me: u32) -> Vec<u32> {
        let mut own = Vec::new();
        let before = self.models.clone();
        for lowest in self.active.iter() {
            let mut members = Vec::new();
            match self.group.schedule().unwrap() {
                Some(butterfly) => butterfly.group(&self.active, cut.round(), lowest, &mut members),
                None => members.extend(self.active.iter()),
            }
            if members.contains(&me) {
                own.clone_from(&members);
            }
            let updates: Vec<(u32, u64)> = cut
                .contributions()
                .filter(|entry| members.contains(&entry.rank))
                .map(|entry| (entry.rank, cut.round() - entry.age))
                .collect();
            if members[0] != lowest || updates.is_empty() {
                continue;
            }
            let model = |index: usize| {
                let first = before[lowest as usize][index];
                let sum = updates.iter().map(|&(rank, target)| update(rank, target, index)).reduce(|a, b| a + b);
                let others = members[1..].iter().filter(|_| self.group != Group::World);
                let differences = others.map(|&rank| before[rank as usize][index] - first);
                first + differences.fold(sum.unwrap(), |a, b| a + b) / members.len() as f32
            };
            let model: Vec<f32> = (0..before[0].len()).map(model).collect();
            members.iter().for_each(|&rank| self.models[rank as usize].clone_from(&model));
        }
        let left = cut.leavers();
        self.active = self.active.iter().filter(|&rank| !left.contains(rank)).collect();
        own
    }
}

#[derive(Debug, Default)]
struct Followed {
    rounds: u64,
    late: u64,
    idle: u64,
}

/// Makes so many contributions, and checks each outcome.
fn follow(world: &World, group: Group, fire: Fire, length: usize, steps: u64) -> Followed {
    let initial: Vec<f32> = (0..length).map(|index| update(9999, 0, index)).collect();
    let mut models =
        world.allreduce::<f32>(&[length]).group(group).memory(&initial).fire(fire).depth(3).build().unwrap();
    let (me, ranks) = (world.rank(), world.size());
    let active: RankSet = (0..ranks).collect();
    let mut registers = Registers { group, models: vec![initial.clone(); ranks as usize], active };
    let mut rounds = 0;
    // Ranks leave one after the other.
    for step in 0..steps + u64::from(me) {
        if (step * 7 + u64::from(me) * 3).is_multiple_of(11) {
            std::thread::sleep(Duration::from_micros(u64::from(me) * 150));
        }
        let target = rounds + 1;
        models.contribution().unwrap().iter_mut().enumerate().for_each(|(index, x)| *x = update(me, target, index));
        models.arrive().unwrap();
        for outcome in models.wait(DEADLINE).unwrap() {
            rounds += 1;
            assert_eq!(outcome.round(), rounds);
            let members = registers.follow(outcome.cut(), me);
            assert!(outcome.group().iter().eq(members.iter().copied()), "round {rounds}: {:?}", outcome.group());
            assert!(outcome.own().eq(outcome.cut().entries().filter(|entry| entry.rank == me)));
            let bits = |model: &[f32]| model.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let expected = &registers.models[me as usize];
            assert!(bits(outcome.data()) == bits(expected), "round {rounds} of rank {me}: {:?}", outcome.cut());
        }
    }
    let stats = models.stats();
    models.finish(DEADLINE).unwrap();
    Followed { rounds, late: stats.late, idle: stats.idle }
}

/// Also absent ranks have the new model, and idle groups have the old one.
#[test]
fn every_rank_finds_the_model_that_follows_from_the_cuts() {
    for way in ways() {
        let (ranks, most) = match way {
            Way::Shm => (by_tier(6, 16), by_tier(60, 1000)),
            Way::Ofi("tcp;ofi_rxm") => (4, by_tier(60, 1000)),
            _ => (4, 60),
        };
        let (mut late, mut idle) = (0, 0);
        for group in ["world", "butterfly=2", "butterfly=3"] {
            for fire in ["all", "solo", "quorum=2", "majority"] {
                // Of ranks that wait for each other, none is late.
                let steps = if fire == "all" { 60 } else { most };
                let ends =
                    Job::start(way, ranks, "rank", &format!("follow {group} {fire} 300 {steps}")).finish(DEADLINE);
                assert!(ends.iter().all(|(status, _)| status.success()), "{way:?}, {group}, {fire}: {ends:?}");
                let count =
                    |what: &str| ends.iter().map(|(_, text)| said(text, what)[0].parse::<u64>().unwrap()).sum::<u64>();
                (late, idle) = (late + count("LATE"), idle + count("IDLE"));
            }
        }
        println!("{way:?}: {late} late contributions, {idle} rounds in which a rank's group had none");
        assert!(late > 0 && idle > 0, "{way:?}: {late} late, {idle} idle");
    }
}

/// Several segments, which ranks of all groups move.
#[test]
fn large_models_are_moved_in_segments() {
    for followed in everywhere(4, DEADLINE, |world| follow(&world, Group::Butterfly(2), Fire::SOLO, 200_001, 6)) {
        assert!(followed.iter().all(|rank| rank.rounds > 0), "{followed:?}");
    }
}

#[test]
fn choices_that_mean_nothing_are_refused() {
    let refused = everywhere(2, DEADLINE, |world| {
        let (me, model) = (world.rank() as f32, [1.0f32; 4]);
        let build = || world.allreduce::<f32>(&[3, 1]);
        let usage = |built: earlybird::Result<_>| match built {
            Err(Error::Usage { problem, .. }) => problem,
            other => panic!("{:?}", other.map(|_: earlybird::Allreduce<f32>| ())),
        };
        assert!(usage(build().group(Group::Butterfly(2)).build()).contains("memory()"));
        assert!(usage(build().group(Group::Butterfly(1)).memory(&model).build()).contains("2 ranks or more"));
        assert!(usage(build().memory(&model[1..]).build()).contains("as long as all tensors"));
        assert!(usage(build().memory(&model).scale(Scale::World).build()).contains("Scale::Sum"));
        assert!(usage(build().memory(&model).mover(Mover::Tree).build()).contains("cut mover"));
        let whole = world.allreduce::<u32>(&[1]).memory(&[1]).build();
        assert!(matches!(whole, Err(Error::Usage { problem, .. }) if problem.contains("floating-point")));
        let different = build().memory(&[me; 4]).build();
        assert!(matches!(&different, Err(Error::Mismatch { what, .. }) if what.contains("memory()")), "{different:?}");
        let groups = build().memory(&model).group(Group::Butterfly(2 + world.rank())).build();
        assert!(matches!(&groups, Err(Error::Mismatch { what: "group", .. })), "{groups:?}");
    });
    assert!(!refused.is_empty());
}
