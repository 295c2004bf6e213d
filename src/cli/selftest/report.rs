//! The table of checks, printed row by row.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::{Result, World};
use serde_json::json;

use super::{Check, PATIENCE};

/// The result of a check.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    verdict: Verdict,
    /// A figure, or the reason.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Held,
    Broken,
    NotRun,
}

impl Finding {
    pub(super) fn held(figure: impl Into<String>) -> Self {
        Finding { verdict: Verdict::Held, text: figure.into() }
    }

    pub(super) fn broken(problem: impl Into<String>) -> Self {
        Finding { verdict: Verdict::Broken, text: problem.into() }
    }

    pub(super) fn not_run(reason: impl Into<String>) -> Self {
        Finding { verdict: Verdict::NotRun, text: reason.into() }
    }

    /// Creates a finding: violated if there is a problem.
    pub(super) fn unless(problem: Option<String>, figure: impl Into<String>) -> Self {
        problem.map_or_else(|| Finding::held(figure), Finding::broken)
    }

    fn encode(&self) -> Vec<u8> {
        let code = match self.verdict {
            Verdict::Held => b'h',
            Verdict::Broken => b'b',
            Verdict::NotRun => b'n',
        };
        // An exchange has little space, and the beginning is the most informative part.
        let end = (0..=self.text.len().min(MOST_TEXT)).rev().find(|&end| self.text.is_char_boundary(end)).unwrap_or(0);
        [&[code], &self.text.as_bytes()[..end]].concat()
    }

    fn decode(bytes: &[u8]) -> Self {
        let (code, text) = bytes.split_first().unwrap_or((&b'b', b"a rank said nothing"));
        let verdict = match code {
            b'h' => Verdict::Held,
            b'n' => Verdict::NotRun,
            _ => Verdict::Broken,
        };
        Finding { verdict, text: String::from_utf8_lossy(text).into_owned() }
    }

    /// Returns the finding of a world: that of the first rank for which the check did not hold, or else that of rank 0.
    fn merged(all: impl IntoIterator<Item = Finding>) -> Self {
        let mut all = (0..).zip(all);
        let first = all.next().map(|(_, finding)| finding);
        let first = first.unwrap_or_else(|| Finding::broken("no rank said anything"));
        let mut others = all.filter(|(_, finding)| finding.verdict == Verdict::Broken);
        match (&first.verdict, others.next()) {
            (Verdict::Held | Verdict::NotRun, Some((rank, finding))) => {
                Finding::broken(format!("rank {rank}: {}", finding.text))
            }
            _ => first,
        }
    }
}

/// The maximum length in bytes of a text that other ranks are told.
const MOST_TEXT: usize = 900;

/// A check with the finding of all ranks.
pub(super) struct ReportRow<'a> {
    pub(super) name: &'a str,
    pub(super) guarantees: &'a [&'a str],
    pub(super) finding: Finding,
}

impl<'a> ReportRow<'a> {
    /// Merges what the ranks have found. All ranks call it.
    pub(super) fn of_all(world: &World, check: &'a Check, own: Finding) -> Result<Self> {
        let until = Instant::now() + PATIENCE;
        let all = world.fabric().exchange("selftest", &own.encode(), until)?;
        let finding = Finding::merged(all.iter().map(|bytes| Finding::decode(bytes)));
        Ok(ReportRow { name: &check.name, guarantees: check.guarantees, finding })
    }
}

/// The report. Rank 0 prints it; the others only count.
pub(super) struct Report {
    speaks: bool,
    json: bool,
    /// Whether a line can be overwritten.
    shows_progress: bool,
    world: serde_json::Value,
    /// The width of the longest name.
    width: usize,
    held: usize,
    not_run: usize,
    pub(super) broken: usize,
}

/// The width of the guarantees of a row: five of them, with spaces between.
const GUARANTEES: usize = 14;

impl Report {
    pub(super) fn new<'a>(world: &World, names: impl Iterator<Item = &'a str>, json: bool) -> Self {
        let speaks = world.rank() == 0;
        let width = names.map(str::len).max().unwrap_or(0);
        if speaks && !json {
            let provider = world.provider().map_or(String::new(), |provider| format!(" ({provider})"));
            say!("selftest, {} ranks, {}{provider}", world.size(), world.fabric_name());
            say!("{:<GUARANTEES$}  {:<width$}  held  figure", "guarantees", "check");
        }
        Report {
            speaks,
            json,
            shows_progress: speaks && !json && std::io::stdout().is_terminal(),
            world: json!({"ranks": world.size(), "fabric": world.fabric_name(), "provider": world.provider()}),
            width,
            held: 0,
            not_run: 0,
            broken: 0,
        }
    }

    /// Prints what runs now.
    pub(super) fn begin(&self, check: &Check) {
        if self.shows_progress {
            let mut out = std::io::stdout();
            // The row will replace it.
            let _ = write!(out, "{:<GUARANTEES$}  {:<width$}  ...\r", "", check.name, width = self.width);
            let _ = out.flush();
        }
    }

    pub(super) fn row(&mut self, row: &ReportRow<'_>) {
        let Finding { verdict, text } = &row.finding;
        match verdict {
            Verdict::Held => self.held += 1,
            Verdict::Broken => self.broken += 1,
            Verdict::NotRun => self.not_run += 1,
        }
        if !self.speaks {
            return;
        }
        if self.json {
            let (held, key) = match verdict {
                Verdict::Held => (Some(true), "figure"),
                Verdict::Broken => (Some(false), "problem"),
                Verdict::NotRun => (None, "reason"),
            };
            let mut object = json!({"check": row.name, "guarantees": row.guarantees, "held": held, key: text});
            if let (Some(object), Some(world)) = (object.as_object_mut(), self.world.as_object()) {
                object.extend(world.clone());
            }
            return say!("{object}");
        }
        let held = match verdict {
            Verdict::Held => "yes",
            Verdict::Broken => "NO",
            Verdict::NotRun => "-",
        };
        let guarantees = row.guarantees.join(" ");
        say!("{guarantees:<GUARANTEES$}  {:<width$}  {held:<4}  {text}", row.name, width = self.width);
    }

    /// Prints the result of all checks.
    pub(super) fn finish(&self, took: Duration) {
        if !self.speaks {
            return;
        }
        let (held, broken, not_run, seconds) = (self.held, self.broken, self.not_run, took.as_secs_f64());
        if self.json {
            return say!("{}", json!({"held": held, "broken": broken, "not_run": not_run, "seconds": seconds}));
        }
        let others = if not_run > 0 { format!(", {not_run} were not run") } else { String::new() };
        say!("{held} checks held, {broken} did not{others}; {seconds:.1} s. docs/semantics.md explains G1 to G9.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_survives_encoding() {
        for finding in [Finding::held("4 µs"), Finding::broken("ä".repeat(1000)), Finding::not_run("")] {
            let read = Finding::decode(&finding.encode());
            assert_eq!(read.verdict, finding.verdict);
            assert!(finding.text.starts_with(&read.text) && read.text.len() >= finding.text.len().min(MOST_TEXT - 1));
        }
        assert_eq!(Finding::decode(b"").verdict, Verdict::Broken);
    }

    #[test]
    fn a_world_is_as_good_as_its_worst_rank() {
        let held = Finding::held("1 µs");
        assert_eq!(Finding::merged([held.clone(), Finding::held("2 µs")]), held);
        let broken = Finding::broken("G1: lost");
        let merged = Finding::merged([held.clone(), held, broken.clone()]);
        assert_eq!(merged, Finding::broken("rank 2: G1: lost"));
        assert_eq!(Finding::merged([broken.clone(), Finding::broken("G2")]), broken);
        assert_eq!(Finding::merged([]).verdict, Verdict::Broken);
    }
}
