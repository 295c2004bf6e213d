//! The name of a schedule: a seed, and the changes that made its world smaller.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::generator::{GENERATOR, Options};
use super::recording::Recording;
use super::scenario::{Habits, Scenario};
use crate::fabric::sim::Weather;
use crate::rule::Grace;

/// One schedule. Written as `10:17`, or `10:17+3,ranks=2,calm`: the world that generator 10 draws from seed 17, in
/// the order of events number 3, with two ranks and an untroubled network.
#[derive(Clone, Debug)]
pub struct Case {
    world: World,
    /// Determines the order of events, together with the seed.
    pub order: u64,
    /// Changes to the world, one after the other.
    pub edits: Vec<Edit>,
}

#[derive(Clone, Debug)]
enum World {
    Drawn { seed: u64 },
    Recorded(Arc<Recording>),
}

impl Case {
    pub(super) fn recorded(recording: Arc<Recording>, order: u64) -> Self {
        Case { world: World::Recorded(recording), order, edits: Vec::new() }
    }

    /// Creates the case of a seed and an order of events.
    #[must_use]
    pub fn seed(&self) -> u64 {
        match &self.world {
            World::Drawn { seed } => *seed,
            World::Recorded(recording) => recording.seed,
        }
    }

    /// Returns the same world in another order of events.
    #[must_use]
    pub fn in_order(self, order: u64) -> Self {
        Case { order, ..self }
    }

    pub(super) fn scenario(&self, options: &Options) -> Scenario {
        let mut scenario = match &self.world {
            World::Drawn { seed } => Scenario::draw(*seed, options),
            World::Recorded(recording) => recording.scenario(options.fault),
        };
        self.edits.iter().for_each(|edit| edit.apply(&mut scenario));
        scenario
    }

    /// Returns the complete world, to be stored in a file, because generators change.
    #[must_use]
    pub fn record(&self, options: &Options) -> Recording {
        Recording::new(self, self.scenario(options))
    }
}

/// A change that makes a world smaller or simpler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Keeps only this number of ranks, the first ones.
    Ranks(u32),
    /// Makes a rank make this number of contributions.
    Steps {
        /// The rank.
        rank: u32,
        /// The number of its contributions.
        steps: u32,
    },
    /// Sets the number of elements.
    Elements(u32),
    /// Sets the depth.
    Depth(u32),
    /// Removes the grace.
    Graceless,
    /// Removes all freezes of ranks and all troubles of the network.
    Calm,
    /// Removes all deaths.
    Immortal,
    /// Removes the death of a rank.
    Survives(u32),
    /// Stops ranks from overlapping, keeping outcomes, being descheduled, filling what they have handed in, testing,
    /// and having deadlines.
    Punctual,
    /// Removes the helper threads.
    Alone,
    /// Resumes from no checkpoint, and gives all ranks the same first model.
    New,
}

/// A text that is not the name of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotACase {
    /// The text does not have the form of a schedule.
    #[error(
        "{text:?} names no schedule; write for example 17, or {GENERATOR}:17+3,ranks=2,steps=1:0,elements=1,depth=1,calm"
    )]
    Malformed {
        /// The given text.
        text: String,
    },
    /// The text comes from another generator, so it would mean another world.
    #[error(
        "{text:?} does not come from generator {GENERATOR}, which is today's: a seed means another world to each; \
         replay it with the version that printed it, and keep the world with --save FILE"
    )]
    OtherGenerator {
        /// The given text.
        text: String,
    },
}

impl Edit {
    pub(super) fn apply(self, scenario: &mut Scenario) {
        match self {
            Edit::Ranks(ranks) => scenario.keep_ranks(ranks.max(1)),
            Edit::Steps { rank, steps } => {
                if let Some(habits) = scenario.ranks.get_mut(rank as usize) {
                    habits.steps = steps;
                }
            }
            Edit::Elements(elements) => scenario.elements = scenario.elements.min(elements as usize),
            Edit::Depth(depth) => scenario.depth = scenario.depth.min(u64::from(depth.max(1))),
            Edit::Graceless => scenario.grace = Grace::NONE,
            Edit::Calm => (scenario.weather, scenario.freeze) = (Weather::default(), None),
            Edit::Immortal => scenario.deaths.clear(),
            Edit::Survives(rank) => scenario.deaths.retain(|death| death.rank != rank as usize),
            Edit::Punctual => {
                for habits in &mut scenario.ranks {
                    (habits.overlaps, habits.holds, habits.preempted, habits.fills) = (0, 1, 0, false);
                    (habits.tests, habits.deadline) = (0, 0);
                }
            }
            Edit::New => (scenario.base, scenario.own_models) = (0, false),
            Edit::Alone => scenario.ranks.iter_mut().for_each(|habits| habits.thread = false),
        }
        scenario.compile();
    }

    /// Returns the next changes to try, the largest first.
    pub(super) fn candidates(scenario: &Scenario) -> Vec<Edit> {
        let ranks = scenario.hosts.len() as u32;
        let mut edits: Vec<Edit> =
            [ranks / 2, ranks - 1].into_iter().filter(|&n| n > 0 && n < ranks).map(Edit::Ranks).collect();
        edits.dedup();
        let troubled = scenario.freeze.is_some() || !scenario.weather.is_calm();
        edits.extend(troubled.then_some(Edit::Calm));
        edits.extend((!scenario.deaths.is_empty()).then_some(Edit::Immortal));
        let several = scenario.deaths.iter().filter(|_| scenario.deaths.len() > 1);
        edits.extend(several.map(|death| Edit::Survives(death.rank as u32)));
        edits.extend((scenario.elements > 1).then_some(Edit::Elements(1)));
        for (rank, habits) in (0..).zip(&scenario.ranks) {
            let fewer = [0, habits.steps / 2, habits.steps.saturating_sub(1)];
            let mut fewer: Vec<u32> = fewer.into_iter().filter(|&steps| steps < habits.steps).collect();
            fewer.dedup();
            edits.extend(fewer.into_iter().map(|steps| Edit::Steps { rank, steps }));
        }
        let unpunctual = |habits: &Habits| {
            habits.overlaps + habits.preempted + habits.tests > 0 || habits.holds > 1 || habits.deadline > 0
        };
        edits.extend(scenario.ranks.iter().any(unpunctual).then_some(Edit::Punctual));
        edits.extend(scenario.ranks.iter().any(|habits| habits.thread).then_some(Edit::Alone));
        edits.extend((scenario.base > 0 || scenario.own_models).then_some(Edit::New));
        edits.extend((scenario.depth > 1 && !scenario.fire.is_synchronous()).then_some(Edit::Depth(1)));
        edits.extend((scenario.grace != Grace::NONE).then_some(Edit::Graceless));
        edits
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Edit::Ranks(ranks) => write!(f, "ranks={ranks}"),
            Edit::Steps { rank, steps } => write!(f, "steps={rank}:{steps}"),
            Edit::Elements(elements) => write!(f, "elements={elements}"),
            Edit::Depth(depth) => write!(f, "depth={depth}"),
            Edit::Graceless => f.write_str("graceless"),
            Edit::Calm => f.write_str("calm"),
            Edit::Immortal => f.write_str("immortal"),
            Edit::Survives(rank) => write!(f, "survives={rank}"),
            Edit::Punctual => f.write_str("punctual"),
            Edit::Alone => f.write_str("alone"),
            Edit::New => f.write_str("new"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.world {
            World::Drawn { seed } => write!(f, "{GENERATOR}:{seed}")?,
            World::Recorded(recording) => f.write_str(recording.name())?,
        }
        if self.order > 0 {
            write!(f, "+{}", self.order)?;
        }
        self.edits.iter().try_for_each(|edit| write!(f, ",{edit}"))
    }
}

impl From<u64> for Case {
    fn from(seed: u64) -> Self {
        Case { world: World::Drawn { seed }, order: 0, edits: Vec::new() }
    }
}

impl FromStr for Case {
    type Err = NotACase;

    fn from_str(text: &str) -> Result<Self, NotACase> {
        let bad = || NotACase::Malformed { text: text.to_owned() };
        let number = |text: &str| text.parse::<u32>().map_err(|_| bad());
        let (generator, case) = match text.split_once(':').filter(|(generator, _)| !generator.contains(',')) {
            Some((generator, case)) => (Some(number(generator)?), case),
            None => (None, text),
        };
        let mut parts = case.split(',');
        let name = parts.next().unwrap_or_default();
        let (seed, order) = name.split_once('+').unwrap_or((name, "0"));
        let (seed, order) = (seed.parse().map_err(|_| bad())?, order.parse().map_err(|_| bad())?);
        let edit = |part: &str| {
            Ok(match part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value))) {
                ("ranks", Some(ranks)) => Edit::Ranks(number(ranks)?),
                ("steps", Some(value)) => {
                    let (rank, steps) = value.split_once(':').ok_or_else(bad)?;
                    Edit::Steps { rank: number(rank)?, steps: number(steps)? }
                }
                ("elements", Some(elements)) => Edit::Elements(number(elements)?),
                ("depth", Some(depth)) => Edit::Depth(number(depth)?),
                ("graceless", None) => Edit::Graceless,
                ("calm", None) => Edit::Calm,
                ("immortal", None) => Edit::Immortal,
                ("survives", Some(rank)) => Edit::Survives(number(rank)?),
                ("punctual", None) => Edit::Punctual,
                ("alone", None) => Edit::Alone,
                ("new", None) => Edit::New,
                _ => return Err(bad()),
            })
        };
        let case = Case { world: World::Drawn { seed }, order, edits: parts.map(edit).collect::<Result<_, _>>()? };
        match generator {
            Some(GENERATOR) => Ok(case),
            // Only a bare seed means today's world, whatever it was before.
            None if order == 0 && case.edits.is_empty() => Ok(case),
            _ => Err(NotACase::OtherGenerator { text: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_as_they_are_written() {
        for text in [
            "17",
            "17+3",
            "5,ranks=2,steps=1:0,elements=1,depth=1,graceless,calm,immortal,punctual,alone,new,survives=1",
        ] {
            let text = format!("{GENERATOR}:{text}");
            assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        }
        assert_eq!("17".parse::<Case>().unwrap().to_string(), format!("{GENERATOR}:17"));
        for text in ["17+3", "0:17", "99:17+3,calm", "5,ranks=2,steps=1:0"] {
            assert!(matches!(text.parse::<Case>(), Err(NotACase::OtherGenerator { .. })), "{text}");
        }
        for text in ["", "x", "1,", "1,ranks", "1,ranks=x", "1,steps=1", "1+", "1,calm=2", "-1"] {
            assert!(text.parse::<Case>().is_err(), "{text}");
        }
    }
}
