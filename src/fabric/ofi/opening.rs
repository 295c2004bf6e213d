//! A world over libfabric: how its endpoint is chosen and opened.
#![forbid(unsafe_code)]

use std::time::Instant;

use earlybird_ffi::ofi::{self, Code, Library, Sign};

use super::registration::Failed;
use super::watchdog::Watchdog;
use super::wire::OfiWire;
use super::{atomics, choice, environment};
use crate::config::OfiSettings;
use crate::error::{Error, Result};
use crate::fabric::Candidate;
use crate::fabric::net::{self, Limits, Link, NetCandidate, NetFabric, Opened, OverWire, Taken};

/// A rank's view of a world over libfabric.
#[derive(Debug)]
pub struct OfiFabric(pub(super) NetFabric<OfiWire>);

impl OverWire for OfiFabric {
    type Wire = OfiWire;

    fn over(world: NetFabric<OfiWire>) -> Self {
        OfiFabric(world)
    }

    fn warn(rank: u32, provider: &str) {
        environment::warn(rank, provider);
    }

    fn world(&self) -> &NetFabric<OfiWire> {
        &self.0
    }
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
        Self::open(library, settings, (rank, ranks))?.meet(deadline, gather)
    }

    /// Opens an endpoint of a rank that may join a world.
    ///
    /// # Errors
    /// No provider fits, or it fails.
    pub(crate) fn candidate(
        library: &Library,
        settings: &OfiSettings,
        (rank, ranks): (u32, u32),
    ) -> Result<Box<dyn Candidate>> {
        Ok(Box::new(Self::open(library, settings, (rank, ranks))?))
    }

    fn open(library: &Library, settings: &OfiSettings, (rank, ranks): (u32, u32)) -> Result<NetCandidate<Self>> {
        NetCandidate::open((rank, ranks), settings.patience, || open(library, settings, (rank, ranks)))
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
        net::in_this_process(ranks, |rank, gather| Self::join(library, settings, (rank, ranks), deadline, gather))
    }
}

/// Opens an endpoint of the provider and device that the settings name.
fn open(library: &Library, settings: &OfiSettings, (rank, ranks): (u32, u32)) -> Result<Opened<OfiWire>> {
    let watchdog = Watchdog::start(rank, settings.patience.silence)?;
    let found = choice::find(library, settings).map_err(|cause| Error::join(rank, cause))?;
    let info = found.info().ok_or_else(|| Error::join(rank, "libfabric described nothing"))?;
    let hint = found.hint();
    let refused = |what: &'static str| {
        let (library, provider, hint) = (*library, info.provider(), &hint);
        move |code: Code| Error::join(rank, format!("{provider}: {what}: {}{hint}", library.error_text(code.0)))
    };
    let (on_demand, may) = (settings.device_atomics == Some(true), settings.device_atomics != Some(false));
    let offers = may.then(|| atomics::offers(library, &found.wanted, info.provider(), on_demand)).flatten();
    let by_device = offers.as_ref().and_then(|offers| atomics::of((rank, library), offers, info, on_demand));
    let without = |provider: &str| {
        Error::join(rank, format!("{provider} carries out no atomics by itself (EARLYBIRD_DEVICE_ATOMICS=on)"))
    };
    if on_demand && by_device.is_none() {
        return Err(without(info.provider()));
    }
    let info = by_device.unwrap_or(info);
    tracing::debug!(rank, provider = info.provider(), device = info.domain_name(), "opens");
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
    let atomics = by_device.map(|_| endpoint.atomics()).transpose();
    let atomics = atomics.map_err(refused("the device has no atomics"))?;
    let wire = OfiWire::new((rank, watchdog), endpoint, atomics, limits.operations(ranks));
    let link = Link::new(wire, limits, (rank, ranks)).map_err(|failed| match failed {
        Failed::System(error) => error,
        Failed::Code(code) => refused("memory cannot be registered")(code),
    })?;
    if on_demand && !link.is_by_device() {
        // Without immediate data nothing would end a wait.
        return Err(without(info.provider()));
    }
    let taken = Taken {
        device: info.domain_name().to_owned(),
        scope: found.scope(),
        passed_over: found.passed_over().map(str::to_owned),
    };
    Ok(Opened { link, provider: info.provider().to_owned(), address, taken })
}
