//! Completion queues.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::fabric::Domain;
use super::fid::{Code, Padded, close, control, slot};
use super::sys::{
    FI_CQ_COND_NONE, FI_CQ_FORMAT_DATA, FI_GETWAIT, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_POLLFD, fi_cq_attr,
    fi_cq_data_entry, fi_cq_err_entry, fi_ops_cq, fi_ops_domain, fi_wait_pollfd, fid, fid_cq, pollfd,
};

/// A queue of completions. Reading it drives a provider that does not progress by itself.
pub struct Queue {
    queue: NonNull<fid_cq>,
    read: unsafe extern "C" fn(*mut fid_cq, *mut std::ffi::c_void, usize) -> isize,
    sign: Sign,
    domain: Arc<Domain>,
}

/// How a queue tells that there is something to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It does not.
    None,
    /// By one descriptor, which stands for all that the provider has: an epoll of epolls in most of them. What arrives
    /// has to tell each of these, whether anybody sleeps or not.
    One,
    /// By a list of descriptors, which may change.
    Several,
}

/// A descriptor to sleep on, a copy, and what for, as poll(2) has it.
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
    /// A queue of `size` completions.
    ///
    /// # Errors
    /// What the provider says.
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
                Ok(open(raw, &raw mut attributes.value, queue, ptr::null_mut()))
            }
        })?;
        // SAFETY: the table of a live queue.
        let read = unsafe { slot!((*queue.as_ptr()).ops, fi_ops_cq, read) };
        // Made before anything can fail, so that it is closed.
        let queue = Queue { queue, read: read.unwrap_or(no_read), sign, domain };
        match sign {
            Sign::None => {}
            Sign::One => drop(queue.only()?),
            Sign::Several => drop(queue.list()?),
        }
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

    /// What to sleep on until there is something to be read, once [`Fabric::try_wait`](super::Fabric::try_wait) has
    /// allowed that. Empty where the provider has nothing, or this process no room for copies of it.
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
        // Negative ones are places that are not in use, as in poll(2).
        own.ok().and_then(|own| own.iter().filter(|own| own.fd >= 0).map(copy).collect()).unwrap_or_default()
    }

    /// How often that has changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        if self.sign == Sign::Several { self.fill(&mut []).map_or(0, |(changes, _)| changes) } else { 0 }
    }

    /// Brings the list up to date, now that an endpoint uses the queue; whether it can be slept on: while there is
    /// nothing to be read, a sleep is allowed, and would not end at once.
    #[must_use]
    pub fn settle(&self) -> bool {
        // It takes a millisecond at most each time, and is done with the first nearly always.
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

    /// Makes progress, and brings the list up to date. `ofi_rxm`, `tcp` and others that share their code (1.17 to 2.5)
    /// do so only in a call that waits, and not in one whose time is over before it begins: a millisecond, the
    /// shortest there is, may have only just begun. So this may have done nothing.
    pub fn refresh(&self) {
        const MILLISECONDS: c_int = 1;
        let queue = self.queue.as_ptr();
        // SAFETY: live.
        let wait = unsafe { slot!((*queue).ops, fi_ops_cq, sread) };
        match wait {
            // SAFETY: live, and has a list, so that it can wait; no completion is asked for.
            Ok(wait) if self.sign == Sign::Several => unsafe {
                wait(queue, ptr::null_mut(), 0, ptr::null(), MILLISECONDS);
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
        // SAFETY: live, and opened for one descriptor, of which the command takes the address.
        unsafe { control(self.fid(), FI_GETWAIT, (&raw mut descriptor).cast())? };
        if descriptor < 0 { Err(Code::NO_FUNCTION) } else { Ok(descriptor) }
    }

    fn list(&self) -> Result<Vec<pollfd>, Code> {
        // Providers have about four; some do not say how many they have to who has room for none.
        let mut room = vec![pollfd { fd: -1, events: 0, revents: 0 }; 8];
        loop {
            let (_, len) = self.fill(&mut room)?;
            if len <= room.len() {
                room.truncate(len);
                return Ok(room);
            }
            room.resize(len, room[0]);
        }
    }

    /// Copies the provider's list if there is room for it; how often it has changed, and how long it is. See
    /// fi_poll(3).
    fn fill(&self, room: &mut [pollfd]) -> Result<(u64, usize), Code> {
        let mut list = fi_wait_pollfd { change_index: 0, nfds: room.len(), fd: room.as_mut_ptr() };
        // SAFETY: live, and opened for such a list, of which the command takes the address; it writes as many as are
        // said to fit.
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

/// Whether none of them is ready.
fn is_quiet(mut list: Vec<pollfd>) -> bool {
    // SAFETY: as many as are said; the types are alike by poll(2).
    unsafe { libc::poll(list.as_mut_ptr().cast(), list.len() as libc::nfds_t, 0) == 0 }
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
        f.debug_struct("Queue").field("sign", &self.sign).finish_non_exhaustive()
    }
}
