//! Every fabric does what the trait says.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::{Duration, Instant};

use common::tier::by_tier;
use common::{Need, skipped};
use earlybird::fabric::ofi::{Library, OfiFabric};
use earlybird::fabric::shm::ShmFabric;
use earlybird::fabric::sim::SimFabric;
use earlybird::fabric::verbs::{self, VerbsFabric};
use earlybird::fabric::{Fabric, conformance};
use earlybird::{OfiSettings, VerbsSettings};

/// The fabrics of a world, and the host of each rank.
type World = (Vec<Box<dyn Fabric>>, Vec<u32>);

fn boxed(world: Vec<impl Fabric + 'static>, hosts: Vec<u32>) -> World {
    (world.into_iter().map(|fabric| Box::new(fabric) as Box<dyn Fabric>).collect(), hosts)
}

/// Each rank on a host of its own.
fn apart(world: Vec<impl Fabric + 'static>) -> World {
    let hosts = (0..world.len() as u32).collect();
    boxed(world, hosts)
}

#[test]
fn sim_on_one_host() {
    for seed in 0..by_tier(3, 50) {
        let hosts = |ranks: u32| vec![0; ranks as usize];
        conformance::all(&|ranks| boxed(SimFabric::world(&hosts(ranks), seed), hosts(ranks)));
    }
}

#[test]
fn sim_on_a_host_each() {
    for seed in 0..by_tier(3, 50) {
        let hosts = |ranks: u32| (0..ranks).collect::<Vec<_>>();
        conformance::all(&|ranks| apart(SimFabric::world(&hosts(ranks), seed)));
    }
}

#[test]
fn shm() {
    conformance::all(&over_shm);
}

fn ofi(provider: &str) {
    by(provider, OfiSettings::default());
}

fn by(provider: &str, settings: OfiSettings) {
    let Some(library) = common::libfabric() else { return };
    let settings = OfiSettings { provider: Some(provider.to_owned()), ..settings };
    conformance::all(&|ranks| over_ofi(&library, &settings, ranks));
}

fn over_ofi(library: &Library, settings: &OfiSettings, ranks: u32) -> World {
    let deadline = Instant::now() + Duration::from_secs(20);
    let world = OfiFabric::in_this_process(library, settings, ranks, deadline);
    apart(world.unwrap_or_else(|error| panic!("{:?}: {error}", settings.provider)))
}

fn over_shm(ranks: u32) -> World {
    boxed(ShmFabric::in_this_process(ranks).unwrap(), vec![0; ranks as usize])
}

#[test]
fn ofi_tcp() {
    ofi("tcp;ofi_rxm");
}

/// By messages, as other providers; its threads take as much processor time as all of those.
#[test]
fn ofi_sockets() {
    if by_tier(false, true) {
        ofi("sockets");
    }
}

/// As over a device that changes cells by itself: a thread of the provider does.
#[test]
fn ofi_sockets_by_device() {
    by("sockets", OfiSettings { device_atomics: Some(true), ..OfiSettings::default() });
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
fn verbs() {
    over_verbs(VerbsSettings::default());
}

/// As over a device without atomics.
#[test]
fn verbs_by_messages() {
    over_verbs(VerbsSettings { device_atomics: Some(false), ..VerbsSettings::default() });
}

/// As over a card, whatever the device is.
#[test]
fn verbs_in_order() {
    over_verbs(VerbsSettings { ordered_writes: Some(true), ..VerbsSettings::default() });
}

/// Nothing wakes a rank that waits: it looks at its memory.
#[test]
fn verbs_by_memory_polling() {
    over_verbs(VerbsSettings { memory_polling: true, ..VerbsSettings::default() });
}

/// Parts of large transfers go by a second device.
#[test]
fn verbs_over_two_devices() {
    let Some(library) = common::rdma() else { return };
    let ports = verbs::devices(&library).expect("devices");
    let mut active = ports.iter().filter(|port| port.active);
    let (Some(first), Some(second)) = (active.next(), active.next()) else {
        return skipped(Need::Verbs, "only one RDMA device has an active port here");
    };
    let name = |port: &verbs::DevicePort| (port.device.clone(), Some(port.port));
    let ((device, port), second) = (name(first), name(second));
    let settings = VerbsSettings { device: Some(device), port, second: Some(second), ..VerbsSettings::default() };
    for device_atomics in [None, Some(false)] {
        over_verbs(VerbsSettings { device_atomics, ..settings.clone() });
    }
}

fn over_verbs(settings: VerbsSettings) {
    let Some(library) = common::rdma() else { return };
    conformance::all(&|ranks| verbs_world(&library, &settings, ranks));
}

fn verbs_world(library: &verbs::Library, settings: &VerbsSettings, ranks: u32) -> World {
    let deadline = Instant::now() + Duration::from_secs(20);
    let world = VerbsFabric::in_this_process(library, settings, ranks, deadline);
    apart(world.unwrap_or_else(|error| panic!("verbs: {error}")))
}

/// By messages, too, with many sleeps.
#[test]
fn ofi_udp() {
    if by_tier(false, true) {
        ofi("udp;ofi_rxd");
    }
}

/// As over a provider without immediate data.
#[test]
fn ofi_without_remote_completion_data() {
    for &provider in &common::PROVIDERS[..by_tier(1, common::PROVIDERS.len())] {
        by(provider, OfiSettings { cq_data: Some(false), ..OfiSettings::default() });
    }
}

/// The suite finds deliberate mistakes.
#[cfg(earlybird_faults)]
mod faults {
    use super::*;
    use earlybird::fabric::RawAccess;
    use earlybird::fault::{Fault, Suite};

    #[allow(unsafe_code, reason = "what is broken on purpose may break memory")]
    fn every_fault_is_found(place: &str, suite: impl Fn() + Sync) {
        // SAFETY: the suite keeps the promise, except for the mistakes, and reads what they break
        // by atomics and copies.
        let access = unsafe { RawAccess::promise() };
        let faults: Vec<Fault> = Suite::Conformance.faults().filter(|fault| fault.place() == place).collect();
        assert!(!faults.is_empty());
        let unseen = Fault::unseen(faults, access, suite);
        assert!(unseen.is_empty(), "unseen: {unseen:?}");
    }

    #[test]
    fn in_shm() {
        every_fault_is_found("fabric/shm", || conformance::all(&over_shm));
    }

    #[test]
    fn in_ofi() {
        let Some(library) = common::libfabric() else { return };
        // Failed worlds do not linger.
        let mut settings = OfiSettings { provider: Some(common::PROVIDERS[0].to_owned()), ..OfiSettings::default() };
        settings.patience.linger = Duration::from_millis(200);
        every_fault_is_found("fabric/net", || conformance::all(&|ranks| over_ofi(&library, &settings, ranks)));
    }
}
