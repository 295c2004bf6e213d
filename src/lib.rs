//! earlybird
pub mod collective;
pub mod error;
pub mod fabric;
pub mod reduce;
pub mod simulation;
pub use error::{Error, Result};
