//! Endpoints, and the addresses of their peers.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use super::fabric::Domain;
use super::fid::{Code, bind, calling, close, control, slot};
use super::info::Info;
use super::queue::Queue;
use super::sys::{
    FI_AV_UNSPEC, FI_ENABLE, FI_MR_VIRT_ADDR, FI_RECV, FI_TRANSMIT, fi_addr_t, fi_av_attr, fi_msg_rma, fi_ops_av,
    fi_ops_cm, fi_ops_domain, fi_ops_msg, fi_ops_rma, fi_rma_iov, fid, fid_av, fid_ep, iovec,
};

type Receive = unsafe extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize;
type Send = unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, *mut c_void) -> isize;
type Inject = unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t) -> isize;
type Read =
    unsafe extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void) -> isize;
type WriteMessage = unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize;

/// A reliable endpoint without connections, enabled, with its queue and address book.
pub struct Endpoint {
    endpoint: NonNull<fid_ep>,
    addresses: Option<NonNull<fid_av>>,
    functions: Option<Functions>,
    memory_mode: i32,
    key_size: usize,
    inject_size: usize,
    queue: Arc<Queue>,
    domain: Arc<Domain>,
}

/// `FI_ADDR_UNSPEC`, a cast in the headers: any peer.
const ANY_PEER: fi_addr_t = fi_addr_t::MAX;

/// Functions that are called often.
#[derive(Clone, Copy)]
struct Functions {
    receive: Receive,
    send: Send,
    inject: Inject,
    read: Read,
    write: WriteMessage,
}

// SAFETY: of a domain that is safe for threads.
unsafe impl std::marker::Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

/// A part of the caller's memory in an operation.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// Its address.
    pub base: *mut u8,
    /// Its length in bytes.
    pub len: usize,
    /// [`Memory::descriptor`](super::Memory::descriptor) of the registration that it is part of.
    pub descriptor: *mut c_void,
}

/// A location in a peer's memory in an operation.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// The peer's number.
    pub peer: fi_addr_t,
    /// The address or offset, whichever the provider counts by.
    pub address: u64,
    /// The key of the registration.
    pub key: u64,
}

impl Endpoint {
    /// Opens and enables an endpoint that a description describes, for `peers` peers.
    ///
    /// # Errors
    /// The provider's error.
    pub fn open(domain: Arc<Domain>, info: Info<'_>, queue: Arc<Queue>, peers: usize) -> Result<Arc<Self>, Code> {
        let endpoint = domain.make(|table, raw, endpoint| {
            // SAFETY: the table is that of a live domain, of the same description.
            unsafe {
                let open = slot!(table, fi_ops_domain, endpoint)?;
                calling(c"fi_endpoint", || open(raw, info.as_ptr().cast_mut(), endpoint, ptr::null_mut()))
            }
        })?;
        let (memory_mode, key_size) = info.domain().map_or((0, 0), |domain| (domain.mr_mode, domain.mr_key_size));
        let inject_size = info.transmit().map_or(0, |transmit| transmit.inject_size);
        let (addresses, functions) = (None, None);
        // Made before any other call can fail, so that it is closed.
        let mut made = Endpoint { endpoint, addresses, functions, memory_mode, key_size, inject_size, queue, domain };
        let mut attributes = super::fid::Padded::new(fi_av_attr {
            type_: info.domain().map_or(FI_AV_UNSPEC, |domain| domain.av_type),
            rx_ctx_bits: 0,
            count: peers,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: ptr::null_mut(),
            flags: 0,
        });
        let addresses = made.domain.make(|table, raw, addresses| {
            // SAFETY: the table is that of a live domain; the attributes live during the call.
            unsafe {
                let open = slot!(table, fi_ops_domain, av_open)?;
                calling(c"fi_av_open", || open(raw, &raw mut attributes.value, addresses, ptr::null_mut()))
            }
        })?;
        made.addresses = Some(addresses);
        // SAFETY: all are live; the tables are complete once the endpoint is enabled.
        unsafe {
            bind(made.fid(), &raw mut (*addresses.as_ptr()).fid, 0)?;
            bind(made.fid(), made.queue.fid(), FI_TRANSMIT | FI_RECV)?;
            if info.provider() == "shm" {
                made.take_shm_name()?;
            }
            control(made.fid(), FI_ENABLE, ptr::null_mut())?;
            let (messages, rma) = ((*endpoint.as_ptr()).msg, (*endpoint.as_ptr()).rma);
            made.functions = Some(Functions {
                receive: slot!(messages, fi_ops_msg, recv)?,
                send: slot!(messages, fi_ops_msg, send)?,
                inject: slot!(messages, fi_ops_msg, inject)?,
                read: slot!(rma, fi_ops_rma, read)?,
                write: slot!(rma, fi_ops_rma, writemsg)?,
            });
        }
        Ok(Arc::new(made))
    }

    /// Its domain.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// The queue of its completions.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// What memory needs before operations can use it: bits of `FI_MR_*`.
    #[must_use]
    pub fn memory_mode(&self) -> i32 {
        self.memory_mode
    }

    /// Bytes of the keys of registered memory, as far as peers see them.
    #[must_use]
    pub fn key_size(&self) -> usize {
        self.key_size
    }

    /// What remote operations count addresses in memory at `base` from: its address, or 0.
    #[must_use]
    pub fn origin(&self, base: NonNull<u8>) -> u64 {
        if self.memory_mode & FI_MR_VIRT_ADDR as i32 != 0 { base.as_ptr() as u64 } else { 0 }
    }

    /// Bytes of the longest message that can be injected.
    #[must_use]
    pub fn inject_size(&self) -> usize {
        self.inject_size
    }

    pub(super) fn as_ptr(&self) -> *mut fid_ep {
        self.endpoint.as_ptr()
    }

    pub(super) fn fid(&self) -> *mut fid {
        // SAFETY: live; only the address is taken.
        unsafe { &raw mut (*self.endpoint.as_ptr()).fid }
    }

    /// The address that peers insert to reach it.
    ///
    /// # Errors
    /// The provider's error.
    pub fn name(&self) -> Result<Vec<u8>, Code> {
        let mut name = vec![0; 256];
        let mut len = name.len();
        // SAFETY: a live endpoint; the buffer has the stated length.
        unsafe {
            let getname = slot!((*self.endpoint.as_ptr()).cm, fi_ops_cm, getname)?;
            let code = calling(c"fi_getname", || getname(self.fid(), name.as_mut_ptr().cast(), &mut len))?;
            Code::check(code as isize)?;
        }
        name.truncate(len);
        Ok(name)
    }

    /// Names the shared memory of an endpoint of `shm` that is not yet enabled.
    ///
    /// The provider's own names consist of the process number, the user and a count. If a killed
    /// process left its file behind, a later process with the same number cannot create one: the
    /// provider finds that the owner of the file is alive, and refuses (`FI_EBUSY`, libfabric 1.17).
    fn take_shm_name(&self) -> Result<(), Code> {
        static FIRST: OnceLock<u128> = OnceLock::new();
        static OTHERS: AtomicU32 = AtomicU32::new(0);
        let since = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let (first, other) = (FIRST.get_or_init(since), OTHERS.fetch_add(1, Relaxed));
        let name = format!("{}:{first}:{other}\0", std::process::id());
        // SAFETY: a live endpoint; the provider copies the name, up to its zero byte.
        unsafe {
            let setname = slot!((*self.endpoint.as_ptr()).cm, fi_ops_cm, setname)?;
            let code = calling(c"fi_setname", || setname(self.fid(), name.as_ptr().cast_mut().cast(), name.len()))?;
            Code::check(code as isize)
        }
    }

    /// Adds a peer; returns the number by which operations name it.
    ///
    /// # Errors
    /// The provider's error; an invalid address.
    pub fn insert(&self, name: &[u8]) -> Result<fi_addr_t, Code> {
        // Providers copy as many bytes as their kind of address has, whatever the length of this
        // one.
        let mut padded = [0u8; 512];
        padded.get_mut(..name.len()).ok_or(Code::NO_MEMORY)?.copy_from_slice(name);
        let Some(addresses) = self.addresses else { return Err(Code::NO_FUNCTION) };
        let mut peer: fi_addr_t = 0;
        // SAFETY: a live address book; one address, of at most so many bytes; `peer` is written.
        let inserted = unsafe {
            let insert = slot!((*addresses.as_ptr()).ops, fi_ops_av, insert)?;
            let (to, name) = (addresses.as_ptr(), padded.as_ptr().cast());
            calling(c"fi_av_insert", || insert(to, name, 1, &mut peer, 0, ptr::null_mut()))?
        };
        match inserted {
            1 => Ok(peer),
            0 => Err(Code(-libc::EADDRNOTAVAIL)),
            code => Err(Code(code as c_int)),
        }
    }

    fn functions(&self) -> Result<&Functions, Code> {
        self.functions.as_ref().ok_or(Code::NO_FUNCTION)
    }

    /// Posts a buffer for one message of any peer.
    ///
    /// # Safety
    /// The buffer must be registered if the memory mode says local. Nothing else may use it until
    /// the completion of `context`.
    ///
    /// # Errors
    /// The provider's error.
    pub unsafe fn receive(&self, to: Local, context: *mut c_void) -> Result<(), Code> {
        let receive = self.functions()?.receive;
        // SAFETY: a live endpoint; the rest is as the caller says.
        let posted = unsafe {
            let endpoint = self.endpoint.as_ptr();
            calling(c"fi_recv", || receive(endpoint, to.base.cast(), to.len, to.descriptor, ANY_PEER, context))
        };
        Code::check(posted?)
    }

    /// Sends a message.
    ///
    /// # Safety
    /// The message must be registered if the memory mode says local, and must not change until the
    /// completion of `context`.
    ///
    /// # Errors
    /// [`Code::AGAIN`] if the provider cannot take it now; otherwise the provider's error.
    #[inline]
    pub unsafe fn send(&self, from: Local, peer: fi_addr_t, context: *mut c_void) -> Result<(), Code> {
        let send = self.functions()?.send;
        // SAFETY: a live endpoint; the rest is as the caller says.
        let posted = unsafe {
            let endpoint = self.endpoint.as_ptr();
            calling(c"fi_send", || send(endpoint, from.base.cast(), from.len, from.descriptor, peer, context))
        };
        Code::check(posted?)
    }

    /// Sends a small message that may change as soon as this returns. There is no completion.
    ///
    /// # Errors
    /// As [`Endpoint::send`]; a message that is longer than [`Endpoint::inject_size`].
    #[inline]
    pub fn inject(&self, message: &[u8], peer: fi_addr_t) -> Result<(), Code> {
        let inject = self.functions()?.inject;
        if message.len() > self.inject_size {
            // Providers check this only by an assertion.
            return Err(Code(-libc::EMSGSIZE));
        }
        // SAFETY: a live endpoint; the message is short enough, and copied before the call returns.
        let posted = unsafe {
            let endpoint = self.endpoint.as_ptr();
            calling(c"fi_inject", || inject(endpoint, message.as_ptr().cast(), message.len(), peer))
        };
        Code::check(posted?)
    }

    /// Reads a peer's memory.
    ///
    /// # Safety
    /// The target must be registered if the memory mode says local. Nothing else may use it until
    /// the completion of `context`.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub unsafe fn read(&self, to: Local, from: Remote, context: *mut c_void) -> Result<(), Code> {
        let read = self.functions()?.read;
        let Remote { peer, address, key } = from;
        // SAFETY: a live endpoint; the rest is as the caller says.
        let posted = unsafe {
            let endpoint = self.endpoint.as_ptr();
            calling(c"fi_read", || read(endpoint, to.base.cast(), to.len, to.descriptor, peer, address, key, context))
        };
        Code::check(posted?)
    }

    /// Writes a peer's memory, in one or several places. `flags` say what completion means, such as
    /// `FI_DELIVERY_COMPLETE`; with `FI_REMOTE_CQ_DATA`, `data` goes to the peer's queue as
    /// immediate data.
    ///
    /// # Safety
    /// The sources must be registered if the memory mode says local, and must not change until the
    /// completion of `context`.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    ///
    /// # Panics
    /// If there is no place.
    pub unsafe fn write<const N: usize>(
        &self,
        places: [(Local, Remote); N],
        (flags, data): (u64, u64),
        context: *mut c_void,
    ) -> Result<(), Code> {
        let write = self.functions()?.write;
        let sources = places.map(|(from, _)| iovec { iov_base: from.base.cast(), iov_len: from.len });
        let targets = places.map(|(from, to)| fi_rma_iov { addr: to.address, len: from.len, key: to.key });
        let mut descriptors = places.map(|(from, _)| from.descriptor);
        let message = fi_msg_rma {
            msg_iov: sources.as_ptr(),
            desc: descriptors.as_mut_ptr(),
            iov_count: N,
            addr: places[0].1.peer,
            rma_iov: targets.as_ptr(),
            rma_iov_count: N,
            context,
            data,
        };
        // SAFETY: a live endpoint; the description is copied before the call returns; the rest is
        // as the caller says.
        Code::check(unsafe { calling(c"fi_writemsg", || write(self.endpoint.as_ptr(), &message, flags)) }?)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: live; registrations that are tied to it keep it alive. The address book ends
        // after the endpoint that uses it.
        unsafe {
            let _ = close(self.fid());
            if let Some(addresses) = self.addresses {
                let _ = close(&raw mut (*addresses.as_ptr()).fid);
            }
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Endpoint")
    }
}
