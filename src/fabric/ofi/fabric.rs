//! A world over libfabric.
#![forbid(unsafe_code)]

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use earlybird_ffi::ofi::{self, Code, Library, Sign, Wanted, sys};
use parking_lot::Mutex;

use super::endpoint::OfiEndpoint;
use super::engine::Engine;
use super::environment;
use super::link::Link;
use super::message::MOST_RANKS;
use super::peer_info::{self, PeerInfo};
use super::probe;
use super::registration::Failed;
use super::secret::JobSecret;
use super::shared::Shared;
use super::wire::OfiWire;
use crate::config::OfiSettings;
use crate::error::{Error, Ranks, Result};
use crate::fabric::failure::Failure;
use crate::fabric::net::{Limits, Wire};
use crate::fabric::turns::Turns;
use crate::fabric::watch::{ENDED, Watch};
use crate::fabric::{Endpoint, Fabric, MOST_EXCHANGED, RawAccess, sealed};
use crate::fault::Fault;

/// How long a rank of a failed world gives its provider to send the last messages.
const FLUSH_TIME: Duration = Duration::from_millis(50);

/// How long a leaving rank waits for the last acks of peers that leave too.
const LEAVE_TIME: Duration = Duration::from_secs(1);

/// A rank's view of a world over libfabric. Each rank is a host of its own.
#[derive(Debug)]
pub struct OfiFabric {
    rank: u32,
    ranks: u32,
    provider: String,
    neighbours: u32,
    linger: Duration,
    shared: Arc<Shared>,
    opened: AtomicU32,
    exchange: Turns,
    bell: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An open endpoint whose peers are not known yet.
struct Opened {
    link: Link<OfiWire>,
    own_info: PeerInfo,
}

fn open(library: &Library, settings: &OfiSettings, rank: u32, ranks: u32) -> Result<Opened> {
    let named = settings.provider.as_deref().unwrap_or("any provider");
    let refused = |what: &'static str| {
        let library = *library;
        move |code: Code| Error::join(rank, format!("{named}: {what}: {}", library.error_text(code.0)))
    };
    let provider = settings.provider.as_deref().map(CString::new).transpose();
    let provider = provider.map_err(|_| Error::join(rank, "the name of the provider contains a zero byte"))?;
    let wanted = Wanted { provider, threading: sys::FI_THREAD_SAFE, ..probe::needed() };
    let found = library.info(&wanted).map_err(|code| {
        let cause = library.error_text(code);
        Error::join(
            rank,
            format!(
                "libfabric has no device of {named} that can do this ({cause}); `earlybird info` lists what there is"
            ),
        )
    })?;
    let fits = |info: &ofi::Info<'_>| settings.device.as_deref().is_none_or(|device| device == info.domain_name());
    let info = found.iter().find(fits).ok_or_else(|| {
        let mut devices: Vec<_> = found.iter().map(|info| info.domain_name().to_owned()).collect();
        devices.dedup();
        let device = settings.device.as_deref().unwrap_or_default();
        Error::join(rank, format!("{named} has no device {device}; it has {}", devices.join(", ")))
    })?;
    tracing::debug!(rank, provider = info.provider(), device = info.domain_name(), "opens");
    environment::warn(rank, info.provider());
    let fabric = ofi::Fabric::open(library, info).map_err(refused("the network cannot be opened"))?;
    let domain = ofi::Domain::open(fabric, info).map_err(refused("the device cannot be opened"))?;
    let endpoint = |sign| {
        let queue = ofi::Queue::open(domain.clone(), 4096, sign).map_err(refused("no completion queue"))?;
        ofi::Endpoint::open(domain.clone(), info, queue, ranks as usize).map_err(refused("no endpoint"))
    };
    let settled = |sign| {
        let opened = endpoint(sign).inspect_err(|error| tracing::debug!(rank, ?sign, %error, "no sleep of this kind"));
        let settled = opened.ok().filter(|endpoint| endpoint.queue().settle());
        settled.inspect(|_| tracing::debug!(rank, ?sign, "sleeps"))
    };
    let endpoint = [Sign::Several, Sign::One].into_iter().find_map(settled).map_or_else(|| endpoint(Sign::None), Ok)?;
    let address = endpoint.name().map_err(refused("the endpoint has no address"))?;
    let limits = Limits::of_provider(info, ranks, settings.cq_data);
    let wire = OfiWire::new(rank, endpoint, limits.operations(ranks));
    let link = Link::new(wire, limits, (rank, ranks)).map_err(|failed| match failed {
        Failed::System(error) => error,
        Failed::Code(code) => refused("memory cannot be registered")(code),
    })?;
    let own_info = PeerInfo {
        provider: info.provider().to_owned(),
        host: peer_info::host(),
        pid: std::process::id(),
        header_slots: link.header_slots(),
        cq_data: link.immediate() as u32,
        secret: JobSecret::draw(rank)?,
        address,
    };
    Ok(Opened { link, own_info })
}

impl OfiFabric {
    /// Joins a world. `gather` gives every rank's bytes to every rank, in rank order, by other
    /// means. `join` calls it once, with this rank's address and what else the others need to know.
    ///
    /// # Errors
    /// No provider fits; the provider or `gather` fails; ranks use different providers; a rank
    /// cannot be reached by the deadline.
    pub fn join(
        library: &Library,
        settings: &OfiSettings,
        (rank, ranks): (u32, u32),
        deadline: Instant,
        gather: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>,
    ) -> Result<Self> {
        if ranks > MOST_RANKS {
            return Err(Error::join(rank, format!("{ranks} ranks; the most over libfabric is {MOST_RANKS}")));
        }
        let Opened { mut link, own_info } = open(library, settings, rank, ranks)?;
        let infos = gather(&own_info.encode())?;
        let infos = infos.iter().enumerate().map(|(peer, bytes)| {
            let strange = || {
                Error::join(rank, format!("rank {peer} introduced itself in a way this version does not understand"))
            };
            PeerInfo::decode(bytes).ok_or_else(strange)
        });
        let infos: Vec<PeerInfo> = infos.collect::<Result<_>>()?;
        if infos.len() != ranks as usize {
            return Err(Error::join(rank, format!("{} ranks introduced themselves, not {ranks}", infos.len())));
        }
        let mut header_slots = Vec::new();
        for (peer, theirs) in infos.iter().enumerate() {
            let (what, peer) = ("the provider", peer as u32);
            if theirs.provider != own_info.provider {
                let (mine, theirs) = (own_info.provider.clone(), theirs.provider.clone());
                return Err(Error::Mismatch { rank, operation: "join", what, mine, peer, theirs });
            }
            link.wire.insert(&theirs.address).map_err(|code| {
                Error::join(rank, format!("{} has no way to rank {peer}: {}", own_info.provider, link.wire.text(code)))
            })?;
            // Both sides must be able to: the writer has a limit of its own.
            header_slots.push(theirs.header_slots.filter(|_| own_info.header_slots.is_some()));
        }
        link.agree(infos.iter().map(|theirs| theirs.cq_data).min().unwrap_or(0) as usize);
        let near =
            |theirs: &PeerInfo| (theirs.host == own_info.host && theirs.pid != own_info.pid).then_some(theirs.pid);
        let watch = Watch::new(rank, &infos.iter().map(near).collect::<Vec<_>>())?;
        let neighbours = infos.iter().filter(|theirs| theirs.host == own_info.host).count() as u32;
        let failed = Arc::new(AtomicBool::new(false));
        let engine = Engine::new(rank, infos[0].secret, link, header_slots, failed.clone());
        let shared = Shared::new(engine, failed, watch, settings.silence)?;
        let attendant = shared.clone();
        let thread = thread::Builder::new().name(format!("earlybird ofi {rank}")).spawn(move || attendant.run_helper());
        let thread = thread.map_err(|cause| Error::os(rank, "start the progress thread", cause))?;
        let bell = shared.new_bell()?;
        let opened = AtomicU32::new(0);
        let fabric = OfiFabric {
            rank,
            ranks,
            provider: own_info.provider.clone(),
            neighbours,
            linger: settings.linger,
            shared,
            opened,
            exchange: Turns::default(),
            bell,
            thread: Mutex::new(Some(thread)),
        };
        // No rank goes on before all can be reached.
        let provider = own_info.provider;
        let unreached = |whom: String, how: String| {
            let cause = format!(
                "{whom} came to the meeting and cannot be reached over {provider} ({how}); are the devices on one \
                 network (EARLYBIRD_DEVICE), and does no firewall stand between them?"
            );
            Error::join(rank, cause)
        };
        let all_here = fabric.exchange("join", &[], deadline).map_err(|error| match error {
            Error::Timeout { missing, waited, .. } => {
                unreached(missing.to_string(), format!("nothing was heard for {waited:.1?}"))
            }
            Error::PeerDied { peer, how, .. } if how != ENDED => unreached(format!("rank {peer}"), how),
            other => other,
        });
        if let Err(error) = all_here {
            // The abort tells ranks that still wait the reason; without it they would find this
            // rank dead.
            fabric.abort(&error.to_string());
            fabric.leave();
            return Err(error);
        }
        Ok(fabric)
    }

    /// A world with all ranks in this process, for tests.
    ///
    /// # Errors
    /// As [`OfiFabric::join`].
    pub fn in_this_process(
        library: &Library,
        settings: &OfiSettings,
        ranks: u32,
        deadline: Instant,
    ) -> Result<Vec<Self>> {
        let infos = Mutex::new(vec![None; ranks as usize]);
        let all_told = Barrier::new(ranks as usize);
        let fault = Fault::chosen();
        let join = &|rank: u32| {
            let mut told = false;
            let joined = Self::join(library, settings, (rank, ranks), deadline, |own_info| {
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
}

impl sealed::Sealed for OfiFabric {}

impl Fabric for OfiFabric {
    fn name(&self) -> &'static str {
        "ofi"
    }

    fn provider(&self) -> Option<&str> {
        Some(&self.provider)
    }

    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn hosts(&self) -> Vec<u32> {
        (0..self.ranks).collect()
    }

    fn neighbours(&self) -> u32 {
        self.neighbours
    }

    fn open(&self, _: RawAccess) -> Result<Box<dyn Endpoint>> {
        let channel = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let Ok(channel) = u16::try_from(channel) else {
            let problem = "a world can make 65535 collectives and broadcasts in its life; keep and reuse them";
            return Err(Error::Usage { rank: self.rank, operation: "open", problem });
        };
        Ok(Box::new(OfiEndpoint::new(self.shared.clone(), channel)?))
    }

    fn exchange(&self, operation: &'static str, mine: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        self.exchange.take(self, operation, (mine, MOST_EXCHANGED), |turn| {
            let started = Instant::now();
            self.shared.visit().give(turn, mine);
            let complete = |engine: &Engine| engine.not_gathered(turn).is_empty();
            loop {
                let slice = deadline.min(Instant::now() + crate::fabric::shm::HEARTBEAT);
                if self.shared.wait_until(0, &self.bell, slice, complete) {
                    break;
                }
                self.look_for_dead(operation)?;
                if Instant::now() >= deadline {
                    let missing = Ranks(self.shared.lock().not_gathered(turn));
                    let waited = started.elapsed();
                    return Err(Error::Timeout { rank: self.rank, operation, waited, missing, together: true });
                }
            }
            Ok(self.shared.visit().take_gathered(turn))
        })
    }

    fn health(&self, operation: &'static str) -> Result<()> {
        self.shared.health(operation)
    }

    fn strangers(&self) -> u64 {
        self.shared.lock().strangers
    }

    fn look_for_dead(&self, operation: &'static str) -> Result<()> {
        self.shared.look_for_dead(operation)
    }

    fn abort(&self, reason: &str) {
        self.shared.lock().fail(Failure::Aborted { by: self.rank, reason: reason.to_owned() });
    }

    fn leave(&self) {
        let now = Instant::now();
        // Peers end when all have said that they leave. They are needed until the operations of
        // this rank that are in flight have landed.
        self.shared.wait_until(0, &self.bell, now + self.linger, Engine::has_settled);
        self.shared.visit().announce_leave();
        // A slower rank may still ask for data in this rank's memory.
        self.shared.wait_until(0, &self.bell, now + self.linger, Engine::have_all_left);
        // Acknowledge the last messages: no later message of this rank will.
        self.shared.visit().ack_all();
        self.shared.wait_until(0, &self.bell, Instant::now() + LEAVE_TIME, Engine::is_acked_by_all);
        let mut engine = self.shared.visit();
        engine.ack_all();
        engine.announce_end();
        engine.progress();
        let failed = engine.health("leave").is_err();
        drop(engine);
        if failed {
            // A provider may send what it has accepted a little later; without these messages the
            // others would name this rank.
            self.shared.wait_until(0, &self.bell, Instant::now() + FLUSH_TIME, |_| false);
        } else {
            // Ranks of one process share the mappings of libfabric's `shm`: a last message to a
            // closed endpoint would go to unmapped memory.
            self.shared.wait_until(0, &self.bell, Instant::now() + LEAVE_TIME, Engine::have_all_ended);
        }
        self.stop();
    }
}

impl OfiFabric {
    #[cfg(test)]
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
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

impl Drop for OfiFabric {
    fn drop(&mut self) {
        self.stop();
    }
}
