//! A device of a rank at work: its connections, its queues, and what they report.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use earlybird_ffi::verbs::sys::{IBV_WC_SUCCESS, ibv_wc};
use earlybird_ffi::verbs::{self, Capacity, Channel, Domain, NO_COMPLETION, Queue, QueuePair, ReceiveQueue};
use rustix::event::PollFlags;

use super::address::Address;
use super::code::Code;
use super::connection::{Connection, Refusal};
use super::connections::Connections;
use super::device::Port;
use super::events::{Broken, Events};
use super::registration::{Failed, Registrar};
use super::settings::{Depths, INLINE};
use super::work::WorkRequest;
use crate::error::Error;
use crate::fabric::net::{Posted, QueueEntry, Trouble, Watched};

/// The queues of a rank on one device. A field is dropped before those that it depends on.
pub(super) struct Rail {
    pub(super) connections: Connections,
    pub(super) events: Events,
    receive_queue: Arc<ReceiveQueue>,
    pub(super) queue: Arc<Queue>,
    channel: Arc<Channel>,
    entries: [ibv_wc; 16],
    read: Range<usize>,
    domain: Arc<Domain>,
    /// Bytes of a message that the device takes inline.
    most_inline: u32,
}

impl fmt::Debug for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rail").field("connections", &self.connections).finish_non_exhaustive()
    }
}

// SAFETY: the addresses in `entries` are not used.
unsafe impl Send for Rail {}

impl Rail {
    /// Opens the queues of a rank on a port, for the rail of this number; peers may do so much over its connections.
    pub(super) fn open(
        (rank, ranks): (u32, u32),
        rail: u32,
        port: Port,
        depths: Depths,
        access: u32,
    ) -> Result<Self, Failed> {
        let code = |cause: io::Error| Failed::Code(Code::of(&cause));
        let Depths { receives, sends, completions: entries } = depths;
        let entries = u32::try_from(entries).ok().filter(|&entries| entries <= port.most_entries).ok_or_else(|| {
            let most = port.most_entries;
            let cause = format!("a world of {ranks} ranks takes a completion queue of {entries} entries, and {most} are the most of the device");
            Failed::System(Error::join(rank, cause))
        })?;
        let domain = Domain::open(port.context.clone()).map_err(code)?;
        let channel = Channel::open(port.context.clone()).map_err(code)?;
        let queue = Queue::open(port.context.clone(), entries, Some(channel.clone())).map_err(code)?;
        let receive_queue = ReceiveQueue::open(domain.clone(), receives as u32).map_err(code)?;
        let capacity = Capacity { sends, inline: INLINE };
        // The first one tells what the device grants, and that it has reliable connections at all.
        let trial = |inline| {
            let capacity = Capacity { inline, ..capacity };
            let trial = QueuePair::open_reliable(domain.clone(), queue.clone(), &receive_queue, capacity)?;
            Ok((capacity, trial.most_inline()))
        };
        let (capacity, most_inline) = trial(INLINE).or_else(|_| trial(0)).map_err(code)?;
        let events = Events::new(rank, &port);
        let registrar = Registrar::new(rank, domain.clone(), None);
        let queues = (queue.clone(), receive_queue.clone());
        let connections = Connections::open((rank, rail), port, &registrar, queues, (capacity, access))?;
        Ok(Rail {
            connections,
            events,
            receive_queue,
            queue,
            channel,
            entries: [NO_COMPLETION; 16],
            read: 0..0,
            domain,
            most_inline,
        })
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// What the other ranks must know of this one.
    pub(super) fn address(&self) -> &Address {
        self.connections.address()
    }

    pub(super) fn most_inline(&self) -> u32 {
        self.most_inline
    }

    /// What to sleep on.
    pub(super) fn watched(&self) -> Result<Watched, Failed> {
        let descriptor = self.channel.descriptor().try_clone_to_owned();
        let descriptor = descriptor.map_err(|cause| Failed::Code(Code::of(&cause)))?;
        Ok(Watched { descriptor, events: PollFlags::IN.bits().cast_signed() })
    }

    /// Posts something by the connection to a peer, as [`Connections::at`].
    #[inline]
    pub(super) fn at(&mut self, peer: u32, post: impl FnOnce(&mut Connection) -> Result<(), Refusal>) -> Posted<Code> {
        self.connections.at(peer, post)
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// Until its entry was read or the rail has ended, the memory must live and nothing may use it.
    pub(super) unsafe fn post_receive(&self, to: verbs::Local, number: usize) -> Result<(), Code> {
        // SAFETY: as the caller says.
        unsafe { self.receive_queue.post(to, WorkRequest::Receive { number }.encode()) }
            .map_err(|cause| Code::of(&cause))
    }

    /// Goes on with handshakes, and reads the completion queue.
    pub(super) fn poll(&mut self) -> Result<(), Code> {
        self.connections.say_hellos();
        self.fill()
    }

    /// Reads the completion queue.
    pub(super) fn fill(&mut self) -> Result<(), Code> {
        if self.read.is_empty() {
            self.read = 0..self.queue.poll(&mut self.entries).map_err(|cause| Code::of(&cause))?;
        }
        Ok(())
    }

    /// Whether all that was read has been taken.
    #[inline]
    pub(super) fn was_read(&self) -> bool {
        self.read.is_empty()
    }

    /// The next completion that was read.
    #[inline]
    pub(super) fn next(&mut self) -> Option<ibv_wc> {
        self.read.next().map(|index| self.entries[index])
    }

    /// What a completion of anything but a receive means for those above, if it means something; and why the device does
    /// not take a buffer back, if it does not.
    pub(super) fn process(&mut self, work: WorkRequest, completion: &ibv_wc) -> (Option<QueueEntry>, Option<Code>) {
        let failed = completion.status != IBV_WC_SUCCESS;
        let reason = || self.queue.status_text(completion.status);
        let entry = match work {
            WorkRequest::Operation { number, peer, posted } => {
                Some(match self.connections.complete(peer, posted, failed.then_some(reason)) {
                    None => QueueEntry::Done { number, len: 0 },
                    Some(reason) => QueueEntry::Failed { number, reason: reason.to_owned() },
                })
            }
            WorkRequest::Unsignaled { peer, posted } => {
                let reason = self.connections.complete(peer, posted, failed.then_some(reason));
                reason.map(|reason| QueueEntry::Unreachable { peer, reason: reason.to_owned() })
            }
            WorkRequest::HelloSent { buffer } => {
                self.connections.hello_is_sent(buffer);
                None
            }
            WorkRequest::Hello { buffer } => {
                let len = if failed { 0 } else { completion.byte_len as usize };
                return (None, self.connections.hear(buffer, len).err());
            }
            WorkRequest::Receive { .. } => None,
        };
        (entry, None)
    }

    /// What an event means for those above.
    pub(super) fn explain(&mut self, (broken, reason): (Broken, String)) -> Trouble {
        let peer = match broken {
            Broken::Device => None,
            Broken::Connection(pair) => self.connections.fail(pair, &reason),
        };
        Trouble { peer, reason }
    }

    /// Whether nothing is there to read, so that the next completion is announced by an event.
    pub(super) fn may_sleep(&mut self) -> bool {
        let armed = self.channel.drain().is_ok() && self.queue.arm(false).is_ok();
        // What was there before is announced by no event.
        armed && self.fill().is_ok() && self.read.is_empty()
    }
}
