//! How ranks that share no memory choose a network: each rank offers the networks that it can use, and all ranks take
//! the best one that every rank offers.
//!
//! A host that has just started may only have its loopback interface, whose address leads to no other host. If ranks on
//! other hosts need an address of it, the rank waits for another interface, and all ranks meet again.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::offers::{NETWORKS, Network, Offer, Offers, Ready, choose, decode, encode, is_worth_a_wait};
use crate::config::{Config, FabricChoice};
use crate::error::{Error, Result};
use crate::fabric::ofi::{self, OfiFabric};
use crate::fabric::verbs::{self, ENOUGH_LOCKED_MEMORY, VerbsFabric};
use crate::fabric::{Candidate, NetworkFabric, Scope};
use crate::interrupt;
use crate::machine::{host_name, network_stack};
use crate::model::HwConfig;
use crate::seal::Secret;
use crate::time::Deadline;
use crate::units::Bytes;

impl Network {
    /// Returns whether the user's choice allows it: a rank told to use a provider of libfabric uses no other network.
    fn is_allowed(self, config: &Config) -> bool {
        match (config.fabric, self) {
            (FabricChoice::Verbs, Network::Verbs) | (FabricChoice::Ofi | FabricChoice::Auto, Network::Ofi) => true,
            (FabricChoice::Auto, Network::Verbs) => config.ofi.provider.is_none(),
            _ => false,
        }
    }

    /// Opens this network on this machine.
    fn open(self, ranks: (u32, u32), config: &Config, measured: &HwConfig) -> Opened {
        if !self.is_allowed(config) {
            return Opened::Excluded;
        }
        let failed = |cause: String| Error::join(ranks.0, cause);
        let candidate = match self {
            Network::Verbs => {
                let library = match verbs::library() {
                    Ok(library) => library,
                    Err(cause) => return Opened::Absent(failed(cause.to_string())),
                };
                let is_there = || library.devices().is_ok_and(|devices| !devices.is_empty());
                let limit = verbs::LockedMemory::now().binding_limit().filter(|&limit| limit < ENOUGH_LOCKED_MEMORY);
                match limit.filter(|_| config.fabric == FabricChoice::Auto && is_there()) {
                    Some(limit) => Err(failed(format!(
                        "ulimit -l is {}, with which large collectives fail; raise it, or say EARLYBIRD_FABRIC=verbs",
                        Bytes(limit)
                    ))),
                    None => match VerbsFabric::candidate(&library, &config.verbs.or(measured.verbs()), ranks) {
                        Err(error @ Error::Join { .. }) if !is_there() => return Opened::Absent(error),
                        other => other,
                    },
                }
            }
            Network::Ofi => match ofi::library() {
                Ok(library) => OfiFabric::candidate(&library, &config.ofi, ranks),
                Err(cause) => return Opened::Absent(failed(cause.to_string())),
            },
        };
        candidate.map_or_else(Opened::Refused, Opened::Ready)
    }
}

/// The state of a network on a rank.
#[derive(Debug)]
enum Opened {
    Ready(Box<dyn Candidate>),
    /// The rank has a device or a library, and cannot use it.
    Refused(Error),
    /// The rank has no device or library.
    Absent(Error),
    /// The user's choice does not allow it.
    Excluded,
}

impl Opened {
    fn scope(&self) -> Option<Scope> {
        match self {
            Opened::Ready(candidate) => Some(candidate.scope()),
            _ => None,
        }
    }

    /// Returns what this rank tells the others about it.
    fn offer(&self) -> Offer {
        match self {
            Opened::Ready(candidate) => Offer::Ready(Ready {
                network: candidate.network().to_owned(),
                device: candidate.device().to_owned(),
                scope: candidate.scope(),
                stack: network_stack(),
                host: host_name(),
                passed_over: candidate.passed_over().map(str::to_owned),
                introduction: candidate.introduction(),
            }),
            Opened::Refused(error) => Offer::Refused(reason(error)),
            Opened::Absent(error) => Offer::Absent(reason(error)),
            Opened::Excluded => Offer::Excluded,
        }
    }
}

/// The networks of this machine, as this rank has opened them.
#[derive(Debug)]
pub(super) struct Networks {
    opened: [Opened; NETWORKS.len()],
    ranks: (u32, u32),
}

impl Networks {
    /// Opens the networks for a rank, given with the number of ranks.
    ///
    /// # Errors
    /// Wrong settings.
    pub(super) fn open(ranks: (u32, u32), config: &Config, measured: &HwConfig) -> Result<Self> {
        let opened = NETWORKS.map(|network| network.open(ranks, config, measured));
        match opened.iter().find(|it| matches!(it, Opened::Refused(Error::Config(_)))) {
            Some(Opened::Refused(error)) => Err(error.clone()),
            _ => Ok(Networks { opened, ranks }),
        }
    }
}

/// How ranks tell each other about themselves.
pub(super) struct Meeting<'s, F> {
    /// The secret that the ranks share and never send.
    pub(super) secret: &'s Secret,
    /// Gives every rank's bytes to every rank, in rank order, by a deadline.
    pub(super) gather: F,
    /// Whether ranks may meet a second time, when a host has an interface that it did not have before.
    pub(super) has_another: bool,
    /// The ranks for texts, where those that join are some of a world and count as 0, 1, …
    pub(super) named: Option<&'s [u32]>,
}

/// Joins a world by the network that all its ranks agree on.
///
/// # Errors
/// Those of the meeting. No network can be used by all ranks. A rank does not come, or cannot be reached.
pub(super) fn join<F: Fn(&[u8], Instant) -> Result<Vec<Vec<u8>>>>(
    Networks { mut opened, ranks }: Networks,
    config: &Config,
    measured: &HwConfig,
    Meeting { secret, gather, has_another, named }: Meeting<'_, F>,
) -> Result<Arc<dyn NetworkFabric>> {
    let rank = ranks.0;
    let name = |rank: u32| named.map_or(rank, |named| named[rank as usize]);
    let failed = |cause: String| Error::join(rank, cause);
    // Opening may have taken long, and the other ranks may have arrived meanwhile.
    let until = Deadline::from(config.deadline).instant();
    let meet = |opened: &[Opened; NETWORKS.len()]| -> Result<Vec<Offers>> {
        let own = opened.each_ref().map(Opened::offer);
        // A rank that can use no network meets the others, too, so that they learn the reason at once.
        let given = gather(&encode(&own), until)?;
        let offers = given.iter().zip(0..).map(|(bytes, peer)| {
            let how = match bytes.is_empty() {
                true => "has failed already; its own error says why",
                false => "introduced itself in a way that this version does not understand",
            };
            decode(bytes).ok_or_else(|| failed(format!("rank {} {how}", name(peer))))
        });
        offers.collect()
    };
    let mut offers = meet(&opened)?;
    if has_another && is_worth_a_wait(&offers) {
        if offers[rank as usize].iter().any(Offer::may_lead_further) {
            let last = until - (config.deadline / 4).min(FOR_MEETING_AGAIN);
            wait_for_an_interface(&mut opened, (ranks, config, measured), last)?;
        }
        offers = meet(&opened)?;
    }
    let chosen = choose(&offers, named).map_err(|problem| match &opened {
        // The typed error of the only network that this rank may use.
        [Opened::Excluded, Opened::Refused(own) | Opened::Absent(own)]
        | [Opened::Refused(own) | Opened::Absent(own), Opened::Excluded] => match own.clone() {
            Error::Join { rank, cause } => Error::join(rank, format!("on {}: {cause}", host_name())),
            other => other,
        },
        _ => failed(problem),
    })?;
    let network = NETWORKS[chosen].name();
    tracing::debug!(rank, network, own = ?offers[rank as usize], "joins");
    if rank == 0 {
        warn_of_worse(&offers, chosen, name);
        warn_of_passed_over(&offers, chosen, name);
    }
    let introductions: Vec<Vec<u8>> = offers.iter().map(|offers| offers[chosen].introduction().to_vec()).collect();
    let Opened::Ready(candidate) = std::mem::replace(&mut opened[chosen], Opened::Excluded) else {
        return Err(failed(format!("this rank did not offer {network}")));
    };
    // The other networks close before the world begins.
    drop(opened);
    candidate.join(&introductions, named, secret, until).map_err(|error| {
        match (error, config.fabric, NETWORKS[chosen]) {
            (Error::Join { rank, cause }, FabricChoice::Auto, Network::Verbs) => {
                Error::join(rank, format!("{cause}; EARLYBIRD_PROVIDER='tcp;ofi_rxm' does without RDMA"))
            }
            (error, ..) => error,
        }
    })
}

/// As [`join`], for some of the ranks of a world, which are `members` there and `rank` among themselves. They meet by an
/// exchange of all ranks of that world, in which a rank takes part whatever happens to it.
pub(super) fn join_among(
    (rank, members): (u32, &[u32]),
    (config, measured): (&Config, &HwConfig),
    secret: &Secret,
    exchange: impl Fn(&[u8]) -> Result<Vec<Vec<u8>>>,
) -> Result<Arc<dyn NetworkFabric>> {
    let told = Cell::new(false);
    let gather = |mine: &[u8], _: Instant| {
        told.set(true);
        let all = exchange(mine)?;
        Ok(members.iter().map(|&member| all[member as usize].clone()).collect())
    };
    // All ranks meet equally often.
    let meeting = Meeting { secret, gather, has_another: false, named: None };
    let networks = Networks::open((rank, members.len() as u32), config, measured);
    let joined = networks.and_then(|networks| join(networks, config, measured, meeting));
    if !told.get() {
        // The error of this rank says more than one of the exchange.
        let _ = exchange(&[]);
    }
    joined
}

/// The time left for ranks to meet again and to connect, after one of them has waited for an interface in vain.
const FOR_MEETING_AGAIN: Duration = Duration::from_secs(5);

/// How often a rank polls for another interface.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until libfabric has an address here that leads to all hosts, at the latest until `last`, and opens the best
/// interface that has come up.
fn wait_for_an_interface(
    opened: &mut [Opened; NETWORKS.len()],
    (ranks, config, measured): ((u32, u32), &Config, &HwConfig),
    last: Instant,
) -> Result<()> {
    let before = opened.each_ref().map(Opened::scope);
    let Some(index) = NETWORKS.iter().position(|&network| network == Network::Ofi) else { return Ok(()) };
    let library = ofi::library().map_err(|cause| Error::join(ranks.0, cause))?;
    tracing::warn!(rank = ranks.0, "waits for a network interface that leads to other hosts");
    let now = loop {
        let now = ofi::chosen(&library, &config.ofi).ok().map(|chosen| chosen.scope);
        if now == Some(Scope::Anywhere) || Instant::now() >= last {
            break now;
        }
        interrupt::check(ranks.0, "join")?;
        std::thread::sleep(LOOK);
    };
    if now > before[index] {
        opened[index] = NETWORKS[index].open(ranks, config, measured);
    }
    Ok(())
}

/// Adds a likely explanation to the error of a meeting that did not come about: this rank has no way to other hosts.
pub(super) fn explain(error: Error, networks: Option<&Networks>, (config, measured): (&Config, &HwConfig)) -> Error {
    let Error::Join { rank, cause } = &error else { return error };
    if config.ofi.on_one_machine {
        return error;
    }
    let offers = match networks {
        Some(networks) => networks.opened.each_ref().map(Opened::offer),
        None => NETWORKS.map(|network| network.open((*rank, *rank + 1), config, measured).offer()),
    };
    let alone = offers.iter().find_map(|offer| match offer {
        Offer::Ready(ready) if ready.scope == Scope::Machine => Some(ready),
        _ => None,
    });
    let Some(Ready { network, device, .. }) = alone else { return error };
    Error::join(*rank, format!("{cause} (this rank has {network} on {device} only, which leads to no other host)"))
}

/// Warns if a rank does not use what would be better on the chosen network.
fn warn_of_passed_over(offers: &[Offers], chosen: usize, name: impl Fn(u32) -> u32) {
    let passed_over = offers.iter().zip(0..).find_map(|(offers, rank): (_, u32)| {
        let Offer::Ready(ready) = &offers[chosen] else { return None };
        Some((rank, ready, ready.passed_over.as_ref()?))
    });
    if let Some((rank, ready, why)) = passed_over {
        let rank = name(rank);
        tracing::warn!("{} on {} is used at rank {rank}, because {why}", ready.network, ready.device);
    }
}

/// Warns if a rank has devices of a better network than the chosen one and cannot use them.
fn warn_of_worse(offers: &[Offers], chosen: usize, name: impl Fn(u32) -> u32) {
    for (index, network) in NETWORKS.iter().enumerate().take(chosen) {
        let refused = offers.iter().zip(0..).find_map(|(offers, rank): (_, u32)| match &offers[index] {
            Offer::Refused(reason) => Some((rank, reason)),
            _ => None,
        });
        if let Some((rank, reason)) = refused {
            let (better, used, rank) = (network.name(), NETWORKS[chosen].name(), name(rank));
            tracing::warn!("{used} is used, and not {better}, because of rank {rank}: {reason}");
        }
    }
}

/// The maximum length of a reason, in bytes.
const MOST_REASON: usize = 400;

/// Returns why a network cannot be used on this host. The text omits the rank, which the others see anyway.
fn reason(error: &Error) -> String {
    let text = match error {
        Error::Join { cause, .. } => format!("on {}: {cause}", host_name()),
        other => format!("on {}: {other}", host_name()),
    };
    text[..text.floor_char_boundary(MOST_REASON)].to_owned()
}
