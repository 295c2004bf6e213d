//! Computes a collective's plan from its choices and the measurements of a hw-config.
#![forbid(unsafe_code)]

use super::core::{Plan, Terms, program};
use crate::fault::Fault;
use crate::group::Group;
use crate::model::Parameters;
use crate::rule::{Absent, AgreementBy, Fire, Grace, MovementBy};
use crate::topology::Topology;

/// The choices of a collective. Contradictory choices were refused before.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) me: u32,
    pub(crate) topology: Topology,
    pub(crate) fire: Fire,
    pub(crate) grace: Grace,
    pub(crate) absent: Absent,
    /// Whether contributions have weights.
    pub(crate) weighted: bool,
    pub(crate) depth: u32,
    /// The round from whose checkpoint the collective resumes, or 0.
    pub(crate) base: u64,
    /// The groups in which the ranks' models average, if ranks have models.
    pub(crate) memory: Option<Group>,
    /// Bytes of a contribution, and of a partial sum.
    pub(crate) bytes: usize,
    pub(crate) wide_bytes: usize,
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
        let Wanted { me, topology, fire, bytes, tree, given, offloaded, .. } = self;
        let ranks = topology.ranks();
        let movement = match tree {
            _ if offloaded || tree => MovementBy::Program,
            _ if self.memory.is_some() || given => MovementBy::Segments,
            _ => parameters.movement(fire, ranks, bytes as u64),
        };
        let agreement = match given {
            _ if offloaded => AgreementBy::Cards,
            true => AgreementBy::Given,
            false => AgreementBy::usual(fire, movement, &topology),
        };
        let grace = if offloaded { Grace::NONE } else { self.grace };
        // A tree's outcomes are released one by one: with two slots no rank waits for that.
        let depth = match fire {
            fire if !fire.is_synchronous() => u64::from(self.depth),
            _ if tree || offloaded => 2,
            _ => 1,
        };
        let segment = parameters.segment();
        let schedule = parameters.schedule(bytes as u64, agreement, ranks);
        let program = (agreement == AgreementBy::Gates)
            .then(|| program(ranks, (fire, self.grace), schedule, (bytes, segment), depth));
        Plan::new(Terms {
            ranks,
            me,
            topology,
            fire,
            grace,
            absent: self.absent,
            weighted: self.weighted,
            depth,
            agreement,
            movement,
            base: self.base,
            memory: self.memory,
            bytes,
            wide_bytes: self.wide_bytes,
            segment,
            run: parameters.run(),
            pull_after: parameters.pull_after(bytes),
            helpers: self.cores.clamp(1, ranks),
            schedule,
            program,
            fault: Fault::chosen(),
        })
    }
}
