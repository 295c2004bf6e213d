//! Atomics on cells of 8 bytes in a peer's memory.

use std::ffi::c_void;
use std::fmt;

use super::endpoint::{Endpoint, Local, Remote};
use super::fid::{Code, calling, slot};
use super::sys::{FI_CSWAP, FI_SUM, FI_UINT64, fi_addr_t, fi_datatype, fi_op, fi_ops_atomic, fid_ep};

type Fetch = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    fi_addr_t,
    u64,
    u64,
    fi_datatype,
    fi_op,
    *mut c_void,
) -> isize;
type Compare = unsafe extern "C" fn(
    *mut fid_ep,
    *const c_void,
    usize,
    *mut c_void,
    *const c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    fi_addr_t,
    u64,
    u64,
    fi_datatype,
    fi_op,
    *mut c_void,
) -> isize;

/// The atomics of an endpoint that was opened for `FI_ATOMIC`. See fi_atomic(3).
#[derive(Clone, Copy)]
pub struct Atomics {
    fetch: Fetch,
    compare: Compare,
}

impl Endpoint {
    /// Its atomics.
    ///
    /// # Errors
    /// [`Code::NO_FUNCTION`] where the provider does not add to numbers of 64 bits, or does not
    /// compare and swap them.
    pub fn atomics(&self) -> Result<Atomics, Code> {
        let raw = self.as_ptr();
        // SAFETY: a live endpoint, and the table that belongs to it, or null.
        let (fetch, compare) = unsafe {
            let table = (*raw).atomic;
            let (mut sums, mut swaps) = (0, 0);
            let valid = slot!(table, fi_ops_atomic, readwritevalid)?;
            let code = calling(c"fi_fetch_atomicvalid", || valid(raw, FI_UINT64, FI_SUM, &mut sums))?;
            Code::check(code as isize)?;
            let valid = slot!(table, fi_ops_atomic, compwritevalid)?;
            let code = calling(c"fi_compare_atomicvalid", || valid(raw, FI_UINT64, FI_CSWAP, &mut swaps))?;
            Code::check(code as isize)?;
            if sums == 0 || swaps == 0 {
                return Err(Code::NO_FUNCTION);
            }
            (slot!(table, fi_ops_atomic, readwrite)?, slot!(table, fi_ops_atomic, compwrite)?)
        };
        Ok(Atomics { fetch, compare })
    }
}

impl Atomics {
    /// Adds the number at `add` to a cell. The cell's old value comes to `old`.
    ///
    /// # Safety
    /// The endpoint is the one whose atomics these are. Both words are 8 bytes, aligned to that, and
    /// must be registered if the memory mode says local.
    /// Until the completion of `context` nothing else may change the first or use the second.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub unsafe fn fetch_add(
        &self,
        endpoint: &Endpoint,
        add: Local,
        cell: Remote,
        old: Local,
        context: *mut c_void,
    ) -> Result<(), Code> {
        let Remote { peer, address, key } = cell;
        let (from, to) = ((add.base.cast_const().cast(), add.descriptor), (old.base.cast(), old.descriptor));
        // SAFETY: a live endpoint; the rest is as the caller says.
        Code::check(unsafe {
            let endpoint = endpoint.as_ptr();
            calling(c"fi_fetch_atomic", || {
                (self.fetch)(endpoint, from.0, 1, from.1, to.0, to.1, peer, address, key, FI_UINT64, FI_SUM, context)
            })
        }?)
    }

    /// Gives a cell the number at `new` if it has the one at `expected`. The cell's old value comes
    /// to `old`.
    ///
    /// # Safety
    /// As [`Atomics::fetch_add`]: only the provider may use `old`, and the others stay as they are.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub unsafe fn compare_swap(
        &self,
        endpoint: &Endpoint,
        (expected, new): (Local, Local),
        cell: Remote,
        old: Local,
        context: *mut c_void,
    ) -> Result<(), Code> {
        let Remote { peer, address, key } = cell;
        // SAFETY: a live endpoint; the rest is as the caller says.
        let compare = || unsafe {
            (self.compare)(
                endpoint.as_ptr(),
                new.base.cast_const().cast(),
                1,
                new.descriptor,
                expected.base.cast_const().cast(),
                expected.descriptor,
                old.base.cast(),
                old.descriptor,
                peer,
                address,
                key,
                FI_UINT64,
                FI_CSWAP,
                context,
            )
        };
        // SAFETY: nothing in it has to be dropped.
        Code::check(unsafe { calling(c"fi_compare_atomic", compare) }?)
    }
}

impl fmt::Debug for Atomics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Atomics")
    }
}
