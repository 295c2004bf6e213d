//! Complete worlds as files, which stay the same when the generator changes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::case::Case;
use super::scenario::Scenario;
use crate::fault::Fault;

/// A world with everything that its ranks do, and the seed of its orders of events.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// The name in failures.
    #[serde(skip)]
    name: String,
    pub(super) seed: u64,
    /// The order of events in which it failed when it was recorded.
    pub(super) order: u64,
    world: Scenario,
}

/// A file that does not describe a world.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a recorded world: {0}")]
pub struct NotAWorld(String);

impl Recording {
    pub(super) fn new(case: &Case, world: Scenario) -> Self {
        Recording { name: case.to_string(), seed: case.seed(), order: case.order, world }
    }

    /// Creates a recording of a world, with a name and the seed of its orders of events.
    pub(super) fn of(name: String, seed: u64, world: Scenario) -> Self {
        Recording { name, seed, order: 0, world }
    }

    /// Returns the same recording under another name.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Recording { name: name.into(), ..self }
    }

    /// Returns this world in one of its orders of events.
    #[must_use]
    pub fn in_order(self: &Arc<Self>, order: u64) -> Case {
        Case::recorded(self.clone(), order)
    }

    /// Returns the order of events in which it failed when it was recorded.
    #[must_use]
    pub fn order(&self) -> u64 {
        self.order
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn scenario(&self, fault: Option<Fault>) -> Scenario {
        let mut scenario = self.world.clone();
        scenario.fault = fault;
        scenario
    }
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&toml::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Recording {
    type Err = NotAWorld;

    fn from_str(text: &str) -> Result<Self, NotAWorld> {
        let bad = |problem: String| NotAWorld(problem);
        let mut recording: Recording = toml::from_str(text).map_err(|error| bad(error.to_string()))?;
        recording.world.check().map_err(bad)?;
        recording.world.compile();
        Ok(recording)
    }
}

/// Values that are written as on the command line.
pub(super) mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(in super::super) fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(in super::super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{Death, Since};
    use super::*;

    const WORLD: &str = include_str!("../../tests/corpora/worlds/share-lands-again-2.toml");

    fn deaths(line: &str) -> Vec<Death> {
        let read = |text: &str| text.parse::<Recording>().unwrap();
        let recording = read(&WORLD.replacen("[world]\n", &format!("[world]\n{line}\n"), 1));
        assert_eq!(read(&recording.to_string()).world.deaths, recording.world.deaths, "{recording}");
        recording.world.deaths
    }

    #[test]
    fn files_have_no_death_or_one_or_several() {
        let first = Death { rank: 1, turns: 57, since: Since::Start };
        let second = Death { rank: 3, turns: 0, since: Since::Leaving };
        let third = Death { rank: 0, turns: 9, since: Since::News };
        assert!(deaths("").is_empty());
        assert_eq!(deaths("death = [1, 57]"), [first]);
        let several = "deaths = [{ rank = 1, turns = 57, since = 'start' }, { rank = 3, turns = 0, since = 'leaving' }, \
                       { rank = 0, turns = 9, since = 'news' }]";
        assert_eq!(deaths(several), [first, second, third]);
        let stranger = WORLD.replacen("[world]\n", "[world]\ndeath = [4, 57]\n", 1);
        assert!(stranger.parse::<Recording>().is_err_and(|error| error.to_string().contains("not in this world")));
    }
}
