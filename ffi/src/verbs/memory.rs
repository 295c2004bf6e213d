//! Memory that a device may reach.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::Context;
use super::library::made;
use super::sys::{IBV_ACCESS_RELAXED_ORDERING, ibv_mr, ibv_pd};

/// A protection domain: queue pairs reach memory of the same domain only. See ibv_alloc_pd(3).
pub struct Domain {
    domain: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows calls from any thread, and from several at a time.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Makes a domain.
    ///
    /// # Errors
    /// The provider's error.
    pub fn open(context: Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: live.
        let domain = made(unsafe { (context.library().functions.alloc_pd)(context.as_ptr()) })?;
        Ok(Arc::new(Domain { domain, context }))
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.domain.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: live, and what was made from it keeps it alive.
        let _ = unsafe { (self.context.library().functions.dealloc_pd)(self.domain.as_ptr()) };
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({})", self.context.device().name())
    }
}

/// A registration. The memory itself belongs to the caller that registered it.
pub struct Memory {
    memory: NonNull<ibv_mr>,
    local_key: u32,
    remote_key: u32,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs allows calls from any thread, and from several at a time.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Registers `len` bytes at `base` for `access`: bits of `IBV_ACCESS_LOCAL_WRITE`,
    /// `IBV_ACCESS_REMOTE_WRITE` ... A device always may read for own operations. Peers name the
    /// bytes by their addresses. See ibv_reg_mr(3).
    ///
    /// `IBV_ACCESS_RELAXED_ORDERING` is ignored where the library or the kernel does not know it.
    /// With it, writes of a device may take effect in another order than they were made in.
    ///
    /// # Safety
    /// The memory must stay where it is until this value is dropped. Peers that know the key may at
    /// any time do what `access` allows, so Rust references to the memory must not exist meanwhile,
    /// except to bytes that the peers leave alone.
    ///
    /// # Errors
    /// `EINVAL` for a combination of bits that makes no sense, such as remote writes without local
    /// ones; `ENOMEM` where the process may not lock so much memory (`RLIMIT_MEMLOCK`), or the
    /// device's resources are used up; the provider's error.
    pub unsafe fn register(domain: Arc<Domain>, (base, len): (NonNull<u8>, usize), access: u32) -> io::Result<Self> {
        let functions = &domain.context.library().functions;
        let (address, optional) = (base.as_ptr(), access & IBV_ACCESS_RELAXED_ORDERING);
        // SAFETY: a live domain; the memory is as the caller says.
        let memory = unsafe {
            match functions.reg_mr_iova2 {
                Some(register) if optional != 0 => {
                    register(domain.as_ptr(), address.cast(), len, address as u64, access)
                }
                _ => (functions.reg_mr)(domain.as_ptr(), address.cast(), len, (access & !optional) as c_int),
            }
        };
        let memory = made(memory)?;
        // SAFETY: live.
        let (local_key, remote_key) = unsafe { ((*memory.as_ptr()).lkey, (*memory.as_ptr()).rkey) };
        Ok(Memory { memory, local_key, remote_key, domain })
    }

    /// The key by which own operations name it.
    #[must_use]
    pub fn local_key(&self) -> u32 {
        self.local_key
    }

    /// The key by which peers name it.
    #[must_use]
    pub fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: live; operations that used it have completed, or fail.
        let _ = unsafe { (self.domain.context.library().functions.dereg_mr)(self.memory.as_ptr()) };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x})", self.remote_key)
    }
}
