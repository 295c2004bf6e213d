//! Computes a collective's plan from its choices and the measurements of a hw-config.
#![forbid(unsafe_code)]

use super::core::{Plan, Terms, program};
use super::options::Options;
use crate::fault::Fault;
use crate::model::Parameters;
use crate::rule::{AgreementBy, Grace, MovementBy};
use crate::topology::Topology;

/// The choices of a collective in a world. Contradictory choices were refused before.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) me: u32,
    pub(crate) topology: Topology,
    pub(crate) chosen: Options,
    /// Whether ranks have models.
    pub(crate) has_models: bool,
    /// The elements of a contribution, whose bytes can be addressed.
    pub(crate) elements: usize,
    /// Cores that this process may use.
    pub(crate) cores: u32,
    /// Whether a program decides the cuts and moves the data.
    pub(crate) tree: bool,
    /// Whether cuts are given.
    pub(crate) given: bool,
    /// Whether a runner runs the program.
    pub(crate) offloaded: bool,
}

impl Wanted {
    /// Returns the plan of this rank. It may need more memory than can be addressed.
    pub(crate) fn plan(self, parameters: &Parameters) -> Plan {
        let Wanted { me, topology, chosen, tree, given, offloaded, .. } = self;
        let (ranks, fire, bytes) = (topology.ranks(), chosen.fire, self.elements * chosen.dtype.size());
        let movement = match tree {
            _ if offloaded || tree => MovementBy::Program,
            _ if self.has_models || given => MovementBy::Segments,
            _ => parameters.movement(fire, ranks, bytes as u64),
        };
        let agreement = match given {
            _ if offloaded => AgreementBy::Runner,
            true => AgreementBy::Given,
            false => AgreementBy::usual(fire, movement, &topology),
        };
        let grace = if offloaded { Grace::NONE } else { chosen.grace };
        // A tree's outcomes are released one by one: with two slots no rank waits for that.
        let depth = match fire {
            fire if !fire.is_synchronous() => u64::from(chosen.depth),
            _ if tree || offloaded => 2,
            _ => 1,
        };
        let segment = parameters.segment();
        let (schedule, radix) = match agreement {
            AgreementBy::Relays => parameters.shape(bytes as u64, topology.hosts()),
            _ => (parameters.schedule(bytes as u64), 2),
        };
        let program = (agreement == AgreementBy::Gates)
            .then(|| program(ranks, (fire, chosen.grace), schedule, (bytes, segment), depth));
        Plan::new(Terms {
            ranks,
            me,
            topology,
            fire,
            grace,
            absent: chosen.absent,
            weighted: chosen.is_weighted(),
            depth,
            agreement,
            movement,
            base: chosen.base,
            memory: self.has_models.then_some(chosen.group),
            bytes,
            wide_bytes: self.elements.saturating_mul(chosen.dtype.wide_size()),
            segment,
            run: parameters.run(),
            pull_after: parameters.pull_after(bytes),
            helpers: self.cores.clamp(1, ranks),
            schedule,
            radix,
            program,
            fault: Fault::chosen(),
        })
    }
}
