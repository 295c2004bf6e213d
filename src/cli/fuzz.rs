//! `earlybird fuzz`: the protocol over random schedules, judged by an oracle.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use crate::files;
use crate::simulation::{Case, Failure, Found, Options, Pair, Recording, fuzz, shrink, trace};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use super::table::Table;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Schedules to run
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run one schedule and print its events: a seed, or what a failure was shrunk to
    #[arg(long, value_name = "CASE", conflicts_with_all = ["seeds", "from"])]
    replay: Option<Case>,
    /// Fuzz the world in a file, in --seeds orders of events, starting with number --from
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    world: Option<PathBuf>,
    /// Write the world that fails, or that is replayed, to a file: another generator draws another world from a seed
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// List all pairs of conditions that were met together ten times less often than independent ones would be
    #[arg(long)]
    pairs: bool,
    /// Print at most this number of events, the last ones
    #[arg(long, default_value_t = 80)]
    events: usize,
    /// Put a deliberate mistake into the protocol (test builds only), by name
    #[cfg(earlybird_faults)]
    #[arg(long)]
    fault: Option<String>,
    /// After a failure, print its world as well
    #[arg(short, long)]
    verbose: bool,
    /// JSON Lines: one object, and after a failure another that replays it
    #[arg(long)]
    json: bool,
}

/// The number of pairs of conditions that are printed without --pairs.
const MOST_PAIRS: usize = 12;

/// The maximum number of runs that shrink a failure.
const BUDGET: u64 = 30_000;

pub(super) fn main(args: &Args) -> super::Outcome {
    let options = Options::everything();
    #[cfg(earlybird_faults)]
    let options = match args.fault.as_deref() {
        Some(fault) => options.with_fault(find_fault(fault)?),
        None => options,
    };
    if let Some(case) = &args.replay {
        return replay(args, case, &options);
    }
    let until = args.from.checked_add(args.seeds).ok_or("more seeds than there are")?;
    let bar = if args.json { ProgressBar::hidden() } else { ProgressBar::new(args.seeds) };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} schedules, {per_sec}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let recorded = args.world.as_ref().map(|file| recorded(file)).transpose()?;
    let case = |number: u64| recorded.as_ref().map_or_else(|| Case::from(number), |world| world.in_order(number));
    let found = quietly(|| fuzz(args.from..until, case, &options, 1, |done| bar.set_position(done)));
    bar.finish_and_clear();
    report(args, &found);
    let Some(failure) = found.failures.into_iter().next() else { return Ok(ExitCode::SUCCESS) };
    if !args.json {
        say!("{} fails: {}", failure.case, first_line(&failure));
    }
    if args.world.is_some() {
        return replay(args, &failure.case, &options);
    }
    if !args.json {
        say!("making it smaller ...");
    }
    let smallest = quietly(|| shrink(failure, &options, BUDGET));
    replay(args, &smallest.case, &options)
}

fn recorded(file: &Path) -> Result<Arc<Recording>, String> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    let recording: Recording = text.parse().map_err(|error| format!("{name}: {error}"))?;
    Ok(Arc::new(recording.named(name)))
}

/// Runs a simulation without the message of a panic. The core asserts its invariants, so a panic is reported like any
/// other failure.
fn quietly<R>(simulate: impl FnOnce() -> R) -> R {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = simulate();
    std::panic::set_hook(usual);
    result
}

fn first_line(failure: &Failure) -> &str {
    failure.what.lines().next().unwrap_or_default()
}

fn report(args: &Args, found: &Found) {
    let counters = found.coverage.counters();
    let hardly = found.pairs.hardly_met();
    let shown = if args.pairs { hardly.len() } else { MOST_PAIRS.min(hardly.len()) };
    if args.json {
        let coverage: Map<String, Value> =
            counters.iter().map(|&(case, count)| (case.to_owned(), count.into())).collect();
        say!("{}", json!({"seeds": found.runs, "failures": found.failures.len(), "coverage": coverage}));
        for Pair { first, second, met, expected } in hardly.iter().take(shown) {
            say!("{}", json!({"first": first, "second": second, "met": met, "expected": expected}));
        }
        return;
    }
    let mut table = Table::new(&["met", "times"]);
    counters.iter().for_each(|&(case, count)| table.row(&[case.to_owned(), count.to_string()]));
    say!("{table}");
    let rare = found.pairs.rare();
    if !rare.is_empty() {
        let rare: Vec<String> = rare.iter().map(|(name, runs)| format!("{name} ({runs})")).collect();
        say!("conditions met in fewer than one of 10,000 schedules: {}", rare.join(", "));
    }
    if shown > 0 {
        let mut table = Table::new(&["hardly met together", "and", "schedules", "expected"]);
        for Pair { first, second, met, expected } in hardly.iter().take(shown) {
            table.row(&[first.to_string(), second.to_string(), met.to_string(), expected.to_string()]);
        }
        say!("{table}");
        say!("{} such pairs; --pairs lists all of them (most that were never met exclude each other)", hardly.len());
    }
    say!("{} schedules, {} failed", found.runs, found.failures.len());
}

fn replay(args: &Args, case: &Case, options: &Options) -> super::Outcome {
    let (result, story) = quietly(|| trace(case, options));
    if let Some(file) = &args.save {
        files::write(file, case.record(options).to_string().as_bytes())
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if !args.json {
        let skipped = story.len().saturating_sub(args.events);
        if skipped > 0 {
            say!("... {skipped} events before these; --events shows more");
        }
        story[skipped..].iter().for_each(|event| say!("{event}"));
    }
    match result {
        Ok(_) if args.json => say!("{}", json!({"replay": case.to_string(), "failure": null})),
        Ok(_) => say!("schedule {case} holds"),
        Err(failure) => {
            if args.json {
                say!("{}", json!({"replay": case.to_string(), "failure": failure.what, "world": failure.scenario}));
            } else {
                say!("{}", told(&failure, args));
            }
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns what a person needs to know about a failure: the violated guarantee, and the command that replays it.
fn told(Failure { case, what, scenario }: &Failure, args: &Args) -> String {
    let again = match &args.world {
        Some(file) => format!("--world {} --from {} --seeds 1", file.display(), case.order),
        None => format!("--replay {case}"),
    };
    let code = what.split(':').next().filter(|code| code.starts_with('G'));
    let promise = code.map_or(String::new(), |code| format!("\n{code} is in docs/semantics.md (Promises)"));
    let world = if args.verbose { format!("\nin {scenario}") } else { String::new() };
    format!("schedule {case} fails: {what}{promise}{world}\nagain: earlybird fuzz {again}{}", fault_option(args))
}

#[cfg(earlybird_faults)]
fn fault_option(args: &Args) -> String {
    args.fault.as_ref().map_or(String::new(), |fault| format!(" --fault {fault}"))
}

#[cfg(not(earlybird_faults))]
fn fault_option(_: &Args) -> String {
    String::new()
}

#[cfg(earlybird_faults)]
fn find_fault(name: &str) -> Result<crate::fault::Fault, String> {
    let known = || crate::fault::Suite::Simulator.faults();
    let found = known().find(|fault| format!("{fault:?}") == name);
    let names = || known().map(|fault| format!("{fault:?}")).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("unknown fault {name:?}; use one of {}", names()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_failure_is_told_in_words() {
        let (what, scenario) = ("G1: a contribution entered twice".to_owned(), "Scenario { ranks: 2 }".to_owned());
        let case = Case::from(7);
        let failure = Failure { case: case.clone(), what, scenario };
        let told = |options: &[&str]| told(&failure, &Command::parse_from([&["fuzz"], options].concat()).args);
        let brief = told(&[]);
        assert!(brief.starts_with(&format!("schedule {case} fails: G1: a contribution entered twice\n")), "{brief}");
        assert!(brief.ends_with(&format!("\nagain: earlybird fuzz --replay {case}")), "{brief}");
        assert!(!brief.contains("Scenario"), "{brief}");
        assert!(told(&["-v"]).contains("in Scenario { ranks: 2 }"));
        assert!(told(&["--world", "w.toml"]).contains("again: earlybird fuzz --world w.toml --from "));
    }
}
