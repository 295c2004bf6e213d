//! Memory of this process that the provider of a network uses.
#![allow(unsafe_code)]

use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::error::{Error, Result};
use crate::fabric::{Access, Window};

/// The purpose of memory, which decides which operations may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::internals::fabric) enum Purpose {
    /// Messages are received into it and sent from it; headers of writes are sent from it.
    Messages,
    /// One-sided operations of this rank use it, and those of peers that the access allows.
    Operations(Access),
}

impl Purpose {
    /// Returns what peers may do with the memory.
    pub(in crate::internals::fabric) fn access(self) -> Access {
        match self {
            Purpose::Messages => Access::Local,
            Purpose::Operations(access) => access,
        }
    }
}

/// Memory of this process that a provider may use. A registration ends before the memory.
pub(in crate::internals::fabric) trait Registered: Debug + Send {
    /// Returns direct access to it.
    fn window(&self) -> &Window;

    /// Returns what peers may do with it.
    fn access(&self) -> Access;

    /// Returns what peers need to name it: the key of the registration and the base of remote addresses. `None` if
    /// peers may not use it.
    fn key(&self) -> Option<(u64, u64)>;
}

/// Why memory could not be registered.
#[derive(Debug)]
pub(in crate::internals::fabric) enum Failed<E> {
    /// The system returned an error.
    System(Error),
    /// The provider returned an error.
    Code(E),
}

/// Allocates zeroed memory of whole pages and populates them, as some devices require.
pub(in crate::internals::fabric) fn allocate(rank: u32, bytes: usize) -> Result<Window> {
    const PAGE: usize = 4096;
    const LARGE_PAGE: usize = 2 << 20;
    let refused = |cause: std::io::Error| Error::os(rank, "allocate memory", cause);
    let len = bytes.max(1).next_multiple_of(PAGE);
    let mut options = MmapOptions::new();
    options.len(len);
    // Copies and devices touch every byte; large pages save them address look-ups.
    let large = (len >= LARGE_PAGE).then(|| options.map_anon().map(MmapRaw::from)).transpose().map_err(refused)?;
    let large = large.filter(|map| map.advise(Advice::HugePage).is_ok() && map.advise(Advice::PopulateWrite).is_ok());
    let map = match large {
        Some(map) => map,
        None => MmapRaw::from(options.populate().map_anon().map_err(refused)?),
    };
    let base = NonNull::new(map.as_mut_ptr()).ok_or_else(|| refused(std::io::ErrorKind::OutOfMemory.into()))?;
    // SAFETY: a private mapping of that length, page-aligned and zeroed, which the window keeps.
    Ok(unsafe { Window::new(base, len, Arc::new(map)) })
}
