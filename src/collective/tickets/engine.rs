//! Completes a rank's arrivals in their groups, for a caller and a helper thread by turns.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::ages;
use super::areas::BUFFERS;
use super::driver::{Mean, TicketDriver, interest};
use crate::collective::core::{self, Effort, Entry, Part, Particulars, Stats, Time};
use crate::collective::protocol::{Buffer, Facts, Goal, Protocol};
use crate::error::{Ranks, Result};
use crate::executor::work::{Outlived, Polled, Polls, Rest, Shared, Work};
use crate::rank_set::RankSet;
use crate::rule::{Absent, Grace, Mover};

/// The number of tickets that a collective can give out. A group that closes early takes as many as a full one.
const TICKETS: u64 = 1 << 40;

/// A driver, and its state for this rank's arrivals.
#[derive(Debug)]
pub(crate) struct TicketEngine {
    driver: TicketDriver,
    /// The goal that it works towards.
    goal: Goal,
    arrivals: u64,
    /// This rank's iteration: the number of its contributions, or that of the newest member in a mean where ages count.
    iteration: u64,
    /// The cuts of groups that a recording has not taken yet, if there is one.
    log: Option<Vec<core::Cut>>,
}

impl TicketEngine {
    pub(crate) fn new(driver: TicketDriver) -> Self {
        TicketEngine { driver, goal: Goal::Outcome, arrivals: 0, iteration: 0, log: None }
    }

    /// Keeps the cuts of groups for a recording from now on, if there is one.
    pub(crate) fn recorded(mut self, is_recorded: bool) -> Self {
        self.log = is_recorded.then(Vec::new);
        self
    }

    fn has_reached(&self, goal: Goal) -> bool {
        let machine = self.driver.machine();
        match goal {
            Goal::Outcome => machine.is_ready(),
            Goal::Left => machine.has_left(),
            Goal::Arrival => machine.is_at_rest(),
            Goal::Gone => self.driver.has_gone(),
        }
    }
}

impl Protocol for TicketEngine {
    fn facts(&self) -> Facts {
        let (plan, areas) = (self.driver.machine().plan(), self.driver.areas());
        Facts {
            me: plan.me(),
            ranks: plan.ranks(),
            bytes: areas.bytes(),
            pieces: 1,
            slots: 1,
            last_round: TICKETS / u64::from(plan.size()),
            base: 0,
            weighted: false,
            tells_durations: false,
            has_memory: true,
            absent: if self.driver.mean() == Mean::Registers { Absent::Carry } else { Absent::Hold },
            path: "arrivals",
            mover: Mover::Cut,
            grace: Grace::NONE,
            depth: 1,
            fault: plan.chosen_fault(),
        }
    }

    fn buffer(&self) -> Buffer {
        let number = (self.arrivals % u64::from(BUFFERS)) as u32;
        Buffer { number, at: self.driver.areas().contribution(self.driver.machine().plan().me(), number) }
    }

    fn arrive(&mut self, now: Time, particulars: Particulars, _unfilled: bool) {
        let Buffer { number, .. } = self.buffer();
        self.driver.machine_mut().arrive(now, number, self.iteration, particulars.weight());
        self.arrivals += 1;
    }

    fn take(&mut self, _begun: bool, cuts: &mut [core::Cut], places: &mut [usize]) -> RangeInclusive<u64> {
        let (me, mean) = (self.driver.machine().plan().me(), self.driver.mean());
        let cut = self.driver.machine_mut().take();
        if let Mean::ModelsByAge(_) = mean {
            self.iteration = ages::after(cut, me, self.iteration);
        }
        self.iteration += 1;
        // Rounds are counted from 1.
        let round = cut.group + 1;
        if cut.members.iter().any(|member| member.rank == me && member.leaving) {
            // The rank that leaves does not take the others' model.
            return round + 1..=round;
        }
        if let (Some(taken), Some(place)) = (cuts.first_mut(), places.first_mut()) {
            let entries = cut.members.iter().map(|member| {
                let part = if member.leaving { Part::Leaving } else { Part::Fresh };
                Entry::new(member.rank, part, (0, Particulars::weighing(member.weight)), member.buffer)
            });
            taken.fill(round, entries);
            self.log.iter_mut().for_each(|log| log.push(taken.clone()));
            *place = self.driver.areas().outcome(me);
        }
        round..=round
    }

    fn release(&mut self, _newest: u64) {}

    fn leave(&mut self, now: Time) {
        self.driver.machine_mut().finish(now, self.iteration);
    }

    fn has_left(&self) -> bool {
        self.driver.machine().has_left()
    }

    fn let_go(&mut self) {}

    fn members(&self, _round: u64, mut active: RankSet) -> RankSet {
        let cut = self.driver.machine().cut();
        active.clear();
        cut.contributors().map(|member| member.rank).chain(cut.lender).for_each(|rank| active.insert(rank));
        active
    }

    fn is_complete(&self) -> bool {
        self.driver.machine().is_ready()
    }

    fn towards(&mut self, goal: Goal) -> &mut Self {
        self.goal = goal;
        self
    }

    fn drive(&mut self, now: Time, effort: Effort) -> Result<()> {
        while self.driver.step(now, effort)? {}
        Ok(())
    }

    fn look(&mut self, now: Time) -> Result<()> {
        self.driver.hear(now)?;
        self.drive(now, Effort::Nothing)
    }

    fn recorded(&mut self) -> Vec<core::Cut> {
        self.log.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    fn stats(&self) -> Stats {
        let stats = self.driver.machine().stats();
        Stats {
            fresh: self.arrivals,
            initiated: stats.closed,
            deadlines_expired: stats.expired,
            segments: stats.segments,
            groups: stats.closed,
            closed_early: stats.closed_early,
            bridges: stats.bridges,
            apart: stats.no_lender,
            lent: stats.lent,
            ..Stats::default()
        }
    }
}

impl Shared for TicketEngine {
    fn left_undone(&mut self) -> Option<&mut Self> {
        (!self.has_reached(Goal::Arrival)).then(|| self.towards(Goal::Arrival))
    }

    fn has_result(&self) -> bool {
        self.is_complete()
    }

    fn is_asleep(&self) -> bool {
        self.driver.is_delegated()
    }
}

impl Work for TicketEngine {
    fn needs_time(&self) -> bool {
        self.driver.is_spread() || self.driver.machine().plan().deadline().is_some()
    }

    fn polls(&self, yields: bool) -> Polls {
        Polls::new(yields, !self.driver.is_spread())
    }

    fn poll(&mut self, now: Time) -> Result<Polled> {
        if self.driver.step(now, Effort::Work)? {
            return Ok(Polled::Progress);
        }
        Ok(if self.has_reached(self.goal) { Polled::Ready } else { Polled::Idle })
    }

    fn begin(&mut self) {}

    fn wants_time(&mut self, _polled: Time) -> bool {
        false
    }

    fn time(&mut self, _now: Time) {}

    fn next_timer(&self) -> Option<Time> {
        self.driver.machine().next_timer()
    }

    fn search(&mut self) {}

    fn rest(&mut self, now: Time) -> Result<Rest> {
        let driver = &mut self.driver;
        let awaited = interest(driver.machine().awaits());
        driver.endpoint().prepare_wait(awaited);
        if driver.rest(now)? {
            driver.endpoint().cancel_wait();
            return Ok(Rest::Awake);
        }
        let until = [driver.next_poll(now), self.next_timer()].into_iter().flatten().min();
        Ok(Rest::Asleep { until })
    }

    fn sleep(&mut self, at_most: Duration) {
        self.driver.endpoint().wait(at_most);
    }

    fn rouse(&mut self) {
        self.driver.endpoint().cancel_wait();
    }

    fn delegate(&mut self) -> bool {
        self.driver.endpoint().delegate_wait()
    }

    fn missing(&self) -> Ranks {
        Ranks(self.driver.missing())
    }

    fn hear_of(&mut self, _dead: u32) {}

    fn outlive(&mut self, now: Time) -> Result<Outlived> {
        let polled = self.poll(now)?;
        Ok(match polled {
            Polled::Progress => Outlived::Progress,
            Polled::Ready => Outlived::Ready,
            // The other members can end it.
            Polled::Idle if self.driver.machine().has_formed() => Outlived::Pending,
            Polled::Idle => Outlived::Lost,
        })
    }
}
