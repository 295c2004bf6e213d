//! `earlybird program`: the table of triggered operations behind a collective, printed or drawn.

use std::fmt::Write;
use std::process::ExitCode;

use crate::rule::MOST_RADIX;
use crate::trigger::{
    Action, Chunk, Counts, Operation, Profile, Program, RankBuffer, Request, Role, Schedule, Signal, Start,
    buffer_bytes, check, compile, hops,
};
use crate::{Fire, Grace, Mover, When};
use clap::ValueEnum;
use serde_json::json;

use super::launch::check_ranks;
use super::table::Table;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reduction {
    Doubling,
    Scatter,
    Gather,
    Halving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Runner {
    /// Processes that load and store the same memory
    Shared,
    /// Processes that reach each other by one-sided writes
    Network,
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Firing rule: all, solo, majority or quorum=Q; without grace (with one, solo counts as quorum=1)
    #[arg(long, default_value = "solo")]
    fire: Fire,
    /// Ranks in the world
    #[arg(short = 'n', long, value_name = "N", default_value_t = 8)]
    ranks: u32,
    /// Bytes of a contribution
    #[arg(long, value_parser = super::size, default_value = "4K")]
    bytes: u64,
    /// How data moves: tree or cut
    #[arg(long, default_value = "tree")]
    mover: Mover,
    /// How contributions become an outcome
    #[arg(long, value_enum, default_value = "doubling")]
    schedule: Reduction,
    /// Over a network: how many parts meet at a level of doubling and halving: 1 (a star) to 32
    #[arg(long, value_name = "R", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=32))]
    radix: u32,
    /// The executor that the table is made for
    #[arg(long, value_enum, default_value = "network")]
    profile: Runner,
    /// Rounds that may be in progress
    #[arg(long, default_value_t = 8)]
    depth: u64,
    /// Only this rank's table [default: rank 0's in a table, all in a drawing or as JSON]
    #[arg(long)]
    rank: Option<u32>,
    /// Draw a graph for Graphviz: pipe it to `dot -Tsvg`
    #[arg(long, conflicts_with = "json")]
    dot: bool,
    /// JSON Lines: an object for each operation, and one with the counts
    #[arg(long)]
    json: bool,
}

const MOST_BYTES: u64 = 1 << 36;

/// The maximum number of ranks of a drawing: more cannot be read, nor laid out in reasonable time.
const MOST_RANKS: u32 = 1024;

pub(super) fn main(args: &Args) -> super::Outcome {
    check_ranks(args.ranks)?;
    args.fire.check(args.ranks)?;
    if args.fire.limit().is_some() || args.fire.has_full_rounds() || matches!(args.fire.when(), When::Auto(_)) {
        return Err("a program's rounds all look alike; use all, solo, majority or quorum=Q".into());
    }
    if args.ranks > MOST_RANKS {
        return Err(
            format!("tables of {} ranks would be too large to look at; use up to {MOST_RANKS}", args.ranks).into()
        );
    }
    if args.bytes > MOST_BYTES {
        return Err(
            format!("{} bytes are more than the {MOST_BYTES} that a contribution can have here", args.bytes).into()
        );
    }
    if args.depth == 0 || args.depth > 65_536 {
        return Err("--depth must be between 1 and 65536".into());
    }
    if let Some(rank) = args.rank.filter(|&rank| rank >= args.ranks) {
        return Err(format!("there is no rank {rank} among {}", args.ranks).into());
    }
    if args.radix == 1 && args.ranks > MOST_RADIX {
        return Err(format!("--radix 1: a star has {MOST_RADIX} ranks at most").into());
    }
    match args.mover {
        Mover::Tree => {}
        Mover::Cut if args.fire.is_synchronous() => {
            return Err(
                "a synchronous cut needs no agreement and sends no activation; use --mover tree, or another rule"
                    .into(),
            );
        }
        Mover::Cut => return print_cut(args),
        Mover::Auto => return Err("--mover: use tree or cut".into()),
    }
    let start = Start::of(args.fire, Grace::NONE, args.ranks);
    let schedule = match args.schedule {
        Reduction::Doubling => Schedule::Doubling,
        Reduction::Scatter => Schedule::Scatter,
        Reduction::Gather => Schedule::Gather,
        Reduction::Halving => Schedule::Halving,
    };
    let profile = match args.profile {
        Runner::Shared => Profile::SHARED,
        Runner::Network => Profile::NETWORK,
    };
    let (ranks, bytes) = (args.ranks, args.bytes);
    let request = Request { ranks, start, schedule, radix: args.radix, bytes, chunk: 32 << 10, slots: args.depth };
    let world = compile(&request, &profile);
    check(&world, &request, &profile)?;
    let chosen = |usual: Option<u32>| {
        let rank = args.rank.or(usual);
        world.iter().filter(move |program| rank.is_none_or(|rank| rank == program.rank))
    };
    if args.dot {
        say!("{}", draw(&world, args.rank, args.fire));
    } else if args.json {
        for program in chosen(None) {
            program.operations.iter().for_each(|operation| say!("{}", row(program.rank, operation)));
        }
        say!("{}", counts_json(args, &world));
    } else {
        for program in chosen(Some(0)) {
            say!(
                "Program of rank {} of {ranks}: {}, {} bytes, {} profile",
                program.rank,
                args.fire,
                bytes,
                profile.name
            );
            say!("{}", table(program));
            say!("");
        }
        say!("Each round:");
        say!("{}", summary(args, &world));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the cut mover, which runs no table: its initiator is unique, so it signals the others itself.
fn print_cut(args: &Args) -> super::Outcome {
    let counts = Counts::of_cut(args.ranks, args.bytes);
    if args.dot {
        return Err("the cut mover has no table to draw; use --mover tree".into());
    }
    if args.json {
        say!(
            "{}",
            json!({"mover": "cut", "fire": args.fire.to_string(), "ranks": args.ranks, "bytes": args.bytes,
                "activations": counts.activations, "tokens": counts.tokens, "puts": counts.puts, "data_bytes": counts.bytes})
        );
    } else {
        say!("The cut mover runs no table: a word decides which ranks are in, and its one initiator tells the others.");
        say!("{} ranks, each on its own host, {} bytes, each round:", args.ranks, args.bytes);
        let mut table = Table::new(&["activations", "tokens", "puts", "data bytes"]);
        table.row(&[counts.activations, counts.tokens, counts.puts, counts.bytes].map(|count| count.to_string()));
        say!("{table}");
    }
    Ok(ExitCode::SUCCESS)
}

fn place(place: &RankBuffer, own: u32) -> String {
    if place.rank == own { place.buffer.to_string() } else { format!("{} of {}", place.buffer, place.rank) }
}

fn chunk(part: Chunk) -> String {
    match part {
        part if part.is_whole() => String::new(),
        Chunk { from, to, of } if to == from + 1 => format!(", chunk {from}/{of}"),
        Chunk { from, to, of } => format!(", chunks {from}..{to}/{of}"),
    }
}

fn action(operation: &Operation, rank: u32) -> String {
    match &operation.action {
        Action::Signal => "signal".to_owned(),
        Action::Seal => "close the gate".to_owned(),
        Action::Reduce { from, to, chunk: part } => {
            let from: Vec<String> = from.iter().map(|source| place(source, rank)).collect();
            format!("reduce {} to {to}{}", from.join(" + "), chunk(*part))
        }
        Action::Put { from, to, chunk: part } => format!("put {from} to {}{}", place(to, rank), chunk(*part)),
    }
}

fn signal(to: &Signal, own: u32) -> String {
    let input = format!("{}[{}]", to.counter, to.input);
    if to.rank == own { input } else { format!("{input} of {}", to.rank) }
}

fn signals(operation: &Operation, rank: u32) -> String {
    operation.then.iter().map(|to| signal(to, rank)).collect::<Vec<_>>().join(", ")
}

fn table(program: &Program) -> Table {
    let mut table = Table::new(&["when", "reaches", "of", "do", "then bump"]);
    for operation in &program.operations {
        table.row(&[
            operation.when.to_string(),
            operation.threshold.to_string(),
            program.inputs(operation.when).to_string(),
            action(operation, program.rank),
            signals(operation, program.rank),
        ]);
    }
    table
}

fn row(rank: u32, operation: &Operation) -> serde_json::Value {
    let then: Vec<_> = operation
        .then
        .iter()
        .map(|to| json!({"rank": to.rank, "counter": to.counter.to_string(), "input": to.input}))
        .collect();
    json!({
        "rank": rank, "when": operation.when.to_string(), "threshold": operation.threshold,
        "do": action(operation, rank), "then": then,
    })
}

fn counts_json(args: &Args, world: &[Program]) -> serde_json::Value {
    let counts = Counts::of_world(world, args.bytes);
    json!({
        "mover": "tree", "fire": args.fire.to_string(), "ranks": args.ranks, "bytes": args.bytes,
        "operations": counts.operations, "counters": counts.counters, "activations": counts.activations,
        "hops": hops(args.ranks), "signals": counts.signals, "tokens": counts.tokens, "puts": counts.puts,
        "data_bytes": counts.bytes, "reductions": counts.reductions,
        "buffer_bytes": buffer_bytes(world, args.bytes).into_iter().sum::<u64>() * args.depth,
    })
}

fn summary(args: &Args, world: &[Program]) -> Table {
    let head = [
        "",
        "operations",
        "counters",
        "activations",
        "signals",
        "tokens",
        "puts",
        "data bytes",
        "reductions",
        "buffers",
    ];
    let mut table = Table::new(&head);
    let memory: Vec<u64> = buffer_bytes(world, args.bytes).into_iter().map(|bytes| bytes * args.depth).collect();
    let mut add = |name: String, counts: Counts, memory: u64| {
        let Counts { operations, counters, activations, signals, tokens, puts, bytes, reductions } = counts;
        let numbers = [operations, counters, activations, signals, tokens, puts, bytes, reductions, memory];
        table.row(&[vec![name], numbers.map(|number| number.to_string()).to_vec()].concat());
    };
    let rank = args.rank.unwrap_or(0);
    let own = &world[rank as usize];
    add(format!("rank {rank}"), Counts::of(own, args.bytes), memory[rank as usize]);
    add("world".to_owned(), Counts::of_world(world, args.bytes), memory.iter().sum());
    table
}

/// Draws operations as boxes and ranks as frames. An edge is a counter that one operation adds to and another waits
/// for: dashed between ranks, bold if data travels with it.
fn draw(world: &[Program], only: Option<u32>, fire: Fire) -> String {
    let mut dot = String::new();
    let name = |rank: u32, index: usize| format!("r{rank}o{index}");
    let is_drawn = |rank: u32| only.is_none_or(|only| only == rank);
    // Writing to a string cannot fail.
    let _ = writeln!(
        dot,
        "digraph program {{\n  label=\"{fire}, {} ranks\"; rankdir=LR; fontname=\"sans-serif\";",
        world.len()
    );
    let _ = writeln!(dot, "  node [shape=box, style=rounded, fontname=\"sans-serif\", fontsize=10];");
    let _ = writeln!(dot, "  edge [fontname=\"sans-serif\", fontsize=8];");
    for program in world.iter().filter(|program| is_drawn(program.rank)) {
        let rank = program.rank;
        let _ = writeln!(dot, "  subgraph cluster_{rank} {{\n    label=\"rank {rank}\"; color=gray; style=rounded;");
        for (index, operation) in program.operations.iter().enumerate() {
            let (when, threshold) = (operation.when, operation.threshold);
            let what = action(operation, rank);
            let shape = if when == Role::Start { ", fillcolor=lightyellow, style=\"rounded,filled\"" } else { "" };
            let _ = writeln!(dot, "    {} [label=\"{when} ≥ {threshold}\\n{what}\"{shape}];", name(rank, index));
        }
        let _ = writeln!(dot, "    d{rank} [label=\"outcome\", shape=oval];\n  }}");
    }
    for program in world.iter().filter(|program| is_drawn(program.rank)) {
        for (index, operation) in program.operations.iter().enumerate() {
            let data = matches!(operation.action, Action::Put { .. });
            for to in operation.then.iter().filter(|to| is_drawn(to.rank)) {
                let targets: Vec<String> = match to.counter {
                    Role::Done => vec![format!("d{}", to.rank)],
                    counter => {
                        let rows = world[to.rank as usize].operations.iter().enumerate();
                        rows.filter(|(_, row)| row.when == counter).map(|(row, _)| name(to.rank, row)).collect()
                    }
                };
                let between = to.rank != program.rank;
                let style = match (between, data) {
                    (true, true) => "style=\"dashed,bold\"",
                    (true, false) => "style=dashed",
                    _ => "style=solid",
                };
                for target in targets {
                    let _ = writeln!(dot, "  {} -> {target} [{style}];", name(program.rank, index));
                }
            }
        }
    }
    dot.push('}');
    dot
}
