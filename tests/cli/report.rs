//! `earlybird report`.

use std::fs;

use crate::common::folder::Folder;
use crate::{earlybird, text};

/// A recording in which rank 2 of 4 takes five times as long in rounds 300 to 699, as rank 0 saw it. All ranks wait for
/// it: with `all` it is in each round.
fn recording(hosts: &str, slow: impl Fn(u64, u64) -> bool) -> String {
    let mut lines = vec![format!(
        r#"{{"earlybird_recording":1,"ranks":4,"rank":0,"collective":0,"choices":{{"fire":"all","depth":"8"}}{hosts}}}"#
    )];
    for round in 1..1000u64 {
        let entry = |rank: u64| {
            let jitter = (round * 7 + rank * 13) % 5 * 20_000;
            let computed = if slow(rank, round) { 50_000_000 } else { 10_000_000 } + jitter;
            format!(r#"[{rank},"fresh",0,1,{computed},{}]"#, 1_000_000)
        };
        let entries: Vec<String> = (0..4).map(entry).collect();
        let entries = entries.join(",");
        lines.push(format!(
            r#"{{"took":[{round},{round}],"cuts":[{{"round":{round},"by":null,"entries":[{entries}]}}]}}"#
        ));
    }
    lines.join("\n") + "\n"
}

fn report(folder: &Folder, recording: &str, more: &[&str]) -> (String, serde_json::Value) {
    let file = folder.path("run.0.0");
    fs::write(&file, recording).unwrap();
    let run = |more: &[&str]| {
        let output = earlybird(&[&["report", file.to_str().unwrap()], more].concat()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    (run(more), serde_json::from_str(&run(&["--json"])).unwrap())
}

#[test]
fn report_names_a_slow_rank_and_its_rounds() {
    let folder = Folder::new();
    let page = folder.path("page.html");
    let slow = recording("", |rank, round| rank == 2 && (300..700).contains(&round));
    let (people, json) = report(&folder, &slow, &["--html", page.to_str().unwrap()]);
    assert!(people.contains("Rank 2 was slow in rounds 300 to 699: 5.0"), "{people}");
    assert_eq!(people.matches("was slow in rounds").count(), 1, "{people}");
    let spell = &json["ranks"][2]["spells"][0];
    assert_eq!((&spell["since"], &spell["until"]), (&300.into(), &700.into()), "{json}");
    assert_eq!(json["slow_hosts"], serde_json::json!([]));
    let page = fs::read_to_string(page).unwrap();
    assert!((0..4).all(|rank| page.contains(&format!("<g id=\"rank{rank}\">"))));
    assert!(!page.contains("http") && !page.contains("<script"), "the page loads nothing");
}

#[test]
fn report_tells_a_slow_host_and_names_no_rank_for_jitter() {
    let folder = Folder::new();
    let host = recording(r#","hosts":[0,0,1,1]"#, |rank, round| rank >= 2 && round >= 500);
    let (people, json) = report(&folder, &host, &[]);
    assert!(people.contains("All ranks of host 1 became slow together"), "{people}");
    assert_eq!(json["slow_hosts"], serde_json::json!([1]));
    let jitter = recording("", |rank, round| (round * 31 + rank * 17) % 97 == 0);
    let (people, json) = report(&folder, &jitter, &[]);
    assert!(people.contains("No rank was slow for long."), "{people}");
    assert!(json["ranks"][1]["slow"].as_u64().unwrap() > 5, "{json}");
}

#[test]
fn report_says_what_is_wrong_with_a_file() {
    let folder = Folder::new();
    let file = folder.path("run.0.0");
    for (content, words) in [
        ("", "this is not a recording"),
        ("no JSON\n", "this is not a recording"),
        (r#"{"earlybird_recording":1,"ranks":4,"rank":9,"collective":0,"choices":{}}"#, "out of range"),
        (r#"{"earlybird_recording":9,"ranks":4,"rank":0,"collective":0,"choices":{}}"#, "version 9"),
    ] {
        fs::write(&file, content).unwrap();
        let ended = earlybird(&["report", file.to_str().unwrap()]).output().unwrap();
        let error = text(&ended);
        assert!(!ended.status.success() && error.contains(words) && error.contains("run.0.0"), "{error}");
    }
}
