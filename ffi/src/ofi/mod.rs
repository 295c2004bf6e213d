//! libfabric (OFI): it exports few symbols. Everything else is reached through tables of functions
//! in the objects that it makes.
//!
//! One version of the interface is requested by name, `FABRIC_1.3`: later libraries keep it beside
//! newer ones with longer structures, which a plain lookup would find.

mod atomics;
mod counter;
mod endpoint;
mod fabric;
mod fid;
mod info;
mod library;
mod memory;
mod queue;
mod work;

/// Types and constants as the headers of libfabric 1.17 have them.
#[allow(missing_docs, missing_debug_implementations, non_camel_case_types, clippy::all)]
#[rustfmt::skip]
pub mod sys;

pub use atomics::Atomics;
pub use counter::Counter;
pub use endpoint::{Endpoint, Local, Remote};
pub use fabric::{Domain, Fabric};
pub use fid::Code;
pub use info::{Info, InfoList, Wanted};
pub use library::{Library, LoadError};
pub use memory::Memory;
pub use queue::{Failed, NO_COMPLETION, Queue, Sign, Watched};
pub use work::Work;
