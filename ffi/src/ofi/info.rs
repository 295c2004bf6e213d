//! Descriptions (`fi_info`) of what a provider offers, or of what a caller wants.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;

use super::library::Library;
use super::sys::{
    FI_SOCKADDR_IN, FI_SOCKADDR_IN6, fi_domain_attr, fi_ep_attr, fi_ep_type, fi_fabric_attr, fi_info, fi_progress,
    fi_threading, fi_tx_attr,
};

/// A list of descriptions, owned.
pub struct InfoList {
    library: Library,
    first: NonNull<fi_info>,
}

// SAFETY: plain memory with one owner; libfabric keeps no reference to it.
unsafe impl Send for InfoList {}
// SAFETY: through `&` it is only read.
unsafe impl Sync for InfoList {}

impl InfoList {
    /// # Safety
    /// `first` must be null, or a list that `library` made and that has no other owner.
    pub(super) unsafe fn new(library: Library, first: *mut fi_info) -> Option<Self> {
        NonNull::new(first).map(|first| InfoList { library, first })
    }

    /// The C structure.
    pub(super) fn as_ptr(&self) -> *const fi_info {
        self.first.as_ptr()
    }

    /// The descriptions, best first.
    pub fn iter(&self) -> impl Iterator<Item = Info<'_>> {
        let mut next = Some(self.first);
        std::iter::from_fn(move || {
            let info = next?;
            // SAFETY: an element of the list, which lives as long as `self`.
            next = NonNull::new(unsafe { info.as_ref() }.next);
            Some(Info { info, list: std::marker::PhantomData })
        })
    }

    /// Turns an empty description into what is wanted; returns whether it has all the parts for
    /// that.
    pub(super) fn want(&mut self, wanted: &Wanted) -> bool {
        // SAFETY: borrowed exclusively, and the parts are separate structures that belong to it, or
        // null. The provider's name was null; a copy that C allocated belongs to the description,
        // and is freed with it.
        unsafe {
            let info = self.first.as_mut();
            let (endpoint, domain) = (info.ep_attr.as_mut(), info.domain_attr.as_mut());
            let (tx, rx, fabric) = (info.tx_attr.as_mut(), info.rx_attr.as_mut(), info.fabric_attr.as_mut());
            let (Some(endpoint), Some(domain), Some(tx), Some(rx), Some(fabric)) = (endpoint, domain, tx, rx, fabric)
            else {
                return false;
            };
            (info.caps, info.mode) = (wanted.caps, wanted.mode);
            (endpoint.type_, domain.mr_mode) = (wanted.endpoint, wanted.memory);
            (domain.data_progress, domain.threading) = (wanted.progress, wanted.threading);
            (tx.msg_order, rx.msg_order) = (wanted.order, wanted.order);
            if let Some(provider) = &wanted.provider {
                debug_assert!(fabric.prov_name.is_null());
                fabric.prov_name = libc::strdup(provider.as_ptr());
                return !fabric.prov_name.is_null();
            }
        }
        true
    }
}

/// What a provider must be able to do. Zero, and [`sys::FI_PROGRESS_UNSPEC`](super::sys), leave the
/// choice to the provider. See fi_getinfo(3).
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// `FI_RMA`, `FI_ATOMIC` ...
    pub caps: u64,
    /// What the caller can do for the provider, such as `FI_CONTEXT`.
    pub mode: u64,
    /// `FI_EP_RDM` ...
    pub endpoint: fi_ep_type,
    /// What the caller can do with memory, such as `FI_MR_PROV_KEY`.
    pub memory: i32,
    /// `FI_PROGRESS_AUTO` ...
    pub progress: fi_progress,
    /// The threads that may use its objects, such as `FI_THREAD_SAFE`.
    pub threading: fi_threading,
    /// The order in which messages take effect, such as `FI_ORDER_RMA_WAW`.
    pub order: u64,
    /// The provider, with the providers below it: `tcp;ofi_rxm`.
    pub provider: Option<CString>,
}

impl Drop for InfoList {
    fn drop(&mut self) {
        // SAFETY: made by this library, and not borrowed any more.
        unsafe { self.library.free(self.first.as_ptr()) };
    }
}

impl fmt::Debug for InfoList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// One description.
#[derive(Clone, Copy)]
pub struct Info<'a> {
    info: NonNull<fi_info>,
    list: std::marker::PhantomData<&'a InfoList>,
}

/// A C string; empty if there is none.
///
/// # Safety
/// It must be null, or end with a zero and live for `'a`.
unsafe fn text<'a>(string: *const c_char) -> &'a str {
    if string.is_null() {
        return "";
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(string) }.to_str().unwrap_or_default()
}

/// A structure of C at an address, unless there is none, or one of fewer bytes.
///
/// # Safety
/// It must be null, or have `len` bytes, which are valid for a `T` if they are enough for one.
unsafe fn read<T>(at: *const c_void, len: usize) -> Option<T> {
    if at.is_null() || len < size_of::<T>() {
        return None;
    }
    // SAFETY: as the caller says; it need not be aligned.
    Some(unsafe { at.cast::<T>().read_unaligned() })
}

impl<'a> Info<'a> {
    /// The C structure.
    pub(super) fn as_ptr(&self) -> *const fi_info {
        self.info.as_ptr()
    }

    fn raw(&self) -> &'a fi_info {
        // SAFETY: part of a list that is borrowed for `'a`.
        unsafe { self.info.as_ref() }
    }

    /// The attributes of its domain. libfabric fills this part in all descriptions that it returns.
    #[must_use]
    pub fn domain(&self) -> Option<&'a fi_domain_attr> {
        // SAFETY: null or part of the description.
        unsafe { self.raw().domain_attr.as_ref() }
    }

    /// The transmit attributes. libfabric fills this part in all descriptions that it returns.
    #[must_use]
    pub fn transmit(&self) -> Option<&'a fi_tx_attr> {
        // SAFETY: null or part of the description.
        unsafe { self.raw().tx_attr.as_ref() }
    }

    /// The capabilities, in bits of `FI_MSG`, `FI_RMA` ...
    #[must_use]
    pub fn capabilities(&self) -> u64 {
        self.raw().caps
    }

    /// The kind of its addresses, such as `FI_SOCKADDR_IN`.
    #[must_use]
    pub fn address_format(&self) -> u32 {
        self.raw().addr_format
    }

    /// The internet address of this machine that it uses, if it has one.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        let raw = self.raw();
        let (at, len) = (raw.src_addr.cast_const(), raw.src_addrlen);
        match raw.addr_format {
            FI_SOCKADDR_IN => {
                // SAFETY: the description says which structure is there, of how many bytes, and it is borrowed.
                let address = unsafe { read::<libc::sockaddr_in>(at, len) }?;
                Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
            }
            FI_SOCKADDR_IN6 => {
                // SAFETY: as above.
                let address = unsafe { read::<libc::sockaddr_in6>(at, len) }?;
                Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }

    /// The attributes of its endpoints.
    #[must_use]
    pub fn endpoint(&self) -> Option<&'a fi_ep_attr> {
        // SAFETY: null or part of the description.
        unsafe { self.raw().ep_attr.as_ref() }
    }

    fn fabric(&self) -> Option<&'a fi_fabric_attr> {
        // SAFETY: null or part of the description.
        unsafe { self.raw().fabric_attr.as_ref() }
    }

    /// The provider, with the providers below it: `tcp;ofi_rxm`.
    #[must_use]
    pub fn provider(&self) -> &'a str {
        // SAFETY: part of the description, which is borrowed for `'a`.
        self.fabric().map_or("", |fabric| unsafe { text(fabric.prov_name) })
    }

    /// The network.
    #[must_use]
    pub fn fabric_name(&self) -> &'a str {
        // SAFETY: part of the description, which is borrowed for `'a`.
        self.fabric().map_or("", |fabric| unsafe { text(fabric.name) })
    }

    /// The device.
    #[must_use]
    pub fn domain_name(&self) -> &'a str {
        // SAFETY: part of the description, which is borrowed for `'a`.
        self.domain().map_or("", |domain| unsafe { text(domain.name) })
    }
}

impl fmt::Debug for Info<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} ({})", self.provider(), self.domain_name(), self.fabric_name())
    }
}
