//! Bindings to the C libraries that earlybird uses where they are installed, and to system calls
//! that take `unsafe`.
//!
//! The bindings are committed and the libraries are loaded at run time, so that one binary runs
//! everywhere and the build takes only the Rust toolchain.
#![allow(unsafe_code)]

pub mod abandon;
pub mod fork;
pub mod inherited;
pub mod interfaces;
mod loader;
pub mod mpi;
pub mod ofi;
pub mod pmix;
pub mod rights;
mod signals;
#[cfg(test)]
#[path = "../tests/skipped/mod.rs"]
mod skipped;
pub mod socket;
pub mod verbs;
