//! What ranks offer each other to carry their world, and the choice that every rank computes from all offers.
#![forbid(unsafe_code)]

use std::fmt;

use crate::bootstrap::store::frame::{decode_world, encode_world};
use crate::fabric::Scope;

/// A network that may carry a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    Verbs,
    Ofi,
}

/// All networks, in order of preference: the ranks use the first one that every rank can use.
pub(super) const NETWORKS: [Network; 2] = [Network::Verbs, Network::Ofi];

impl Network {
    pub(super) fn name(self) -> &'static str {
        match self {
            Network::Verbs => "verbs",
            Network::Ofi => "libfabric",
        }
    }
}

/// What a rank says about one network.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Offer {
    /// The rank can use it.
    Ready(Ready),
    /// The rank has a device or a library, and cannot use it for this reason.
    Refused(String),
    /// The rank has no device or library, for this reason.
    Absent(String),
    /// The rank's user allows only other networks.
    Excluded,
}

/// A network that a rank can use.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Ready {
    /// The kind of the network, which must be the same on all ranks.
    pub(super) network: String,
    pub(super) device: String,
    /// Which hosts reach the rank's address on this network.
    pub(super) scope: Scope,
    /// The same text for ranks that reach each other whatever the scope is.
    pub(super) stack: String,
    /// The name of the rank's host.
    pub(super) host: String,
    /// What would have been better, and why it is not used.
    pub(super) passed_over: Option<String>,
    pub(super) introduction: Vec<u8>,
}

/// What a rank says about each network.
pub(super) type Offers = [Offer; NETWORKS.len()];

/// Omits the introduction, which holds secrets.
impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Offer::Ready(Ready { network, device, scope, .. }) => {
                f.debug_tuple("Ready").field(network).field(device).field(scope).finish()
            }
            Offer::Refused(reason) => f.debug_tuple("Refused").field(reason).finish(),
            Offer::Absent(reason) => f.debug_tuple("Absent").field(reason).finish(),
            Offer::Excluded => f.write_str("Excluded"),
        }
    }
}

impl Offer {
    pub(super) fn ready(&self) -> Option<&Ready> {
        match self {
            Offer::Ready(ready) => Some(ready),
            _ => None,
        }
    }

    /// Returns whether another interface would lead to more hosts, once it is up.
    pub(super) fn may_lead_further(&self) -> bool {
        self.ready().is_some_and(|ready| ready.scope < Scope::Anywhere)
    }

    /// Returns why the rank cannot use it; `None` if it can.
    fn lack(&self) -> Option<&str> {
        match self {
            Offer::Ready(_) => None,
            Offer::Refused(reason) | Offer::Absent(reason) => Some(reason),
            Offer::Excluded => Some("its user chose another"),
        }
    }

    /// Returns the introduction; empty from a rank that cannot use the network.
    pub(super) fn introduction(&self) -> &[u8] {
        match self {
            Offer::Ready(ready) => &ready.introduction,
            _ => &[],
        }
    }
}

/// Returns whether ranks should wait for another interface. They should if they are on several hosts, or use several
/// interfaces of one host, and one of them may reach more hosts soon, unless all ranks can use another network now.
pub(super) fn is_worth_a_wait(offers: &[Offers]) -> bool {
    (0..NETWORKS.len()).any(|index| {
        let ready: Option<Vec<&Ready>> = offers.iter().map(|offers| offers[index].ready()).collect();
        let Some(ready) = ready else { return false };
        let same = |one: &&Ready| one.stack == ready[0].stack && one.scope == ready[0].scope;
        let waits = offers.iter().any(|offers| offers[index].may_lead_further()) && !ready.iter().all(same);
        waits && choose(offers, None).ok().is_none_or(|chosen| chosen == index)
    })
}

/// Returns the network that ranks with these offers use, the same on all ranks; or why there is none. `named` are the ranks
/// for the text, where others than 0, 1, …
pub(super) fn choose(offers: &[Offers], named: Option<&[u32]>) -> std::result::Result<usize, String> {
    let name = |rank: usize| named.map_or(rank, |named| named[rank] as usize);
    // Returns why some rank cannot use a network.
    let lack = |index: usize| {
        let lacks = |(rank, one): (usize, &Offers)| {
            let alone = || is_alone(&one[index], offers.iter().map(|offers| &offers[index]));
            let lack = one[index].lack().map(str::to_owned).or_else(alone)?;
            Some(format!("{} not by rank {} ({lack})", NETWORKS[index].name(), name(rank)))
        };
        offers.iter().enumerate().find_map(lacks)
    };
    // Describes how two ranks differ that do not reach each other: by the kind of their devices, or their providers.
    let difference = |index: usize| {
        let of = |rank: usize| offers[rank][index].ready().map_or("", |ready| &ready.network);
        let other = (1..offers.len()).find(|&rank| of(rank) != of(0))?;
        let told = |rank: usize| {
            let why = offers[rank][index].ready().and_then(|ready| ready.passed_over.as_deref());
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            let host = offers[rank][index].ready().map_or("", |ready| &ready.host);
            format!("{} on rank {} on {host}{why}", of(rank), name(rank))
        };
        Some(format!("{} is {} and {}", NETWORKS[index].name(), told(0), told(other)))
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

/// Returns why a rank with another offer cannot reach a rank with this one: its address leads only to its own machine.
fn is_alone<'a>(own: &Offer, mut others: impl Iterator<Item = &'a Offer>) -> Option<String> {
    let own = own.ready().filter(|ready| ready.scope == Scope::Machine)?;
    let is_elsewhere = |other: &Offer| other.ready().is_some_and(|other| other.stack != own.stack);
    others.any(is_elsewhere).then(|| {
        format!(
            "on {}: it has {} on {} only, which leads to no other host; bring a network interface up, or let ranks wait for one \
             longer: EARLYBIRD_DEADLINE",
            own.host, own.network, own.device
        )
    })
}

/// Names the order of the networks, too: a version with another order has another magic number.
const MAGIC: [u8; 4] = *b"EBN2";

/// The parts of an encoded offer.
const PARTS: usize = 8;

const SCOPES: [Scope; 3] = [Scope::Machine, Scope::Link, Scope::Anywhere];

pub(super) fn encode(offers: &Offers) -> Vec<u8> {
    let parts = |offer: &Offer| -> [Vec<u8>; PARTS] {
        let other = |kind: &[u8], reason: &str| {
            let mut parts: [Vec<u8>; PARTS] = Default::default();
            (parts[0], parts[1]) = (kind.to_vec(), reason.into());
            parts
        };
        match offer {
            Offer::Ready(Ready { network, device, scope, stack, host, passed_over, introduction }) => [
                b"ready".to_vec(),
                network.clone().into(),
                introduction.clone(),
                device.clone().into(),
                vec![SCOPES.iter().position(|one| one == scope).unwrap_or(0) as u8],
                stack.clone().into(),
                host.clone().into(),
                passed_over.clone().unwrap_or_default().into(),
            ],
            Offer::Refused(reason) => other(b"refused", reason),
            Offer::Absent(reason) => other(b"absent", reason),
            Offer::Excluded => other(b"excluded", ""),
        }
    };
    let parts: Vec<Vec<u8>> = offers.iter().flat_map(parts).collect();
    [&MAGIC[..], &encode_world(&parts)].concat()
}

/// Decodes offers; `None` for bytes that are not offers, or are of another version.
pub(super) fn decode(bytes: &[u8]) -> Option<Offers> {
    let parts = decode_world(bytes.strip_prefix(&MAGIC)?, (PARTS * NETWORKS.len()) as u32)?;
    let offer = |parts: &[Vec<u8>]| {
        let [kind, text, rest @ ..] = parts else { return None };
        let string = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok();
        let text = string(text)?;
        match (kind.as_slice(), rest) {
            (b"ready", [introduction, device, scope, stack, host, passed_over]) => Some(Offer::Ready(Ready {
                network: text,
                device: string(device)?,
                scope: *SCOPES.get(usize::from(*<&[u8; 1]>::try_from(&scope[..]).ok()?.first()?))?,
                stack: string(stack)?,
                host: string(host)?,
                passed_over: Some(string(passed_over)?).filter(|why| !why.is_empty()),
                introduction: introduction.clone(),
            })),
            (_, rest) if rest.iter().any(|part| !part.is_empty()) => None,
            (b"refused", _) => Some(Offer::Refused(text)),
            (b"absent", _) => Some(Offer::Absent(text)),
            (b"excluded", _) if text.is_empty() => Some(Offer::Excluded),
            _ => None,
        }
    };
    let offers: Vec<Offer> = parts.chunks_exact(PARTS).map(offer).collect::<Option<_>>()?;
    offers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready(network: &str) -> Offer {
        at(network, "a", Scope::Anywhere)
    }

    /// Of a rank on a host, by an interface that leads so far.
    fn at(network: &str, stack: &str, scope: Scope) -> Offer {
        Offer::Ready(Ready {
            network: network.to_owned(),
            device: if scope == Scope::Machine { "lo" } else { "eth0" }.to_owned(),
            scope,
            stack: stack.to_owned(),
            host: "node07".to_owned(),
            passed_over: None,
            introduction: vec![171, 205],
        })
    }

    /// Of a rank that would have preferred something else.
    fn instead(network: &str, passed_over: &str) -> Offer {
        let Offer::Ready(ready) = ready(network) else { unreachable!() };
        Offer::Ready(Ready { passed_over: Some(passed_over.to_owned()), ..ready })
    }

    fn absent(reason: &str) -> Offer {
        Offer::Absent(reason.to_owned())
    }

    #[test]
    fn offers_survive_encoding() {
        let refused = Offer::Refused("no active port".to_owned());
        let [tcp, alone] = [instead("tcp", "ulimit -l is 8 MiB"), at("tcp", "b", Scope::Machine)];
        for offers in [[ready("RoCE v2"), absent("libfabric is missing")], [refused, Offer::Excluded], [tcp, alone]] {
            let bytes = encode(&offers);
            assert_eq!(decode(&bytes), Some(offers));
            (0..bytes.len()).for_each(|len| assert_eq!(decode(&bytes[..len]), None));
            assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn what_is_logged_holds_no_secret() {
        assert_eq!(format!("{:?}", ready("tcp")), "Ready(\"tcp\", \"eth0\", Anywhere)");
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
            choose(&offers.iter().copied().cloned().collect::<Vec<_>>(), None).map(|index| NETWORKS[index])
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
        let reasons = "verbs is RoCE v2 on rank 0 on node07 and InfiniBand on rank 1 on node07; libfabric is tcp on rank 0 on node07 and psm3 on rank 1 on node07";
        assert!(told.contains(reasons), "{told}");
        let told = problem(&[&only_verbs, &only_libfabric]);
        let reasons = "verbs not by rank 1 (its user chose another); libfabric not by rank 0 (its user chose another)";
        assert!(told.contains(reasons), "{told}");
    }
    /// The limits of locked memory of two hosts differ.
    #[test]
    fn ranks_that_take_different_providers_say_why() {
        let why = "verbs;ofi_rxm on mlx5_0 needs locked memory, and ulimit -l is 8 MiB";
        let offers = [[Offer::Excluded, ready("verbs;ofi_rxm")], [Offer::Excluded, instead("tcp;ofi_rxm", why)]];
        // The error that follows says how they differ.
        assert_eq!(choose(&offers, None), Ok(1));
        let offers = offers.map(|[_, libfabric]| [absent("no RDMA device"), libfabric]);
        let told = choose(&offers, None).unwrap_err();
        let expected =
            format!("libfabric is verbs;ofi_rxm on rank 0 on node07 and tcp;ofi_rxm on rank 1 on node07 ({why}); ");
        assert!(told.contains(&expected), "{told}");
    }

    #[test]
    fn ranks_wait_for_an_interface_that_leads_to_other_hosts() {
        let none = || absent("no RDMA device");
        let [far, link, near] = [Scope::Anywhere, Scope::Link, Scope::Machine];
        let meet = |hosts: &[(&str, Scope)]| {
            let offers: Vec<Offers> = hosts.iter().map(|&(stack, scope)| [none(), at("tcp", stack, scope)]).collect();
            (is_worth_a_wait(&offers), choose(&offers, None))
        };
        assert_eq!(meet(&[("a", far), ("b", far)]), (false, Ok(1)));
        // One host without a network.
        assert_eq!(meet(&[("a", near), ("a", near)]), (false, Ok(1)));
        assert_eq!(meet(&[("a", link), ("a", link)]), (false, Ok(1)));
        // Its interface came up between the two.
        assert_eq!(meet(&[("a", near), ("a", far)]), (true, Ok(1)));
        // Such addresses may lead to the next host.
        assert_eq!(meet(&[("a", far), ("b", link)]), (true, Ok(1)));
        for hosts in [[("a", far), ("b", near)], [("b", near), ("c", near)]] {
            let (waits, chosen) = meet(&hosts);
            let told = chosen.unwrap_err();
            let rank = hosts.iter().position(|&(_, scope)| scope == near).unwrap();
            let named = format!(
                "libfabric not by rank {rank} (on node07: it has tcp on lo only, which leads to no other host; "
            );
            assert!(waits && told.contains(&named) && told.contains("EARLYBIRD_DEADLINE"), "{told}");
        }
        // They have a better network.
        let rdma = |stack| [at("RoCE v2", stack, far), at("tcp", stack, near)];
        let offers = [rdma("a"), rdma("b")];
        assert_eq!((is_worth_a_wait(&offers), choose(&offers, None)), (false, Ok(0)));
        // A wait would not help.
        let offers = [[none(), at("tcp", "a", near)], [none(), absent("libfabric is missing")]];
        assert!(!is_worth_a_wait(&offers) && choose(&offers, None).is_err());
    }
}
