//! The engine over `tcp;ofi_rxm`.

use super::stranger_tests::{World, library};
use crate::fabric::net::stepping_tests;

#[test]
fn nothing_completes_before_its_data_is_processed() {
    if let Some(library) = library() {
        stepping_tests::all(&|| World::new(&library));
    }
}

#[cfg(earlybird_faults)]
#[test]
fn every_fault_is_found() {
    use crate::fault::{Fault, Suite};

    let Some(library) = library() else { return };
    let suite = || stepping_tests::all(&|| World::new(&library));
    let unseen = Fault::unseen(Suite::Stepping.faults(), crate::fabric::RawAccess::CRATE, suite);
    assert!(unseen.is_empty(), "unseen: {unseen:?}");
}
