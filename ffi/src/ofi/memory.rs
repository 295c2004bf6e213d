//! Memory that a device may reach.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::counter::Counter;
use super::endpoint::Endpoint;
use super::fid::{Code, bind, calling, close, control, slot};
use super::sys::{FI_ENABLE, FI_MR_ENDPOINT, FI_MR_RMA_EVENT, FI_REMOTE_WRITE, fi_ops_mr, fid, fid_mr};

/// A registration. The memory itself belongs to the caller that registered it.
pub struct Memory {
    memory: NonNull<fid_mr>,
    key: u64,
    descriptor: *mut c_void,
    /// Counts remote writes.
    _counter: Option<Arc<Counter>>,
    /// Keeps the domain alive, too.
    _endpoint: Arc<Endpoint>,
}

// SAFETY: of a domain that is safe for threads.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Registers `len` bytes at `base` for `access`: bits of `FI_SEND`, `FI_REMOTE_READ` ... Peers
    /// name the memory by `key`, if the provider lets the caller choose it. `counter` counts each
    /// remote write and atomic there; the domain must then have been opened for `FI_RMA_EVENT`.
    ///
    /// # Safety
    /// The memory must stay where it is until this value is dropped. Peers that know the key may at
    /// any time do what `access` allows, so Rust references to the memory must not exist meanwhile,
    /// except to bytes that the peers leave alone.
    ///
    /// # Errors
    /// The provider's error; [`Code::NO_KEY`] where `key` is in use.
    pub unsafe fn register(
        endpoint: Arc<Endpoint>,
        (base, len): (NonNull<u8>, usize),
        access: u64,
        key: u64,
        counter: Option<Arc<Counter>>,
    ) -> Result<Self, Code> {
        let domain = endpoint.domain();
        let mut memory = ptr::null_mut();
        // SAFETY: a live domain; the memory is as the caller says; `memory` is written.
        unsafe {
            let register = slot!((*domain.as_ptr()).mr, fi_ops_mr, reg)?;
            let base = base.as_ptr().cast();
            let code = calling(c"fi_mr_reg", || {
                register(domain.fid(), base, len, access, 0, key, 0, &mut memory, ptr::null_mut())
            })?;
            Code::check(code as isize)?;
        }
        let memory = NonNull::new(memory).ok_or(Code::NO_FUNCTION)?;
        let mode = endpoint.memory_mode();
        let wants = |bit: u64| mode & bit as i32 != 0;
        let mut made = Memory { memory, key: 0, descriptor: ptr::null_mut(), _counter: counter, _endpoint: endpoint };
        // SAFETY: all are live. The registration may be used only after it was bound and, for some
        // providers, enabled.
        unsafe {
            if wants(FI_MR_ENDPOINT) {
                bind(made.fid(), made._endpoint.fid(), 0)?;
            }
            if let Some(counter) = &made._counter {
                bind(made.fid(), counter.fid(), FI_REMOTE_WRITE)?;
            }
            if wants(FI_MR_ENDPOINT) || (made._counter.is_some() && wants(FI_MR_RMA_EVENT)) {
                control(made.fid(), FI_ENABLE, ptr::null_mut())?;
            }
        }
        // SAFETY: live.
        unsafe {
            made.key = (*memory.as_ptr()).key;
            made.descriptor = (*memory.as_ptr()).mem_desc;
        }
        Ok(made)
    }

    /// The key by which peers name it.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The descriptor by which own operations name it.
    #[must_use]
    pub fn descriptor(&self) -> *mut c_void {
        self.descriptor
    }

    fn fid(&self) -> *mut fid {
        // SAFETY: live; only the address is taken.
        unsafe { &raw mut (*self.memory.as_ptr()).fid }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: live; operations that used it have completed, or fail.
        let _ = unsafe { close(self.fid()) };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x})", self.key)
    }
}
