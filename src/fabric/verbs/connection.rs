//! The connection to a peer: its queue pair, and how full its send queue is.
#![allow(unsafe_code)]

use earlybird_ffi::verbs::sys::{IBV_SEND_INLINE, IBV_SEND_SIGNALED};
use earlybird_ffi::verbs::{Local, PostError, QueuePair, Remote, Request, Verb};

use super::handshake::{End, Handshake, Hello, Reaction};
use super::work::WorkRequest;
use crate::time::Time;

/// A reliable connection, or what will be one.
#[derive(Debug)]
pub(super) struct Connection {
    peer: u32,
    pair: QueuePair,
    handshake: Handshake,
    /// Requests that the send queue holds.
    room: u16,
    /// Requests that were posted, and those of them that are over.
    posted: u16,
    completed: u16,
    /// Requests since the last one that completes with an entry.
    unsignaled: u16,
    /// Why an operation has failed: the queue pair carries out nothing any more.
    failure: Option<String>,
}

/// A part of an operation: a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRequest {
    pub(super) verb: Verb,
    /// `None` for no data.
    pub(super) local: Option<Local>,
}

impl SendRequest {
    pub(super) fn new(verb: Verb, local: Local) -> Self {
        SendRequest { verb, local: Some(local) }
    }
}

/// Why a connection takes no request.
#[derive(Debug)]
pub(super) enum Refusal {
    /// There is no free entry, or the peer is not connected yet.
    NotNow,
    /// An operation failed before.
    Failed,
    /// The device's error.
    Device(PostError),
}

impl Connection {
    pub(super) fn new(peer: u32, pair: QueuePair, sequence: u32, room: u32) -> Self {
        let handshake = Handshake::new(End { pair: pair.number(), sequence });
        let room = u16::try_from(room).unwrap_or(u16::MAX);
        Connection { peer, pair, handshake, room, posted: 0, completed: 0, unsignaled: 0, failure: None }
    }

    pub(super) fn pair(&self) -> &QueuePair {
        &self.pair
    }

    pub(super) fn own_end(&self) -> End {
        self.handshake.own()
    }

    /// Whether the peer may not know yet that this rank is connected to it.
    pub(super) fn is_connecting(&self) -> bool {
        !self.handshake.is_ready() && self.failure.is_none()
    }

    pub(super) fn hello(&self, from: (u32, u32)) -> Hello {
        self.handshake.hello(from)
    }

    /// Whether another hello is due now.
    pub(super) fn hello_is_due(&mut self, now: Time) -> bool {
        self.failure.is_none() && self.handshake.is_due(now)
    }

    /// Processes a peer's hello, as [`Handshake::hear`].
    pub(super) fn hear(&mut self, hello: &Hello) -> Option<Reaction> {
        self.handshake.hear(hello)
    }

    /// Posts an operation of some parts, at least one, which completes with the last part's entry.
    ///
    /// # Safety
    /// Memory of the parts must live until the entry was read or the queue pair has ended; until
    /// then nothing else may change what they read, or use what they write.
    #[inline]
    pub(super) unsafe fn post(&mut self, number: usize, parts: &[SendRequest]) -> Result<(), Refusal> {
        let posted = self.posted.wrapping_add(parts.len() as u16);
        let id = WorkRequest::Operation { number, peer: self.peer, posted }.encode();
        // Each request of a connection that has failed has an entry, and an operation must have one.
        let part_of_it = WorkRequest::Unsignaled { peer: self.peer, posted: self.posted }.encode();
        let (last, most_inline) = (parts.len().saturating_sub(1), self.pair.most_inline());
        let request = |index: usize| {
            let part = &parts[index];
            let is_copied = matches!(part.verb, Verb::Send | Verb::Write(_) | Verb::WriteWithImmediate(..))
                && part.local.is_some_and(|local| local.len <= most_inline);
            let inline = if is_copied { IBV_SEND_INLINE } else { 0 };
            let (id, signaled) = if index == last { (id, IBV_SEND_SIGNALED) } else { (part_of_it, 0) };
            Request { id, verb: part.verb, local: part.local, flags: inline | signaled }
        };
        // SAFETY: as the caller says.
        unsafe { self.queue(parts.len(), request) }?;
        self.unsignaled = 0;
        Ok(())
    }

    /// Posts a message of at most [`QueuePair::most_inline`] bytes, which may change when this
    /// returns.
    pub(super) fn inject(&mut self, message: Local) -> Result<(), Refusal> {
        // Entries of the send queue are free again when a later request completes with an entry.
        let signaled = self.unsignaled >= self.room / 4;
        let id = WorkRequest::Unsignaled { peer: self.peer, posted: self.posted.wrapping_add(1) }.encode();
        let flags = IBV_SEND_INLINE | if signaled { IBV_SEND_SIGNALED } else { 0 };
        let request = Request { id, verb: Verb::Send, local: Some(message), flags };
        // SAFETY: the device copies what is inline before the call returns.
        unsafe { self.queue(1, |_| request) }?;
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        Ok(())
    }

    /// Posts a request that does nothing but complete, if the last messages complete without an
    /// entry.
    pub(super) fn flush(&mut self) {
        if self.unsignaled == 0 {
            return;
        }
        let id = WorkRequest::Unsignaled { peer: self.peer, posted: self.posted.wrapping_add(1) }.encode();
        // A write of no bytes needs no key.
        let verb = Verb::Write(Remote { address: 0, key: 0 });
        let request = Request { id, verb, local: None, flags: IBV_SEND_SIGNALED };
        // SAFETY: it names no memory. Without a free entry there is nothing to wait for.
        if unsafe { self.queue(1, |_| request) }.is_ok() {
            self.unsignaled = 0;
        }
    }

    /// # Safety
    /// As [`Connection::post`].
    #[inline]
    unsafe fn queue(&mut self, many: usize, request: impl Fn(usize) -> Request) -> Result<(), Refusal> {
        let free = self.room - self.posted.wrapping_sub(self.completed);
        if self.failure.is_some() {
            return Err(Refusal::Failed);
        }
        if !self.handshake.is_ready() || usize::from(free) < many {
            return Err(Refusal::NotNow);
        }
        // SAFETY: as the caller says.
        match unsafe { self.pair.post(many, request) } {
            Ok(()) => {
                self.posted = self.posted.wrapping_add(many as u16);
                Ok(())
            }
            // The device counts otherwise.
            Err(error) if error.is_full() && error.posted == 0 => Err(Refusal::NotNow),
            Err(error) => {
                // What was posted of the requests has no end.
                self.failure.get_or_insert_with(|| error.to_string());
                Err(Refusal::Device(error))
            }
        }
    }

    /// All requests up to this one are over.
    #[inline]
    pub(super) fn complete(&mut self, upto: u16) {
        self.completed = upto;
    }

    /// A request has failed; those behind it do, too. Returns why the first one has failed.
    pub(super) fn fail(&mut self, reason: impl FnOnce() -> String) -> &str {
        self.failure.get_or_insert_with(reason)
    }

    /// Whether every request that was posted is over, as far as that is known: the last injected
    /// messages complete without an entry.
    pub(super) fn is_idle(&self) -> bool {
        self.failure.is_some() || self.posted == self.completed
    }
}
