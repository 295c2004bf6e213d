//! From the choices to the plan of a collective.

use super::AllreduceBuilder;
use super::combinations::Kind;
use crate::collective::core::Plan;
use crate::collective::wanted::Wanted;
use crate::error::Result;
use crate::reduce::Item;
use crate::rule::{Executor, Mover};
use crate::topology::Topology;

impl<T: Item> AllreduceBuilder<'_, T> {
    /// Returns this rank's plan, or what is wrong with its choices.
    pub(super) fn plan(&self, offloaded: bool) -> Result<Plan> {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let usage = |problem| self.usage(problem);
        let kind = if offloaded { Kind::Offloaded } else { Kind::Rounds };
        let (elements, bytes) = self.check_choices(kind)?;
        self.check_restored()?;
        self.check_model(bytes)?;
        let parameters = self.world.parameters();
        let is_one_host = !offloaded && self.world.topology().is_one_host();
        let given = self.is_given();
        let tree = match self.chosen.mover {
            _ if offloaded => false,
            // No provider of the requested kind is available.
            Mover::Tree if self.chosen.executor == Executor::Provider => is_one_host,
            Mover::Tree => true,
            _ if self.model().is_some() || self.is_taped() => false,
            Mover::Auto if is_one_host => parameters.mover() == Mover::Tree,
            // A collective whose cuts are given moves its data in segments.
            Mover::Auto => !given && self.may_relay() && self.would_relay(bytes),
            Mover::Cut => false,
        };
        let topology = match tree {
            // Under a provider, ranks do not use shared memory.
            _ if offloaded => Topology::apart(ranks),
            true => self.world.topology_of_relays().clone(),
            false => self.world.topology().clone(),
        };
        let plan = Wanted {
            me: rank,
            topology,
            chosen: self.chosen,
            has_models: self.model().is_some(),
            elements,
            cores: self.world.cores(),
            tree,
            given,
            offloaded,
        }
        .plan(parameters);
        plan.checked_data_bytes()
            .ok_or_else(|| usage("more memory than can be addressed; use fewer elements or a smaller depth"))?;
        Ok(plan)
    }

    /// Returns whether `auto` selects relays here, if the executor allows it.
    pub(super) fn would_relay(&self, bytes: usize) -> bool {
        let topology = self.world.topology_of_relays();
        let alone = topology.has_elsewhere() && self.model().is_none();
        // A replay may run on other hosts, and sums in ascending rank, as the cut mover does everywhere.
        let is_taped = self.world.record().is_some() || self.world.replay().is_some();
        let (parameters, by_processor) = (self.world.parameters(), self.world.fabric().changes_by_processor());
        self.chosen.mover == Mover::Auto
            && alone
            && !is_taped
            // Otherwise ranks of one host would reach each other over the network.
            && (topology.has_two_levels() || parameters.relays(self.chosen.fire, (topology.ranks(), bytes as u64), by_processor))
    }

    /// Returns whether this rank relays while it computes. A rank that does not would delay every round.
    pub(super) fn may_relay(&self) -> bool {
        matches!(self.chosen.executor, Executor::Auto | Executor::Thread)
    }
}
