//! Which provider runs programs, and how much of them.
#![forbid(unsafe_code)]

use earlybird_ffi::ofi::Library;

use crate::fabric::ofi::devices;
use crate::trigger::{Action, Operation, Profile, Program, Request, Schedule, Start, compile};

/// The provider that runs programs in a world that `world` carries, or shared memory: that one, or else
/// a card, or else one that acts as a card.
///
/// # Errors
/// That there is none.
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

/// How many operations a rank may have queued in a provider. More than `sockets` can keep under way get
/// lost among each other; a card shares its triggers among all its processes, and gives each so many for
/// sure.
#[must_use]
pub fn budget(provider: &str) -> u64 {
    match provider {
        "sockets" => 2048,
        _ => 60,
    }
}

/// Rounds that may be armed ahead in a provider, so that a rank of so many stays within the
/// [`budget`]: the largest [`depth`](crate::collective::AllreduceBuilder::depth) of a collective that the first
/// arrival fires. A ring has a slot more.
#[must_use]
pub fn largest_depth(provider: &str, ranks: u32) -> u64 {
    let (start, schedule) = (Start::First, Schedule::Gather);
    let program = compile(&Request { ranks, start, schedule, bytes: 8, chunk: 0, slots: 1 }, &Profile::NETWORK);
    let each = program.iter().map(operations).max().unwrap_or(0);
    (budget(provider) / each.max(1)).saturating_sub(1)
}

/// Operations that a rank's table comes to in a provider, for each use of a slot.
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

    /// As docs/guides/libfabric.md has them.
    #[test]
    fn depths_are_what_budgets_allow() {
        let depths = |provider| [2, 4, 8, 16].map(|ranks| largest_depth(provider, ranks));
        assert_eq!(depths("sockets"), [340, 226, 145, 88]);
        assert_eq!(depths("cxi"), [9, 5, 3, 1]);
    }
}
