//! Ranks that relay while they do something else.

use std::thread;
use std::time::{Duration, Instant};

use super::folder::Folder;
use super::marks::Marks;
use super::until;
use earlybird::{Config, Executor, Fire, Grace, Mover, World};

const DEADLINE: Duration = Duration::from_secs(60);

/// A world with this hw-config and the other choices that `choose` makes.
pub fn join(hw_config: &str, choose: impl FnOnce(&mut Config)) -> World {
    let folder = Folder::new();
    let file = folder.path("hw-config");
    std::fs::write(&file, hw_config).unwrap();
    let mut config = Config { deadline: DEADLINE, hw_config: Some(file), ..Config::from_env().unwrap() };
    choose(&mut config);
    World::with(&config).unwrap()
}

/// Rank 0 computes while the others make their rounds. It prints how many it then finds at once.
pub fn stay_away() {
    const ROUNDS: u64 = 40;
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    let sum = world.allreduce::<u64>(&[100]).fire(Fire::SOLO).grace(Grace::NONE).depth(64).mover(Mover::Tree);
    let mut sum = sum.build().unwrap();
    assert_eq!(sum.executor(), Executor::Thread, "a rank that computes would hold up all that it relays");
    world.barrier(DEADLINE).unwrap();
    let mut newest = 0;
    if world.rank() > 0 {
        let until = Instant::now() + DEADLINE;
        while newest < ROUNDS {
            sum.contribution().unwrap().fill(1);
            sum.arrive().unwrap();
            newest = sum.wait(DEADLINE).unwrap().newest().round();
            assert!(Instant::now() < until, "{newest} rounds");
        }
    } else {
        // It makes no call until the others have their rounds.
        thread::sleep(Duration::from_millis(200));
        world.barrier(DEADLINE).unwrap();
        sum.contribution().unwrap().fill(1);
        sum.arrive().unwrap();
        let outcomes = sum.wait(DEADLINE).unwrap();
        println!("\nFIRST {}", outcomes.len());
        for outcome in outcomes {
            assert!(outcome.data().iter().all(|&x| x == outcome.cut().contributions().count() as u64));
        }
    }
    if world.rank() > 0 {
        world.barrier(DEADLINE).unwrap();
    }
    sum.finish(DEADLINE).unwrap();
}

/// Ranks wait for two collectives, one in another order than the next.
pub fn wait_in_different_orders() {
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    let build = |length: usize| world.allreduce::<u64>(&[length]).mover(Mover::Tree).build().unwrap();
    let mut sums = [build(10), build(3000)];
    for round in 1..=30 {
        for sum in &mut sums {
            sum.contribution().unwrap().fill(round);
            sum.arrive().unwrap();
        }
        for index in 0..2 {
            let outcomes = sums[(index + world.rank() as usize) % 2].wait(DEADLINE).unwrap();
            let expected = round * u64::from(world.size());
            assert!(outcomes.newest().iter().all(|&x| x == expected), "round {round}");
        }
    }
    sums.iter_mut().for_each(|sum| sum.finish(DEADLINE).unwrap());
}

/// Set by the rank that is about to be stopped, by the test when it is, and when it goes on.
pub const READY: &str = "ready";
pub const STOPPED: &str = "stopped";
pub const GOES_ON: &str = "goes-on";

/// How the mark begins that a rank sets when it has its rounds.
pub const HAS_ROUNDS: &str = "has-rounds-";

/// `VICTIM FOLDER`: the others make rounds while this rank is stopped. Then it receives them all at once.
pub fn make_rounds_without(role: &str) {
    const ROUNDS: u64 = 40;
    let (victim, folder) = role.split_once(' ').unwrap();
    let marks = Marks::at(folder);
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    let sum = world.allreduce::<u64>(&[100]).fire(Fire::SOLO).grace(Grace::NONE).depth(ROUNDS as u32 + 8);
    let mut sum = sum.mover(Mover::Tree).build().unwrap();
    let mut round = |newest: &mut u64| {
        sum.contribution().unwrap().fill(1);
        sum.arrive().unwrap();
        let outcomes = sum.wait(DEADLINE).unwrap();
        *newest = outcomes.newest().round();
        let rounds = outcomes.len() as u64;
        for outcome in outcomes {
            assert!(outcome.data().iter().all(|&x| x == outcome.cut().contributions().count() as u64));
        }
        rounds
    };
    world.barrier(DEADLINE).unwrap();
    let mut newest = 0;
    if world.rank() == victim.parse::<u32>().unwrap() {
        marks.set(READY);
        until("this rank goes on", || marks.has(GOES_ON));
        assert!(round(&mut newest) >= ROUNDS);
    } else {
        until("that rank is stopped", || marks.has(STOPPED));
        while newest < ROUNDS {
            round(&mut newest);
        }
        marks.set(&format!("{HAS_ROUNDS}{}", world.rank()));
        until("that rank goes on", || marks.has(GOES_ON));
    }
    sum.finish(DEADLINE).unwrap();
}
