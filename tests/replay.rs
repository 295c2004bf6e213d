//! A run is recorded, and replayed with other delays: every rank gets the same outcomes from the same waits, to the bit.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use common::folder::Folder;
use common::tier::by_tier;
use common::{Job, Way, libfabric, role, said};
use earlybird::{
    Absent, Allreduce, AllreduceBuilder, Config, Entry, Executor, FabricChoice, Fire, Group, Mover, Outcomes, Scale,
    World,
};

const DEADLINE: Duration = Duration::from_secs(60);

fn draw(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z ^ (z >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB)
}

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let role = role().unwrap();
    let [fire, absent, group, executor, steps, delays, tape, file] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let (record, replay) = match tape {
        "record" => (Some(file.into()), None),
        "replay" => (None, Some(file.into())),
        "both" => (Some(format!("{file}.again").into()), Some(file.into())),
        _ => (None, None),
    };
    let world = World::with(&Config { deadline: DEADLINE, record, replay, ..Config::from_env().unwrap() }).unwrap();
    let length = 300;
    let initial: Vec<f32> = (0..length).map(|index| draw(index) as f32 / u64::MAX as f32).collect();
    let absent: Absent = absent.parse().unwrap();
    let builder = world.allreduce::<f32>(&[length as usize]).fire(fire.parse().unwrap()).absent(absent).depth(3);
    let builder = builder.executor(executor.parse().unwrap());
    let builder = match group {
        "none" => builder.scale(Scale::Weights),
        group => builder.group(group.parse().unwrap()).memory(&initial),
    };
    let seen = play(builder.build().unwrap(), &world, steps.parse().unwrap(), delays.parse().unwrap(), group == "none");
    println!("\nWAITS {}\nSEEN {}\nLATE {}", seen.waits, seen.digest, seen.late);
}

struct Seen {
    /// A digest of all outcomes: rounds, cuts and data.
    digest: u64,
    waits: String,
    late: u64,
}

/// What a rank contributes follows from all outcomes that it has seen. Ranks leave one after the other.
fn play(mut sum: Allreduce<f32>, world: &World, steps: u64, delays: u64, weighted: bool) -> Seen {
    let (me, mut digest) = (u64::from(world.rank()), DefaultHasher::new());
    let (mut state, mut waits) = (0.0f32, String::new());
    for step in 0..steps + me {
        let drawn = draw(me << 32 | step);
        for (index, x) in (0..).zip(sum.contribution().unwrap()) {
            *x = state / 8.0 + draw(drawn ^ index) as f32 / u64::MAX as f32;
        }
        if weighted {
            sum.weigh((drawn % 5) as u16).unwrap();
        }
        std::thread::sleep(Duration::from_micros(
            [0, 0, 50, 400, 3000][(draw(drawn ^ delays << 20) >> 40) as usize % 5],
        ));
        sum.arrive().unwrap();
        let mut see = |outcomes: Outcomes<'_, f32>| {
            waits += &format!("{}+{},", outcomes.newest().round(), outcomes.len());
            for outcome in outcomes {
                let entry = |entry: Entry| (entry.rank, entry.part, entry.age, entry.weight);
                outcome.cut().entries().map(entry).for_each(|entry| entry.hash(&mut digest));
                (outcome.round(), outcome.initiator()).hash(&mut digest);
                outcome.data().iter().for_each(|x| x.to_bits().hash(&mut digest));
                state = (state + outcome.data()[7]) / 2.0;
            }
        };
        // Either call may return the outcomes.
        if sum.try_wait().unwrap().map(&mut see).is_none() {
            see(sum.wait(DEADLINE).unwrap());
        }
    }
    let late = sum.stats().late;
    sum.finish(DEADLINE).unwrap();
    Seen { digest: digest.finish(), waits, late }
}

/// What all ranks say of a run: their outcomes, and how often they were late.
fn run(way: Way, ranks: u32, choices: &str, delays: u64, tape: &str, file: &str) -> (Vec<[String; 2]>, u64) {
    let steps = by_tier(40, 400);
    let role = format!("{choices} {steps} {delays} {tape} {file}");
    let ends = Job::start(way, ranks, "rank", &role).finish(DEADLINE);
    assert!(ends.iter().all(|(status, _)| status.success()), "{role}: {ends:?}");
    let line = |text: &str, key: &str| said(text, key)[0].to_owned();
    let seen = ends.iter().map(|(_, text)| [line(text, "WAITS"), line(text, "SEEN")]).collect();
    (seen, ends.iter().map(|(_, text)| line(text, "LATE").parse::<u64>().unwrap()).sum())
}

const CHOICES: [&str; 9] = [
    "solo carry none caller",
    "quorum=2 carry none thread",
    "majority carry none peer",
    "solo,full=5 decay=0.5 none caller",
    "quorum=2 drop none caller",
    "deadline=500µs carry none thread",
    "solo carry world caller",
    "quorum=2 carry butterfly=2 thread",
    "majority,full=4 hold butterfly=2 caller",
];

#[test]
fn a_replay_with_other_delays_has_the_outcomes_of_the_recorded_run() {
    let folder = Folder::new();
    let (mut late, mut different) = (0, 0);
    for (index, choices) in CHOICES.iter().enumerate() {
        let file = folder.file(&format!("run-{index}"));
        let (recorded, late_here) = run(Way::Shm, 4, choices, 1, "record", &file);
        assert_eq!(run(Way::Shm, 4, choices, 2, "both", &file).0, recorded, "{choices}");
        // What was recorded of the replay is as good.
        let again = format!("{file}.again");
        assert_eq!(run(Way::Shm, 4, choices, 3, "replay", &again).0, recorded, "{choices}");
        late += late_here;
        different += usize::from(run(Way::Shm, 4, choices, 2, "neither", &file).0 != recorded);
    }
    println!("{late} late contributions; {different} of {} runs differ when they are not replayed", CHOICES.len());
    assert!(late > 0 && different > CHOICES.len() / 2, "{late} late, {different} differ");
}

/// What a network has recorded is replayed there, and in shared memory.
#[test]
fn a_run_over_a_network_is_replayed_there_and_on_one_host() {
    if libfabric().is_none() {
        return;
    }
    let (folder, network) = (Folder::new(), Way::Ofi("tcp;ofi_rxm"));
    for (name, choices) in [("sums", "quorum=2 carry none thread"), ("models", "solo,full=5 carry butterfly=2 caller")]
    {
        let file = folder.file(name);
        let (recorded, _) = run(network, 3, choices, 1, "record", &file);
        for way in [network, Way::Shm] {
            assert_eq!(run(way, 3, choices, 2, "replay", &file).0, recorded, "{way:?}, {choices}");
        }
    }
    let config = Config { fabric: FabricChoice::Ofi, replay: Some(folder.file("held").into()), ..Config::default() };
    let held = |world: &World| solo(world).absent(Absent::Hold).memory(&[0.0; 5]).build().map(drop);
    let refused = pair_with(&config, |world| held(world).unwrap_err().to_string());
    assert!(refused.iter().all(|error| error.contains("held models are replayed on one host only")), "{refused:?}");
}

/// Two ranks in this process that record or replay.
fn pair<R: Send>(tape: (Option<&Path>, Option<&Path>), play: impl Fn(&World) -> R + Sync) -> Vec<R> {
    let (record, replay) = (tape.0.map(Path::to_owned), tape.1.map(Path::to_owned));
    pair_with(&Config { deadline: DEADLINE, record, replay, ..Config::default() }, play)
}

fn pair_with<R: Send>(config: &Config, play: impl Fn(&World) -> R + Sync) -> Vec<R> {
    let worlds = World::in_this_process(2, config).unwrap();
    std::thread::scope(|scope| {
        let play = &play;
        let ranks: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || play(&world))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn solo(world: &World) -> AllreduceBuilder<'_, f32> {
    world.allreduce::<f32>(&[5]).fire(Fire::SOLO)
}

fn step(sum: &mut Allreduce<f32>) -> earlybird::Result<usize> {
    sum.arrive()?;
    Ok(sum.wait(DEADLINE)?.len())
}

/// Records three steps of each rank, and no synchronous round.
fn record(file: &Path) {
    pair((Some(file), None), |world| {
        let mut all = world.allreduce::<f32>(&[1]).build().unwrap();
        let mut sum = solo(world).build().unwrap();
        (0..3).for_each(|_| _ = step(&mut sum).unwrap());
        step(&mut all).unwrap();
        sum.finish(DEADLINE).unwrap();
        all.finish(DEADLINE).unwrap();
    });
}

/// What a replay of that with other choices or steps says on each rank. A rank that leaves before another one is refused
/// may end well.
fn refused(
    file: &Path,
    play: impl Fn(&World, AllreduceBuilder<'_, f32>) -> earlybird::Result<()> + Sync,
) -> Vec<String> {
    let errors = pair((None, Some(file)), |world| {
        let all = world.allreduce::<f32>(&[1]).build().unwrap();
        let ended = play(world, solo(world));
        match ended {
            Err(_) => world.abort("the replay is refused"),
            // The other rank may be refused yet, and says why then.
            Ok(()) => _ = world.barrier(DEADLINE),
        }
        drop(all);
        ended.map_or_else(|error| error.to_string(), |()| "it ended well".to_owned())
    });
    println!("{}", errors[0]);
    errors
}

/// For reports: rounds of a tree, whose sums have another order, and groups by order of arrival, of which each rank has
/// only its own.
#[test]
fn what_is_not_replayed_is_recorded_all_the_same() {
    let folder = Folder::new();
    let file = folder.path("run");
    let groups = |world: &World| {
        world.allreduce::<f32>(&[2]).group(Group::Arrivals(2)).memory(&[0.0; 2]).build().map(|mut models| {
            (0..3).for_each(|_| _ = step(&mut models).unwrap());
            models.finish(DEADLINE).unwrap();
        })
    };
    pair((Some(&file), None), |world| {
        let mut sum = solo(world).mover(Mover::Tree).build().unwrap();
        (0..3).for_each(|_| _ = step(&mut sum).unwrap());
        sum.finish(DEADLINE).unwrap();
        groups(world).unwrap();
    });
    for (name, rounds) in [("run.0.0", 3), ("run.1.0", 3)] {
        let text = std::fs::read_to_string(folder.path(name)).unwrap();
        assert!(text.matches("\"round\"").count() >= rounds && text.ends_with("\n"), "{text}");
        #[cfg(feature = "cli")]
        {
            let report = common::command::earlybird(&["report", &folder.file(name)]).output().unwrap();
            assert!(report.status.success(), "{}", common::command::text(&report));
        }
    }
    let errors = pair((None, Some(&file)), |world| {
        let tree = solo(world).build().map(drop).unwrap_err().to_string();
        assert!(tree.contains("the tree mover added in another order"), "{tree}");
        groups(world).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("no rounds in common that a replay could repeat")), "{errors:?}");
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let folder = Folder::new();
    let file = folder.path("run");
    record(&file);
    let named = |rank: u32| folder.path(format!("run.1.{rank}"));
    // The first collective is synchronous. It is recorded, and a replay does not read it.
    assert!(named(0).exists() && named(1).exists() && folder.path("run.0.0").exists());
    let say = |errors: Vec<String>, words: &str| {
        assert!(errors.iter().any(|error| error.contains(words)), "{errors:?} lack {words:?}");
    };
    let build = |builder: AllreduceBuilder<'_, f32>| builder.build().map(drop);
    say(
        refused(&file, |_, solo| build(solo.fire(Fire::quorum(2)))),
        "fire was solo in the recorded run and is quorum=2",
    );
    say(refused(&file, |_, solo| build(solo.depth(3))), "run.1.0: depth was 8");
    say(refused(&file, |_, solo| build(solo.mover(Mover::Tree))), "the tree mover adds in another order");
    say(refused(&file, |_, solo| build(solo.executor(Executor::Provider))), "cannot be replayed");
    say(refused(&folder.path("other"), |_, solo| build(solo)), "other.1.0: the recording cannot be read");
    // More steps than were recorded, and fewer.
    let fourth = |_: &World, solo: AllreduceBuilder<'_, f32>| {
        let mut sum = solo.build()?;
        (0..3).try_for_each(|_| step(&mut sum).map(drop))?;
        step(&mut sum).map(drop)
    };
    say(refused(&file, fourth), "end the replay before this step");
    let early = |_: &World, solo: AllreduceBuilder<'_, f32>| {
        let mut sum = solo.build()?;
        step(&mut sum)?;
        sum.finish(DEADLINE)
    };
    say(refused(&file, early), "this rank made 2 more steps");
    // The rank was killed before it left.
    let text = std::fs::read_to_string(named(1)).unwrap();
    std::fs::write(named(1), &text[..text.rfind("{\"left\"").unwrap() + 5]).unwrap();
    let whole = |_: &World, solo: AllreduceBuilder<'_, f32>| {
        let mut sum = solo.build()?;
        (0..3).try_for_each(|_| step(&mut sum).map(drop))?;
        sum.finish(DEADLINE)
    };
    say(refused(&file, whole), "did not leave in the recorded run");
    // Parts of two runs.
    std::fs::write(named(1), text.replace("\"fresh\",0,1]", "\"fresh\",0,2]")).unwrap();
    say(refused(&file, |_, solo| build(solo)), "the digest of the recorded cuts");
}

#[test]
fn a_recording_that_cannot_be_written_is_refused_at_once() {
    let folder = Folder::new();
    for rank in 0..2 {
        std::os::unix::fs::symlink("/dev/full", folder.path(format!("full.0.{rank}"))).unwrap();
    }
    for name in ["full", "no/such/folder"] {
        let build = |world: &World| solo(world).build().map(drop).unwrap_err().to_string();
        let refused = pair((Some(&folder.path(name)), None), build);
        assert!(refused.iter().any(|error| error.contains("cannot be written here")), "{refused:?}");
    }
}
