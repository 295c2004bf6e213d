//! `earlybird simulate`: the cost of simulating a world.

use std::process::ExitCode;
use std::time::Instant;

use crate::rule::MOST_RADIX;
use crate::simulation::{Calm, Costs};
use crate::{Fire, Grace, Mover};
use serde_json::json;

use super::table::Table;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Ranks in the world
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    ranks: u32,
    /// Firing rule, as bench has it: auto, all, solo, majority, quorum=Q or deadline=TIME
    #[arg(long, default_value = "solo")]
    fire: Fire,
    /// How long a round stays open after it fired: auto, 0 or a time
    #[arg(long, default_value = "auto", allow_hyphen_values = true)]
    grace: Grace,
    /// Ranks of a host
    #[arg(long, value_name = "N", default_value_t = 8)]
    per_host: u32,
    /// Rounds that a rank may have unreleased
    #[arg(long, default_value_t = 2)]
    depth: u64,
    /// Contributions of each rank
    #[arg(long, default_value_t = 2)]
    steps: u32,
    /// 64-bit integers of a contribution
    #[arg(long, default_value_t = 1)]
    elements: usize,
    /// How data moves between hosts: cut, or tree, by an agent on each host
    #[arg(long, default_value = "cut")]
    mover: Mover,
    /// With `tree`: how many hosts meet at a level; 1 is a star
    #[arg(long, default_value_t = 2)]
    radix: u32,
    /// Schedules to run, one after the other
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Events of a schedule, at most
    #[arg(long, default_value_t = 1_000_000_000)]
    events: u64,
    /// JSON Lines, an object a schedule
    #[arg(long)]
    json: bool,
}

const MOST_RANKS: u32 = 4096;
const MOST_ELEMENTS: usize = 4096;

const COLUMNS: [&str; 8] =
    ["seed", "rounds", "events", "a round and rank", "operations a round", "simulated µs", "seconds", "peak MiB"];

pub(super) fn main(args: &Args) -> super::Outcome {
    check(args)?;
    let Args { ranks, per_host, fire, grace, depth, steps, elements, mover, radix, .. } = *args;
    let world = Calm { ranks, per_host, fire, grace, depth, steps, elements, mover, radix };
    let until = args.from.checked_add(args.seeds).ok_or("more seeds than there are")?;
    let mut table = Table::new(&COLUMNS);
    for seed in args.from..until {
        let start = Instant::now();
        let Costs { events, rounds, time, traffic } = world.run(seed, args.events)?;
        let seconds = start.elapsed().as_secs_f64();
        let per_round_and_rank = events as f64 / (rounds.max(1) * u64::from(ranks)) as f64;
        let peak = peak_memory();
        let operations = traffic.messages + traffic.atomics + traffic.reads;
        let operations_a_round = operations as f64 / rounds.max(1) as f64;
        if args.json {
            say!(
                "{}",
                json!({
                    "ranks": ranks, "per_host": per_host, "fire": fire.to_string(), "grace": grace.to_string(),
                    "mover": mover.to_string(), "radix": radix, "depth": depth, "steps": steps, "elements": elements, "seed": seed, "rounds": rounds,
                    "events": events, "events_per_round_and_rank": per_round_and_rank, "simulated_ns": time,
                    "seconds": seconds, "peak_bytes": peak,
                    "sent": traffic,
                })
            );
            continue;
        }
        table.row(&[
            seed.to_string(),
            rounds.to_string(),
            events.to_string(),
            format!("{per_round_and_rank:.1}"),
            format!("{operations_a_round:.1}"),
            format!("{:.3}", time as f64 / 1e3),
            format!("{seconds:.3}"),
            peak.map_or_else(|| "unknown".to_owned(), |bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20))),
        ]);
    }
    if !args.json {
        say!("{table}");
    }
    Ok(ExitCode::SUCCESS)
}

fn check(args: &Args) -> Result<(), String> {
    if args.ranks == 0 || args.ranks > MOST_RANKS {
        return Err(format!("{} ranks cannot be simulated; use 1 to {MOST_RANKS}", args.ranks));
    }
    args.fire.check(args.ranks).map_err(|error| error.to_string())?;
    if args.per_host == 0 {
        return Err("--per-host must be 1 or more".to_owned());
    }
    if args.depth == 0 || args.depth > 64 {
        return Err("--depth must be between 1 and 64".to_owned());
    }
    if args.mover == Mover::Tree && args.ranks <= args.per_host {
        return Err("--mover tree is for several hosts; choose fewer ranks a host, by --per-host".to_owned());
    }
    if args.mover == Mover::Auto {
        return Err("--mover must be cut or tree".to_owned());
    }
    let hosts = args.ranks.div_ceil(args.per_host);
    if !(1..=MOST_RADIX).contains(&args.radix) || (args.radix == 1 && hosts > MOST_RADIX) {
        return Err(format!("--radix must be 1 to {MOST_RADIX}, and a star has at most {MOST_RADIX} hosts"));
    }
    if args.elements > MOST_ELEMENTS {
        return Err(format!("--elements must be at most {MOST_ELEMENTS}"));
    }
    Ok(())
}

/// Returns the peak memory of this process in bytes, if the system reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}
