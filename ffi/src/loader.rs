//! Loads shared libraries, and finds functions of theirs by name and version.

use std::ffi::{CStr, OsStr, c_void};
use std::ptr::NonNull;

use crate::signals::keep_handlers;

/// A loaded library. It is never unloaded: libraries of this kind start threads, and load others,
/// that keep addresses of their own.
pub(crate) struct Shared {
    handle: NonNull<c_void>,
}

/// A function that a library does not have.
pub(crate) struct NoFunction {
    /// Its name.
    pub(crate) symbol: &'static str,
    /// The version of the function.
    pub(crate) version: &'static str,
}

impl Shared {
    /// Loads a library from a path, or by its name from the system's path.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn open(file: &OsStr) -> Result<Self, String> {
        // SAFETY: runs the initialisers of the library. Those of the libraries that are loaded by
        // name only read the environment and set up tables; a caller that names another file
        // vouches for it.
        let library = keep_handlers(|| unsafe { libloading::os::unix::Library::new(file) });
        let library = library.map_err(|error| reason(&error))?;
        NonNull::new(library.into_raw()).map(|handle| Shared { handle }).ok_or_else(String::new)
    }

    /// Finds a function. A library may have several of one name, for programs that were compiled
    /// at different times.
    ///
    /// # Safety
    /// `F` must be a function pointer of the C prototype of that version.
    ///
    /// # Errors
    /// The library does not have it.
    pub(crate) unsafe fn function<F: Copy>(
        &self,
        symbol: &'static CStr,
        version: &'static CStr,
    ) -> Result<F, NoFunction> {
        let text = |name: &'static CStr| name.to_str().unwrap_or_default();
        // SAFETY: the handle is that of a library that is never closed, and the caller says of which type the function is.
        let found = unsafe { function_at(versioned(self.handle.as_ptr(), symbol, version)) };
        found.ok_or(NoFunction { symbol: text(symbol), version: text(version) })
    }

    /// Finds a function of a library that has one of each name.
    ///
    /// # Safety
    /// `F` must be a function pointer of its C prototype.
    pub(crate) unsafe fn plain<F: Copy>(&self, symbol: &CStr) -> Option<F> {
        // SAFETY: the handle is that of a library that is never closed, and the caller says of which type the function is.
        unsafe { function_at(libc::dlsym(self.handle.as_ptr(), symbol.as_ptr())) }
    }
}

/// Returns the function at an address; `None` at null.
///
/// # Safety
/// A function of the type `F` must be there.
unsafe fn function_at<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = NonNull::new(address)?;
    // SAFETY: the address of a function of this type, as the caller says; the sizes are equal.
    Some(unsafe { std::mem::transmute_copy::<NonNull<c_void>, F>(&address) })
}

/// Finds a symbol of a version.
///
/// # Safety
/// `handle` must be that of an open library.
#[cfg(target_env = "gnu")]
unsafe fn versioned(handle: *mut c_void, symbol: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: as the caller says; both are C strings.
    unsafe { libc::dlvsym(handle, symbol.as_ptr(), version.as_ptr()) }
}

/// Other C libraries cannot tell versions apart: it finds nothing, rather than the wrong symbol.
///
/// # Safety
/// None is needed here.
#[cfg(not(target_env = "gnu"))]
unsafe fn versioned(_: *mut c_void, _: &CStr, _: &CStr) -> *mut c_void {
    std::ptr::null_mut()
}

/// The system's error, which libloading keeps as the source of its own.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
