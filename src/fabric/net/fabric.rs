//! A world over a network.
#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::endpoint::{NetEndpoint, NetSleeper};
use super::engine::NetEngine;
use super::shared::NetShared;
use super::wire::{Telling, Wire};
use crate::config::Patience;
use crate::error::{Error, HostNames, Misuse, Ranks, Result};
use crate::fabric::failure::Failure;
use crate::fabric::turns::Turns;
use crate::fabric::watch::{HEARTBEAT, Watch};
use crate::fabric::{
    Attendant, Endpoint, Fabric, MOST_EXCHANGED, NetworkEndpoint, NetworkFabric, RawAccess, Reached, Sleeper, Traffic,
    sealed,
};
use crate::fault::Fault;
use crate::interrupt;
use crate::time::Deadline;

/// How long a rank of a failed world waits for its provider to send the last messages.
const FLUSH_TIME: Duration = Duration::from_millis(50);

/// How long a leaving rank waits for the last acks of peers that leave, too.
const LEAVE_TIME: Duration = Duration::from_secs(1);

/// A rank's view of a world over a network. Each rank is a host of its own.
#[derive(Debug)]
pub(in crate::internals::fabric) struct NetFabric<W: Wire> {
    rank: u32,
    ranks: u32,
    provider: String,
    neighbours: Vec<u32>,
    host_names: HostNames,
    linger: Duration,
    shared: Arc<NetShared<W>>,
    opened: AtomicU32,
    exchange: Turns,
    bell: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a rank knows about its world besides the engine.
pub(super) struct Neighbourhood {
    pub(super) provider: String,
    /// The ranks on this rank's host.
    pub(super) neighbours: Vec<u32>,
    pub(super) host_names: HostNames,
    pub(super) patience: Patience,
}

impl<W: Wire> NetFabric<W> {
    /// Creates the world of these peers, of which none may be reachable yet.
    pub(super) fn new(
        (rank, ranks): (u32, u32),
        engine: NetEngine<W>,
        failed: Arc<AtomicBool>,
        watch: Watch,
        Neighbourhood { provider, neighbours, host_names, patience }: Neighbourhood,
    ) -> Result<Self> {
        let Patience { silence, linger } = patience;
        let shared = NetShared::new(engine, failed, watch, silence)?;
        let bell = shared.new_bell()?;
        let attendant = shared.clone();
        let thread = thread::Builder::new()
            .name(format!("earlybird {} {rank}", W::FABRIC))
            .spawn(move || attendant.run_helper());
        let thread = thread.map_err(|cause| Error::os(rank, "start the progress thread", cause))?;
        Ok(NetFabric {
            rank,
            ranks,
            provider,
            neighbours,
            host_names,
            linger,
            shared,
            opened: AtomicU32::new(0),
            exchange: Turns::default(),
            bell,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Describes strangers and device trouble that may explain why a rank is silent, as text that continues a sentence.
    pub(super) fn explanation(&self) -> String {
        let engine = self.shared.lock();
        format!("{}{}", engine.device_fault(), engine.strangers)
    }

    /// Gives each rank its own bytes, at most [`MOST_EXCHANGED`] of them, and returns what all ranks gave to this one.
    ///
    /// # Errors
    /// As [`Fabric::exchange`].
    fn swap<'d>(
        &self,
        (operation, deadline): (&'static str, Instant),
        to: &dyn Fn(u32) -> &'d [u8],
    ) -> Result<Vec<Vec<u8>>> {
        let NetFabric { shared, bell, exchange, host_names, .. } = self;
        let longest = (0..self.ranks).map(to).max_by_key(|bytes| bytes.len()).unwrap_or_default();
        let outer = self.expect_by(Some(deadline.into()));
        let given = exchange.take(self, (operation, deadline), (longest, MOST_EXCHANGED), |turn| {
            let started = Instant::now();
            shared.visit().give(turn, to);
            let complete = |engine: &NetEngine<W>| engine.not_gathered(turn).is_empty();
            loop {
                let slice = deadline.min(Instant::now() + HEARTBEAT);
                if shared.wait_until(0, bell, slice, complete) {
                    break;
                }
                self.check_peers(operation)?;
                interrupt::check(self.rank, operation)?;
                let engine = shared.lock();
                if let Some(peer) = engine.not_gathered(turn).into_iter().find(|&peer| engine.life.has_left(peer)) {
                    return Err(Error::left(self.rank, operation, peer));
                }
                drop(engine);
                if Instant::now() >= deadline {
                    let missing = Ranks(shared.lock().not_gathered(turn));
                    let waited = started.elapsed();
                    return Err(Error::timeout(self.rank, operation, waited, missing, true));
                }
            }
            Ok(shared.visit().take_gathered(turn))
        });
        self.expect_by(outer);
        given.map_err(|error| error.on(host_names).beside_strangers(|| self.strangers()))
    }

    /// Shuts out other processes, once all ranks are connected to each other. Until then, another process may have
    /// connected in the name of a rank. It may pass on or forge what these ranks tell each other, so that is sealed.
    ///
    /// # Errors
    /// As an exchange. [`Error::Join`] where a rank cannot tell whether it is connected to another rank.
    pub(super) fn keep_strangers_out(&self, deadline: Instant) -> Result<()> {
        if !W::CAN_BE_FOUND {
            return Ok(());
        }
        let mut told = Vec::new();
        for step in Telling::ALL {
            let telling = self.shared.lock().link.wire.tell_connections(step, &told);
            let telling = telling.map_err(|why| Error::join(self.rank, format!("strangers may connect: {why}")))?;
            let of = |rank: u32| telling.get(rank as usize).map_or(&[][..], Vec::as_slice);
            told = self.swap_sealed(step.name(), deadline, of)?;
        }
        let kept_out = self.shared.lock().keep_strangers_out(&told);
        kept_out.map_err(|unknown| {
            let of = self.host_names.ranks(&unknown.0);
            let why = "another process has connected in its name, or addresses are translated between hosts";
            let cause =
                format!("the connection to {of} is none of its own: {why}; see What is not protected in SECURITY.md");
            Error::join(self.rank, cause)
        })?;
        // Messages carry another word from here on. A rank's messages with the old word have arrived before this one.
        self.swap_sealed("shut", deadline, |_| &[])?;
        self.shared.lock().end_joining();
        Ok(())
    }

    /// As [`NetFabric::swap`], with seals that only ranks of this job can make.
    fn swap_sealed<'d>(
        &self,
        what: &'static str,
        deadline: Instant,
        to: impl Fn(u32) -> &'d [u8],
    ) -> Result<Vec<Vec<u8>>> {
        let NetFabric { rank: me, ranks, .. } = *self;
        let secret = self.shared.lock().secret;
        let sealed: Vec<Vec<u8>> = (0..ranks).map(|rank| secret.sealed(what, (me, rank), to(rank))).collect();
        let told = self.swap(("join", deadline), &|rank| &sealed[rank as usize])?;
        let open = |(rank, sealed): (u32, &Vec<u8>)| {
            let forged = || {
                let of = self.host_names.rank(rank);
                Error::join(
                    me,
                    format!(
                        "what came in the name of {of} was not told by it: another process has connected in its name"
                    ),
                )
            };
            secret.opened(what, (rank, me), sealed).map(<[u8]>::to_vec).ok_or_else(forged)
        };
        (0..).zip(&told).map(open).collect()
    }

    #[cfg(test)]
    pub(in crate::internals::fabric) fn shared(&self) -> &NetShared<W> {
        &self.shared
    }

    fn open_channel(&self) -> Result<NetEndpoint<W>> {
        let channel = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let Ok(channel) = u16::try_from(channel) else {
            let problem = Misuse::Exhausted("a world can make 65535 collectives in its life; keep and reuse them");
            return Err(Error::Usage { rank: self.shared.rank(), operation: "open", problem });
        };
        NetEndpoint::new(self.shared.clone(), channel)
    }

    /// Ends the helper thread.
    fn stop(&self) {
        self.shared.stop();
        if let Some(thread) = self.thread.lock().take() {
            // A panicked thread has printed its message already.
            let _ = thread.join();
        }
    }
}

/// Calls `join` for all ranks of a world in this process, each in a thread of its own, with a function that gathers
/// what the ranks tell.
///
/// # Errors
/// As `join`.
pub(in crate::internals::fabric) fn in_this_process<F: Send>(
    ranks: u32,
    join: impl Fn(u32, &mut dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>>) -> Result<F> + Sync,
) -> Result<Vec<F>> {
    let infos = Mutex::new(vec![None; ranks as usize]);
    let all_told = Barrier::new(ranks as usize);
    let fault = Fault::chosen();
    let join = &|rank: u32| {
        let mut told = false;
        let joined = join(rank, &mut |own_info| {
            infos.lock()[rank as usize] = Some(own_info.to_vec());
            told = true;
            all_told.wait();
            let infos = infos.lock();
            Ok(infos.iter().map(|own_info| own_info.clone().unwrap_or_default()).collect())
        });
        if !told {
            all_told.wait();
        }
        joined
    };
    thread::scope(|scope| {
        let joining: Vec<_> =
            (0..ranks).map(|rank| scope.spawn(move || Fault::passed_on(fault, || join(rank)))).collect();
        let panicked = |_| Err(Error::join(0, "a thread that joined panicked"));
        joining.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}

/// A fabric that is a world over a wire.
pub(in crate::internals::fabric) trait OverWire:
    Debug + Send + Sync + Sized + 'static
{
    type Wire: Wire;

    /// Returns the fabric that is this world.
    fn over(world: NetFabric<Self::Wire>) -> Self;

    /// Warns a user whose world uses this provider.
    fn warn(_rank: u32, _provider: &str) {}

    /// Returns the world.
    fn world(&self) -> &NetFabric<Self::Wire>;
}

impl<W: Wire> OverWire for NetFabric<W> {
    type Wire = W;

    fn over(world: NetFabric<W>) -> Self {
        world
    }

    fn world(&self) -> &Self {
        self
    }
}

impl<T: OverWire> sealed::Sealed for T {}

impl<T: OverWire> Fabric for T {
    fn name(&self) -> &'static str {
        T::Wire::FABRIC
    }

    fn provider(&self) -> Option<&str> {
        Some(&self.world().provider)
    }

    fn rank(&self) -> u32 {
        self.world().rank
    }

    fn ranks(&self) -> u32 {
        self.world().ranks
    }

    fn neighbours(&self) -> Vec<u32> {
        self.world().neighbours.clone()
    }

    fn host_names(&self) -> HostNames {
        self.world().host_names.clone()
    }

    fn changes_by_processor(&self) -> bool {
        !self.world().shared.lock().link.is_by_device()
    }

    fn traffic(&self) -> Traffic {
        self.world().shared.lock().link.traffic()
    }

    fn reached(&self) -> Reached {
        self.world().shared.lock().link.reached()
    }

    fn open(&self, _: RawAccess) -> Result<Box<dyn Endpoint>> {
        Ok(Box::new(self.world().open_channel()?))
    }

    fn sleeper(&self) -> Option<Box<dyn Sleeper>> {
        Some(Box::new(NetSleeper::new(self.world().shared.clone())))
    }

    fn exchange(&self, operation: &'static str, mine: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        self.world().swap((operation, deadline), &|_| mine)
    }

    fn health(&self, operation: &'static str) -> Result<()> {
        self.world().shared.health(operation).map_err(|error| error.on(&self.world().host_names))
    }

    fn strangers(&self) -> String {
        self.world().shared.lock().strangers.to_string()
    }

    fn secret_of(&self, told: &[u8]) -> Vec<u8> {
        self.world().shared.lock().secret.secret_of(told)
    }

    fn expect_by(&self, due: Option<Deadline>) -> Option<Deadline> {
        T::Wire::expect_by(due)
    }

    fn check_peers(&self, operation: &'static str) -> Result<()> {
        self.world().shared.check_peers(operation).map_err(|error| error.on(&self.world().host_names))
    }

    fn has_left(&self, peer: u32) -> bool {
        self.world().shared.lock().life.has_left(peer)
    }

    fn abort(&self, reason: &str) {
        self.world().shared.lock().fail(Failure::Aborted { by: self.rank(), reason: reason.to_owned() });
    }

    fn leave(&self) {
        let (world, now) = (self.world(), Instant::now());
        let NetFabric { shared, bell, linger, .. } = world;
        // Peers end when all have announced that they leave. They are needed until the operations of this rank that are
        // in flight have landed.
        shared.wait_until(0, bell, now + *linger, NetEngine::has_settled);
        shared.visit().announce_leave();
        // A slower rank may still request data in this rank's memory.
        shared.wait_until(0, bell, now + *linger, |engine| engine.life.have_all_left());
        // Acknowledge the last messages, because no later message of this rank will.
        shared.visit().ack_all();
        shared.wait_until(0, bell, Instant::now() + LEAVE_TIME, NetEngine::is_acked_by_all);
        let mut engine = shared.visit();
        engine.ack_all();
        engine.announce_end();
        engine.progress();
        let failed = engine.health("leave").is_err();
        drop(engine);
        if failed {
            // A provider may send what it has accepted a little later. Without these messages the others would blame
            // this rank.
            shared.wait_until(0, bell, Instant::now() + FLUSH_TIME, |_| false);
        } else {
            // Ranks of one process share the mappings of libfabric's `shm`: a last message to a closed endpoint would
            // go to unmapped memory.
            shared.wait_until(0, bell, Instant::now() + LEAVE_TIME, |engine| engine.life.have_all_ended());
        }
        world.stop();
    }
}

impl<T: OverWire> NetworkFabric for T {
    fn attend(&self, attendant: Attendant) {
        self.world().shared.attend(attendant);
    }

    fn open_for_host(&self) -> Result<Box<dyn NetworkEndpoint>> {
        Ok(Box::new(self.world().open_channel()?))
    }

    fn hear(&self, bell: OwnedFd) {
        self.world().shared.hear(bell);
    }

    fn failure(&self) -> Option<Failure> {
        self.world().shared.lock().life.failure().cloned()
    }

    fn fail(&self, failure: Failure) {
        self.world().shared.lock().fail(failure);
    }
}

impl<W: Wire> Drop for NetFabric<W> {
    fn drop(&mut self) {
        self.stop();
    }
}
