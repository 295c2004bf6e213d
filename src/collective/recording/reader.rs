//! Reads a recording. The file may hold any bytes: it leads to possible cuts, or to an error.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use super::format::{CutLine, Header, Line, VERSION};
#[cfg(feature = "cli")]
use crate::Fire;
use crate::collective::core::{Cut, Entry, Part};
use crate::files;
use crate::rank_set::RankSet;

/// A rank's part of a recorded run.
#[derive(Debug)]
pub(super) struct Recording {
    /// The cuts of consecutive rounds, from round 1 on.
    pub(super) cuts: Vec<Cut>,
    /// The number of cuts.
    pub(super) rounds: u64,
    /// The last round that each wait returned.
    pub(super) ends: Vec<u64>,
    /// Whether the rank left in the last round.
    pub(super) left: bool,
}

impl Recording {
    /// Reads the file of a rank of such a run.
    pub(super) fn load(file: &Path, now: &Header, depth: u64) -> Result<Self, String> {
        let advice = "EARLYBIRD_REPLAY is the name that EARLYBIRD_RECORD had, without the numbers of collective and rank, and the run makes the same collectives";
        let opened = files::read(file).map_err(|cause| format!("the recording cannot be read: {cause}; {advice}"))?;
        Self::read(BufReader::new(opened), now, depth)
    }

    pub(super) fn read(mut from: impl BufRead, now: &Header, depth: u64) -> Result<Self, String> {
        let head = read_head(&mut from)?;
        match head.difference(now) {
            Some(difference) => Err(difference),
            None => Self::read_lines(from, &head, depth),
        }
    }

    /// Reads what follows the first line.
    fn read_lines(mut from: impl BufRead, head: &Header, depth: u64) -> Result<Self, String> {
        let mut text = Vec::new();
        let mut reader = Reader::new(head, depth);
        let groups = head.groups;
        let mut number = 1;
        while next_line(&mut from, &mut text)? {
            number += 1;
            let bad = |problem: String| format!("line {number}: {problem}");
            if reader.left {
                return Err(bad("the rank has left before".to_owned()));
            }
            match serde_json::from_slice::<Line>(&text) {
                Ok(line) if groups => reader.follow_group(line).map_err(bad)?,
                Ok(line) => reader.follow(line).map_err(bad)?,
                // The rank was killed while it wrote this line.
                Err(_) if text.last() != Some(&b'\n') => break,
                Err(problem) => return Err(bad(format!("this is no wait of a recording: {problem}"))),
            }
        }
        reader.end()
    }
}

/// Reads the next line; returns whether there is one.
fn next_line(from: &mut impl BufRead, text: &mut Vec<u8>) -> Result<bool, String> {
    text.clear();
    let bytes = from.read_until(b'\n', text).map_err(|cause| format!("the recording cannot be read: {cause}"))?;
    Ok(bytes > 0)
}

/// The most bytes of the first line: it has some hundred, and some for the host of each rank.
const MOST_HEAD: u64 = 1 << 24;

/// Reads the first line.
fn read_head(from: &mut impl BufRead) -> Result<Header, String> {
    let mut text = Vec::new();
    next_line(&mut from.take(MOST_HEAD), &mut text)?;
    let head: Header = serde_json::from_slice(&text).map_err(|problem| {
        format!("this is not a recording of version {VERSION} (EARLYBIRD_RECORD makes one): {problem}")
    })?;
    if head.earlybird_recording != VERSION {
        let version = head.earlybird_recording;
        return Err(format!("this is a recording of version {version}, and only {VERSION} is known; record again"));
    }
    Ok(head)
}

/// The state after some lines.
struct Reader {
    rank: u32,
    ranks: u32,
    depth: u64,
    cuts: Vec<Cut>,
    /// The first and the last round of each wait.
    waits: Vec<(u64, u64)>,
    left: bool,
    /// Ranks that take part in the next round.
    active: RankSet,
    /// By rank: the round for which the newest entered contribution was made.
    entered: BTreeMap<u32, u64>,
    /// For each of this rank's contributions: the round for which it was made, and the round that it entered.
    own: Vec<(u64, u64)>,
}

impl Reader {
    fn new(header: &Header, depth: u64) -> Self {
        let Header { rank, ranks, .. } = *header;
        let (cuts, waits, own) = (Vec::new(), Vec::new(), Vec::new());
        Reader {
            rank,
            ranks,
            depth,
            cuts,
            waits,
            left: false,
            active: RankSet::full(ranks),
            entered: BTreeMap::new(),
            own,
        }
    }

    fn follow(&mut self, line: Line) -> Result<(), String> {
        line.cuts.iter().try_for_each(|cut| self.add(cut))?;
        let taken = self.waits.last().map_or(0, |&(_, last)| last);
        if let Some((first, last)) = line.took {
            if first != taken + 1 || last < first || last - taken > self.depth || last > self.cuts.len() as u64 {
                return Err(format!("a wait cannot have returned rounds {first} to {last} here"));
            }
            self.waits.push((first, last));
        }
        self.left = line.left;
        if self.left && !self.cuts.iter().any(|cut| cut.holds(self.rank, Part::Leaving)) {
            return Err("the rank has left, and no cut says so".to_owned());
        }
        Ok(())
    }

    /// Takes over a group by order of arrival that the rank was in. Between two of them there were others.
    fn follow_group(&mut self, line: Line) -> Result<(), String> {
        for cut in &line.cuts {
            let bad = |problem: &str| format!("the cut of group {} {problem}", cut.round);
            let entries = cut.parts(self.ranks).ok_or_else(|| bad("has a number that is out of range"))?;
            if self.cuts.last().is_some_and(|before| before.round() >= cut.round) {
                return Err(bad("comes after a later one"));
            }
            if entries.is_empty() {
                return Err(bad("has no entry"));
            }
            let fits = |entry: &Entry| entry.age < cut.round;
            if !entries.is_sorted_by(|a, b| a.rank < b.rank) || !entries.iter().all(fits) {
                return Err(bad("has entries that cannot be in it"));
            }
            self.cuts.push(Cut::of_entries(cut.round, cut.by, entries));
        }
        self.left = line.left;
        Ok(())
    }

    fn add(&mut self, line: &CutLine) -> Result<(), String> {
        let round = self.cuts.len() as u64 + 1;
        if line.round != round {
            return Err(format!("the cut of round {} comes where that of round {round} belongs", line.round));
        }
        let bad = |problem: &str| format!("the cut of round {round} {problem}");
        let entries = line.parts(self.ranks).ok_or_else(|| bad("has a number that is out of range"))?;
        let key = |entry: &Entry| (entry.rank, entry.part != Part::Carried);
        if !entries.is_sorted_by(|a, b| key(a) < key(b)) {
            return Err(bad("is not in the order of ranks"));
        }
        for entry in &entries {
            let fits = match entry.part {
                Part::Carried => (1..round).contains(&entry.age),
                Part::Fresh | Part::Leaving => entry.age == 0,
            };
            let made_for = round.saturating_sub(entry.age);
            let before = self.entered.insert(entry.rank, made_for).unwrap_or(0);
            if !fits || before >= made_for {
                return Err(bad(&format!("has a contribution of rank {} that cannot be in it", entry.rank)));
            }
            if !self.active.contains(entry.rank) {
                return Err(bad(&format!("has rank {}, which had left", entry.rank)));
            }
            if entry.rank == self.rank && entry.part != Part::Leaving {
                self.own.push((made_for, round));
            }
        }
        if entries.is_empty() {
            return Err(bad("has no entry"));
        }
        entries.iter().filter(|entry| entry.part == Part::Leaving).for_each(|entry| self.active.remove(entry.rank));
        self.cuts.push(Cut::of_entries(round, line.by, entries));
        Ok(())
    }

    /// Ends the reading after all lines.
    fn end(self) -> Result<Recording, String> {
        let Reader { cuts, waits, left, own, .. } = self;
        let next = waits.last().map_or(1, |&(_, last)| last + 1);
        for (made_for, entered) in own {
            // A contribution stays in its buffer until the round of the next one, and no longer.
            let lasts = match waits.binary_search_by_key(&made_for, |&(first, _)| first) {
                Ok(wait) => entered <= waits[wait].1 + 1,
                // The rank ended before it took the outcome.
                Err(_) => made_for == next && !left,
            };
            if !lasts {
                return Err(format!(
                    "this rank's contribution for round {made_for} cannot have entered round {entered}"
                ));
            }
        }
        let ends = waits.into_iter().map(|(_, last)| last).collect();
        Ok(Recording { rounds: cuts.len() as u64, cuts, ends, left })
    }
}

/// A rank's part of a recorded run, for a report about it.
#[cfg(feature = "cli")]
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) ranks: u32,
    /// The rank that wrote the file, and the number of the collective in its world.
    pub(crate) rank: u32,
    pub(crate) collective: u32,
    pub(crate) fire: Fire,
    /// The number of each rank's host.
    pub(crate) hosts: Vec<u32>,
    /// The cuts of consecutive rounds, from round 1 on.
    pub(crate) cuts: Vec<Cut>,
}

#[cfg(feature = "cli")]
impl Recorded {
    /// Reads a file of any world.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn open(file: &Path) -> Result<Self, String> {
        // A network names ranks by 16 bits.
        const MOST_RANKS: u32 = 1 << 16;
        let opened = files::read(file).map_err(|cause| format!("the recording cannot be read: {cause}"))?;
        let mut from = BufReader::new(opened);
        let head = read_head(&mut from)?;
        let Header { ranks, rank, collective, .. } = head;
        if ranks == 0
            || ranks > MOST_RANKS
            || rank >= ranks
            || !(head.hosts.is_empty() || head.hosts.len() == ranks as usize)
        {
            return Err("this is not a recording: its first line has numbers that are out of range".to_owned());
        }
        let fire = head.choices.get("fire").map(String::as_str).unwrap_or_default();
        let fire =
            fire.parse().map_err(|_| format!("this is not a recording: {fire:?} is no rule by which rounds fire"))?;
        let hosts = if head.hosts.is_empty() { vec![0; ranks as usize] } else { head.hosts.clone() };
        let Recording { cuts, .. } = Recording::read_lines(from, &head, u64::MAX)?;
        Ok(Recorded { ranks, rank, collective, fire, hosts, cuts })
    }
}

/// Reads any bytes as the recording of the world that they describe.
#[cfg(test)]
pub(crate) fn read_any(bytes: &[u8]) -> Result<(), String> {
    let first = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let now: Header = serde_json::from_slice(first).map_err(|problem| problem.to_string())?;
    if now.ranks > 1 << 16 {
        return Err("no test has so large a world".to_owned());
    }
    let Recording { cuts, rounds, ends, .. } = Recording::read(bytes, &now, 8)?;
    assert!(cuts.iter().map(Cut::round).eq(1..=rounds));
    assert!(ends.is_sorted() && ends.last().is_none_or(|&last| last <= rounds));
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    const HEADER: &str =
        r#"{"earlybird_recording":1,"ranks":2,"rank":0,"collective":0,"choices":{"fire":"solo","depth":"8"}}"#;
    const FIRST: &str = r#"{"took":[1,1],"cuts":[{"round":1,"by":0,"entries":[[0,"fresh",0,1]]}]}"#;
    const SECOND: &str =
        r#"{"took":[2,2],"cuts":[{"round":2,"by":0,"entries":[[0,"fresh",0,1,3014656,null],[1,"carried",1,3]]}]}"#;
    const LAST: &str = r#"{"left":true,"cuts":[{"round":3,"by":0,"entries":[[0,"leaving",0,0],[1,"fresh",0,1]]}]}"#;

    fn read(lines: &[&str]) -> Result<Recording, String> {
        let now = serde_json::from_str(HEADER).map_err(|problem| problem.to_string())?;
        Recording::read(lines.join("\n").as_bytes(), &now, 8)
    }

    #[test]
    fn a_recording_is_read_and_what_a_kill_cut_off_is_not() {
        let whole = read(&[HEADER, FIRST, SECOND, LAST, ""]).unwrap();
        assert_eq!((whole.rounds, whole.ends, whole.left), (3, vec![1, 2], true));
        let entry = whole.cuts[1].entries().nth(1).unwrap();
        assert_eq!((entry.rank, entry.part, entry.age, entry.weight), (1, Part::Carried, 1, 3));
        let timed = whole.cuts[1].entries().next().unwrap();
        assert_eq!((timed.computed(), timed.waited()), (Some(Duration::from_nanos(3_014_656)), None));
        for cut_off in [&SECOND[..30], &SECOND[..1], ""] {
            let part = read(&[HEADER, FIRST, cut_off]).unwrap();
            assert_eq!((part.rounds, part.ends, part.left), (1, vec![1], false));
        }
    }

    #[test]
    fn what_no_group_can_have_been_is_an_error() {
        let header: Header = serde_json::from_str(HEADER).unwrap();
        let follow = |round: u64, entries: &str| {
            let line = format!(r#"{{"cuts":[{{"round":{round},"entries":[{entries}]}}]}}"#);
            Reader::new(&header, 8).follow_group(serde_json::from_str(&line).unwrap())
        };
        follow(3, r#"[0,"fresh",0,1],[1,"carried",2,1]"#).unwrap();
        for (round, entries) in
            [(0, r#"[0,"fresh",0,1]"#), (3, r#"[0,"carried",3,1]"#), (3, r#"[1,"fresh",0,1],[1,"fresh",0,1]"#), (3, "")]
        {
            assert!(follow(round, entries).is_err(), "{round} {entries}");
        }
    }

    #[test]
    fn what_cannot_have_been_is_an_error_that_says_where() {
        let expect = |lines: &[&str], words: &str| {
            let error = read(lines).map(drop).unwrap_err();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        };
        expect(&[], "not a recording");
        expect(&["{}"], "not a recording");
        expect(&[&HEADER.replace("recording\":1", "recording\":2")], "version 2");
        expect(&[&HEADER.replace("solo", "quorum=2")], "fire was quorum=2 in the recorded run and is solo now");
        expect(&[&HEADER.replace("\"rank\":0", "\"rank\":1")], "rank was 1");
        expect(&[&HEADER.replace(r#","depth":"8""#, "")], "depth was nothing");
        expect(&[HEADER, SECOND, ""], "line 2: the cut of round 2 comes where that of round 1 belongs");
        expect(&[HEADER, FIRST, &FIRST[..20], SECOND, ""], "line 3: this is no wait");
        expect(&[HEADER, FIRST, FIRST, ""], "line 3: the cut of round 1");
        expect(
            &[HEADER, FIRST, &SECOND.replace("[2,2]", "[2,3]"), ""],
            "line 3: a wait cannot have returned rounds 2 to 3",
        );
        expect(&[HEADER, FIRST, &SECOND.replace("[1,", "[7,"), ""], "out of range");
        expect(&[HEADER, FIRST, &SECOND.replace("\"carried\",1", "\"carried\",2"), ""], "rank 1 that cannot be in it");
        expect(&[HEADER, FIRST, &SECOND.replace("\"carried\",1", "\"carried\",99999999"), ""], "out of range");
        expect(
            &[HEADER, FIRST, &SECOND.replace("[0,\"fresh\",0,1", "[0,\"carried\",1,1"), ""],
            "rank 0 that cannot be",
        );
        expect(
            &[
                HEADER,
                FIRST,
                &SECOND.replace("[0,\"fresh\",0,1,", "[1,\"fresh\",0,1,").replace("[1,\"carried\"", "[0,\"carried\""),
                "",
            ],
            "order of ranks",
        );
        expect(&[HEADER, &FIRST.replace("[0,\"fresh\",0,1]", ""), ""], "has no entry");
        expect(&[HEADER, FIRST, SECOND, LAST, FIRST, ""], "line 5: the rank has left");
        expect(&[HEADER, FIRST, &LAST.replace("\"leaving\"", "\"fresh\"").replace("3", "2"), ""], "no cut says so");
        let gone = r#"{"cuts":[{"round":4,"by":0,"entries":[[0,"fresh",0,1]]}]}"#;
        expect(&[HEADER, FIRST, SECOND, &LAST.replace("\"left\":true,", ""), gone, ""], "rank 0, which had left");
        let late = r#"{"took":[1,1],"cuts":[{"round":1,"by":1,"entries":[[1,"fresh",0,1]]}, {"round":2,"by":1,"entries":[[1,"fresh",0,1]]},
            {"round":3,"by":1,"entries":[[0,"carried",2,1],[1,"fresh",0,1]]}]}"#;
        expect(
            &[HEADER, &late.replace('\n', ""), ""],
            "this rank's contribution for round 1 cannot have entered round 3",
        );
    }
}
