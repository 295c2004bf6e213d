//! The executors that carry out the rounds of a collective: its caller, a thread, or a provider.

pub(crate) mod caller;
pub(crate) mod helper;
pub(crate) mod notice;
pub(crate) mod runner;
pub(crate) mod spin;
pub(crate) mod thread;
pub(crate) mod work;
