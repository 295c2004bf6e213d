//! A rank of a small world is stopped, frozen, killed or terminated at a random moment. A seed
//! determines the case, and replays it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::Signal;

use super::faults::{ENOUGH, has_waited_in_vain, have_started};
use super::marks::Marks;
use super::{Job, PROVIDERS, Way, left_behind, providers, rdma, said, shared_memory_files, wait_at_most};

/// The time in which all waits of a rank end: joining, building a collective, its patience, and its linger.
const LIMIT: Duration = Duration::from_secs(60);

/// What is done to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// It is stopped, and continues before any other loses patience: nothing fails.
    Stop,
    /// It is stopped until all others have ended: they name it.
    Freeze,
    /// It is killed: the others name it.
    Kill,
    /// It gets SIGTERM, which it does not handle: the others name it.
    Term,
}

impl Trouble {
    const EVERY: [Trouble; 4] = [Trouble::Stop, Trouble::Freeze, Trouble::Kill, Trouble::Term];

    /// The signal that ends the rank, if one does.
    fn deadly(self) -> Option<Signal> {
        match self {
            Trouble::Stop | Trouble::Freeze => None,
            Trouble::Kill => Some(Signal::KILL),
            Trouble::Term => Some(Signal::TERM),
        }
    }

    /// How long the others wait for it in one call.
    fn patience(self) -> Duration {
        Duration::from_secs(match self {
            Trouble::Stop => 20,
            Trouble::Freeze => 4,
            Trouble::Kill | Trouble::Term => 8,
        })
    }

    /// How long the others wait for it during set-up.
    fn deadline(self) -> Duration {
        Duration::from_secs(if self == Trouble::Stop { 30 } else { 10 })
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Trouble::Stop => "stop",
            Trouble::Freeze => "freeze",
            Trouble::Kill => "kill",
            Trouble::Term => "term",
        })
    }
}

/// A case, drawn from a seed.
#[derive(Clone, Debug)]
pub struct Case {
    seed: u64,
    way: Way,
    ranks: u32,
    victim: usize,
    trouble: Trouble,
    fire: &'static str,
    mover: &'static str,
    length: usize,
    /// The moment counts from the start of the world, not from the creation of its processes.
    after_start: bool,
    moment: Duration,
    /// How long it is stopped.
    pause: Duration,
}

impl Case {
    fn draw(seed: u64) -> Case {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        // A provider, or shared memory.
        let way = PROVIDERS.get(rng.random_range(0..=PROVIDERS.len())).copied().map_or(Way::Shm, Way::Ofi);
        let trouble = match way {
            // In libfabric's shm a stopped process may hold a lock in the memory of the others.
            // They spin until it continues, which may be never.
            Way::Ofi("shm") => Trouble::Stop,
            _ => Trouble::EVERY[rng.random_range(0..Trouble::EVERY.len())],
        };
        let movers: &[&str] = match way {
            Way::Shm => &["cut", "tree"],
            Way::Ofi("sockets") if trouble != Trouble::Freeze => &["cut", "cut", "provider"],
            Way::Ofi(_) | Way::Verbs => &["cut"],
        };
        let ranks = [2, 3, 5, 6, 7][rng.random_range(0..5)];
        // Half of the cases certainly, more by chance.
        let after_start = seed % 2 == 1;
        let longest = match way {
            _ if after_start => 300,
            Way::Shm => 60,
            Way::Ofi(_) | Way::Verbs => 1500,
        };
        let mut time = |longest: u64| Duration::from_micros(rng.random_range(0..longest * 1000));
        let (moment, pause) = (time(longest), time(800));
        Case {
            seed,
            way,
            ranks,
            victim: rng.random_range(0..ranks) as usize,
            trouble,
            fire: ["all", "solo", "quorum=2", "majority"][rng.random_range(0..4)],
            mover: movers[rng.random_range(0..movers.len())],
            length: [1, 3000, 40_000][rng.random_range(0..3)],
            after_start,
            moment,
            pause,
        }
    }

    fn transport(&self) -> &'static str {
        match self.way {
            Way::Shm => "shared memory",
            Way::Ofi(provider) => provider,
            Way::Verbs => "RDMA verbs",
        }
    }

    /// Whether this machine can run it.
    fn can_be_played(&self) -> bool {
        match self.way {
            Way::Shm => true,
            Way::Ofi(provider) => providers().contains(&provider),
            Way::Verbs => rdma().is_some(),
        }
    }

    /// Runs it in processes that run the ignored test `rank` of this executable.
    fn play(&self) -> Played {
        let marks = Marks::make();
        let Case { way, ranks, victim, trouble, fire, mover, length, .. } = *self;
        let (patience, deadline) = (trouble.patience().as_millis(), trouble.deadline().as_secs());
        let role = format!("{fire} {mover} {patience} {} {length} {deadline}", marks.folder());
        let mut job = Job::start(way, ranks, "rank", &role);
        let pids = job.pids();
        if self.after_start {
            wait_at_most(LIMIT, || have_started(&marks, ranks));
        }
        std::thread::sleep(self.moment);
        let after_start = have_started(&marks, ranks);
        match trouble {
            Trouble::Stop => {
                job.signal(victim, Signal::STOP);
                std::thread::sleep(self.pause);
                job.signal(victim, Signal::CONT);
                marks.set(ENOUGH);
            }
            Trouble::Freeze => {
                job.signal(victim, Signal::STOP);
                let mut others: Vec<_> = job.ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim).collect();
                let has_ended = |process: &mut Child| process.try_wait().unwrap().is_some();
                wait_at_most(LIMIT, || {
                    others.iter_mut().all(|(rank, process)| has_waited_in_vain(&marks, *rank) || has_ended(process))
                });
                marks.set(ENOUGH);
                wait_at_most(LIMIT, || others.iter_mut().all(|(_, process)| has_ended(process)));
                job.signal(victim, Signal::CONT);
            }
            Trouble::Kill => job.signal(victim, Signal::KILL),
            Trouble::Term => job.signal(victim, Signal::TERM),
        }
        let ends = job.finish(LIMIT);
        Played { case: self.clone(), after_start, failure: self.judge(&ends).err(), pids }
    }

    /// Checks that all ranks ended as they should.
    fn judge(&self, ends: &[(ExitStatus, String)]) -> Result<(), String> {
        let blamed: Vec<Vec<usize>> = ends.iter().map(|(_, text)| blamed(text)).collect();
        for (rank, (status, text)) in ends.iter().enumerate() {
            let bad = |what: &str| {
                let others = ends.iter().enumerate().filter(|(other, _)| *other != rank);
                let told =
                    others.map(|(other, (_, text))| format!("\n  rank {other}: {}", said(text, "TEXT").concat()));
                Err(format!("rank {rank} {what} ({status}): {text}{}", told.collect::<String>()))
            };
            if !said(text, "WRONG").is_empty() || text.contains("panicked") {
                return bad("is wrong");
            }
            if let Some(signal) = self.trouble.deadly().filter(|_| rank == self.victim) {
                // A libfabric provider may catch the signal, and ends the process in its own way.
                let caught = signal == Signal::TERM && status.code() == Some(1);
                match status.signal() == Some(signal.as_raw()) || caught {
                    true => continue,
                    false => return bad("did not end by its signal"),
                }
            }
            if !status.success() {
                return bad("did not end");
            }
            let named = match self.trouble {
                Trouble::Stop if said(text, "ENDED") == ["well"] => true,
                Trouble::Stop => return bad("failed"),
                Trouble::Freeze if rank == self.victim => true,
                Trouble::Freeze => match said(text, "ABORTED").first() {
                    None => self.blames_rightly(rank, &blamed),
                    // It repeats whom the other rank blames, which is judged for that.
                    Some(by) => *by != self.victim.to_string() && blamed[rank] == blamed[by.parse::<usize>().unwrap()],
                },
                // Before the world has started no rank is watched: the meeting names the ranks that did not come.
                Trouble::Kill | Trouble::Term if said(text, "STARTED").is_empty() => blamed[rank] == [self.victim],
                Trouble::Kill | Trouble::Term => said(text, "DIED") == [self.victim.to_string()],
            };
            if !named {
                return bad(&format!("does not name {}", self.victim));
            }
        }
        Ok(())
    }

    /// Whether a rank that has waited in vain, while another was stopped, blames that one; `blamed`
    /// has the ranks that each rank blames.
    ///
    /// In two cases a rank cannot know better and blames others. It names all others when one of
    /// them holds something of a round and has not recorded its own number: the closing of a cut, a
    /// segment, a deposit without its signal. And it names ranks that the stopped one delays, perhaps
    /// only these, if its own data from the stopped one has come. They name it themselves, and do not
    /// wait for the rank that is ahead.
    fn blames_rightly(&self, rank: usize, blamed: &[Vec<usize>]) -> bool {
        let names_all = |rank: usize| {
            let others = !blamed[rank].contains(&rank) && blamed[rank].len() + 1 == self.ranks as usize;
            self.may_be_in_hand() && others
        };
        let names_it = |rank: usize| blamed[rank].contains(&self.victim);
        let is_behind = |other: usize| names_it(other) && (names_all(other) || !blamed[other].contains(&rank));
        let others_are_behind = || blamed[rank].iter().all(|&other| other == self.victim || is_behind(other));
        !blamed[rank].is_empty() && (names_all(rank) || others_are_behind())
    }

    /// Whether a rank may hold something of a round for which others wait. If all ranks have the
    /// little data, each rank makes the round itself.
    fn may_be_in_hand(&self) -> bool {
        (self.way, self.fire, self.mover, self.length) != (Way::Shm, "all", "cut", 1)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { seed, ranks, victim, trouble, fire, mover, length, moment, pause, .. } = self;
        let since = if self.after_start { "they have started" } else { "their processes are made" };
        write!(
            f,
            "seed {seed}: {ranks} ranks over {}, {fire} {mover}, {length} elements; {trouble} of rank {victim} {moment:.1?} after \
             {since}",
            self.transport()
        )?;
        if *trouble == Trouble::Stop { write!(f, ", for {pause:.1?}") } else { Ok(()) }
    }
}

/// The ranks that an error blames: the last ones that it names. Those before report it, or passed it on.
pub fn blamed(text: &str) -> Vec<usize> {
    let told = said(text, "TEXT").concat();
    let list = |rest: &str| -> Vec<usize> {
        let rest = rest.trim_start_matches('s');
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == ',' || c == ' ')).unwrap_or(rest.len());
        rest[..end].split(',').filter_map(|number| number.trim().parse().ok()).collect()
    };
    told.split("rank").skip(1).map(list).filter(|ranks| !ranks.is_empty()).last().unwrap_or_default()
}

/// A case and its result.
struct Played {
    case: Case,
    /// The world had started when it happened.
    after_start: bool,
    failure: Option<String>,
    pids: Vec<u32>,
}

/// Cases at the same time: their ranks wait most of it.
const SIDE_BY_SIDE: usize = 4;

/// Runs the cases of seeds that this machine can, and prints a table. All must end as they should,
/// at least a third must have hit a world that had started, and no file may be left.
pub fn play(seeds: Range<u64>) {
    let before = shared_memory_files();
    let queue = Mutex::new(seeds.map(Case::draw).filter(Case::can_be_played));
    let played = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(case) = queue.lock().unwrap().next() else { break };
            let began = Instant::now();
            let done = case.play();
            println!("{case}: {:.1?}{}", began.elapsed(), if done.failure.is_some() { ", FAILED" } else { "" });
            played.lock().unwrap().push(done);
        }
    };
    std::thread::scope(|scope| (0..SIDE_BY_SIDE).for_each(|_| _ = scope.spawn(work)));
    let played = played.into_inner().unwrap();
    let mut table: BTreeMap<(&str, Trouble), [usize; 3]> = BTreeMap::new();
    let mut failed = Vec::new();
    for Played { case, after_start, failure, .. } in &played {
        let row = table.entry((case.transport(), case.trouble)).or_default();
        let counts = [1, usize::from(*after_start), usize::from(failure.is_some())];
        row.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        failed.extend(failure.as_ref().map(|what| format!("{case}\n  {what}")));
    }
    let after_start = played.iter().filter(|played| played.after_start).count();
    println!("\ntransport       what    cases  after start  failed");
    for ((transport, trouble), [cases, late, failures]) in &table {
        println!("{transport:<14}  {trouble:<6}  {cases:>5}  {late:>11}  {failures:>6}");
    }
    let cases = played.len();
    println!("{cases} cases, {after_start} of them after the start, {} failed", failed.len());
    assert!(failed.is_empty(), "tests/kill-and-freeze 1 SEED replays one:\n{}", failed.join("\n"));
    assert!(cases < 2 || 3 * after_start >= cases, "{after_start} of {cases} hit a world that had started");
    let pids: Vec<u32> = played.iter().flat_map(|played| &played.pids).copied().collect();
    let left = left_behind(&before, &pids);
    assert!(left.is_empty(), "{left:?} was left behind");
}
