//! The hot path allocates nothing: every allocation of this process is counted.
#![allow(unsafe_code, reason = "counts allocations")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use earlybird::{Absent, Allreduce, Config, Executor, Fire, Group, Mover, World};
use parking_lot::{Condvar, Mutex};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const DEADLINE: Duration = Duration::from_secs(20);

const WAYS: [(Mover, Executor); 4] = [
    (Mover::Cut, Executor::Caller),
    (Mover::Tree, Executor::Caller),
    (Mover::Tree, Executor::Peer),
    (Mover::Tree, Executor::Thread),
];

#[test]
fn rounds_allocate_nothing() {
    for way in WAYS {
        for length in [1, 1000, 200_000] {
            for fire in [Fire::ALL, Fire::SOLO, Fire::quorum(2)] {
                let worlds = World::in_this_process(2, &Config::default()).unwrap();
                std::thread::scope(|scope| {
                    worlds.into_iter().for_each(|world| _ = scope.spawn(move || play(&world, way, fire, length)))
                });
            }
        }
    }
}

/// Models in registers, and models that are held.
#[test]
fn averaging_models_allocates_nothing() {
    for absent in [Absent::Carry, Absent::Hold] {
        for group in [Group::World, Group::Butterfly(2)] {
            for fire in [Fire::ALL, Fire::SOLO] {
                let worlds = World::in_this_process(3, &Config::default()).unwrap();
                let play = |world: World| {
                    let models = world.allreduce::<f32>(&[1000]).fire(fire).absent(absent).group(group);
                    count(models.memory(&[1.0; 1000]).build().unwrap(), &format!("{fire}, {absent}, {group}"));
                };
                std::thread::scope(|scope| {
                    worlds.into_iter().for_each(|world| _ = scope.spawn(move || play(world)));
                });
            }
        }
    }
}

/// The caller and the helper thread of a collective share a lock, and one may sleep until the other releases it.
#[test]
fn sleeping_on_a_lock_allocates_nothing() {
    let world = World::in_this_process(1, &Config::default()).unwrap().remove(0);
    let mut sum = world.allreduce::<f32>(&[1]).executor(Executor::Thread).build().unwrap();
    let before = ALLOCATIONS.with(Cell::get);
    let lock = Mutex::new(());
    assert!(Condvar::new().wait_for(&mut lock.lock(), Duration::ZERO).timed_out());
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    sum.finish(DEADLINE).unwrap();
}

/// A planner of merged gradients keeps its memory.
#[cfg(earlybird_internals)]
#[test]
fn planning_again_allocates_nothing() {
    use earlybird::merge::{Cost, Gradient, Merging, Planner};
    let gradients: Vec<_> =
        (1..=200).map(|at| Gradient { ready: Duration::from_millis(at), bytes: at << 10 }).collect();
    let mut planner = Planner::default();
    let mut plan = |message: Duration| {
        let cost = Cost { message, per_mib: Duration::from_millis(1) };
        [Merging::Optimal, Merging::Each, Merging::One, Merging::Bytes(1 << 20)]
            .map(|merging| planner.plan(merging, &gradients, cost).len())
    };
    let merged = plan(Duration::from_millis(50))[0];
    let before = ALLOCATIONS.with(Cell::get);
    // Free messages have as many buckets as there are gradients.
    assert!(plan(Duration::ZERO)[0] > merged);
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}

/// A rank finds its group in memory that the caller keeps.
#[cfg(earlybird_internals)]
#[test]
fn finding_a_group_allocates_nothing() {
    use earlybird::RankSet;
    use earlybird::group::Butterfly;
    let active = RankSet::from_iter((0..1000).filter(|rank| rank % 7 != 3));
    let schedule = Butterfly::new(32).unwrap();
    let mut members = Vec::with_capacity(32);
    let before = ALLOCATIONS.with(Cell::get);
    for round in 1..=10 {
        schedule.group(&active, round, 501, &mut members);
        assert!(members.len() > 30 && members.contains(&501));
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}

fn play(world: &World, (mover, executor): (Mover, Executor), fire: Fire, length: usize) {
    let sum = world.allreduce::<f32>(&[length]).fire(fire).mover(mover).executor(executor).build().unwrap();
    count(sum, &format!("{mover} {executor}, {fire}, {length} elements"));
}

/// Counts what this thread allocates in rounds.
fn count(mut sum: Allreduce<f32>, what: &str) {
    let mut seen = 0.0;
    let mut rounds = |sum: &mut Allreduce<f32>, count: u32| {
        for _ in 0..count {
            sum.contribution().unwrap()[0] = 1.0;
            sum.arrive().unwrap();
            for outcome in sum.wait(DEADLINE).unwrap() {
                seen += outcome.data()[0];
            }
        }
    };
    rounds(&mut sum, 20);
    let before = ALLOCATIONS.with(Cell::get);
    rounds(&mut sum, 200);
    let after = ALLOCATIONS.with(Cell::get);
    assert_eq!(after - before, 0, "{what}");
    sum.finish(DEADLINE).unwrap();
    assert!(seen > 0.0);
}
