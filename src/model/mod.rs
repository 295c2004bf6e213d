//! Measured parameters, and the choices that follow from them. No choice of algorithm is made by a
//! constant in the code.
#![forbid(unsafe_code)]

use std::path::Path as File;
use std::time::Duration;

use serde::Deserialize;

use crate::collective::choice::{Executor, Mover, UnknownName};
use crate::collective::core::Path;
use crate::collective::rule::{Fire, parse_duration};
use crate::config::{parse_size, unknown};
use crate::error::{Error, Result};
use crate::trigger::Schedule;

const BUILT_IN: &str = include_str!("../../hw-configs/laptop.toml");

/// What was measured of a fabric on a machine.
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

/// Homes that others wait for any longer may as well be waited for without end.
const LONGEST_PULL: Duration = Duration::from_secs(60);

const KEYS: [&str; 13] = [
    "replicate_total",
    "gather_total",
    "scatter_total",
    "pull_after",
    "pull_after_per_mib",
    "eager_total",
    "segment",
    "piece",
    "tree_scatter",
    "mover",
    "executor",
    "spin",
    "spin_oversubscribed",
];

/// The sections of a file, one for each fabric.
const SECTIONS: [&str; 2] = ["shm", "ofi"];

/// What was measured on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HwConfig {
    shm: Option<Parameters>,
    ofi: Option<Parameters>,
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

impl HwConfig {
    /// From a file, or the built-in one, which also has the sections that a file lacks.
    ///
    /// # Errors
    /// [`Error::Config`] naming file, line and key, with the key that was probably meant.
    pub fn load(file: Option<&File>) -> Result<Self> {
        let named = |name: &str, text: &str| {
            Self::parse(text).map_err(|problem| Error::Config(format!("hw-config {name}: {problem}")))
        };
        let built_in = named("built in", BUILT_IN)?;
        let Some(file) = file else { return Ok(built_in) };
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|cause| Error::Config(format!("hw-config {name}: {cause}")))?;
        let HwConfig { shm, ofi } = named(&name, &text)?;
        Ok(HwConfig { shm: shm.or(built_in.shm), ofi: ofi.or(built_in.ofi) })
    }

    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        if let Some(section) = table.keys().find(|key| !SECTIONS.contains(&key.as_str())) {
            return Err(unknown("section", section, SECTIONS.into_iter()));
        }
        if table.is_empty() {
            return Err(format!("there is no section; use {}", SECTIONS.map(|name| format!("[{name}]")).join(" or ")));
        }
        let keys = table.values().filter_map(toml::Value::as_table).flat_map(toml::Table::keys);
        if let Some(key) = keys.into_iter().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(unknown("key", key, KEYS.into_iter()));
        }
        let config: HwConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.shm.iter().chain(&config.ofi).try_for_each(Parameters::check)?;
        Ok(config)
    }

    /// Those of a fabric, by its name.
    ///
    /// # Errors
    /// [`Error::Config`] if nothing is known of it.
    pub fn of(&self, fabric: &str) -> Result<Parameters> {
        let section = if fabric == "ofi" { &self.ofi } else { &self.shm };
        section.clone().ok_or_else(|| Error::Config(format!("hw-config: there is no section [{fabric}]")))
    }
}

impl Parameters {
    fn check(&self) -> std::result::Result<(), String> {
        if self.segment == 0 || !self.segment.is_multiple_of(8) {
            return Err("segment must be a multiple of 8 bytes, and not 0".to_owned());
        }
        if self.piece == 0 || !self.piece.is_multiple_of(self.segment) {
            return Err("piece must be a multiple of segment, and not 0".to_owned());
        }
        if self.pull_after.is_zero() && self.gather_total.max(self.scatter_total) > 0 {
            return Err(
                "rounds with homes (gather_total, scatter_total) need a time to wait for them, pull_after".to_owned()
            );
        }
        if self.pull_after.max(self.pull_after_per_mib) > LONGEST_PULL {
            return Err(format!("pull_after and pull_after_per_mib can be {LONGEST_PULL:?} at most"));
        }
        if self.mover == Mover::Auto || self.executor == Executor::Auto {
            return Err("mover and executor say what auto stands for; they cannot be auto themselves".to_owned());
        }
        if self.spin.max(self.spin_oversubscribed) > LONGEST_SPIN {
            return Err(format!("spinning for more than {LONGEST_SPIN:?} would starve whoever is waited for"));
        }
        Ok(())
    }

    /// How the data of a collective moves.
    pub(crate) fn path(&self, fire: Fire, ranks: u32, bytes: u64) -> Path {
        let total = bytes.saturating_mul(u64::from(ranks));
        if !fire.is_synchronous() {
            return if total <= self.eager_total { Path::Eager } else { Path::Segmented };
        }
        // Two ranks tell each other everything in two messages.
        let (small, most) = match ranks > 2 && self.gather_total > 0 {
            true => (Path::Gathered, self.gather_total),
            false => (Path::Replicated, self.replicate_total),
        };
        match total {
            total if total <= most => small,
            total if total <= self.scatter_total => Path::Scattered,
            _ => Path::Segmented,
        }
    }

    /// What [`Mover::Auto`] stands for.
    pub(crate) fn mover(&self) -> Mover {
        self.mover
    }

    /// How the program of a tree reduces.
    pub(crate) fn schedule(&self, bytes: u64) -> Schedule {
        if bytes > self.tree_scatter { Schedule::Scatter } else { Schedule::Doubling }
    }

    /// What [`Executor::Auto`] stands for.
    pub(crate) fn executor(&self) -> Executor {
        self.executor
    }

    /// How long homes, which have arrived, are waited for before others make a round of such contributions, in
    /// nanoseconds.
    pub(crate) fn pull_after(&self, bytes: usize) -> u64 {
        let longer = self.pull_after_per_mib.as_nanos().saturating_mul(bytes as u128) >> 20;
        // An hour is as good as for ever, and far from the end of time.
        (self.pull_after.as_nanos().saturating_add(longer)).min(3_600_000_000_000) as u64
    }

    pub(crate) fn segment(&self) -> usize {
        usize::try_from(self.segment).unwrap_or(usize::MAX & !7)
    }

    /// Segments of a piece.
    pub(crate) fn run(&self) -> u64 {
        self.piece / self.segment
    }

    pub(crate) fn spin(&self, oversubscribed: bool) -> Duration {
        if oversubscribed { self.spin_oversubscribed } else { self.spin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_parameters_can_be_read() {
        let parameters = HwConfig::load(None).unwrap().of("shm").unwrap();
        assert_eq!(parameters.path(Fire::ALL, 2, 8), Path::Replicated);
        assert_eq!(parameters.path(Fire::SOLO, 2, 8), Path::Eager);
        assert_eq!(parameters.path(Fire::SOLO, 32, u64::MAX), Path::Segmented);
        let network = HwConfig::load(None).unwrap().of("ofi").unwrap();
        let path = |ranks, bytes| network.path(Fire::ALL, ranks, bytes).name();
        assert_eq!([path(2, 8), path(2, 4 << 20), path(2, 1 << 30)], ["replicated", "scattered", "segmented"]);
        assert_eq!([path(4, 8), path(4, 1 << 20), path(4, 1 << 30)], ["gathered", "scattered", "segmented"]);
        assert_eq!([0, 1 << 20].map(|bytes| network.pull_after(bytes)), [1_000_000, 9_000_000]);
        assert_eq!(network.pull_after(usize::MAX), 3_600_000_000_000);
    }

    #[test]
    fn mistakes_are_named() {
        let change = |from: &str, to: &str| HwConfig::parse(&BUILT_IN.replace(from, to)).unwrap_err();
        assert!(change("eager_total", "eager_totl").contains("did you mean eager_total?"));
        assert!(change("[shm]", "[shn]").contains("did you mean shm?"));
        assert!(change("\"32K\"", "\"lots\"").contains("not a size"));
        assert!(change("\"32K\"", "\"13\"").contains("multiple of 8"));
        assert!(change("\"32K\"", "32").contains("invalid type"));
        assert!(change("\"8ms\"", "\"61s\"").contains("at most"));
        assert!(change("pull_after =", "# pull_after =").contains("need a time to wait"));
        assert!(change("\"cut\"", "\"twig\"").contains("use one of auto, cut, tree"));
        assert!(change("\"caller\"", "\"auto\"").contains("cannot be auto"));
        assert!(change("\"50us\"", "\"5 days\"").contains("not a time"));
        assert!(change("\"100us\"", "\"1s\"").contains("more than 10ms"));
        assert!(HwConfig::parse("").unwrap_err().contains("shm"));
        assert!(HwConfig::load(Some(File::new("/no/such/file"))).unwrap_err().to_string().contains("/no/such/file"));
    }
}
