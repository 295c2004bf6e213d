//! What carries out the rounds of a collective: its caller, a thread, or a provider.

pub(crate) mod caller;
pub mod deferred_work;
pub(crate) mod helper;
#[cfg(any(test, earlybird_tools))]
pub mod mlx5;
pub(crate) mod notice;
pub(crate) mod spin;
pub(crate) mod thread;
pub(crate) mod work;
