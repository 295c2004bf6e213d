//! Unreliable datagrams: messages between queue pairs that are not connected.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::library::{check, invalid, made};
use super::memory::Domain;
use super::pair::{Pair, is_number};
use super::queue::Queue;
use super::request::{Local, PostError, Request, Verb, receive};
use super::route::Route;
use super::sys::{
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_SQ_PSN, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_UD,
    ibv_ah, ibv_qp, ibv_qp_cap, ibv_recv_wr, ibv_send_wr__bindgen_ty_2__bindgen_ty_3 as Ud,
};

type PostReceive = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// Bytes at the start of each buffer that are left for the global route header; the message follows
/// them, and the length of the completion counts them. The header is there if the completion has
/// `IBV_WC_GRH`.
pub const GRH_LEN: usize = 40;

/// A queue pair for datagrams.
///
/// A message is at most as long as the port's `active_mtu`. It may be lost, and arrive out of order;
/// what arrives is intact. A message to a queue pair without a buffer, or with another key, is lost.
pub struct Datagrams {
    pair: Pair,
    post_receive: PostReceive,
}

/// The way to a peer's port, for datagrams. See ibv_create_ah(3).
pub struct AddressHandle {
    handle: NonNull<ibv_ah>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs allows calls from any thread, and from several at a time.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// Makes a handle.
    ///
    /// # Errors
    /// With RoCE, the peer's address cannot be resolved (`ETIMEDOUT`, `ENETUNREACH`,
    /// `EHOSTUNREACH`); the provider's error.
    pub fn open(domain: Arc<Domain>, route: &Route) -> io::Result<Self> {
        let mut attributes = route.attributes();
        let create = domain.context().library().functions.create_ah;
        // SAFETY: live; the attributes live during the call.
        let handle = made(unsafe { create(domain.as_ptr(), &raw mut attributes) })?;
        Ok(AddressHandle { handle, domain })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: live; sends that used it have completed.
        let _ = unsafe { (self.domain.context().library().functions.destroy_ah)(self.handle.as_ptr()) };
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressHandle")
    }
}

impl Datagrams {
    /// Makes a queue pair for so many sends and so many buffers in flight, with the queues of their
    /// completions. See ibv_create_qp(3).
    ///
    /// # Errors
    /// `EINVAL` for more than the device has, or a queue of another context; `ENOMEM`; the
    /// provider's error.
    pub fn open(
        domain: Arc<Domain>,
        (send, sends): (Arc<Queue>, u32),
        (receive, receives): (Arc<Queue>, u32),
    ) -> io::Result<Self> {
        let post_receive = domain.context().slot(|table| table.post_recv)?;
        let capacity = ibv_qp_cap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let pair = Pair::open(domain, [send, receive], None, IBV_QPT_UD, capacity)?;
        Ok(Datagrams { pair, post_receive })
    }

    /// Its number at its device, by which peers send to it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Assigns it to a port, with the partition key at index 0, and lets it receive and send
    /// (states INIT, RTR, RTS). Messages arrive that have this `key`. Its upper bit must be 0: a
    /// message whose key has it is sent with the key of its own queue pair. `packet_sequence` is the
    /// number of its first packet, 24 bits.
    ///
    /// # Errors
    /// There is no such port, a number is out of range, or it was called before (`EINVAL`); the
    /// provider's error.
    pub fn ready(&self, port: u8, key: u32, packet_sequence: u32) -> io::Result<()> {
        if !is_number(packet_sequence) || key > i32::MAX as u32 {
            return Err(invalid());
        }
        self.pair.modify(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, |attributes| {
            attributes.port_num = port;
            attributes.qkey = key;
        })?;
        self.pair.modify(IBV_QPS_RTR, 0, |_| {})?;
        self.pair.modify(IBV_QPS_RTS, IBV_QP_SQ_PSN, |attributes| attributes.sq_psn = packet_sequence)
    }

    /// Adds a buffer for one message, [`GRH_LEN`] bytes longer than that. See ibv_post_recv(3). The
    /// completion has the number of the sender's queue pair (`src_qp`).
    ///
    /// # Safety
    /// The buffer must be registered in the same domain for local writes. Nothing else may use it
    /// until the completion of `id`, or until the queue pair is dropped.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; the provider's error.
    pub unsafe fn post_receive(&self, to: Local, id: u64) -> io::Result<()> {
        let mut part = to.part();
        let mut request = receive(id, &mut part);
        let mut refused = ptr::null_mut();
        // SAFETY: live; the request is copied before the call returns; the rest is as the caller
        // says.
        check(unsafe { (self.post_receive)(self.pair.as_ptr(), &raw mut request, &raw mut refused) })
    }

    /// Sends a message to the queue pair of this number and key at the port that `to` leads to. The
    /// completion says that it was sent, not that it has arrived. `flags` are as in
    /// [`Request::flags`].
    ///
    /// # Safety
    /// The message must be registered in the same domain, unless it is inline, and must not change
    /// until the completion of `id`. `to` must live as long.
    ///
    /// # Errors
    /// [`PostError::is_full`] if completions must be polled first; `EINVAL` for an address handle of
    /// another domain, a number that is out of range, or inline data that is too long; the
    /// provider's error.
    pub unsafe fn send(
        &self,
        to: &AddressHandle,
        (number, key): (u32, u32),
        message: Local,
        id: u64,
        flags: u32,
    ) -> Result<(), PostError> {
        if !is_number(number) || !Arc::ptr_eq(&to.domain, self.pair.domain()) {
            return Err(PostError::invalid());
        }
        let request = Request { id, verb: Verb::Send, local: Some(message), flags };
        let (mut place, mut part) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both are valid for writes, and `place` is written.
        let encoded = unsafe {
            if !request.encode(self.pair.most_inline(), place.as_mut_ptr(), part.as_mut_ptr(), ptr::null_mut()) {
                return Err(PostError::invalid());
            }
            place.assume_init_mut()
        };
        encoded.wr.ud = Ud { ah: to.handle.as_ptr(), remote_qpn: number, remote_qkey: key };
        // SAFETY: a chain of one; the rest is as the caller says.
        unsafe { self.pair.post(encoded, 1) }
    }
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Datagrams({:#x})", self.number())
    }
}
