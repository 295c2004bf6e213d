//! The numbers of a world's ranks in its parts, and texts that name them.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::error::{Error, HostNames};
use crate::fabric::failure::Failure;
use crate::topology::Topology;

/// The numbers of a world's ranks in a part of it.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    /// The ranks that the members stand for.
    pub(super) members: Arc<[u32]>,
}

impl Numbers {
    /// Returns the rank that a number of the part means.
    pub(super) fn rank(&self, number: u32) -> u32 {
        self.members.get(number as usize).copied().unwrap_or_else(|| number - self.members.len() as u32)
    }

    /// Returns the number of a rank in the part, that of no member.
    fn foreign(&self, rank: u32) -> u32 {
        rank + self.members.len() as u32
    }

    /// Returns why a world has failed, with the ranks' numbers in the world.
    pub(super) fn in_world(&self, failure: Failure) -> Failure {
        renumbered(failure, |number| self.rank(number))
    }

    /// Returns why a world has failed, with numbers of the part.
    pub(super) fn in_part(&self, failure: Failure) -> Failure {
        let failure = match failure {
            // Memory has no place for the other end.
            Failure::Transport { by, peer: Some(peer), cause } => {
                let cause = format!("the transport to rank {peer} failed: {cause}");
                Failure::Transport { by, peer: None, cause }
            }
            other => other,
        };
        renumbered(failure, |rank| self.foreign(rank))
    }
}

fn renumbered(failure: Failure, number: impl Fn(u32) -> u32) -> Failure {
    match failure {
        Failure::Aborted { by, reason } => Failure::Aborted { by: number(by), reason },
        Failure::Transport { by, peer, cause } => Failure::Transport { by: number(by), peer: peer.map(&number), cause },
        Failure::Died { peer, how } => Failure::Died { peer: number(peer), how },
    }
}

/// How a rank's host and the network among agents name the ranks of the world.
#[derive(Clone, Debug)]
pub(super) struct RankNames {
    pub(super) here: Numbers,
    pub(super) network: Numbers,
    hosts: HostNames,
}

impl RankNames {
    pub(super) fn new(rank: u32, hosts: &Topology, names: HostNames) -> Self {
        RankNames {
            here: Numbers { members: hosts.ranks_of(hosts.host_of(rank)).into() },
            network: Numbers { members: hosts.leaders().into() },
            hosts: names,
        }
    }

    /// Returns an error of the host's memory as one of this world.
    pub(super) fn of_here(&self, error: Error) -> Error {
        error.renumbered(|number| self.here.rank(number)).on(&self.hosts)
    }

    /// Returns an error of the network among agents as one of this world.
    pub(super) fn of_network(&self, error: Error) -> Error {
        error.renumbered(|number| self.network.rank(number)).on(&self.hosts)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_a_part_means_one_rank() {
        let numbers = Numbers { members: [2, 5, 6].into() };
        assert_eq!((0..3).map(|number| numbers.rank(number)).collect::<Vec<_>>(), [2, 5, 6]);
        for rank in [0, 5, 40_000] {
            assert_eq!(numbers.rank(numbers.foreign(rank)), rank);
        }
    }
}
