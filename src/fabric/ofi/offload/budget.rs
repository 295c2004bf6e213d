//! Which provider runs programs, and how much of them.
#![forbid(unsafe_code)]

use earlybird_ffi::ofi::Library;

use crate::fabric::ofi::devices;
use crate::trigger::{Action, Operation, Program};

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
