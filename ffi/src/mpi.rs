//! Whether MPI is at work in this process, which then owns the conversation with the launcher.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;

/// The state of MPI in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    /// No library of MPI is loaded.
    Absent,
    /// A library is loaded, and not initialised.
    Loaded,
    /// `MPI_Init` has returned.
    Initialised,
    /// `MPI_Finalize` has returned, too.
    Finalised,
}

/// Returns the state of MPI in this process.
#[must_use]
pub fn state() -> Mpi {
    let mut files: Vec<CString> = Vec::new();
    // SAFETY: the callback gets the vector, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut files).cast()) };
    let mut state = Mpi::Absent;
    for file in files {
        // SAFETY: a C string; with this flag it loads nothing, and only counts what is loaded.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        let Some(handle) = NonNull::new(handle) else { continue };
        match (says(handle, c"MPI_Initialized"), says(handle, c"MPI_Finalized")) {
            (_, Some(true)) => return Mpi::Finalised,
            (Some(true), _) => return Mpi::Initialised,
            (Some(false), _) => state = Mpi::Loaded,
            (None, _) => {}
        }
    }
    state
}

/// Returns what a question of MPI without arguments is answered; `None` if the library has no such question.
fn says(library: NonNull<c_void>, question: &CStr) -> Option<bool> {
    // SAFETY: the handle of a loaded library, which is never closed here, so that the function stays.
    let found = NonNull::new(unsafe { libc::dlsym(library.as_ptr(), question.as_ptr()) })?;
    // SAFETY: the prototype of `MPI_Initialized` and `MPI_Finalized`.
    let ask: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute::<NonNull<c_void>, _>(found) };
    let mut flag = 0;
    // SAFETY: MPI allows these calls at any time, on any thread.
    unsafe { ask(&raw mut flag) };
    Some(flag != 0)
}

/// Adds the name of a loaded file to a vector if MPI's libraries have such names.
///
/// # Safety
/// `info` must be valid, and `files` the address of a `Vec<CString>`.
unsafe extern "C" fn collect(info: *mut libc::dl_phdr_info, _: usize, files: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    let (name, files) = unsafe { ((*info).dlpi_name.cast::<c_char>(), &mut *files.cast::<Vec<CString>>()) };
    if !name.is_null() {
        // SAFETY: a C string of the loader's.
        let name = unsafe { CStr::from_ptr(name) };
        let file = name.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if file.starts_with(b"libmpi") {
            files.push(name.to_owned());
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_have_no_mpi() {
        assert_eq!(state(), Mpi::Absent);
    }
}
