//! A collective is saved, a rank is killed, and a new world goes on: no contribution is lost, and none enters twice.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::barrier::Barrier;
use common::folder::Folder;
use common::tier::by_tier;
use common::worlds::{everywhere, ways, world};
use common::{Job, Way, role, said};
use earlybird::{Absent, Allreduce, AllreduceBuilder, Checkpoint, Config, Error, Fire, Group, Mover, Outcomes, World};

const DEADLINE: Duration = Duration::from_secs(60);
const LENGTHS: [usize; 2] = [40, 3];
const LENGTH: usize = LENGTHS[0] + LENGTHS[1];
const RANKS: u32 = 4;

/// Where a rank saved, and where a restored one stopped: the first rounds at or behind these after which that was
/// possible.
const SAVED: [u64; 2] = [5, 9];
const STOPPED: u64 = 16;

/// What a rank's application knows besides its collective.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct State {
    step: u64,
    /// The sum of all elements of its contributions.
    given: f64,
    /// The same of all outcomes, where these are sums.
    taken: f64,
}

impl State {
    fn encode(self) -> [[u8; 8]; 3] {
        [self.step.to_le_bytes(), self.given.to_le_bytes(), self.taken.to_le_bytes()]
    }

    fn read(mut from: impl Read) -> Self {
        let mut number = || {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes).unwrap();
            bytes
        };
        let step = u64::from_le_bytes(number());
        State { step, given: f64::from_le_bytes(number()), taken: f64::from_le_bytes(number()) }
    }
}

fn file_of(folder: &str, index: usize, rank: u32) -> PathBuf {
    Path::new(folder).join(format!("{index}.{rank}"))
}

fn save(folder: &str, index: usize, state: State, checkpoint: &Checkpoint) {
    let file = file_of(folder, index, checkpoint.rank());
    let mut to = BufWriter::new(File::create(file).unwrap());
    checkpoint.write_to(&mut to).unwrap();
    state.encode().iter().for_each(|part| to.write_all(part).unwrap());
    to.flush().unwrap();
}

fn load(folder: &str, index: usize, rank: u32) -> (State, Checkpoint) {
    let mut from = BufReader::new(File::open(file_of(folder, index, rank)).unwrap());
    let checkpoint = Checkpoint::read_from(&mut from).unwrap();
    (State::read(&mut from), checkpoint)
}

/// A small integer, so that sums and halves of sums are exact.
fn value(rank: u32, step: u64, index: usize) -> f64 {
    ((u64::from(rank) * 5 + step * 3 + index as u64) % 8) as f64
}

fn total(of: &[f64]) -> f64 {
    of.iter().sum()
}

fn first_model() -> Vec<f64> {
    (0..LENGTH).map(|index| value(99, 0, index)).collect()
}

fn builder<'w>(world: &'w World, group: &str, fire: &str) -> AllreduceBuilder<'w, f64> {
    let builder = world.allreduce::<f64>(&LENGTHS).fire(fire.parse().unwrap()).depth(3);
    if group == "sum" { builder } else { builder.group(group.parse().unwrap()) }
}

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let role = role().unwrap();
    let [what, group, fire, folder] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let config = Config { deadline: DEADLINE, ..Config::from_env().unwrap() };
    let world = World::with(&config).unwrap();
    let me = world.rank();
    let (sums, first) = (group == "sum", first_model());
    if let Some((mine, others)) = what.strip_prefix("mixed:").map(|rest| rest.split_once(',').unwrap()) {
        let (folder, index) = if me == 0 { mine } else { others }.split_once('@').unwrap();
        let (_, checkpoint) = load(folder, index.parse().unwrap(), me);
        let built = builder(&world, group, fire).restore(&checkpoint).build();
        let Err(error @ Error::Mismatch { what: "the checkpoint", .. }) = &built else { panic!("{built:?}") };
        println!("\nMIXED {error}");
        return;
    }
    let saved = what.strip_prefix("restore:").map(|index| load(folder, index.parse().unwrap(), me));
    let (mut state, checkpoint) = saved.map_or((State::default(), None), |(state, saved)| (state, Some(saved)));
    let before = checkpoint.as_ref().map_or(0, Checkpoint::round);
    let builder = builder(&world, group, fire);
    let built = match &checkpoint {
        Some(checkpoint) => builder.restore(checkpoint).build(),
        None if sums => builder.build(),
        None => builder.memory(&first).build(),
    };
    let mut models = built.unwrap();
    let (mut round, mut next, mut end) = (before, 0, None);
    while end.is_none() {
        std::thread::sleep(Duration::from_micros((state.step * 7 + u64::from(me) * 3) % 11 * u64::from(me) * 40));
        let step = state.step;
        models.contribution().unwrap().iter_mut().enumerate().for_each(|(index, x)| *x = value(me, step, index));
        state.given += (0..LENGTH).map(|index| value(me, step, index)).sum::<f64>();
        state.step += 1;
        models.arrive().unwrap();
        let outcomes: Outcomes<'_, f64> = models.wait(DEADLINE).unwrap();
        for outcome in outcomes {
            round += 1;
            assert_eq!((outcome.round(), outcome.cut().round()), (round, round));
            state.taken += if sums { total(outcome.data()) } else { 0.0 };
            let full = fire.parse::<Fire>().unwrap().is_full(round);
            assert!(outcome.can_checkpoint() || !(full || fire == "all"), "round {round}: {:?}", outcome.cut());
            if !outcome.can_checkpoint() {
                assert!(outcome.checkpoint().is_err());
                continue;
            }
            if before > 0 {
                if round >= STOPPED && end.is_none() {
                    end = Some((state, if sums { 0.0 } else { total(outcome.data()) }));
                }
            } else if next < SAVED.len() {
                if round >= SAVED[next] {
                    save(folder, next, state, &outcome.checkpoint().unwrap());
                    next += 1;
                }
            } else if me == 1 {
                // All ranks arrived for this round, and each has saved before that.
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
        }
    }
    models.finish(DEADLINE).unwrap();
    let (State { given, taken, .. }, model) = end.unwrap();
    println!("\nBEFORE {before}\nGIVEN {given}\nTAKEN {taken}\nMODEL {model}");
}

fn job(way: Way, what: &str, group: &str, fire: &str, folder: &str) -> Vec<(bool, String)> {
    let ends = Job::start(way, RANKS, "rank", &format!("{what} {group} {fire} {folder}")).finish(DEADLINE * 2);
    ends.into_iter().map(|(status, text)| (status.success(), text)).collect()
}

/// Saves, until a rank is killed.
fn saved(way: Way, group: &str, fire: &str) -> Folder {
    let folder = Folder::new();
    let ends = job(way, "save", group, fire, folder.name());
    assert!(ends.iter().all(|(success, _)| !success), "{way:?}, {group}, {fire}: {ends:?}");
    assert!(
        ends.iter().any(|(_, text)| text.contains("PeerDied") && text.contains("peer: 1")),
        "{way:?}, {group}, {fire}: {ends:?}"
    );
    for index in 0..SAVED.len() {
        let states: Vec<_> = (0..RANKS).map(|rank| load(folder.name(), index, rank)).collect();
        let round = states[0].1.round();
        assert!(states.iter().all(|(_, checkpoint)| checkpoint.round() == round), "{states:?}");
    }
    folder
}

/// Restores, goes on, and checks what all models or outcomes add up to.
fn restored(way: Way, group: &str, fire: &str, index: usize, folder: &Folder) {
    let (_, first) = load(folder.name(), index, 0);
    let ends = job(way, &format!("restore:{index}"), group, fire, folder.name());
    assert!(ends.iter().all(|(success, _)| *success), "{way:?}, {group}, {fire}: {ends:?}");
    let number = |text: &str, what: &str| said(text, what)[0].parse::<f64>().unwrap();
    let sum = |what: &str| ends.iter().map(|(_, text)| number(text, what)).sum::<f64>();
    assert_eq!(sum("BEFORE"), (first.round() * u64::from(RANKS)) as f64);
    if group == "sum" {
        // Every rank has taken all that any rank has given.
        ends.iter().for_each(|(_, text)| assert_eq!(number(text, "TAKEN"), sum("GIVEN"), "{way:?}, {fire}: {ends:?}"));
    } else {
        let begun = f64::from(RANKS) * total(&first_model());
        assert_eq!(sum("MODEL"), begun + sum("GIVEN"), "{way:?}, {group}, {fire}: {ends:?}");
    }
}

/// Also of ranks that were late for the round that was saved.
#[test]
fn a_restored_world_has_every_contribution_once() {
    for way in ways() {
        let cases = [
            ("butterfly=2", "solo,full=4"),
            ("world", "majority=3,full=3"),
            ("sum", "quorum=2,full=4"),
            ("butterfly=2", "all"),
            ("sum", "all"),
        ];
        for (group, fire) in cases.into_iter().take(by_tier(if way == Way::Shm { 5 } else { 3 }, 5)) {
            let folder = saved(way, group, fire);
            restored(way, group, fire, 1, &folder);
            restored(way, group, fire, 0, &folder);
        }
    }
}

/// Of another round, or of the same round of another run: synchronous rounds have the same cuts in each.
#[test]
fn checkpoints_that_do_not_belong_together_are_refused_on_all_ranks() {
    let (one, other) = (saved(Way::Shm, "butterfly=2", "all"), saved(Way::Shm, "butterfly=2", "all"));
    for (folder, index) in [(&one, 1), (&other, 0)] {
        let what = format!("mixed:{}@0,{}@{index}", one.name(), folder.name());
        let ends = job(Way::Shm, &what, "butterfly=2", "all", one.name());
        for (success, text) in ends {
            assert!(success && said(&text, "MIXED")[0].contains("round 5 of run"), "{text}");
        }
    }
}

/// Makes one round of ones, and saves it.
fn one_round(world: &World, lengths: &[usize], model: Option<&[f64]>) -> Checkpoint {
    let builder = world.allreduce::<f64>(lengths);
    let builder = if let Some(model) = model { builder.memory(model).group(Group::Butterfly(2)) } else { builder };
    let mut sum = builder.build().unwrap();
    sum.contribution().unwrap().fill(1.0);
    sum.arrive().unwrap();
    let checkpoint = sum.wait(DEADLINE).unwrap().newest().checkpoint().unwrap();
    sum.finish(DEADLINE).unwrap();
    checkpoint
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_made() {
    let all = everywhere(2, DEADLINE, |world| {
        let (me, model) = (world.rank(), [0.0; 3]);
        let (plain, whole) = (one_round(&world, &[2, 1], None), one_round(&world, &[2, 1], Some(&model)));
        let refused = |builder: AllreduceBuilder<'_, f64>, words: &[&str]| {
            let text = builder.build().map(drop).unwrap_err().to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        let build = || world.allreduce::<f64>(&[2, 1]);
        refused(world.allreduce(&[3]).restore(&plain), &["tensor 0 is 2 elements", "3 elements"]);
        refused(world.allreduce(&[2, 2]).restore(&whole).group(Group::Butterfly(2)), &["tensor 1 is 1 elements"]);
        refused(build().restore(&whole).memory(&model), &["give none"]);
        refused(build().restore(&whole).group(Group::Arrivals(2)), &["the model of its checkpoint"]);
        refused(build().restore(&plain).group(Group::Butterfly(2)), &["a model"]);
        let other = world.allreduce::<f32>(&[2, 1]).restore(&plain).build().map(drop).unwrap_err().to_string();
        assert!(other.contains("f64") && other.contains("f32"), "{other}");
        let alone = build().restore(&plain);
        let one = if me == 0 { alone.build() } else { build().build() };
        assert!(matches!(one, Err(Error::Mismatch { what: "the checkpoint", .. })), "{one:?}");
        // The same model and another rule, from round 2 on.
        let mut again = build().restore(&plain).memory(&model).fire(Fire::quorum(2)).build().unwrap();
        again.arrive().unwrap();
        assert_eq!(again.wait(DEADLINE).unwrap().newest().round(), 2);
        again.finish(DEADLINE).unwrap();
        (plain, me)
    });
    let of_two = &all[0];
    // Ranks of another world, and in another order.
    for (ranks, words) in [(2, ["rank 0 saved it", "rank 1"]), (3, ["2 ranks", "has 3"])] {
        let texts = world(Way::Shm, ranks, DEADLINE, &|world| {
            let (checkpoint, _) = &of_two[(world.rank() as usize + 1) % 2];
            world.allreduce::<f64>(&[2, 1]).restore(checkpoint).build().map(drop).unwrap_err().to_string()
        });
        assert!(texts.iter().any(|text| words.iter().all(|word| text.contains(word))), "{texts:?}");
    }
}

#[test]
fn a_round_that_carries_or_lacks_a_rank_is_not_saved() {
    let usage = |error: Error| error.misuse().unwrap_or_else(|| panic!("{error}")).text();
    let turn = Barrier::new(2);
    world(Way::Shm, 2, DEADLINE, &|world| {
        let mut sum = world.allreduce::<f64>(&[1]).fire(Fire::SOLO.full_every(2)).build().unwrap();
        let me = world.rank();
        if me == 0 {
            sum.arrive().unwrap();
            let outcomes = sum.wait(DEADLINE).unwrap();
            assert!(usage(outcomes.newest().checkpoint().unwrap_err()).contains("full=N"));
            drop(outcomes);
        }
        turn.wait();
        // The first contribution of rank 1 is late: it enters the full round as carried, and rank 1 waits for that.
        sum.arrive().unwrap();
        let outcomes = sum.wait(DEADLINE).unwrap();
        let newest = outcomes.newest();
        assert!(
            newest.round() == 2 && newest.carried().contains(1) && !newest.fresh().contains(1),
            "{:?}",
            newest.cut()
        );
        assert!(newest.can_checkpoint() && newest.checkpoint().is_ok());
        drop((newest, outcomes));
        turn.wait();
        if me == 0 {
            sum.finish(DEADLINE).unwrap();
        }
        turn.wait();
        if me == 1 {
            for _ in 0..2 {
                sum.arrive().unwrap();
                let outcomes = sum.wait(DEADLINE).unwrap();
                assert!(usage(outcomes.newest().checkpoint().unwrap_err()).contains("a rank has left"));
            }
            sum.finish(DEADLINE).unwrap();
        }
    });
}

/// A collective that chooses its quorums goes on with the one that it had chosen, and with what it knows of the ranks.
#[test]
fn a_restored_world_waits_for_as_many_ranks_as_before() {
    everywhere(3, DEADLINE, |world| {
        let fire = Fire::AUTO.full_every(20);
        let play = |sum: &mut Allreduce<f64>, rounds: u64| loop {
            std::thread::sleep(Duration::from_millis(if world.rank() == 2 { 60 } else { 2 }));
            sum.arrive().unwrap();
            for outcome in sum.wait(DEADLINE).unwrap() {
                if outcome.round() >= rounds && fire.is_full(outcome.round()) {
                    return outcome.checkpoint().unwrap();
                }
            }
        };
        let mut sum = world.allreduce::<f64>(&[1]).fire(fire).build().unwrap();
        let saved = play(&mut sum, 80);
        let mut restored = world.allreduce::<f64>(&[1]).fire(fire).restore(&saved).build().unwrap();
        // No rank arrives after the saved round. On a machine that is not too busy the quorum is 2: without the slow rank.
        assert_eq!(restored.stats().quorum, sum.stats().quorum);
        assert_eq!(play(&mut restored, 100).round(), 100);
        restored.finish(DEADLINE).unwrap();
        sum.finish(DEADLINE).unwrap();
    });
}

/// Ranks begin with different models wherever these have registers of their own.
#[test]
fn ranks_may_begin_with_models_of_their_own() {
    everywhere(4, DEADLINE, |world| {
        let me = world.rank();
        // Larger than a segment.
        let length = 100_001;
        let model = vec![f64::from(me * 4); length];
        let build = || world.allreduce::<f64>(&[length]).own_memory(&model);
        let cases = [
            (Group::Arrivals(4), Absent::Carry),
            (Group::Butterfly(4), Absent::Carry),
            (Group::Butterfly(4), Absent::Hold),
        ];
        for (group, absent) in cases {
            let mut models = build().group(group).absent(absent).build().unwrap();
            let held = if absent == Absent::Hold { f64::from(me * 4) + 1.0 } else { 1.0 };
            models.contribution().unwrap().fill(held);
            models.arrive().unwrap();
            let outcomes = models.wait(DEADLINE).unwrap();
            let outcome = outcomes.newest();
            let saved = outcome.checkpoint();
            assert_eq!(saved.is_err(), group == Group::Arrivals(4), "{saved:?}");
            // The mean of the models, and of their updates.
            assert!(outcome.data().iter().all(|&x| x == 7.0), "{group}: {:?}", &outcome.data()[..3]);
            drop((outcome, outcomes));
            models.finish(DEADLINE).unwrap();
        }
        let shared = build().build();
        assert!(matches!(&shared, Err(Error::Mismatch { what, .. }) if what.contains("the model")), "{shared:?}");
    });
    // A solo round has the first models of ranks that did nothing yet.
    let turn = Barrier::new(4);
    everywhere(4, DEADLINE, |world| {
        let model = [f64::from(world.rank() * 4)];
        let builder = world.allreduce::<f64>(&[1]).own_memory(&model).group(Group::Butterfly(4)).fire(Fire::SOLO);
        let mut models = builder.mover(Mover::Cut).build().unwrap();
        if world.rank() == 3 {
            models.contribution().unwrap().fill(0.0);
            models.arrive().unwrap();
            assert_eq!(models.wait(DEADLINE).unwrap().newest().data(), [6.0]);
        }
        turn.wait();
        models.finish(DEADLINE).unwrap();
    });
}
