//! The cost of queueing the operations of a round in a provider, which then runs them by itself.

use crate::measure::{Arming, arming};
use crate::trigger::hops;
use crate::{Result, World};
use serde_json::json;

use super::super::distribution::Distribution;
use super::super::table::Table;
use super::PATIENCE;
use super::conditions::Conditions;

/// Arms rounds, lets them run, and prints how long arming took on rank 0.
pub(super) fn run(
    world: &World,
    bytes: u64,
    (warmup, iters): (u32, Option<u32>),
    conditions: Option<&Conditions>,
) -> Result<()> {
    let rounds = (u64::from(warmup), u64::from(iters.unwrap_or(200)));
    let armed = arming(&**world.fabric(), bytes, rounds, PATIENCE)?;
    if world.rank() == 0 {
        tell(world, armed, conditions);
    }
    Ok(())
}

fn tell(world: &World, armed: Arming, conditions: Option<&Conditions>) {
    let Arming { provider, operations, seconds } = armed;
    let seconds = Distribution::of(seconds);
    let each = |us: f64| us / operations as f64;
    let transfers = u64::from(hops(world.size()) + world.size() - 1);
    let [p50, p99] = [0.5, 0.99].map(|at| seconds.quantile(at) * 1e6);
    if let Some(conditions) = conditions {
        let row = json!({
            "provider": provider, "operations": operations, "transfers": transfers, "rounds": seconds.len(),
            "p50_us": p50, "p99_us": p99, "each_us": each(p50),
        });
        return conditions.say(row);
    }
    let mut table = Table::new(&["ranks", "operations", "transfers", "rounds", "p50_us", "p99_us", "each_us"]);
    let counts = [u64::from(world.size()), operations, transfers, seconds.len() as u64].map(|count| count.to_string());
    let times = [p50, p99, each(p50)].map(|us| format!("{us:.2}"));
    table.row(&counts.into_iter().chain(times).collect::<Vec<_>>());
    say!("arm, {provider}: what a rank queues for a round");
    say!("{table}");
}
