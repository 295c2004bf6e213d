//! RDMA verbs (libibverbs): queue pairs of a device that move memory without the kernel.
//!
//! Functions are requested by name and version, `IBVERBS_1.1` for most. Posting and polling go
//! through the table of functions in the device's context, as the inline functions of `verbs.h` do.
//! libibverbs allows every call from any thread, and from several at a time. Its errors are errno
//! values.
//!
//! An object keeps alive what it was made from.

mod channel;
mod datagrams;
mod device;
mod events;
mod gid;
mod library;
mod memory;
mod mlx5;
mod pair;
mod queue;
mod queue_pair;
mod receive_queue;
mod request;
mod route;

/// Types and constants as the headers of libibverbs 44 have them.
#[allow(missing_docs, missing_debug_implementations, non_camel_case_types, clippy::all)]
#[rustfmt::skip]
pub mod sys;

pub use channel::Channel;
pub use datagrams::{AddressHandle, Datagrams, GRH_LEN};
pub use device::{Context, Device, Transport};
pub use events::Event;
pub use gid::{Gid, GidKind};
pub use library::{Library, LoadError};
pub use memory::{Domain, Memory};
pub use mlx5::Waits;
pub use queue::{NO_COMPLETION, Queue, immediate};
pub use queue_pair::{Capacity, Peer, QueuePair, Settings};
pub use receive_queue::ReceiveQueue;
pub use request::{Local, MOST_REQUESTS, PostError, Remote, Request, Verb};
pub use route::Route;
