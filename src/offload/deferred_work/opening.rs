//! Opens the providers of all ranks, or none.

use std::time::Instant;

use super::{Introduction, Provider};
use crate::error::{Error, Result, text_of};
use crate::executor::runner::Runner;
use crate::fabric::{Fabric, MOST_EXCHANGED};
use crate::trigger::Request;

/// Opens the runner of the program that all ranks want. Returns `None` if one rank has no runner: then no rank uses
/// one. The first `front` bytes of its memory are the collective's; `world` is the provider of the world, if it is over
/// libfabric.
///
/// # Errors
/// A rank does not come.
pub(crate) fn open(
    fabric: &dyn Fabric,
    operation: &'static str,
    wanted: &Request,
    (front, world): (usize, Option<&str>),
    until: Instant,
) -> Result<Option<Box<dyn Runner>>> {
    let rank = fabric.rank();
    let opened = Provider::open(rank, wanted, front, world);
    let told = match &opened {
        Ok((_, introduction)) => [b"ok".to_vec(), introduction.encode()].concat(),
        Err(error) => reason_of(error).into_bytes(),
    };
    let everybody = fabric.exchange_long(operation, &told, until)?;
    let connected = opened.and_then(|(mut provider, _)| {
        let theirs = everybody.iter().zip(0..).map(|(bytes, peer)| {
            let introduction = bytes.strip_prefix(b"ok").and_then(Introduction::decode);
            introduction.ok_or_else(|| Error::transport(rank, peer, operation, format!("rank {peer} has no provider")))
        });
        provider.connect(&theirs.collect::<Result<Vec<_>>>()?)?;
        Ok(provider)
    });
    let told = connected.as_ref().map_or_else(|error| reason_of(error).into_bytes(), |_| b"ok".to_vec());
    let connections = fabric.exchange(operation, &told[..told.len().min(MOST_EXCHANGED)], until)?;
    let refused = everybody.iter().chain(&connections).find(|answer| !answer.starts_with(b"ok"));
    if let Some(reason) = refused {
        let reason = text_of(reason);
        match rank {
            0 => tracing::warn!(%reason, "no provider carries this collective out; its ranks do"),
            _ => tracing::debug!(rank, %reason, "no provider carries this collective out; its ranks do"),
        }
    }
    Ok(connected.ok().filter(|_| refused.is_none()).map(|provider| Box::new(provider) as Box<dyn Runner>))
}

/// Returns the reason that a rank without a provider sends to the others, which then use none either.
fn reason_of(error: &Error) -> String {
    match error {
        Error::Transport { cause, .. } => cause.clone(),
        other => other.to_string(),
    }
}
