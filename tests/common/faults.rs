//! Ranks that run rounds until something fails, and ranks that are killed.

use std::time::{Duration, Instant};

use earlybird::{Allreduce, Config, Error, Executor, Fire, Mover, World};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::marks::Marks;
use super::{Job, Way, left_behind, role, said, shared_memory_files, until, wait_at_most};

/// The time in which all ranks must notice.
const DEADLINE: Duration = Duration::from_secs(10);

/// The arguments of a rank, from its role: `FIRE MOVER PATIENCE [FOLDER [LENGTH DEADLINE]]`, in milliseconds, elements
/// and seconds. Under the mover `provider` a provider runs programs. In the folder the rank sets marks when it has
/// started and when it has waited in vain, and finds the mark to stop.
struct RankArguments {
    fire: Fire,
    how: (Mover, Executor),
    patience: Duration,
    marks: Option<Marks>,
    length: Option<usize>,
    deadline: Duration,
}

impl RankArguments {
    fn of(role: &str) -> RankArguments {
        let words: Vec<&str> = role.split(' ').collect();
        let shorter = std::env::var("TEST_DEADLINE").ok();
        let seconds = words.get(5).copied().or(shorter.as_deref());
        RankArguments {
            fire: words[0].parse().unwrap(),
            how: match words[1] {
                "provider" => (Mover::Tree, Executor::Provider),
                mover => (mover.parse().unwrap(), Executor::Auto),
            },
            patience: Duration::from_millis(words[2].parse().unwrap()),
            marks: words.get(3).map(|folder| Marks::at(folder)),
            length: words.get(4).map(|length| length.parse().unwrap()),
            deadline: seconds.map_or(DEADLINE, |seconds| Duration::from_secs(seconds.parse().unwrap())),
        }
    }

    fn is_enough(&self) -> bool {
        self.marks.as_ref().is_some_and(|marks| marks.has(ENOUGH))
    }
}

/// Set by each rank that has started, with its number.
const STARTED: &str = "started-";

/// Set by each rank that has waited in vain, with its number. These ranks stay for a while, so that
/// each of them reports for itself whom it waits for, and does not repeat the first one to give up.
const IN_VAIN: &str = "in-vain-";

/// Set for ranks that are to leave.
pub const ENOUGH: &str = "enough";

/// Whether all ranks of a world have started.
pub fn have_started(marks: &Marks, ranks: u32) -> bool {
    (0..ranks).all(|rank| marks.has(&format!("{STARTED}{rank}")))
}

/// Whether a rank has waited in vain.
pub fn has_waited_in_vain(marks: &Marks, rank: usize) -> bool {
    marks.has(&format!("{IN_VAIN}{rank}"))
}

/// Runs rounds until something fails or the mark to stop is set, and prints what failed; checks every sum.
pub fn rank() {
    role().iter().for_each(|role| play_and_report(role));
}

/// As [`rank`], in this role.
pub fn play_and_report(role: &str) {
    report(play(&RankArguments::of(role)));
}

/// Set by each rank that has reported a failure, with its number.
const REPORTED: &str = "reported-";

/// Whether a rank has reported a failure.
pub fn has_reported(marks: &Marks, rank: u32) -> bool {
    marks.has(&format!("{REPORTED}{rank}"))
}

/// As [`rank`], in this role and with an outcome of another collective, which it holds until something fails. Nothing
/// that is in flight then may change it. The rank reports before its world ends, which may take a device long.
pub fn hold_an_outcome(role: &str) {
    const LENGTH: usize = 8192;
    let arguments = RankArguments::of(role);
    let world = join(&arguments).unwrap();
    let mut held = world.allreduce::<u64>(&[LENGTH]).build().unwrap();
    let factor = |rank: u32| u64::from(rank + 1);
    for (index, x) in held.contribution().unwrap().iter_mut().enumerate() {
        *x = factor(world.rank()) * index as u64;
    }
    held.arrive().unwrap();
    let outcomes = held.wait(arguments.patience).unwrap();
    let ended = run_rounds(&world, &arguments);
    let factors: u64 = (0..world.size()).map(factor).sum();
    let is_whole = |(index, &x): (usize, &u64)| x == factors * index as u64;
    if !outcomes.newest().data().iter().enumerate().all(is_whole) {
        println!("\nWRONG outcome at the end");
    }
    drop(outcomes);
    report(ended.and_then(|()| held.finish(arguments.patience)));
    arguments.marks.iter().for_each(|marks| marks.set(&format!("{REPORTED}{}", world.rank())));
}

fn report(ended: Result<(), Error>) {
    let error = match ended {
        Err(error) => error,
        Ok(()) => return println!("\nENDED well"),
    };
    match &error {
        Error::PeerDied { peer, .. } => println!("\nDIED {peer}"),
        Error::Timeout { missing, .. } => println!("\nTIMEOUT {missing}"),
        Error::Aborted { by, .. } => println!("\nABORTED {by}"),
        other => println!("\nOTHER {other}"),
    }
    println!("TEXT {error}");
}

fn play(arguments: &RankArguments) -> Result<(), Error> {
    run_rounds(&join(arguments)?, arguments)
}

fn join(arguments: &RankArguments) -> Result<World, Error> {
    let mut config = Config { deadline: arguments.deadline, ..Config::from_env()? };
    if arguments.marks.is_some() {
        // All leave together, unless one cannot.
        config.ofi.patience.linger = Duration::from_secs(5);
    }
    World::with(&config)
}

fn run_rounds(world: &World, arguments: &RankArguments) -> Result<(), Error> {
    let RankArguments { fire, how: (mover, executor), patience, ref marks, length, .. } = *arguments;
    // Two ranks use only messages, which a provider may still hold without a context when the peer has ended.
    let length = length.unwrap_or(if world.size() == 2 { 1 } else { 3000 });
    let mut sum = world.allreduce::<u64>(&[length]).fire(fire).mover(mover).executor(executor).build()?;
    println!("\nSTARTED");
    marks.iter().for_each(|marks| marks.set(&format!("{STARTED}{}", world.rank())));
    let ended = go_on(world, &mut sum, arguments);
    if let (Err(Error::Timeout { .. }), Some(marks)) = (&ended, marks) {
        marks.set(&format!("{IN_VAIN}{}", world.rank()));
        wait_at_most(patience, || arguments.is_enough());
    }
    ended
}

/// Makes rounds until something fails or the mark to stop is set, and leaves.
fn go_on(world: &World, sum: &mut Allreduce<u64>, arguments: &RankArguments) -> Result<(), Error> {
    let started = Instant::now();
    let mut newest = 0;
    while started.elapsed() < Duration::from_secs(60) && !arguments.is_enough() {
        let mine = u64::from(world.rank() + 1) * 1000 + newest + 1;
        sum.contribution()?.fill(mine);
        sum.arrive()?;
        for outcome in sum.wait(arguments.patience)? {
            newest = outcome.round();
            let expected: u64 =
                outcome.cut().contributions().map(|entry| u64::from(entry.rank + 1) * 1000 + newest - entry.age).sum();
            if outcome.data().iter().any(|&x| x != expected) {
                println!("\nWRONG round {newest}");
            }
        }
    }
    sum.finish(arguments.patience)
}

/// So many times: kills a rank at a random moment of `window`, from joining to full operation.
/// Every other time, and in the only turn, the moment counts from the start of the world. All ranks must name it. For ways that outlive kills.
pub fn kill(way: Way, turns: usize, movers: &[&str], window: std::ops::Range<Duration>) {
    let (before, mut pids) = (shared_memory_files(), Vec::new());
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(9);
    let mut killed_after_start = 0;
    for turn in 0..turns {
        let ranks = [2, 3, 5][turn % 3];
        let fire = ["all", "solo", "quorum=2"][turn / 3 % 3];
        let mover = movers[turn / 9 % movers.len()];
        let marks = Marks::make();
        let mut job = Job::start(way, ranks, "rank", &format!("{fire} {mover} 8000 {}", marks.folder()));
        pids.extend(job.pids());
        let victim = rng.random_range(0..ranks) as usize;
        let moment = rng.random_range(window.clone());
        if turn % 2 == 1 || turns == 1 {
            until("a world has started", || have_started(&marks, ranks));
        }
        std::thread::sleep(moment);
        killed_after_start += usize::from(have_started(&marks, ranks));
        let killed = Instant::now();
        job.ranks[victim].kill().unwrap();
        let ends = job.finish(Duration::from_secs(20));
        assert!(
            killed.elapsed() < DEADLINE + Duration::from_secs(5),
            "{way:?}, turn {turn}: took {:?}",
            killed.elapsed()
        );
        for (rank, (_, text)) in ends.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            assert!(
                said(text, "WRONG").is_empty() && !text.contains("panicked"),
                "{way:?}, turn {turn}, rank {rank}: {text}"
            );
            let joined = !said(text, "STARTED").is_empty();
            let error = said(text, "TEXT").concat();
            assert!(!error.contains(": poll: "), "{way:?}, turn {turn}: not the caller's operation: {error}");
            let named = said(text, "DIED") == [victim.to_string()]
                // Before the world stands no rank watches another: the meeting names those that did not come.
                || (!joined && (error.contains(&format!("rank {victim} ")) || error.contains(&format!("rank {victim}:"))));
            assert!(
                named,
                "{way:?}, turn {turn} ({fire}, {mover}): rank {rank} of {ranks} does not name {victim}: {text}"
            );
        }
    }
    assert!(
        3 * killed_after_start >= turns,
        "{way:?}: {killed_after_start} of {turns} kills hit a world that had started"
    );
    let left = left_behind(&before, &pids);
    assert!(left.is_empty(), "{way:?}: {left:?} was left behind");
}

/// Contributions of each rank but the last one.
///
/// The ranks contribute one after the other, so the numbers of their rounds are known. A rank's first contribution is
/// late (rank 0's is not) and enters the round of its second one. Each later contribution makes a round, and so does
/// leaving. So all are in the rounds up to this many times the last rank's number, and one more round is left. With 3
/// and with 6 ranks the last rank is the home of neither of these two rounds: the rank before it can make them while
/// the last one is stopped.
const STEPS: usize = 6;

/// Plays a rank of a world. Its last rank is stopped while the rank before it makes a round, its
/// last but for leaving, and all others leave. The role ends with a folder of marks.
pub fn leave_or_be_stopped() {
    let (marks, patience) = (Marks::of_role(), Duration::from_secs(30));
    let mut config = Config::from_env().unwrap();
    // A rank that leaves has to give up on the stopped one.
    config.ofi.patience.linger = Duration::from_millis(200);
    let world = World::with(&config).unwrap();
    let (me, last) = (world.rank() as usize, world.size() as usize - 1);
    let goes_on = me + 1 == last;
    let value = |rank: u32, made_for: u64| u64::from(rank + 1) * 1000 + made_for;
    // A slot for every round: the last rank takes none before all others have left.
    let mut sum = world.allreduce::<u64>(&[16]).fire(Fire::SOLO).mover(Mover::Cut).depth(64).build().unwrap();
    let mut newest = 0;
    // Takes every round since the last one; returns the ranks that contributed to them.
    let mut contribute = |sum: &mut Allreduce<u64>| -> Vec<usize> {
        let mut ranks = Vec::new();
        sum.contribution().unwrap().fill(value(me as u32, newest + 1));
        sum.arrive().unwrap();
        for outcome in sum.wait(patience).unwrap() {
            let (round, cut) = (outcome.round(), outcome.cut());
            assert_eq!(round, newest + 1, "a round is lost");
            let expected: u64 = cut.contributions().map(|entry| value(entry.rank, round - entry.age)).sum();
            assert!(outcome.data().iter().all(|&found| found == expected), "round {round}: {cut:?}");
            ranks.extend(cut.contributions().map(|entry| entry.rank as usize));
            newest = round;
        }
        ranks
    };
    if me < last {
        if me > 0 {
            marks.wait(&format!("contributed-{}", me - 1));
        }
        let now = if goes_on { STEPS - 1 } else { STEPS };
        (0..now).for_each(|_| _ = contribute(&mut sum));
        if !goes_on {
            sum.finish(patience).unwrap();
        }
        marks.set(&format!("contributed-{me}"));
    }
    // After the second barrier all messages from before the first are acknowledged.
    (0..2).for_each(|_| world.barrier(patience).unwrap());
    marks.set(&format!("ready-{me}"));
    if me < last {
        marks.wait("stopped");
        if goes_on {
            contribute(&mut sum);
            assert_eq!(newest, (STEPS * last) as u64, "rounds");
            marks.set("made");
            // The last rank has to acknowledge that round before this one may leave.
            sum.finish(patience).unwrap();
        }
        return;
    }
    marks.wait("alone");
    let ranks = contribute(&mut sum);
    let made_by = |rank: usize| ranks.iter().filter(|&&other| other == rank).count();
    assert_eq!((0..last).map(made_by).collect::<Vec<_>>(), vec![STEPS; last], "contributions that came from each rank");
    sum.finish(patience).unwrap();
    assert_eq!(newest, (STEPS * last) as u64 + 1, "rounds");
}

/// Stops the last rank of a job that plays [`leave_or_be_stopped`]. All others but one leave and
/// end. That one makes a round, of which the stopped rank has read nothing when it continues. When
/// that one has left, too, the last rank receives all rounds, and ends well.
pub fn stop_while_others_leave(start: impl FnOnce(&str) -> Job) {
    let marks = Marks::make();
    let mut job = start(&format!("stopped {}", marks.folder()));
    let last = job.ranks.len() - 1;
    (0..=last).for_each(|rank| job.wait_for_mark(rank, (&marks, &format!("ready-{rank}"))));
    job.stop(last);
    marks.set("stopped");
    job.wait_for_mark(last - 1, (&marks, "made"));
    (0..last - 1).for_each(|rank| job.wait_for_end(rank));
    job.signal(last, rustix::process::Signal::CONT);
    job.wait_for_end(last - 1);
    marks.set("alone");
    let ends = job.finish(Duration::from_secs(60));
    assert!(ends.iter().all(|(status, _)| status.success()), "{ends:?}");
}
