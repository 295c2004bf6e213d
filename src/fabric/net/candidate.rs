//! How a rank joins a world over a network: it opens an endpoint, tells the others about it, and connects it to theirs.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::engine::{NetEngine, Witnesses};
use super::fabric::{Neighbourhood, NetFabric, OverWire};
use super::link::Link;
use super::message::MOST_RANKS;
use super::peer_info::PeerInfo;
use super::secret::JobSecret;
use super::wire::Wire;
use crate::config::Patience;
use crate::error::{Error, HostNames, Result};
use crate::fabric::alarm::Alarm;
use crate::fabric::watch::{ENDED, Watch};
use crate::fabric::{Candidate, Fabric, NetworkFabric, Scope};
use crate::machine::{host_identity, host_name};
use crate::random::draw;
use crate::seal::Secret;

/// An open endpoint whose peers are not known yet.
pub(in crate::internals::fabric) struct Opened<W: Wire> {
    pub(in crate::internals::fabric) link: Link<W>,
    /// The provider, which must be the same on all ranks.
    pub(in crate::internals::fabric) provider: String,
    /// The address of the endpoint, as the provider encodes it.
    pub(in crate::internals::fabric) address: Vec<u8>,
    pub(in crate::internals::fabric) taken: Taken,
}

/// The device that was taken, for ranks that have a choice of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::internals::fabric) struct Taken {
    pub(in crate::internals::fabric) device: String,
    /// Which hosts can reach it.
    pub(in crate::internals::fabric) scope: Scope,
    /// What would have been better, and why it was not taken.
    pub(in crate::internals::fabric) passed_over: Option<String>,
}

/// An open endpoint, and what the other ranks must know about it.
#[derive(Debug)]
pub(in crate::internals::fabric) struct NetCandidate<F: OverWire> {
    rank: u32,
    ranks: u32,
    patience: Patience,
    link: Link<F::Wire>,
    own_info: PeerInfo,
    taken: Taken,
}

impl<F: OverWire> NetCandidate<F> {
    /// Opens an endpoint with `open`.
    ///
    /// # Errors
    /// The provider or `open` fails; the world has too many ranks.
    pub(in crate::internals::fabric) fn open(
        (rank, ranks): (u32, u32),
        patience: Patience,
        open: impl FnOnce() -> Result<Opened<F::Wire>>,
    ) -> Result<Self> {
        if ranks > MOST_RANKS {
            let library = F::Wire::LIBRARY;
            return Err(Error::join(rank, format!("{ranks} ranks; the most over {library} is {MOST_RANKS}")));
        }
        let Opened { link, provider, address, taken } = open()?;
        let own_info = PeerInfo {
            provider,
            host: host_identity(),
            host_name: host_name(),
            pid: std::process::id(),
            header_slots: link.header_slots(),
            cq_data: link.immediate() as u32,
            by_device: link.is_by_device(),
            in_order: link.wire.writes_in_order(),
            polls_memory: link.polls_memory(),
            nonce: draw(rank)?,
            address,
        };
        Ok(NetCandidate { rank, ranks, patience, link, own_info, taken })
    }

    /// Tells the others about it by `gather`, which gives every rank's bytes to every rank, in rank order. Then it
    /// joins the world.
    ///
    /// # Errors
    /// As `gather`, and as [`Candidate::join`].
    pub(in crate::internals::fabric) fn meet(
        self,
        deadline: Instant,
        gather: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>,
    ) -> Result<F> {
        let introductions = gather(&self.own_info.encode())?;
        // No other process hears what these ranks tell.
        self.connect(&introductions, None, &Secret::of(b"earlybird"), deadline)
    }

    fn connect(
        self,
        introductions: &[Vec<u8>],
        named: Option<&[u32]>,
        secret: &Secret,
        deadline: Instant,
    ) -> Result<F> {
        let NetCandidate { rank, ranks, patience, mut link, own_info, .. } = self;
        let infos = introductions.iter().enumerate().map(|(peer, bytes)| {
            let strange = || {
                Error::join(rank, format!("rank {peer} introduced itself in a way this version does not understand"))
            };
            PeerInfo::decode(bytes).ok_or_else(strange)
        });
        let infos: Vec<PeerInfo> = infos.collect::<Result<_>>()?;
        if infos.len() != ranks as usize {
            return Err(Error::join(rank, format!("{} ranks introduced themselves, not {ranks}", infos.len())));
        }
        let mut peers = Vec::new();
        for (peer, theirs) in infos.iter().enumerate() {
            let peer = peer as u32;
            if theirs.provider != own_info.provider {
                let (mine, theirs) = (&own_info.provider, (peer, &theirs.provider));
                return Err(Error::mismatch(rank, "join", "the network", mine, theirs));
            }
            link.wire.insert(&theirs.address).map_err(|code| {
                Error::join(rank, format!("{} has no way to rank {peer}: {}", own_info.provider, link.wire.text(code)))
            })?;
            // Both sides must be able to use header slots: the writer has a limit of its own.
            let header_slots = theirs.header_slots.filter(|_| own_info.header_slots.is_some());
            peers.push((header_slots, theirs.polls_memory));
        }
        let secret = JobSecret::agreed(secret, introductions);
        link.wire.keep_secret(secret);
        let cq_data = infos.iter().map(|theirs| theirs.cq_data).min().unwrap_or(0);
        let all = |can: fn(&PeerInfo) -> bool| infos.iter().all(can);
        link.agree(cq_data as usize, all(|theirs| theirs.by_device), all(|theirs| theirs.in_order));
        let near =
            |theirs: &PeerInfo| (theirs.host == own_info.host && theirs.pid != own_info.pid).then_some(theirs.pid);
        let host_names = infos.iter().map(|theirs| theirs.host_name.clone()).collect();
        let host_names = HostNames::of_members(host_names, named.unwrap_or_default());
        let watch = Watch::new(rank, &infos.iter().map(near).collect::<Vec<_>>());
        let watch = watch.map_err(|error| error.on(&host_names))?;
        let here = (0..).zip(&infos).filter(|(_, theirs)| theirs.host == own_info.host);
        let neighbours = here.map(|(rank, _)| rank).collect();
        let rails = link.wire.rails();
        let failed = Arc::new(AtomicBool::new(false));
        let mut hosts = BTreeMap::new();
        let mut places = Vec::new();
        for PeerInfo { host, pid, .. } in &infos {
            let next = hosts.len() as u32;
            places.push((*hosts.entry(host).or_insert(next), *pid));
        }
        let witnesses = Witnesses::new(places);
        let alarm = Alarm::new(rank, &secret.secret(), witnesses.of(rank));
        let engine = NetEngine::new(rank, secret, link, peers, (witnesses, alarm), failed.clone());
        let provider = own_info.provider;
        F::warn(rank, &provider);
        let around = Neighbourhood { provider: provider.clone(), neighbours, host_names: host_names.clone(), patience };
        let fabric = NetFabric::new((rank, ranks), engine, failed, watch, around)?;
        // This includes work after the deadline, when ranks could not be reached.
        let outer = F::Wire::expect_by(Some(deadline.into()));
        // No rank continues before all can be reached.
        let unreached = |whom: String, how: String| {
            let advice = match how.contains("Too many open files") {
                true => "a rank takes descriptors for each other one: raise ulimit -n",
                false => {
                    "are the devices on one network (EARLYBIRD_DEVICE), and does no firewall stand between them? SECURITY.md and the guide to sites say which ports a rank needs"
                }
            };
            let cause = format!("{whom} came to the meeting and cannot be reached over {provider} ({how}); {advice}");
            Error::join(rank, cause)
        };
        let meet = || fabric.exchange("join", &[], deadline).map(drop);
        // A rank may hear all others before its own bytes could go by a rail. The second exchange ends when all ranks
        // have these bytes.
        let all_here = (0..rails.min(2)).try_for_each(|_| meet());
        let all_here = all_here.and_then(|()| fabric.keep_strangers_out(deadline)).map_err(|error| match error {
            Error::Timeout { missing, waited, .. } => {
                let heard = format!("nothing was heard for {waited:.1?}{}", fabric.explanation());
                unreached(host_names.ranks(&missing.0).to_string(), heard)
            }
            Error::PeerDied { peer, how, .. } if how != ENDED => unreached(host_names.rank(peer).to_string(), how),
            Error::Transport { peer: Some(peer), cause, .. } => unreached(host_names.rank(peer).to_string(), cause),
            other => other,
        });
        let joined = match all_here {
            Ok(()) => Ok(F::over(fabric)),
            Err(error) => {
                // The abort tells the reason to ranks that still wait; without it they would find this rank dead.
                fabric.abort(&error.to_string());
                fabric.leave();
                drop(fabric);
                Err(error)
            }
        };
        F::Wire::expect_by(outer);
        joined
    }
}

impl<F: OverWire> Candidate for NetCandidate<F> {
    fn network(&self) -> &str {
        &self.own_info.provider
    }

    fn introduction(&self) -> Vec<u8> {
        self.own_info.encode()
    }

    fn device(&self) -> &str {
        &self.taken.device
    }

    fn scope(&self) -> Scope {
        self.taken.scope
    }

    fn passed_over(&self) -> Option<&str> {
        self.taken.passed_over.as_deref()
    }

    fn join(
        self: Box<Self>,
        introductions: &[Vec<u8>],
        named: Option<&[u32]>,
        secret: &Secret,
        deadline: Instant,
    ) -> Result<Arc<dyn NetworkFabric>> {
        Ok(Arc::new(self.connect(introductions, named, secret, deadline)?))
    }
}
