//! What a rank of a training saves in order to resume: its position in its data, its weights, its counts, and its part
//! of the collective.
//!
//! A rank keeps the last two. If a rank is killed after others have saved a round, all ranks still have the previous
//! one. No rank saves a round before all have saved the last one, because the round waits for all.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Checkpoint, Error, Result, World, files};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Args;
use super::worker::Tally;

/// The version of the format.
const VERSION: u32 = 1;

/// The maximum length of the first line.
const MOST_HEADER: u64 = 1 << 20;

/// The length of a checksum, in bytes.
const CHECKSUM: usize = 32;

/// A training after a round.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) progress: Progress,
    pub(super) weights: Vec<f32>,
    pub(super) checkpoint: Checkpoint,
}

/// What a rank has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    /// The number of contributions that it has made.
    pub(super) steps: u64,
    pub(super) tally: Tally,
}

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    earlybird_training: u32,
    /// The task, and what selects its batches.
    task: String,
    seed: u64,
    batch: Option<u32>,
    progress: Progress,
    weights: u64,
}

/// Returns the newest file of a rank.
fn file_of(name: &Path, rank: u32) -> PathBuf {
    with_end(name, &format!(".{rank}"))
}

fn with_end(name: &Path, end: &str) -> PathBuf {
    let mut file = name.as_os_str().to_owned();
    file.push(end);
    file.into()
}

/// Returns the file before it.
fn previous(file: &Path) -> PathBuf {
    with_end(file, ".previous")
}

impl Saved {
    /// Writes this rank's file, which is complete or absent, whenever the process is killed.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn write(&self, name: &Path, args: &Args) -> Result<()> {
        let file = file_of(name, self.checkpoint.rank());
        let beside = with_end(&file, ".new");
        let bad = |cause: io::Error| Error::Config(format!("--checkpoint: {}: {cause}", file.display()));
        let is_there = files::check_own(&file).map_err(bad)?;
        files::check_own(&previous(&file)).map_err(bad)?;
        let mut to = BufWriter::new(files::create(&beside).map_err(bad)?);
        self.write_to(&mut to, args).map_err(bad)?;
        self.checkpoint.write_to(&mut to)?;
        to.into_inner().map_err(|error| bad(error.into_error()))?.sync_all().map_err(bad)?;
        if is_there {
            std::fs::rename(&file, previous(&file)).map_err(bad)?;
        }
        std::fs::rename(&beside, &file).map_err(bad)
    }

    /// Writes the application's part.
    fn write_to(&self, to: &mut impl Write, args: &Args) -> io::Result<()> {
        let header = Header {
            earlybird_training: VERSION,
            task: args.task.name().to_owned(),
            seed: args.common.seed,
            batch: args.batch,
            progress: self.progress.clone(),
            weights: self.weights.len() as u64,
        };
        let header = [serde_json::to_vec(&header)?, b"\n".to_vec()].concat();
        let weights: Vec<u8> = self.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let checksum = Sha256::new().chain_update(&header).chain_update(&weights).finalize();
        [&header[..], &weights, &checksum].into_iter().try_for_each(|part| to.write_all(part))
    }

    /// Reads what all ranks have saved of the newest round that they have in common.
    ///
    /// # Errors
    /// There is no such round, or a file is not of this training.
    pub(super) fn load(world: &World, name: &Path, args: &Args, patience: Duration) -> Result<Self> {
        let file = file_of(name, world.rank());
        let read = [file.clone(), previous(&file)].map(|file| Self::read(&file, args));
        let round =
            |saved: &std::result::Result<Saved, String>| saved.as_ref().map_or(0, |saved| saved.checkpoint.round());
        let mine: Vec<u64> = read.iter().map(round).collect();
        let told: Vec<u8> = mine.iter().flat_map(|round| round.to_le_bytes()).collect();
        let everybody = world.fabric().exchange("restore", &told, Instant::now() + patience)?;
        let common = |round: &u64| everybody.iter().all(|told| told.as_chunks().0.contains(&round.to_le_bytes()));
        let newest = mine.into_iter().filter(|&round| round > 0).filter(common).max();
        let problem = match (newest, &read[0]) {
            (Some(newest), _) => {
                if let Err(problem) = &read[0] {
                    tracing::warn!(file = %file.display(), %problem, "goes on from the one before, of round {newest}");
                }
                let found = read.into_iter().flatten().find(|saved| saved.checkpoint.round() == newest);
                return found.ok_or_else(|| Error::Config("--restore: a file has changed meanwhile".to_owned()));
            }
            (None, Err(problem)) => problem.clone(),
            (None, Ok(saved)) => {
                let round = saved.checkpoint.round();
                format!(
                    "it has round {round}, and not all ranks have that or the one saved before; give the files of one run"
                )
            }
        };
        Err(Error::Config(format!("rank {}: --restore: {}: {problem}", world.rank(), file.display())))
    }

    fn read(file: &Path, args: &Args) -> std::result::Result<Self, String> {
        let opened = files::read(file).map_err(|cause| cause.to_string())?;
        Self::read_from(&mut BufReader::new(opened), args)
    }

    fn read_from(from: &mut impl BufRead, args: &Args) -> std::result::Result<Self, String> {
        let unreadable = |cause: io::Error| format!("it cannot be read to its end: {cause}");
        let mut line = Vec::new();
        from.take(MOST_HEADER).read_until(b'\n', &mut line).map_err(unreadable)?;
        let header: Header = serde_json::from_slice(&line)
            .map_err(|problem| format!("this is not a saved training of version {VERSION}: {problem}"))?;
        let Header { earlybird_training: version, task, seed, batch, progress, weights: count } = header;
        if version != VERSION {
            return Err(format!("this is a saved training of version {version}, and only {VERSION} is known"));
        }
        let mut bytes = Vec::new();
        let size = count.checked_mul(size_of::<f32>() as u64).ok_or("it claims more weights than can be")?;
        from.take(size).read_to_end(&mut bytes).map_err(unreadable)?;
        let mut checksum = [0; CHECKSUM];
        from.read_exact(&mut checksum).map_err(unreadable)?;
        if Sha256::new().chain_update(&line).chain_update(&bytes).finalize().as_slice() != checksum {
            return Err("its checksum does not fit; the file was changed or damaged".to_owned());
        }
        let text = |task: &str, seed: u64, batch: Option<u32>| {
            let batch = batch.map_or("the usual batch".to_owned(), |batch| format!("--batch {batch}"));
            format!("{task} with --seed {seed} and {batch}")
        };
        let (then, now) = (text(&task, seed, batch), text(args.task.name(), args.common.seed, args.batch));
        if then != now {
            return Err(format!("it is of {then}, and this is {now}; give the same"));
        }
        let weights = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let checkpoint = Checkpoint::read_from(from).map_err(|error| error.to_string())?;
        Ok(Saved { progress, weights, checkpoint })
    }
}
