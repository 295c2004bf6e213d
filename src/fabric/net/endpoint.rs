//! One collective's operations over a network.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::registration::{Purpose, Registered};
use super::shared::{BACK_OFF, NetShared};
use super::wire::Wire;
use crate::error::Result;
use crate::fabric::bell::ring;
use crate::fabric::memory::check_memory;
use crate::fabric::{
    Access, At, Atomic, Completion, Endpoint, Interest, Key, NetworkEndpoint, Posted, Region, Signal, Sleeper, Waker,
    Window,
};

#[derive(Debug)]
pub(super) struct NetEndpoint<W: Wire> {
    shared: Arc<NetShared<W>>,
    channel: u16,
    bell: Arc<OwnedFd>,
}

impl<W: Wire> NetEndpoint<W> {
    pub(super) fn new(shared: Arc<NetShared<W>>, channel: u16) -> Result<Self> {
        let bell = shared.new_bell()?;
        shared.lock().channel(channel).is_open = true;
        Ok(NetEndpoint { shared, channel, bell })
    }
}

impl<W: Wire> Endpoint for NetEndpoint<W> {
    fn register(&mut self, bytes: usize, access: Access) -> Result<Region> {
        check_memory(self.shared.rank(), "register", bytes as u64)?;
        // Registers without the lock: a large registration takes long, and this rank must answer meanwhile.
        let registrar = self.shared.lock().link.wire.registrar().clone();
        let made = W::allocate(&registrar, bytes, Purpose::Operations(access));
        self.shared.lock().registered(self.channel, bytes, made)
    }

    fn key(&self, region: Region) -> Key {
        self.shared.lock().key(self.channel, region)
    }

    fn import(&mut self, peer: u32, key: Key) -> Result<Region> {
        self.shared.lock().import(self.channel, peer, key)
    }

    fn window(&self, region: Region) -> Option<Window> {
        let mut engine = self.shared.lock();
        engine.channel(self.channel).own(region).map(|registered| registered.window().clone())
    }

    fn put(&mut self, from: At, to: At, len: usize, signal: Option<Signal>, token: u64) -> Result<Posted> {
        self.shared.lock().put(self.channel, (from, to, len), signal, token)
    }

    fn signal(&mut self, signal: Signal, token: u64) -> Result<Posted> {
        self.shared.lock().signal(self.channel, signal, token)
    }

    fn read(&mut self, from: At, to: At, len: usize, token: u64) -> Result<Posted> {
        self.shared.lock().read(self.channel, from, to, len, token)
    }

    fn atomic(&mut self, at: At, atomic: Atomic, token: u64) -> Result<Posted> {
        self.shared.lock().atomic(self.channel, at, atomic, token)
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        let mut engine = self.shared.visit();
        if !engine.has_completion(self.channel) {
            engine.progress();
        }
        engine.completion(self.channel)
    }

    fn completion(&mut self) -> Result<Option<Completion>> {
        self.shared.lock().completion(self.channel)
    }

    fn prepare_wait(&mut self, _interest: Interest) {
        // Each rank is a host of its own, so no other rank waits here and the interest does not matter.
        self.shared.lock().channel(self.channel).announce(true);
    }

    fn cancel_wait(&mut self) {
        self.shared.lock().channel(self.channel).announce(false);
    }

    fn wait(&mut self, at_most: Duration) {
        self.shared.wait(self.channel, &self.bell, at_most);
    }

    fn delegate_wait(&mut self) -> bool {
        let mut engine = self.shared.lock();
        let channel = engine.channel(self.channel);
        let goes_on = !channel.is_woken();
        if goes_on {
            channel.sleeps_on(Some(self.shared.sleeper_bell().clone()));
        }
        goes_on
    }

    fn is_delegated(&self) -> bool {
        !self.shared.lock().channel(self.channel).is_woken()
    }

    fn wake(&mut self, _most: u32, _interest: Interest) -> u32 {
        0
    }
}

impl<W: Wire> NetworkEndpoint for NetEndpoint<W> {
    fn register_window(&mut self, window: Window, access: Access) -> Result<Region> {
        let registrar = self.shared.lock().link.wire.registrar().clone();
        let (bytes, made) = (window.len(), W::register(&registrar, window, access));
        self.shared.lock().registered(self.channel, bytes, made)
    }

    fn close_before(self: Box<Self>, owner: Box<dyn Endpoint>) {
        self.shared.lock().channel(self.channel).keep(owner);
    }
}

/// Sleeps for several channels of a rank.
#[derive(Debug)]
pub(super) struct NetSleeper<W: Wire> {
    shared: Arc<NetShared<W>>,
    /// When the delegated waits last ended for a poll of memory.
    checked: Instant,
}

impl<W: Wire> NetSleeper<W> {
    pub(super) fn new(shared: Arc<NetShared<W>>) -> Self {
        NetSleeper { shared, checked: Instant::now() }
    }
}

impl<W: Wire> Sleeper for NetSleeper<W> {
    /// A ring before the sleep still counts when the sleep begins. A thread that never gets to sleep polls memory
    /// nevertheless, if no peer wakes it.
    fn prepare(&mut self) {
        if self.shared.polls_memory() && self.checked.elapsed() >= BACK_OFF {
            self.shared.end_delegated_waits();
            self.checked = Instant::now();
        }
    }

    fn sleep(&mut self, at_most: Duration) {
        self.shared.wait_for_bell(at_most);
        self.checked = Instant::now();
    }

    fn waker(&self) -> Waker {
        let bell = self.shared.sleeper_bell().clone();
        Waker::new(move || ring(&*bell))
    }
}

impl<W: Wire> Drop for NetEndpoint<W> {
    fn drop(&mut self) {
        self.shared.lock().close(self.channel);
    }
}
