//! Events of a device: what happens to a queue pair, a queue or a port, and is no completion.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use super::device::Context;
use super::library::{last_error, text};
use super::sys::{
    IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_COMM_EST, IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PATH_MIG,
    IBV_EVENT_PATH_MIG_ERR, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SM_CHANGE, IBV_EVENT_SQ_DRAINED,
    ibv_event_type,
};

/// An event. See ibv_get_async_event(3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `IBV_EVENT_QP_FATAL` ...
    pub kind: ibv_event_type,
    /// What the library calls this kind.
    pub text: String,
    /// The number of the queue pair, where it concerns one.
    pub queue_pair: Option<u32>,
    /// The port, where it concerns one.
    pub port: Option<u8>,
}

impl Context {
    /// The descriptor to wait for events with: it is readable while there is one. Reads of it do
    /// not block.
    #[must_use]
    pub fn event_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.event_fd()) }
    }

    /// The next event, if there is one. It is acknowledged: objects that it concerns can be
    /// dropped.
    ///
    /// # Errors
    /// The kernel's error, such as that the device was removed (`EIO`).
    pub fn next_event(&self) -> io::Result<Option<Event>> {
        let functions = &self.library().functions;
        let mut event = MaybeUninit::zeroed();
        // SAFETY: live; the event is written.
        if unsafe { (functions.get_async_event)(self.as_ptr(), event.as_mut_ptr()) } != 0 {
            let error = last_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        // SAFETY: written, as the call succeeded; valid when zeroed, too.
        let mut event = unsafe { event.assume_init() };
        let kind = event.event_type;
        // SAFETY: an event of such a kind has this element. A queue pair is not destroyed before its
        // events are acknowledged. The text belongs to the library, which knows every number.
        let (queue_pair, port, text) = unsafe {
            let queue_pair = of_queue_pair(kind).then(|| (*event.element.qp).qp_num);
            let port = of_port(kind).then_some(event.element.port_num as u8);
            (queue_pair, port, text((functions.event_type_str)(kind)))
        };
        // SAFETY: as it was gotten, and once.
        unsafe { (functions.ack_async_event)(&raw mut event) };
        Ok(Some(Event { kind, text, queue_pair, port }))
    }
}

fn of_queue_pair(kind: ibv_event_type) -> bool {
    matches!(
        kind,
        IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED
    )
}

fn of_port(kind: ibv_event_type) -> bool {
    matches!(
        kind,
        IBV_EVENT_PORT_ACTIVE
            | IBV_EVENT_PORT_ERR
            | IBV_EVENT_LID_CHANGE
            | IBV_EVENT_PKEY_CHANGE
            | IBV_EVENT_SM_CHANGE
            | IBV_EVENT_CLIENT_REREGISTER
            | IBV_EVENT_GID_CHANGE
    )
}
