//! Reads the trace of a rank. The file may hold any bytes: it leads to events, or to an error.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

use crate::files;
use crate::trace::{HEADER, VERSION};

/// The trace of a rank.
#[derive(Debug)]
pub(super) struct TraceFile {
    pub(super) rank: u32,
    pub(super) ranks: u32,
    /// Names the machine whose monotonic clock was read.
    pub(super) machine: String,
    /// What was to be added to times to get those of the wall clock, in nanoseconds.
    pub(super) to_wall: i64,
    pub(super) events: Vec<Event>,
}

/// One event, as it stands in the file.
#[derive(Debug)]
pub(super) struct Event {
    object: serde_json::Map<String, Value>,
    /// Its time in nanoseconds; none if it is about the whole trace.
    pub(super) time: Option<i64>,
}

/// What a rank knew of a round, by its own clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// When it handed in its contribution, if that was fresh in the round.
    pub(super) arrived: Option<i64>,
    /// When it first knew the round's cut.
    pub(super) knew: Option<i64>,
}

/// The numbers of a collective and of a round.
pub(super) type Round = (u64, u64);

impl Event {
    fn new(object: serde_json::Map<String, Value>) -> Option<Self> {
        let micros = object.get("ts")?.as_f64()?;
        let is_about_all = object.get("ph")?.as_str()? == "M";
        let time = (!is_about_all).then_some((micros * 1e3).round() as i64);
        Some(Event { object, time })
    }

    fn name(&self) -> &str {
        self.object.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.object.get("args")?.get(name)?.as_u64()
    }

    /// Returns it with another time, in microseconds.
    pub(super) fn at(&self, ts: f64) -> Value {
        let mut object = self.object.clone();
        object.insert("ts".to_owned(), ts.into());
        Value::Object(object)
    }
}

impl TraceFile {
    /// # Errors
    /// What is wrong with the file.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let file = files::read(path).map_err(|cause| format!("the trace cannot be read: {cause}"))?;
        Self::read(BufReader::new(file))
    }

    /// Reads a file with an event a line. A rank that was killed may have left a part of its last line.
    pub(super) fn read(from: impl BufRead) -> Result<Self, String> {
        let not_a_trace = || "this is not a trace of earlybird (EARLYBIRD_TRACE)".to_owned();
        let mut lines = from.lines();
        let bad = |cause: std::io::Error| format!("the trace cannot be read: {cause}");
        if lines.next().transpose().map_err(bad)?.as_deref() != Some("[") {
            return Err(not_a_trace());
        }
        let mut events = Vec::new();
        let mut broken = None;
        for (number, line) in (2..).zip(lines) {
            let line = line.map_err(bad)?;
            if let Some(number) = broken {
                return Err(format!("line {number} is no event"));
            }
            match line.trim_end_matches(',') {
                "" | "]" => {}
                text => match serde_json::from_str(text).ok().and_then(Event::new) {
                    Some(event) => events.push(event),
                    None => broken = Some(number),
                },
            }
        }
        let header = events.first().filter(|event| event.name() == HEADER).ok_or_else(not_a_trace)?;
        let number = |name: &str| header.number(name).ok_or_else(not_a_trace);
        let version = number("version")?;
        if version != u64::from(VERSION) {
            return Err(format!("this is a trace of version {version}, and only {VERSION} is known; trace again"));
        }
        let rank = header.object.get("pid").and_then(Value::as_u64).ok_or_else(not_a_trace)?;
        let [rank, ranks] = [rank, number("ranks")?].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        if rank >= ranks {
            return Err(format!("a world of {ranks} ranks has no rank {rank}"));
        }
        let to_wall = number("wall_ns")?.cast_signed().saturating_sub(number("monotonic_ns")?.cast_signed());
        let machine = header.object["args"].get("machine").and_then(Value::as_str).ok_or_else(not_a_trace)?.to_owned();
        Ok(TraceFile { rank, ranks, machine, to_wall, events })
    }

    /// Returns what this rank knew of each round.
    pub(super) fn rounds(&self) -> BTreeMap<Round, Seen> {
        let mut rounds: BTreeMap<Round, Seen> = BTreeMap::new();
        let mut arrived = BTreeMap::new();
        for event in &self.events {
            let Some(time) = event.time else { continue };
            let track = event.object.get("tid").and_then(Value::as_u64).unwrap_or(0);
            let mut knows = |round: u64| {
                let knew = &mut rounds.entry((track, round)).or_default().knew;
                *knew = Some(knew.map_or(time, |before| before.min(time)));
            };
            match event.name() {
                "cut" => event.number("round").into_iter().for_each(knows),
                "take" => {
                    event.number("last").into_iter().for_each(&mut knows);
                    if let (Some(round), Some(arrived)) = (event.number("fresh"), arrived.remove(&track)) {
                        rounds.entry((track, round)).or_default().arrived = Some(arrived);
                    }
                }
                name if name.starts_with("round ") => _ = arrived.insert(track, time),
                _ => {}
            }
        }
        rounds
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const HEAD: &str = r#"{"ph":"M","name":"earlybird_trace","pid":1,"tid":0,"ts":0,"args":{"version":1,"ranks":2,"machine":"m","wall_ns":5000,"monotonic_ns":2000}}"#;
    const ARRIVES: &str = r#"{"ph":"B","pid":1,"tid":3,"ts":10.500,"name":"round 7","args":{"round":7}}"#;
    const CUT: &str =
        r#"{"ph":"i","pid":1,"tid":3,"ts":12.000,"s":"t","name":"cut","args":{"round":7,"fresh":1,"carried":0}}"#;
    const TAKE: &str =
        r#"{"ph":"i","pid":1,"tid":3,"ts":13.250,"s":"t","name":"take","args":{"first":6,"last":7,"fresh":7}}"#;

    fn read(text: &str) -> Result<TraceFile, String> {
        TraceFile::read(text.as_bytes())
    }

    #[test]
    fn a_trace_is_read_whole_or_as_a_killed_rank_left_it() {
        let whole = format!("[\n{HEAD},\n{ARRIVES},\n{CUT},\n{TAKE}\n]\n");
        let file = read(&whole).unwrap();
        assert_eq!((file.rank, file.ranks, file.machine.as_str(), file.to_wall), (1, 2, "m", 3000));
        let seen = Seen { arrived: Some(10_500), knew: Some(12_000) };
        assert_eq!(file.rounds(), BTreeMap::from([((3, 7), seen)]));
        for end in [whole.len() - 3, whole.len() - 10, whole.len() - TAKE.len()] {
            let cut_off = read(&whole[..end]).unwrap();
            assert!((3..=4).contains(&cut_off.events.len()), "{end}");
        }
    }

    #[test]
    fn what_is_no_trace_is_an_error() {
        for (text, words) in [
            ("", "not a trace"),
            ("{}", "not a trace"),
            ("[\n]\n", "not a trace"),
            (&format!("[\n{ARRIVES}\n]\n"), "not a trace"),
            (&format!("[\n{}\n]\n", HEAD.replace("\"version\":1", "\"version\":9")), "version 9"),
            (&format!("[\n{HEAD},\n{{,\n{ARRIVES}\n]\n"), "line 3 is no event"),
        ] {
            let error = read(text).map(drop).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
