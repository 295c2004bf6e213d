//! A map of a collective's memory, for people.
#![forbid(unsafe_code)]

use std::ops::Range;

use super::combinations::{Combination, check};
use crate::collective::core::MapRegion;
use crate::collective::options::Options;
use crate::collective::wanted::Wanted;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::model::Parameters;
use crate::reduce::Dtype;
use crate::rule::{Fire, Grace, Mover};
use crate::topology::Topology;

/// The elements of the collectives whose memory is shown. A partial sum of them is as wide as they are.
const DTYPE: Dtype = Dtype::F64;

/// A collective of 64-bit numbers in a world.
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
        // As `auto` chooses where several hosts have several ranks.
        let tree = tree || (memory.is_none() && topology.has_two_levels());
        let mover = if tree { Mover::Tree } else { Mover::Auto };
        let group = memory.unwrap_or_default();
        let chosen = Options { fire, grace: Grace::NONE, depth, mover, group, ..Options::usual(DTYPE) };
        let refused = |problem: &str| Error::Config(problem.to_owned());
        check(&Combination::of_rounds(chosen, memory.is_some(), &topology)).map_err(refused)?;
        let wanted = Wanted {
            me: 0,
            chosen,
            has_models: memory.is_some(),
            elements: bytes.div_ceil(DTYPE.size()),
            cores: per_host,
            tree,
            given: false,
            offloaded: false,
            topology,
        };
        let plan = wanted.plan(parameters);
        let data_bytes = plan.checked_data_bytes().ok_or_else(|| refused("more memory than can be addressed"))?;
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
