//! Bindings to the C libraries that earlybird uses where they are installed, and to what else takes `unsafe`
//! to ask the system.
//!
//! The bindings are committed and the libraries are loaded at run time, so that one binary runs
//! everywhere and building it takes only the Rust toolchain.
#![allow(unsafe_code)]

pub mod ofi;
pub mod socket;
