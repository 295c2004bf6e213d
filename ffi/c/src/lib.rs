//! earlybird for C: opaque handles, status codes, and structures that state their size. `cargo xtask header` generates
//! `include/earlybird.h` from these sources.
//!
//! No call trusts its caller. Handles are looked up, null pointers and sizes are checked, a panic becomes a status, and
//! a forked child is detected. Only this cannot be checked: that other pointers point to what the caller says.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, reason = "the names are those of C")]
#![allow(clippy::missing_safety_doc, reason = "each function has what it asks of its caller in the header's words")]

// In the order of the header.
mod status;

mod error;

mod world;

mod collectives;

mod allreduce;

mod handles;
mod input;

pub use allreduce::*;
pub use collectives::*;
pub use error::*;
pub use status::*;
pub use world::*;
