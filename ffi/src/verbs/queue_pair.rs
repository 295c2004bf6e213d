//! Reliable connections.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use super::library::invalid;
use super::memory::Domain;
use super::pair::{Pair, is_number};
use super::queue::Queue;
use super::receive_queue::ReceiveQueue;
use super::request::{MOST_REQUESTS, PostError, Request};
use super::route::Route;
use super::sys::{
    IBV_MTU_256, IBV_MTU_4096, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT,
    IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC,
    ibv_mtu, ibv_qp_cap, ibv_send_wr, ibv_sge,
};

/// A queue pair of a reliable connection with one other queue pair, which receives from a shared
/// queue.
///
/// It goes through the states in the order of [`QueuePair::initialize`], [`QueuePair::connect`] and
/// [`QueuePair::ready_to_send`]; from the second on it answers its peer, from the third on it can
/// post. A request that fails moves it into the error state, where all others end with
/// `IBV_WC_WR_FLUSH_ERR`. Requests take effect in order at the peer, except that what follows a read
/// or an atomic may overtake it (`IBV_SEND_FENCE`). Completions come in order.
pub struct QueuePair {
    pair: Pair,
}

/// What a queue pair is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Requests in flight: posted, and not followed by a completion that has been polled.
    pub sends: u32,
    /// Bytes of the longest inline data.
    pub inline: u32,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The number of its queue pair.
    pub number: u32,
    /// The sequence number of its first packet, 24 bits: what it passes to
    /// [`QueuePair::ready_to_send`].
    pub packet_sequence: u32,
}

/// How a connection deals with packets. See ibv_modify_qp(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The longest packet, `IBV_MTU_256` to `IBV_MTU_4096`, and the same at both ends. At most the
    /// `active_mtu` of both ports.
    pub mtu: ibv_mtu,
    /// How long to wait for an acknowledgement: 4.096 µs times 2 to the power of this, 1 to 31; 0
    /// waits without limit.
    pub timeout: u8,
    /// How often to send again what was not acknowledged, 0 to 7, before the request fails with
    /// `IBV_WC_RETRY_EXC_ERR`. Soft-RoCE takes 7 for "without limit".
    pub retry_count: u8,
    /// How often to send again what the peer had no buffer for, 0 to 6, before the request fails
    /// with `IBV_WC_RNR_RETRY_EXC_ERR`; 7 is without limit.
    pub rnr_retry: u8,
    /// How long the peer is to wait before it sends again what this end had no buffer for: an index
    /// of a table in ibv_modify_qp(3), 0 to 31. 1 is 10 µs, 12 is 640 µs, 0 is 655 ms.
    pub min_rnr_timer: u8,
    /// Reads and atomics in flight, of this end and of its peer. At most the device's
    /// `max_qp_init_rd_atom` and the peer's `max_qp_rd_atom`.
    pub outstanding_reads: u8,
}

impl Settings {
    fn make_sense(&self) -> bool {
        let Settings { mtu, timeout, retry_count, rnr_retry, min_rnr_timer, .. } = *self;
        let is_mtu = (IBV_MTU_256..=IBV_MTU_4096).contains(&mtu);
        is_mtu && timeout < 32 && retry_count < 8 && rnr_retry < 8 && min_rnr_timer < 32
    }
}

impl QueuePair {
    /// Makes a queue pair, all of whose completions go to `completions`. See ibv_create_qp(3).
    ///
    /// # Errors
    /// `EINVAL` for more than the device has, or a queue of another context or domain; `ENOMEM`;
    /// the provider's error.
    pub fn open_reliable(
        domain: Arc<Domain>,
        completions: Arc<Queue>,
        receives: &Arc<ReceiveQueue>,
        capacity: Capacity,
    ) -> io::Result<Self> {
        let Capacity { sends, inline } = capacity;
        let capacity = ibv_qp_cap {
            max_send_wr: sends,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline_data: inline,
        };
        let queues = [completions.clone(), completions];
        let pair = Pair::open(domain, queues, Some(receives.clone()), IBV_QPT_RC, capacity)?;
        Ok(QueuePair { pair })
    }

    /// Its number at its device, by which a peer connects to it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Bytes of the longest inline data: as many as were asked for, or more.
    #[inline]
    #[must_use]
    pub fn most_inline(&self) -> u32 {
        self.pair.most_inline()
    }

    /// Assigns it to a port (state INIT), with the partition key at index 0. `remote_access` is what
    /// the peer may do with registered memory, as far as its registration allows it: bits of
    /// `IBV_ACCESS_REMOTE_WRITE`, `IBV_ACCESS_REMOTE_READ`, `IBV_ACCESS_REMOTE_ATOMIC`.
    ///
    /// # Errors
    /// There is no such port, or it is in another state (`EINVAL`); the provider's error.
    pub fn initialize(&self, port: u8, remote_access: u32) -> io::Result<()> {
        let mask = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.pair.modify(IBV_QPS_INIT, mask, |attributes| {
            attributes.port_num = port;
            attributes.qp_access_flags = remote_access;
        })
    }

    /// Connects it to its peer (state RTR): from here on it answers what the peer sends.
    ///
    /// # Errors
    /// A setting or number that is out of range, or it is in another state (`EINVAL`); with RoCE,
    /// the peer's address cannot be resolved (`ETIMEDOUT`, `ENETUNREACH`, `EHOSTUNREACH`); the
    /// provider's error.
    pub fn connect(&self, route: &Route, peer: Peer, settings: &Settings) -> io::Result<()> {
        if !settings.make_sense() || !is_number(peer.number) || !is_number(peer.packet_sequence) {
            return Err(invalid());
        }
        let mask = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.pair.modify(IBV_QPS_RTR, mask, |attributes| {
            attributes.ah_attr = route.attributes();
            attributes.path_mtu = settings.mtu;
            attributes.dest_qp_num = peer.number;
            attributes.rq_psn = peer.packet_sequence;
            attributes.max_dest_rd_atomic = settings.outstanding_reads;
            attributes.min_rnr_timer = settings.min_rnr_timer;
        })
    }

    /// Lets it post requests (state RTS). The peer must be connected before they arrive there.
    /// `packet_sequence` is the number of its first packet, 24 bits.
    ///
    /// # Errors
    /// A setting or number that is out of range, or it is in another state (`EINVAL`); the
    /// provider's error.
    pub fn ready_to_send(&self, packet_sequence: u32, settings: &Settings) -> io::Result<()> {
        if !settings.make_sense() || !is_number(packet_sequence) {
            return Err(invalid());
        }
        let mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
        self.pair.modify(IBV_QPS_RTS, mask, |attributes| {
            attributes.timeout = settings.timeout;
            attributes.retry_cnt = settings.retry_count;
            attributes.rnr_retry = settings.rnr_retry;
            attributes.sq_psn = packet_sequence;
            attributes.max_rd_atomic = settings.outstanding_reads;
        })
    }

    /// Ends the connection (state ERR): each request in flight gets a completion with
    /// `IBV_WC_WR_FLUSH_ERR` if it did not end otherwise. What the peer sends from now on fails.
    ///
    /// # Errors
    /// The provider's error.
    pub fn fail(&self) -> io::Result<()> {
        self.pair.fail()
    }

    /// Posts so many requests, at most [`MOST_REQUESTS`], in order and with one call: `request` gives
    /// each by its index. See ibv_post_send(3).
    ///
    /// Success of a write or a send means that the peer's device has acknowledged it, of the others
    /// that the result is in the local memory. A request without `IBV_SEND_SIGNALED` has a
    /// completion only if it fails; it takes up its entry of the queue until a completion of a later
    /// one is polled.
    ///
    /// # Safety
    /// Local memory must be registered in the same domain, for local writes if the request writes
    /// there; with `IBV_SEND_INLINE` it must only be readable during the call. Otherwise it must not
    /// change, and if the request writes there nothing else may use it, until the request's
    /// completion or that of a later one, or until the queue pair is dropped.
    ///
    /// # Errors
    /// [`PostError::is_full`] if completions must be polled first. `EINVAL` and none of them posted:
    /// too many requests; inline data longer than [`QueuePair::most_inline`], or of a read or an
    /// atomic; an atomic without 8 bytes of local memory; or it is in another state. Otherwise the
    /// provider's error. Requests before the one that was refused are posted.
    #[inline]
    pub unsafe fn post(&self, many: usize, request: impl Fn(usize) -> Request) -> Result<(), PostError> {
        if many > MOST_REQUESTS {
            return Err(PostError::invalid());
        }
        if many == 0 {
            return Ok(());
        }
        let mut parts = [const { MaybeUninit::<ibv_sge>::uninit() }; MOST_REQUESTS];
        let mut list = [const { MaybeUninit::<ibv_send_wr>::uninit() }; MOST_REQUESTS];
        let (part, first) = (parts.as_mut_ptr().cast::<ibv_sge>(), list.as_mut_ptr().cast::<ibv_send_wr>());
        for index in 0..many {
            let request = request(index);
            // SAFETY: there are at most as many requests as the arrays have elements.
            unsafe {
                let next = if index + 1 < many { first.add(index + 1) } else { ptr::null_mut() };
                if !request.encode(self.pair.most_inline(), first.add(index), part.add(index), next) {
                    return Err(PostError::invalid());
                }
            }
        }
        // SAFETY: a chain of so many in one array, as was just written; the rest is as the caller
        // says.
        unsafe { self.pair.post(first, many) }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair({:#x})", self.number())
    }
}
