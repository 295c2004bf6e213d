//! Loads the library and its functions, and turns what they return into errors.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::io;
use std::ptr::NonNull;

use super::device::Device;
use super::sys::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr,
    ibv_event_type, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq,
    ibv_srq_init_attr, ibv_wc_status,
};
use crate::loader::{NoFunction, Shared};
use crate::rights;

/// The name under which every version since 1.0 is installed.
const NAME: &str = "libibverbs.so.1";

/// Why libibverbs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is not installed, or the system cannot load it.
    #[error(
        "{name} cannot be loaded ({cause}); install libibverbs \
         (Debian and Ubuntu: apt install libibverbs1 ibverbs-providers)"
    )]
    Missing {
        /// The name that was looked for.
        name: String,
        /// The system's error.
        cause: String,
    },
    /// It would follow a variable of the user who started this program, which has more rights than that user.
    #[error(transparent)]
    FollowsVariable(#[from] rights::FollowsVariable),
    /// It lacks a function.
    #[error(
        "{name} has no {symbol} of version {version}: it is too old, or no libibverbs; install a newer one \
         (Debian and Ubuntu: apt install libibverbs1 ibverbs-providers)"
    )]
    TooOld {
        /// The library that was loaded.
        name: String,
        /// The function.
        symbol: &'static str,
        /// The function's version.
        version: &'static str,
    },
}

/// The functions that are used: the field, its C prototype, the symbol and its version, and whether
/// the libraries that are supported may lack it.
macro_rules! functions {
    ($(
        $field:ident: fn($($argument:ty),*) $(-> $result:ty)? = $symbol:literal $version:literal $(or $none:ident)?;
    )*) => {
        /// Functions of the library.
        #[derive(Clone, Copy)]
        pub(super) struct Functions {
            $(pub(super) $field: functions!(@field unsafe extern "C" fn($($argument),*) $(-> $result)? $(, $none)?),)*
        }

        impl Functions {
            fn find(shared: &Shared) -> Result<Self, NoFunction> {
                // SAFETY: the C prototypes of these versions are as the list says (verbs.h of 44).
                unsafe { Ok(Functions { $($field: functions!(@find shared, $symbol, $version $(, $none)?),)* }) }
            }
        }
    };
    (@field $prototype:ty) => { $prototype };
    (@field $prototype:ty, None) => { Option<$prototype> };
    (@find $shared:ident, $symbol:literal, $version:literal) => { $shared.function($symbol, $version)? };
    (@find $shared:ident, $symbol:literal, $version:literal, None) => { $shared.function($symbol, $version).ok() };
}

functions! {
    fork_init: fn() -> c_int = c"ibv_fork_init" c"IBVERBS_1.1";
    get_device_list: fn(*mut c_int) -> *mut *mut ibv_device = c"ibv_get_device_list" c"IBVERBS_1.1";
    free_device_list: fn(*mut *mut ibv_device) = c"ibv_free_device_list" c"IBVERBS_1.1";
    get_device_guid: fn(*mut ibv_device) -> u64 = c"ibv_get_device_guid" c"IBVERBS_1.1";
    open_device: fn(*mut ibv_device) -> *mut ibv_context = c"ibv_open_device" c"IBVERBS_1.1";
    close_device: fn(*mut ibv_context) -> c_int = c"ibv_close_device" c"IBVERBS_1.1";
    query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int = c"ibv_query_device" c"IBVERBS_1.1";
    query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int = c"ibv_query_port" c"IBVERBS_1.1";
    query_gid_table: fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize
        = c"_ibv_query_gid_table" c"IBVERBS_1.11" or None;
    get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int = c"ibv_get_async_event" c"IBVERBS_1.1";
    ack_async_event: fn(*mut ibv_async_event) = c"ibv_ack_async_event" c"IBVERBS_1.1";
    event_type_str: fn(ibv_event_type) -> *const c_char = c"ibv_event_type_str" c"IBVERBS_1.1";
    alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd = c"ibv_alloc_pd" c"IBVERBS_1.1";
    dealloc_pd: fn(*mut ibv_pd) -> c_int = c"ibv_dealloc_pd" c"IBVERBS_1.1";
    reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr = c"ibv_reg_mr" c"IBVERBS_1.1";
    reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr
        = c"ibv_reg_mr_iova2" c"IBVERBS_1.8" or None;
    dereg_mr: fn(*mut ibv_mr) -> c_int = c"ibv_dereg_mr" c"IBVERBS_1.1";
    create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel = c"ibv_create_comp_channel" c"IBVERBS_1.0";
    destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int = c"ibv_destroy_comp_channel" c"IBVERBS_1.0";
    get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int
        = c"ibv_get_cq_event" c"IBVERBS_1.1";
    ack_cq_events: fn(*mut ibv_cq, c_uint) = c"ibv_ack_cq_events" c"IBVERBS_1.1";
    create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq
        = c"ibv_create_cq" c"IBVERBS_1.1";
    destroy_cq: fn(*mut ibv_cq) -> c_int = c"ibv_destroy_cq" c"IBVERBS_1.1";
    wc_status_str: fn(ibv_wc_status) -> *const c_char = c"ibv_wc_status_str" c"IBVERBS_1.1";
    create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq = c"ibv_create_srq" c"IBVERBS_1.1";
    destroy_srq: fn(*mut ibv_srq) -> c_int = c"ibv_destroy_srq" c"IBVERBS_1.1";
    create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp = c"ibv_create_qp" c"IBVERBS_1.1";
    modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int = c"ibv_modify_qp" c"IBVERBS_1.1";
    destroy_qp: fn(*mut ibv_qp) -> c_int = c"ibv_destroy_qp" c"IBVERBS_1.1";
    create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah = c"ibv_create_ah" c"IBVERBS_1.1";
    destroy_ah: fn(*mut ibv_ah) -> c_int = c"ibv_destroy_ah" c"IBVERBS_1.1";
}

/// A loaded libibverbs.
///
/// It is never unloaded, and loads the providers of the devices that it finds.
#[derive(Clone, Copy)]
pub struct Library {
    pub(super) functions: Functions,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Library")
    }
}

impl Library {
    /// Loads libibverbs from `file`, or from the system's path.
    ///
    /// # Errors
    /// It is missing or too old; the error says what to install.
    pub fn load(file: Option<&OsStr>) -> Result<Self, LoadError> {
        rights::check_variables()?;
        let file = file.unwrap_or(OsStr::new(NAME));
        let name = file.to_string_lossy().into_owned();
        let shared = match Shared::open(file) {
            Ok(shared) => shared,
            Err(cause) => return Err(LoadError::Missing { name, cause }),
        };
        match Functions::find(&shared) {
            Ok(functions) => Ok(Library { functions }),
            Err(NoFunction { symbol, version }) => Err(LoadError::TooOld { name, symbol, version }),
        }
    }

    /// Makes a later fork(2) safe for memory that devices use, on kernels that need it. It must be
    /// called before every other call but [`Library::load`]. See ibv_fork_init(3).
    ///
    /// # Errors
    /// The kernel cannot do that, or memory is registered already (`EINVAL`).
    pub fn fork_init(&self) -> io::Result<()> {
        // SAFETY: takes nothing.
        check(unsafe { (self.functions.fork_init)() })
    }

    /// The devices that this process sees, also those without an active port. See
    /// ibv_get_device_list(3). A kernel without RDMA has none.
    ///
    /// # Errors
    /// The list cannot be read (`EPERM`, `ENOMEM`).
    pub fn devices(&self) -> io::Result<Vec<Device>> {
        Device::list(*self)
    }
}

/// An errno value as an error. Providers that return a negative one mean the same.
pub(super) fn errno(code: c_int) -> io::Error {
    // -1 is no value: it says that the thread's `errno` has it.
    if code == -1 { last_error() } else { io::Error::from_raw_os_error(code.saturating_abs()) }
}

/// Turns an errno value into success or an error.
pub(super) fn check(code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(errno(code)) }
}

/// Turns the object that a function made, or null with `errno` set, into success or an error.
pub(super) fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(last_error)
}

/// The thread's `errno`; some providers fail and do not set it.
pub(super) fn last_error() -> io::Error {
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(0) { io::Error::from_raw_os_error(libc::EIO) } else { error }
}

/// What the caller passed makes no sense.
pub(super) fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// A copy of a text of the library.
///
/// # Safety
/// It must be null, or end with a zero.
pub(super) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Makes reads of a descriptor return at once.
///
/// # Errors
/// It is not open.
pub(super) fn do_not_block(descriptor: c_int) -> io::Result<()> {
    // SAFETY: takes any number; no memory is passed.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
