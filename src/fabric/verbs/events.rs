//! What a device reports by itself: events of its queues, connections and ports, which end no
//! operation.
#![forbid(unsafe_code)]

use std::sync::Arc;

use earlybird_ffi::verbs::sys::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SRQ_ERR,
};
use earlybird_ffi::verbs::{Context, Event};

use super::device::Port;

/// What an event reports as broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// All that this rank does with the device.
    Device,
    /// The connection of the queue pair with this number.
    Connection(u32),
}

fn broken_by(event: &Event) -> Option<Broken> {
    match event.kind {
        // A rank has one queue of each kind.
        IBV_EVENT_DEVICE_FATAL | IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR => Some(Broken::Device),
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
            Some(event.queue_pair.map_or(Broken::Device, Broken::Connection))
        }
        _ => None,
    }
}

/// The events of a rank's device.
#[derive(Debug)]
pub(super) struct Events {
    rank: u32,
    context: Arc<Context>,
    device: String,
    port: u8,
    /// The last event of the port said so.
    is_port_down: bool,
    /// The kernel tells no more events.
    have_ended: bool,
}

impl Events {
    pub(super) fn new(rank: u32, port: &Port) -> Self {
        let (context, device, port) = (port.context.clone(), port.device.clone(), port.number);
        Events { rank, context, device, port, is_port_down: false, have_ended: false }
    }

    /// What the next event reports as broken, and a text for it. Events before it are taken.
    pub(super) fn next(&mut self) -> Option<(Broken, String)> {
        while !self.have_ended {
            match self.context.next_event() {
                Ok(Some(event)) => match self.take(&event) {
                    Some(broken) => return Some((broken, format!("{} reports: {}", self.device, event.text))),
                    None => continue,
                },
                Ok(None) => break,
                Err(cause) => {
                    self.have_ended = true;
                    return Some((Broken::Device, format!("{} tells no more events: {cause}", self.device)));
                }
            }
        }
        None
    }

    /// What an event reports as broken. A port may come up again before peers give up.
    pub(super) fn take(&mut self, event: &Event) -> Option<Broken> {
        let Events { rank, device, .. } = self;
        match event.kind {
            IBV_EVENT_PORT_ERR if event.port == Some(self.port) => {
                tracing::warn!(rank, device, port = self.port, "the port is down");
                self.is_port_down = true;
            }
            IBV_EVENT_PORT_ACTIVE if event.port == Some(self.port) => {
                tracing::debug!(rank, device, port = self.port, "the port is active");
                self.is_port_down = false;
            }
            _ => tracing::debug!(rank, device, port = event.port, event = event.text, "reports"),
        }
        broken_by(event)
    }

    /// That the port is down, if it is.
    pub(super) fn port_down(&self) -> Option<String> {
        self.is_port_down.then(|| format!("port {} of {} is down at rank {}", self.port, self.device, self.rank))
    }
}

#[cfg(test)]
mod tests {
    use earlybird_ffi::verbs::sys::{
        IBV_EVENT_COMM_EST, IBV_EVENT_GID_CHANGE, IBV_EVENT_QP_LAST_WQE_REACHED, ibv_event_type,
    };

    use super::*;

    fn event(kind: ibv_event_type, queue_pair: Option<u32>, port: Option<u8>) -> Event {
        Event { kind, text: String::new(), queue_pair, port }
    }

    #[test]
    fn an_event_breaks_as_little_as_it_can() {
        for kind in [IBV_EVENT_DEVICE_FATAL, IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR] {
            assert_eq!(broken_by(&event(kind, None, None)), Some(Broken::Device), "{kind}");
        }
        for kind in [IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR] {
            assert_eq!(broken_by(&event(kind, Some(7), None)), Some(Broken::Connection(7)), "{kind}");
        }
        for kind in [IBV_EVENT_COMM_EST, IBV_EVENT_QP_LAST_WQE_REACHED] {
            assert_eq!(broken_by(&event(kind, Some(7), None)), None, "{kind}");
        }
        for kind in [IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE] {
            assert_eq!(broken_by(&event(kind, None, Some(1))), None, "{kind}");
        }
    }
}
