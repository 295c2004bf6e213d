//! Drivers of ranks on several simulated hosts, where operations take effect in any order that a network allows.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::collective::core::{Effort, Time};
use crate::collective::tickets::{Areas, Mean, Memory, TicketDriver, TicketMachine, TicketPlan, TicketTerms};
use crate::fabric::sim::{SimFabric, Weather};
use crate::fabric::{Access, Endpoint, Fabric, Key, RawAccess, Region};
use crate::fault::Fault;
use crate::reduce::Dtype;
use crate::topology::Topology;

/// Elements of a model, and of a segment.
const ELEMENTS: usize = 5;
const SEGMENT: usize = 2;
const BYTES: usize = ELEMENTS * size_of::<f64>();

/// A rank that makes a given number of contributions.
struct Rank {
    driver: TicketDriver,
    steps: u64,
    made: u64,
    /// When it arrives next, while it computes.
    arrives_at: Option<Time>,
    leaving: bool,
}

/// A world on hosts that are drawn from a seed, and the sum of all contributions.
pub(super) struct World {
    topology: Topology,
    areas: Areas,
    ranks: Vec<Rank>,
    /// The members and the lender of each group, and its model.
    groups: BTreeMap<u64, (Vec<u32>, Vec<u64>)>,
    updates: Vec<f64>,
    bridges: u64,
    fabric: SimFabric,
    /// Whether operations take time, which passes while ranks compute, so that many others overtake some of them.
    /// Otherwise they take effect when ranks poll for them.
    has_clock: bool,
}

fn update(rank: u32, step: u64, index: usize) -> f64 {
    ((u64::from(rank) * 7 + step * 13 + index as u64 * 5) % 64) as f64 - 31.0
}

/// Draws hosts, numbered without gaps.
fn draw_hosts(rng: &mut Xoshiro256PlusPlus, ranks: u32) -> Vec<u32> {
    let mut most = 0;
    (0..ranks)
        .map(|_| {
            let host = rng.random_range(0..=most);
            most = most.max(host + 1);
            host
        })
        .collect()
}

fn build(rng: &mut Xoshiro256PlusPlus, has_registers: bool, fault: Option<Fault>) -> World {
    let ranks = rng.random_range(2..=6);
    let hosts = draw_hosts(rng, ranks);
    let topology = Topology::new(hosts.clone());
    let areas = Areas::new(topology.clone(), BYTES, SEGMENT * size_of::<f64>());
    let has_clock = rng.random_bool(0.4);
    let limit = if has_clock { rng.random_range(1_000..5_000) } else { 300_000 };
    let often = if has_clock { 0.7 } else { 0.2 };
    let (size, deadline) = (rng.random_range(2..=4), rng.random_bool(often).then_some(limit));
    let records = rng.random_bool(0.5).then(|| rng.random_range(1..=3));
    let plan = |me| {
        let terms = TicketTerms {
            me,
            deadline,
            lends: has_registers,
            segments: areas.segments(),
            fault,
            ..TicketTerms::sample(ranks, size)
        };
        match records {
            Some(records) => TicketPlan::new(terms).with_records(records),
            None => TicketPlan::new(terms),
        }
    };
    let fabrics = SimFabric::world(&hosts, rng.random());
    if has_clock {
        let net = fabrics[0].net();
        let mut net = net.lock();
        net.take_over();
        net.set_weather(Weather { slow: rng.random_range(0..=16), ..Weather::default() });
    }
    let mut endpoints: Vec<Box<dyn Endpoint>> =
        fabrics.iter().map(|fabric| fabric.open(RawAccess::CRATE).unwrap()).collect();
    // The regions of each host, by its leader.
    let made: Vec<[(Region, Key); 2]> = (0..topology.hosts())
        .map(|host| {
            let leader = &mut endpoints[topology.leader(host) as usize];
            let cells = if host == topology.host_of(0) { plan(0).cells() } else { 1 };
            [cells * size_of::<u64>(), areas.of_host().unwrap()].map(|bytes| {
                let region = leader.register(bytes, Access::ReadWrite).unwrap();
                (region, leader.key(region))
            })
        })
        .collect();
    let driver = |(me, mut endpoint): (u32, Box<dyn Endpoint>)| {
        let mut name = |host: u32, which: usize| {
            let (leader, (own, key)) = (topology.leader(host), made[host as usize][which]);
            if leader == me { own } else { endpoint.import(leader, key).unwrap() }
        };
        let data = (0..topology.hosts()).map(|host| name(host, 1)).collect();
        let cells = name(topology.host_of(0), 0);
        let mean = if has_registers { Mean::Registers } else { Mean::Models };
        let memory = Memory { cells, data, areas: areas.clone(), dtype: Dtype::F64, mean };
        TicketDriver::new(TicketMachine::new(plan(me)), endpoint, memory).unwrap()
    };
    let drivers: Vec<TicketDriver> = (0..).zip(endpoints).map(driver).collect();
    let rank = |driver| Rank { driver, steps: rng.random_range(0..=10), made: 0, arrives_at: Some(0), leaving: false };
    let ranks = drivers.into_iter().map(rank).collect();
    let (groups, updates, fabric) = (BTreeMap::new(), vec![0.0; ELEMENTS], fabrics[0].clone());
    World { topology, areas, ranks, groups, updates, bridges: 0, fabric, has_clock }
}

impl World {
    fn arrive(&mut self, me: u32, now: Time) {
        let Rank { driver, steps, made, arrives_at, leaving } = &mut self.ranks[me as usize];
        *arrives_at = None;
        if *made == *steps {
            *leaving = true;
            return driver.machine_mut().finish(now, *made);
        }
        let buffer = (*made % 2) as u32;
        let mut lender = driver.memory();
        let contribution = lender.contribution::<f64>(self.areas.contribution(me, buffer), BYTES);
        for ((index, to), sum) in contribution.iter_mut().enumerate().zip(&mut self.updates) {
            *to = update(me, *made, index);
            *sum += *to;
        }
        driver.machine_mut().arrive(now, buffer, *made, 1);
        *made += 1;
    }

    /// Takes the outcome of a rank whose group is over, and checks that all members have the same.
    fn take(&mut self, me: u32, seed: u64) {
        let Rank { driver, leaving, .. } = &mut self.ranks[me as usize];
        let cut = driver.machine_mut().take();
        let members: Vec<u32> = cut.members.iter().map(|member| member.rank).chain(cut.lender).collect();
        let (group, bridges) = (cut.group, u64::from(cut.lender.is_some()));
        assert!(members.contains(&me), "seed {seed}: rank {me} is not in {members:?}");
        if *leaving {
            return;
        }
        let outcome =
            driver.memory().outcome::<f64>(self.areas.outcome(me), BYTES).iter().map(|x| x.to_bits()).collect();
        let seen = (members, outcome);
        match self.groups.get(&group) {
            None => self.bridges += bridges,
            Some(known) => assert_eq!(*known, seen, "seed {seed}: group {group} of rank {me}"),
        }
        self.groups.insert(group, seen);
    }

    fn pass_time(&self, now: Time) {
        if self.has_clock {
            let net = self.fabric.net();
            let mut net = net.lock();
            net.advance_to(Some(now), u64::MAX);
            net.pass_time(now);
        }
    }

    /// Checks that no cut replaces a later one.
    fn check_cuts(&self, newest: &mut BTreeMap<u64, u64>, seed: u64) {
        let driver = &self.ranks[0].driver;
        let plan = driver.machine().plan();
        for group in 0..plan.records() {
            let found = plan.record(group).newest_cut(driver.home());
            let before = newest.insert(group, found).unwrap_or(0);
            assert!(before <= found, "seed {seed}: the cut of group {} lands behind that of {}", found - 1, before - 1);
        }
    }

    /// Returns the sum of all registers.
    fn total(&self) -> Vec<f64> {
        let mut total = vec![0.0; ELEMENTS];
        for rank in 0..self.ranks.len() as u32 {
            let memory = self.ranks[self.topology.leader(self.topology.host_of(rank)) as usize].driver.memory();
            let register = memory.outcome::<f64>(self.areas.register(rank), BYTES);
            total.iter_mut().zip(register).for_each(|(sum, x)| *sum += x);
        }
        total
    }
}

/// Runs a world to its end.
pub(super) fn schedule(seed: u64, fault: Option<Fault>) -> World {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let has_registers = rng.random_bool(0.7);
    let mut world = build(&mut rng, has_registers, fault);
    let (mut now, mut idle, mut newest_cuts) = (0, 0, BTreeMap::new());
    while !world.ranks.iter().all(|rank| rank.driver.has_gone()) {
        let (pause, longest) = if world.has_clock { (1_000, 40_000) } else { (20_000, 500_000) };
        now += rng.random_range(0..pause);
        world.pass_time(now);
        world.check_cuts(&mut newest_cuts, seed);
        idle += 1;
        assert!(idle < 200_000, "seed {seed}: hangs, {:?}", world.ranks[0].driver.machine());
        let me = rng.random_range(0..world.ranks.len() as u32);
        let rank = &mut world.ranks[me as usize];
        if rank.arrives_at.is_some_and(|at| at <= now) {
            world.arrive(me, now);
            idle = 0;
            continue;
        }
        let effort = if rng.random_bool(0.2) { Effort::Nothing } else { Effort::Work };
        let stepped = if rng.random_bool(0.1) { rank.driver.rest(now) } else { rank.driver.step(now, effort) };
        if stepped.unwrap() {
            idle = 0;
        }
        if rank.driver.machine().is_ready() {
            world.take(me, seed);
            let rank = &mut world.ranks[me as usize];
            rank.arrives_at = (!rank.leaving).then(|| now + rng.random_range(0..longest));
        }
    }
    if has_registers {
        let total = world.total();
        let is_close = |(sum, all): (&f64, &f64)| (sum - all).abs() < 1e-6;
        assert!(total.iter().zip(&world.updates).all(is_close), "seed {seed}: {total:?} for {:?}", world.updates);
    }
    world
}

/// All members of a group find the same model, and no update is lost or enters twice.
#[test]
fn groups_form_over_any_hosts() {
    let (mut groups, mut bridges, mut spread) = (0, 0, 0);
    for seed in 0..super::schedules() / 5 {
        let world = schedule(seed, None);
        groups += world.groups.len();
        bridges += world.bridges;
        spread += u64::from(world.topology.has_elsewhere());
    }
    println!("{groups} groups, {bridges} with lenders, {spread} worlds of several hosts");
    assert!(groups > 5_000 && bridges > 100 && spread > 1_000, "{groups} groups, {bridges} with lenders, {spread}");
}
