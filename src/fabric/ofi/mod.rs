//! libfabric: one interface to every HPC network.
//!
//! `fabric::net` has what all networks share. Here are a wire over libfabric's
//! endpoints, the choice of a provider, and what each provider needs: limits, registration and
//! environment variables. Nothing depends on what a provider can do beyond messages and remote
//! writes and reads: not on its atomics, on the order of its operations, on remote completion data
//! or on progress of its own.
//!
//! Programs that a provider runs by itself have their own endpoint (`work_queue.rs`).

mod atomics;
mod change;
mod choice;
#[cfg(test)]
mod device_tests;
mod door;
#[cfg(test)]
mod engine_tests;
mod environment;
mod keys;
mod limits;
mod opening;
mod probe;
mod registration;
#[cfg(test)]
mod stranger_tests;
mod watchdog;
mod wire;
mod work_queue;

use std::ffi::OsString;

pub use choice::{Chosen, chosen};
pub(crate) use earlybird_ffi::ofi::{Counter, Remote, Work};
pub use earlybird_ffi::ofi::{Library, LoadError};
pub use environment::{
    InForce, PROVIDER_VARIABLES, ProviderVariable, SetBy, filter, provider_variables, variables_not_set,
};
pub(crate) use limits::{largest_count, most_queued};
pub use opening::OfiFabric;
pub use probe::{Device, Progress, devices};
pub(crate) use registration::Registered;
pub(crate) use work_queue::WorkQueue;

use crate::config;

/// The variable that names the libfabric to load.
const NAMED: &str = "EARLYBIRD_LIBFABRIC";

/// The libfabric that `EARLYBIRD_LIBFABRIC` names, or else the system's. The first call sets the
/// [`PROVIDER_VARIABLES`] that the user has not set, if this process has one thread.
///
/// # Errors
/// libfabric is missing or too old; the error says what to do.
pub fn library() -> Result<Library, LoadError> {
    environment::prepare();
    let counts = |path: &OsString| !path.is_empty() && config::counts(NAMED);
    let named = std::env::var_os(NAMED).filter(counts);
    Library::load(named.as_deref())
}
