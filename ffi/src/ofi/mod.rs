//! libfabric (OFI): the few symbols it exports. Everything else is reached through tables of
//! functions in the objects that it makes.
//!
//! The library is asked for one version of its interface by name, `FABRIC_1.3`: later libraries
//! keep that beside newer ones with longer structures, and a plain lookup would get those.

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

pub use counter::Counter;
pub use endpoint::{Endpoint, Local, Remote};
pub use fabric::{Domain, Fabric};
pub use fid::Code;
pub use info::{Info, InfoList, Wanted};
pub use library::{Library, LoadError};
pub use memory::Memory;
pub use queue::{Failed, NO_COMPLETION, Queue, Sign, Watched};
pub use work::Work;
