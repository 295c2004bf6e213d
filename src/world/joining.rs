//! How a rank joins its world: ranks meet, find out who shares memory, and take a network between hosts.
#![forbid(unsafe_code)]

use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use super::network::{self, Meeting, Networks};
use crate::bootstrap::hosts::{self, Hosts, Own};
use crate::bootstrap::identity::{Identity, Machines};
use crate::bootstrap::store::{self, frame};
use crate::bootstrap::{Joined, MeetingTerms, StoreAddress, meet};
use crate::config::{Config, FabricChoice};
use crate::error::{Error, HostNames, Ranks, Result, text_of};
use crate::fabric::levels::{Between, Levels};
use crate::fabric::shm::ShmFabric;
use crate::fabric::{Fabric, NetworkFabric};
use crate::machine::{Cores, host_identity, machine_identity};
use crate::model::HwConfig;
use crate::seal::Secret;
use crate::time::Deadline;
use crate::topology::Topology;

/// Returns the settings of the job with this identity.
pub(super) fn for_job(config: &Config, identity: &Identity) -> Config {
    let mut config = config.clone();
    let is_told = identity.manager.is_some();
    config.ofi.on_one_machine = !is_told && identity.store_address().is_ok_and(|place| place.is_on_one_machine());
    config
}

/// The ranks of a world that have met: the fabric by which they reach each other, and which of them share memory.
pub(super) struct Members {
    pub(super) fabric: Arc<dyn Fabric>,
    /// Which ranks share memory by the endpoints of the fabric.
    pub(super) topology: Topology,
    /// Which ranks can share memory.
    pub(super) hosts: Topology,
    /// The fabric, if it has two levels.
    pub(super) levels: Option<Arc<Levels>>,
    /// The cores of the ranks of this machine, where they have told them.
    pub(super) cores: Option<Vec<Cores>>,
}

impl Members {
    /// Creates members that all share the memory of one machine.
    pub(super) fn in_memory(fabric: impl Fabric + 'static) -> Self {
        let topology = Topology::one_host(fabric.ranks());
        Members { fabric: Arc::new(fabric), hosts: topology.clone(), topology, levels: None, cores: None }
    }

    /// Creates members that reach each other over a network alone, on these hosts.
    pub(super) fn over_network(fabric: Arc<dyn Fabric>, hosts: Topology) -> Self {
        Members { topology: Topology::apart(fabric.ranks()), fabric, hosts, levels: None, cores: None }
    }

    /// Creates members that are each on a host of their own.
    pub(super) fn apart(fabric: Arc<dyn Fabric>) -> Self {
        let hosts = Topology::apart(fabric.ranks());
        Self::over_network(fabric, hosts)
    }
}

/// Meets the other ranks by the means of the transport.
pub(super) fn join(identity: &Identity, config: &Config, measured: &HwConfig) -> Result<Members> {
    let (rank, ranks) = (identity.rank, identity.ranks);
    let spread = identity.machines == Machines::Several
        || matches!(identity.store, Some(StoreAddress::Tcp { .. } | StoreAddress::File(_)));
    let own = config.job_secret()?;
    let terms = MeetingTerms::of(identity, config.deadline);
    let until = Deadline::from(config.deadline).instant();
    if let FabricChoice::Shm | FabricChoice::Auto = config.fabric
        && !spread
        && identity.manager.is_none()
        && config.levels > 1
    {
        // Ranks on one machine meet at a name; another kind of store has no advantage.
        let name = match &identity.store {
            Some(StoreAddress::Unix(name)) => name,
            _ => &identity.job,
        };
        let secret = Secret::new(own.as_deref(), &identity.job);
        return join_by_memory(name, (rank, ranks), &secret, (terms, until), &|| Ok(()));
    }
    let (place, own) = match identity.manager {
        Some(manager) => {
            let (place, secret) = manager.learn(rank, own.as_deref(), until)?;
            (place, Some(secret))
        }
        None => (identity.store_address()?, own),
    };
    let secret = Secret::new(own.as_deref(), &identity.job);
    let gather = |mine: &[u8], until| store::gather(&place, (rank, ranks), mine, &secret, until, terms);
    // This rank needs a network, unless it is alone: it opens one before it waits for the others.
    let is_apart = config.levels == 1 && ranks > 1;
    let opened = is_apart.then(|| Networks::open((rank, ranks), config, measured)).transpose()?;
    let meet =
        |mine: &[u8]| gather(mine, until).map_err(|error| network::explain(error, opened.as_ref(), (config, measured)));
    let own_host = Own {
        host: (config.levels > 1).then(host_identity),
        machine: Some(machine_identity()).filter(|machine| !machine.is_empty()).unwrap_or_else(host_identity),
        about: Cores::own().encode(),
    };
    let Hosts { lowest, place: of_host, on_machine } = hosts::prove(rank, own_host, meet)?;
    let cores = on_machine.iter().map(|cores| Cores::decode(cores)).collect::<Option<Vec<_>>>();
    let hosts = Topology::by_lowest(&lowest);
    if uses_memory(&hosts, config) {
        let place = format!("{of_host}-memory");
        let members = join_by_memory(&place, (rank, ranks), &secret, (terms, until), &|| Ok(()))?;
        return Ok(Members { cores, ..members });
    }
    if config.fabric == FabricChoice::Shm {
        let (here, there) = (Ranks(hosts.ranks_of(0).to_vec()), Ranks(hosts.ranks_of(1).to_vec()));
        return Err(Error::join(
            rank,
            format!(
                "EARLYBIRD_FABRIC=shm is for ranks that share memory, and {here} and {there} do not; use ofi, verbs or auto"
            ),
        ));
    }
    let members = match hosts.is_apart() {
        true => {
            let meeting = Meeting { secret: &secret, gather, has_another: true, named: None };
            let networks = opened.map_or_else(|| Networks::open((rank, ranks), config, measured), Ok)?;
            Members::over_network(network::join(networks, config, measured, meeting)?, hosts)
        }
        false => {
            // That was opened for one of other members.
            drop(opened);
            let agents = hosts.leaders();
            let own = (hosts.host_of(rank), hosts.hosts());
            let of_agents = |mine: &[u8], until| {
                let gathered = store::gather(&place, own, mine, &secret, until, terms);
                gathered.map_err(|error| match error {
                    // A store counts those that meet there.
                    Error::Join { cause, .. } => {
                        Error::join(own.0, format!("{cause} (these are the lowest ranks of the hosts: {agents:?})"))
                    }
                    other => other,
                })
            };
            let meeting = Meeting { secret: &secret, gather: of_agents, has_another: true, named: Some(&agents) };
            let memory = meet_on_host(&format!("{of_host}-memory"), (rank, &hosts), &secret, (terms, until))?;
            join_levels((rank, &hosts), memory, meeting, (config, measured))?
        }
    };
    let is_spread = members.fabric.neighbours().len() < ranks as usize;
    // Other users of the machine can reach a port, too.
    let is_open = is_spread || matches!(place, StoreAddress::Tcp { .. } | StoreAddress::Among { .. });
    if own.is_none() && rank == 0 && is_open && !matches!(place, StoreAddress::Unix(_)) {
        warn_without_secret();
    }
    Ok(Members { cores, ..members })
}

/// Returns whether ranks on these hosts use shared memory alone. One rank may be told to use a network nevertheless.
pub(super) fn uses_memory(hosts: &Topology, config: &Config) -> bool {
    hosts.is_one_host() && (config.levels > 1 || !config.fabric.names_a_network())
}

/// Meets the ranks of this rank's host, and shares memory with them.
fn meet_on_host(
    name: &str,
    (rank, hosts): (u32, &Topology),
    secret: &Secret,
    (terms, until): (MeetingTerms, Instant),
) -> Result<ShmFabric> {
    let ranks = hosts.ranks_of(hosts.host_of(rank));
    let (index, count) = (hosts.index_on_host(rank), ranks.len() as u32);
    let joined = share_memory(name, (index, count), secret, (terms, until), &|| Ok(()));
    joined.map_err(|error| match error.renumbered(|index| ranks[index as usize]) {
        Error::Join { rank, cause } => {
            let ranks = Ranks(ranks.to_vec());
            Error::join(rank, format!("the host of {ranks}, which count from 0 there: {cause}"))
        }
        other => other,
    })
}

/// How much longer than their agent the ranks of a host wait, which tells them how its joining went.
const PATIENCE: Duration = Duration::from_secs(5);

/// Joins a world of several hosts: the agent joins the network among agents, and tells its host.
fn join_levels<F: Fn(&[u8], Instant) -> Result<Vec<Vec<u8>>>>(
    (rank, hosts): (u32, &Topology),
    here: ShmFabric,
    meeting: Meeting<'_, F>,
    (config, measured): (&Config, &HwConfig),
) -> Result<Members> {
    const OPERATION: &str = "join";
    let host = hosts.host_of(rank);
    let ranks = hosts.ranks_of(host);
    let named = |error: Error| error.renumbered(|index| ranks.get(index as usize).copied().unwrap_or(index));
    let agents = hosts.leaders();
    let is_agent = hosts.index_on_host(rank) == 0;
    let network = is_agent.then(|| {
        let networks = Networks::open((host, hosts.hosts()), config, measured);
        let joined = networks.and_then(|networks| network::join(networks, config, measured, meeting));
        let named = joined.map_err(|error| error.renumbered(|host| agents.get(host as usize).copied().unwrap_or(host)));
        // It names the ranks as they are already.
        named.map_err(|error| error.on(&HostNames::default()))
    });
    let told = match &network {
        Some(Ok(network)) => frame::encode_world(&introduction(&**network, hosts.hosts())),
        Some(Err(error)) => frame::encode_world(&[error.to_string().into_bytes()]),
        None => Vec::new(),
    };
    // An agent has a deadline of its own from here on.
    let latest = Deadline::from(config.deadline).instant() + PATIENCE;
    let heard = here.exchange_long(OPERATION, &told, latest).map_err(named);
    let network = network.transpose()?;
    let strange = || Error::join(rank, format!("rank {} introduced the network in a strange way", ranks[0]));
    let heard = heard?;
    let between = match frame::decode_world(&heard[0], 1) {
        Some(error) => return Err(Error::join(rank, text_of(&error[0]))),
        None => heard_of(&heard[0], hosts).ok_or_else(strange)?,
    };
    let (config, measured) = (config.clone(), measured.clone());
    let times = (config.deadline, config.ofi.patience.linger);
    let join_direct = Box::new(move |levels: &Levels, until: Instant| {
        let secret = Secret::of(&levels.secret_of(b"direct"));
        let gather = |mine: &[u8]| levels.exchange_long("open", mine, until);
        let all: Vec<u32> = (0..levels.ranks()).collect();
        network::join_among((levels.rank(), &all), (&config, &measured), &secret, gather)
    });
    let levels = Levels::new((rank, hosts.clone()), Arc::new(here), (network, between), times, join_direct)?;
    let levels = Arc::new(levels);
    let topology = Topology::apart(hosts.ranks());
    Ok(Members { fabric: levels.clone(), topology, hosts: hosts.clone(), levels: Some(levels), cores: None })
}

/// Encodes what an agent tells its host about the network among agents.
fn introduction(network: &dyn NetworkFabric, hosts: u32) -> Vec<Vec<u8>> {
    let names = network.host_names();
    let mut parts = vec![
        network.name().into(),
        network.provider().unwrap_or_default().into(),
        vec![u8::from(network.changes_by_processor())],
        network.secret_of(b"levels"),
    ];
    parts.extend((0..hosts).map(|host| names.get(host).unwrap_or_default().into()));
    parts
}

/// Decodes it.
fn heard_of(told: &[u8], hosts: &Topology) -> Option<Between> {
    let parts = frame::decode_world(told, 4 + hosts.hosts())?;
    let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok();
    let names = parts[4..].iter().map(text).collect::<Option<Vec<_>>>()?;
    let of_ranks = (0..hosts.ranks()).map(|rank| names[hosts.host_of(rank) as usize].clone());
    Some(Between {
        name: ["ofi", "verbs"].into_iter().find(|name| name.as_bytes() == parts[0])?,
        provider: text(&parts[1]).filter(|provider| !provider.is_empty()),
        by_processor: parts[2] == [1],
        host_names: HostNames::new(of_ranks.collect()),
        secret: Secret::of(&parts[3]),
    })
}

/// Warns once that other users may join the worlds of this process.
fn warn_without_secret() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            "this job has no secret, so other users who know its number or its store can join; put this before the line that \
             starts the ranks, on several hosts the same value on each: export EARLYBIRD_SECRET=$(openssl rand -hex 16)"
        );
    });
}

/// Meets the ranks that share memory, and joins them there.
fn share_memory(
    name: &str,
    (rank, ranks): (u32, u32),
    secret: &Secret,
    times: (MeetingTerms, Instant),
    goes_on: &dyn Fn() -> Result<()>,
) -> Result<ShmFabric> {
    let make = || ShmFabric::create(ranks);
    let Joined { shared, processes } = meet(name, (rank, ranks), secret, times, goes_on, make)?;
    ShmFabric::join(shared, rank, ranks, &processes)
}

/// Meets ranks of this machine at a name, and shares memory with them. While it waits, it calls `goes_on`, whose error
/// ends the wait.
pub(super) fn join_by_memory(
    name: &str,
    (rank, ranks): (u32, u32),
    secret: &Secret,
    (terms, until): (MeetingTerms, Instant),
    goes_on: &dyn Fn() -> Result<()>,
) -> Result<Members> {
    share_memory(name, (rank, ranks), secret, (terms, until), goes_on).map(Members::in_memory)
}
