//! Completion queues.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::fabric::Domain;
use super::fid::{Code, Padded, calling, close, control, slot};
use super::sys::{
    FI_CQ_COND_NONE, FI_CQ_FORMAT_DATA, FI_GETWAIT, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_POLLFD, fi_cq_attr,
    fi_cq_data_entry, fi_cq_err_entry, fi_ops_cq, fi_ops_domain, fi_wait_pollfd, fid, fid_cq, pollfd,
};

/// A queue of completions. Reading it drives a provider that makes no progress by itself.
pub struct Queue {
    queue: NonNull<fid_cq>,
    read: unsafe extern "C" fn(*mut fid_cq, *mut std::ffi::c_void, usize) -> isize,
    sign: Sign,
    domain: Arc<Domain>,
}

/// What a queue offers to sleep on (its wait object).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Nothing.
    None,
    /// One descriptor, which stands for all that the provider has: an epoll of epolls in most of
    /// them. Each arrival has to signal every level, whether a thread sleeps or not.
    One,
    /// A list of descriptors, which may change.
    Several,
}

/// A copy of a descriptor to sleep on, and the events to wait for, as for poll(2).
#[derive(Debug)]
pub struct Watched {
    /// The descriptor.
    pub descriptor: OwnedFd,
    /// `POLLIN` ...
    pub events: i16,
}

// SAFETY: of a domain that is safe for threads.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// A completion with an error.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The context of the operation.
    pub context: *mut std::ffi::c_void,
    /// The kind of operation.
    pub flags: u64,
    /// A positive error code of libfabric.
    pub code: c_int,
    /// The provider's description.
    pub text: String,
}

/// An empty completion, to read into.
pub const NO_COMPLETION: fi_cq_data_entry =
    fi_cq_data_entry { op_context: ptr::null_mut(), flags: 0, len: 0, buf: ptr::null_mut(), data: 0 };

impl Queue {
    /// Opens a queue of `size` completions.
    ///
    /// # Errors
    /// The provider's error.
    pub fn open(domain: Arc<Domain>, size: usize, sign: Sign) -> Result<Arc<Self>, Code> {
        let mut attributes = Padded::new(fi_cq_attr {
            size,
            flags: 0,
            format: FI_CQ_FORMAT_DATA,
            wait_obj: match sign {
                Sign::None => FI_WAIT_NONE,
                Sign::One => FI_WAIT_FD,
                Sign::Several => FI_WAIT_POLLFD,
            },
            signaling_vector: 0,
            wait_cond: FI_CQ_COND_NONE,
            wait_set: ptr::null_mut(),
        });
        let queue: NonNull<fid_cq> = domain.make(|table, raw, queue| {
            // SAFETY: the table is that of a live domain, the attributes live during the call.
            unsafe {
                let open = slot!(table, fi_ops_domain, cq_open)?;
                calling(c"fi_cq_open", || open(raw, &raw mut attributes.value, queue, ptr::null_mut()))
            }
        })?;
        // SAFETY: the table of a live queue.
        let read = unsafe { slot!((*queue.as_ptr()).ops, fi_ops_cq, read) };
        // Made before any other call can fail, so that it is closed.
        let queue = Queue { queue, read: read.unwrap_or(no_read), sign, domain };
        match sign {
            Sign::None => {}
            Sign::One => drop(queue.only()?),
            Sign::Several => drop(queue.list()?),
        }
        read.map(|_| Arc::new(queue))
    }

    /// Reads completions into `entries` and returns their number. With no entries it only makes
    /// progress.
    ///
    /// # Errors
    /// [`Code::AGAIN`] if there are none; [`Code::AVAILABLE`] if the next one has to be read by
    /// [`Queue::failed`].
    #[inline]
    pub fn read(&self, entries: &mut [fi_cq_data_entry]) -> Result<usize, Code> {
        // SAFETY: a live queue of this format, and `entries` has the stated length.
        let read = unsafe {
            calling(c"fi_cq_read", || (self.read)(self.queue.as_ptr(), entries.as_mut_ptr().cast(), entries.len()))
        }?;
        Code::check(read).map(|()| read as usize)
    }

    /// The next completion with an error.
    ///
    /// # Errors
    /// [`Code::AGAIN`] if there is none.
    pub fn failed(&self) -> Result<Failed, Code> {
        // SAFETY: plain data, valid when zeroed: it has no buffer for the provider's own data.
        let mut entry: Padded<fi_cq_err_entry> = Padded::new(unsafe { std::mem::zeroed() });
        let queue = self.queue.as_ptr();
        // SAFETY: a live queue; the entry is written; the text ends with a zero and is copied
        // before any other call on the queue.
        unsafe {
            let read = slot!((*queue).ops, fi_ops_cq, readerr)?;
            Code::check(calling(c"fi_cq_readerr", || read(queue, &raw mut entry.value, 0))?)?;
            let fi_cq_err_entry { op_context: context, flags, err: code, prov_errno, err_data, .. } = entry.value;
            let mut buffer: [c_char; 128] = [0; 128];
            let text = match slot!((*queue).ops, fi_ops_cq, strerror) {
                Ok(strerror) => calling(c"fi_cq_strerror", || {
                    strerror(queue, prov_errno, err_data, buffer.as_mut_ptr(), buffer.len())
                })?,
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

    /// The descriptors to sleep on until there is something to read, once
    /// [`Fabric::try_wait`](super::Fabric::try_wait) has allowed that. Empty where the provider has
    /// none, or this process cannot copy them.
    #[must_use]
    pub fn watched(&self) -> Vec<Watched> {
        let own = match self.sign {
            Sign::Several => self.list(),
            Sign::One => self.only().map(|fd| vec![pollfd { fd, events: libc::POLLIN, revents: 0 }]),
            Sign::None => return Vec::new(),
        };
        let copy = |own: &pollfd| {
            // SAFETY: not negative, and it belongs to the queue, which is borrowed.
            let descriptor = unsafe { BorrowedFd::borrow_raw(own.fd) }.try_clone_to_owned().ok()?;
            Some(Watched { descriptor, events: own.events })
        };
        // Negative descriptors are unused entries, as in poll(2).
        own.ok().and_then(|own| own.iter().filter(|own| own.fd >= 0).map(copy).collect()).unwrap_or_default()
    }

    /// How often the list has changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        if self.sign == Sign::Several { self.fill(&mut []).map_or(0, |(changes, _)| changes) } else { 0 }
    }

    /// Updates the list, now that an endpoint uses the queue. Returns whether it can be slept on:
    /// while there is nothing to read, `try_wait` allows a sleep, and the sleep would not end at
    /// once.
    #[must_use]
    pub fn settle(&self) -> bool {
        // Each try takes at most a millisecond, and the first one nearly always succeeds.
        const TIMES: u32 = 16;
        (0..TIMES).any(|_| {
            self.refresh();
            let allowed = self.domain.fabric().try_wait(self).is_ok();
            match self.sign {
                Sign::None => false,
                Sign::One => allowed,
                Sign::Several => allowed && self.list().is_ok_and(|list| !list.is_empty() && is_quiet(list)),
            }
        })
    }

    /// Makes progress and updates the list. `ofi_rxm`, `tcp` and others that share their code (1.17
    /// to 2.5) update it only in a call that waits, and not in one whose time is over before it
    /// begins: a millisecond, the shortest timeout, may have only just begun. So this call may have
    /// no effect.
    pub fn refresh(&self) {
        const MILLISECONDS: c_int = 1;
        let queue = self.queue.as_ptr();
        // SAFETY: live.
        let wait = unsafe { slot!((*queue).ops, fi_ops_cq, sread) };
        match wait {
            // SAFETY: live, and has a list, so that it can wait; no completion is read.
            Ok(wait) if self.sign == Sign::Several => unsafe {
                let _ = calling(c"fi_cq_sread", || wait(queue, ptr::null_mut(), 0, ptr::null(), MILLISECONDS));
            },
            _ => {
                let _ = self.read(&mut []);
            }
        }
    }

    pub(super) fn sign(&self) -> Sign {
        self.sign
    }

    fn only(&self) -> Result<RawFd, Code> {
        let mut descriptor: RawFd = -1;
        // SAFETY: live, and opened for one descriptor, whose address the command takes.
        unsafe { control(self.fid(), FI_GETWAIT, (&raw mut descriptor).cast())? };
        if descriptor < 0 { Err(Code::NO_FUNCTION) } else { Ok(descriptor) }
    }

    fn list(&self) -> Result<Vec<pollfd>, Code> {
        // Providers have about four descriptors; some do not return the number to a caller with an
        // empty list.
        let mut list = vec![pollfd { fd: -1, events: 0, revents: 0 }; 8];
        loop {
            let (_, len) = self.fill(&mut list)?;
            if len <= list.len() {
                list.truncate(len);
                return Ok(list);
            }
            list.resize(len, list[0]);
        }
    }

    /// Copies the provider's list if it fits; returns how often it has changed, and its length. See
    /// fi_poll(3).
    fn fill(&self, entries: &mut [pollfd]) -> Result<(u64, usize), Code> {
        let mut list = fi_wait_pollfd { change_index: 0, nfds: entries.len(), fd: entries.as_mut_ptr() };
        // SAFETY: live, and opened for such a list, whose address the command takes; it writes at
        // most the stated number of entries.
        match unsafe { control(self.fid(), FI_GETWAIT, (&raw mut list).cast()) } {
            Ok(()) | Err(Code::TOO_SMALL) => Ok((list.change_index, list.nfds)),
            Err(code) => Err(code),
        }
    }

    pub(super) fn fid(&self) -> *mut fid {
        // SAFETY: live; only the address is taken.
        unsafe { &raw mut (*self.queue.as_ptr()).fid }
    }
}

/// Whether no descriptor is ready.
fn is_quiet(mut list: Vec<pollfd>) -> bool {
    // SAFETY: the stated number of entries; the types are alike by poll(2).
    unsafe { libc::poll(list.as_mut_ptr().cast(), list.len() as libc::nfds_t, 0) == 0 }
}

/// Stands in for a missing function.
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
        f.debug_struct("Queue").field("sign", &self.sign).finish_non_exhaustive()
    }
}
