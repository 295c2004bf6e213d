//! How ranks that share no memory choose a network: each rank offers those that it can use, and all
//! ranks take the best one that every rank offers.

use std::fmt;
use std::sync::Arc;

use crate::bootstrap::store::frame::{decode_world, encode_world};
use crate::config::{Config, FabricChoice};
use crate::error::{Error, Result};
use crate::fabric::ofi::{self, OfiFabric};
use crate::fabric::verbs::{self, ENOUGH_LOCKED_MEMORY, VerbsFabric};
use crate::fabric::{Candidate, Fabric};
use crate::model::HwConfig;
use crate::time::Deadline;
use crate::units::Bytes;

/// A network that may carry a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Verbs,
    Ofi,
}

/// All of them. The first one that every rank can use is taken.
const NETWORKS: [Network; 2] = [Network::Verbs, Network::Ofi];

impl Network {
    fn name(self) -> &'static str {
        match self {
            Network::Verbs => "verbs",
            Network::Ofi => "libfabric",
        }
    }

    /// Whether the user's choice allows it: a rank that is told to use a provider of libfabric uses no other network.
    fn is_allowed(self, config: &Config) -> bool {
        match (config.fabric, self) {
            (FabricChoice::Verbs, Network::Verbs) | (FabricChoice::Ofi | FabricChoice::Auto, Network::Ofi) => true,
            (FabricChoice::Auto, Network::Verbs) => config.ofi.provider.is_none(),
            _ => false,
        }
    }

    /// Opens what this machine has of it.
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

/// What a rank has of a network.
#[derive(Debug)]
enum Opened {
    Ready(Box<dyn Candidate>),
    /// It has a device or a library, and cannot use it.
    Refused(Error),
    /// It has none.
    Absent(Error),
    /// The user's choice does not allow it.
    Excluded,
}

/// Joins a world by the network that all its ranks agree on. `gather` gives every rank's bytes to every rank, in rank order.
///
/// # Errors
/// As `gather`. Settings that are wrong, before this rank meets the others; no network can be used by all ranks; a rank does not come,
/// or cannot be reached.
pub(super) fn join(
    (rank, ranks): (u32, u32),
    config: &Config,
    measured: &HwConfig,
    gather: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>,
) -> Result<Arc<dyn Fabric>> {
    let failed = |cause: String| Error::join(rank, cause);
    let mut opened = NETWORKS.map(|network| network.open((rank, ranks), config, measured));
    if let Some(Opened::Refused(error)) = opened.iter().find(|it| matches!(it, Opened::Refused(Error::Config(_)))) {
        return Err(error.clone());
    }
    // Opening may take long, and the others may come meanwhile.
    let until = Deadline::from(config.deadline).instant();
    let mine = encode(&opened.each_ref().map(Offer::of));
    // A rank that can use nothing comes, too: so the others learn why at once.
    let given = gather(&mine)?;
    let offers = given.iter().zip(0..).map(|(bytes, peer)| {
        let strange = || match bytes.is_empty() {
            true => failed(format!("rank {peer} has failed already; its own error says why")),
            false => failed(format!("rank {peer} introduced itself in a way that this version does not understand")),
        };
        decode(bytes).ok_or_else(strange)
    });
    let offers: Vec<Offers> = offers.collect::<Result<_>>()?;
    let chosen = choose(&offers).map_err(|problem| match &opened {
        // The typed error of the only network that this rank may use.
        [Opened::Excluded, Opened::Refused(own) | Opened::Absent(own)]
        | [Opened::Refused(own) | Opened::Absent(own), Opened::Excluded] => own.clone(),
        _ => failed(problem),
    })?;
    let network = NETWORKS[chosen].name();
    tracing::debug!(rank, network, own = ?offers[rank as usize], "joins");
    if rank == 0 {
        warn_of_worse(&offers, chosen);
    }
    let introductions: Vec<Vec<u8>> = offers.iter().map(|offers| offers[chosen].introduction().to_vec()).collect();
    let Opened::Ready(candidate) = std::mem::replace(&mut opened[chosen], Opened::Excluded) else {
        return Err(failed(format!("this rank did not offer {network}")));
    };
    // The others close before the world begins.
    drop(opened);
    candidate.join(&introductions, until).map_err(|error| match (error, config.fabric, NETWORKS[chosen]) {
        (Error::Join { rank, cause }, FabricChoice::Auto, Network::Verbs) => {
            Error::join(rank, format!("{cause}; EARLYBIRD_FABRIC=ofi does without RDMA"))
        }
        (error, ..) => error,
    })
}

/// Says so if a rank has devices of a better network than the chosen one, which it cannot use.
fn warn_of_worse(offers: &[Offers], chosen: usize) {
    for (index, network) in NETWORKS.iter().enumerate().take(chosen) {
        let refused = offers.iter().zip(0..).find_map(|(offers, rank): (_, u32)| match &offers[index] {
            Offer::Refused(reason) => Some((rank, reason)),
            _ => None,
        });
        if let Some((rank, reason)) = refused {
            let (better, used) = (network.name(), NETWORKS[chosen].name());
            tracing::warn!("{used} is used, and not {better}, because of rank {rank}: {reason}");
        }
    }
}

/// Why a network cannot be used, without the rank, which the others see anyway.
fn reason(error: &Error) -> String {
    let text = match error {
        Error::Join { cause, .. } => cause.clone(),
        other => other.to_string(),
    };
    text[..text.floor_char_boundary(MOST_REASON)].to_owned()
}

/// What a rank says of one network.
#[derive(Clone, PartialEq, Eq)]
enum Offer {
    /// It can use it, and introduces itself there.
    Ready { network: String, introduction: Vec<u8> },
    /// It has a device or a library, and cannot use it for this reason.
    Refused(String),
    /// It has none, for this reason.
    Absent(String),
    /// Its user allows others only.
    Excluded,
}

/// What a rank says of each network.
type Offers = [Offer; NETWORKS.len()];

/// Without the introduction, which holds secrets.
impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Offer::Ready { network, .. } => f.debug_tuple("Ready").field(network).finish(),
            Offer::Refused(reason) => f.debug_tuple("Refused").field(reason).finish(),
            Offer::Absent(reason) => f.debug_tuple("Absent").field(reason).finish(),
            Offer::Excluded => f.write_str("Excluded"),
        }
    }
}

/// Most bytes of a reason.
const MOST_REASON: usize = 400;

impl Offer {
    fn of(opened: &Opened) -> Self {
        match opened {
            Opened::Ready(candidate) => {
                Offer::Ready { network: candidate.network().to_owned(), introduction: candidate.introduction() }
            }
            Opened::Refused(error) => Offer::Refused(reason(error)),
            Opened::Absent(error) => Offer::Absent(reason(error)),
            Opened::Excluded => Offer::Excluded,
        }
    }

    fn network(&self) -> Option<&str> {
        match self {
            Offer::Ready { network, .. } => Some(network),
            _ => None,
        }
    }

    /// Why the rank cannot use it; `None` if it can.
    fn lack(&self) -> Option<&str> {
        match self {
            Offer::Ready { .. } => None,
            Offer::Refused(reason) | Offer::Absent(reason) => Some(reason),
            Offer::Excluded => Some("its user chose another"),
        }
    }

    /// Nothing from a rank that cannot use the network.
    fn introduction(&self) -> &[u8] {
        match self {
            Offer::Ready { introduction, .. } => introduction,
            _ => &[],
        }
    }
}

/// The network that ranks with these offers use, which all of them decide alike; or why there is none.
fn choose(offers: &[Offers]) -> std::result::Result<usize, String> {
    // Why not all ranks can use a network.
    let lack = |index: usize| {
        let lacks = |(rank, offers): (usize, &Offers)| {
            Some(format!("{} not by rank {rank} ({})", NETWORKS[index].name(), offers[index].lack()?))
        };
        offers.iter().enumerate().find_map(lacks)
    };
    // How two ranks differ that do not reach each other: by the kind of their devices, or their providers.
    let difference = |index: usize| {
        let of = |rank: usize| offers[rank][index].network().unwrap_or_default();
        let other = (1..offers.len()).find(|&rank| of(rank) != of(0))?;
        Some(format!("{} is {} on rank 0 and {} on rank {other}", NETWORKS[index].name(), of(0), of(other)))
    };
    let is_excluded = |index: usize| offers.iter().all(|offers| offers[index] == Offer::Excluded);
    let common: Vec<usize> = (0..NETWORKS.len()).filter(|&index| lack(index).is_none()).collect();
    if let Some(&best) = common.iter().find(|&&index| difference(index).is_none()) {
        return Ok(best);
    }
    match common[..] {
        // The typed error of joining by the only network that was asked for says how they differ.
        [only] if (0..NETWORKS.len()).all(|index| index == only || is_excluded(index)) => Ok(only),
        _ => {
            let why = (0..NETWORKS.len()).filter_map(|index| lack(index).or_else(|| difference(index)));
            let hint = "EARLYBIRD_FABRIC and EARLYBIRD_PROVIDER choose one";
            Err(format!("no network can be used by all ranks: {}; {hint}", why.collect::<Vec<_>>().join("; ")))
        }
    }
}

/// Names the order of the networks, too: a version with another order has another one.
const MAGIC: [u8; 4] = *b"EBN1";

fn encode(offers: &Offers) -> Vec<u8> {
    let parts = |offer: &Offer| match offer {
        Offer::Ready { network, introduction } => [b"ready".to_vec(), network.clone().into(), introduction.clone()],
        Offer::Refused(reason) => [b"refused".to_vec(), reason.clone().into(), Vec::new()],
        Offer::Absent(reason) => [b"absent".to_vec(), reason.clone().into(), Vec::new()],
        Offer::Excluded => [b"excluded".to_vec(), Vec::new(), Vec::new()],
    };
    let parts: Vec<Vec<u8>> = offers.iter().flat_map(parts).collect();
    [&MAGIC[..], &encode_world(&parts)].concat()
}

/// `None` for bytes that are no offers, or of another version.
fn decode(bytes: &[u8]) -> Option<Offers> {
    let parts = decode_world(bytes.strip_prefix(&MAGIC)?, 3 * NETWORKS.len() as u32)?;
    let offer = |parts: &[Vec<u8>]| {
        let [kind, text, introduction] = parts else { return None };
        let text = String::from_utf8(text.clone()).ok()?;
        match (kind.as_slice(), introduction.as_slice()) {
            (b"ready", introduction) => Some(Offer::Ready { network: text, introduction: introduction.to_vec() }),
            (b"refused", []) => Some(Offer::Refused(text)),
            (b"absent", []) => Some(Offer::Absent(text)),
            (b"excluded", []) if text.is_empty() => Some(Offer::Excluded),
            _ => None,
        }
    };
    let offers: Vec<Offer> = parts.chunks_exact(3).map(offer).collect::<Option<_>>()?;
    offers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(network: &str) -> Offer {
        Offer::Ready { network: network.to_owned(), introduction: vec![171, 205] }
    }

    fn absent(reason: &str) -> Offer {
        Offer::Absent(reason.to_owned())
    }

    #[test]
    fn offers_survive_encoding() {
        let refused = Offer::Refused("no active port".to_owned());
        for offers in [[ready("RoCE v2"), absent("libfabric is missing")], [refused, Offer::Excluded]] {
            let bytes = encode(&offers);
            assert_eq!(decode(&bytes), Some(offers));
            (0..bytes.len()).for_each(|len| assert_eq!(decode(&bytes[..len]), None));
            assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn what_is_logged_holds_no_secret() {
        assert_eq!(format!("{:?}", ready("tcp")), "Ready(\"tcp\")");
    }

    proptest! {
        #[test]
        fn strange_bytes_are_no_offers(bytes: Vec<u8>) {
            for bytes in [bytes.clone(), [&MAGIC[..], &bytes].concat()] {
                if let Some(offers) = decode(&bytes) {
                    prop_assert_eq!(encode(&offers), bytes);
                }
            }
        }
    }

    #[test]
    fn the_best_network_of_all_is_chosen() {
        let all = [ready("RoCE v2"), ready("tcp")];
        let no_device = [absent("no RDMA device"), ready("tcp")];
        let no_library = [ready("RoCE v2"), absent("libfabric is missing")];
        let infiniband = [ready("InfiniBand"), ready("tcp")];
        let other_provider = [ready("InfiniBand"), ready("psm3")];
        let [only_verbs, only_libfabric] = [[ready("RoCE v2"), Offer::Excluded], [Offer::Excluded, ready("tcp")]];
        let chosen = |offers: &[&Offers]| {
            choose(&offers.iter().copied().cloned().collect::<Vec<_>>()).map(|index| NETWORKS[index])
        };
        assert_eq!(chosen(&[&all]), Ok(Network::Verbs));
        assert_eq!(chosen(&[&all, &no_library]), Ok(Network::Verbs));
        assert_eq!(chosen(&[&all, &only_verbs]), Ok(Network::Verbs));
        assert_eq!(chosen(&[&all, &no_device, &all]), Ok(Network::Ofi));
        assert_eq!(chosen(&[&all, &only_libfabric]), Ok(Network::Ofi));
        assert_eq!(chosen(&[&all, &infiniband]), Ok(Network::Ofi));
        // The error that follows says how they differ.
        assert_eq!(chosen(&[&only_verbs, &[ready("InfiniBand"), Offer::Excluded]]), Ok(Network::Verbs));
        let problem = |offers: &[&Offers]| chosen(offers).unwrap_err();
        let told = problem(&[&all, &no_library, &no_device]);
        let reasons = "verbs not by rank 2 (no RDMA device); libfabric not by rank 1 (libfabric is missing)";
        assert!(told.contains(reasons), "{told}");
        let told = problem(&[&all, &other_provider]);
        let reasons =
            "verbs is RoCE v2 on rank 0 and InfiniBand on rank 1; libfabric is tcp on rank 0 and psm3 on rank 1";
        assert!(told.contains(reasons), "{told}");
        let told = problem(&[&only_verbs, &only_libfabric]);
        let reasons = "verbs not by rank 1 (its user chose another); libfabric not by rank 0 (its user chose another)";
        assert!(told.contains(reasons), "{told}");
    }
}
