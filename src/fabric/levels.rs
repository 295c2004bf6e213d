//! A world of several hosts in two levels: ranks of a host share memory, and one of them, its *agent*, goes to the network
//! for all.
//!
//! What all ranks do together goes from the ranks of a host to their agent by memory, among agents over the network, and
//! back by memory. So does why the world fails. A host's agent is its lowest rank, and its world ends after those of the
//! host's other ranks.
//!
//! Collectives that agents relay use an endpoint by hosts ([`Levels::open_by_hosts`]). Operations between any two ranks need
//! a network in which each rank is a member. It is joined when a rank opens the first endpoint of it ([`Fabric::open`]), as
//! all ranks do then.
//!
//! # Numbers
//! Memory counts the ranks of its host from 0, and the network counts the hosts. Where one of them must name another rank,
//! its number there follows those of the members.
#![forbid(unsafe_code)]

mod endpoint;
mod numbers;
mod told;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::failure::Failure;
use super::shm::ShmFabric;
use super::turns::Turns;
use super::{Endpoint, Fabric, MOST_EXCHANGED, NetworkFabric, RawAccess, Reached, Sleeper, Traffic, sealed};
use crate::error::{Error, HostNames, Ranks, Result};
use crate::interrupt;
use crate::seal::Secret;
use crate::time::Deadline;
use crate::topology::Topology;
use endpoint::LevelsEndpoint;
use numbers::{Numbers, RankNames};
use told::Told;

/// How much longer than a host's ranks wait for each other its agent waits for the other agents, which may have to tell which
/// of their ranks did not come. Its host's ranks wait as much longer for its answer.
const LINGER: Duration = Duration::from_millis(500);

/// How long an agent waits at a time for its host's ranks to leave.
const PAUSE: Duration = Duration::from_millis(1);

/// Joins the network in which each rank is a member, by an instant.
pub(crate) type JoinDirect = Box<dyn Fn(&Levels, Instant) -> Result<Arc<dyn NetworkFabric>> + Send + Sync>;

/// What an agent tells its host about the network.
#[derive(Clone, Debug)]
pub(crate) struct Between {
    pub(crate) name: &'static str,
    pub(crate) provider: Option<String>,
    /// Whether processors change cells for peers on other hosts.
    pub(crate) by_processor: bool,
    /// The hosts of all ranks.
    pub(crate) host_names: HostNames,
    /// A secret that all ranks of this world know and no other process does.
    pub(crate) secret: Secret,
}

/// Returns why a world has failed, if an error says so.
fn failure_of(error: Error) -> Option<Failure> {
    match error {
        Error::PeerDied { peer, how, .. } => Some(Failure::Died { peer, how }),
        Error::Aborted { by, reason, .. } => Some(Failure::Aborted { by, reason }),
        _ => None,
    }
}

/// Fails the memory of a host for the reason of a network, or returns the memory's reason, for which the network must fail.
/// A network's reason has the numbers of the world.
fn pass_on(
    (memory, of_here): (&ShmFabric, &Numbers),
    failed: Option<Failure>,
    of_network: Option<Failure>,
) -> Option<Failure> {
    match (of_network, failed) {
        (Some(failure), None) => memory.fail(&of_here.in_part(failure)),
        (None, Some(failure)) => return Some(of_here.in_world(failure)),
        _ => {}
    }
    None
}

/// A rank's view of a world in two levels.
pub(crate) struct Levels {
    rank: u32,
    hosts: Topology,
    /// The memory of this rank's host.
    here: Arc<ShmFabric>,
    names: RankNames,
    /// The network among agents, on an agent.
    network: Option<Arc<dyn NetworkFabric>>,
    between: Between,
    exchange: Turns,
    direct: OnceLock<Arc<dyn NetworkFabric>>,
    join_direct: JoinDirect,
    /// Held while it is joined.
    joining: Mutex<()>,
    /// How long ranks wait for each other in set-up calls that have no limit of their own.
    deadline: Duration,
    /// The longest time that an agent waits for the other ranks of its host before it leaves.
    linger: Duration,
}

impl fmt::Debug for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Levels { rank, hosts, here, network, between, direct, .. } = self;
        f.debug_struct("Levels")
            .field("rank", rank)
            .field("hosts", hosts)
            .field("here", here)
            .field("network", network)
            .field("between", between)
            .field("direct", direct)
            .finish_non_exhaustive()
    }
}

impl Levels {
    /// Creates the view of `rank`, which has joined the memory of its host, and if it is the agent the network.
    pub(crate) fn new(
        (rank, hosts): (u32, Topology),
        here: Arc<ShmFabric>,
        (network, between): (Option<Arc<dyn NetworkFabric>>, Between),
        (deadline, linger): (Duration, Duration),
        join_direct: JoinDirect,
    ) -> Result<Self> {
        let names = RankNames::new(rank, &hosts, between.host_names.clone());
        if let Some(network) = &network {
            let (memory, names) = (here.clone(), names.clone());
            network.attend(Box::new(move |failure| {
                let seen = memory.check_peers("heartbeat").err();
                // A rank may have died while it wrote why the memory has failed.
                let failed = memory.failure().or_else(|| seen.and_then(failure_of));
                let failure = failure.map(|failure| names.network.in_world(failure));
                pass_on((&memory, &names.here), failed, failure).map(|failure| names.network.in_part(failure))
            }));
        }
        if let Some(network) = network.as_ref().filter(|_| here.ranks() > 1) {
            network.hear(here.bell().map_err(|error| names.of_here(error))?);
        }
        Ok(Levels {
            rank,
            hosts,
            here,
            names,
            network,
            between,
            exchange: Turns::default(),
            direct: OnceLock::new(),
            join_direct,
            joining: Mutex::new(()),
            deadline,
            linger,
        })
    }

    /// Returns the memory of this rank's host.
    pub(crate) fn here(&self) -> &Arc<ShmFabric> {
        &self.here
    }

    /// Returns the network among agents, on an agent.
    pub(crate) fn network(&self) -> Option<&Arc<dyn NetworkFabric>> {
        self.network.as_ref()
    }

    /// Opens an endpoint that reaches the memory of this rank's host, and on an agent that of the other hosts. Collective,
    /// as [`Fabric::open`].
    ///
    /// # Errors
    /// As [`Fabric::open`].
    pub(crate) fn open_by_hosts(&self) -> Result<Box<dyn Endpoint>> {
        let network = self.network.as_ref().map(|network| network.open_for_host()).transpose();
        let network = network.map_err(|error| self.of_network(error))?;
        let here = self.here.open(RawAccess::CRATE).map_err(|error| self.of_here(error))?;
        Ok(Box::new(LevelsEndpoint::new((self.rank, self.hosts.clone(), self.names.clone()), here, network)))
    }

    /// Returns a sleeper for several such endpoints.
    pub(crate) fn sleeper_by_hosts(&self) -> Option<Box<dyn Sleeper>> {
        self.network.as_ref().map_or_else(|| self.here.sleeper(), |network| network.sleeper())
    }

    /// Returns the hosts.
    pub(crate) fn hosts(&self) -> &Topology {
        &self.hosts
    }

    /// Returns an error of the host's memory as one of this world.
    pub(crate) fn of_here(&self, error: Error) -> Error {
        self.names.of_here(error)
    }

    /// Returns an error of the network among agents as one of this world.
    pub(crate) fn of_network(&self, error: Error) -> Error {
        self.names.of_network(error)
    }

    /// Passes on why the host or the network has failed, if one of them has.
    fn pass_on(&self) {
        let Some(network) = &self.network else { return };
        let failure = network.failure().map(|failure| self.names.network.in_world(failure));
        let passed = pass_on((&self.here, &self.names.here), self.here.failure(), failure);
        passed.into_iter().for_each(|failure| network.fail(self.names.network.in_part(failure)));
    }

    /// Gives the bytes of the host's ranks to the other hosts, on an agent, and returns those of all ranks. If a rank of the
    /// host did not come, the other hosts learn which. The other ranks of the host learn what all gave, or why they do not.
    fn exchange_among_agents(
        &self,
        network: &dyn NetworkFabric,
        (operation, deadline): (&'static str, Instant),
        of_host: Result<Vec<Vec<u8>>>,
    ) -> Result<Vec<Vec<u8>>> {
        let started = Instant::now();
        let Some(told) = Told::of(&of_host) else { return of_host.inspect_err(|error| self.fail_with(error)) };
        let given = network.exchange_long(operation, &told.encode(), deadline + LINGER);
        let of_host = of_host?;
        let given = given.map_err(|error| self.of_network(error));
        let all = given.and_then(|given| self.in_rank_order((operation, started), &given, &of_host));
        match Told::of(&all) {
            Some(told) => {
                let heard = self.here.exchange_long(operation, &told.encode(), deadline + 2 * LINGER);
                all.and_then(|all| heard.map(|_| all).map_err(|error| self.of_here(error)))
            }
            None => all.inspect_err(|error| self.fail_with(error)),
        }
    }

    /// Passes on why the world has failed, or fails it: other ranks wait for this agent, which does not go on.
    fn fail_with(&self, error: &Error) {
        self.pass_on();
        if self.here.failure().is_none() {
            self.abort(&error.to_string());
        }
    }

    /// Returns what all ranks gave, from what the agents told of their hosts.
    fn in_rank_order(
        &self,
        (operation, started): (&'static str, Instant),
        given: &[Vec<u8>],
        of_host: &[Vec<u8>],
    ) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![Vec::new(); self.hosts.ranks() as usize];
        let mut missing = Vec::new();
        for (host, given) in (0..).zip(given) {
            let ranks = self.hosts.ranks_of(host);
            let invalid =
                || Error::transport(self.rank, ranks[0], operation, "it told something else than its host's part");
            let given = match Told::decode(given).ok_or_else(invalid)? {
                Told::All(_) if host == self.hosts.host_of(self.rank) => of_host.to_vec(),
                Told::All(given) if given.len() == ranks.len() => given,
                Told::All(_) => return Err(invalid()),
                Told::Missing(ranks) => {
                    missing.extend(ranks);
                    continue;
                }
                Told::Left(peer) => return Err(Error::left(self.rank, operation, peer)),
            };
            ranks.iter().zip(given).for_each(|(&rank, given)| all[rank as usize] = given);
        }
        match missing.is_empty() {
            true => Ok(all),
            false => Err(Error::timeout(self.rank, operation, started.elapsed(), Ranks(missing), true)),
        }
    }

    /// Waits for what the agent tells.
    fn hear_agent(&self, operation: &'static str, deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let started = Instant::now();
        let told = self.here.exchange_long(operation, &[], deadline + 2 * LINGER);
        let told = told.map_err(|error| self.of_here(error))?;
        let cause = "it told something else than what all ranks gave";
        let invalid = || Error::transport(self.rank, self.names.here.rank(0), operation, cause);
        match Told::decode(&told[0]).ok_or_else(invalid)? {
            Told::All(all) if all.len() == self.hosts.ranks() as usize => Ok(all),
            Told::All(_) => Err(invalid()),
            Told::Missing(ranks) => Err(Error::timeout(self.rank, operation, started.elapsed(), Ranks(ranks), true)),
            Told::Left(peer) => Err(Error::left(self.rank, operation, peer)),
        }
    }

    /// Returns the network in which each rank is a member, if it has been joined.
    fn direct(&self) -> Option<&Arc<dyn NetworkFabric>> {
        self.direct.get()
    }

    /// Returns the index of a rank on this host.
    fn index_here(&self, rank: u32) -> Option<u32> {
        (self.hosts.host_of(rank) == self.hosts.host_of(self.rank)).then(|| self.hosts.index_on_host(rank))
    }
}

impl sealed::Sealed for Levels {}

impl Fabric for Levels {
    fn name(&self) -> &'static str {
        self.between.name
    }

    fn provider(&self) -> Option<&str> {
        self.between.provider.as_deref()
    }

    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.hosts.ranks()
    }

    fn neighbours(&self) -> Vec<u32> {
        self.names.here.members.to_vec()
    }

    fn host_names(&self) -> HostNames {
        self.between.host_names.clone()
    }

    fn changes_by_processor(&self) -> bool {
        self.between.by_processor
    }

    fn traffic(&self) -> Traffic {
        let own = self.network.as_ref().map(|network| network.traffic()).unwrap_or_default();
        own + self.direct().map(|direct| direct.traffic()).unwrap_or_default()
    }

    fn reached(&self) -> Reached {
        let own = self.network.as_ref().map(|network| network.reached()).unwrap_or_default();
        let direct = self.direct().map(|direct| direct.reached()).unwrap_or_default();
        Reached { peers: own.peers.max(direct.peers), queue_pairs: own.queue_pairs + direct.queue_pairs }
    }

    fn reach_all(&self, operation: &'static str, deadline: Instant) -> Result<()> {
        let _joining = interrupt::lock(&self.joining, self.rank, operation, deadline)?;
        if self.direct().is_some() {
            return Ok(());
        }
        let joined = (self.join_direct)(self, deadline)?;
        let (memory, of_here) = (self.here.clone(), self.names.here.clone());
        joined.attend(Box::new(move |failure| pass_on((&memory, &of_here), memory.failure(), failure)));
        let _ = self.direct.set(joined);
        Ok(())
    }

    fn open(&self, access: RawAccess) -> Result<Box<dyn Endpoint>> {
        self.reach_all("open", Deadline::from(self.deadline).instant())?;
        let direct = self.direct().unwrap_or_else(|| unreachable!("it was joined"));
        direct.open(access)
    }

    fn sleeper(&self) -> Option<Box<dyn Sleeper>> {
        self.direct().and_then(|direct| direct.sleeper())
    }

    fn exchange(&self, operation: &'static str, mine: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        self.exchange.take(self, (operation, deadline), (mine, MOST_EXCHANGED), |_| {
            let of_host = self.here.exchange(operation, mine, deadline).map_err(|error| self.of_here(error));
            match &self.network {
                Some(network) => self.exchange_among_agents(&**network, (operation, deadline), of_host),
                None => of_host.and_then(|_| self.hear_agent(operation, deadline)),
            }
            .map_err(|error| error.on(&self.between.host_names).beside_strangers(|| self.strangers()))
        })
    }

    fn health(&self, operation: &'static str) -> Result<()> {
        self.here.health(operation).map_err(|error| self.of_here(error))?;
        if let Some(network) = &self.network {
            network.health(operation).map_err(|error| self.of_network(error))?;
        }
        self.direct().map_or(Ok(()), |direct| direct.health(operation))
    }

    fn strangers(&self) -> String {
        let own = self.network.as_ref().map(|network| network.strangers()).unwrap_or_default();
        own + &self.direct().map(|direct| direct.strangers()).unwrap_or_default()
    }

    fn secret_of(&self, told: &[u8]) -> Vec<u8> {
        self.between.secret.seal(&[b"of some ranks", told]).to_vec()
    }

    fn expect_by(&self, due: Option<Deadline>) -> Option<Deadline> {
        match (self.direct(), &self.network) {
            (Some(direct), _) => direct.expect_by(due),
            (None, Some(network)) => network.expect_by(due),
            (None, None) => None,
        }
    }

    fn check_peers(&self, operation: &'static str) -> Result<()> {
        self.pass_on();
        self.here.check_peers(operation).map_err(|error| self.of_here(error))?;
        if let Some(network) = &self.network {
            network.check_peers(operation).map_err(|error| self.of_network(error))?;
        }
        self.direct().map_or(Ok(()), |direct| direct.check_peers(operation))
    }

    fn dead(&self) -> Vec<u32> {
        self.here.dead().into_iter().map(|index| self.names.here.rank(index)).collect()
    }

    fn has_left(&self, peer: u32) -> bool {
        let host = self.hosts.host_of(peer);
        let has_left = match (self.index_here(peer), &self.network) {
            (Some(index), _) => self.here.has_left(index),
            // Its agent's leaving says nothing of another rank.
            (None, Some(network)) if self.hosts.leader(host) == peer => network.has_left(host),
            _ => false,
        };
        has_left || self.direct().is_some_and(|direct| direct.has_left(peer))
    }

    fn abort(&self, reason: &str) {
        self.here.abort(reason);
        self.pass_on();
        self.direct().into_iter().for_each(|direct| direct.abort(reason));
    }

    fn leave(&self) {
        self.direct().into_iter().for_each(|direct| direct.leave());
        let Some(network) = &self.network else { return self.here.leave() };
        // The others of this host need their agent until they leave.
        let until = Instant::now() + self.linger;
        let have_left = || (1..self.here.ranks()).all(|index| self.here.has_left(index));
        while !have_left() && Instant::now() < until && self.check_peers("leave").is_ok() {
            std::thread::sleep(PAUSE);
        }
        self.pass_on();
        self.here.leave();
        network.leave();
    }
}
