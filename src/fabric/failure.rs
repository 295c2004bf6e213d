//! Why a world has failed.

use crate::error::Error;

/// Why everything fails from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A rank said so.
    Aborted { by: u32, reason: String },
    /// A rank is gone.
    Died { peer: u32, how: String },
}

impl Failure {
    /// As a call of a rank reports it.
    pub(crate) fn error(self, rank: u32, operation: &'static str) -> Error {
        match self {
            Failure::Aborted { by, reason } => Error::Aborted { rank, operation, by, reason },
            Failure::Died { peer, how } => Error::PeerDied { rank, operation, peer, how },
        }
    }
}
