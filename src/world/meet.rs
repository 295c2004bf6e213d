//! How ranks make memory that all of them know: for boards, messages and symmetric memory.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::World;
use crate::error::{Error, Result};
use crate::fabric::{Endpoint, Fabric, RawAccess};

impl World {
    /// Opens an endpoint, lets `make` make memory with it, and tells all ranks what `make` returned. Returns what all
    /// ranks told. All ranks must have the same `purpose`. `make` also gets the rank, the number of ranks, and whether
    /// all ranks share memory.
    pub(super) fn meet<M>(
        &self,
        operation: &'static str,
        until: Instant,
        purpose: u8,
        make: impl FnOnce(Box<dyn Endpoint>, u32, u32, bool) -> Result<(M, Vec<u8>)>,
    ) -> Result<(M, Vec<Vec<u8>>)> {
        self.meet_over(
            (&**self.fabric(), &|error| error),
            self.topology().is_one_host(),
            (operation, until),
            purpose,
            make,
        )
    }

    /// As [`World::meet`], over a fabric whose ranks are those of this world or some of them. The function beside it gives an
    /// error the numbers of this world.
    pub(super) fn meet_over<M>(
        &self,
        (fabric, named): (&dyn Fabric, &dyn Fn(Error) -> Error),
        shared: bool,
        (operation, until): (&'static str, Instant),
        purpose: u8,
        make: impl FnOnce(Box<dyn Endpoint>, u32, u32, bool) -> Result<(M, Vec<u8>)>,
    ) -> Result<(M, Vec<Vec<u8>>)> {
        let (rank, ranks) = (fabric.rank(), fabric.ranks());
        fabric.reach_all(operation, until).map_err(named)?;
        let made = fabric.open(RawAccess::CRATE).and_then(|endpoint| make(endpoint, rank, ranks, shared));
        let mut mine = vec![purpose];
        mine.extend(made.as_ref().map_or(&[][..], |(_, told)| told));
        let told = fabric.exchange(operation, &mine, until).map_err(named)?;
        let (made, _) = made.map_err(|error| named(error.in_call(operation)))?;
        let mut all = Vec::with_capacity(told.len());
        for (peer, told) in (0..).zip(told) {
            let what = |purpose: Option<&u8>| match purpose {
                Some(b'c') => "a collective",
                Some(b'm') => "a message",
                Some(b's') => "symmetric memory",
                _ => "another call",
            };
            if told.first() != Some(&purpose) {
                let (mine, theirs) = (what(Some(&purpose)), what(told.first()));
                let error = Error::mismatch(rank, operation, "the call", mine, (peer, theirs));
                return Err(self.out_of_step(named(error)));
            }
            if told.len() == 1 {
                let reason = "it had no memory for this".to_owned();
                let hosts = fabric.host_names();
                return Err(named(Error::Aborted { rank, operation, by: peer, reason, hosts }));
            }
            all.push(told[1..].to_vec());
        }
        Ok((made, all))
    }
}
