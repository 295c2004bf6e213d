//! libfabric as it is installed here.
#![cfg(feature = "internals")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{PROVIDERS, libfabric};
use earlybird::fabric::ofi::{Device, Progress, devices};

#[test]
fn providers_are_found_with_what_they_can_do() {
    let Some(library) = libfabric() else { return };
    let devices = devices(&library).unwrap();
    for device in &devices {
        println!("{device:?}");
    }
    let of = |provider: &str| -> Vec<&Device> {
        let found: Vec<_> = devices.iter().filter(|device| device.provider == provider).collect();
        assert!(!found.is_empty(), "no {provider} in {devices:?}");
        found
    };
    let remote = |device: &&Device| device.ordered_writes > 0 && device.remote_cq_data >= 4 && device.most_bytes > 0;
    for provider in PROVIDERS {
        assert!(of(provider).iter().all(|device| remote(device) && device.atomics), "{provider}");
    }
    // Of these only sockets runs operations by itself that wait for a counter.
    assert!(of("sockets").iter().all(|device| device.triggers && device.remote_counters));
    assert!(of("tcp;ofi_rxm").iter().all(|device| !device.triggers));
    assert!(of("shm").iter().all(|device| device.progress == Progress::Manual));
    let names: std::collections::BTreeSet<_> = devices.iter().map(|it| (&it.provider, &it.device)).collect();
    assert_eq!(names.len(), devices.len(), "each device once");
}

#[test]
fn errors_have_a_text() {
    let Some(library) = libfabric() else { return };
    assert_eq!(library.error_text(-11), library.error_text(11));
    assert!(library.error_text(-61).contains("No data"), "{}", library.error_text(-61));
}
