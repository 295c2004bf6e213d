//! Loads the library and its symbols.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fmt;

use super::fid::{Code, calling};
use super::info::{InfoList, Wanted};
use super::sys::{fi_fabric_attr, fi_info, fid_fabric};
use crate::abandon;
use crate::loader::{NoFunction, Shared};
use crate::rights;
use crate::signals::keep_handlers;

/// The name under which every version since 1.0 is installed.
const NAME: &str = "libfabric.so.1";

/// The version of the interface that is requested: 1.17, the version of these bindings.
const VERSION: u32 = 1 << 16 | 17;

/// Why libfabric cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is not installed, or the system cannot load it.
    #[error("{name} cannot be loaded ({cause}); install libfabric (Debian and Ubuntu: apt install libfabric1)")]
    Missing {
        /// The name that was looked for.
        name: String,
        /// The system's error.
        cause: String,
    },
    /// It would follow a variable of the user who started this program, which has more rights than that user.
    #[error(transparent)]
    FollowsVariable(#[from] rights::FollowsVariable),
    /// It lacks a symbol.
    #[error("{name} has no {symbol} of version {version}: it is too old, or no libfabric; install 1.17 or later")]
    TooOld {
        /// The library that was loaded.
        name: String,
        /// The symbol.
        symbol: &'static str,
        /// The symbol's version.
        version: &'static str,
    },
    /// Its version is too old.
    #[error("{name} is libfabric {}.{}; install 1.17 or later", version.0, version.1)]
    OtherVersion {
        /// The library that was loaded.
        name: String,
        /// Major and minor version.
        version: (u32, u32),
    },
}

type GetInfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;

type OpenFabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;

/// A loaded libfabric.
///
/// It is never unloaded: its providers start threads and keep addresses of their own.
#[derive(Clone, Copy)]
pub struct Library {
    version: (u32, u32),
    getinfo: GetInfo,
    fabric: OpenFabric,
    freeinfo: unsafe extern "C" fn(*mut fi_info),
    dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Library {
    /// Loads libfabric from `file`, or from the system's path.
    ///
    /// # Errors
    /// It is missing or too old, and the error says what to install; or it would load what another user names.
    pub fn load(file: Option<&OsStr>) -> Result<Self, LoadError> {
        rights::check_variables()?;
        let file = file.unwrap_or(OsStr::new(NAME));
        let name = file.to_string_lossy().into_owned();
        let shared = Shared::open(file).map_err(|cause| LoadError::Missing { name: name.clone(), cause })?;
        let too_old = |NoFunction { symbol, version }| LoadError::TooOld { name: name.clone(), symbol, version };
        // SAFETY: the C prototypes of these versions are as the types of the fields and of `version`
        // say (fabric.h of 1.17).
        let found = || unsafe {
            // First what only libfabric has, so that another library is named as one.
            let getinfo = shared.function(c"fi_getinfo", c"FABRIC_1.3")?;
            let version = shared.function::<unsafe extern "C" fn() -> u32>(c"fi_version", c"FABRIC_1.0")?();
            let library = Library {
                version: (version >> 16, version & 0xffff),
                getinfo,
                fabric: shared.function(c"fi_fabric", c"FABRIC_1.1")?,
                freeinfo: shared.function(c"fi_freeinfo", c"FABRIC_1.3")?,
                dupinfo: shared.function(c"fi_dupinfo", c"FABRIC_1.3")?,
                strerror: shared.function(c"fi_strerror", c"FABRIC_1.0")?,
            };
            Ok((library, version))
        };
        let (library, version) = found().map_err(too_old)?;
        if version < VERSION {
            return Err(LoadError::OtherVersion { name, version: library.version });
        }
        Ok(library)
    }

    /// Major and minor version of the library.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// What an error code of libfabric means; its sign does not matter.
    #[must_use]
    pub fn error_text(&self, code: c_int) -> String {
        if code == Code::NOT_RETURNED.0 {
            return abandon::first_abandoned().map_or("libfabric did not return".to_owned(), |(call, after)| {
                format!("libfabric has not returned for {:.1} s ({call})", after.as_secs_f64())
            });
        }
        // SAFETY: takes any number, returns a string that lives as long as the library.
        let text = unsafe { CStr::from_ptr((self.strerror)(code.saturating_abs())) };
        text.to_string_lossy().into_owned()
    }

    /// Providers, with their devices, that can do what is wanted, best first.
    ///
    /// # Errors
    /// The negative error code; `-FI_ENODATA` where nothing fits.
    pub fn info(&self, wanted: &Wanted) -> Result<InfoList, c_int> {
        let no_memory = -(super::sys::FI_ENOMEM as c_int);
        // SAFETY: given null, it makes a new description with all its parts.
        let hints = unsafe { (self.dupinfo)(std::ptr::null()) };
        // SAFETY: it was just made, and has no other owner.
        let mut hints = unsafe { InfoList::new(*self, hints) }.ok_or(no_memory)?;
        if !hints.want(wanted) {
            return Err(no_memory);
        }
        let mut found = std::ptr::null_mut();
        // It loads providers.
        let code = keep_handlers(|| {
            // SAFETY: the hints were made by this library and live until the end of this function;
            // `found` is written.
            unsafe {
                calling(c"fi_getinfo", || {
                    (self.getinfo)(VERSION, std::ptr::null(), std::ptr::null(), 0, hints.as_ptr(), &mut found)
                })
            }
        });
        let code = code.map_err(|code| code.0)?;
        if code != 0 {
            return Err(code);
        }
        // SAFETY: a list that belongs to the caller.
        unsafe { InfoList::new(*self, found) }.ok_or(-(super::sys::FI_ENODATA as c_int))
    }

    /// # Safety
    /// `attributes` must be part of a description that this library made.
    ///
    /// # Errors
    /// The call did not return.
    pub(super) unsafe fn open_fabric(
        &self,
        attributes: *mut fi_fabric_attr,
        fabric: &mut *mut fid_fabric,
    ) -> Result<c_int, Code> {
        // SAFETY: as the caller says; `fabric` is written.
        unsafe { calling(c"fi_fabric", || (self.fabric)(attributes, fabric, std::ptr::null_mut())) }
    }

    /// # Safety
    /// `info` must be a list that this library made, and not be used any more.
    pub(super) unsafe fn free(&self, info: *mut fi_info) {
        // SAFETY: as the caller says.
        unsafe { (self.freeinfo)(info) };
    }
}
