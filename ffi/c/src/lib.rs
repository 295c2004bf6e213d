//! earlybird for C: opaque handles, status codes, structures with a size. `include/earlybird.h` is made of these sources.
//!
//! No call trusts its caller: handles are looked up, null pointers and sizes are checked, a panic becomes a status, and a
//! forked child is told apart. What cannot be checked is that other pointers point to what they say.
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
