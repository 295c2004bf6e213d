//! By which endpoints collectives run, and who works for them while their owners do not.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Instant;

use super::World;
use crate::error::{Error, Result};
use crate::executor::helper::Helper;
use crate::fabric::{Endpoint, RawAccess};
use crate::topology::Topology;

/// By which endpoints the ranks of a collective reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoints {
    /// Each rank reaches each other one.
    OfRanks,
    /// Ranks reach the memory of their host, and agents that of the other hosts.
    OfHosts,
}

/// The number of kinds of endpoints.
pub(super) const KINDS_OF_ENDPOINTS: usize = 2;

impl World {
    /// Returns the endpoints of collectives that relay.
    pub(crate) fn endpoints_of_relays(&self) -> Endpoints {
        if self.inner.levels.is_some() { Endpoints::OfHosts } else { Endpoints::OfRanks }
    }

    /// Returns which ranks share memory by these.
    pub(crate) fn topology_of_relays(&self) -> &Topology {
        match self.endpoints_of_relays() {
            Endpoints::OfRanks => self.topology(),
            Endpoints::OfHosts => &self.inner.hosts,
        }
    }

    /// Opens an endpoint of this kind. Collective, as [`Fabric::open`](crate::fabric::Fabric).
    ///
    /// # Errors
    /// A rank did not come, or cannot be reached; the resources are not available.
    pub(crate) fn open(
        &self,
        endpoints: Endpoints,
        operation: &'static str,
        until: Instant,
    ) -> Result<Box<dyn Endpoint>> {
        match (endpoints, &self.inner.levels) {
            (Endpoints::OfHosts, Some(levels)) => levels.open_by_hosts(),
            _ => {
                self.fabric().reach_all(operation, until)?;
                self.fabric().open(RawAccess::CRATE)
            }
        }
    }

    /// Returns the helper thread for collectives with such endpoints; the first call starts it. A thread sleeps for
    /// endpoints of one kind only.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn helper(&self, endpoints: Endpoints) -> Result<Arc<Helper>> {
        let mut helper = self.inner.helpers[endpoints as usize].lock();
        if let Some(helper) = &*helper {
            return Ok(helper.clone());
        }
        let sleeper = match (endpoints, &self.inner.levels) {
            (Endpoints::OfHosts, Some(levels)) => levels.sleeper_by_hosts(),
            _ => self.fabric().sleeper(),
        };
        let no_sleeper = || {
            Error::transport(self.rank(), None, "start the helper thread", "it has no sleep for several collectives")
        };
        let started = Helper::start(self.fabric().clone(), sleeper.ok_or_else(no_sleeper)?, self.spin())?;
        let started = Arc::new(started);
        *helper = Some(started.clone());
        Ok(started)
    }
}
