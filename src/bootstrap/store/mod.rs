//! Stores, where the ranks of a job on several machines learn each other's addresses. Each rank gives some bytes, and
//! gets what all gave. Nothing of a store is left afterwards.
//!
//! Every message is sealed with the job's secret (HMAC-SHA256). A guest believes a rank 0 without
//! the secret no more than rank 0 believes such a guest. No store is told the secret.
#![forbid(unsafe_code)]

mod file;
mod folder;
pub(crate) mod frame;
#[cfg(test)]
mod meeting_tests;
mod net;
mod socket;

#[cfg(test)]
use std::time::Duration;
use std::time::Instant;

use super::attendance::MeetingTerms;
use super::store_address::StoreAddress;
use crate::error::{Error, Result};
use crate::seal::Secret;
pub(super) use socket::read_until;

/// The maximum number of bytes that a rank may give.
const MOST: usize = 4096;

/// The maximum number of ranks of a world that meets at a store.
const MOST_RANKS: u32 = 1 << 16;

/// One rank's view of a meeting.
#[derive(Clone, Copy, Debug)]
struct Meeting<'a> {
    store: &'a StoreAddress,
    rank: u32,
    ranks: u32,
    mine: &'a [u8],
    secret: &'a Secret,
    until: Instant,
    terms: MeetingTerms,
}

impl Meeting<'_> {
    fn error(&self, cause: impl std::fmt::Display) -> Error {
        Error::join(self.rank, format!("{}: {cause}", self.store))
    }
}

#[cfg(test)]
impl<'a> Meeting<'a> {
    /// The meeting of a rank in a world of two, with its own bytes to give; tests change what they
    /// are about.
    fn sample(store: &'a StoreAddress, secret: &'a Secret, rank: u32) -> Self {
        let terms = MeetingTerms { deadline: Duration::from_secs(20), together: "by this test" };
        let (mine, until) = ([&b"zero"[..], b"one"][rank as usize], Instant::now() + terms.deadline);
        Meeting { store, rank, ranks: 2, mine, secret, until, terms }
    }
}

/// Gives every rank's bytes to every rank, in rank order, by `until`. Ranks may do so again at the same place.
///
/// # Errors
/// On every rank that came: the ranks that did not come by the deadline, came twice, or have another world size. Also
/// an address that cannot be used, or that another process uses.
pub(crate) fn gather(
    store: &StoreAddress,
    (rank, ranks): (u32, u32),
    mine: &[u8],
    secret: &Secret,
    until: Instant,
    terms: MeetingTerms,
) -> Result<Vec<Vec<u8>>> {
    let meeting = Meeting { store, rank, ranks, mine, secret, until, terms };
    if ranks > MOST_RANKS {
        return Err(meeting.error(format!("{ranks} ranks; the most is {MOST_RANKS}")));
    }
    if mine.len() > MOST {
        return Err(meeting.error(format!("{} bytes to give; the most is {MOST}", mine.len())));
    }
    if ranks == 1 {
        return Ok(vec![mine.to_vec()]);
    }
    match store {
        StoreAddress::File(folder) if rank == 0 => file::host(&meeting, folder),
        StoreAddress::File(folder) => file::visit(&meeting, folder),
        _ if rank == 0 => net::host(&meeting),
        _ => net::visit(&meeting),
    }
}
