//! libfabric. So far: which providers and devices there are, and what they can do.
#![forbid(unsafe_code)]

mod probe;

pub use earlybird_ffi::ofi::{Library, LoadError};
pub use probe::{Device, Progress, devices};
