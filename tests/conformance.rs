//! Every fabric does what the trait says.
#![cfg(feature = "internals")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::{Duration, Instant};

use earlybird::fabric::ofi::{OfiFabric, Settings};
use earlybird::fabric::shm::ShmFabric;
use earlybird::fabric::sim::SimFabric;
use earlybird::fabric::{Fabric, conformance};

fn boxed(world: Vec<impl Fabric + 'static>) -> Vec<Box<dyn Fabric>> {
    world.into_iter().map(|fabric| Box::new(fabric) as Box<dyn Fabric>).collect()
}

#[test]
fn sim_on_one_host() {
    for seed in 0..50 {
        conformance::all(&|ranks| boxed(SimFabric::world(&vec![0; ranks as usize], seed)));
    }
}

#[test]
fn sim_on_a_host_each() {
    for seed in 0..50 {
        let hosts = |ranks: u32| (0..ranks).collect::<Vec<_>>();
        conformance::all(&|ranks| boxed(SimFabric::world(&hosts(ranks), seed)));
    }
}

#[test]
fn shm() {
    conformance::all(&|ranks| boxed(ShmFabric::in_this_process(ranks).unwrap()));
}

fn ofi(provider: &str) {
    by(provider, None);
}

fn by(provider: &str, cq_data: Option<bool>) {
    let Some(library) = common::libfabric() else { return };
    let settings = Settings { provider: Some(provider.to_owned()), cq_data, ..Settings::default() };
    conformance::all(&|ranks| {
        let deadline = Instant::now() + Duration::from_secs(20);
        let world = OfiFabric::in_this_process(&library, &settings, ranks, deadline);
        boxed(world.unwrap_or_else(|error| panic!("{provider}: {error}")))
    });
}

#[test]
fn ofi_tcp() {
    ofi("tcp;ofi_rxm");
}

#[test]
fn ofi_sockets() {
    ofi("sockets");
}

#[test]
fn ofi_shm() {
    ofi("shm");
}

#[test]
fn ofi_verbs() {
    if common::verbs() {
        ofi(common::VERBS);
    }
}

#[test]
fn ofi_udp() {
    ofi("udp;ofi_rxd");
}

/// As over a provider whose writes bring no data to the queue of their target.
#[test]
fn ofi_without_remote_completion_data() {
    for provider in common::PROVIDERS {
        by(provider, Some(false));
    }
}
