//! A rank goes on where others died.

use std::process::{Child, Command};

use super::*;
use crate::collective::core::{Op, Plan, Terms, Token, program};
use crate::collective::driver::{Reduction, Regions};
use crate::executor::caller::Waiter;
use crate::executor::spin::Spin;
use crate::fabric::shm::ShmFabric;
use crate::fabric::{Endpoint, Fabric, RawAccess};
use crate::reduce::{Dtype, Reduce};
use crate::rule::{Absent, Fire, Grace, Scale, Schedule};
use crate::time::Deadline;

const RANKS: u32 = 3;
const ELEMENTS: usize = 4;
const SUM: Reduction = Reduction { dtype: Dtype::U64, reduce: Reduce::Sum, scale: Scale::Sum, absent: Absent::Carry };

fn plan(me: u32) -> Plan {
    let (fire, grace, depth, segment) = (Fire::ALL, Grace::NONE, 2, 8);
    let bytes = ELEMENTS * size_of::<u64>();
    Plan::new(Terms {
        depth,
        bytes,
        wide_bytes: bytes,
        segment,
        program: Some(program(RANKS, (fire, grace), Schedule::Doubling, (bytes, segment), depth)),
        ..Terms::sample(me, vec![0; RANKS as usize], fire, MovementBy::Program)
    })
}

/// Returns all ranks of a world in this process; rank 0 takes `others` for the processes of the other ranks.
fn world(others: &[Child]) -> Vec<Arc<ShmFabric>> {
    let shared = ShmFabric::create(RANKS).unwrap();
    let unwatched = vec![None; RANKS as usize];
    let watched: Vec<_> = std::iter::once(None).chain(others.iter().map(|child| Some(child.id()))).collect();
    let join = |rank: u32| {
        let pids = if rank == 0 { &watched } else { &unwatched };
        Arc::new(
            ShmFabric::join(shared.each_ref().map(|descriptor| descriptor.try_clone().unwrap()), rank, RANKS, pids)
                .unwrap(),
        )
    };
    (0..RANKS).map(join).collect()
}

fn drivers(fabrics: &[Arc<ShmFabric>]) -> Vec<Driver> {
    let open = |fabric: &Arc<ShmFabric>| fabric.open(RawAccess::CRATE).unwrap();
    let mut ends: Vec<Box<dyn Endpoint>> = fabrics.iter().map(open).collect();
    let cells = plan(0).control_cells() * size_of::<u64>();
    let regions = [(cells, Regions::CONTROL), (plan(0).data_bytes(), Regions::DATA)];
    let own = regions.map(|(bytes, access)| ends[0].register(bytes, access).unwrap());
    let keys = own.map(|region| ends[0].key(region));
    let driver = |(rank, mut end): (u32, Box<dyn Endpoint>)| {
        let [control, data] = if rank == 0 { own } else { keys.map(|key| end.import(0, key).unwrap()) };
        let regions = Regions { control: [control].into(), data: [data].into() };
        Driver::new(plan(rank), end, regions, SUM, None).unwrap()
    };
    (0..).zip(ends).map(driver).collect()
}

/// Hands in a contribution of ones.
fn arrive(driver: &mut Driver) {
    let (plan, buffer) = (driver.machine().plan().clone(), driver.machine().buffer());
    driver.memory().contribution::<u64>(plan.contribution(plan.me, buffer), plan.bytes).fill(1);
    driver.machine_mut().arrive(0, Particulars::PLAIN);
}

/// Continues until an operation is claimed, and no further, like a process that is killed then.
fn claim(driver: &mut Driver) {
    let is_claim = |op: &Op| matches!(op, Op::Atomic { token: Token::Swap, .. });
    loop {
        let claims = driver.machine().peek_op().is_some_and(is_claim);
        assert!(driver.step(0, Effort::Work).unwrap(), "there is nothing to claim");
        if claims {
            return;
        }
    }
}

/// Each of two dead ranks holds an operation without which a fired round cannot land.
#[test]
fn a_round_that_had_fired_outlives_two_deaths() {
    let sleeper = || Command::new("sleep").arg("600").spawn().unwrap();
    let mut others = [sleeper(), sleeper()];
    let fabrics = world(&others);
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
    let mut drivers = drivers(&fabrics);
    drivers.iter_mut().for_each(arrive);
    drivers[1..].iter_mut().for_each(claim);
    let memory = drivers[0].memory();
    let mut survivor = Engine::new(drivers.remove(0));
    let mut waiter = Waiter::new(fabrics[0].clone(), Spin::new(Duration::from_millis(1), true));
    let deadline = Deadline::from(Duration::from_secs(60));
    waiter.block(survivor.towards(Goal::Outcome), "wait", deadline).unwrap();
    assert_eq!(survivor.machine().stats().inherited, 2);
    let at = survivor.machine().outcome_at(1);
    assert_eq!(memory.outcome::<u64>(at, plan(0).bytes), [u64::from(RANKS); ELEMENTS]);
    assert_eq!(fabrics[0].dead(), [1, 2]);
}
