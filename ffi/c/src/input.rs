//! The input of callers: pointers, texts, times, and structures that state their size.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::str::FromStr;
use std::time::Duration;

use crate::status::Failure;

/// A structure for calls. Its first field is its size, of type `usize`, and a structure of zero bytes is valid.
///
/// # Safety
/// Both statements must hold, and the structure must be `repr(C)`.
pub(crate) unsafe trait Structure: Sized {}

/// Returns the size that a structure states.
///
/// # Safety
/// The pointer is NULL or points to a structure that begins with a size.
unsafe fn size_of_given<S: Structure>(given: *const S, name: &str) -> Result<usize, Failure> {
    if given.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    if !given.is_aligned() {
        return Err(Failure::argument(format!("{name} is not aligned as its type")));
    }
    // SAFETY: it is not NULL, so by the caller's promise there is a size.
    let size = unsafe { given.cast::<usize>().read() };
    // A structure many times larger than this one was never initialized.
    if size < size_of::<usize>() || size > 64 * size_of::<S>() {
        return Err(Failure::argument(format!("{name}.size is {size}; set it to sizeof of the structure")));
    }
    Ok(size)
}

/// Returns a copy of a structure, with zeros where the caller's is shorter.
///
/// # Safety
/// The pointer is NULL or points to a structure of the size that it states.
pub(crate) unsafe fn take_structure<S: Structure>(given: *const S, name: &str) -> Result<S, Failure> {
    // SAFETY: by the caller's promise.
    let size = unsafe { size_of_given(given, name)? };
    let mut taken = MaybeUninit::<S>::zeroed();
    // SAFETY: both have `size` bytes, as far as they are copied. A size between two fields' ends belongs to no version,
    // and leaves zeros in part of a number or pointer, which `Structure` allows to be any value.
    unsafe {
        std::ptr::copy_nonoverlapping(given.cast::<u8>(), taken.as_mut_ptr().cast::<u8>(), size.min(size_of::<S>()))
    };
    // A caller of a later version may ask for something that this version does not know.
    // SAFETY: by the caller's promise, there are `size` bytes.
    let beyond = (size_of::<S>()..size).any(|at| unsafe { given.cast::<u8>().add(at).read() } != 0);
    if beyond {
        return Err(Failure::argument(format!("{name} has fields that this version does not know; set them to 0")));
    }
    // SAFETY: zeros are a value of each field.
    Ok(unsafe { taken.assume_init() })
}

/// Writes the part of `filled` that fits the caller's structure, and keeps its size field.
///
/// # Safety
/// The pointer is NULL or points to a structure of the size that it states, which no other thread uses.
pub(crate) unsafe fn give_structure<S: Structure>(to: *mut S, filled: S, name: &str) -> Result<(), Failure> {
    // SAFETY: by the caller's promise.
    let size = unsafe { size_of_given(to, name)? };
    let bytes = size.min(size_of::<S>());
    // SAFETY: the caller's has `size` bytes, and this one all. The first field stays as it is.
    unsafe {
        let from = (&raw const filled).cast::<u8>();
        let skip = size_of::<usize>();
        std::ptr::copy_nonoverlapping(from.add(skip), to.cast::<u8>().add(skip), bytes - skip);
    }
    Ok(())
}

/// Writes a result.
///
/// # Safety
/// The pointer is NULL or points to memory for the result that no other thread uses.
pub(crate) unsafe fn give<T>(to: *mut T, value: T, name: &str) -> Result<(), Failure> {
    check_place(to, name)?;
    // SAFETY: it is not NULL and aligned, so by the caller's promise it points to memory for one.
    unsafe { to.write(value) };
    Ok(())
}

/// Checks, before anything is done, that the call can write its result.
pub(crate) fn check_place<T>(to: *const T, name: &str) -> Result<(), Failure> {
    match (to.is_null(), to.is_aligned()) {
        (true, _) => Err(Failure::argument(format!("{name} is NULL"))),
        (_, false) => Err(Failure::argument(format!("{name} is not aligned as its type"))),
        _ => Ok(()),
    }
}

/// Returns `count` values of an array, which may be NULL if it has none.
///
/// # Safety
/// The pointer is NULL or points to `count` values, which no thread changes during the call.
pub(crate) unsafe fn array<'a, T>(given: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check_place(given, name)?;
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::argument(format!("{name} has more elements than can be addressed")));
    }
    // SAFETY: it is aligned, not NULL, and has `count` values by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(given, count) })
}

/// Returns `count` values of an array that the call writes, which may be NULL if it has none.
///
/// # Safety
/// The pointer is NULL or points to `count` values, which no other thread uses during the call.
pub(crate) unsafe fn array_mut<'a, T>(given: *mut T, count: usize, name: &str) -> Result<&'a mut [T], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: by the caller's promise; the slice is gone at once.
    unsafe { array(given, count, name)? };
    // SAFETY: it is aligned, not NULL, and has `count` values that no other thread uses by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(given, count) })
}

/// Returns a text; `None` for NULL.
///
/// # Safety
/// The pointer is NULL or points to a text that ends with a zero, which no thread changes during the call.
pub(crate) unsafe fn text<'a>(given: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's promise.
    let text = unsafe { CStr::from_ptr(given) };
    text.to_str().map(Some).map_err(|_| Failure::argument(format!("{name} is not text (UTF-8)")))
}

/// Parses a choice that is written as a text; `None` for NULL.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn choice<C: FromStr<Err: ToString>>(given: *const c_char, name: &str) -> Result<Option<C>, Failure> {
    // SAFETY: by the caller's promise.
    let text = unsafe { text(given, name)? };
    let parse = |text: &str| {
        text.parse().map_err(|problem: C::Err| Failure::argument(format!("{name}: {}", problem.to_string())))
    };
    text.map(parse).transpose()
}

/// Converts a time in seconds.
pub(crate) fn seconds(given: f64, name: &str) -> Result<Duration, Failure> {
    if given == f64::INFINITY {
        return Ok(Duration::MAX);
    }
    Duration::try_from_secs_f64(given)
        .map_err(|_| Failure::argument(format!("{name} is {given:?}; use seconds from 0 on, or INFINITY")))
}
