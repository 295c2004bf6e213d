//! The processes of a job.
#![forbid(unsafe_code)]

mod collectives;
pub(crate) mod endpoints;
mod joining;
mod meet;
mod messages;
mod network;
mod offers;
mod split;
mod symmetric;
#[cfg(test)]
mod tests;
mod two_levels;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use earlybird_ffi::fork;
use parking_lot::Mutex;

use self::endpoints::KINDS_OF_ENDPOINTS;
use crate::bootstrap::identity::Identity;
use crate::config::{Config, FabricChoice};
use crate::error::{Error, Misuse, Result};
use crate::executor::helper::Helper;
use crate::executor::spin::Spin;
use crate::fabric::levels::Levels;
use crate::fabric::ofi::{self, OfiFabric};
#[cfg(earlybird_internals)]
use crate::fabric::scheduled::Scheduled;
use crate::fabric::shm::ShmFabric;
use crate::fabric::verbs::{self, VerbsFabric};
use crate::fabric::{Fabric, Reached, Traffic};
use crate::machine::{Cores, is_oversubscribed, parallelism};
use crate::model::{HwConfig, Parameters};
use crate::time::Deadline;
use crate::topology::Topology;
use crate::trace::Trace;
use collectives::Boards;
use joining::{Members, for_job, join};
use messages::Mail;
pub use symmetric::SymmetricMemory;

/// The processes of a job, as one of them sees them. Clones are handles of the same world, and threads may share it.
/// All ranks must make their collective calls in the same order.
///
/// A forked child must not use the world: its calls return errors ([`World::is_own`]).
#[derive(Clone, Debug)]
pub struct World {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fabric: Arc<dyn Fabric>,
    /// Which ranks share memory by the fabric.
    topology: Topology,
    hosts: Topology,
    /// The fabric, if it has two levels.
    levels: Option<Arc<Levels>>,
    /// The fork generation of the process that joined. A forked child has another one.
    generation: u32,
    parameters: Parameters,
    config: Config,
    cores: u32,
    /// Another rank may need the core that this one runs on.
    is_oversubscribed: bool,
    source: &'static str,
    /// The number of collectives that this rank has built or tried to build.
    collectives: AtomicU32,
    /// What synchronous collectives need; opened by the first one.
    boards: Mutex<Option<Boards>>,
    /// The bytes that synchronous collectives have copied: into boards, and out of them.
    copies: [AtomicU64; 2],
    /// The number of symmetric memories that this rank has made or tried to make.
    symmetric: AtomicU64,
    /// What messages between two ranks need; opened by the first one.
    mail: Mutex<Option<Mail>>,
    trace: Option<Arc<Trace>>,
    /// The helper threads, which work for collectives while their owners do not: one for each kind of endpoints. The first
    /// collective that wants one starts it.
    helpers: [Mutex<Option<Arc<Helper>>>; KINDS_OF_ENDPOINTS],
}

impl World {
    /// Joins the world that the launcher's environment describes, with the settings of the environment
    /// ([`Config::from_env`]); without a launcher, a world of one rank. Returns when all ranks have joined.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid environment, before anything is created. [`Error::Join`], which names the ranks
    /// that did not come within the deadline, came twice, or had another world size.
    pub fn from_env() -> Result<World> {
        Self::with(&Config::from_env()?)
    }

    /// Joins the world that the launcher's environment describes, with settings of the caller: [`World::from_env`] reads
    /// these from the environment, too.
    ///
    /// # Errors
    /// As [`World::from_env`].
    pub fn with(config: &Config) -> Result<World> {
        let measured = HwConfig::load(config.hw_config.as_deref())?;
        let identity = Identity::from_env()?;
        Self::join_as(&identity, config, &measured)
    }

    /// Joins a world of `ranks` ranks as rank `rank`, whatever the environment says. It is for launchers, and for
    /// frameworks whose groups of ranks are worlds of their own. All ranks pass the same `store`: `unix:NAME` on one
    /// machine, `tcp:HOST:PORT` with a free port on the host of rank 0, or `file:FOLDER`. The name or the port must be
    /// new for each world. Returns when all ranks have joined.
    ///
    /// # Errors
    /// As [`World::from_env`].
    pub fn join(rank: u32, ranks: u32, store: &str, config: &Config) -> Result<World> {
        let measured = HwConfig::load(config.hw_config.as_deref())?;
        let identity = Identity::given(rank, ranks, store)?;
        Self::join_as(&identity, config, &measured)
    }

    /// Joins as the rank that an identity names.
    fn join_as(identity: &Identity, config: &Config, measured: &HwConfig) -> Result<World> {
        // A world of one rank needs no secret, but a wrong one would be found only with the second rank.
        config.job_secret()?;
        let until = Deadline::from(config.deadline).instant();
        let config = &for_job(config, identity);
        let trace = Trace::create(config.trace.as_deref(), identity.rank, identity.ranks)?;
        let members = join(identity, config, measured)?;
        Self::joined(members, config, measured, (until, identity.source), trace)
    }

    /// Creates the world over a fabric that all its ranks have joined.
    fn joined(
        members: Members,
        config: &Config,
        measured: &HwConfig,
        (until, source): (Instant, &'static str),
        trace: Option<Arc<Trace>>,
    ) -> Result<World> {
        let fabric = &members.fabric;
        tracing::debug!(rank = fabric.rank(), ranks = fabric.ranks(), by = source, fabric = fabric.name(), "joined");
        let parameters = measured.of(fabric.name(), fabric.provider())?;
        let cores = members.cores.clone().map_or_else(|| neighbours_cores(&**fabric, until), Ok)?;
        Ok(Self::new(members, parameters, config, (source, &cores), trace))
    }

    /// Creates a world whose ranks are all in this process, for tests and experiments. Returns one handle for each
    /// thread that plays a rank. The world uses the network that `config` selects, else shared memory. The thread that
    /// plays a rank must drop its handle: over libfabric a drop waits until the other ranks leave, too.
    ///
    /// # Errors
    /// As [`World::from_env`].
    pub fn in_this_process(ranks: u32, config: &Config) -> Result<Vec<World>> {
        fn over_network<F: Fabric + 'static>(fabrics: Vec<F>) -> Vec<Members> {
            fabrics.into_iter().map(|fabric| Members::apart(Arc::new(fabric))).collect()
        }
        let measured = HwConfig::load(config.hw_config.as_deref())?;
        let members = match config.fabric {
            FabricChoice::Shm | FabricChoice::Auto => {
                ShmFabric::in_this_process(ranks)?.into_iter().map(Members::in_memory).collect()
            }
            FabricChoice::Ofi => {
                let library = ofi::library().map_err(|cause| Error::join(0, cause))?;
                let until = Deadline::from(config.deadline).instant();
                over_network(OfiFabric::in_this_process(&library, &config.ofi, ranks, until)?)
            }
            FabricChoice::Verbs => {
                let library = verbs::library().map_err(|cause| Error::join(0, cause))?;
                let until = Deadline::from(config.deadline).instant();
                over_network(VerbsFabric::in_this_process(&library, &config.verbs.or(measured.verbs()), ranks, until)?)
            }
        };
        let cores = vec![Cores::own(); ranks as usize];
        let world = |members: Members| {
            let parameters = measured.of(members.fabric.name(), members.fabric.provider())?;
            let trace = Trace::create(config.trace.as_deref(), members.fabric.rank(), ranks)?;
            Ok(Self::new(members, parameters, config, ("in this process", &cores), trace))
        };
        members.into_iter().map(world).collect()
    }

    /// Creates the handle of one rank. `cores` are the cores of the ranks on this machine.
    fn new(
        Members { fabric, topology, hosts, levels, .. }: Members,
        parameters: Parameters,
        config: &Config,
        (source, cores): (&'static str, &[Cores]),
        trace: Option<Arc<Trace>>,
    ) -> World {
        let is_oversubscribed = is_oversubscribed(&Cores::own(), cores);
        let cores = parallelism() as u32;
        let (collectives, helpers) = (AtomicU32::new(0), Default::default());
        let (boards, symmetric, mail) = (Mutex::new(None), AtomicU64::new(0), Mutex::new(None));
        let copies = Default::default();
        let generation = fork::generation();
        let inner = Inner {
            fabric,
            topology,
            hosts,
            levels,
            generation,
            parameters,
            config: config.clone(),
            cores,
            is_oversubscribed,
            source,
            collectives,
            boards,
            copies,
            symmetric,
            mail,
            trace,
            helpers,
        };
        World { inner: Arc::new(inner) }
    }

    /// Returns this rank, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.inner.fabric.rank()
    }

    /// Returns the number of ranks in the world.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.fabric.ranks()
    }

    /// Returns the name of the transport.
    #[must_use]
    pub fn fabric_name(&self) -> &'static str {
        self.inner.fabric.name()
    }

    /// Returns the provider of libfabric, or over verbs the kind of network, such as `RoCE v2`; `None` in shared
    /// memory.
    #[must_use]
    pub fn provider(&self) -> Option<&str> {
        self.inner.fabric.provider()
    }

    /// Returns the ranks of each host, ascending. Hosts come in the order of their lowest ranks. Ranks are on one host if
    /// they have proved when they joined that they can share memory, and [`Config::levels`] allows it.
    #[must_use]
    pub fn hosts(&self) -> Vec<Vec<u32>> {
        let hosts = &self.inner.hosts;
        (0..hosts.hosts()).map(|host| hosts.ranks_of(host).to_vec()).collect()
    }

    /// Returns what this rank has sent over the network so far: for joining, collectives and everything else of this
    /// world. See [`Traffic`] for what is counted.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.inner.fabric.traffic()
    }

    /// Returns how many peers this rank has sent to so far.
    #[must_use]
    pub fn reached(&self) -> Reached {
        self.inner.fabric.reached()
    }

    /// Returns the name of the launcher that started this process.
    #[must_use]
    pub fn launcher(&self) -> &'static str {
        self.inner.source
    }

    /// Blocks until all ranks have called it.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the ranks that did not come. The ranks are then out of step, and further collective
    /// calls of the world fail. Also a dead peer or an aborted job.
    pub fn barrier(&self, deadline: impl Into<Deadline>) -> Result<()> {
        const OPERATION: &str = "barrier";
        self.check_process(OPERATION)?;
        self.wait_for_all(OPERATION, deadline.into())
    }

    fn wait_for_all(&self, operation: &'static str, deadline: Deadline) -> Result<()> {
        let told = self.inner.fabric.exchange(operation, &[], deadline.instant())?;
        match (0..).zip(told).find(|(_, told)| !told.is_empty()) {
            None => Ok(()),
            Some((peer, _)) => Err(self.other_call(operation, peer)),
        }
    }

    /// Leaves in good order, once all ranks have called this: after it no rank needs another one. Without it a rank leaves
    /// when its last handle is dropped, and what goes wrong then is not reported.
    ///
    /// # Errors
    /// [`Error::Usage`] while there is another handle of this world or a collective of it: nothing has happened then, and the
    /// world goes away with its last handle. [`Error::Timeout`] with the ranks that did not come. A dead peer or an aborted
    /// job.
    pub fn close(self, deadline: impl Into<Deadline>) -> Result<()> {
        const OPERATION: &str = "close";
        self.check_process(OPERATION)?;
        if Arc::strong_count(&self.inner) > 1 {
            let problem =
                Misuse::Order("there are other handles of the world, or collectives of it; finish and drop them first");
            return Err(Error::Usage { rank: self.rank(), operation: OPERATION, problem });
        }
        self.wait_for_all(OPERATION, deadline.into())
    }

    /// Makes every later call of every rank fail, with this rank and `reason` in the error. Any thread may call it;
    /// later reasons do not replace the first one.
    pub fn abort(&self, reason: &str) {
        if !self.is_own() {
            return;
        }
        tracing::debug!(rank = self.rank(), reason, "aborts");
        self.inner.fabric.abort(reason);
    }

    /// Returns whether this is the process that joined, not a child that was forked from it. A forked child shares the
    /// memory of all ranks and has none of the threads. It must not even drop handles; it must forget them.
    #[must_use]
    #[inline]
    pub fn is_own(&self) -> bool {
        fork::generation() == self.inner.generation
    }

    /// Checks that this is the process that joined.
    ///
    /// # Errors
    /// [`Error::Usage`] in a forked child.
    #[inline]
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        if self.is_own() {
            return Ok(());
        }
        let problem =
            Misuse::Forked("a forked child must not use the world of its parent; start children by exec or spawn");
        Err(Error::Usage { rank: self.rank(), operation, problem })
    }

    pub(crate) fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.inner.fabric
    }

    /// Returns which ranks share memory.
    pub(crate) fn topology(&self) -> &Topology {
        &self.inner.topology
    }

    pub(crate) fn parameters(&self) -> &Parameters {
        &self.inner.parameters
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.inner.config.deadline
    }

    /// Returns where partial collectives are recorded, if they are.
    pub(crate) fn record(&self) -> Option<&Path> {
        self.inner.config.record.as_deref()
    }

    /// Returns the recording that partial collectives replay, if they do.
    pub(crate) fn replay(&self) -> Option<&Path> {
        self.inner.config.replay.as_deref()
    }

    /// Returns the trace of this rank, if its collectives are traced.
    pub(crate) fn trace(&self) -> Option<&Arc<Trace>> {
        self.inner.trace.as_ref()
    }

    /// Adds the names of the ranks' hosts to an error.
    pub(crate) fn with_hosts(&self, error: Error) -> Error {
        error.on(&self.fabric().host_names()).beside_strangers(|| self.fabric().strangers())
    }

    /// Returns the number of the collective that is being built, from 0. All ranks build their collectives in the same
    /// order.
    pub(crate) fn next_collective(&self) -> u32 {
        self.inner.collectives.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn cores(&self) -> u32 {
        self.inner.cores
    }

    /// Returns how long to spin before sleeping.
    pub(crate) fn spin(&self) -> Spin {
        Spin::new(self.parameters().spin(self.is_oversubscribed()), self.is_oversubscribed())
    }

    /// Returns whether another rank of this machine may need the core that this one runs on.
    pub(crate) fn is_oversubscribed(&self) -> bool {
        self.inner.is_oversubscribed
    }
}

/// For the tests and measurements of this repository. The command reaches the same by names of the crate.
#[cfg(earlybird_internals)]
impl World {
    /// Returns whether another rank of this machine may need the core that this one runs on.
    #[must_use]
    pub fn shares_its_core(&self) -> bool {
        self.is_oversubscribed()
    }

    /// Creates a world in shared memory whose ranks take turns.
    ///
    /// # Errors
    /// The hw-config cannot be read.
    pub fn scheduled(fabric: Scheduled, config: &Config) -> Result<World> {
        let members = Members::in_memory(fabric);
        let parameters = HwConfig::load(config.hw_config.as_deref())?.of(members.fabric.name(), None)?;
        // Its ranks take turns, so no rank needs the core of another.
        Ok(Self::new(members, parameters, config, ("a schedule", &[]), None))
    }

    /// Returns the transport itself, for measurements and for code beside collectives.
    #[must_use]
    pub fn raw_fabric(&self) -> &Arc<dyn Fabric> {
        self.fabric()
    }
}

/// Returns the cores that each rank of this machine says it may use.
fn neighbours_cores(fabric: &dyn Fabric, until: Instant) -> Result<Vec<Cores>> {
    let all = fabric.exchange("join", &Cores::own().encode(), until)?;
    let of = |peer: u32| {
        let wrong = || Error::transport(fabric.rank(), peer, "join", "it did not say which cores it may use");
        Cores::decode(&all[peer as usize]).ok_or_else(wrong)
    };
    fabric.neighbours().into_iter().map(of).collect()
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The last handle is dropped, and no collective holds one: this process leaves in good order.
        drop((
            self.helpers.each_mut().map(|helper| helper.get_mut().take()),
            self.boards.get_mut().take(),
            self.mail.get_mut().take(),
        ));
        if !std::thread::panicking() {
            self.fabric.leave();
        }
    }
}
