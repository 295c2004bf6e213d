//! A map of a collective's memory, for people.
#![forbid(unsafe_code)]

use std::ops::Range;

use super::core::MapRegion;
use super::wanted::Wanted;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::model::Parameters;
use crate::rule::{Absent, Fire, Grace};
use crate::topology::Topology;

/// A collective of 64-bit integers in a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutOf {
    pub(crate) ranks: u32,
    /// The number of ranks on a host.
    pub(crate) per_host: u32,
    pub(crate) fire: Fire,
    pub(crate) bytes: usize,
    pub(crate) depth: u32,
    /// Whether a program moves the data.
    pub(crate) tree: bool,
    /// Where ranks have models: the groups that average.
    pub(crate) memory: Option<Group>,
}

/// The memory of the first host.
#[derive(Debug)]
pub(crate) struct MemoryLayout {
    pub(crate) path: &'static str,
    pub(crate) control_bytes: usize,
    pub(crate) data_bytes: usize,
    /// The region, the bytes there, and what they hold.
    pub(crate) rows: Vec<(&'static str, Range<usize>, String)>,
}

impl LayoutOf {
    /// # Errors
    /// A rule that cannot work in this world, or more memory than can be addressed.
    pub(crate) fn layout(self, parameters: &Parameters) -> Result<MemoryLayout> {
        let LayoutOf { ranks, per_host, fire, bytes, depth, tree, memory } = self;
        fire.check(ranks)?;
        let topology = Topology::new((0..ranks).map(|rank| rank / per_host.max(1)).collect());
        if tree && topology.has_elsewhere() && !topology.is_apart() {
            return Err(Error::Config(
                "a program needs all ranks on one host, or each on a host of its own".to_owned(),
            ));
        }
        let wanted = Wanted {
            me: 0,
            fire,
            grace: Grace::NONE,
            absent: Absent::Carry,
            weighted: false,
            depth,
            base: 0,
            memory,
            bytes,
            wide_bytes: bytes,
            cores: per_host,
            tree,
            given: false,
            offloaded: false,
            topology,
        };
        let plan = wanted.plan(parameters);
        let too_large = || Error::Config("more memory than can be addressed".to_owned());
        let data_bytes = plan.checked_data_bytes().ok_or_else(too_large)?;
        let reducers = plan.topology.hosts() as usize;
        let name = |region| if region == MapRegion::Control { "control" } else { "data" };
        let rows = plan.map(0, reducers).into_iter().map(|it| (name(it.region), it.bytes, it.name)).collect();
        Ok(MemoryLayout {
            path: plan.path_name(),
            control_bytes: plan.control_cells() * size_of::<u64>(),
            data_bytes,
            rows,
        })
    }
}
