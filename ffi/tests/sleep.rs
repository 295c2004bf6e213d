//! What a queue gives to sleep on: nothing of it is ready while there is nothing to be read.
#![allow(clippy::unwrap_used, reason = "a test of bindings")]

mod skipped;

use std::ffi::CStr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use earlybird_ffi::ofi::{Domain, Endpoint, Fabric, Library, Queue, Sign, Wanted, sys};
use skipped::{Need, skipped};

/// Every so many endpoints a clock's tick falls into the wait that brings the list up to date.
const ENDPOINTS: u32 = 100;

#[test]
fn a_list_is_up_to_date_and_quiet() {
    let Ok(library) = Library::load(None).inspect_err(|problem| skipped(Need::Libfabric, problem)) else { return };
    let stays_quiet = |provider: &CStr| {
        let wanted = Wanted {
            caps: sys::FI_MSG | sys::FI_RMA,
            endpoint: sys::FI_EP_RDM,
            threading: sys::FI_THREAD_SAFE,
            provider: Some(provider.to_owned()),
            ..Wanted::default()
        };
        let list = library.info(&wanted).unwrap();
        let info = list.iter().next().unwrap();
        let domain = Domain::open(Fabric::open(&library, info).unwrap(), info).unwrap();
        for turn in 0..ENDPOINTS {
            // At any time of a millisecond.
            std::thread::sleep(Duration::from_micros(u64::from(turn * 37 % 1000)));
            let queue = Queue::open(domain.clone(), 64, Sign::Several).unwrap();
            let endpoint = Endpoint::open(domain.clone(), info, queue, 2).unwrap();
            let queue = endpoint.queue();
            assert!(queue.settle(), "{provider:?}, endpoint {turn}");
            let watched = queue.watched();
            // One is the list's own, another the queue's, and at least one the network's.
            assert!(watched.len() > 2, "{provider:?}, endpoint {turn}: {watched:?}");
            domain.fabric().try_wait(queue).unwrap();
            for watched in &watched {
                assert!(!is_ready(watched.descriptor.as_raw_fd(), watched.events), "{provider:?}, endpoint {turn}");
            }
        }
    };
    std::thread::scope(|scope| {
        for provider in [c"tcp;ofi_rxm", c"tcp"] {
            scope.spawn(move || stays_quiet(provider));
        }
    });
}

#[allow(unsafe_code)]
fn is_ready(fd: i32, events: i16) -> bool {
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one, as is said.
    unsafe { libc::poll(&raw mut polled, 1, 0) > 0 }
}
