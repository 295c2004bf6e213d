//! Work requests: what a device is to do.

use std::ffi::c_int;
use std::io;
use std::ptr;

use super::sys::{
    IBV_SEND_INLINE, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, ibv_recv_wr, ibv_send_wr, ibv_send_wr__bindgen_ty_1,
    ibv_send_wr__bindgen_ty_2, ibv_send_wr__bindgen_ty_2__bindgen_ty_1 as Rdma,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_2 as Atomic, ibv_send_wr__bindgen_ty_3,
    ibv_send_wr__bindgen_ty_3__bindgen_ty_1 as Xrc, ibv_send_wr__bindgen_ty_4,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_2 as Tso, ibv_sge,
};

/// Requests that can be posted together.
pub const MOST_REQUESTS: usize = 4;

/// A part of the caller's memory in a request.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// Its address.
    pub base: *mut u8,
    /// Its length in bytes.
    pub len: u32,
    /// [`Memory::local_key`](super::Memory::local_key) of the registration that it is part of;
    /// unused with `IBV_SEND_INLINE`.
    pub key: u32,
}

/// A location in a peer's memory in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address, as the peer has it.
    pub address: u64,
    /// [`Memory::remote_key`](super::Memory::remote_key) of the peer's registration.
    pub key: u32,
}

/// What a request does. Each can be of a reliable queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Sends a message into the next buffer that the peer has posted.
    Send,
    /// Writes the peer's memory. The peer gets no completion.
    Write(Remote),
    /// Writes the peer's memory, then uses up a buffer that the peer has posted: the peer's
    /// completion has this number, in the host's byte order, and the written bytes are there.
    WriteWithImmediate(Remote, u32),
    /// Reads the peer's memory.
    Read(Remote),
    /// Adds to an aligned 64-bit word of the peer; its value before goes to the local memory, 8
    /// bytes. The device carries atomics out by itself: they are atomic with those of the same
    /// device, and with those of CPUs only if `atomic_cap` is `IBV_ATOMIC_GLOB`.
    FetchAdd {
        /// The word.
        at: Remote,
        /// What is added; the sum wraps around.
        add: u64,
    },
    /// Replaces an aligned 64-bit word of the peer if it has the expected value; its value before
    /// goes to the local memory, 8 bytes. Atomic as [`Verb::FetchAdd`].
    CompareSwap {
        /// The word.
        at: Remote,
        /// The value that it must have.
        expected: u64,
        /// The value that it gets.
        new: u64,
    },
}

/// A request to a send queue. See ibv_post_send(3).
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What the completion has as `wr_id`.
    pub id: u64,
    /// What it does.
    pub verb: Verb,
    /// Where the data is, or goes to; `None` for no data.
    pub local: Option<Local>,
    /// `IBV_SEND_SIGNALED`: it has a completion also if it succeeds. `IBV_SEND_INLINE`: the data is
    /// copied before the post returns. `IBV_SEND_FENCE`: it starts after earlier reads and atomics
    /// are complete. `IBV_SEND_SOLICITED`: the peer's completion is solicited.
    pub flags: u32,
}

/// Why a request, and those after it, were not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the next request after {posted} was not posted: {}", io::Error::from_raw_os_error(*code))]
pub struct PostError {
    /// How many of the requests, from the first one on, are posted all the same.
    pub posted: usize,
    /// The errno value.
    pub code: i32,
}

impl PostError {
    /// Whether the queue is full (`ENOMEM`): completions have to be polled first.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.code == libc::ENOMEM
    }

    /// One of the requests makes no sense, and none was posted.
    #[cold]
    pub(super) fn invalid() -> Self {
        PostError { posted: 0, code: libc::EINVAL }
    }
}

impl From<PostError> for io::Error {
    fn from(error: PostError) -> Self {
        io::Error::from_raw_os_error(error.code)
    }
}

impl Local {
    pub(super) fn part(self) -> ibv_sge {
        ibv_sge { addr: self.base as u64, length: self.len, lkey: self.key }
    }
}

impl Request {
    /// Writes the request as C has it into `place`: `part` is for the description of its memory,
    /// `next` is the request to be posted after it. Returns whether it makes sense.
    ///
    /// # Safety
    /// `place` and `part` must be valid for writes.
    #[inline]
    pub(super) unsafe fn encode(
        &self,
        most_inline: u32,
        place: *mut ibv_send_wr,
        part: *mut ibv_sge,
        next: *mut ibv_send_wr,
    ) -> bool {
        let len = self.local.map_or(0, |local| local.len);
        let inline = self.flags & IBV_SEND_INLINE != 0;
        let rdma = |at: Remote| ibv_send_wr__bindgen_ty_2 { rdma: Rdma { remote_addr: at.address, rkey: at.key } };
        let atomic = |at: Remote, compare_add: u64, swap: u64| ibv_send_wr__bindgen_ty_2 {
            atomic: Atomic { remote_addr: at.address, compare_add, swap, rkey: at.key },
        };
        let (opcode, wr, imm_data) = match self.verb {
            Verb::Send => (IBV_WR_SEND, rdma(Remote { address: 0, key: 0 }), 0),
            Verb::Write(to) => (IBV_WR_RDMA_WRITE, rdma(to), 0),
            Verb::WriteWithImmediate(to, data) => (IBV_WR_RDMA_WRITE_WITH_IMM, rdma(to), data.to_be()),
            Verb::Read(from) => (IBV_WR_RDMA_READ, rdma(from), 0),
            Verb::FetchAdd { at, add } => (IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(at, add, 0), 0),
            Verb::CompareSwap { at, expected, new } => (IBV_WR_ATOMIC_CMP_AND_SWP, atomic(at, expected, new), 0),
        };
        // Providers do not check these, or answer as if the queue were full.
        let makes_sense = match self.verb {
            Verb::Send | Verb::Write(_) | Verb::WriteWithImmediate(..) => !inline || len <= most_inline,
            Verb::Read(_) => !inline,
            Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => !inline && len == 8,
        };
        let request = ibv_send_wr {
            wr_id: self.id,
            next,
            sg_list: part,
            num_sge: c_int::from(self.local.is_some()),
            opcode,
            send_flags: self.flags,
            __bindgen_anon_1: ibv_send_wr__bindgen_ty_1 { imm_data },
            wr,
            qp_type: ibv_send_wr__bindgen_ty_3 { xrc: Xrc { remote_srqn: 0 } },
            __bindgen_anon_2: ibv_send_wr__bindgen_ty_4 { tso: Tso { hdr: ptr::null_mut(), hdr_sz: 0, mss: 0 } },
        };
        // SAFETY: as the caller says.
        unsafe {
            place.write(request);
            if let Some(local) = self.local {
                part.write(local.part());
            }
        }
        makes_sense
    }
}

/// A request to a receive queue, as C has it.
pub(super) fn receive(id: u64, part: &mut ibv_sge) -> ibv_recv_wr {
    ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: part, num_sge: 1 }
}
