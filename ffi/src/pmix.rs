//! A client of PMIx, by which the processes of a job get what one of them has put: <https://pmix.github.io>, version 4 of the
//! standard. The library (`libpmix.so.2`) is the launcher's.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use crate::loader::Shared;

const NAME: &str = "libpmix.so.2";

/// `PMIX_SUCCESS`.
const SUCCESS: c_int = 0;
/// `PMIX_STRING`.
const STRING: u16 = 3;
/// `PMIX_GLOBAL`: for the processes of all hosts.
const GLOBAL: u8 = 3;

/// `pmix_proc_t`: a process, by its job and its rank there.
#[repr(C)]
#[derive(Clone, Copy)]
struct Process {
    job: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`, of which strings and a flag are used here.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

/// Its union, whose largest member, `pmix_envar_t`, has two addresses and a character.
#[repr(C)]
struct Data {
    string: *mut c_char,
    others: [usize; 2],
}

/// `pmix_info_t`: what a call is to do.
#[repr(C)]
struct Directive {
    key: [u8; 512],
    flags: u32,
    value: Value,
}

/// `PMIX_COLLECT_DATA`: after a fence each process has what all have put.
const COLLECT_DATA: &[u8] = b"pmix.collect";
/// `PMIX_BOOL`.
const BOOL: u16 = 1;

type Init = unsafe extern "C" fn(*mut Process, *const c_void, usize) -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const Directive, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Get = unsafe extern "C" fn(*const Process, *const c_char, *const c_void, usize, *mut *mut Value) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;
type Text = unsafe extern "C" fn(c_int) -> *const c_char;

struct Library {
    init: Init,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    finalize: Finalize,
    text: Text,
}

impl Library {
    /// Loads the library from one of these folders, or from the system's path.
    fn load(folders: &[OsString]) -> Result<Self, String> {
        let among = folders.iter().map(|folder| Path::new(folder).join(NAME).into_os_string());
        let mut problem = String::new();
        for file in among.chain([OsStr::new(NAME).to_owned()]) {
            match Shared::open(&file) {
                Ok(library) => return Self::of(&library),
                Err(cause) => problem = cause,
            }
        }
        Err(format!("{NAME} cannot be loaded ({problem}); its folder may be missing in LD_LIBRARY_PATH"))
    }

    fn of(library: &Shared) -> Result<Self, String> {
        let lacks = |symbol: &CStr| format!("{NAME} has no {}", symbol.to_string_lossy());
        // SAFETY: the prototypes are those of pmix.h.
        unsafe {
            Ok(Library {
                init: library.plain(c"PMIx_Init").ok_or_else(|| lacks(c"PMIx_Init"))?,
                put: library.plain(c"PMIx_Put").ok_or_else(|| lacks(c"PMIx_Put"))?,
                commit: library.plain(c"PMIx_Commit").ok_or_else(|| lacks(c"PMIx_Commit"))?,
                fence: library.plain(c"PMIx_Fence").ok_or_else(|| lacks(c"PMIx_Fence"))?,
                get: library.plain(c"PMIx_Get").ok_or_else(|| lacks(c"PMIx_Get"))?,
                finalize: library.plain(c"PMIx_Finalize").ok_or_else(|| lacks(c"PMIx_Finalize"))?,
                text: library.plain(c"PMIx_Error_string").ok_or_else(|| lacks(c"PMIx_Error_string"))?,
            })
        }
    }

    fn done(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: it takes any number, and returns a string that lives for ever.
        let text = unsafe { (self.text)(status) };
        // SAFETY: as above, if it is not null.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        Err(format!("{call} failed: {}", text.unwrap_or_else(|| status.to_string())))
    }

    /// Puts a text for all processes of the job.
    fn publish(&self, key: &CStr, text: &CStr) -> Result<(), String> {
        let mut value = Value { kind: STRING, data: Data { string: text.as_ptr().cast_mut(), others: [0; 2] } };
        // SAFETY: the library is a client; it copies key and value.
        self.done("PMIx_Put", unsafe { (self.put)(GLOBAL, key.as_ptr(), &raw mut value) })?;
        // SAFETY: as above.
        self.done("PMIx_Commit", unsafe { (self.commit)() })
    }

    /// Waits until all processes of the job have come, and gets what they have put.
    fn meet(&self) -> Result<(), String> {
        let mut key = [0; 512];
        key[..COLLECT_DATA.len()].copy_from_slice(COLLECT_DATA);
        // The first byte of the union is the flag.
        let yes = std::ptr::without_provenance_mut(usize::from_le(1));
        let collect =
            Directive { key, flags: 0, value: Value { kind: BOOL, data: Data { string: yes, others: [0; 2] } } };
        // SAFETY: the library is a client. No process is named: it means all of the job.
        self.done("PMIx_Fence", unsafe { (self.fence)(ptr::null(), 0, &raw const collect, 1) })
    }

    /// Gets the text that a process of the job has put.
    fn look_up(&self, process: &Process, key: &CStr) -> Result<String, String> {
        let mut value: *mut Value = ptr::null_mut();
        // SAFETY: the library is a client; it fills `value` if it succeeds.
        let status = unsafe { (self.get)(process, key.as_ptr(), ptr::null(), 0, &raw mut value) };
        self.done("PMIx_Get", status)?;
        // SAFETY: null or a value, which the caller owns from here on.
        let Some(found) = (unsafe { value.as_ref() }) else { return Err("PMIx_Get has no value".to_owned()) };
        let string = found.data.string;
        let text = match found.kind {
            // SAFETY: a value of this kind has a C string.
            STRING if !string.is_null() => Ok(unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()),
            kind => Err(format!("PMIx_Get has a value of type {kind}, not a text")),
        };
        // SAFETY: both are from malloc(3), as `PMIX_VALUE_RELEASE` has it, and are not used any more. Other kinds stay.
        unsafe {
            if found.kind == STRING {
                libc::free(string.cast());
            }
            libc::free(value.cast());
        }
        text
    }
}

/// Gives the text of rank 0 to all ranks of the job: rank 0 puts `mine`, all meet, and the others get it. The library is
/// looked for in `folders`, then on the system's path. Blocks until all ranks have come.
///
/// # Errors
/// The library is missing, the launcher has no PMIx, or what PMIx says of a call.
pub fn share(folders: &[OsString], key: &str, mine: Option<&str>) -> Result<String, String> {
    let c_text = |text: &str| CString::new(text).map_err(|_| "a text with a zero byte".to_owned());
    let (key, mine) = (c_text(key)?, mine.map(|text| Ok::<_, String>((text, c_text(text)?))).transpose()?);
    let library = Library::load(folders)?;
    let mut own = Process { job: [0; 256], rank: 0 };
    // SAFETY: it fills `own`. If MPI or another part of the program is a client already, this counts one more.
    library.done("PMIx_Init", unsafe { (library.init)(&raw mut own, ptr::null(), 0) })?;
    let result = match mine {
        Some((text, copy)) => library.publish(&key, &copy).and_then(|()| library.meet()).map(|()| text.to_owned()),
        None => library.meet().and_then(|()| library.look_up(&Process { rank: 0, ..own }, &key)),
    };
    // SAFETY: belongs to the call of `PMIx_Init` above. The launcher takes a client that ends without it for one that crashed.
    let ended = library.done("PMIx_Finalize", unsafe { (library.finalize)(ptr::null(), 0) });
    result.and_then(|text| ended.map(|()| text))
}
