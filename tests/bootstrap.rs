//! Ranks that do not come, come twice, or were told different things: an error everywhere.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

use common::said;
use earlybird::{Config, World};

const DEADLINE: Duration = Duration::from_secs(3);

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let Some(role) = common::role() else { return };
    let started = Instant::now();
    match World::from_env(&Config { deadline: DEADLINE, ..Config::default() }) {
        Ok(world) => {
            println!("\nJOINED {} of {}", world.rank(), world.size());
            let mut sum = world.allreduce::<u64>(&[1]).build().unwrap();
            if role == "mute" && world.rank() == 1 {
                // Leaves without a word.
                std::process::exit(0);
            }
            sum.contribution().unwrap()[0] = 1;
            match sum.arrive().and_then(|()| sum.wait(DEADLINE).map(|outcomes| outcomes.newest()[0])) {
                Ok(total) => println!("\nTOTAL {total}"),
                Err(error) => println!("\nERROR {error}"),
            }
            let _ = sum.finish(DEADLINE);
        }
        Err(error) => println!("\nERROR {error}"),
    }
    println!("\nTOOK {}", started.elapsed().as_millis());
}

/// Starts one process for each pair of rank and world size, and returns what each said.
fn start(ranks: &[(u32, u32)], role: &str) -> Vec<String> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let meeting = format!("unix:bootstrap-{}-{number}", std::process::id());
    let children: Vec<_> = ranks
        .iter()
        .enumerate()
        .map(|(index, (rank, size))| {
            if role == "last comes late" && index + 1 == ranks.len() {
                std::thread::sleep(Duration::from_millis(300));
            }
            std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "rank", "--ignored", "--nocapture"])
                .env("TEST_ROLE", role)
                .env("EARLYBIRD_RANK", rank.to_string())
                .env("EARLYBIRD_WORLD_SIZE", size.to_string())
                .env("EARLYBIRD_STORE", &meeting)
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    if role == "strangers" {
        // Connects, says something else, and stays.
        let user = rustix::process::getuid().as_raw();
        let name = format!("earlybird-{user}-{}", meeting.trim_start_matches("unix:"));
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let until = Instant::now() + DEADLINE;
        while Instant::now() < until {
            if let Ok(mut stream) = UnixStream::connect_addr(&address) {
                let _ = std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n\r\n");
                break;
            }
        }
    }
    children.into_iter().map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()).collect()
}

fn all_say(texts: &[String], named: &[&str]) {
    for text in texts {
        let error = said(text, "ERROR").concat();
        assert!(named.iter().all(|word| error.contains(word)), "{named:?} not in: {text}");
        let took: u64 = said(text, "TOOK").concat().parse().unwrap();
        assert!(took < 2 * DEADLINE.as_millis() as u64 + 2000, "took {took} ms");
    }
}

#[test]
fn everybody_comes() {
    let texts = start(&[(0, 3), (1, 3), (2, 3)], "");
    assert!(texts.iter().all(|text| said(text, "TOTAL") == ["3"]), "{texts:?}");
}

#[test]
fn a_missing_rank_is_named() {
    all_say(&start(&[(0, 4), (2, 4), (3, 4)], ""), &["rank 1 did not come within"]);
}

#[test]
fn a_missing_rank_zero_is_named() {
    all_say(&start(&[(1, 3), (2, 3)], ""), &["rank 0 did not come within"]);
}

#[test]
fn a_rank_that_comes_twice_is_named() {
    all_say(&start(&[(0, 3), (1, 3), (1, 3), (2, 3)], "last comes late"), &["two processes came as rank 1"]);
}

#[test]
fn world_sizes_that_differ_are_both_named() {
    all_say(&start(&[(0, 2), (1, 3)], ""), &["3 ranks on rank 1", "2 on rank 0"]);
}

#[test]
fn two_ranks_zero_are_named() {
    let texts = start(&[(0, 2), (0, 2)], "");
    assert!(texts.iter().any(|text| text.contains("two processes were told to be rank 0")), "{texts:?}");
    assert!(texts.iter().all(|text| !said(text, "ERROR").is_empty()), "{texts:?}");
}

#[test]
fn a_stranger_at_the_meeting_is_ignored() {
    let texts = start(&[(0, 2), (1, 2)], "strangers");
    assert!(texts.iter().all(|text| said(text, "TOTAL") == ["2"]), "{texts:?}");
}

#[test]
fn leaving_without_finish_is_death() {
    let texts = start(&[(0, 3), (1, 3), (2, 3)], "mute");
    for text in [&texts[0], &texts[2]] {
        assert!(said(text, "ERROR").concat().contains("rank 1 died"), "{text}");
    }
}
