//! Completion queues.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::fabric::Domain;
use super::fid::{Code, Padded, close, control, slot};
use super::sys::{
    FI_CQ_COND_NONE, FI_CQ_FORMAT_DATA, FI_GETWAIT, FI_WAIT_FD, FI_WAIT_NONE, fi_cq_attr, fi_cq_data_entry,
    fi_cq_err_entry, fi_ops_cq, fi_ops_domain, fid, fid_cq,
};

/// A queue of completions. Reading it drives a provider that does not progress by itself.
pub struct Queue {
    queue: NonNull<fid_cq>,
    read: unsafe extern "C" fn(*mut fid_cq, *mut std::ffi::c_void, usize) -> isize,
    descriptor: Option<RawFd>,
    domain: Arc<Domain>,
}

// SAFETY: of a domain that is safe for threads.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// A completion with an error.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Of the operation, as it was given.
    pub context: *mut std::ffi::c_void,
    /// What kind of operation.
    pub flags: u64,
    /// A positive code of libfabric.
    pub code: c_int,
    /// What the provider says.
    pub text: String,
}

/// Room for a completion.
pub const NO_COMPLETION: fi_cq_data_entry =
    fi_cq_data_entry { op_context: ptr::null_mut(), flags: 0, len: 0, buf: ptr::null_mut(), data: 0 };

impl Queue {
    /// A queue of `size` completions, of which a descriptor tells if the provider can do that.
    ///
    /// # Errors
    /// What the provider says.
    pub fn open(domain: Arc<Domain>, size: usize) -> Result<Arc<Self>, Code> {
        let open = |wait| {
            let mut attributes = Padded::new(fi_cq_attr {
                size,
                flags: 0,
                format: FI_CQ_FORMAT_DATA,
                wait_obj: wait,
                signaling_vector: 0,
                wait_cond: FI_CQ_COND_NONE,
                wait_set: ptr::null_mut(),
            });
            domain.make(|table, raw, queue| {
                // SAFETY: the table is that of a live domain, the attributes live during the call.
                unsafe {
                    let open = slot!(table, fi_ops_domain, cq_open)?;
                    Ok(open(raw, &raw mut attributes.value, queue, ptr::null_mut()))
                }
            })
        };
        let (queue, waits) = match open(FI_WAIT_FD) {
            Ok(queue) => (queue, true),
            Err(_) => (open(FI_WAIT_NONE)?, false),
        };
        let mut descriptor: c_int = -1;
        // SAFETY: live; the command takes the address of a descriptor.
        let told = unsafe { control(&raw mut (*queue.as_ptr()).fid, FI_GETWAIT, (&raw mut descriptor).cast()) };
        let descriptor = (waits && told.is_ok() && descriptor >= 0).then_some(descriptor);
        // SAFETY: the table of a live queue.
        let read = unsafe { slot!((*queue.as_ptr()).ops, fi_ops_cq, read) };
        // Made before anything can fail, so that it is closed.
        let queue = Queue { queue, read: read.unwrap_or(no_read), descriptor, domain };
        read.map(|_| Arc::new(queue))
    }

    /// Reads completions into `entries`; how many. Without room for any it only makes progress.
    ///
    /// # Errors
    /// [`Code::AGAIN`] if there are none, [`Code::AVAILABLE`] if the next is to be read by
    /// [`Queue::failed`].
    #[inline]
    pub fn read(&self, entries: &mut [fi_cq_data_entry]) -> Result<usize, Code> {
        // SAFETY: a live queue of this format, and room for so many entries.
        let read = unsafe { (self.read)(self.queue.as_ptr(), entries.as_mut_ptr().cast(), entries.len()) };
        Code::check(read).map(|()| read as usize)
    }

    /// The next completion with an error.
    ///
    /// # Errors
    /// [`Code::AGAIN`] if there is none.
    pub fn failed(&self) -> Result<Failed, Code> {
        // SAFETY: plain data, for which zeroes are good: no room for the provider's own data.
        let mut entry: Padded<fi_cq_err_entry> = Padded::new(unsafe { std::mem::zeroed() });
        let queue = self.queue.as_ptr();
        // SAFETY: a live queue; the entry is written; the text ends with a zero and is copied
        // before anything else happens to the queue.
        unsafe {
            let read = slot!((*queue).ops, fi_ops_cq, readerr)?(queue, &raw mut entry.value, 0);
            Code::check(read)?;
            let fi_cq_err_entry { op_context: context, flags, err: code, prov_errno, err_data, .. } = entry.value;
            let mut room: [c_char; 128] = [0; 128];
            let text = match slot!((*queue).ops, fi_ops_cq, strerror) {
                Ok(strerror) => strerror(queue, prov_errno, err_data, room.as_mut_ptr(), room.len()),
                Err(_) => ptr::null(),
            };
            let mut said = self.domain.fabric().library().error_text(code);
            if !text.is_null() {
                let text = CStr::from_ptr(text).to_string_lossy();
                if !text.is_empty() && text != said {
                    said = format!("{said}, {text}");
                }
            }
            Ok(Failed { context, flags, code, text: said })
        }
    }

    /// Readable when there is something to be read, once [`Fabric::try_wait`](super::Fabric::try_wait)
    /// has allowed to wait for it. None where the provider has no such thing.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: it belongs to the queue, which is borrowed.
        self.descriptor.map(|descriptor| unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    pub(super) fn fid(&self) -> *mut fid {
        // SAFETY: live; only the address is taken.
        unsafe { &raw mut (*self.queue.as_ptr()).fid }
    }
}

/// Stands in where there is nothing to call.
unsafe extern "C" fn no_read(_: *mut fid_cq, _: *mut std::ffi::c_void, _: usize) -> isize {
    Code::NO_FUNCTION.0 as isize
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: live, and endpoints that use it keep it alive.
        let _ = unsafe { close(self.fid()) };
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("descriptor", &self.descriptor).finish_non_exhaustive()
    }
}
