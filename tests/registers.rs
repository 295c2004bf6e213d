//! Models that groups of ranks average: every rank computes the registers of all ranks anew from the cuts, and finds its own
//! model equal to the bit.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::barrier::Barrier;
use common::models::update;
use common::tier::by_tier;
use common::worlds::{everywhere, ways, world};
use common::{Job, Way, role, said};
use earlybird::group::Butterfly;
use earlybird::{Absent, Allreduce, Config, Cut, Error, Fire, Grace, Group, Mover, RankSet, Scale, World};

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let role = role().unwrap();
    let [_, group, fire, absent, length, steps] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let config = Config { deadline: DEADLINE, ..Config::from_env().unwrap() };
    let world = World::with(&config).unwrap();
    let rules = (group.parse().unwrap(), fire.parse().unwrap(), absent.parse().unwrap());
    let followed = follow(&world, rules, length.parse().unwrap(), steps.parse().unwrap());
    println!("\nLATE {}\nIDLE {}\nROUNDS {}", followed.late, followed.idle, followed.rounds);
}

/// The registers of all ranks, as any rank can compute them.
struct Registers {
    group: Group,
    models: Vec<Vec<f32>>,
    /// The newest contribution of each rank, where those are models.
    held: Option<Vec<Vec<f32>>>,
    /// The factor of a contribution for each round of its age: a power of two, so that its powers are exact.
    decay: f32,
    active: RankSet,
}

impl Registers {
    /// Follows a round. Returns the ranks in the group of a rank.
    fn follow(&mut self, cut: &Cut, me: u32) -> Vec<u32> {
        let mut own = Vec::new();
        if let Some(held) = &mut self.held {
            for entry in cut.contributions() {
                let model = (0..held[0].len()).map(|index| update(entry.rank, cut.round() - entry.age, index));
                held[entry.rank as usize] = model.collect();
            }
        }
        let before = self.held.clone().unwrap_or_else(|| self.models.clone());
        for lowest in self.active.iter() {
            let mut members = Vec::new();
            match self.group {
                Group::World => members.extend(self.active.iter()),
                Group::Butterfly(size) => {
                    Butterfly::new(size).unwrap().group(&self.active, cut.round(), lowest, &mut members);
                }
                _ => unreachable!("rounds have no other groups"),
            }
            if members.contains(&me) {
                own.clone_from(&members);
            }
            let updates: Vec<(u32, u64, f32)> = cut
                .contributions()
                .filter(|entry| members.contains(&entry.rank))
                .map(|entry| (entry.rank, cut.round() - entry.age, self.decay.powi(entry.age as i32)))
                .collect();
            if members[0] != lowest || updates.is_empty() {
                continue;
            }
            let model = |index: usize| {
                let first = before[lowest as usize][index];
                let updates = updates.iter().filter(|_| self.held.is_none());
                let scaled = |&(rank, target, factor): &(u32, u64, f32)| update(rank, target, index) * factor;
                let sum = updates.map(scaled).reduce(|a, b| a + b);
                let all_equal = self.group == Group::World && self.held.is_none();
                let others = members[1..].iter().filter(|_| !all_equal);
                let differences = others.map(|&rank| before[rank as usize][index] - first);
                first + differences.fold(sum.unwrap_or(0.0), |a, b| a + b) / members.len() as f32
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
fn follow(world: &World, (group, fire, absent): (Group, Fire, Absent), length: usize, steps: u64) -> Followed {
    let initial: Vec<f32> = (0..length).map(|index| update(9999, 0, index)).collect();
    let models = world.allreduce::<f32>(&[length]).group(group).memory(&initial);
    let mut models = models.fire(fire).absent(absent).depth(3).build().unwrap();
    let (me, ranks) = (world.rank(), world.size());
    let active: RankSet = (0..ranks).collect();
    let models_of_all = vec![initial.clone(); ranks as usize];
    let held = (absent == Absent::Hold).then(|| models_of_all.clone());
    let decay = if let Absent::Decay(factor) = absent { factor } else { 1.0 };
    let mut registers = Registers { group, models: models_of_all, held, decay, active };
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
            Way::Shm => (by_tier(6, 16), by_tier(40, 1000)),
            Way::Ofi("tcp;ofi_rxm") => (4, by_tier(40, 1000)),
            _ => (4, 60),
        };
        let (mut late, mut idle) = (0, 0);
        for group in ["world", "butterfly=2", "butterfly=3"] {
            let hold = "hold";
            for (fire, absent) in [
                ("all", "carry"),
                ("solo", "carry"),
                ("solo,full=5", hold),
                ("quorum=2", "decay=0.5"),
                ("majority", hold),
            ] {
                // Of ranks that wait for each other, none is late.
                let steps = if fire == "all" { 60 } else { most };
                let role = format!("follow {group} {fire} {absent} 300 {steps}");
                let ends = Job::start(way, ranks, "rank", &role).finish(DEADLINE);
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
    for followed in
        everywhere(4, DEADLINE, |world| follow(&world, (Group::Butterfly(2), Fire::SOLO, Absent::Carry), 200_001, 6))
    {
        assert!(followed.iter().all(|rank| rank.rounds > 0), "{followed:?}");
    }
}

/// A collective whose ranks hold models of one weight, at first 0.
fn held(world: &World, fire: Fire, group: Group) -> Allreduce<f32> {
    let models = world.allreduce::<f32>(&[1]).memory(&[0.0]).absent(Absent::Hold).group(group);
    models.fire(fire).grace(Grace::NONE).build().unwrap()
}

fn hand_in(models: &mut Allreduce<f32>, model: f32) {
    models.contribution().unwrap().fill(model);
    models.arrive().unwrap();
}

/// Waits, and merges the newest average into what was handed in.
fn merge(models: &mut Allreduce<f32>, model: f32) -> f32 {
    let mut own = [model];
    models.wait(DEADLINE).unwrap().newest().merge_into(&mut own).unwrap();
    own[0]
}

/// A model that the average has is not merged again, in whichever way it entered; one that the average lacks is.
#[test]
fn a_held_model_is_merged_once() {
    let turn = Barrier::new(2);
    let merged = world(Way::Shm, 2, DEADLINE, &|world| {
        let mut models = held(&world, Fire::SOLO, Group::World);
        let mut seen = Vec::new();
        if world.rank() == 0 {
            hand_in(&mut models, 10.0);
            turn.wait();
            turn.wait();
            // Fresh in round 1; round 2, which it did not enter, is the newest.
            seen.push(merge(&mut models, 10.0));
        } else {
            turn.wait();
            hand_in(&mut models, 100.0);
            // Round 1 has the first model of this rank, which has entered no round yet.
            seen.push(merge(&mut models, 100.0));
            hand_in(&mut models, 100.0);
            seen.push(merge(&mut models, 100.0));
            turn.wait();
        }
        models.finish(DEADLINE).unwrap();
        seen
    });
    assert_eq!(merged[0], [55.0]);
    assert!((merged[1][0] - (2.0 * 5.0 + 100.0) / 3.0).abs() < 1e-4 && merged[1][1] == 55.0, "{merged:?}");
}

/// A late model that a full round waits for has entered when that is complete.
#[test]
fn a_model_that_is_carried_into_a_full_round_is_merged_once() {
    let turn = Barrier::new(2);
    let merged = world(Way::Shm, 2, DEADLINE, &|world| {
        let mut models = held(&world, Fire::SOLO.full_every(2), Group::World);
        let model = if world.rank() == 0 { 10.0 } else { 100.0 };
        if world.rank() == 0 {
            hand_in(&mut models, model);
            assert_eq!(merge(&mut models, model), 5.0);
            turn.wait();
        } else {
            turn.wait();
        }
        hand_in(&mut models, model);
        let own = merge(&mut models, model);
        models.finish(DEADLINE).unwrap();
        own
    });
    assert_eq!(merged, [55.0, 55.0]);
}

/// Where no member of a rank's group contributed, there is no new average.
#[test]
fn an_idle_group_leaves_a_model_alone() {
    let turn = Barrier::new(3);
    let alone = |rank: &u32| {
        let mut members = Vec::new();
        Butterfly::new(2).unwrap().group(&(0..3).collect(), 1, *rank, &mut members);
        members.len() == 1
    };
    let first = (0..3).find(alone).unwrap();
    let merged = world(Way::Shm, 3, DEADLINE, &|world| {
        let mut models = held(&world, Fire::SOLO, Group::Butterfly(2));
        let mut own = 0.0;
        if world.rank() == first {
            hand_in(&mut models, 10.0);
            own = merge(&mut models, 10.0);
        }
        turn.wait();
        if world.rank() != first {
            hand_in(&mut models, 100.0);
            own = merge(&mut models, 100.0);
        }
        turn.wait();
        models.finish(DEADLINE).unwrap();
        own
    });
    assert_eq!(merged[first as usize], 10.0);
    assert!(merged.contains(&100.0), "{merged:?}");
}

#[test]
fn choices_that_mean_nothing_are_refused() {
    let refused = everywhere(2, DEADLINE, |world| {
        let (me, model) = (world.rank() as f32, [1.0f32; 4]);
        let build = || world.allreduce::<f32>(&[3, 1]);
        let usage = |built: earlybird::Result<_>| match built {
            Err(Error::Usage { problem, .. }) => problem.text(),
            other => panic!("{:?}", other.map(|_: earlybird::Allreduce<f32>| ())),
        };
        assert!(usage(build().group(Group::Butterfly(2)).build()).contains("a model"));
        assert!(usage(build().absent(Absent::Hold).build()).contains("a model"));
        assert!(usage(build().group(Group::Butterfly(1)).memory(&model).build()).contains("2 ranks or more"));
        assert!(usage(build().memory(&model[1..]).build()).contains("as long as all tensors"));
        assert!(usage(build().memory(&model).scale(Scale::World).build()).contains("scale=sum"));
        assert!(usage(build().memory(&model).mover(Mover::Tree).build()).contains("tree mover"));
        let whole = world.allreduce::<u32>(&[1]).memory(&[1]).build();
        assert!(matches!(whole, Err(Error::Usage { problem, .. }) if problem.text().contains("floating-point")));
        let different = build().memory(&[me; 4]).build();
        assert!(matches!(&different, Err(Error::Mismatch { what, .. }) if what.contains("the model")), "{different:?}");
        let groups = build().memory(&model).group(Group::Butterfly(2 + world.rank())).build();
        assert!(matches!(&groups, Err(Error::Mismatch { what: "group", .. })), "{groups:?}");
    });
    assert!(!refused.is_empty());
}
