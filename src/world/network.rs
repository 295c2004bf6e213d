//! How ranks that share no memory choose a network: each rank offers those that it can use, and all
//! ranks take the best one that every rank offers.

use std::sync::Arc;

use crate::bootstrap::identity::Identity;
use crate::bootstrap::store::{self, Secret};
use crate::config::{Config, FabricChoice};
use crate::error::{Error, Result};
use crate::fabric::ofi::{self, OfiFabric};
use crate::fabric::verbs::{self, VerbsFabric};
use crate::fabric::{Candidate, Fabric};
use crate::model::HwConfig;
use crate::time::Deadline;

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
    fn open(self, ranks: (u32, u32), config: &Config, measured: &HwConfig) -> Result<Box<dyn Candidate>> {
        match self {
            Network::Verbs => {
                let library = verbs::library().map_err(|cause| Error::join(ranks.0, cause))?;
                VerbsFabric::candidate(&library, &config.verbs.or(measured.verbs()), ranks)
            }
            Network::Ofi => {
                let library = ofi::library().map_err(|cause| Error::join(ranks.0, cause))?;
                OfiFabric::candidate(&library, &config.ofi, ranks)
            }
        }
    }
}

/// Joins the world of the job by the network that all ranks agree on.
///
/// # Errors
/// This rank can use no network, before it meets the others; no network is common to all ranks; a rank does not come, or
/// cannot be reached.
pub(super) fn join(identity: &Identity, config: &Config, measured: &HwConfig) -> Result<Arc<dyn Fabric>> {
    let ranks = (identity.rank, identity.ranks);
    let failed = |cause: String| Error::join(identity.rank, cause);
    let place = identity.store_address()?;
    let secret = Secret::new(config.job_secret()?.as_deref(), &identity.job);
    let until = Deadline::from(config.deadline).instant();
    let mut opened = NETWORKS.map(|network| match network.is_allowed(config) {
        true => network.open(ranks, config, measured).map_err(Some),
        false => Err(None),
    });
    if opened.iter().all(std::result::Result::is_err) {
        let mut reasons: Vec<Error> = opened.into_iter().filter_map(std::result::Result::err).flatten().collect();
        return Err(match reasons.len() {
            1 => reasons.remove(0),
            _ => failed(reasons.iter().map(reason).collect::<Vec<_>>().join("; ")),
        });
    }
    let mine = encode(&opened.each_ref().map(Offer::of));
    let given = store::gather(&place, ranks, &mine, &secret, config.deadline)?;
    let offers = given.iter().zip(0..).map(|(bytes, peer)| {
        let strange =
            || failed(format!("rank {peer} introduced itself in a way that this version does not understand"));
        decode(bytes).ok_or_else(strange)
    });
    let offers: Vec<Offers> = offers.collect::<Result<_>>()?;
    let chosen = choose(&offers).map_err(failed)?;
    let network = NETWORKS[chosen].name();
    tracing::debug!(rank = identity.rank, network, others = ?offers[identity.rank as usize], "joins");
    let introductions: Vec<Vec<u8>> = offers.iter().map(|offers| offers[chosen].introduction().to_vec()).collect();
    let unused = || failed(format!("this rank did not offer {network}"));
    let candidate = std::mem::replace(&mut opened[chosen], Err(None)).map_err(|_| unused())?;
    // The others close before the world begins.
    drop(opened);
    candidate.join(&introductions, until)
}

/// Why a network cannot be used, without the rank and the operation, which the others see anyway.
fn reason(error: &Error) -> String {
    match error {
        Error::Join { cause, .. } => cause.clone(),
        other => other.to_string(),
    }
}

/// What a rank says of one network.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Offer {
    /// It can use it, and introduces itself there.
    Ready { network: String, introduction: Vec<u8> },
    /// It cannot, for this reason.
    Refused(String),
}

/// What a rank says of each network.
type Offers = [Offer; NETWORKS.len()];

/// Most bytes of a reason: the rank that has it says all of it.
const MOST_REASON: usize = 400;

impl Offer {
    fn of(opened: &std::result::Result<Box<dyn Candidate>, Option<Error>>) -> Self {
        match opened {
            Ok(candidate) => {
                Offer::Ready { network: candidate.network().to_owned(), introduction: candidate.introduction() }
            }
            Err(None) => Offer::Refused("EARLYBIRD_FABRIC or EARLYBIRD_PROVIDER excludes it".to_owned()),
            Err(Some(error)) => {
                let reason = reason(error);
                Offer::Refused(reason[..reason.floor_char_boundary(MOST_REASON)].to_owned())
            }
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self, Offer::Ready { .. })
    }

    fn network(&self) -> Option<&str> {
        match self {
            Offer::Ready { network, .. } => Some(network),
            Offer::Refused(_) => None,
        }
    }

    /// Nothing from a rank that cannot use the network.
    fn introduction(&self) -> &[u8] {
        match self {
            Offer::Ready { introduction, .. } => introduction,
            Offer::Refused(_) => &[],
        }
    }
}

/// The network that ranks with these offers use, which all of them decide alike; or why there is none.
fn choose(offers: &[Offers]) -> std::result::Result<usize, String> {
    let is_common = |network: &usize| offers.iter().all(|offers| offers[*network].is_ready());
    // Devices of two kinds do not reach each other, and providers neither.
    let is_alike =
        |network: &usize| offers.windows(2).all(|two| two[0][*network].network() == two[1][*network].network());
    let mut common = (0..NETWORKS.len()).filter(is_common);
    // Where none is alike on all ranks, the error of the best one tells how they differ.
    let best = common.clone().find(is_alike).or_else(|| common.next());
    best.ok_or_else(|| {
        let lack = NETWORKS.iter().enumerate().filter_map(|(index, network)| {
            let lacks = |(rank, offers): (usize, &Offers)| match &offers[index] {
                Offer::Ready { .. } => None,
                Offer::Refused(reason) => Some(format!("{} not by rank {rank} ({reason})", network.name())),
            };
            offers.iter().enumerate().find_map(lacks)
        });
        format!("no network can be used by all ranks: {}", lack.collect::<Vec<_>>().join("; "))
    })
}

const MAGIC: [u8; 4] = *b"EBN1";

fn encode(offers: &Offers) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let mut put = |part: &[u8]| {
        bytes.extend((part.len() as u32).to_le_bytes());
        bytes.extend(part);
    };
    for offer in offers {
        match offer {
            Offer::Ready { network, introduction } => {
                put(b"ready");
                put(network.as_bytes());
                put(introduction);
            }
            Offer::Refused(reason) => {
                put(b"refused");
                put(reason.as_bytes());
            }
        }
    }
    bytes
}

/// `None` for bytes that are no offers, or of another version.
fn decode(bytes: &[u8]) -> Option<Offers> {
    let mut rest = bytes.strip_prefix(&MAGIC)?;
    let mut part = || -> Option<Vec<u8>> {
        let (len, after) = rest.split_first_chunk()?;
        let (part, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        rest = after;
        Some(part.to_vec())
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
    let mut offer = || match part()?.as_slice() {
        b"ready" => Some(Offer::Ready { network: text(part()?)?, introduction: part()? }),
        b"refused" => Some(Offer::Refused(text(part()?)?)),
        _ => None,
    };
    let offers = [offer()?, offer()?];
    rest.is_empty().then_some(offers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(network: &str) -> Offer {
        Offer::Ready { network: network.to_owned(), introduction: vec![1, 2] }
    }

    fn refused(reason: &str) -> Offer {
        Offer::Refused(reason.to_owned())
    }

    #[test]
    fn offers_survive_encoding() {
        let offers = [ready("RoCE v2"), refused("libfabric is missing")];
        let bytes = encode(&offers);
        assert_eq!(decode(&bytes), Some(offers));
        (0..bytes.len()).for_each(|len| assert_eq!(decode(&bytes[..len]), None));
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
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
        let no_device = [refused("no RDMA device"), ready("tcp")];
        let no_library = [ready("RoCE v2"), refused("libfabric is missing")];
        let infiniband = [ready("InfiniBand"), ready("tcp")];
        let other_provider = [ready("InfiniBand"), ready("psm3")];
        let chosen = |offers: &[&Offers]| {
            choose(&offers.iter().copied().cloned().collect::<Vec<_>>()).map(|index| NETWORKS[index])
        };
        assert_eq!(chosen(&[&all]), Ok(Network::Verbs));
        assert_eq!(chosen(&[&all, &no_library]), Ok(Network::Verbs));
        assert_eq!(chosen(&[&all, &no_device, &all]), Ok(Network::Ofi));
        assert_eq!(chosen(&[&all, &infiniband]), Ok(Network::Ofi));
        // The error that follows says how they differ.
        assert_eq!(chosen(&[&all, &other_provider]), Ok(Network::Verbs));
        let problem = chosen(&[&all, &no_library, &no_device]).unwrap_err();
        let all_told = "verbs not by rank 2 (no RDMA device); libfabric not by rank 1 (libfabric is missing)";
        assert!(problem.ends_with(all_told), "{problem}");
    }
}
