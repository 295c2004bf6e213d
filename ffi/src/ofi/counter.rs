//! Counters: they count completions and remote writes, and trigger queued work.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::fabric::Domain;
use super::fid::{Code, Padded, calling, close, slot};
use super::sys::{FI_CNTR_EVENTS_COMP, FI_WAIT_NONE, fi_cntr_attr, fi_ops_cntr, fi_ops_domain, fid, fid_cntr};

/// A counter. See fi_cntr(3).
pub struct Counter {
    counter: NonNull<fid_cntr>,
    _domain: Arc<Domain>,
}

// SAFETY: of a domain that is safe for threads.
unsafe impl Send for Counter {}
// SAFETY: as above.
unsafe impl Sync for Counter {}

impl Counter {
    /// Opens a counter at 0.
    ///
    /// # Errors
    /// The provider's error.
    pub fn open(domain: Arc<Domain>) -> Result<Arc<Self>, Code> {
        let mut attributes = Padded::new(fi_cntr_attr {
            events: FI_CNTR_EVENTS_COMP,
            wait_obj: FI_WAIT_NONE,
            wait_set: ptr::null_mut(),
            flags: 0,
        });
        let counter = domain.make(|table, raw, counter| {
            // SAFETY: the table is that of a live domain, the attributes live during the call.
            unsafe {
                let open = slot!(table, fi_ops_domain, cntr_open)?;
                calling(c"fi_cntr_open", || open(raw, &raw mut attributes.value, counter, ptr::null_mut()))
            }
        })?;
        Ok(Arc::new(Counter { counter, _domain: domain }))
    }

    /// The number of counted successes, plus what was added.
    ///
    /// # Errors
    /// [`Code::NO_FUNCTION`].
    pub fn read(&self) -> Result<u64, Code> {
        let counter = self.as_ptr();
        // SAFETY: live.
        unsafe {
            let read = slot!((*counter).ops, fi_ops_cntr, read)?;
            calling(c"fi_cntr_read", || read(counter))
        }
    }

    /// The number of counted failures.
    ///
    /// # Errors
    /// [`Code::NO_FUNCTION`].
    pub fn failures(&self) -> Result<u64, Code> {
        let counter = self.as_ptr();
        // SAFETY: live.
        unsafe {
            let read = slot!((*counter).ops, fi_ops_cntr, readerr)?;
            calling(c"fi_cntr_readerr", || read(counter))
        }
    }

    /// Adds to it, which may trigger work.
    ///
    /// # Errors
    /// The provider's error.
    pub fn add(&self, value: u64) -> Result<(), Code> {
        let counter = self.as_ptr();
        // SAFETY: live.
        Code::check(unsafe {
            let add = slot!((*counter).ops, fi_ops_cntr, add)?;
            calling(c"fi_cntr_add", || add(counter, value))?
        } as isize)
    }

    /// Sets it, which may trigger work.
    ///
    /// # Errors
    /// The provider's error.
    pub fn set(&self, value: u64) -> Result<(), Code> {
        let counter = self.as_ptr();
        // SAFETY: live.
        Code::check(unsafe {
            let set = slot!((*counter).ops, fi_ops_cntr, set)?;
            calling(c"fi_cntr_set", || set(counter, value))?
        } as isize)
    }

    pub(super) fn as_ptr(&self) -> *mut fid_cntr {
        self.counter.as_ptr()
    }

    pub(super) fn fid(&self) -> *mut fid {
        // SAFETY: live; only the address is taken.
        unsafe { &raw mut (*self.counter.as_ptr()).fid }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // SAFETY: live; registrations and work that use it keep it alive.
        let _ = unsafe { close(self.fid()) };
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counter({:?})", self.read())
    }
}
