//! Sends and receives hellos under seals, by an unreliable datagram queue pair.
#![allow(unsafe_code)]

use std::sync::Arc;

use earlybird_ffi::verbs::sys::IBV_SEND_SIGNALED;
use earlybird_ffi::verbs::{AddressHandle, Datagrams, GRH_LEN, Queue};

use super::address::Address;
use super::code::Code;
use super::handshake::Hello;
use super::registration::{Failed, Registered, Registrar};
use super::work::WorkRequest;
use crate::fabric::net::{JobSecret, Purpose, Registered as _};
use crate::seal::SEAL;

/// Buffers for hellos that go out, and for those that come. What finds no buffer is lost, and comes
/// again.
pub(super) const SENDS: usize = 64;
pub(super) const RECEIVES: usize = 192;

/// What the seal is for.
const USE: &str = "hello";

/// Bytes of a hello with its seal.
const SEALED: usize = Hello::BYTES + SEAL;

/// Bytes of a buffer.
const BUFFER: usize = (GRH_LEN + SEALED).next_multiple_of(64);

/// Bytes of all buffers.
pub(in crate::internals::fabric) const MEMORY: usize = (SENDS + RECEIVES) * BUFFER;

/// The datagram queue pair with its buffers.
#[derive(Debug)]
pub(super) struct Hellos {
    pair: Datagrams,
    memory: Registered,
    free: Vec<usize>,
}

impl Hellos {
    /// Opens the queue pair on a port; datagrams need this key.
    pub(super) fn open(
        registrar: &Registrar,
        queue: &Arc<Queue>,
        (port, queue_key): (u8, u32),
    ) -> Result<Self, Failed> {
        let memory = registrar.allocate(MEMORY, Purpose::Messages)?;
        let code = |cause| Failed::Code(Code::of(&cause));
        let (sends, receives) = ((queue.clone(), SENDS as u32), (queue.clone(), RECEIVES as u32));
        let pair = Datagrams::open(registrar.domain().clone(), sends, receives).map_err(code)?;
        pair.ready(port, queue_key, 0).map_err(code)?;
        let hellos = Hellos { pair, memory, free: (0..SENDS).collect() };
        (SENDS..SENDS + RECEIVES).try_for_each(|buffer| hellos.post_receive(buffer)).map_err(Failed::Code)?;
        Ok(hellos)
    }

    pub(super) fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Sends a hello to a rank, sealed with the secret, if there is a free buffer.
    pub(super) fn send(
        &mut self,
        (handle, address): (&AddressHandle, &Address),
        to: u32,
        hello: &Hello,
        secret: &JobSecret,
    ) -> Result<(), Code> {
        let Some(buffer) = self.free.pop() else { return Ok(()) };
        let sealed = secret.sealed(USE, (hello.from, to), &hello.encode());
        self.memory.window().write(buffer * BUFFER, &sealed);
        let from = self.memory.local(buffer * BUFFER, sealed.len());
        let id = WorkRequest::HelloSent { buffer }.encode();
        // SAFETY: the buffer is taken until its entry was read, and the memory lives as long as the
        // queue pair, as handles do.
        let sent =
            unsafe { self.pair.send(handle, (address.datagrams, address.queue_key), from, id, IBV_SEND_SIGNALED) };
        sent.map_err(|error| {
            self.free.push(buffer);
            Code::System(error.code)
        })
    }

    /// A hello was sent, or lost.
    pub(super) fn sent(&mut self, buffer: usize) {
        self.free.push(buffer);
    }

    /// The hello to a rank in a buffer, of which the device has written the first `len` bytes. `None` if they are not a hello,
    /// or if the rank that it names has not sealed it for this one.
    pub(super) fn received(&self, (buffer, len): (usize, usize), to: u32, secret: &JobSecret) -> Option<Hello> {
        let mut sealed = [0; SEALED];
        self.memory.window().read(buffer * BUFFER + GRH_LEN, &mut sealed);
        let hello = Hello::decode(sealed.get(..Hello::BYTES).filter(|_| len == GRH_LEN + SEALED)?)?;
        secret.opened(USE, (hello.from, to), &sealed).map(|_| hello)
    }

    /// Posts a buffer for the next hello.
    pub(super) fn post_receive(&self, buffer: usize) -> Result<(), Code> {
        let to = self.memory.local(buffer * BUFFER, BUFFER);
        // SAFETY: nothing reads the buffer before its entry was read, and the memory lives as long
        // as the queue pair.
        unsafe { self.pair.post_receive(to, WorkRequest::Hello { buffer }.encode()) }.map_err(|cause| Code::of(&cause))
    }
}
