//! A store in a folder that all hosts share: each guest leaves a file, and rank 0 one for all.
//!
//! Files appear whole (written elsewhere and renamed). What an earlier job has left is not taken for
//! this one's: rank 0 clears the folder, a guest whose file has gone writes it again, and it believes
//! only an answer to the number that it drew.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Meeting;
use super::frame::{self, HEADING, Heard, Hello, NONCE};
use crate::bootstrap::draw;
use crate::bootstrap::roll::Roll;
use crate::error::Result;

const PAUSE: Duration = Duration::from_millis(20);
/// How long rank 0 waits for the guests to have read its answer, at least: else until the deadline.
const LINGER: Duration = Duration::from_secs(2);

/// How often a guest writes its file again.
const AGAIN: Duration = Duration::from_secs(1);

/// Stands where a conversation has a number that rank 0 drew.
const NOT_GREETED: [u8; NONCE] = [0; NONCE];

fn guest_file(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("earlybird-guest-{rank}"))
}

fn answer_file(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("earlybird-answer-{rank}"))
}

/// Writes a file at once.
fn put(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = file.with_extension(format!("draft-{}", std::process::id()));
    fs::write(&draft, bytes)?;
    fs::rename(&draft, file).inspect_err(|_| _ = fs::remove_file(&draft))
}

pub(super) fn host(meeting: &Meeting<'_>, folder: &Path) -> Result<Vec<Vec<u8>>> {
    let cannot = |cause: io::Error| meeting.error(format!("rank 0 cannot use this folder: {cause}"));
    fs::create_dir_all(folder).map_err(cannot)?;
    for rank in 1..meeting.ranks {
        for file in [guest_file(folder, rank), answer_file(folder, rank)] {
            match fs::remove_file(file) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cannot(cause)),
                _ => {}
            }
        }
    }
    let mut roll = Roll::new(meeting.ranks, meeting.until, meeting.deadline);
    let mut guests: Vec<Option<Hello>> = vec![None; meeting.ranks as usize];
    let verdict = loop {
        let mut quiet = true;
        for rank in 1..meeting.ranks {
            if guests[rank as usize].is_some() {
                continue;
            }
            let Ok(bytes) = fs::read(guest_file(folder, rank)) else { continue };
            quiet = false;
            match Hello::decode(&bytes, &NOT_GREETED, meeting.secret) {
                Heard::Hello(hello) if hello.rank == rank => {
                    roll.enter(rank, hello.ranks);
                    guests[rank as usize] = Some(hello);
                }
                _ => {
                    roll.blame(format!("rank {rank} does not know the job's secret: EARLYBIRD_SECRET differs, or two jobs use this folder"));
                }
            }
        }
        if let Some(verdict) = roll.verdict(quiet) {
            break verdict;
        }
        std::thread::sleep(PAUSE);
    };
    let given = || {
        let data = |guest: Option<Hello>| guest.map_or_else(|| meeting.mine.to_vec(), |hello| hello.data);
        guests.iter().cloned().map(data).collect::<Vec<_>>()
    };
    let verdict = verdict.map(|()| given());
    let told = verdict.as_ref().map(|given| frame::encode_world(given)).map_err(String::clone);
    for (rank, guest) in (0..).zip(&guests).skip(1) {
        // A stranger learns from the wrong seal that it is one.
        let theirs = guest.as_ref().map_or(NOT_GREETED, |hello| hello.nonce);
        put(&answer_file(folder, rank), &frame::verdict(&told, &theirs, meeting.secret)).map_err(cannot)?;
    }
    // A guest takes its answer away, and its own file; then nothing is left. A stranger does not, and
    // learns of it all the same.
    let until = meeting.until.max(Instant::now() + LINGER);
    let is_waited_for = |rank: u32| guest_file(folder, rank).exists() && answer_file(folder, rank).exists();
    while Instant::now() < until && (1..meeting.ranks).any(is_waited_for) {
        std::thread::sleep(PAUSE);
    }
    for rank in 1..meeting.ranks {
        let _ = fs::remove_file(answer_file(folder, rank));
        let _ = fs::remove_file(guest_file(folder, rank));
    }
    // Only if it is empty: whatever else lies there is not ours.
    let _ = fs::remove_dir(folder);
    verdict.map_err(|problem| meeting.error(problem))
}

pub(super) fn visit(meeting: &Meeting<'_>, folder: &Path) -> Result<Vec<Vec<u8>>> {
    let Meeting { rank, ranks, mine, secret, until, deadline, .. } = *meeting;
    let nonce = draw(rank)?;
    let hello = Hello { rank, ranks, nonce, data: mine.to_vec() }.encode(&NOT_GREETED, secret);
    let (own, answer) = (guest_file(folder, rank), answer_file(folder, rank));
    let (mut stranger, mut written) = (false, Instant::now());
    let mut last = None;
    loop {
        if !own.exists() || written.elapsed() > AGAIN {
            // Rank 0 has not made the folder yet, or has cleared it. And on a network's file system a
            // write makes this host look at the folder anew.
            last = put(&own, &hello).err();
            written = Instant::now();
        }
        if let Ok(bytes) = fs::read(&answer)
            && let Some((heading, rest)) = bytes.split_first_chunk::<HEADING>()
        {
            // Else it is of an earlier job, and rank 0 will clear it; or the secret differs.
            stranger = true;
            if frame::verdict_len(heading, ranks) == Some(rest.len())
                && let Some(verdict) = frame::judged(heading, rest, &nonce, secret)
            {
                let _ = fs::remove_file(&answer);
                let _ = fs::remove_file(&own);
                let world = verdict.map_err(|problem| meeting.error(problem))?;
                return frame::decode_world(&world, ranks).ok_or_else(|| meeting.error("rank 0 told of another world"));
            }
        }
        if Instant::now() > until + LINGER / 2 {
            let _ = fs::remove_file(&own);
            return Err(meeting.error(match last {
                _ if stranger => "rank 0 there does not know this job's secret: EARLYBIRD_SECRET differs, or it is another job".to_owned(),
                Some(cause) if cause.kind() != io::ErrorKind::NotFound => format!("this rank cannot leave word there within {deadline:?} ({cause}); is the folder shared by all hosts?"),
                _ => format!("rank 0 did not come within {deadline:?}; was it started, with the same EARLYBIRD_STORE, and is the folder shared by all hosts?"),
            }));
        }
        std::thread::sleep(PAUSE);
    }
}
