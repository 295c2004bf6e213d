//! The lines of a recording, in JSON. The first line identifies the collective. Each wait has a line with the rounds
//! that it returned, and with the cuts that the rank learned before it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::collective::choices::Choices;
use crate::collective::core::{Cut, Durations, Entry, Part, Particulars};
use crate::topology::Topology;

/// The number of this format.
pub(super) const VERSION: u32 = 1;

/// Ages beyond this do not occur, and do not fit into an entry.
pub(super) const MOST_AGE: u64 = 1 << 19;

/// The choices that a replay must share with its recording: under others, cuts or waits would be impossible.
const COMPARED: [&str; 9] =
    ["the length", "the tensors", "the element type", "fire", "absent", "reduce", "scale", "depth", "group"];

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) earlybird_recording: u32,
    pub(super) ranks: u32,
    pub(super) rank: u32,
    /// The number of the collective in its world.
    pub(super) collective: u32,
    pub(super) choices: BTreeMap<String, String>,
    /// The number of each rank's host; empty if all ranks share one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) hosts: Vec<u32>,
    /// Whether the file has the groups by order of arrival of its rank, and not the rounds of all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) groups: bool,
    /// Whether sums had the order of a tree.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) tree: bool,
}

impl Header {
    pub(super) fn new((rank, topology): (u32, &Topology), collective: u32, choices: &Choices) -> Self {
        let ranks = topology.ranks();
        let hosts =
            if topology.is_one_host() { Vec::new() } else { (0..ranks).map(|rank| topology.host_of(rank)).collect() };
        let compared = choices.iter().filter(|(name, _)| COMPARED.contains(name));
        let choices = compared.map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Header { earlybird_recording: VERSION, ranks, rank, collective, choices, hosts, groups: false, tree: false }
    }

    /// Returns the first difference between this recorded run and a replay, with both values.
    pub(super) fn difference(&self, now: &Header) -> Option<String> {
        let numbers = [
            ("ranks", self.ranks, now.ranks),
            ("rank", self.rank, now.rank),
            ("collective", self.collective, now.collective),
        ];
        let different = numbers.into_iter().find(|(_, then, now)| then != now);
        let number = different.map(|(what, then, now)| (what, then.to_string(), now.to_string()));
        let choice = || {
            let then = |name: &String| self.choices.get(name).map_or("nothing", String::as_str);
            let (what, now) = now.choices.iter().find(|&(name, now)| then(name) != now)?;
            Some((what.as_str(), then(what).to_owned(), now.clone()))
        };
        if self.tree && !now.tree {
            return Some(
                "the tree mover added in another order in the recorded run; record with the cut mover".to_owned(),
            );
        }
        let (what, then, now) = number.or_else(choice)?;
        Some(format!("{what} was {then} in the recorded run and is {now} now; choose the same, or record this run"))
    }
}

/// Any other line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    /// The first and the last round that a wait returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) took: Option<(u64, u64)>,
    /// Whether the rank has left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) left: bool,
    /// The cuts that the rank learned since the line before.
    #[serde(default)]
    pub(super) cuts: Vec<CutLine>,
}

/// A cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CutLine {
    pub(super) round: u64,
    /// The rank that closed it.
    pub(super) by: Option<u32>,
    /// In the order of reduction.
    pub(super) entries: Vec<EntryLine>,
}

/// An entry: rank, part, age and weight, and then the nanoseconds that the rank computed and waited, if either is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum EntryLine {
    Plain(u32, Part, u64, u16),
    Timed(u32, Part, u64, u16, Option<u64>, Option<u64>),
}

impl EntryLine {
    fn of(entry: Entry) -> Self {
        let Entry { rank, part, age, weight, .. } = entry;
        match entry.particulars().durations() {
            Durations::NONE => EntryLine::Plain(rank, part, age, weight),
            measured => EntryLine::Timed(rank, part, age, weight, measured.computed(), measured.waited()),
        }
    }

    /// Returns the entry, if its numbers are in range.
    fn entry(&self, ranks: u32) -> Option<Entry> {
        let (&rank, &part, &age, &weight, durations) = match self {
            EntryLine::Plain(rank, part, age, weight) => (rank, part, age, weight, Durations::NONE),
            EntryLine::Timed(rank, part, age, weight, computed, waited) => {
                (rank, part, age, weight, Durations::new(*computed, *waited))
            }
        };
        let is_known = durations == Durations::NONE || weight == 1;
        let in_range = rank < ranks && age < MOST_AGE && is_known;
        in_range.then(|| Entry::new(rank, part, (age, Particulars::new(weight, durations)), 0))
    }
}

impl CutLine {
    pub(super) fn of(cut: &Cut) -> Self {
        CutLine { round: cut.round(), by: cut.initiator(), entries: cut.entries().map(EntryLine::of).collect() }
    }

    /// Returns its entries, if all numbers are in range.
    pub(super) fn parts(&self, ranks: u32) -> Option<Vec<Entry>> {
        let by = self.by.is_none_or(|rank| rank < ranks);
        by.then(|| self.entries.iter().map(|line| line.entry(ranks)).collect())?
    }
}
