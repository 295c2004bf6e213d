//! Runs that can be repeated: a recording lists the contributions that entered each round of a collective, and a replay
//! runs with exactly these cuts.
//!
//! Each rank writes its own file. The file holds what the rank cannot know from elsewhere: the cuts of all rounds up to
//! the one in which it leaves, and which rounds each of its waits returned. In a replay a rank gives them to its
//! machine, whose form of agreement takes them as they are (`core/agreement/given.rs`), and its waits return the same
//! rounds.
//!
//! Synchronous rounds have the same cuts in every run, so they are not replayed. Their recordings tell the times of
//! their entries.
#![forbid(unsafe_code)]

#[cfg(all(test, feature = "cli", not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod account_tests;
mod format;
mod reader;
mod writer;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::choices::{Choices, digest};
use super::core::{Cut, Machine, Plan};
use crate::error::{Error, Result};
use crate::rule::MovementBy;
use crate::world::World;
use format::Header;
#[cfg(feature = "cli")]
pub(crate) use reader::Recorded;
use reader::Recording;
#[cfg(test)]
pub(crate) use reader::read_any;
use writer::Recorder;

/// What a rank writes and reads for one collective.
#[derive(Debug)]
pub(super) struct Tape {
    recorder: Option<Recorder>,
    player: Option<Player>,
}

/// A recording that is replayed.
#[derive(Debug)]
struct Player {
    file: PathBuf,
    recording: Recording,
    /// The number of arrivals that this rank has made.
    arrivals: usize,
    rank: u32,
}

/// Returns in one word whether the rounds of a world's collectives are recorded or replayed.
pub(super) fn name(world: &World) -> &'static str {
    match (world.record(), world.replay()) {
        (None, None) => "neither",
        (Some(_), None) => "recorded",
        (None, Some(_)) => "replayed",
        (Some(_), Some(_)) => "both",
    }
}

/// Returns the file of a rank's part of a collective.
fn file_of(name: &Path, collective: u32, rank: u32) -> PathBuf {
    let mut file = name.as_os_str().to_owned();
    file.push(format!(".{collective}.{rank}"));
    file.into()
}

fn bad(rank: u32, file: &Path, problem: &str) -> Error {
    Error::Config(format!("rank {rank}: allreduce.build: {}: {problem}", file.display()))
}

impl Tape {
    /// Opens the files of a world's collective with this number. Returns `None` if neither file is wanted.
    ///
    /// # Errors
    /// A file that cannot be written, or one that cannot be read, is not a recording, or belongs to another
    /// collective.
    pub(super) fn open(world: &World, collective: u32, plan: &Plan, choices: &Choices) -> Result<Option<Box<Self>>> {
        let replay = world.replay().filter(|_| !plan.fire.is_synchronous());
        if world.record().is_none() && replay.is_none() {
            return Ok(None);
        }
        let tree = plan.movement == MovementBy::Program;
        let header = Header { tree, ..Header::new((plan.me, world.topology()), collective, choices) };
        let bad = |file: &Path, problem: String| bad(plan.me, file, &problem);
        let player = replay.map(|name| {
            let file = file_of(name, collective, plan.me);
            let recording = Recording::load(&file, &header, plan.depth).map_err(|problem| bad(&file, problem))?;
            Ok::<_, Error>(Player { file, recording, arrivals: 0, rank: plan.me })
        });
        let player = player.transpose()?;
        let recorder = world.record().map(|name| {
            let file = file_of(name, collective, plan.me);
            let clash = player.as_ref().is_some_and(|player| player.file == file);
            let recorder = if clash { Err("this file is replayed".to_owned()) } else { Recorder::new(&file, &header) };
            recorder.map_err(|problem| bad(&file, problem))
        });
        Ok(Some(Box::new(Tape { recorder: recorder.transpose()?, player })))
    }

    /// As [`open`](Tape::open), of a collective whose ranks average in groups by order of arrival: they are recorded, and
    /// never replayed.
    pub(super) fn of_groups(world: &World, collective: u32, choices: &Choices) -> Result<Option<Box<Self>>> {
        let Some(name) = world.record() else { return Ok(None) };
        let header = Header { groups: true, ..Header::new((world.rank(), world.topology()), collective, choices) };
        let file = file_of(name, collective, world.rank());
        let recorder = Recorder::new(&file, &header).map_err(|problem| bad(world.rank(), &file, &problem))?;
        Ok(Some(Box::new(Tape { recorder: Some(recorder), player: None })))
    }

    /// Checks that all ranks have a part of one recording: the cuts that all of them have are the same.
    pub(super) fn compare(&self, world: &World, operation: &'static str, until: Instant) -> Result<()> {
        let Some(Player { recording: Recording { cuts, .. }, rank, .. }) = &self.player else { return Ok(()) };
        let (rank, fabric) = (*rank, world.fabric());
        let numbers = |mine: u64| -> Result<Vec<u64>> {
            let everybody = fabric.exchange(operation, &mine.to_le_bytes(), until)?;
            let number = |bytes: &Vec<u8>| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            Ok(everybody.iter().map(number).collect())
        };
        let rounds = numbers(cuts.len() as u64)?.into_iter().min().unwrap_or(0);
        let mine = digest(cuts.iter().take(rounds as usize).flat_map(Cut::encode));
        let theirs = numbers(mine)?;
        match (0..).zip(theirs).find(|&(_, theirs)| theirs != mine) {
            None => Ok(()),
            Some((peer, theirs)) => {
                let text = |digest: u64| format!("{digest:016x} in rounds 1 to {rounds}");
                let what = "the digest of the recorded cuts";
                Err(Error::mismatch(rank, operation, what, text(mine), (peer, text(theirs))))
            }
        }
    }

    /// Returns whether it needs the cuts of rounds that fire.
    pub(super) fn records(&self) -> bool {
        self.recorder.is_some()
    }

    /// Prepares a machine that has not begun.
    pub(super) fn instruct(&mut self, machine: &mut Machine) {
        if self.recorder.is_some() {
            machine.record();
        }
        if let Some(Player { recording, .. }) = &mut self.player {
            let (taken, known) = (recording.ends.last().copied().unwrap_or(0), recording.cuts.len() as u64);
            std::mem::take(&mut recording.cuts).into_iter().for_each(|cut| machine.give(cut));
            // The rank may repeat its last arrival until one is in a round; each of these arrivals gets one round.
            recording.ends.iter().copied().chain(taken + 1..=known).for_each(|end| machine.give_end(end));
        }
    }

    /// Checks an arrival that this rank is about to make: the recorded run must have made it, too.
    pub(super) fn check_arrival(&self, operation: &'static str) -> Result<()> {
        match &self.player {
            Some(player) if player.arrivals == player.recording.ends.len() => {
                Err(player.ends(operation, "this rank took no outcome after that; end the replay before this step"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn arrived(&mut self) {
        if let Some(player) = &mut self.player {
            player.arrivals += 1;
        }
    }

    /// Checks that this rank may leave: the recorded run must have left here, too.
    pub(super) fn check_leaving(&self, operation: &'static str) -> Result<()> {
        match &self.player {
            Some(player) if !player.recording.left => {
                Err(player.ends(operation, "this rank did not leave in the recorded run"))
            }
            Some(player) if player.arrivals < player.recording.ends.len() => {
                let more = player.recording.ends.len() - player.arrivals;
                Err(player.ends(operation, &format!("this rank made {more} more steps before it left; make them, too")))
            }
            _ => Ok(()),
        }
    }

    /// Records that this rank took these rounds, and the cuts that it has learned since the last call.
    pub(super) fn took(&mut self, rounds: &RangeInclusive<u64>, cuts: &[Cut]) {
        if let Some(recorder) = &mut self.recorder {
            recorder.took(rounds, cuts);
        }
    }

    /// Ends the recording. This rank has left.
    ///
    /// # Errors
    /// A part of the recording could not be written.
    pub(super) fn left(self, rank: u32, operation: &'static str, cuts: &[Cut]) -> Result<()> {
        let written = self.recorder.map_or(Ok(()), |recorder| recorder.left(cuts));
        written.map_err(|cause| Error::os(rank, operation, cause))
    }
}

impl Player {
    /// Returns the error for a run that makes another call than the recorded run made.
    fn ends(&self, operation: &'static str, what: &str) -> Error {
        let Player { file, recording, rank, .. } = self;
        let (file, last) = (file.display(), recording.rounds);
        Error::Config(format!("rank {rank}: {operation}: {file}: the recording ends with round {last}, and {what}"))
    }
}
