//! Deferred work: operations that the provider runs by itself when a counter reaches a threshold.
//! See fi_trigger(3), `FI_QUEUE_WORK`.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use super::counter::Counter;
use super::endpoint::{Endpoint, Local, Remote};
use super::fabric::Domain;
use super::fid::{Code, control};
use super::sys::{
    FI_OP_CNTR_ADD, FI_OP_WRITE, FI_QUEUE_WORK, fi_context2, fi_deferred_work, fi_deferred_work__bindgen_ty_1,
    fi_msg_rma, fi_op_cntr, fi_op_rma, fi_rma_iov, iovec,
};

/// One operation, which runs once for each time that it is queued.
///
/// The provider keeps the addresses of its parts until it has run.
pub struct Work {
    parts: Box<Parts>,
    trigger: Arc<Counter>,
    /// Kept alive: the counter that it adds to, and the endpoint that it uses.
    _bumps: Arc<Counter>,
    endpoint: Option<Arc<Endpoint>>,
}

#[repr(C)]
struct Parts {
    work: fi_deferred_work,
    write: fi_op_rma,
    add: fi_op_cntr,
    source: iovec,
    target: fi_rma_iov,
    descriptor: *mut std::ffi::c_void,
}

// SAFETY: the addresses within point into the same box, or to objects that are kept alive and are
// safe for threads.
unsafe impl Send for Work {}

impl Work {
    fn new(trigger: Arc<Counter>, bumps: Arc<Counter>, endpoint: Option<Arc<Endpoint>>) -> Self {
        let message = fi_msg_rma {
            msg_iov: ptr::null(),
            desc: ptr::null_mut(),
            iov_count: 0,
            addr: 0,
            rma_iov: ptr::null(),
            rma_iov_count: 0,
            context: ptr::null_mut(),
            data: 0,
        };
        let work = fi_deferred_work {
            context: fi_context2 { internal: [ptr::null_mut(); 8] },
            threshold: 0,
            triggering_cntr: trigger.as_ptr(),
            completion_cntr: ptr::null_mut(),
            op_type: FI_OP_CNTR_ADD,
            op: fi_deferred_work__bindgen_ty_1 { cntr: ptr::null_mut() },
        };
        let parts = Box::new(Parts {
            work,
            write: fi_op_rma { ep: ptr::null_mut(), msg: message, flags: 0 },
            add: fi_op_cntr { cntr: bumps.as_ptr(), value: 0 },
            source: iovec { iov_base: ptr::null_mut(), iov_len: 0 },
            target: fi_rma_iov { addr: 0, len: 0, key: 0 },
            descriptor: ptr::null_mut(),
        });
        Work { parts, trigger, _bumps: bumps, endpoint }
    }

    /// Adds to a counter. That counter must not lead back to the one that triggers this work.
    #[must_use]
    pub fn add(trigger: Arc<Counter>, to: Arc<Counter>, value: u64) -> Self {
        let mut made = Work::new(trigger, to, None);
        made.parts.add.value = value;
        made.parts.work.op.cntr = &raw mut made.parts.add;
        made
    }

    /// Writes a peer's memory, and adds to `done` when the source may be written again.
    #[must_use]
    pub fn write(trigger: Arc<Counter>, endpoint: Arc<Endpoint>, from: Local, to: Remote, done: Arc<Counter>) -> Self {
        let mut made = Work::new(trigger, done, Some(endpoint.clone()));
        let completion = made._bumps.as_ptr();
        let parts = &mut *made.parts;
        parts.source = iovec { iov_base: from.base.cast(), iov_len: from.len };
        parts.target = fi_rma_iov { addr: to.address, len: from.len, key: to.key };
        parts.descriptor = from.descriptor;
        parts.write.ep = endpoint.as_ptr();
        parts.write.msg = fi_msg_rma {
            msg_iov: &raw const parts.source,
            desc: &raw mut parts.descriptor,
            iov_count: 1,
            addr: to.peer,
            rma_iov: &raw const parts.target,
            rma_iov_count: 1,
            // Some providers require a context.
            context: (&raw mut parts.work.context).cast(),
            data: 0,
        };
        parts.work.op_type = FI_OP_WRITE;
        parts.work.op.rma = &raw mut parts.write;
        parts.work.completion_cntr = completion;
        made
    }

    /// Queues it to run when its counter reaches `threshold`; at once, if it already has.
    ///
    /// # Safety
    /// It must not be queued already and not yet have run. This value must live until it has run.
    /// The memory that it reads must be registered and live as long, and must not be written from
    /// when the work may be triggered until it has run.
    ///
    /// # Errors
    /// The provider's error; the queue is full.
    pub unsafe fn queue(&mut self, domain: &Domain, threshold: u64) -> Result<(), Code> {
        debug_assert_eq!(self.parts.work.triggering_cntr, self.trigger.as_ptr());
        self.parts.work.threshold = threshold;
        // SAFETY: a live domain; the command takes the address of work, which lives as the caller
        // says.
        unsafe { control(domain.fid(), FI_QUEUE_WORK, (&raw mut self.parts.work).cast()) }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.endpoint.is_some() { "write" } else { "add" };
        write!(f, "Work({kind} at {})", self.parts.work.threshold)
    }
}
