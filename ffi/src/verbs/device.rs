//! Devices, and access to them (contexts).

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use super::library::{Library, check, do_not_block, errno, last_error, made};
use super::sys::{
    IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_context, ibv_device, ibv_device_attr, ibv_port_attr, ibv_transport_type,
};

/// A list of devices, as the library made it.
struct DeviceList {
    first: NonNull<*mut ibv_device>,
    library: Library,
}

// SAFETY: an array of one owner; the devices may be used from any thread.
unsafe impl Send for DeviceList {}
// SAFETY: through `&` the array is only read.
unsafe impl Sync for DeviceList {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: made by this library; the devices of it keep it alive.
        unsafe { (self.library.functions.free_device_list)(self.first.as_ptr()) };
    }
}

/// A device for InfiniBand, RoCE or iWARP.
#[derive(Clone)]
pub struct Device {
    device: NonNull<ibv_device>,
    /// Keeps it alive, as an open context of it does.
    list: Arc<DeviceList>,
}

// SAFETY: libibverbs allows calls from any thread, and from several at a time.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What carries a device's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand's transport, over InfiniBand or over Ethernet (RoCE).
    InfiniBand,
    /// RDMA over TCP. Its queue pairs need the connection manager librdmacm.
    Iwarp,
    /// Another one, such as that of EFA; the number is of `ibv_transport_type`.
    Other(ibv_transport_type),
}

impl Device {
    pub(super) fn list(library: Library) -> io::Result<Vec<Self>> {
        let mut many = 0;
        // SAFETY: `many` is written.
        let first = unsafe { (library.functions.get_device_list)(&raw mut many) };
        let Some(first) = NonNull::new(first) else {
            let error = last_error();
            // The kernel has no RDMA.
            return if error.raw_os_error() == Some(libc::ENOSYS) { Ok(Vec::new()) } else { Err(error) };
        };
        let list = Arc::new(DeviceList { first, library });
        let many = usize::try_from(many).unwrap_or_default();
        // SAFETY: the list has so many devices.
        let devices = (0..many).filter_map(|index| NonNull::new(unsafe { *first.as_ptr().add(index) }));
        Ok(devices.map(|device| Device { device, list: list.clone() }).collect())
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_device {
        self.device.as_ptr()
    }

    /// Its name, such as `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> String {
        // SAFETY: live; the name ends with a zero and does not change.
        let name = unsafe { CStr::from_ptr((&raw const (*self.device.as_ptr()).name).cast()) };
        name.to_string_lossy().into_owned()
    }

    /// The globally unique identifier of its node, in the host's byte order; 0 where it has none.
    /// See ibv_get_device_guid(3).
    #[must_use]
    pub fn guid(&self) -> u64 {
        // SAFETY: live.
        u64::from_be(unsafe { (self.list.library.functions.get_device_guid)(self.device.as_ptr()) })
    }

    /// What carries its packets.
    #[must_use]
    pub fn transport(&self) -> Transport {
        // SAFETY: live.
        match unsafe { (*self.device.as_ptr()).transport_type } {
            IBV_TRANSPORT_IB => Transport::InfiniBand,
            IBV_TRANSPORT_IWARP => Transport::Iwarp,
            other => Transport::Other(other),
        }
    }

    /// The NUMA node that it is attached to; `None` where the system does not say, as for a device
    /// in software.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.folder().join("device/numa_node")).ok()?;
        // A device of no node has -1.
        text.trim().parse().ok()
    }

    /// Its folder in sysfs.
    fn folder(&self) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        // SAFETY: live; the path ends with a zero and does not change.
        let path = unsafe { CStr::from_ptr((&raw const (*self.device.as_ptr()).ibdev_path).cast()) };
        PathBuf::from(std::ffi::OsStr::from_bytes(path.to_bytes()))
    }

    /// Opens it. See ibv_open_device(3).
    ///
    /// # Errors
    /// The process may not, or the provider cannot.
    pub fn open(&self) -> io::Result<Arc<Context>> {
        let library = self.list.library;
        // SAFETY: live.
        let context = made(unsafe { (library.functions.open_device)(self.device.as_ptr()) })?;
        // Made before any other call can fail, so that it is closed.
        let context = Context { context, device: self.clone() };
        do_not_block(context.event_fd())?;
        Ok(Arc::new(context))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, {:?})", self.name(), self.transport())
    }
}

/// Access to a device. Everything of the device is made from it, directly or not.
pub struct Context {
    context: NonNull<ibv_context>,
    device: Device,
}

// SAFETY: libibverbs allows calls from any thread, and from several at a time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub(super) fn library(&self) -> &Library {
        &self.device.list.library
    }

    /// Its device's folder in sysfs.
    pub(super) fn folder(&self) -> PathBuf {
        self.device.folder()
    }

    /// The descriptor of its events.
    pub(super) fn event_fd(&self) -> i32 {
        // SAFETY: live.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    /// What the device can do, and how much of it. See ibv_query_device(3).
    ///
    /// # Errors
    /// The provider's error.
    pub fn attributes(&self) -> io::Result<ibv_device_attr> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: live; the structure is written. Integers alone are valid when zeroed.
        unsafe {
            check((self.library().functions.query_device)(self.context.as_ptr(), attributes.as_mut_ptr()))?;
            Ok(attributes.assume_init())
        }
    }

    /// The state of a port; ports count from 1. See ibv_query_port(3). `port_cap_flags2` is always 0.
    ///
    /// # Errors
    /// There is no such port (`EINVAL`), or the provider's error.
    pub fn port(&self, port: u8) -> io::Result<ibv_port_attr> {
        let mut attributes = MaybeUninit::zeroed();
        // SAFETY: live; the function writes this structure up to the one field that is younger than
        // itself. Integers alone are valid when zeroed.
        unsafe {
            check((self.library().functions.query_port)(self.context.as_ptr(), port, attributes.as_mut_ptr()))?;
            Ok(attributes.assume_init())
        }
    }

    /// A function of the table that posting and polling use.
    pub(super) fn slot<F>(&self, pick: impl FnOnce(&super::sys::ibv_context_ops) -> Option<F>) -> io::Result<F> {
        // SAFETY: live; the table is complete once the device is open.
        let table = unsafe { &(*self.context.as_ptr()).ops };
        pick(table).ok_or_else(|| errno(libc::EOPNOTSUPP))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: live, and what was made from it keeps it alive. No caller could handle an error.
        let _ = unsafe { (self.library().functions.close_device)(self.context.as_ptr()) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.device.name())
    }
}
