//! What queue pairs of all types have in common.

use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::library::{check, errno, invalid, made};
use super::memory::Domain;
use super::queue::Queue;
use super::receive_queue::ReceiveQueue;
use super::request::PostError;
use super::sys::{
    IBV_QP_STATE, IBV_QPS_ERR, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type, ibv_send_wr,
};

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

/// Packet sequence numbers, and numbers of queue pairs, have so many bits.
const NUMBER_BITS: u32 = 24;

/// A queue pair.
pub(super) struct Pair {
    pair: NonNull<ibv_qp>,
    post_send: PostSend,
    most_inline: u32,
    /// Kept alive.
    _queues: [Arc<Queue>; 2],
    _shared: Option<Arc<ReceiveQueue>>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs allows calls from any thread, and from several at a time.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

/// Whether a number fits where packets have it.
pub(super) fn is_number(number: u32) -> bool {
    number >> NUMBER_BITS == 0
}

impl Pair {
    /// Makes a queue pair with the completion queues for sends and for receives. It has a completion
    /// for each request that asks for one.
    pub(super) fn open(
        domain: Arc<Domain>,
        queues: [Arc<Queue>; 2],
        shared: Option<Arc<ReceiveQueue>>,
        qp_type: ibv_qp_type,
        cap: ibv_qp_cap,
    ) -> io::Result<Self> {
        let context = domain.context();
        let is_foreign = queues.iter().any(|queue| !Arc::ptr_eq(queue.context(), context));
        if is_foreign || shared.as_ref().is_some_and(|shared| !Arc::ptr_eq(shared.domain(), &domain)) {
            return Err(invalid());
        }
        let post_send = context.slot(|table| table.post_send)?;
        let [send, receive] = &queues;
        let mut wanted = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send.as_ptr(),
            recv_cq: receive.as_ptr(),
            srq: shared.as_ref().map_or(ptr::null_mut(), |shared| shared.as_ptr()),
            cap,
            qp_type,
            sq_sig_all: 0,
        };
        // SAFETY: all are live; the description lives during the call, which updates it.
        let pair = made(unsafe { (context.library().functions.create_qp)(domain.as_ptr(), &raw mut wanted) })?;
        let most_inline = wanted.cap.max_inline_data;
        Ok(Pair { pair, post_send, most_inline, _queues: queues, _shared: shared, domain })
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_qp {
        self.pair.as_ptr()
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: live; the number never changes.
        unsafe { (*self.pair.as_ptr()).qp_num }
    }

    #[inline]
    pub(super) fn most_inline(&self) -> u32 {
        self.most_inline
    }

    /// Changes its state, and the attributes that `mask` names.
    pub(super) fn modify(
        &self,
        state: ibv_qp_state,
        mask: ibv_qp_attr_mask,
        set: impl FnOnce(&mut ibv_qp_attr),
    ) -> io::Result<()> {
        // SAFETY: integers, and a union of integers, are valid when zeroed.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        set(&mut attributes);
        attributes.qp_state = state;
        let modify = self.domain.context().library().functions.modify_qp;
        // SAFETY: live; the attributes live during the call.
        check(unsafe { modify(self.pair.as_ptr(), &raw mut attributes, (mask | IBV_QP_STATE) as c_int) })
    }

    /// Moves it into the error state.
    pub(super) fn fail(&self) -> io::Result<()> {
        self.modify(IBV_QPS_ERR, 0, |_| {})
    }

    /// Posts a chain of requests.
    ///
    /// # Safety
    /// `first` must be the first of `many` requests in one array, each with the next one as its
    /// next. What they say of memory must be so.
    #[inline]
    pub(super) unsafe fn post(&self, first: *mut ibv_send_wr, many: usize) -> Result<(), PostError> {
        let mut refused = ptr::null_mut();
        // SAFETY: live; the rest is as the caller says. The requests are copied before the call
        // returns.
        let code = unsafe { (self.post_send)(self.pair.as_ptr(), first, &raw mut refused) };
        if code == 0 { Ok(()) } else { Err(refusal(code, first, many, refused)) }
    }
}

/// What was posted before the one that was refused; all, if there is none of these.
#[cold]
fn refusal(code: c_int, first: *mut ibv_send_wr, many: usize, refused: *mut ibv_send_wr) -> PostError {
    let index = (refused as usize).wrapping_sub(first as usize) / size_of::<ibv_send_wr>();
    PostError { posted: index.min(many), code: errno(code).raw_os_error().unwrap_or(libc::EIO) }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: live; requests that are in flight end without completions.
        let _ = unsafe { (self.domain.context().library().functions.destroy_qp)(self.pair.as_ptr()) };
    }
}
