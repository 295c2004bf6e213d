//! Measured parameters, and the choices that follow from them. No constant in the code chooses an
//! algorithm.
#![forbid(unsafe_code)]

mod device;
mod file;

use std::time::Duration;

use serde::Deserialize;

use crate::named::UnknownName;
use crate::rule::{Executor, Fire, MOST_RADIX, MovementBy, Mover, Schedule};
use crate::time::parse_duration;
use crate::units::parse_size;

#[cfg(test)]
pub(crate) use file::BUILT_IN;
pub use file::HwConfig;

/// The measured parameters of a fabric on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    #[serde(deserialize_with = "size")]
    replicate_total: u64,
    #[serde(deserialize_with = "size", default)]
    gather_total: u64,
    #[serde(deserialize_with = "size", default)]
    scatter_total: u64,
    #[serde(deserialize_with = "time", default)]
    pull_after: Duration,
    #[serde(deserialize_with = "time", default)]
    pull_after_per_mib: Duration,
    #[serde(deserialize_with = "size")]
    eager_total: u64,
    #[serde(deserialize_with = "size")]
    segment: u64,
    #[serde(deserialize_with = "size")]
    piece: u64,
    #[serde(deserialize_with = "size")]
    tree_scatter: u64,
    #[serde(deserialize_with = "size", default)]
    star_total: u64,
    #[serde(default = "pairs")]
    radix: u32,
    #[serde(default)]
    relay_all_from: u32,
    #[serde(deserialize_with = "size", default)]
    relay: u64,
    #[serde(deserialize_with = "size", default)]
    relay_by_device: u64,
    #[serde(deserialize_with = "choice")]
    mover: Mover,
    #[serde(deserialize_with = "choice")]
    executor: Executor,
    #[serde(deserialize_with = "time")]
    spin: Duration,
    #[serde(deserialize_with = "time")]
    spin_oversubscribed: Duration,
}

const LONGEST_SPIN: Duration = Duration::from_millis(10);

/// A longer wait for reducers would be equivalent to no fallback read.
const LONGEST_PULL: Duration = Duration::from_secs(60);

const KEYS: [&str; 18] = [
    "replicate_total",
    "gather_total",
    "scatter_total",
    "pull_after",
    "pull_after_per_mib",
    "eager_total",
    "segment",
    "piece",
    "tree_scatter",
    "star_total",
    "radix",
    "relay_all_from",
    "relay",
    "relay_by_device",
    "mover",
    "executor",
    "spin",
    "spin_oversubscribed",
];

fn pairs() -> u32 {
    2
}

fn size<'de, D: serde::Deserializer<'de>>(value: D) -> std::result::Result<u64, D::Error> {
    parse_size(&String::deserialize(value)?).map_err(serde::de::Error::custom)
}

fn time<'de, D: serde::Deserializer<'de>>(value: D) -> std::result::Result<Duration, D::Error> {
    parse_duration(&String::deserialize(value)?).map_err(serde::de::Error::custom)
}

fn choice<'de, D, T>(value: D) -> std::result::Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err = UnknownName>,
{
    String::deserialize(value)?.parse().map_err(serde::de::Error::custom)
}

impl Parameters {
    fn check(&self) -> std::result::Result<(), String> {
        if self.segment == 0 || !self.segment.is_multiple_of(8) {
            return Err("segment must be a multiple of 8 bytes, and not 0".to_owned());
        }
        if self.piece == 0 || !self.piece.is_multiple_of(self.segment) {
            // One of the two may be given and the other built in.
            return Err(format!(
                "piece must be a multiple of segment, and not 0; they are {} and {} bytes",
                self.piece, self.segment
            ));
        }
        if self.pull_after.is_zero() && self.gather_total.max(self.scatter_total) > 0 {
            return Err("rounds with reducers (gather_total, scatter_total) need a time to wait for them, pull_after"
                .to_owned());
        }
        if self.pull_after.max(self.pull_after_per_mib) > LONGEST_PULL {
            return Err(format!("pull_after and pull_after_per_mib can be {LONGEST_PULL:?} at most"));
        }
        if !(2..=MOST_RADIX).contains(&self.radix) {
            return Err(format!("radix is how many parts meet at a level, 2 to {MOST_RADIX}; it is {}", self.radix));
        }
        if self.mover == Mover::Auto || self.executor == Executor::Auto {
            return Err("mover and executor say what auto stands for; they cannot be auto themselves".to_owned());
        }
        if self.executor == Executor::Provider {
            return Err(
                "executor cannot be provider: a collective has to ask for that itself, by its builder".to_owned()
            );
        }
        if self.spin.max(self.spin_oversubscribed) > LONGEST_SPIN {
            return Err(format!("spinning for more than {LONGEST_SPIN:?} would starve the ranks that it waits for"));
        }
        Ok(())
    }

    /// Selects how the data of a collective moves.
    pub(crate) fn movement(&self, fire: Fire, ranks: u32, bytes: u64) -> MovementBy {
        let total = bytes.saturating_mul(u64::from(ranks));
        if !fire.is_synchronous() {
            return if total <= self.eager_total { MovementBy::Initiator } else { MovementBy::Segments };
        }
        // Two ranks exchange everything in two messages.
        let (small, most) = match ranks > 2 && self.gather_total > 0 {
            true => (MovementBy::Reducer, self.gather_total),
            false => (MovementBy::Everyone, self.replicate_total),
        };
        match total {
            total if total <= most => small,
            total if total <= self.scatter_total => MovementBy::Reducers,
            _ => MovementBy::Segments,
        }
    }

    /// Returns the mover that [`Mover::Auto`] selects.
    pub(crate) fn mover(&self) -> Mover {
        self.mover
    }

    /// Returns whether ranks, each on a host of its own, relay the rounds of a rule where [`Mover::Auto`] is chosen.
    /// `by_processor`: the home's processor, instead of its device, changes the word of a round.
    pub(crate) fn relays(&self, fire: Fire, (ranks, bytes): (u32, u64), by_processor: bool) -> bool {
        // Gathered rounds take fewer messages, and segments of large data less memory.
        let is_between = self.movement(fire, ranks, bytes) == MovementBy::Reducers;
        let many = self.relay_all_from > 0 && ranks >= self.relay_all_from && is_between;
        let most = if by_processor { self.relay } else { self.relay_by_device };
        self.mover == Mover::Tree || if fire.is_synchronous() { many } else { bytes <= most }
    }

    /// Returns the schedule by which the program of a tree reduces in shared memory.
    pub(crate) fn schedule(&self, bytes: u64) -> Schedule {
        if bytes <= self.tree_scatter { Schedule::Doubling } else { Schedule::Scatter }
    }

    /// Returns the schedule and the radix by which hosts that relay exchange their data.
    pub(crate) fn shape(&self, bytes: u64, hosts: u32) -> (Schedule, u32) {
        // Two hosts are a pair in any shape.
        let is_star = (3..=MOST_RADIX).contains(&hosts) && bytes.saturating_mul(u64::from(hosts)) <= self.star_total;
        let schedule = match bytes <= self.tree_scatter {
            // Two hosts would send the same number of bytes, in more messages.
            false if hosts > 3 && !is_star => Schedule::Halving,
            _ => Schedule::Doubling,
        };
        (schedule, if is_star { 1 } else { self.radix })
    }

    /// Returns the executor that [`Executor::Auto`] selects.
    pub(crate) fn executor(&self) -> Executor {
        self.executor
    }

    /// Returns how long a rank waits for reducers that have arrived before it makes a fallback read, in nanoseconds.
    pub(crate) fn pull_after(&self, bytes: usize) -> u64 {
        let longer = self.pull_after_per_mib.as_nanos().saturating_mul(bytes as u128) >> 20;
        // An hour has the same effect as no limit, and is far from overflow.
        (self.pull_after.as_nanos().saturating_add(longer)).min(3_600_000_000_000) as u64
    }

    pub(crate) fn segment(&self) -> usize {
        usize::try_from(self.segment).unwrap_or(usize::MAX & !7)
    }

    /// Returns the number of segments in a piece.
    pub(crate) fn run(&self) -> u64 {
        self.piece / self.segment
    }

    pub(crate) fn spin(&self, oversubscribed: bool) -> Duration {
        if oversubscribed { self.spin_oversubscribed } else { self.spin }
    }
}
