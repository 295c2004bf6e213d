//! Why a world has failed.

use crate::error::{Error, HostNames};

/// Why every later call of a world fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A rank called `abort`.
    Aborted { by: u32, reason: String },
    /// The transport of a rank failed.
    Transport { by: u32, peer: Option<u32>, cause: String },
    /// A rank died.
    Died { peer: u32, how: String },
}

impl Failure {
    /// The error that a call of a rank returns.
    pub(crate) fn error(self, rank: u32, operation: &'static str) -> Error {
        match self {
            Failure::Aborted { by, reason } => {
                Error::Aborted { rank, operation, by, reason, hosts: HostNames::default() }
            }
            Failure::Transport { peer, cause, .. } => Error::transport(rank, peer, operation, cause),
            Failure::Died { peer, how } => Error::PeerDied { rank, operation, peer, how, hosts: HostNames::default() },
        }
    }
}
