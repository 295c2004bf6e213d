//! A world over RDMA verbs: how a rank's queues are opened.
#![forbid(unsafe_code)]

use std::time::Instant;

use earlybird_ffi::verbs::Library;

use super::device;
use super::registration::Failed;
use super::settings::Depths;
use super::wire::VerbsWire;
use crate::config::VerbsSettings;
use crate::error::{Error, Result};
use crate::fabric::net::{self, Limits, Link, NetCandidate, NetFabric, Opened, OverWire, Taken};
use crate::fabric::{Candidate, Scope};

/// A rank's view of a world over RDMA verbs.
#[derive(Debug)]
pub struct VerbsFabric(pub(super) NetFabric<VerbsWire>);

impl OverWire for VerbsFabric {
    type Wire = VerbsWire;

    fn over(world: NetFabric<VerbsWire>) -> Self {
        VerbsFabric(world)
    }

    fn world(&self) -> &NetFabric<VerbsWire> {
        &self.0
    }
}

impl VerbsFabric {
    /// Joins a world. `gather` gives every rank's bytes to every rank, in rank order, by other
    /// means. `join` calls it once, with this rank's address and what else the others need to know.
    ///
    /// # Errors
    /// No device fits; libibverbs or `gather` fails; ranks are on different networks; a rank cannot
    /// be reached by the deadline.
    pub fn join(
        library: &Library,
        settings: &VerbsSettings,
        (rank, ranks): (u32, u32),
        deadline: Instant,
        gather: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>,
    ) -> Result<Self> {
        Self::join_with(None, library, settings, (rank, ranks), deadline, gather)
    }

    /// As [`VerbsFabric::join`], with queues of these depths.
    pub(super) fn join_with(
        depths: Option<Depths>,
        library: &Library,
        settings: &VerbsSettings,
        (rank, ranks): (u32, u32),
        deadline: Instant,
        gather: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>,
    ) -> Result<Self> {
        Self::open(depths, library, settings, (rank, ranks))?.meet(deadline, gather)
    }

    /// Opens the queues of a rank that may join a world.
    ///
    /// # Errors
    /// No device fits; libibverbs fails.
    pub(crate) fn candidate(
        library: &Library,
        settings: &VerbsSettings,
        (rank, ranks): (u32, u32),
    ) -> Result<Box<dyn Candidate>> {
        Ok(Box::new(Self::open(None, library, settings, (rank, ranks))?))
    }

    fn open(
        depths: Option<Depths>,
        library: &Library,
        settings: &VerbsSettings,
        (rank, ranks): (u32, u32),
    ) -> Result<NetCandidate<Self>> {
        NetCandidate::open((rank, ranks), settings.patience, || open(library, settings, (rank, ranks), depths))
    }

    /// A world with all ranks in this process, for tests.
    ///
    /// # Errors
    /// As [`VerbsFabric::join`].
    pub fn in_this_process(
        library: &Library,
        settings: &VerbsSettings,
        ranks: u32,
        deadline: Instant,
    ) -> Result<Vec<Self>> {
        net::in_this_process(ranks, |rank, gather| Self::join(library, settings, (rank, ranks), deadline, gather))
    }
}

/// Opens the queues of a rank.
fn open(
    library: &Library,
    settings: &VerbsSettings,
    (rank, ranks): (u32, u32),
    depths: Option<Depths>,
) -> Result<Opened<VerbsWire>> {
    settings.check().map_err(|problem| Error::Config(format!("verbs: {problem}")))?;
    let (port, second) = device::choose_all(library, settings, rank)?;
    let ports = || [&port].into_iter().chain(&second);
    for port in ports() {
        tracing::debug!(rank, device = port.device, port = port.number, gid = ?port.gid, "opens");
    }
    let device = ports().map(|port| port.device.as_str()).collect::<Vec<_>>().join(" and ");
    let provider = match &second {
        Some(second) => format!("{} on two rails, {}", port.network(), second.layers()),
        None => port.network(),
    };
    let longest = ports().map(|port| port.longest).min().unwrap_or(0);
    let failed = |what: &'static str| {
        let device = device.clone();
        move |failed: Failed| match failed {
            Failed::System(error) => error,
            Failed::Code(code) => Error::join(rank, format!("{device}: {what}: {code}")),
        }
    };
    let limits = limits(longest, port.most_receives, settings.receive_depth, ranks);
    let depths = depths.unwrap_or_else(|| Depths::in_world(limits.receives, settings.send_depth, ranks));
    let limits = Limits { receives: depths.receives, ..limits };
    let wire = VerbsWire::open((rank, ranks), (port, second), depths).map_err(failed("its queues cannot be opened"))?;
    let address = wire.address();
    let link = Link::new(wire, limits, (rank, ranks)).map_err(failed("memory cannot be registered"))?;
    let taken = Taken { device, scope: Scope::Anywhere, passed_over: None };
    Ok(Opened { link, provider, address, taken })
}

/// Receives for each peer, where no setting says otherwise: the wakes that it sends to a rank that takes none, and its
/// messages.
const RECEIVES: u32 = 16;

/// Receives in all: each has a message buffer.
const MOST_RECEIVES: usize = 4096;

/// Operations to each peer in flight.
const MOVING: usize = 8;

/// The limits on a device with operations of at most `longest` bytes, and `most_receives` receives in
/// a queue, of which `receive_depth` are for each peer. Immediate data has 32 bits. Two writes, the
/// second one with immediate data, count as one operation: they land in order.
pub(in crate::internals::fabric) fn limits(
    longest: usize,
    most_receives: usize,
    receive_depth: Option<u32>,
    ranks: u32,
) -> Limits {
    let limits = Limits::of(longest, ranks);
    let of_peers = |each: usize| each * net::peers(ranks);
    Limits {
        receives: limits
            .receives
            .max(of_peers(receive_depth.unwrap_or(RECEIVES) as usize))
            .min(MOST_RECEIVES)
            .min(most_receives),
        moving: limits.moving.max(of_peers(MOVING)),
        immediate: 4,
        places: 2,
        ..limits
    }
}
