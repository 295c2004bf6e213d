//! Memory that a device may reach.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::counter::Counter;
use super::endpoint::Endpoint;
use super::fid::{Code, bind, close, control, slot};
use super::sys::{FI_ENABLE, FI_MR_ENDPOINT, FI_MR_RMA_EVENT, FI_REMOTE_WRITE, fi_ops_mr, fid, fid_mr};

/// A registration. The memory itself belongs to whoever registered it.
pub struct Memory {
    memory: NonNull<fid_mr>,
    key: u64,
    descriptor: *mut c_void,
    /// Counts what peers write.
    _counter: Option<Arc<Counter>>,
    /// Keeps the domain alive, too.
    _endpoint: Arc<Endpoint>,
}

// SAFETY: of a domain that is safe for threads.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Registers `len` bytes at `base` for what `access` says: bits of `FI_SEND`, `FI_REMOTE_READ` ... `key` is what
    /// peers are to name it by, if the caller has a say in that. `counter` counts what peers write and change there, one
    /// for each operation; the domain must have been opened for `FI_RMA_EVENT` then.
    ///
    /// # Safety
    /// The memory must stay where it is until this value is dropped. Peers that know the key may
    /// at any time do what `access` allows, so it must not be behind Rust references meanwhile, but for
    /// what the peers leave alone.
    ///
    /// # Errors
    /// What the provider says; [`Code::NO_KEY`] where `key` is in use.
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
            let code = register(domain.fid(), base, len, access, 0, key, 0, &mut memory, ptr::null_mut());
            Code::check(code as isize)?;
        }
        let memory = NonNull::new(memory).ok_or(Code::NO_FUNCTION)?;
        let mode = endpoint.memory_mode();
        let wants = |bit: u64| mode & bit as i32 != 0;
        let mut made = Memory { memory, key: 0, descriptor: ptr::null_mut(), _counter: counter, _endpoint: endpoint };
        // SAFETY: all are live. It may be used only when it was bound and, for some, enabled.
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

    /// What peers name it by.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// What own operations name it by.
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
        // SAFETY: live; whatever used it has completed, or fails.
        let _ = unsafe { close(self.fid()) };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x})", self.key)
    }
}
