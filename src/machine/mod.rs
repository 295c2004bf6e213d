//! The resources that the machine, and the container of this process, allow it to use.
#![forbid(unsafe_code)]

mod cores;
mod groups;
mod host;
mod memory;

pub(crate) use cores::{Cores, is_oversubscribed, parallelism};
#[cfg(feature = "cli")]
pub(crate) use host::kernel;
pub(crate) use host::{clock_identity, host_identity, host_name, machine_identity, network_stack};
pub(crate) use memory::available_memory;
