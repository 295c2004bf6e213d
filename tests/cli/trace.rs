//! Traces of ranks, and `earlybird trace merge`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::common::folder::Folder;
use crate::common::wait_at_most;
use crate::{earlybird, text};

/// The events of a file in the Trace Event Format, whose array need not be closed.
fn events(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let text = text.trim_end();
    let closed = if text.ends_with(']') { text.to_owned() } else { format!("{text}]") };
    serde_json::from_str(&closed).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// A slice: its name, and when it begins and ends.
type Slice = (String, f64, f64);

/// The slices of each track: each begin has its end, and time never runs backwards. Slices of a killed rank may be open.
fn slices(events: &[Value], may_be_open: bool) -> BTreeMap<(u64, u64), Vec<Slice>> {
    let mut open: BTreeMap<(u64, u64), Vec<(String, f64)>> = BTreeMap::new();
    let (mut slices, mut newest) = (BTreeMap::<_, Vec<Slice>>::new(), BTreeMap::new());
    for event in events {
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let (time, name) = (event["ts"].as_f64().unwrap(), event["name"].as_str().unwrap_or_default().to_owned());
        match event["ph"].as_str().unwrap() {
            "M" => continue,
            "B" => open.entry(track).or_default().push((name, time)),
            "E" => {
                let (name, begun) = open.get_mut(&track).and_then(Vec::pop).unwrap_or_else(|| panic!("{event}"));
                slices.entry(track).or_default().push((name, begun, time));
            }
            "i" => assert_eq!(event["s"], "t", "{event}"),
            other => panic!("{other}: {event}"),
        }
        assert!(*newest.get(&track).unwrap_or(&f64::MIN) <= time, "time runs backwards at {event}");
        newest.insert(track, time);
    }
    assert!(may_be_open || open.values().all(Vec::is_empty), "{open:?}");
    slices
}

/// A round with its fresh ranks, and how many nanoseconds each of them had waited in its round before.
type Round = (u64, Vec<(u64, Option<u64>)>);

/// The recorded cuts of a rank's collective.
fn cuts(file: &Path) -> Vec<Round> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let cuts = lines.flat_map(|line| line["cuts"].as_array().cloned().unwrap_or_default());
    let entries = |cut: &Value| {
        let fresh = cut["entries"].as_array().unwrap().iter().filter(|entry| entry[1] == "fresh");
        fresh.map(|entry| (entry[0].as_u64().unwrap(), entry[5].as_u64())).collect()
    };
    cuts.map(|cut| (cut["round"].as_u64().unwrap(), entries(&cut))).collect()
}

#[test]
fn ranks_that_shared_a_round_have_slices_that_overlap() {
    const RANKS: u64 = 4;
    for fire in ["all", "quorum=3"] {
        let folder = Folder::new();
        let (trace, record, merged) = (folder.path("trace"), folder.path("record"), folder.path("merged.json"));
        let train = ["train", "digits", "-n", "4", "--fire", fire, "--epochs", "1", "--compute-ms", "2"];
        let mut train = earlybird(&[&train[..], &["--skew", "one:3:5ms"]].concat());
        let output = train.env("EARLYBIRD_TRACE", &trace).env("EARLYBIRD_RECORD", &record).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let files: Vec<String> = (0..RANKS).map(|rank| folder.file(&format!("trace.{rank}"))).collect();
        let ended = |file: &String| fs::read_to_string(file).unwrap().ends_with("\n]\n");
        assert!(files.iter().all(ended), "a rank that ends in good order closes the array");
        files.iter().for_each(|file| _ = slices(&events(file.as_ref()), false));

        let names: Vec<&str> = files.iter().map(String::as_str).collect();
        let merge = [&["trace", "merge"], &names[..], &["--json", "-o", merged.to_str().unwrap()]].concat();
        let output = earlybird(&merge).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let clocks: Value = serde_json::from_slice(&output.stdout).unwrap();
        let all_zero = clocks["ranks"].as_array().unwrap().iter().all(|rank| rank["clock_ns"] == 0);
        assert!(all_zero, "ranks of one machine have one clock: {clocks}");

        let slices = slices(&events(&merged), false);
        let of = |rank: u64, round: u64| {
            let named = |(name, ..): &&Slice| *name == format!("round {round}");
            slices[&(rank, 0)].iter().find(named).unwrap_or_else(|| panic!("rank {rank} has no round {round}")).clone()
        };
        let mut compared = 0;
        let cuts = cuts(&folder.path("record.0.0"));
        for pair in cuts.windows(2) {
            let ((round, fresh), (next, waits)) = (&pair[0], &pair[1]);
            assert_eq!(round + 1, *next);
            let slices: Vec<Slice> = fresh.iter().map(|&(rank, _)| of(rank, *round)).collect();
            let begun = slices.iter().map(|slice| slice.1).fold(f64::MIN, f64::max);
            let ended = slices.iter().map(|slice| slice.2).fold(f64::MAX, f64::min);
            assert!(begun <= ended, "round {round}: {slices:?}");
            // A rank that is fresh in both tells in the second how long it waited in the first.
            for (rank, waited) in waits {
                let Some(at) = fresh.iter().position(|(other, _)| other == rank) else { continue };
                // A recording has times to within 1.6 %.
                let lasted = slices[at].2 - slices[at].1;
                assert!(
                    lasted * 1.016 + 1.0 >= waited.unwrap_or(0) as f64 / 1e3,
                    "round {round}: {:?}, {waited:?}",
                    slices[at]
                );
                compared += u64::from(waited.is_some());
            }
        }
        assert!(cuts.len() >= 20 && compared >= 20, "{} cuts, {compared} waits", cuts.len());
    }
}

#[test]
fn killed_ranks_leave_a_trace_that_loads() {
    let folder = Folder::new();
    let store = format!("file:{}", folder.file("store"));
    let start = |rank: usize| {
        let mut bench = earlybird(&["bench", "--fire", "all", "-b", "8", "--iters", "1000000000"]);
        bench.env("EARLYBIRD_RANK", rank.to_string()).env("EARLYBIRD_WORLD_SIZE", "2").env("EARLYBIRD_STORE", &store);
        bench.env("EARLYBIRD_SECRET", "of this test only").env("EARLYBIRD_TRACE", folder.path("trace"));
        bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut ranks = [start(0), start(1)];
    let files = [0, 1].map(|rank| folder.path(format!("trace.{rank}")));
    let is_long = |file: &std::path::PathBuf| fs::metadata(file).is_ok_and(|file| file.len() > 1 << 17);
    let begun = wait_at_most(Duration::from_secs(60), || files.iter().all(is_long));
    ranks.iter_mut().for_each(|rank| rank.kill().unwrap());
    ranks.iter_mut().for_each(|rank| _ = rank.wait().unwrap());
    assert!(begun, "no rank has begun");
    for file in &files {
        let slices = slices(&events(file), true);
        assert!(slices.values().map(Vec::len).sum::<usize>() > 100);
    }
    let names = files.each_ref().map(|file| file.to_str().unwrap());
    let merged = folder.file("merged.json");
    let output = earlybird(&["trace", "merge", names[0], names[1], "-o", &merged]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    slices(&events(merged.as_ref()), true);
}

#[test]
fn what_cannot_be_merged_is_refused() {
    let folder = Folder::new();
    let head = |rank: u32, ranks: u32| {
        format!(
            "[\n{{\"ph\":\"M\",\"name\":\"earlybird_trace\",\"pid\":{rank},\"tid\":0,\"ts\":0,\"args\":{{\"version\":1,\"ranks\":{ranks},\"machine\":\"m\",\"wall_ns\":0,\"monotonic_ns\":0}}}}\n]\n"
        )
    };
    let write = |name: &str, text: String| {
        fs::write(folder.path(name), text).unwrap();
        folder.file(name)
    };
    let [a, twice, other, bad] =
        [write("a", head(0, 2)), write("twice", head(0, 2)), write("other", head(1, 3)), write("bad", "{}".to_owned())];
    for (files, words) in [
        (vec![&a, &twice], "another of the files is the trace of rank 0, too"),
        (vec![&a, &other], "a world of 3 ranks"),
        (vec![&a, &bad], "bad: this is not a trace"),
    ] {
        let files: Vec<&str> = files.into_iter().map(String::as_str).collect();
        let out = folder.file("out");
        let output = earlybird(&[&["trace", "merge"], &files[..], &["-o", &out]].concat()).output().unwrap();
        assert!(!output.status.success() && text(&output).contains(words), "{}", text(&output));
        assert!(!Path::new(&out).exists());
    }
    let trace = format!("{}/no/such/folder/trace", folder.name());
    let output = earlybird(&["bench", "-n", "2"]).env("EARLYBIRD_TRACE", trace).output().unwrap();
    assert!(!output.status.success() && text(&output).contains("a trace cannot be written here"), "{}", text(&output));
}
