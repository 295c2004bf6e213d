//! Small meetings with all ranks in this process: which processes are admitted, and which are
//! believed.

use std::fs;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::folder::Folder;
use super::frame::{self, Hello, NONCE};
use super::gather;
use crate::bootstrap::wire::Hello as Greeting;
use crate::bootstrap::{Joined, MeetingTerms, StoreAddress, meet};
use crate::error::Result;
use crate::fabric::shm::ShmFabric;
use crate::fault::Fault;
use crate::seal::Secret;

/// The deadline; some meetings last that long.
const DEADLINE: Duration = Duration::from_secs(2);

const TERMS: MeetingTerms = MeetingTerms { deadline: DEADLINE, together: "by the same test" };

/// What a rank gets from a meeting.
type Told = Result<Vec<Vec<u8>>>;

/// A unique name.
fn fresh(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("meeting-{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// An empty folder that only this user can write to. It goes with the test, also where that has found a fault.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(what: &str) -> TestFolder {
        let path = std::env::temp_dir().join(format!("earlybird-{}", fresh(what)));
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        TestFolder(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs all concurrently, with the mistake that this thread has chosen; returns the result of each.
fn together<R: Send>(all: Vec<impl FnOnce() -> R + Send>) -> Vec<R> {
    let fault = Fault::chosen();
    thread::scope(|scope| {
        let started: Vec<_> = all.into_iter().map(|one| scope.spawn(move || Fault::passed_on(fault, one))).collect();
        started.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// A rank with the world size that it was told comes to a meeting on one machine and joins the
/// world.
fn come(name: &str, (rank, ranks): (u32, u32)) -> Result<()> {
    come_with(name, (rank, ranks), "of this job", DEADLINE)
}

fn come_with(name: &str, (rank, ranks): (u32, u32), secret: &str, deadline: Duration) -> Result<()> {
    let (secret, terms) = (Secret::new(Some(secret), ""), (TERMS, Instant::now() + deadline));
    let make = || ShmFabric::create(ranks);
    let Joined { shared, processes } = meet(name, (rank, ranks), &secret, terms, &|| Ok(()), make)?;
    ShmFabric::join(shared, rank, ranks, &processes).map(drop)
}

/// A world that ranks leave to meet fails meanwhile, or rank 0 has no memory: no rank waits for the deadline.
#[test]
fn a_meeting_without_a_point_ends() {
    let (secret, until) = (Secret::new(None, ""), Instant::now() + Duration::from_secs(3600));
    let died = || Err(crate::Error::join(2, "the other world has failed"));
    for rank in [0, 1] {
        let told = meet(&fresh("shm"), (rank, 2), &secret, (TERMS, until), &died, || ShmFabric::create(2));
        refused(&told, "the other world has failed");
    }
    let (name, secret) = (&fresh("shm"), &secret);
    let no_memory = |rank: u32| {
        move || {
            let make = || Err(crate::Error::join(rank, "there is no memory"));
            // Rank 0 tells those that come soon.
            meet(name, (rank, 2), secret, (TERMS, until), &|| Ok(()), make)
        }
    };
    together(vec![no_memory(0), no_memory(1)]).iter().for_each(|told| refused(told, "there is no memory"));
}

#[test]
fn shared_memory_is_for_ranks_with_the_secret() {
    let name = &fresh("shm");
    let visit = |rank: u32, secret: &'static str| move || come_with(name, (rank, 2), secret, TERMS.deadline);
    let told = together(vec![visit(0, "friend"), visit(1, "sesame")]);
    refused(&told[0], "Not let in: a process came that does not know this job's secret");
    refused(&told[1], "rank 0 there does not know this job's secret");
}

/// Such ranks meet; returns the result of each.
fn meet_as(ranks: &[(u32, u32)]) -> Vec<Result<()>> {
    let name = &fresh("shm");
    together(ranks.iter().map(|&rank| move || come(name, rank)).collect())
}

/// Ranks of a world meet at a store, each with a secret; returns the result of each.
fn gather_at(store: &StoreAddress, ranks: u32, came: &[(u32, &str)]) -> Vec<Told> {
    let visit = |&(rank, secret): &(u32, &str)| {
        let secret = Secret::new(Some(secret), "");
        move || gather(store, (rank, ranks), &[rank as u8], &secret, Instant::now() + TERMS.deadline, TERMS)
    };
    together(came.iter().map(visit).collect())
}

fn refused<T: std::fmt::Debug>(told: &Result<T>, why: &str) {
    let error = told.as_ref().unwrap_err().to_string();
    assert!(error.contains(why), "{why:?} is not in: {error}");
}

fn two_processes_do_not_come_as_one_rank() {
    // Rank 2 does not come, so that rank 0 waits until both have.
    meet_as(&[(0, 3), (1, 3), (1, 3)]).iter().for_each(|told| refused(told, "two processes came as rank 1"));
}

fn all_know_the_same_world() {
    let why = "the world has 3 ranks on rank 1 and 2 on rank 0";
    meet_as(&[(0, 2), (1, 3)]).iter().for_each(|told| refused(told, why));
}

fn no_rank_starts_without_the_missing() {
    let store = StoreAddress::Unix(fresh("missing"));
    let told = gather_at(&store, 3, &[(0, "s"), (2, "s")]);
    told.iter().for_each(|told| {
        refused(told, "rank 1 did not come within 2s; were all 3 started, by the same test, in one network")
    });
}

fn a_process_without_the_secret_is_no_guest() {
    let store = StoreAddress::Unix(fresh("secret"));
    let told = gather_at(&store, 2, &[(0, "friend"), (1, "sesame")]);
    refused(&told[0], "rank 1 did not come within");
    refused(&told[1], "does not know this job's secret");
}

/// Connects to the meeting of this name; returns what rank 0 has drawn, too.
fn knock(name: &str) -> std::io::Result<(UnixStream, [u8; NONCE])> {
    let address = &SocketAddr::from_abstract_name(format!("earlybird-{name}")).unwrap();
    let until = Instant::now() + DEADLINE;
    let mut visitor = UnixStream::connect_addr(address);
    while visitor.is_err() && Instant::now() < until {
        thread::yield_now();
        visitor = UnixStream::connect_addr(address);
    }
    let (mut visitor, mut drawn) = (visitor?, [0; NONCE]);
    visitor.read_exact(&mut drawn)?;
    Ok((visitor, drawn))
}

/// Strangers come before rank 1. One sends more than an introduction is long, another one a greeting that was said before.
fn strangers_are_not_greeted() {
    const STRANGER: u32 = 2;
    let name = &fresh("stranger");
    let has_come = &AtomicBool::new(false);
    let visit = || {
        knock(name)?.0.write_all(&b"GET / HTTP/1.1\r\n".repeat(9))?;
        let (_, drawn) = knock(name)?;
        let hello = Greeting { rank: 1, ranks: 2, process: std::process::id() }.encode();
        let seal = Secret::new(Some("of this job"), "").seal(&[b"greeting", &drawn, &hello]);
        let (mut again, other) = knock(name)?;
        assert_ne!(drawn, other);
        again.write_all(&[&hello[..], &seal].concat())
    };
    let play = |rank: u32| {
        move || {
            if rank == STRANGER {
                let said = visit();
                has_come.store(true, Ordering::Release);
                return said.unwrap();
            }
            while rank == 1 && !has_come.load(Ordering::Acquire) {
                thread::yield_now();
            }
            come(name, (rank, 2)).unwrap();
        }
    };
    together((0..3).map(play).collect());
}

/// Checks the results of two ranks that meet in a folder and are not deceived.
fn met(told: Vec<Told>) {
    told.into_iter().for_each(|told| assert_eq!(told.unwrap(), [vec![0], vec![1]]));
}

/// An answer of an earlier job with the same secret, sealed for the number that its guest drew.
fn an_old_answer_is_not_believed() {
    let folder = TestFolder::new("answer");
    let path = &folder.0;
    let old = Ok(frame::encode_world(&[b"an old".to_vec(), b"world".to_vec()]));
    let answer = frame::verdict(&old, &[7; NONCE], &Secret::new(Some("s"), ""));
    fs::write(path.join("earlybird-answer-1"), answer).unwrap();
    let (store, fault, guest_file) =
        (StoreAddress::File(path.clone()), Fault::chosen(), path.join("earlybird-guest-1"));
    let told = thread::scope(|scope| {
        let guest = scope.spawn(|| Fault::passed_on(fault, || gather_at(&store, 2, &[(1, "s")])));
        while !guest_file.exists() && !guest.is_finished() {
            thread::yield_now();
        }
        // The guest looks for an answer by now, and finds this one.
        thread::sleep(Duration::from_millis(50));
        let mut told = gather_at(&store, 2, &[(0, "s")]);
        told.extend(guest.join().unwrap());
        told
    });
    met(told);
}

fn an_old_guest_is_not_let_in() {
    let folder = TestFolder::new("guest");
    let path = &folder.0;
    let old = Hello { rank: 1, ranks: 2, nonce: [7; NONCE], data: b"an old guest".to_vec() };
    // In a folder there is no greeting.
    let said = old.encode(&[0; NONCE], &Secret::new(Some("s"), ""));
    fs::write(path.join("earlybird-guest-1"), said).unwrap();
    met(gather_at(&StoreAddress::File(path.clone()), 2, &[(0, "s"), (1, "s")]));
}

/// A rank that reads a file while it is written anew finds all of the old or all of the new
/// content.
fn files_appear_whole() {
    const BYTES: usize = 256 << 10;
    let folder = TestFolder::new("whole");
    let path = &folder.0;
    let shared = Folder::open(path).unwrap();
    shared.put("word", &[0; BYTES]).unwrap();
    let (fault, shared) = (Fault::chosen(), &shared);
    thread::scope(|scope| {
        let writing = scope.spawn(move || {
            let write = || (1..100u8).try_for_each(|turn| shared.put("word", &[turn; BYTES]));
            Fault::passed_on(fault, write).unwrap();
        });
        while !writing.is_finished() {
            let found = shared.read("word").unwrap();
            assert_eq!(found.len(), BYTES, "half a file");
            assert!(found.iter().all(|byte| *byte == found[0]), "half of one file and half of another");
        }
    });
}

const MEETINGS: [fn(); 8] = [
    two_processes_do_not_come_as_one_rank,
    all_know_the_same_world,
    no_rank_starts_without_the_missing,
    a_process_without_the_secret_is_no_guest,
    strangers_are_not_greeted,
    an_old_answer_is_not_believed,
    an_old_guest_is_not_let_in,
    files_appear_whole,
];

#[test]
fn only_ranks_of_the_job_are_admitted_and_believed() {
    together(MEETINGS.to_vec());
}

#[cfg(earlybird_faults)]
#[test]
fn every_fault_is_found() {
    let faults = crate::fault::Suite::Meetings.faults();
    let unseen = Fault::unseen(faults, crate::fabric::RawAccess::CRATE, || _ = together(MEETINGS.to_vec()));
    assert!(unseen.is_empty(), "unseen: {unseen:?}");
}
