//! One collective's operations in a world of hosts: in the memory of this rank's host, and on its agent over the network
//! to the memory of the other hosts.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::numbers::RankNames;
use crate::error::{Error, Misuse, Result};
use crate::fabric::{
    Access, At, Atomic, Completion, Endpoint, Interest, Key, NetworkEndpoint, Posted, Region, Signal, Window,
};
use crate::topology::Topology;

/// The problem of an operation on memory elsewhere by a rank that is no agent.
const NOT_REACHED: &str = "a region that only the agent of this host reaches";

/// Where a region lies.
#[derive(Clone, Copy, Debug)]
enum RegionPlace {
    /// In this host's memory, which the agent's network may use under another name.
    Here { here: Region, network: Option<Region> },
    /// In the memory of another host, by the agent's network.
    Elsewhere(Region),
}

#[derive(Debug)]
pub(super) struct LevelsEndpoint {
    rank: u32,
    hosts: Topology,
    names: RankNames,
    /// There until this endpoint is dropped.
    here: Option<Box<dyn Endpoint>>,
    /// On an agent.
    network: Option<Box<dyn NetworkEndpoint>>,
    regions: Vec<RegionPlace>,
}

impl LevelsEndpoint {
    pub(super) fn new(
        (rank, hosts, names): (u32, Topology, RankNames),
        here: Box<dyn Endpoint>,
        network: Option<Box<dyn NetworkEndpoint>>,
    ) -> Self {
        LevelsEndpoint { rank, hosts, names, here: Some(here), network, regions: Vec::new() }
    }

    fn here(&self) -> &dyn Endpoint {
        self.here.as_deref().unwrap_or_else(|| unreachable!("it is there until the drop"))
    }

    fn here_mut(&mut self) -> &mut dyn Endpoint {
        self.here.as_deref_mut().unwrap_or_else(|| unreachable!("it is there until the drop"))
    }

    fn add(&mut self, place: RegionPlace) -> Region {
        self.regions.push(place);
        Region(self.regions.len() as u32 - 1)
    }

    fn usage(&self, operation: &'static str, problem: &'static str) -> Error {
        Error::Usage { rank: self.rank, operation, problem: Misuse::Argument(problem) }
    }

    fn place(&self, operation: &'static str, region: Region) -> Result<RegionPlace> {
        let place = self.regions.get(region.0 as usize).copied();
        place.ok_or_else(|| self.usage(operation, NOT_REACHED))
    }

    /// Returns the region of this host's memory at a place, if it lies there.
    fn of_here(&self, region: Region) -> Option<Region> {
        match self.regions.get(region.0 as usize)? {
            RegionPlace::Here { here, .. } => Some(*here),
            RegionPlace::Elsewhere(_) => None,
        }
    }

    /// Returns where the agent's network finds memory of this host.
    fn for_network(&self, operation: &'static str, at: At) -> Result<At> {
        match self.place(operation, at.region)? {
            RegionPlace::Here { network: Some(region), .. } => Ok(At { region, ..at }),
            _ => Err(self.usage(operation, "memory that the network of this host's agent does not know")),
        }
    }

    /// Carries out an operation in this host's memory, or over the network, whichever has the region `far`. Each takes the
    /// region's name there.
    fn operate(
        &mut self,
        operation: &'static str,
        far: Region,
        in_memory: impl FnOnce(&mut dyn Endpoint, Region) -> Result<Posted>,
        over_network: impl FnOnce(&mut dyn NetworkEndpoint, Region) -> Result<Posted>,
    ) -> Result<Posted> {
        match self.place(operation, far)? {
            RegionPlace::Here { here, .. } => {
                in_memory(self.here_mut(), here).map_err(|error| self.names.of_here(error))
            }
            RegionPlace::Elsewhere(region) => {
                let LevelsEndpoint { network: Some(network), names, .. } = self else {
                    return Err(self.usage(operation, NOT_REACHED));
                };
                over_network(&mut **network, region).map_err(|error| names.of_network(error))
            }
        }
    }

    /// Returns where this host's memory has a region that is the near side of an operation.
    fn near(&self, operation: &'static str, at: At) -> Result<At> {
        let region = self.of_here(at.region);
        region.map(|region| At { region, ..at }).ok_or_else(|| self.usage(operation, "not a region of this host"))
    }
}

fn within(signal: Signal, region: Region) -> Signal {
    Signal { at: At { region, ..signal.at }, ..signal }
}

impl Endpoint for LevelsEndpoint {
    fn register(&mut self, bytes: usize, access: Access) -> Result<Region> {
        let here = self.here_mut().register(bytes, access).map_err(|error| self.names.of_here(error))?;
        let window = self.here().window(here);
        let network = self.network.as_mut().zip(window);
        let network = network.map(|(network, window)| network.register_window(window, access)).transpose();
        let network = network.map_err(|error| self.names.of_network(error))?;
        Ok(self.add(RegionPlace::Here { here, network }))
    }

    fn key(&self, region: Region) -> Key {
        self.of_here(region).map_or(Key::NONE, |region| self.here().key(region))
    }

    fn key_elsewhere(&self, region: Region) -> Option<Key> {
        match self.regions.get(region.0 as usize)? {
            RegionPlace::Here { network, .. } => {
                self.network.as_ref().zip(*network).map(|(network, region)| network.key(region))
            }
            RegionPlace::Elsewhere(_) => None,
        }
    }

    fn import(&mut self, peer: u32, key: Key) -> Result<Region> {
        let host = self.hosts.host_of(peer);
        if host == self.hosts.host_of(self.rank) {
            let index = self.hosts.index_on_host(peer);
            let here = self.here_mut().import(index, key).map_err(|error| self.names.of_here(error))?;
            return Ok(self.add(RegionPlace::Here { here, network: None }));
        }
        let LevelsEndpoint { network: Some(network), names, .. } = self else {
            return Err(self.usage("import", NOT_REACHED));
        };
        let region = network.import(host, key).map_err(|error| names.of_network(error))?;
        Ok(self.add(RegionPlace::Elsewhere(region)))
    }

    fn window(&self, region: Region) -> Option<Window> {
        self.here().window(self.of_here(region)?)
    }

    fn put(&mut self, from: At, to: At, len: usize, signal: Option<Signal>, token: u64) -> Result<Posted> {
        let beside = |signal: Signal| match (self.place("put", signal.at.region)?, self.place("put", to.region)?) {
            (RegionPlace::Here { here: region, .. }, RegionPlace::Here { .. })
            | (RegionPlace::Elsewhere(region), RegionPlace::Elsewhere(_)) => Ok(within(signal, region)),
            _ => Err(self.usage("put", "a signal on another host than the data")),
        };
        let signal = signal.map(beside).transpose()?;
        let (near, of_network) = (self.near("put", from)?, self.for_network("put", from));
        self.operate(
            "put",
            to.region,
            |here, region| here.put(near, At { region, ..to }, len, signal, token),
            |network, region| network.put(of_network?, At { region, ..to }, len, signal, token),
        )
    }

    fn signal(&mut self, signal: Signal, token: u64) -> Result<Posted> {
        self.operate(
            "signal",
            signal.at.region,
            |here, region| here.signal(within(signal, region), token),
            |network, region| network.signal(within(signal, region), token),
        )
    }

    fn read(&mut self, from: At, to: At, len: usize, token: u64) -> Result<Posted> {
        let (near, of_network) = (self.near("read", to)?, self.for_network("read", to));
        self.operate(
            "read",
            from.region,
            |here, region| here.read(At { region, ..from }, near, len, token),
            |network, region| network.read(At { region, ..from }, of_network?, len, token),
        )
    }

    fn atomic(&mut self, at: At, atomic: Atomic, token: u64) -> Result<Posted> {
        self.operate(
            "atomic",
            at.region,
            |here, region| here.atomic(At { region, ..at }, atomic, token),
            |network, region| network.atomic(At { region, ..at }, atomic, token),
        )
    }

    fn poll(&mut self) -> Result<Option<Completion>> {
        let Some(network) = &mut self.network else { return Ok(None) };
        network.poll().map_err(|error| self.names.of_network(error))
    }

    fn completion(&mut self) -> Result<Option<Completion>> {
        let Some(network) = &mut self.network else { return Ok(None) };
        network.completion().map_err(|error| self.names.of_network(error))
    }

    fn prepare_wait(&mut self, interest: Interest) {
        // The fence of the host's announcement comes last, right before the caller polls.
        self.network.iter_mut().for_each(|network| network.prepare_wait(interest));
        self.here_mut().prepare_wait(interest);
    }

    fn waits_fence_peer(&self) -> bool {
        self.here().waits_fence_peer()
    }

    fn cancel_wait(&mut self) {
        self.here_mut().cancel_wait();
        self.network.iter_mut().for_each(|network| network.cancel_wait());
    }

    fn wait(&mut self, at_most: Duration) {
        if self.network.is_none() {
            return self.here_mut().wait(at_most);
        }
        // The rank sleeps for the network. The bell of its host, which a delegated wait rings, ends that sleep.
        let goes_on = self.here_mut().delegate_wait();
        let network = self.network.iter_mut();
        network.for_each(|network| if goes_on { network.wait(at_most) } else { network.cancel_wait() });
        self.here_mut().cancel_wait();
    }

    fn delegate_wait(&mut self) -> bool {
        let goes_on =
            self.here_mut().delegate_wait() && self.network.as_mut().is_none_or(|network| network.delegate_wait());
        if !goes_on {
            self.cancel_wait();
        }
        goes_on
    }

    fn is_delegated(&self) -> bool {
        self.here().is_delegated() && self.network.as_ref().is_none_or(|network| network.is_delegated())
    }

    fn wake(&mut self, most: u32, interest: Interest) -> u32 {
        self.here_mut().wake(most, interest)
    }
}

impl Drop for LevelsEndpoint {
    fn drop(&mut self) {
        self.here_mut().cancel_wait();
        if let (Some(network), Some(here)) = (self.network.take(), self.here.take()) {
            network.close_before(here);
        }
    }
}
