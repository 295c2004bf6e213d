//! Completion channels: what a thread sleeps on until a queue has completions.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::device::Context;
use super::library::{do_not_block, last_error, made};
use super::sys::ibv_comp_channel;

/// A channel. It gets one event each time that a queue of it, which is armed, gets a completion. See
/// ibv_create_comp_channel(3).
pub struct Channel {
    channel: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows calls from any thread, and from several at a time.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// Makes a channel.
    ///
    /// # Errors
    /// The kernel's error, such as too many open files.
    pub fn open(context: Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: live.
        let channel = made(unsafe { (context.library().functions.create_comp_channel)(context.as_ptr()) })?;
        // Made before any other call can fail, so that it is closed.
        let channel = Channel { channel, context };
        do_not_block(channel.fd())?;
        Ok(Arc::new(channel))
    }

    fn fd(&self) -> i32 {
        // SAFETY: live.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    /// The descriptor to wait for events with: it is readable while there is one. Reads of it do
    /// not block.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }

    /// Takes and acknowledges all events that there are, and returns their number. The queues that
    /// they came from are no longer armed. See ibv_get_cq_event(3).
    ///
    /// # Errors
    /// The kernel's error, such as that the device was removed (`EIO`).
    pub fn drain(&self) -> io::Result<usize> {
        let functions = &self.context.library().functions;
        let mut events = 0;
        loop {
            let (mut queue, mut of_caller) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: live; both pointers are written.
            if unsafe { (functions.get_cq_event)(self.as_ptr(), &raw mut queue, &raw mut of_caller) } != 0 {
                let error = last_error();
                return if error.kind() == io::ErrorKind::WouldBlock { Ok(events) } else { Err(error) };
            }
            // SAFETY: a queue is not destroyed before its events are acknowledged; this one is,
            // once.
            unsafe { (functions.ack_cq_events)(queue, 1) };
            events += 1;
        }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: live, and queues that use it keep it alive.
        let _ = unsafe { (self.context.library().functions.destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Channel")
    }
}
