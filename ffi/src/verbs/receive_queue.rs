//! Shared receive queues: buffers for the messages of many queue pairs.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::library::{check, made};
use super::memory::Domain;
use super::request::{Local, receive};
use super::sys::{ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

type Post = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// A shared receive queue. See ibv_create_srq(3).
pub struct ReceiveQueue {
    queue: NonNull<ibv_srq>,
    post: Post,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs allows calls from any thread, and from several at a time.
unsafe impl Send for ReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for ReceiveQueue {}

impl ReceiveQueue {
    /// Makes a queue for at least `entries` buffers, of one part each.
    ///
    /// # Errors
    /// `EINVAL` for more entries than the device has; the provider's error.
    pub fn open(domain: Arc<Domain>, entries: u32) -> io::Result<Arc<Self>> {
        let post = domain.context().slot(|table| table.post_srq_recv)?;
        let mut wanted = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ibv_srq_attr { max_wr: entries, max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: live; the description lives during the call.
        let queue =
            made(unsafe { (domain.context().library().functions.create_srq)(domain.as_ptr(), &raw mut wanted) })?;
        Ok(Arc::new(ReceiveQueue { queue, post, domain }))
    }

    /// Adds a buffer for one message, or one write with immediate data, of any queue pair that uses
    /// this queue. The completion of `id` is in the queue of that queue pair.
    ///
    /// # Safety
    /// The buffer must be registered in the same domain for local writes. Nothing else may use it
    /// until that completion, or until this queue and the queue pairs that use it are dropped.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; the provider's error.
    #[inline]
    pub unsafe fn post(&self, to: Local, id: u64) -> io::Result<()> {
        let mut part = to.part();
        let mut request = receive(id, &mut part);
        let mut refused = ptr::null_mut();
        // SAFETY: live; the request is copied before the call returns; the rest is as the caller
        // says.
        check(unsafe { (self.post)(self.queue.as_ptr(), &raw mut request, &raw mut refused) })
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.queue.as_ptr()
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: live, and queue pairs that use it keep it alive.
        let _ = unsafe { (self.domain.context().library().functions.destroy_srq)(self.queue.as_ptr()) };
    }
}

impl fmt::Debug for ReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReceiveQueue")
    }
}
