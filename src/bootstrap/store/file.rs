//! A store in a folder that all hosts share. Each guest writes a file, and rank 0 writes an answer for each.
//!
//! Only the job's user may write there: every rank refuses a folder that others can write to, before it writes
//! anything.
//!
//! Files appear whole, because they are written under another name and renamed. Files of an earlier job do no harm:
//! rank 0 clears the folder, a guest whose file has vanished writes it again, and a guest believes only an answer to
//! the nonce that it drew.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Meeting;
use super::folder::{Folder, Unusable};
use super::frame::{self, HEADING, Hello, NONCE, Parsed};
use crate::bootstrap::attendance::Attendance;
use crate::error::Result;
use crate::fault::Fault;
use crate::interrupt;
use crate::random::draw;

const PAUSE: Duration = Duration::from_millis(20);
/// The minimum time that rank 0 waits for the guests to read its answer; otherwise it waits until the deadline.
const LINGER: Duration = Duration::from_secs(2);

/// How often a guest writes its file again.
const AGAIN: Duration = Duration::from_secs(1);

/// Stands for the nonce that rank 0 draws where it can greet.
const NOT_GREETED: [u8; NONCE] = [0; NONCE];

fn guest_file(rank: u32) -> String {
    format!("earlybird-guest-{rank}")
}

fn answer_file(rank: u32) -> String {
    format!("earlybird-answer-{rank}")
}

pub(super) fn host(meeting: &Meeting<'_>, path: &Path) -> Result<Vec<Vec<u8>>> {
    let cannot = |cause: Unusable| meeting.error(format!("rank 0 cannot use this folder: {cause}"));
    let folder = Folder::make(path).map_err(cannot)?;
    for rank in (1..meeting.ranks).filter(|_| !Fault::KeepOldFiles.is_chosen()) {
        for file in [guest_file(rank), answer_file(rank)] {
            folder.remove(&file).map_err(|cause| cannot(cause.into()))?;
        }
    }
    let mut attendance = Attendance::new(meeting.ranks, meeting.until, meeting.terms, "");
    let mut guests: Vec<Option<Hello>> = vec![None; meeting.ranks as usize];
    let verdict = loop {
        let mut quiet = true;
        for rank in 1..meeting.ranks {
            if guests[rank as usize].is_some() {
                continue;
            }
            let Ok(bytes) = folder.read(&guest_file(rank)) else { continue };
            quiet = false;
            match Hello::decode(&bytes, &NOT_GREETED, meeting.secret) {
                Parsed::Hello(hello) if hello.rank == rank => {
                    attendance.enter(rank, hello.ranks);
                    guests[rank as usize] = Some(hello);
                }
                _ => {
                    attendance.fail(format!(
                        "rank {rank} does not know the job's secret: EARLYBIRD_SECRET \
                     differs, or two jobs use this folder"
                    ));
                }
            }
        }
        if let Some(verdict) = attendance.verdict(quiet) {
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
        let answer = match guest {
            Some(hello) => frame::verdict(&told, &hello.nonce, meeting.secret),
            None => frame::turned_away(),
        };
        folder.put(&answer_file(rank), &answer).map_err(|cause| cannot(cause.into()))?;
    }
    // A guest removes its answer and its own file. A stranger does not, and yet learns that rank 0 has refused it.
    let until = meeting.until.max(Instant::now() + LINGER);
    let is_waited_for = |rank: u32| folder.has(&guest_file(rank)) && folder.has(&answer_file(rank));
    let mut interrupted = Ok(());
    while interrupted.is_ok() && Instant::now() < until && (1..meeting.ranks).any(is_waited_for) {
        std::thread::sleep(PAUSE);
        interrupted = interrupt::check(meeting.rank, "join");
    }
    for rank in 1..meeting.ranks {
        let _ = folder.remove(&answer_file(rank));
        let _ = folder.remove(&guest_file(rank));
    }
    interrupted?;
    verdict.map_err(|problem| attendance.error(|| meeting.error(problem)))
}

pub(super) fn visit(meeting: &Meeting<'_>, path: &Path) -> Result<Vec<Vec<u8>>> {
    let Meeting { rank, ranks, mine, secret, until, terms, .. } = *meeting;
    let nonce = draw(rank)?;
    let hello = Hello { rank, ranks, nonce, data: mine.to_vec() }.encode(&NOT_GREETED, secret);
    let (own, answer) = (guest_file(rank), answer_file(rank));
    let (mut stranger, mut written) = (false, Instant::now());
    let mut last = None;
    loop {
        let folder = match Folder::open(path) {
            Ok(folder) => Some(folder),
            Err(Unusable::System(cause)) => {
                last = Some(cause);
                None
            }
            Err(problem) => return Err(meeting.error(problem)),
        };
        if let Some(folder) = &folder
            && (!folder.has(&own) || written.elapsed() > AGAIN)
        {
            // Rank 0 has just made or cleared the folder. On a network file system a write also makes this host read
            // the folder again.
            last = folder.put(&own, &hello).err();
            written = Instant::now();
        }
        if let Some(folder) = &folder
            && let Ok(bytes) = folder.read(&answer)
            && let Some((heading, rest)) = bytes.split_first_chunk::<HEADING>()
        {
            // Otherwise the answer is of an earlier job, and rank 0 will remove it; or the secret differs.
            stranger = true;
            if frame::verdict_len(heading, ranks) == Some(rest.len())
                && let Some(verdict) = frame::judged(heading, rest, &nonce, secret)
            {
                let _ = folder.remove(&answer);
                let _ = folder.remove(&own);
                let world = verdict.map_err(|problem| meeting.error(problem))?;
                return frame::decode_world(&world, ranks).ok_or_else(|| meeting.error("rank 0 told of another world"));
            }
        }
        if Instant::now() > until + LINGER / 2 {
            let _ = folder.map(|folder| folder.remove(&own));
            return Err(meeting.error(match last {
                _ if stranger => "rank 0 there does not know this job's secret: EARLYBIRD_SECRET differs, or it \
                 is another job"
                    .to_owned(),
                Some(cause) if cause.kind() != io::ErrorKind::NotFound => format!(
                    "this rank cannot leave word \
                 there within {:?} ({cause}); is the folder shared by all hosts?",
                    terms.deadline
                ),
                _ => terms.rank_0_missing(None, ", and is the folder shared by all hosts"),
            }));
        }
        if let Err(interrupted) = interrupt::check(rank, "join") {
            let _ = folder.map(|folder| folder.remove(&own));
            return Err(interrupted);
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    use std::path::PathBuf;

    use super::*;
    use crate::bootstrap::store_address::StoreAddress;
    use crate::interrupt::asking::interrupted;
    use crate::seal::Secret;

    /// A folder that only this user can write to.
    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("earlybird-file-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        path
    }

    /// Two ranks meet there, the guest first; `look` runs when the guest has written its file.
    /// Returns the result of each.
    fn meet(path: &Path, look: impl FnOnce(&Path)) -> [Result<Vec<Vec<u8>>>; 2] {
        let (store, secret) = (StoreAddress::File(path.to_owned()), Secret::new(None, "job"));
        let meeting = |rank| Meeting::sample(&store, &secret, rank);
        std::thread::scope(|scope| {
            let guest = scope.spawn(|| visit(&meeting(1), path));
            let left = path.join("earlybird-guest-1");
            while path.exists() && !left.exists() && !guest.is_finished() {
                std::thread::sleep(PAUSE);
            }
            look(&left);
            let hosted = host(&meeting(0), path);
            [hosted, guest.join().unwrap()]
        })
    }

    fn all_met(told: [Result<Vec<Vec<u8>>>; 2]) {
        told.into_iter().for_each(|told| assert_eq!(told.unwrap(), [b"zero".to_vec(), b"one".to_vec()]));
    }

    #[test]
    fn what_a_rank_leaves_is_for_its_user_alone() {
        let path = folder("mode");
        all_met(meet(&path, |left| {
            assert_eq!(fs::metadata(left).unwrap().permissions().mode() & 0o777, 0o600);
        }));
        fs::remove_dir(path).unwrap();
    }

    #[test]
    fn a_folder_that_was_there_stays_and_one_that_was_made_goes() {
        let path = folder("kept");
        all_met(meet(&path, |_| ()));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "something was left behind");
        fs::write(path.join("note-to-self"), "milk").unwrap();
        all_met(meet(&path, |_| ()));
        assert_eq!(fs::read(path.join("note-to-self")).unwrap(), b"milk");
        fs::remove_dir_all(&path).unwrap();

        all_met(meet(&path, |_| ()));
        assert!(!path.exists(), "the store has left the folder that it made");
    }

    /// With a seal it could try secrets until one fits.
    #[test]
    fn a_process_without_the_secret_gets_no_seal() {
        let path = folder("stranger");
        fs::write(path.join("earlybird-guest-1"), [7; 100]).unwrap();
        let (store, secret) = (StoreAddress::File(path.clone()), Secret::new(None, "job"));
        std::thread::scope(|scope| {
            let hosting = scope.spawn(|| host(&Meeting::sample(&store, &secret, 0), &path));
            let answer = path.join("earlybird-answer-1");
            while !answer.exists() && !hosting.is_finished() {
                // As a stranger does, whose file rank 0 has removed.
                let _ = fs::write(path.join("earlybird-guest-1"), [7; 100]);
                std::thread::sleep(PAUSE);
            }
            assert_eq!(fs::read(&answer).unwrap(), frame::turned_away());
            fs::remove_file(path.join("earlybird-guest-1")).unwrap();
            assert!(hosting.join().unwrap().unwrap_err().to_string().contains("does not know the job's secret"));
        });
        let _ = fs::remove_dir_all(&path);
    }

    #[test]
    fn waits_of_both_ends_end_when_they_are_to() {
        let path = folder("interrupted");
        let (store, secret) = (StoreAddress::File(path.clone()), Secret::new(None, "job"));
        let meeting = |rank| Meeting::sample(&store, &secret, rank);
        interrupted(|| true, || host(&meeting(0), &path));
        interrupted(|| true, || visit(&meeting(1), &path));
        let Meeting { mine, .. } = meeting(1);
        let hello = Hello { rank: 1, ranks: 2, nonce: [1; NONCE], data: mine.to_vec() };
        let hello = hello.encode(&NOT_GREETED, &secret);
        let (own, answer) = (path.join(guest_file(1)), path.join(answer_file(1)));
        // A guest that has ended while it was answered: rank 0 waits for it to take the answer.
        let is_answered = move || {
            if !answer.exists() {
                let _ = fs::write(&own, &hello);
            }
            answer.exists()
        };
        interrupted(is_answered, || host(&meeting(0), &path));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "something was left behind");
        fs::remove_dir(path).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused_by_every_rank() {
        let path = folder("open");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        for told in meet(&path, |_| ()) {
            let refused = told.unwrap_err().to_string();
            assert!(refused.contains("others can write to it (its mode is 777"), "{refused}");
        }
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "something was written there");
        fs::remove_dir(path).unwrap();
    }
}
