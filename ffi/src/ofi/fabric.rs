//! Networks (fabrics) and access to them (domains).

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::fid::{Code, calling, close, slot};
use super::info::Info;
use super::library::Library;
use super::queue::{Queue, Sign};
use super::sys::{fi_ops_domain, fi_ops_fabric, fid, fid_domain, fid_fabric};

/// A network.
pub struct Fabric {
    fabric: NonNull<fid_fabric>,
    library: Library,
}

// SAFETY: libfabric's objects may be used from any thread; from several at a time as far as the
// domain was opened for `FI_THREAD_SAFE`, which `Domain::open` insists on.
unsafe impl Send for Fabric {}
// SAFETY: as above.
unsafe impl Sync for Fabric {}

impl Fabric {
    /// Opens the network of a description.
    ///
    /// # Errors
    /// The provider's error.
    pub fn open(library: &Library, info: Info<'_>) -> Result<Arc<Self>, Code> {
        let mut fabric = ptr::null_mut();
        // SAFETY: the attributes are part of a description of this library; `fabric` is written.
        let code = unsafe { library.open_fabric((*info.as_ptr()).fabric_attr, &mut fabric) }?;
        Code::check(code as isize)?;
        let fabric = NonNull::new(fabric).ok_or(Code::NO_FUNCTION)?;
        Ok(Arc::new(Fabric { fabric, library: *library }))
    }

    /// Its library.
    #[must_use]
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Whether it is safe to sleep on the descriptors of a queue: nothing has happened that they
    /// would not report. See fi_poll(3), fi_trywait.
    ///
    /// # Errors
    /// [`Code::AGAIN`] if there is something to read.
    pub fn try_wait(&self, queue: &Queue) -> Result<(), Code> {
        if queue.sign() == Sign::None {
            // Providers do not expect the call for such a queue.
            return Ok(());
        }
        let mut objects = [queue.fid()];
        // SAFETY: both objects are live, and the array has the stated length.
        unsafe {
            let fabric = self.fabric.as_ptr();
            let trywait = slot!((*fabric).ops, fi_ops_fabric, trywait)?;
            Code::check(calling(c"fi_trywait", || trywait(fabric, objects.as_mut_ptr(), 1))? as isize)
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // SAFETY: live, and its dependents keep it alive. No caller could handle an error.
        let _ = unsafe { close(&raw mut (*self.fabric.as_ptr()).fid) };
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fabric")
    }
}

/// Access to a network, by a device.
pub struct Domain {
    domain: NonNull<fid_domain>,
    fabric: Arc<Fabric>,
}

// SAFETY: opened for `FI_THREAD_SAFE`.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Opens the domain of a description.
    ///
    /// # Errors
    /// The provider's error; [`Code::NO_FUNCTION`] where the description is of a domain that not
    /// every thread may use.
    pub fn open(fabric: Arc<Fabric>, info: Info<'_>) -> Result<Arc<Self>, Code> {
        if info.domain().is_none_or(|domain| domain.threading != super::sys::FI_THREAD_SAFE) {
            return Err(Code::NO_FUNCTION);
        }
        let mut domain = ptr::null_mut();
        // SAFETY: the fabric is live and of the same description; `domain` is written.
        unsafe {
            let raw = fabric.fabric.as_ptr();
            let open = slot!((*raw).ops, fi_ops_fabric, domain)?;
            let code = calling(c"fi_domain", || open(raw, info.as_ptr().cast_mut(), &mut domain, ptr::null_mut()))?;
            Code::check(code as isize)?;
        }
        let domain = NonNull::new(domain).ok_or(Code::NO_FUNCTION)?;
        Ok(Arc::new(Domain { domain, fabric }))
    }

    /// Its network.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    pub(super) fn as_ptr(&self) -> *mut fid_domain {
        self.domain.as_ptr()
    }

    pub(super) fn fid(&self) -> *mut fid {
        // SAFETY: live; only the address is taken.
        unsafe { &raw mut (*self.domain.as_ptr()).fid }
    }

    /// Makes an object of the domain by one of its functions.
    pub(super) fn make<O>(
        &self,
        make: impl FnOnce(*const fi_ops_domain, *mut fid_domain, *mut *mut O) -> Result<i32, Code>,
    ) -> Result<NonNull<O>, Code> {
        let mut object = ptr::null_mut();
        let domain = self.domain.as_ptr();
        // SAFETY: live.
        let table = unsafe { (*domain).ops };
        Code::check(make(table, domain, &mut object)? as isize)?;
        NonNull::new(object).ok_or(Code::NO_FUNCTION)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: live, and its dependents keep it alive.
        let _ = unsafe { close(self.fid()) };
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Domain")
    }
}
