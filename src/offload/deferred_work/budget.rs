//! The provider that runs programs, and its limits.
#![forbid(unsafe_code)]

use crate::fabric::ofi::{Library, devices, largest_count, most_queued};
use crate::trigger::{Action, Operation, Profile, Program, Request, Schedule, Signal, Start, compile};

/// Returns the provider that runs programs. In a world over a provider it is that one; over shared memory it is the
/// provider of a network card, or otherwise one that emulates a card.
///
/// # Errors
/// No such provider exists.
pub fn provider_for(library: &Library, world: Option<&str>) -> std::result::Result<String, String> {
    let devices = devices(library).map_err(|error| error.to_string())?;
    let able = |name: &str| devices.iter().any(|device| device.provider == name && device.triggers);
    let choice = match world {
        Some(name) => [name, name],
        None => ["cxi", "sockets"],
    };
    let found = choice.into_iter().find(|name| able(name)).map(str::to_owned);
    found.ok_or_else(|| match world {
        Some(name) => format!("{name} runs nothing by itself (triggers, in `earlybird info`); sockets and cxi do"),
        None => "libfabric has no provider here that runs programs by itself (sockets and cxi do)".to_owned(),
    })
}

/// Returns the number of rounds that may be armed ahead in a provider so that no rank queues more than the provider can
/// keep. It is the largest [`depth`](crate::AllreduceBuilder::depth) of a collective that the first arrival fires. A
/// ring has one slot more.
#[must_use]
pub fn largest_depth(provider: &str, ranks: u32) -> u64 {
    let (start, schedule) = (Start::First, Schedule::Gather);
    let program =
        compile(&Request { ranks, start, schedule, radix: 2, bytes: 8, chunk: 0, slots: 1 }, &Profile::NETWORK);
    let each = program.iter().map(operations).max().unwrap_or(0);
    (most_queued(provider) / each.max(1)).saturating_sub(1)
}

/// Returns how often a slot can be used before a counter of any rank exceeds the provider's greatest count.
pub(super) fn most_uses(provider: &str, world: &[Program]) -> u64 {
    largest_count(provider) / most_increments(world).max(1)
}

/// Returns the most increments of a counter in one use of its slot, over all ranks.
fn most_increments(world: &[Program]) -> u64 {
    let inputs = |program: &Program| program.counters.iter().map(|counter| u64::from(counter.inputs)).max();
    let most = |program: &Program| inputs(program).unwrap_or(0).max(signals(program));
    world.iter().map(most).max().unwrap_or(0)
}

/// Returns the number of signals that a rank's provider writes to other ranks in one use of a slot.
pub(super) fn signals(program: &Program) -> u64 {
    let tells = |operation: &&Operation| !matches!(operation.action, Action::Put { .. });
    let remote = |signal: &&Signal| signal.rank != program.rank;
    program.operations.iter().filter(tells).flat_map(|operation| &operation.then).filter(remote).count() as u64
}

/// Returns the number of operations that a rank's table queues in a provider, for each use of a slot.
#[must_use]
pub fn operations(program: &Program) -> u64 {
    let of = |operation: &Operation| match operation.action {
        Action::Reduce { .. } => 0,
        Action::Put { .. } => 1,
        Action::Signal | Action::Seal => operation.then.len() as u64,
    };
    program.operations.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter as `sockets` implements it.
    struct Fake(i32);

    impl Fake {
        fn add(&mut self, value: u64) {
            self.0 = self.0.wrapping_add(value as i32);
        }

        fn read(&self) -> u64 {
            i64::from(self.0).cast_unsigned()
        }
    }

    /// After the last use of a slot every counter still reads back correctly; after one more use it would not.
    #[test]
    fn slots_end_before_a_counter_does() {
        for ranks in 2..=64 {
            for start in [Start::Everybody, Start::First, Start::Count(ranks / 2)] {
                let request =
                    Request { ranks, start, schedule: Schedule::Gather, radix: 2, bytes: 8, chunk: 0, slots: 1 };
                let world = compile(&request, &Profile::NETWORK);
                let uses = most_uses("sockets", &world);
                let counts = |program: &Program| -> Vec<u64> {
                    let inputs = program.counters.iter().map(|counter| u64::from(counter.inputs));
                    inputs.chain([signals(program)]).collect()
                };
                let counts = world.iter().flat_map(counts);
                let (mut whole, mut beyond) = (true, true);
                for each in counts {
                    let mut counter = Fake(0);
                    counter.add((uses - 1) * each);
                    (0..each).for_each(|_| counter.add(1));
                    whole &= counter.read() == uses * each;
                    (0..each).for_each(|_| counter.add(1));
                    beyond &= counter.read() == (uses + 1) * each;
                }
                assert!(whole && !beyond, "{ranks} ranks, {start:?}: {uses} uses");
            }
        }
    }

    /// The table of docs/guides/libfabric.md.
    #[test]
    fn depths_are_what_budgets_allow() {
        let depths = |provider| [2, 4, 8, 16].map(|ranks| largest_depth(provider, ranks));
        assert_eq!(depths("sockets"), [340, 226, 145, 88]);
        assert_eq!(depths("cxi"), [9, 5, 3, 1]);
    }
}
