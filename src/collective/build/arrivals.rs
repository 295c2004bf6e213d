//! A collective whose ranks average in groups by order of arrival.

use super::combinations::Kind;
use super::{AllreduceBuilder, OPERATION};
use crate::collective::allreduce::Allreduce;
use crate::collective::calls::Calls;
use crate::collective::recording::Tape;
use crate::collective::regions::{Made, decode_run, import_regions, make_memory};
use crate::collective::tickets::{
    Areas, Mean, Memory, TicketDriver, TicketEngine, TicketMachine, TicketPlan, TicketTerms,
};
use crate::error::Result;
use crate::fabric::Access;
use crate::fault::Fault;
use crate::reduce::Item;
use crate::rule::{Absent, Scale};
use crate::time::Deadline;
use crate::world::endpoints::Endpoints;

impl<T: Item> AllreduceBuilder<'_, T> {
    /// Builds the collective with groups of this size. As [`build`](AllreduceBuilder::build).
    pub(super) fn build_arrivals(self, size: u32) -> Result<Allreduce<T>> {
        let (operation, world, number) = (OPERATION, self.world, self.world.next_collective());
        let until = self.until.unwrap_or_else(|| Deadline::from(world.deadline()).instant());
        let planned = self.plan_arrivals(size);
        let segment = ("the segment (by hw-config)", world.parameters().segment().to_string());
        let planned = planned.and_then(|(plan, areas)| {
            let choices = [self.common_choices(), vec![segment]].concat();
            Ok((Tape::of_groups(world, number, &choices)?, choices, plan, areas))
        });
        let (tape, _, plan, areas) = self.agree(planned, |(_, choices, ..)| choices.clone(), until)?;
        let mut endpoint = self.or_abort(world.open(Endpoints::OfRanks, OPERATION, until))?;
        let topology = world.topology().clone();
        let host = topology.host_of(world.rank());
        let models = topology.ranks_of(host).iter().map(|&rank| areas.register(rank));
        let shared = self.model().filter(|model| !model.own);
        let initial = shared.map(|model| (model.bytes, models));
        // All cells are on one host. Other ranks read them there.
        let cells = if host == topology.host_of(0) { plan.cells() } else { 1 };
        let sizes = (cells, areas.of_host().unwrap_or_default());
        let made = match topology.leader(host) == world.rank() {
            true => make_memory(&mut *endpoint, Access::ReadWrite, sizes, initial),
            false => Ok(Made::Nothing),
        };
        let (made, everybody) = self.trade_keys(made, until)?;
        let named = import_regions(world.rank(), operation, &mut *endpoint, (&topology, &made), &everybody);
        let regions = self.or_abort(named)?;
        tracing::debug!(rank = world.rank(), size, bytes = areas.bytes(), "collective by order of arrival made");
        let own_register = areas.register(world.rank());
        let memory = Memory {
            cells: regions.control[topology.host_of(0) as usize],
            data: regions.data,
            areas,
            dtype: self.chosen.dtype,
            mean: match (self.chosen.absent, self.chosen.scale) {
                (Absent::Hold, Scale::Ages(factor)) => Mean::ModelsByAge(factor),
                (Absent::Hold, _) => Mean::Models,
                _ => Mean::Registers,
            },
        };
        let made = TicketDriver::new(TicketMachine::new(plan), endpoint, memory);
        let driver = self.or_abort(made.map_err(|error| error.in_call(operation)))?;
        let mut memory = driver.memory();
        self.write_own_model(&mut memory, [own_register].into_iter(), until)?;
        let engine = TicketEngine::new(driver).recorded(tape.is_some());
        let told = (tape, self.track(number, "by arrival"));
        let raw = self.raw(engine, memory, (self.chosen_executor(), Endpoints::OfRanks), told)?;
        Ok(Allreduce::new(Calls::Arrivals(raw), (self.chosen.dtype, self.lengths), decode_run(&everybody)))
    }

    /// Returns this rank's plan and where its data lies, or what is wrong with its choices.
    pub(super) fn plan_arrivals(&self, size: u32) -> Result<(TicketPlan, Areas)> {
        let usage = |problem| self.usage(problem);
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let (_, bytes) = self.check_choices(Kind::Arrivals)?;
        self.check_model(bytes)?;
        let topology = self.world.topology().clone();
        let areas = Areas::new(topology, bytes, self.world.parameters().segment());
        areas.of_host().ok_or_else(|| usage("more memory than can be addressed; use fewer elements"))?;
        let plan = TicketPlan::new(TicketTerms {
            me: rank,
            ranks,
            // A larger group never fills, and would only take more tickets.
            size: size.min(ranks.max(2)),
            deadline: self.chosen.fire.limit().map(|limit| limit.as_nanos().try_into().unwrap_or(u64::MAX)),
            lends: self.chosen.absent == Absent::Carry,
            segments: areas.segments(),
            fault: Fault::chosen(),
        });
        Ok((plan, areas))
    }
}
