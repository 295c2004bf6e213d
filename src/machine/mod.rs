//! What the machine, and the container that this process runs in, let it have.
#![forbid(unsafe_code)]

mod cores;
mod groups;
mod host;
mod memory;

pub(crate) use cores::{Cores, is_oversubscribed};
pub(crate) use host::{host_identity, host_name, network_stack};
pub(crate) use memory::available_memory;
