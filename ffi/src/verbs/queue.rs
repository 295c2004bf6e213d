//! Completion queues.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::channel::Channel;
use super::device::Context;
use super::library::{check, invalid, made, text};
use super::sys::{IBV_WC_SUCCESS, IBV_WC_WITH_IMM, ibv_cq, ibv_wc, ibv_wc__bindgen_ty_1, ibv_wc_status};

type Poll = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type Arm = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

/// A completion queue.
///
/// If it gets more completions than it has entries it fails, with all queue pairs that use it: the
/// event is `IBV_EVENT_CQ_ERR`. So it must be large enough for all requests in flight.
pub struct Queue {
    queue: NonNull<ibv_cq>,
    poll: Poll,
    arm: Arm,
    _channel: Option<Arc<Channel>>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows calls from any thread, and from several at a time.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// An empty completion, to poll into.
pub const NO_COMPLETION: ibv_wc = ibv_wc {
    wr_id: 0,
    status: IBV_WC_SUCCESS,
    opcode: 0,
    vendor_err: 0,
    byte_len: 0,
    __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: 0 },
    qp_num: 0,
    src_qp: 0,
    wc_flags: 0,
    pkey_index: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
};

/// The immediate data that arrived with a successful completion, in the host's byte order.
#[inline]
#[must_use]
pub fn immediate(completion: &ibv_wc) -> Option<u32> {
    // SAFETY: all variants are integers of the same size.
    let data = unsafe { completion.__bindgen_anon_1.imm_data };
    (completion.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(data))
}

impl Queue {
    /// Makes a queue for at least `size` completions. Its events, if it has a channel, go there.
    /// See ibv_create_cq(3).
    ///
    /// # Errors
    /// `EINVAL` for more entries than the device has, none, or a channel of another context; the
    /// provider's error.
    pub fn open(context: Arc<Context>, size: u32, channel: Option<Arc<Channel>>) -> io::Result<Arc<Self>> {
        let size = c_int::try_from(size).map_err(|_| invalid())?;
        if channel.as_ref().is_some_and(|channel| !Arc::ptr_eq(channel.context(), &context)) {
            return Err(invalid());
        }
        let poll = context.slot(|table| table.poll_cq)?;
        let arm = context.slot(|table| table.req_notify_cq)?;
        let events = channel.as_ref().map_or(ptr::null_mut(), |channel| channel.as_ptr());
        let create = context.library().functions.create_cq;
        // SAFETY: the context and its channel, if any, are live. Every device has the vector 0.
        let queue = made(unsafe { create(context.as_ptr(), size, ptr::null_mut(), events, 0) })?;
        Ok(Arc::new(Queue { queue, poll, arm, _channel: channel, context }))
    }

    /// Takes completions, oldest first, and returns their number; 0 if there are none. Of one that
    /// is not `IBV_WC_SUCCESS`, only `wr_id`, `status`, `qp_num` and `vendor_err` are valid. See
    /// ibv_poll_cq(3).
    ///
    /// # Errors
    /// The queue is broken (`EIO`): libibverbs does not say how.
    #[inline]
    pub fn poll(&self, completions: &mut [ibv_wc]) -> io::Result<usize> {
        let most = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
        // SAFETY: live; at most `most` completions are written.
        let found = unsafe { (self.poll)(self.queue.as_ptr(), most, completions.as_mut_ptr()) };
        usize::try_from(found).map_err(|_| broken())
    }

    /// Asks for one event in the channel when the next completion arrives; with `solicited_only`,
    /// when the next one arrives that failed, or is of a message that the sender flagged
    /// `IBV_SEND_SOLICITED`. Completions that are in the queue already make no event: poll again
    /// after this, before sleeping. See ibv_req_notify_cq(3).
    ///
    /// # Errors
    /// The provider's error.
    pub fn arm(&self, solicited_only: bool) -> io::Result<()> {
        // SAFETY: live.
        check(unsafe { (self.arm)(self.queue.as_ptr(), c_int::from(solicited_only)) })
    }

    /// What the status of a completion means.
    #[must_use]
    pub fn status_text(&self, status: ibv_wc_status) -> String {
        // SAFETY: takes any number; the text belongs to the library.
        unsafe { text((self.context.library().functions.wc_status_str)(status)) }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.queue.as_ptr()
    }
}

#[cold]
fn broken() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: live, and queue pairs that use it keep it alive.
        let _ = unsafe { (self.context.library().functions.destroy_cq)(self.queue.as_ptr()) };
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: live; the field changes only by a call that is not made here.
        write!(f, "Queue({} entries)", unsafe { (*self.queue.as_ptr()).cqe })
    }
}
