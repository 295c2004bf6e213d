//! `earlybird selftest`: what the library promises, checked on the devices of the user.

mod checks;
mod report;
mod rounds;
mod troubles;
mod witness;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::{Error, World};

use super::common::{Membership, Start};
use super::launch::{again, check_ranks};
use report::{Finding, Report, ReportRow};

/// The number of ranks that it starts without a launcher, unless a number is given.
const USUAL_RANKS: u32 = 4;

/// The deadline of every wait that is not itself checked.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Ten seconds instead of up to two minutes: fewer rounds, smaller sizes
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    start: Start,
}

/// How thoroughly the checks test.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// The time for the rounds of a rule with one size.
    time: Duration,
    /// The sizes of the outcomes, in bytes.
    sizes: &'static [usize],
    /// The maximum number of ranks that are absent in turn.
    absent: u32,
    /// The number of atomics to each peer, and of round trips of a pair.
    operations: u64,
}

impl Effort {
    const QUICK: Effort =
        Effort { time: Duration::from_millis(120), sizes: &[8, 4096, 65_536, 1 << 20], absent: 4, operations: 200 };
    const FULL: Effort = Effort {
        time: Duration::from_millis(2000),
        sizes: &[8, 512, 4096, 65_536, 1 << 20, 4 << 20],
        absent: 16,
        operations: 5000,
    };
}

/// A check: its name, the guarantees that it tests, the minimum number of ranks, and its function.
struct Check {
    name: String,
    guarantees: &'static [&'static str],
    least: u32,
    run: Run,
}

/// The function of a check. All ranks run it, in the same order. An error means that the world cannot continue.
type Run = Box<dyn Fn(&World, &Effort) -> crate::Result<Finding>>;

pub(super) fn main(args: &Args) -> super::Outcome {
    let Membership { ranks, launched, config } = args.start.place(USUAL_RANKS)?;
    if !launched {
        check_ranks(ranks)?;
        return again(ranks, args.start.bind, &config);
    }
    let begun = Instant::now();
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    let world = World::with(&config)?;
    let checks = all(world.size());
    let names = checks.iter().map(|check| check.name.as_str());
    let mut report = Report::new(&world, names, args.start.json);
    for check in &checks {
        report.begin(check);
        let found = match check.least > world.size() {
            true => Ok(Finding::not_run(format!("needs {} ranks", check.least))),
            false => (check.run)(&world, &effort),
        };
        match found.and_then(|own| ReportRow::of_all(&world, check, own)) {
            Ok(row) => report.row(&row),
            Err(error) => {
                give_up(&world, &mut report, check, &error);
                return Err(error.into());
            }
        }
    }
    world.barrier(PATIENCE)?;
    report.finish(begun.elapsed());
    // One rank reports for all, also with its exit status.
    match report.broken {
        broken if broken == 0 || world.rank() > 0 => Ok(ExitCode::SUCCESS),
        broken => Err(format!("{broken} of {} checks did not hold", checks.len()).into()),
    }
}

/// Stops after an error, after which no further check makes sense: the others hear of it, and the table shows it.
fn give_up(world: &World, report: &mut Report, check: &Check, error: &Error) {
    world.abort(&format!("selftest, {}: {error}", check.name));
    report.row(&ReportRow {
        name: &check.name,
        guarantees: check.guarantees,
        finding: Finding::broken(error.to_string()),
    });
}

fn all(ranks: u32) -> Vec<Check> {
    let mut all = vec![
        Check {
            name: "every rank reaches every other one".to_owned(),
            guarantees: &[],
            least: 2,
            run: Box::new(checks::connectivity),
        },
        Check {
            name: "writes arrive with their signals".to_owned(),
            guarantees: &[],
            least: 2,
            run: Box::new(checks::write_latency),
        },
        Check {
            name: "atomics return what was there before".to_owned(),
            guarantees: &[],
            least: 2,
            run: Box::new(checks::atomic_latency),
        },
    ];
    all.extend(checks::rules(ranks).into_iter().map(|fire| Check {
        name: format!("rounds of rule {fire}"),
        guarantees: &["G1", "G2", "G4", "G5", "G9"],
        least: 1,
        run: Box::new(move |world, effort| checks::rule(world, effort, fire)),
    }));
    all.push(Check {
        name: "all types, reductions, odd lengths".to_owned(),
        guarantees: &["G6"],
        least: 1,
        run: Box::new(checks::types),
    });
    all.extend(troubles::late_rules(ranks).into_iter().map(|fire| Check {
        name: format!("late ranks are carried once, {fire}"),
        guarantees: &["G1", "G2", "G4"],
        least: 2,
        run: Box::new(move |world, effort| troubles::late(world, effort, fire)),
    }));
    all.push(Check {
        name: "rounds complete while a rank sleeps".to_owned(),
        guarantees: &["G3", "G4", "G7"],
        least: 2,
        run: Box::new(troubles::absent),
    });
    all.push(Check {
        name: "a deadline names the missing rank".to_owned(),
        guarantees: &["G8"],
        least: 2,
        run: Box::new(troubles::deadline),
    });
    all.push(Check {
        name: "ranks that choose differently are told".to_owned(),
        guarantees: &["G8"],
        least: 2,
        run: Box::new(troubles::mismatch),
    });
    all
}
