//! What all objects of libfabric have in common.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;

use super::sys::{FI_EAGAIN, FI_EAVAIL, FI_ENOKEY, FI_ENOMEM, FI_ENOSYS, FI_ETOOSMALL, fid};
use crate::abandon;

/// A negative error code of libfabric; [`Library::error_text`](super::Library::error_text) says
/// what it means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(pub c_int);

impl Code {
    /// The resource is busy: make progress and try again.
    pub const AGAIN: Code = Code(-(FI_EAGAIN as c_int));
    /// A completion with an error is there to be read.
    pub const AVAILABLE: Code = Code(-(FI_EAVAIL as c_int));
    /// The provider does not have the function.
    pub const NO_FUNCTION: Code = Code(-(FI_ENOSYS as c_int));
    /// The caller's buffer is too small.
    pub const TOO_SMALL: Code = Code(-(FI_ETOOSMALL as c_int));
    /// Out of memory.
    pub const NO_MEMORY: Code = Code(-(FI_ENOMEM as c_int));
    /// The key is in use.
    pub const NO_KEY: Code = Code(-(FI_ENOKEY as c_int));

    /// A call has not returned and was abandoned, this one or an earlier one.
    pub const NOT_RETURNED: Code = Code(c_int::MIN);

    /// Turns a return value into success or an error.
    #[inline]
    pub(super) fn check(code: isize) -> Result<(), Code> {
        if code >= 0 { Ok(()) } else { Err(Code(code as c_int)) }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({})", self.0)
    }
}

/// A function of an object's table, if the table is long enough to have it: the rule of
/// `FI_CHECK_OP` in the headers, which lets tables grow.
///
/// The pointer must be null, or that of a live table.
macro_rules! slot {
    ($table:expr, $type:ty, $name:ident) => {{
        let table: *const $type = $table;
        if table.is_null() || (*table).size <= core::mem::offset_of!($type, $name) {
            Err($crate::ofi::Code::NO_FUNCTION)
        } else {
            (*table).$name.ok_or($crate::ofi::Code::NO_FUNCTION)
        }
    }};
}
pub(super) use slot;

/// Calls a function of libfabric or of a provider, which may not return.
///
/// # Safety
/// As for [`abandon::call`].
///
/// # Errors
/// [`Code::NOT_RETURNED`].
#[inline]
pub(super) unsafe fn calling<R>(name: &'static CStr, function: impl FnOnce() -> R) -> Result<R, Code> {
    // SAFETY: as the caller says.
    unsafe { abandon::call(name, function) }.map_err(|abandon::Abandoned| Code::NOT_RETURNED)
}

/// Closes an object.
///
/// # Safety
/// It must be live and unused, and no object that depends on it may be left.
pub(super) unsafe fn close(object: *mut fid) -> Result<(), Code> {
    // SAFETY: as the caller says.
    Code::check(unsafe {
        let close = slot!((*object).ops, super::sys::fi_ops, close)?;
        calling(c"fi_close", || close(object))?
    } as isize)
}

/// Binds one object to another.
///
/// # Safety
/// Both must be live.
pub(super) unsafe fn bind(object: *mut fid, other: *mut fid, flags: u64) -> Result<(), Code> {
    // SAFETY: as the caller says.
    Code::check(unsafe {
        let bind = slot!((*object).ops, super::sys::fi_ops, bind)?;
        calling(c"fi_bind", || bind(object, other, flags))?
    } as isize)
}

/// Sends a command to an object.
///
/// # Safety
/// It must be live, and `argument` must be what the command takes.
pub(super) unsafe fn control(object: *mut fid, command: u32, argument: *mut c_void) -> Result<(), Code> {
    // SAFETY: as the caller says.
    Code::check(unsafe {
        let control = slot!((*object).ops, super::sys::fi_ops, control)?;
        calling(c"fi_control", || control(object, command as c_int, argument))?
    } as isize)
}

/// An argument of a function that later libraries may read a little further.
#[repr(C)]
pub(super) struct Padded<T> {
    pub(super) value: T,
    margin: [u64; 4],
}

impl<T> Padded<T> {
    pub(super) fn new(value: T) -> Self {
        Padded { value, margin: [0; 4] }
    }
}
