//! A program that a runner runs in place of the ranks: what the machine asks of it, and what it has done.

use super::{Driver, WRITTEN_ONCE};
use crate::collective::core::{Cells, Effort, Entry, Particulars, RunnerOp, Time};
use crate::error::Result;
use crate::reduce::{Goal, Place};

impl Driver {
    /// Passes a request to the runner.
    #[inline(never)]
    pub(super) fn ask_runner(&mut self, op: RunnerOp, now: Time) -> Result<()> {
        let Driver { runner: Some(runner), machine, .. } = self else {
            debug_assert!(false, "a plan for a runner has one");
            return Ok(());
        };
        match op {
            RunnerOp::Arm { round } => runner.arm(round)?,
            RunnerOp::Ready { round } => runner.ready(round)?,
            RunnerOp::SignalArrival { round } => runner.signal_arrival(round)?,
            RunnerOp::RevokeGateToken { round, token } => {
                let taken = runner.revoke_token(round)?;
                machine.complete(token, u64::from(taken), now);
            }
            RunnerOp::Deposit { round, gate, buffer, row, weight } => {
                let plan = machine.plan();
                let from = plan.contribution(plan.me, buffer);
                runner.deposit(round, gate, from, row, weight)?;
            }
        }
        Ok(())
    }

    /// Records what a runner has done since the last call, and with some effort reduces the received contributions.
    pub(super) fn poll_runner(&mut self, effort: Effort) -> Result<()> {
        let Driver { runner: Some(runner), machine, control, arena, reduction, parts, .. } = self else {
            return Ok(());
        };
        let plan = machine.plan();
        if let Some(round) = machine.nearly_over()
            && runner.is_over(round)?
        {
            control.announce(plan.over(round), round);
        }
        let Some((round, wanted)) = machine.expected().filter(|_| effort > Effort::Nothing) else { return Ok(()) };
        let record = plan.record(round);
        if control.load(record) != round && runner.has_outcome(round)? {
            let scratch = &mut parts.cut;
            scratch.begin(round, None);
            for rank in 0..plan.ranks {
                let (deposit, weights) = runner.deposit_of(round, rank)?;
                scratch.add_gate(rank, deposit, |row| Particulars::weighing(weights[row as usize]));
            }
            control.store_down(plan.recorded(record), scratch.encode());
            if wanted {
                let source = |entry: Entry| {
                    let at = runner.offset_of(round, entry.rank, entry.buffer);
                    reduction.source(entry, Place::Here(at))
                };
                debug_assert!(round > machine.landed(), "{WRITTEN_ONCE}");
                let goal = Goal { at: plan.outcome(round), wide: false };
                let (elements, divisor) =
                    (plan.bytes / reduction.dtype.size(), reduction.divisor(plan.ranks, scratch.contributions()));
                arena.combine(reduction.kind(), scratch.contributions().filter_map(source), goal, elements, divisor);
            }
            control.announce(record, round);
        }
        Ok(())
    }
}
